/* test_image.c - image files: memory, missing plug-ins, and refused files. tests/torch/test_image.py compares
 * the pixels. */
#include "image/reader.h"
#include "ledger.h"
#include "report/folder.h"

#include <string.h>

enum { HEIGHT = 5, WIDTH = 7 };

static uint8_t pixels[HEIGHT * WIDTH * 3];

static tern_image image_make(int channels)
{
    for (size_t i = 0; i < sizeof(pixels); i++) pixels[i] = (uint8_t)(i * 37);
    return (tern_image){.height = HEIGHT, .width = WIDTH, .channels = channels, .pages = 1, .data = pixels};
}

/* Skips without the plug-in. */
static void save_or_skip(const char *path, int channels)
{
    tern_error err = {0};
    tern_image image = image_make(channels);
    need_part("png");
    tern_image_save(path, &image, NULL, &err);
    assert_ok(err);
}

/* ---- plug-ins; first, because a plug-in stays loaded ---- */

static void expect_missing(const char *path, const char *magic, size_t size, const char *text)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(magic, 1, size, file), size);
    fclose(file);
    tern_error err = {0};
    tern_image image = {0};
    assert_int_equal(tern_image_load(path, NULL, &image, &err), TERN_E_UNSUPPORTED);
    assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    assert_true(strstr(err.text, path) == err.text);
    assert_non_null(strstr(err.text, text));
    assert_null(image.data);
}

static void plug_ins_that_are_not_there(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    tern_image image = image_make(1);
    setenv("TERN_PLUGIN_PATH", f->path, 1);
    assert_int_equal(tern_image_save(f->file, &image, NULL, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, ": PNG: the plug-in tern_png.so cannot"));
    expect_missing(f->file, "\x89PNG", 4, ": PNG: the plug-in tern_png.so");
    expect_missing(f->file, "\xff\xd8\xff\xe0", 4, ": JPEG: the plug-in tern_jpeg.so");
    expect_missing(f->file, "MM\0*", 4, ": TIFF: the plug-in tern_tiff.so");
    assert_int_equal(choose_plugins(), 0);
}

/* ---- memory ---- */

static void memory_is_used_again(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    tern_image image = {0};
    save_or_skip(f->file, 3);
    assert_int_equal(tern_image_load(f->file, NULL, &image, &err), TERN_OK);
    void *data = image.data;
    assert_memory_equal(data, pixels, sizeof(pixels));
    save_or_skip(f->file, 1);
    assert_int_equal(tern_image_load(f->file, NULL, &image, &err), TERN_OK);
    assert_ptr_equal(image.data, data);
    assert_int_equal(image.channels, 1);
    assert_memory_equal(data, pixels, HEIGHT * WIDTH);
    tern_image_free(&image);
    assert_null(image.data);
    tern_image_free(&image);
    tern_image_free(NULL);
}

static void no_memory(void **state)
{
    folder *f = *state;
    save_or_skip(f->file, 3);
    int loaded = TERN_E_MEMORY, saved = TERN_E_MEMORY;
    for (int i = 1; loaded || saved; i++) {
        ledger books = {.refuse_at = i};
        tern_image image = {0}, own = image_make(3);
        ledger_open(&books);
        loaded = tern_image_load(f->file, NULL, &image, NULL);
        assert_true(loaded == TERN_E_MEMORY || atomic_load(&books.requests) < i);
        tern_image_free(&image);
        ledger_close(&books);
        books = (ledger){.refuse_at = i};
        ledger_open(&books);
        saved = tern_image_save(f->file, &own, NULL, NULL);
        assert_true(saved == TERN_E_MEMORY || atomic_load(&books.requests) < i);
        ledger_close(&books);
    }
}

/* ---- refused files ---- */

#define REFUSED(call, want, what)                                                                            \
    do {                                                                                                     \
        tern_error err = {0};                                                                                \
        assert_int_equal((call), want);                                                                      \
        assert_int_equal(err.code, want);                                                                    \
        if (!strstr(err.text, what)) fail_msg("\"%s\" is not in \"%s\"", what, err.text);                    \
    } while (0)

#define LOAD(field, value)                                                                                   \
    (o = tern_image_defaults(), o.field = (value), tern_image_load(f->file, &o, &image, &err))

static void loading(void **state)
{
    folder *f = *state;
    tern_image image = {0};
    tern_image_opts o;
    save_or_skip(f->file, 3);
    REFUSED(LOAD(channels, 2), TERN_E_RANGE, "channels is 2, expected 0, 1 or 3");
    REFUSED(LOAD(pixels_most, 0), TERN_E_RANGE, "pixels_most is 0, expected [1, 2^40]");
    REFUSED(LOAD(pixels_most, HEIGHT * WIDTH - 1), TERN_E_RANGE,
            "has 5 x 7 pixels according to its header, expected at most 34");
    REFUSED((o.indices = true, LOAD(indices, true)), TERN_E_FORMAT,
            "is a colour image, expected a map of labels");
    o.channels = 3;
    REFUSED(tern_image_load(f->file, &o, &image, &err), TERN_E_INVALID, "indices have one channel, not 3");
    REFUSED(tern_image_load(NULL, NULL, &image, &err), TERN_E_INVALID, "the path is NULL");
    REFUSED(tern_image_probe(f->file, NULL, NULL, &err), TERN_E_INVALID, "the image is NULL");
    assert_null(image.data);
    tern_error set = {.code = TERN_E_PEER, .text = "earlier"};
    assert_int_equal(tern_image_load(f->file, NULL, &image, &set), TERN_E_PEER);
    assert_int_equal(tern_image_load("/nowhere", NULL, &image, NULL), TERN_E_IO);
}

