/* test_picture.c - a grid of images as a PNG, with the figure plug-in, and the errors if that fails. */
#include "report/folder.h"

#include <tern/report.h>

enum { SIDE = 28 };

static int save(const char *path, int count, int across, tern_error *err)
{
    static uint8_t pixels[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) pixels[i] = (uint8_t)(i % 251);
    tern_picture pictures[6];
    for (int i = 0; i < 6; i++)
        pictures[i] =
            (tern_picture){pixels, SIDE, SIDE, 1, i % 2 ? "Ankle boot" : "Coat \xe2\x86\x92 Shirt", i % 2};
    return tern_picture_grid_save(path, "Predictions", pictures, count, across, err);
}

/* Skips without the plug-in. */
static void save_or_skip(const char *path, int count, int across)
{
    tern_error err = {0};
    need_part("figure");
    save(path, count, across, &err);
    assert_ok(err);
}

static void a_grid_is_a_png(void **state)
{
    folder *f = *state;
    uint32_t width[3], height[3];
    static const int across[] = {3, 2, 6};
    for (int i = 0; i < 3; i++) {
        save_or_skip(f->file, 6, across[i]);
        read_png(f->file, &width[i], &height[i]);
        assert_true(width[i] >= (uint32_t)(SIDE * across[i]));
        assert_true(height[i] >= (uint32_t)(SIDE * 6 / across[i]));
    }
    assert_true(width[1] < width[0] && width[0] < width[2]);
    assert_true(height[1] > height[0] && height[0] > height[2]);
    save_or_skip(f->file, 5, 3); /* the last row is not full */
    read_png(f->file, &width[1], &height[1]);
    assert_true(width[1] == width[0] && height[1] == height[0]);
}

static void a_path_that_cannot_be_written(void **state)
{
    folder *f = *state;
    char path[160];
    save_or_skip(f->file, 1, 1);
    snprintf(path, sizeof(path), "%s/nowhere/grid.png", f->path);
    tern_error err = {0};
    assert_int_equal(save(path, 1, 1, &err), TERN_E_IO);
    assert_int_equal(err.code, TERN_E_IO);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "No such file or directory"));
    assert_string_equal(err.func, "tern_picture_grid_save");
}

static int save_six(const char *path, tern_error *err)
{
    return save(path, 6, 3, err);
}

static void a_full_disk_leaves_the_old_one(void **state)
{
    folder *f = *state;
    save_or_skip(f->file, 1, 1);
    expect_old_file(f, 0, save_six);
    expect_old_file(f, 1000, save_six);
}

static void a_plug_in_that_is_not_there(void **state)
{
    folder *f = *state;
    setenv("TERN_PLUGIN_PATH", f->path, 1);
    tern_error err = {0};
    assert_int_equal(save(f->file, 1, 1, &err), TERN_E_UNSUPPORTED);
    assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    assert_true(strstr(err.text, "the plug-in tern_figure.so cannot be loaded: ") == err.text);
    assert_non_null(strstr(err.text, f->path)); /* where it was looked for */
    assert_string_equal(err.func, "tern_picture_grid_save");
    assert_int_equal(access(f->file, F_OK), -1);
    assert_int_equal(choose_plugins(), 0);
}

static void a_grid_of_nothing(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    assert_int_equal(save(f->file, 0, 1, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "expected at least 1 image and at least 1 across, got 0 and 1");
    assert_int_equal(save(f->file, 1, 0, NULL), TERN_E_RANGE);
    assert_int_equal(save(f->file, 1, 1, &err), TERN_E_RANGE); /* an error that is set is kept */
    assert_int_equal(access(f->file, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_plug_in_that_is_not_there), /* first: one that was found is kept */
        IN_A_FOLDER(a_grid_is_a_png),
        IN_A_FOLDER(a_path_that_cannot_be_written),
        IN_A_FOLDER(a_full_disk_leaves_the_old_one),
        IN_A_FOLDER(a_grid_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
