/* test_page.c - a page of images, bars and charts as a PNG, with the figure plug-in, and refused pages. */
#include "report/folder.h"

#include <math.h>

#include <tern/report.h>

enum { SIDE = 20 };

static const double epochs[] = {1, 2, 3}, losses[] = {3, 2, 1.5};
static const tern_curve curve = {"loss", epochs, losses, NULL, NULL, 3};
static const tern_chart charts[] = {{"Loss", "epoch", "loss", &curve, 1},
                                    {"Again", "epoch", "loss", &curve, 1}};
static const tern_bar bar[] = {{"one", 3, 2.5, 4, 0}, {"two", 1.25, 1.25, 1.25, 1}};
static const tern_bars bars[] = {{"Seconds", bar, 2}, {"Memory", bar, 1}};

/* Expects `status`, also in *err, and `part` in the error's text; clears *err. */
static void expect_error(int status, tern_error *err, int code, const char *part)
{
    assert_int_equal(status, code);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, "tern_figure_save");
    assert_non_null(strstr(err->text, part));
    *err = (tern_error){0};
}

static uint8_t grey[SIDE * SIDE], colours[SIDE * SIDE * 3];

/* A grey image, and the same in colour. */
static void fill(tern_picture pictures[2])
{
    for (int i = 0; i < SIDE * SIDE; i++) {
        grey[i] = (uint8_t)(i % 251);
        for (int c = 0; c < 3; c++) colours[3 * i + c] = grey[i];
    }
    pictures[0] = (tern_picture){grey, SIDE, SIDE, 0, "label", false};
    pictures[1] = (tern_picture){colours, SIDE, SIDE, 3, "label", false};
}

static tern_figure figure_of(const tern_picture *pictures, int count, int across, int bar_count,
                             int chart_count)
{
    return (tern_figure){.title = "A page",
                         .pictures = pictures,
                         .picture_count = count,
                         .across = across,
                         .bars = bars,
                         .bars_count = bar_count,
                         .charts = charts,
                         .chart_count = chart_count};
}

/* Gets size and hash of the page. Skips without the plug-in. */
static uint64_t saved(const char *path, const tern_figure *figure, uint32_t *width, uint32_t *height)
{
    tern_error err = {0};
    need_part("figure");
    tern_figure_save(path, figure, &err);
    assert_ok(err);
    read_png(path, width, height);
    FILE *file = fopen(path, "rb");
    uint64_t hash = 1469598103934665603u;
    for (int c; (c = fgetc(file)) != EOF;) hash = (hash ^ (uint64_t)c) * 1099511628211u;
    fclose(file);
    return hash;
}

static void what_stands_on_it_makes_its_size(void **state)
{
    folder *f = *state;
    tern_picture pictures[2];
    uint32_t w, h, wide, high, more;
    fill(pictures);
    tern_figure page = figure_of(NULL, 0, 0, 0, 1);
    saved(f->file, &page, &w, &h);
    page = figure_of(NULL, 0, 0, 0, 2); /* side by side */
    saved(f->file, &page, &wide, &high);
    assert_true(wide == 2 * w && high == h);
    page = figure_of(pictures, 2, 2, 0, 2);
    saved(f->file, &page, &wide, &more);
    assert_true(wide == 2 * w && more > high);
    page = figure_of(pictures, 2, 1, 0, 2); /* in two rows */
    saved(f->file, &page, &wide, &high);
    assert_true(high > more);
    page = figure_of(pictures, 2, 1, 2, 2);
    saved(f->file, &page, &wide, &more);
    assert_true(wide == 2 * w && more > high);
}

static void a_legend_and_a_confusion_matrix(void **state)
{
    folder *f = *state;
    static const char *const names[] = {"cat", "a name too wide for its column, which is drawn aslant",
                                        "dog"};
    int64_t counts[] = {8, 1, 1, 0, 0, 0, 3, 0, 7};
    tern_legend legend[] = {{"cat", {255, 0, 0}}, {"dog", {255, 255, 255}}};
    tern_confusion_chart confusion = {"Confusion", names, counts, 3};
    uint32_t w, h, wide, high;
    tern_figure page = figure_of(NULL, 0, 0, 0, 1);
    saved(f->file, &page, &w, &h);
    page.legend = legend;
    page.legend_count = 2;
    uint64_t red = saved(f->file, &page, &wide, &high);
    assert_true(wide == w && high > h);
    legend[0].colour[1] = 255;
    assert_true(saved(f->file, &page, &wide, &high) != red);
    page.legend_count = 0;
    page.confusion = &confusion; /* beside the chart */
    uint64_t first = saved(f->file, &page, &wide, &high);
    assert_true(wide == 2 * w && high == h);
    counts[0] = 16, counts[1] = 2, counts[2] = 2; /* the same shares */
    assert_true(saved(f->file, &page, &wide, &high) == first);
    counts[1] = 3;
    assert_true(saved(f->file, &page, &wide, &high) != first);
    page.chart_count = 0; /* alone */
    saved(f->file, &page, &wide, &high);
    assert_true(wide == w && high == h);
}

