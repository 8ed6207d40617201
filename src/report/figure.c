/* figure.c - checks charts, grids of images and figures of both, and saves them as PNGs, which the figure
 * plug-in draws. */
#include "base/file.h"
#include "base/plugin.h"

#include <tern/backend/figure.h>

#include <math.h>

/* ---- a PNG that is being written ---- */

typedef struct figure_file {
    tern__output file;
    tern_error *err;
    tern_figure_out out; /* passed to the plug-in, writes to `file` */
    int failed;          /* the plug-in's status     */
    char why[256];
} figure_file;

static bool figure_write(void *to, const void *bytes, size_t count)
{
    figure_file *figure = to;
    return !tern__output_write(&figure->file, bytes, count, figure->err);
}

/* Returns the plug-in, or NULL if it is missing or the file cannot be made. */
static const tern_figure_backend *figure_file_open(figure_file *figure, const char *path, const char *func,
                                                   tern_error *err)
{
    const tern_figure_backend *plugin = tern__plugin_get(TERN__PLUGIN_FIGURE, NULL, func, err);
    *figure = (figure_file){.err = err, .out = {figure_write, figure}};
    return plugin && !tern__output_open(&figure->file, path, func, err) ? plugin : NULL;
}

/* Moves the file to its name if all went well; otherwise the old file stays. */
static int figure_file_close(figure_file *figure)
{
    const tern__output *file = &figure->file;
    int status = TERN_OK;
    if (figure->failed)
        status = tern__error_set(figure->err, file->func, TERN_E_IO, "%s: %s", file->path, figure->why);
    return tern__output_close(&figure->file, status, false, figure->err);
}

/* ---- charts ---- */

static bool all_finite(const double *values, int count)
{
    for (int i = 0; values && i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

static int check_curve(const char *func, const tern_curve *c, tern_error *err)
{
    if (!c->name || !c->x || !c->y || !c->low != !c->high)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "curve \"%s\" needs a name, x and y, and low and high together or not at all",
                               c->name ? c->name : "");
    if (c->count < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "curve \"%s\": expected at least 1 point, got %d",
                               c->name, c->count);
    if (all_finite(c->x, c->count) && all_finite(c->y, c->count) && all_finite(c->low, c->count) &&
        all_finite(c->high, c->count))
        return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "curve \"%s\" has a point that is not finite", c->name);
}

static int check_chart(const char *func, const tern_chart *chart, tern_error *err)
{
    if (!chart || !chart->title || !chart->x_label || !chart->y_label)
        return tern__error_set(err, func, TERN_E_INVALID, "the chart, its title or a label is NULL");
    if (chart->count < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "expected at least one curve, got %d", chart->count);
    for (int i = 0; i < chart->count; i++)
        if (check_curve(func, &chart->curves[i], err)) return err->code;
    return TERN_OK;
}

int tern_chart_save(const char *path, const tern_chart *chart, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e) || check_chart(__func__, chart, e)) return e->code;
    figure_file file;
    const tern_figure_backend *plugin = figure_file_open(&file, path, __func__, e);
    if (!plugin) return e->code;
    file.failed = plugin->chart_save(&file.out, chart, file.why, sizeof(file.why));
    return figure_file_close(&file);
}

/* ---- grids of images ---- */

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
    figure_file file;
    const tern_figure_backend *plugin = figure_file_open(&file, path, __func__, e);
    if (!plugin) return e->code;
    file.failed = plugin->grid_save(&file.out, title, pictures, count, across, file.why, sizeof(file.why));
    return figure_file_close(&file);
}

/* ---- a figure of images, bars and charts ---- */

static int check_image(const char *func, const tern_picture *p, int i, tern_error *err)
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

static int check_confusion(const char *func, const tern_confusion_chart *c, tern_error *err)
{
    if (!c->title || !c->names || !c->counts)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "a confusion matrix needs a title, names and counts");
    if (c->classes < 1 || c->classes > TERN_CONFUSION_CHART_MAX)
        return tern__error_set(err, func, TERN_E_RANGE, "confusion matrix: expected 1 to %d classes, got %d",
                               TERN_CONFUSION_CHART_MAX, c->classes);
    for (int i = 0; i < c->classes; i++)
        if (!c->names[i])
            return tern__error_set(err, func, TERN_E_INVALID, "class %d of the confusion matrix has no name",
                                   i);
    for (int i = 0; i < c->classes * c->classes; i++)
        if (c->counts[i] < 0)
            return tern__error_set(err, func, TERN_E_RANGE, "confusion matrix: class %d has the count %lld",
                                   i / c->classes, (long long)c->counts[i]);
    return TERN_OK;
}

static int check_figure(const char *func, const tern_figure *f, tern_error *err)
{
    if (!f || !f->title) return tern__error_set(err, func, TERN_E_INVALID, "the figure or its title is NULL");
    int parts = f->picture_count + f->bars_count + f->chart_count + !!f->confusion;
    if (parts < 1 || (f->picture_count && f->across < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected something to draw, got %d images, %d across, %d bars, %d charts",
                               f->picture_count, f->across, f->bars_count, f->chart_count);
    for (int i = 0; i < f->picture_count; i++)
        if (check_image(func, &f->pictures[i], i, err)) return err->code;
    for (int i = 0; i < f->bars_count; i++)
        if (check_bars(func, &f->bars[i], err)) return err->code;
    for (int i = 0; i < f->chart_count; i++)
        if (check_chart(func, &f->charts[i], err)) return err->code;
    for (int i = 0; i < f->legend_count; i++)
        if (!f->legend[i].name)
            return tern__error_set(err, func, TERN_E_INVALID, "entry %d of the legend has no name", i);
    return f->confusion ? check_confusion(func, f->confusion, err) : TERN_OK;
}

int tern_figure_save(const char *path, const tern_figure *figure, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e) || check_figure(__func__, figure, e)) return e->code;
    figure_file file;
    const tern_figure_backend *plugin = figure_file_open(&file, path, __func__, e);
    if (!plugin) return e->code;
    file.failed = plugin->figure_save(&file.out, figure, file.why, sizeof(file.why));
    return figure_file_close(&file);
}
