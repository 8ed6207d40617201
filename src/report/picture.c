#include "report/figure.h"

int tern_picture_grid_save(const char *path, const char *title, const tern_picture *pictures, int count,
                           int across, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (count < 1 || across < 1)
        return tern__error_set(err, __func__, TERN_E_RANGE,
                               "expected at least one picture, got %d, %d across", count, across);
    tern_error own = {0};
    const tern_figure_backend *plugin = tern__figure_open(__func__, err ? err : &own);
    if (!plugin) return err ? err->code : own.code;
    char why[256] = "";
    if (plugin->grid_save(path, title, pictures, count, across, why, sizeof(why)))
        return tern__error_set(err, __func__, TERN_E_IO, "%s: %s", path, why);
    return TERN_OK;
}
