#include "report/figure.h"

const tern_figure_backend *tern__figure_open(const char *func, tern_error *err)
{
    tern_error missing = {0};
    const tern_figure_backend *plugin = tern__plugin_open("tern_figure.so", TERN_FIGURE_SYMBOL, &missing);
    if (plugin && plugin->abi == TERN_FIGURE_ABI) return plugin;
    if (!plugin)
        tern__error_set(err, func, missing.code, "%s", missing.text);
    else
        tern__error_set(err, func, TERN_E_UNSUPPORTED, "figure plug-in \"%s\" has ABI %d, expected %d",
                        plugin->name, plugin->abi, TERN_FIGURE_ABI);
    return NULL;
}
