/* page.c - saves a grid of images, or a figure of images, bars and charts, as a PNG. */
#include "report/figure.h"

#include <math.h>

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

/* ---- a figure of images, bars and charts ---- */

static int page_check_image(const char *func, const tern_picture *p, int i, tern_error *err)
{
    if (!p->pixels || !p->caption)
        return tern__error_set(err, func, TERN_E_INVALID, "image %d needs pixels and a caption", i);
    bool fits = p->rows > 0 && p->columns > 0 && (p->channels == 0 || p->channels == 1 || p->channels == 3);
    if (fits) return TERN_OK;
    return tern__error_set(
        err, func, TERN_E_RANGE,
        "image %d: expected rows and columns above 0 and 1 or 3 channels, got %d x %d x %d", i, p->rows,
        p->columns, p->channels);
}

static bool is_length(double value)
{
    return isfinite(value) && value >= 0;
}

static int check_bars(const char *func, const tern_bars *bars, tern_error *err)
{
    if (!bars->title || bars->count < 1)
        return tern__error_set(err, func, TERN_E_INVALID, "bars need a title and at least one bar");
    for (int i = 0; i < bars->count; i++) {
        const tern_bar *b = &bars->bars[i];
        if (!b->name)
            return tern__error_set(err, func, TERN_E_INVALID, "a bar of \"%s\" has no name", bars->title);
        if (!is_length(b->value) || !is_length(b->low) || !is_length(b->high) || b->colour < 0)
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "bar \"%s\": expected finite numbers of at least 0, got %g (%g to %g)",
                                   b->name, b->value, b->low, b->high);
    }
    return TERN_OK;
}

static int page_check(const char *func, const tern_figure *f, tern_error *err)
{
    if (!f || !f->title) return tern__error_set(err, func, TERN_E_INVALID, "the figure or its title is NULL");
    if (f->picture_count + f->bars_count + f->chart_count < 1 || (f->picture_count && f->across < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected something to draw, got %d images, %d across, %d bars, %d charts",
                               f->picture_count, f->across, f->bars_count, f->chart_count);
    for (int i = 0; i < f->picture_count; i++)
        if (page_check_image(func, &f->pictures[i], i, err)) return err->code;
    for (int i = 0; i < f->bars_count; i++)
        if (check_bars(func, &f->bars[i], err)) return err->code;
    for (int i = 0; i < f->chart_count; i++)
        if (tern__chart_check(func, &f->charts[i], err)) return err->code;
    return TERN_OK;
}

int tern_figure_save(const char *path, const tern_figure *figure, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e) || page_check(__func__, figure, e)) return e->code;
    const tern_figure_backend *plugin = tern__figure_open(__func__, e);
    tern__figure_file file;
    if (!plugin || tern__figure_create(&file, path, __func__, e)) return e->code;
    file.failed = plugin->figure_save(&file.out, figure, file.why, sizeof(file.why));
    return tern__figure_close(&file);
}