static void colours_are_drawn(void **state)
{
    folder *f = *state;
    tern_picture pictures[2];
    uint32_t w, h;
    fill(pictures);
    tern_figure page = figure_of(pictures, 1, 1, 1, 0);
    uint64_t first = saved(f->file, &page, &w, &h);
    page.pictures = &pictures[1];
    assert_true(saved(f->file, &page, &w, &h) == first);
    colours[300] ^= 64;
    assert_true(saved(f->file, &page, &w, &h) != first);
    page.pictures = pictures;
    page.bars = &bars[1];
    assert_true(saved(f->file, &page, &w, &h) != first);
}

/* Makes each change alone. */
static void what_cannot_be_drawn(void **state)
{
    folder *f = *state;
    tern_picture pictures[2];
    tern_error err = {0};
    fill(pictures);
    tern_figure page = figure_of(pictures, 2, 0, 0, 0);
    assert_int_equal(tern_figure_save(f->file, &page, NULL), TERN_E_RANGE);
    page = figure_of(pictures, 0, 1, 0, 0);
    assert_int_equal(tern_figure_save(f->file, &page, NULL), TERN_E_RANGE);
    pictures[1].channels = 2;
    page = figure_of(pictures, 2, 2, 0, 0);
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_RANGE,
                 "image 1: expected rows and columns above 0 and 1 or 3 channels");
    pictures[1].caption = NULL;
    assert_int_equal(tern_figure_save(f->file, &page, NULL), TERN_E_INVALID);
    const tern_bar worse[] = {{"three", NAN, 0, 0, 0}, {"four", -1, 0, 0, 0}, {NULL, 1, 1, 1, 0}};
    for (int i = 0; i < 3; i++) {
        const tern_bars wrong = {"Worse", &worse[i], 1};
        page = (tern_figure){.title = "A page", .bars = &wrong, .bars_count = 1};
        assert_int_equal(tern_figure_save(f->file, &page, NULL), i < 2 ? TERN_E_RANGE : TERN_E_INVALID);
    }
    const tern_bars empty = {"Empty", bar, 0};
    page.bars = &empty;
    assert_int_equal(tern_figure_save(f->file, &page, NULL), TERN_E_INVALID);
    const tern_chart none = {"None", "x", "y", &curve, 0};
    page = (tern_figure){.title = "A page", .charts = &none, .chart_count = 1};
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_RANGE, "at least one curve");
    const char *names[] = {"one", NULL};
    const int64_t counts[] = {1, 0, -2, 1};
    tern_confusion_chart confusion = {"Confusion", (const char *const *)names, counts, 2};
    page = (tern_figure){.title = "A page", .confusion = &confusion};
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_INVALID,
                 "class 1 of the confusion matrix");
    names[1] = "two";
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_RANGE, "class 1 has the count -2");
    confusion.classes = TERN_CONFUSION_CHART_MAX + 1;
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_RANGE,
                 "expected 1 to 20 classes, got 21");
    const tern_legend nameless = {NULL, {0}};
    page = (tern_figure){
        .title = "A page", .bars = bars, .bars_count = 1, .legend = &nameless, .legend_count = 1};
    expect_error(tern_figure_save(f->file, &page, &err), &err, TERN_E_INVALID, "entry 0 of the legend");
    page.title = NULL;
    assert_int_equal(tern_figure_save(f->file, &page, NULL), TERN_E_INVALID);
    assert_int_equal(tern_figure_save(f->file, NULL, NULL), TERN_E_INVALID);
    assert_int_equal(access(f->file, F_OK), -1);
}

static void a_path_that_cannot_be_written(void **state)
{
    folder *f = *state;
    char path[160];
    uint32_t w, h;
    tern_error err = {0};
    tern_figure page = figure_of(NULL, 0, 0, 1, 1);
    saved(f->file, &page, &w, &h);
    snprintf(path, sizeof(path), "%s/nowhere/page.png", f->path);
    expect_error(tern_figure_save(path, &page, &err), &err, TERN_E_IO, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(what_stands_on_it_makes_its_size),
        IN_A_FOLDER(a_legend_and_a_confusion_matrix),
        IN_A_FOLDER(colours_are_drawn),
        IN_A_FOLDER(what_cannot_be_drawn),
        IN_A_FOLDER(a_path_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
