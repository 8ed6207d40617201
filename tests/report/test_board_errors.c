/* test_board_errors.c - what a board's calls refuse, with code and text; no leaks wherever memory runs out;
 * no allocations in warm calls. */
#include "report/records.h"

#include "ledger.h"

#include <math.h>

#define LONG 1024 /* one byte longer than allowed */

typedef struct fixture {
    const char *folder;
    tern_device *dev;
    tern_scope *s;
    tern_rng *rng;
    tern_module *net;
    tern_board *board;
    tern_object *hparams;
    tern_error err;
} fixture;

static void open_fixture(fixture *f, const char *folder)
{
    *f = (fixture){.folder = folder};
    assert_int_equal(choose_plugins(), 0);
    f->dev = tern_device_open("cpu", &f->err);
    f->s = tern_scope_new(f->dev, NULL, &f->err);
    f->rng = tern_rng_new(1, &f->err);
    f->net = tern_mlp_new((int64_t[]){4, 3, 2}, 3, f->rng, &f->err);
    f->board = tern_board_new(folder, NULL, NULL, &f->err);
    f->hparams = tern_object_dict(&f->err);
    tern_object_set(f->hparams, "lr", tern_object_float(0.5, &f->err), &f->err);
    assert_ok(f->err);
}

static void close_fixture(fixture *f)
{
    tern_object_free(f->hparams);
    tern_board_free(f->board);
    tern_module_free(f->net);
    tern_rng_free(f->rng);
    tern_scope_free(f->s);
    tern_device_close(f->dev);
}

static tern_tensor *zeros(fixture *f, int ndim, const int64_t *shape)
{
    tern_tensor *tensor = tern_tensor_from(f->s, NULL, TERN_F32, ndim, shape);
    assert_non_null(tensor);
    return tensor;
}

#define ZEROS(...) zeros(&f, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* Expects that the call, whose last argument is &f.err, fails like this, and returns the same without an err.
 */
