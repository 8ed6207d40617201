/* picture.c - saves a grid of captioned images as a PNG. */
#include "report/figure.h"

int tern_picture_grid_save(const char *path, const char *title, const tern_picture *pictures, int count,
                           int across, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return e->code;
    if (tern__need(path, "path", __func__, e) || tern__need(pictures, "array of pictures", __func__, e))
        return e->code;
    if (count < 1 || across < 1)
        return tern__error_set(e, __func__, TERN_E_RANGE,
                               "expected at least 1 image and at least 1 across, got %d and %d", count,
                               across);
    const tern_figure_backend *plugin = tern__figure_open(__func__, e);
    tern__figure_file file;
    if (!plugin || tern__figure_create(&file, path, __func__, e)) return e->code;
    file.failed = plugin->grid_save(&file.out, title, pictures, count, across, file.why, sizeof(file.why));
    return tern__figure_close(&file);
}
