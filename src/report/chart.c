/* chart.c - checks a chart and saves it as a PNG. */
#include "report/figure.h"

#include <math.h>

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
    if (c->count < 2)
        return tern__error_set(err, func, TERN_E_RANGE, "curve \"%s\": expected at least 2 points, got %d",
                               c->name, c->count);
    if (all_finite(c->x, c->count) && all_finite(c->y, c->count) && all_finite(c->low, c->count) &&
        all_finite(c->high, c->count))
        return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "curve \"%s\" has a point that is not finite", c->name);
}

int tern__chart_check(const char *func, const tern_chart *chart, tern_error *err)
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
    if (tern__is_set(e) || tern__chart_check(__func__, chart, e)) return e->code;
    const tern_figure_backend *plugin = tern__figure_open(__func__, e);
    tern__figure_file file;
    if (!plugin || tern__figure_create(&file, path, __func__, e)) return e->code;
    file.failed = plugin->chart_save(&file.out, chart, file.why, sizeof(file.why));
    return tern__figure_close(&file);
}
