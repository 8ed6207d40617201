/* figure.c - loads the figure plug-in, and gives it a file to write to. */
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

static bool figure_write_some(void *to, const void *bytes, size_t count)
{
    tern__figure_file *figure = to;
    return !tern__output_write(&figure->file, bytes, count, figure->err);
}

int tern__figure_create(tern__figure_file *figure, const char *path, const char *func, tern_error *err)
{
    *figure = (tern__figure_file){.err = err, .out = {figure_write_some, figure}};
    return tern__output_open(&figure->file, path, func, err);
}

int tern__figure_close(tern__figure_file *figure)
{
    const tern__output *file = &figure->file;
    int status = TERN_OK;
    if (figure->failed)
        status = tern__error_set(figure->err, file->func, TERN_E_IO, "%s: %s", file->path, figure->why);
    return tern__output_close(&figure->file, status, false, figure->err);
}
