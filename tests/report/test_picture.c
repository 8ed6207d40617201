/* A grid of pictures as a PNG through the figure plug-in, and what is said where it cannot be. */
#include "check.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tern/report.h>

enum { SIDE = 28 };

typedef struct folder {
    char path[64], file[96];
} folder;

/* The plug-in lies in the build folder, one above this program's. */
static int choose_plugins(void)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 4);
    if (length <= 0) return -1;
    path[length] = '\0';
    strcpy(strrchr(path, '/'), "/..");
    return setenv("TERN_PLUGIN_PATH", path, 1);
}

static int open_folder(void **state)
{
    static folder f;
    snprintf(f.path, sizeof(f.path), "/tmp/tern-picture-XXXXXX");
    if (!mkdtemp(f.path)) return -1;
    snprintf(f.file, sizeof(f.file), "%s/grid.png", f.path);
    *state = &f;
    return choose_plugins();
}

static int close_folder(void **state)
{
    folder *f = *state;
    unlink(f->file);
    return rmdir(f->path);
}

static int save(const char *path, int count, int across, tern_error *err)
{
    static uint8_t pixels[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) pixels[i] = (uint8_t)(i % 251);
    tern_picture pictures[6];
    for (int i = 0; i < 6; i++)
        pictures[i] =
            (tern_picture){pixels, SIDE, SIDE, i % 2 ? "Ankle boot" : "Coat \xe2\x86\x92 Shirt", i % 2};
    return tern_picture_grid_save(path, "Predictions", pictures, count, across, err);
}

/* Width and height from a PNG's header: signature, then a chunk of 13 bytes named IHDR. */
static void read_png(const char *path, uint32_t *width, uint32_t *height)
{
    static const unsigned char start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                                          0,    0,   0,   13,  'I',  'H',  'D',  'R'};
    unsigned char head[24];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof(head), file), sizeof(head));
    fclose(file);
    assert_memory_equal(head, start, sizeof(start));
    memcpy(width, head + 16, 4);
    memcpy(height, head + 20, 4);
    *width = ntohl(*width);
    *height = ntohl(*height);
}

/* Skips where the plug-in was not built: the library is whole without it. */
static void save_or_skip(const char *path, int count, int across)
{
    tern_error err = {0};
    if (save(path, count, across, &err) == TERN_E_UNSUPPORTED) skip();
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
    assert_true(strstr(err.text, path) == err.text);
    assert_true(strlen(err.text) > strlen(path) + 2); /* and why */
    assert_string_equal(err.func, "tern_picture_grid_save");
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
}

static void a_grid_of_nothing(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    assert_int_equal(save(f->file, 0, 1, &err), TERN_E_RANGE);
    assert_string_equal(err.text, "expected at least one picture, got 0, 1 across");
    assert_int_equal(save(f->file, 1, 0, NULL), TERN_E_RANGE);
    assert_int_equal(save(f->file, 1, 1, &err), TERN_E_RANGE); /* the error that is set already */
    assert_int_equal(access(f->file, F_OK), -1);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_grid_is_a_png),
        IN_A_FOLDER(a_path_that_cannot_be_written),
        IN_A_FOLDER(a_plug_in_that_is_not_there),
        IN_A_FOLDER(a_grid_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