#define SAVE(field, value)                                                                                   \
    (image = image_make(1), image.field = (value), tern_image_save(f->file, &image, &o, &err))

static void saving(void **state)
{
    folder *f = *state;
    tern_image image;
    tern_image_save_opts o = tern_image_save_defaults();
    static const uint8_t palette[3 * 256];
    char path[160];
    save_or_skip(f->file, 1);
    REFUSED(SAVE(data, NULL), TERN_E_INVALID, "the image's data is NULL");
    REFUSED(SAVE(height, 0), TERN_E_INVALID, "0 x 7 pixels");
    REFUSED(SAVE(width, INT64_C(1) << 31), TERN_E_INVALID, "5 x 2147483648 pixels");
    REFUSED(SAVE(channels, 2), TERN_E_INVALID, "or u8 of 4; got u8 of 2");
    REFUSED(SAVE(sample, TERN_IMAGE_F32), TERN_E_INVALID, "got f32 of 1");
    image = image_make(4);
    image.sample = TERN_IMAGE_U16;
    REFUSED(tern_image_save(f->file, &image, NULL, &err), TERN_E_INVALID, "got u16 of 4");
    o.palette = palette;
    REFUSED(SAVE(channels, 3), TERN_E_INVALID, "a palette is for u8 indices of one channel");
    REFUSED(SAVE(channels, 1), TERN_E_RANGE, "the palette has 0 colours, expected [1, 256]");
    o.colours = 37;
    REFUSED(SAVE(channels, 1), TERN_E_RANGE, "index 37 at (0, 1), but the palette has 37 colours");
    o.colours = 256;
    snprintf(path, sizeof(path), "%s/nowhere/a.png", f->path);
    REFUSED(tern_image_save(path, &image, NULL, &err), TERN_E_IO, "cannot create ");
}

/* ---- the disk ---- */

static int save_noise(const char *path, tern_error *err)
{
    static uint8_t noise[64 * 64 * 3];
    uint32_t next = 1;
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (uint8_t)((next = next * 1664525 + 1013904223) >> 24);
    tern_image image = {.height = 64, .width = 64, .channels = 3, .data = noise};
    return tern_image_save(path, &image, NULL, err);
}

static void a_full_disk_leaves_the_old_one(void **state)
{
    folder *f = *state;
    save_or_skip(f->file, 3);
    expect_old_file(f, 0, save_noise);
    expect_old_file(f, 5000, save_noise);
}

static void a_pipe_is_not_waited_for(void **state)
{
    folder *f = *state;
    tern_image image = {0};
    assert_int_equal(mkfifo(f->file, 0600), 0);
    REFUSED(tern_image_load(f->file, NULL, &image, &err), TERN_E_IO, "is a pipe, expected a regular file");
    need_part("png");
    image = image_make(3);
    REFUSED(tern_image_save(f->file, &image, NULL, &err), TERN_E_IO, "regular file");
}

enum { ROWS = 64, ROW = 4096, HEAD = 128 };

static void put_number(FILE *file, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) putc(value >> 8 * i & 255, file);
}

/* A TIFF with one grey page, in one strip after its directory. */
static void write_tiff(const char *path)
{
    static const uint32_t fields[][2] = {{256, ROW},  {257, ROWS}, {258, 8},    {259, 1},         {262, 1},
                                         {273, HEAD}, {277, 1},    {278, ROWS}, {279, ROWS * ROW}};
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs("II*", file);
    put_number(file, 0, 1);
    put_number(file, 8, 4);
    put_number(file, TERN__COUNT(fields), 2);
    for (size_t i = 0; i < TERN__COUNT(fields); i++) {
        put_number(file, fields[i][0], 2);
        put_number(file, 4, 2); /* of type LONG */
        put_number(file, 1, 4);
        put_number(file, fields[i][1], 4);
    }
    for (long at = ftell(file); at < HEAD + ROWS * ROW; at++) putc(at < HEAD ? 0 : (int)(at % 251), file);
    assert_int_equal(fclose(file), 0);
}

/* Truncates the file between the header and the pixels. */
static void a_tiff_that_becomes_shorter(void **state)
{
    folder *f = *state;
    tern_error err = {0};
    tern_image image = {0};
    tern__image_reader reader = {0};
    const tern_image_opts opts = tern_image_defaults();
    need_part("tiff");
    write_tiff(f->file);
    for (int cut = 0; cut < 2; cut++) {
        tern__image_begin(&reader, f->file, &opts, &image, "f", &err);
        assert_ok(err);
        if (cut) assert_int_equal(truncate(f->file, 20000), 0);
        tern__image_read(&reader, f->file, &opts, 0, image.height, &image, "f", &err);
        if (!cut) assert_int_equal(((uint8_t *)image.data)[ROW], (HEAD + ROW) % 251);
    }
    assert_int_equal(err.code, TERN_E_IO);
    if (strstr(err.text, f->file) != err.text || !strstr(err.text, ": it became shorter while it was read"))
        fail_msg("%s", err.text);
    tern__image_reader_free(&reader);
    tern_image_free(&image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(plug_ins_that_are_not_there),
        IN_A_FOLDER(memory_is_used_again),
        IN_A_FOLDER(no_memory),
        IN_A_FOLDER(loading),
        IN_A_FOLDER(saving),
        IN_A_FOLDER(a_full_disk_leaves_the_old_one),
        IN_A_FOLDER(a_pipe_is_not_waited_for),
        IN_A_FOLDER(a_tiff_that_becomes_shorter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