#define assert_refused(call, wanted, words)                                                                  \
    do {                                                                                                     \
        f.err = (tern_error){0};                                                                             \
        assert_int_equal(call, wanted);                                                                      \
        assert_int_equal(f.err.code, wanted);                                                                \
        if (!strstr(f.err.text, words)) fail_msg("\"%s\" is not in \"%s\"", words, f.err.text);              \
        assert_int_equal(strncmp(f.err.func, #call, strlen(f.err.func)), 0);                                 \
    } while (0)

static void tags_and_text(void **state)
{
    fixture f;
    char tag[LONG + 1], path[PATH_ROOM];
    const char *bad = "a\xff", *names[] = {"x", NULL};
    const double values[] = {1, 2};
    open_fixture(&f, *state);
    memset(tag, 'a', LONG);
    tag[LONG] = 0;
    assert_refused(tern_board_scalar(f.board, NULL, 1, 1, &f.err), TERN_E_INVALID, "the tag is NULL");
    assert_refused(tern_board_scalar(f.board, "", 1, 1, &f.err), TERN_E_INVALID, "the tag is empty");
    assert_refused(tern_board_scalar(f.board, bad, 1, 1, &f.err), TERN_E_FORMAT, "the tag is not UTF-8");
    assert_refused(tern_board_scalar(f.board, tag, 1, 1, &f.err), TERN_E_RANGE,
                   "1024 bytes, expected at most 1023");
    assert_refused(tern_board_text(f.board, "a", NULL, 1, &f.err), TERN_E_INVALID, "the text is NULL");
    assert_refused(tern_board_text(f.board, "a", bad, 1, &f.err), TERN_E_FORMAT, "the text is not UTF-8");
    assert_refused(tern_board_text(f.board, tag, "b", 1, &f.err), TERN_E_RANGE, "1024 bytes");
    assert_refused(tern_board_scalars(f.board, "a", 1, NULL, values, 1, &f.err), TERN_E_INVALID, "NULL");
    assert_refused(tern_board_scalars(f.board, "a", 1, names, NULL, 1, &f.err), TERN_E_INVALID, "NULL");
    assert_refused(tern_board_scalars(f.board, bad, 1, names, values, 1, &f.err), TERN_E_FORMAT, "the tag");
    assert_refused(tern_board_scalars(f.board, "a", 2, names, values, 1, &f.err), TERN_E_INVALID,
                   "a name is NULL");
    tag[254] = 0; /* the folder's name has 256 bytes, one too many */
    assert_refused(tern_board_scalars(f.board, tag, 1, names, values, 1, &f.err), TERN_E_RANGE,
                   "256 bytes, expected at most 255");
    assert_int_equal(tern_board_scalars(f.board, tag + 1, 1, names, values, 1, NULL), TERN_OK);
    tag[254] = 'a', tag[LONG - 1] = 0;
    assert_int_equal(tern_board_scalar(f.board, tag, 1, 1, NULL), TERN_OK);
    snprintf(path, sizeof(path), "%s/b_x", f.folder); /* a file has the name of the run's folder */
    fclose(fopen(path, "w"));
    assert_refused(tern_board_scalars(f.board, "b", 1, names, values, 1, &f.err), TERN_E_IO, "/b_x");
    tern_board_flush(f.board, NULL);
    assert_int_equal(records_in(f.folder), 1 + 1);
    close_fixture(&f);
}

static void options_and_folders(void **state)
{
    fixture f;
    char path[PATH_ROOM];
    open_fixture(&f, *state);
    tern_board_opts opts = tern_board_defaults();
#define assert_no_board(dir, wanted, words)                                                                  \
    do {                                                                                                     \
        f.err = (tern_error){0};                                                                             \
        assert_null(tern_board_new(dir, NULL, &opts, &f.err));                                               \
        assert_int_equal(f.err.code, wanted);                                                                \
        if (!strstr(f.err.text, words)) fail_msg("\"%s\" is not in \"%s\"", words, f.err.text);              \
    } while (0)
    opts.queue = 0;
    assert_no_board(f.folder, TERN_E_RANGE, "expected queue >= 1, got 0");
    opts = tern_board_defaults();
    opts.flush_seconds = NAN;
    assert_no_board(f.folder, TERN_E_RANGE, "flush_seconds");
    opts.flush_seconds = -1;
    assert_no_board(f.folder, TERN_E_RANGE, "got -1");
    opts = tern_board_defaults();
    assert_no_board("", TERN_E_RANGE, "log_dir has 0 bytes");
    memset(path, 'a', 1000);
    path[1000] = 0;
    assert_no_board(path, TERN_E_RANGE, "log_dir has 1000 bytes");
    opts.tag = path;
    assert_no_board(NULL, TERN_E_RANGE, "the tag is too long: 1000 bytes");
    opts = tern_board_defaults();
    snprintf(path, sizeof(path), "%s/file", f.folder);
    fclose(fopen(path, "w"));
    assert_no_board(path, TERN_E_IO, path);
    snprintf(path, sizeof(path), "%s/scalars.csv", f.folder);
    assert_int_equal(mkdir(path, 0777), 0);
    opts.csv = true;
    assert_no_board(f.folder, TERN_E_IO, "scalars.csv");
    opts.size = 1;
    assert_no_board(f.folder, TERN_E_INVALID, "_defaults");
    opts.size = sizeof(opts) + 8;
    assert_no_board(f.folder, TERN_E_UNSUPPORTED, "bytes");
    close_fixture(&f);
}

static void images(void **state)
{
    fixture f;
    open_fixture(&f, *state);
    tern_board_image_opts o = tern_board_image_defaults();
#define REFUSED(tensor, wanted, words)                                                                       \
    assert_refused(tern_board_image(f.board, "i", tensor, 1, &o, &f.err), wanted, words)
    REFUSED(NULL, TERN_E_INVALID, "the tensor is NULL");
    REFUSED(ZEROS(5), TERN_E_SHAPE, "shape (5), expected HW, CHW, NCHW or NCDHW");
    REFUSED(ZEROS(1, 1, 1, 1, 2, 2), TERN_E_SHAPE, "expected HW, CHW, NCHW or NCDHW");
    REFUSED(ZEROS(2, 4, 4), TERN_E_SHAPE, "expected 1, 3 or 4 channels, got 2");
    REFUSED(ZEROS(0, 4), TERN_E_SHAPE, "(0, 4) has no pixels");
    REFUSED(ZEROS(0, 3, 4, 4), TERN_E_SHAPE, "has no pixels");
    o.slice = 3;
    REFUSED(ZEROS(1, 1, 3, 4, 4), TERN_E_RANGE, "slice is 3, expected [0, 3)");
    o.slice = -1;
    REFUSED(ZEROS(1, 1, 3, 4, 4), TERN_E_RANGE, "slice is -1");
    o = tern_board_image_defaults();
    static const char *const formats[] = {"", "NCHH", "CW", "NCHWX", "nchw"};
    for (int i = 0; i < 5; i++) {
        o.format = formats[i];
        REFUSED(ZEROS(4, 4), TERN_E_INVALID, "expected H, W and optionally N, C, D, each once");
    }
    o.format = "NHWC";
    REFUSED(ZEROS(4, 4, 3), TERN_E_SHAPE, "shape (4, 4, 3), expected NHWC");
    o = tern_board_image_defaults();
    o.across = 0;
    REFUSED(ZEROS(4, 4), TERN_E_RANGE, "expected across >= 1, got 0");
    o.size = 0;
    REFUSED(ZEROS(4, 4), TERN_E_INVALID, "options: size is 0");
    o = tern_board_image_defaults();
    char byte = 0; /* it is refused before it is read */
    tern_tensor *wide = tern_tensor_wrap(&byte, TERN_U8, 2, (int64_t[]){1 << 20, 1 << 20}, NULL, NULL, NULL);
    REFUSED(wide, TERN_E_RANGE, "1 images of 1048576 x 1048576 are more than 268435456 bytes of pixels");
    tern_tensor_free(wide);
    tern_tensor *old = ZEROS(4, 4);
    tern_scope_end(f.s, NULL);
    REFUSED(old, TERN_E_LIFETIME, "after its scope has ended");
    tern_board_free(f.board);
    f.board = tern_board_new(f.folder, NULL, NULL, NULL);
    setenv("TERN_PLUGIN_PATH", f.folder, 1);
    REFUSED(ZEROS(4, 4), TERN_E_UNSUPPORTED, "images: PNG: the plug-in tern_png.so cannot be loaded: ");
    tern_board_flush(f.board, NULL);
    assert_int_equal(records_in(f.folder), 1);
    tern_scope_end(f.s, NULL);
    close_fixture(&f);
}

static void histograms(void **state)
{
    fixture f;
    open_fixture(&f, *state);
    assert_refused(tern_board_histogram(f.board, "h", NULL, 1, &f.err), TERN_E_INVALID, "the tensor is NULL");
    assert_refused(tern_board_histogram(f.board, "h", ZEROS(2, 0), 1, &f.err), TERN_E_SHAPE,
                   "(2, 0) has no elements");
    assert_refused(tern_board_histogram(f.board, "", ZEROS(2), 1, &f.err), TERN_E_INVALID,
                   "the tag is empty");
    tern_tensor *old = ZEROS(4, 4);
    tern_scope_end(f.s, NULL);
    assert_refused(tern_board_histogram(f.board, "h", old, 1, &f.err), TERN_E_LIFETIME, "scope has ended");
    assert_refused(tern_board_parameters(f.board, NULL, 1, &f.err), TERN_E_INVALID, "the module is NULL");
    assert_refused(tern_board_gradients(f.board, NULL, 1, &f.err), TERN_E_INVALID, "the module is NULL");
    close_fixture(&f);
}

/* ---- memory ---- */

static void show_all(fixture *f, tern_board *board, int64_t step, tern_error *err)
{
    const char *names[] = {"train", "val"};
    const double values[] = {0.5, 0.25};
    tern_board_scalar(board, "a", 0.5, step, err);
    tern_board_scalars(board, "b", 2, names, values, step, err);
    tern_board_text(board, "c", "text", step, err);
    tern_board_parameters(board, f->net, step, err);
    tern_board_image(board, "d", zeros(f, 4, (int64_t[]){2, 3, 8, 8}), step, NULL, err);
    if (err && err->code == TERN_E_UNSUPPORTED && !has_part("png")) *err = (tern_error){0};
    tern_scope_end(f->s, err);
}

static void open_and_show(fixture *f, tern_error *err)
{
    tern_board_opts opts = tern_board_defaults();
    opts.csv = opts.jsonl = true;
    tern_board *board = tern_board_new(f->folder, NULL, &opts, err);
    tern_board_hparams(board, f->hparams, 1, (const char *[]){"a"}, err);
    show_all(f, board, 1, err);
    tern_board_free(board);
}

/* Lets each allocation fail in turn: E_MEMORY, nothing leaks, and the next run works. */
static void wherever_memory_ends(void **state)
{
    fixture f;
    open_fixture(&f, *state);
    show_all(&f, NULL, 0, NULL);
    open_and_show(&f, &f.err);
    assert_ok(f.err);
    ledger all = {0};
    ledger_open(&all);
    open_and_show(&f, &f.err);
    ledger_close(&all);
    assert_in_range(all.requests, 10, 60);
    for (int i = 1; i <= all.requests; i++) {
        ledger books = {.refuse_at = i};
        tern_error err = {0};
        ledger_open(&books);
        open_and_show(&f, &err);
        ledger_close(&books);
        assert_int_equal(err.code, TERN_E_MEMORY);
    }
    open_and_show(&f, &f.err);
    assert_ok(f.err);
    close_fixture(&f);
}

static void warm_calls_ask_for_no_memory(void **state)
{
    fixture f;
    open_fixture(&f, *state);
    for (int step = 0; step < 20; step++) show_all(&f, f.board, step, &f.err);
    assert_ok(f.err);
    ledger books = {0};
    ledger_open(&books);
    for (int step = 20; step < 60; step++) show_all(&f, f.board, step, &f.err);
    ledger_close(&books);
    assert_ok(f.err);
    assert_int_equal(books.requests, 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(tags_and_text),
        IN_A_FOLDER(options_and_folders),
        IN_A_FOLDER(images),
        IN_A_FOLDER(histograms),
        IN_A_FOLDER(wherever_memory_ends),
        IN_A_FOLDER(warm_calls_ask_for_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
