/* test_chart.c - charts as PNGs, with the figure plug-in, and refused charts. */
#include "report/folder.h"

#include <math.h>

#include <tern/report.h>

enum { POINTS = 5 };

static const double steps[POINTS] = {0, 10, 20, 30, 40}, some[POINTS] = {3, 2.5, 2, 1.5, 1.25};

/* One curve, with a band if `wide`. */
static int save(const char *path, const double *y, bool wide, int points, tern_error *err)
{
    double low[POINTS], high[POINTS];
    for (int i = 0; i < POINTS; i++) low[i] = y[i] - 0.25, high[i] = y[i] + 0.25;
    const tern_curve curve = {"loss", steps, y, wide ? low : NULL, wide ? high : NULL, points};
    const tern_chart chart = {"Training", "step", "loss", &curve, 1};
    return tern_chart_save(path, &chart, err);
}

/* Returns a hash of the file. Skips without the plug-in. */
static uint64_t saved(const char *path, const double *y, bool wide, int points)
{
    tern_error err = {0};
    need_part("figure");
    save(path, y, wide, points, &err);
    assert_ok(err);
    uint32_t width, height;
    read_png(path, &width, &height);
    assert_true(width > height && height >= 300);
    FILE *file = fopen(path, "rb");
    uint64_t hash = 1469598103934665603u;
    for (int c; (c = fgetc(file)) != EOF;) hash = (hash ^ (uint64_t)c) * 1099511628211u;
    fclose(file);
    return hash;
}

static void a_chart_shows_its_curves(void **state)
{
    folder *f = *state;
    static const double other[POINTS] = {3, 2.5, 2.5, 1.5, 1.25}, flat[POINTS] = {7, 7, 7, 7, 7};
    uint64_t first = saved(f->file, some, false, POINTS);
    assert_true(saved(f->file, some, false, POINTS) == first);
    assert_true(saved(f->file, some, true, POINTS) != first);
    assert_true(saved(f->file, other, false, POINTS) != first);
    assert_true(saved(f->file, some, false, POINTS - 1) != first);
    assert_true(saved(f->file, some, false, 1) != saved(f->file, flat, false, 1)); /* a dot, elsewhere */
    saved(f->file, flat, false, POINTS);
}

static void what_cannot_be_drawn(void **state)
{
    folder *f = *state;
    static const double gap[POINTS] = {3, 2, NAN, 1, 1};
    tern_error err = {0};
    assert_int_equal(save(f->file, gap, false, POINTS, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "curve \"loss\" has a point that is not finite");
    assert_string_equal(err.func, "tern_chart_save");
    err = (tern_error){0};
    assert_int_equal(save(f->file, some, false, 0, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "curve \"loss\": expected at least 1 point, got 0");
    assert_int_equal(save(f->file, some, false, POINTS, &err),
                     TERN_E_RANGE); /* an error that is set is kept */
    tern_curve half = {"half", steps, some, some, NULL, POINTS};
    tern_chart chart = {"Training", "step", "loss", &half, 1};
    assert_int_equal(tern_chart_save(f->file, &chart, NULL), TERN_E_INVALID);
    chart.count = 0;
    assert_int_equal(tern_chart_save(f->file, &chart, NULL), TERN_E_RANGE);
    chart.title = NULL;
    assert_int_equal(tern_chart_save(f->file, &chart, NULL), TERN_E_INVALID);
    assert_int_equal(tern_chart_save(f->file, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(access(f->file, F_OK), -1);
}

static void a_path_or_a_plug_in_that_is_not_there(void **state)
{
    folder *f = *state;
    char path[160];
    tern_error err = {0};
    snprintf(path, sizeof(path), "%s/nowhere/chart.png", f->path);
    saved(f->file, some, false, POINTS);
    assert_int_equal(save(path, some, false, POINTS, &err), TERN_E_IO);
    assert_non_null(strstr(err.text, path));
}

static void a_plug_in_that_is_not_there(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    setenv("TERN_PLUGIN_PATH", f->path, 1);
    assert_int_equal(save(f->file, some, false, POINTS, &err), TERN_E_UNSUPPORTED);
    assert_string_equal(err.func, "tern_chart_save");
    assert_int_equal(choose_plugins(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_plug_in_that_is_not_there), /* first: one that was found is kept */
        IN_A_FOLDER(a_chart_shows_its_curves),
        IN_A_FOLDER(what_cannot_be_drawn),
        IN_A_FOLDER(a_path_or_a_plug_in_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
