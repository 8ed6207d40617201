/* test_token_data.c - files of tokens in both formats and widths: their windows, also through a loader, a
 * distributed sampler and a resumed run; files that are not finished, and ids that do not fit. */
#include "check.h"
#include "ledger.h"

#include <tern/rng.h>
#include <tern/state_dict.h>
#include <tern/token_data.h>

#include <unistd.h>

enum { TOKENS = 1000 };

static ledger books;
static char folder[] = "/tmp/tern_token_data_XXXXXX";
static int32_t ids[TOKENS];

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Writes the ids in two calls. */
static void tokens_write(const char *name, int64_t vocab_size, int64_t count)
{
    tern_error err = {0};
    tern_token_writer *writer = tern_token_writer_open(path_of(name), vocab_size, &err);
    tern_token_writer_write(writer, ids, count / 3, &err);
    tern_token_writer_write(writer, ids + count / 3, count - count / 3, &err);
    tern_token_writer_close(writer, &err);
    assert_ok(err);
}

static tern_dataset *tokens_open(const char *name, int64_t window, int64_t stride, tern_dtype dtype)
{
    tern_error err = {0};
    tern_token_dataset_opts opts = tern_token_dataset_defaults();
    opts.window = window;
    opts.stride = stride;
    opts.dtype = dtype;
    tern_dataset *set = tern_token_dataset_open(path_of(name), &opts, &err);
    assert_ok(err);
    return set;
}

static int64_t id_of(const void *from, tern_dtype dtype, int64_t i)
{
    return dtype == TERN_I64 ? ((const int64_t *)from)[i] : ((const int32_t *)from)[i];
}

/* Every window of every file, of one that overlaps the next and of one that ends with the file. */
static void windows(void **state)
{
    static const struct {
        const char *name;
        int64_t vocab_size;
    } files[] = {{"a.bin", 300}, {"a.npy", 65536}, {"b.bin", 65537}, {"b.npy", 1 << 20}};
    (void)state;
    for (size_t f = 0; f < TERN__COUNT(files); f++)
        for (int64_t window = 1; window < TOKENS; window += window < 20 ? 1 : 97)
            for (int wide = 0; wide < 2; wide++) {
                tern_dtype dtype = wide ? TERN_I64 : TERN_I32;
                int64_t stride = 1 + window * 2 / 3, x[TOKENS], y[TOKENS];
                tern_error err = {0};
                if (window == 1) tokens_write(files[f].name, files[f].vocab_size, TOKENS);
                tern_dataset *set = tokens_open(files[f].name, window, wide ? stride : 0, dtype);
                if (!wide) stride = window;
                assert_int_equal(tern_token_dataset_tokens(set), TOKENS);
                assert_true(set->length >= 1 && (set->length - 1) * stride + window + 1 <= TOKENS);
                assert_true(set->length * stride + window + 1 > TOKENS);
                for (int64_t i = 0; i < set->length; i++) {
                    assert_int_equal(set->get(set, 0, i, (float *)x, y, &err), TERN_OK);
                    for (int64_t k = 0; k < window; k++) {
                        assert_int_equal(id_of(x, dtype, k), ids[i * stride + k]);
                        assert_int_equal(id_of(y, dtype, k), ids[i * stride + k + 1]);
                    }
                }
                tern_dataset_free(set);
            }
    for (size_t f = 0; f < TERN__COUNT(files); f++) unlink(path_of(files[f].name));
}

/* In every epoch the windows of ids in memory follow each other from a place within the first stride, and
 * over the epochs these places are many. A file gives the same. */
static void shifted_windows(void **state)
{
    enum { WINDOW = 7, STRIDE = 20, EPOCHS = 40 };
    bool seen[STRIDE] = {false};
    int64_t x[WINDOW], y[WINDOW], z[WINDOW];
    int places = 0;
    tern_error err = {0};
    (void)state;
    tern_token_dataset_opts opts = tern_token_dataset_defaults();
    opts.window = WINDOW;
    opts.stride = STRIDE;
    opts.shift = true;
    opts.vocab_size = 300;
    tokens_write("a.bin", 300, TOKENS);
    tern_dataset *file = tern_token_dataset_open(path_of("a.bin"), &opts, &err);
    tern_dataset *memory = tern_token_dataset_new(ids, TOKENS, &opts, &err);
    assert_ok(err);
    assert_int_equal(tern_token_dataset_tokens(memory), TOKENS);
    assert_int_equal(memory->length, (TOKENS - WINDOW - STRIDE) / STRIDE + 1);
    assert_int_equal(file->length, memory->length);
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        int64_t first = -1;
        for (int64_t i = 0; i < memory->length; i++) {
            assert_int_equal(memory->get(memory, epoch, i, (float *)x, y, &err), TERN_OK);
            assert_int_equal(file->get(file, epoch, i, (float *)z, y, &err), TERN_OK);
            assert_memory_equal(x, z, sizeof(x));
            for (int64_t at = 0; first < 0 && at < STRIDE; at++)
                if (x[0] == ids[at] && x[1] == ids[at + 1] && x[2] == ids[at + 2]) first = at;
            assert_true(first >= 0);
            for (int64_t k = 0; k < WINDOW; k++) {
                assert_int_equal(x[k], ids[first + i * STRIDE + k]);
                assert_int_equal(y[k], ids[first + i * STRIDE + k + 1]);
            }
        }
        if (!epoch) assert_int_equal(first, 0);
        places += !seen[first];
        seen[first] = true;
    }
    assert_int_equal(places, STRIDE);
    tern_dataset_free(file);
    tern_dataset_free(memory);
    unlink(path_of("a.bin"));
    /* One window needs a stride of ids behind it. */
    assert_null(tern_token_dataset_new(ids, WINDOW + STRIDE - 1, &opts, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
    assert_string_equal(err.func, "tern_token_dataset_new");
    err = (tern_error){0};
    memory = tern_token_dataset_new(ids, WINDOW + STRIDE, &opts, &err);
    assert_int_equal(memory->length, 1);
    tern_dataset_free(memory);
    opts.vocab_size = 2;
    memory = tern_token_dataset_new(ids, TOKENS, &opts, &err);
    assert_int_equal(memory->get(memory, 0, 3, (float *)x, y, &err), TERN_E_RANGE);
    assert_non_null(strstr(err.text, "the text: token 6"));
    tern_dataset_free(memory);
}

/* The first ids of all batches of a pass, from the batch `from` on, of a rank. */
static int64_t pass_read(tern_dataset *set, int rank, int64_t from, int64_t first[TOKENS],
                         tern_object **saved)
{
    tern_error err = {0};
    tern_sampler *sampler = tern_distributed_sampler_new(set->length, 2, rank, NULL, &err);
    tern_loader_opts opts = tern_loader_defaults();
    opts.batch_size = 3;
    opts.sampler = sampler;
    opts.workers = 2;
    tern_loader *loader = tern_loader_new(set, &opts, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    if (from) tern_loader_state_dict_load(loader, *saved, &err);
    tern_batch b;
    int64_t count = 0, batch = from;
    while (tern_loader_next(loader, s, &b)) {
        const int64_t *x = tern_tensor_data(b.x);
        for (int64_t i = 0; i < b.count; i++) first[count++] = x[i * set->shape[0]];
        assert_int_equal(tern_scope_end(s, &err), TERN_OK);
        if (++batch == 4 && !from) *saved = tern_loader_state_dict(loader, &err);
        if (batch == 4 && !from) count = 0; /* what a resumed pass has */
    }
    assert_ok(err);
    tern_scope_free(s);
    tern_loader_free(loader);
    tern_sampler_free(sampler);
    tern_device_close(device);
    return count;
}

/* Two ranks read every window once between them, and a pass that is taken up again reads the rest of it. */
static void sampler_and_resume(void **state)
{
    int64_t all[TOKENS], rest[TOKENS];
    (void)state;
    tokens_write("a.bin", 300, TOKENS);
    tern_dataset *set = tokens_open("a.bin", 8, 0, TERN_I64);
    for (int rank = 0; rank < 2; rank++) {
        tern_object *saved = NULL;
        int64_t count = pass_read(set, rank, 0, all, &saved);
        assert_non_null(saved);
        assert_int_equal(pass_read(set, rank, 4, rest, &saved), count);
        assert_true(count > 20);
        assert_memory_equal(all, rest, (size_t)count * sizeof(*all));
        tern_object_free(saved);
    }
    tern_dataset_free(set);
    unlink(path_of("a.bin"));
}

static void refused(const char *name, const tern_token_dataset_opts *opts, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_token_dataset_open(path_of(name), opts, &err));
    if (err.code != code || !strstr(err.text, text)) fail_msg("%s: %d, %s", name, err.code, err.text);
}

static void refused_files(void **state)
{
    tern_error err = {0};
    int64_t x[8], y[8];
    tern_token_dataset_opts opts = tern_token_dataset_defaults();
    (void)state;
    opts.window = 8;
    tokens_write("a.bin", 300, 100);
    tokens_write("a.npy", 300, 100);
    refused("nothing.bin", &opts, TERN_E_IO, "nothing.bin");
    opts.window = 100;
    refused("a.bin", &opts, TERN_E_RANGE, "has 100 tokens, expected at least 101");
    opts.window = 0;
    refused("a.bin", &opts, TERN_E_RANGE, "window 0");
    opts.window = 8;
    opts.dtype = TERN_F32;
    refused("a.bin", &opts, TERN_E_DTYPE, "f32");
    opts.dtype = TERN_I64;
    opts.vocab_size = ids[20];
    tern_dataset *set = tern_token_dataset_open(path_of("a.bin"), &opts, &err);
    assert_ok(err);
    assert_int_equal(set->get(set, 0, 2, (float *)x, y, &err), TERN_E_RANGE);
    assert_non_null(strstr(err.text, "a.bin: token "));
    tern_dataset_free(set);
    for (int npy = 0; npy < 2; npy++) { /* not finished */
        const char *name = npy ? "a.npy" : "a.bin";
        assert_int_equal(truncate(path_of(name), (npy ? 128 : 1024) + 199), 0);
        refused(name, &opts, TERN_E_IO, "not finished");
    }
    assert_int_equal(truncate(path_of("a.bin"), 100), 0);
    refused("a.bin", &opts, TERN_E_FORMAT, "not llm.c's");
    assert_int_equal(truncate(path_of("a.npy"), 0), 0);
    refused("a.npy", &opts, TERN_E_IO, "a.npy");
    opts.raw = true; /* nanoGPT's: the header is ids, too */
    opts.vocab_size = 0;
    set = tern_token_dataset_open(path_of("a.bin"), &opts, &(tern_error){0});
    assert_int_equal(tern_token_dataset_tokens(set), 50);
    tern_dataset_free(set);
    unlink(path_of("a.bin"));
    unlink(path_of("a.npy"));
}

/* After an error, and when the caller has one, no file is left. */
static void writer_errors(void **state)
{
    int32_t high = 300;
    (void)state;
    for (int given = 0; given < 2; given++) {
        tern_error err = {0};
        tern_token_writer *writer = tern_token_writer_open(path_of("w.bin"), 300, &err);
        tern_token_writer_write(writer, ids, 10, &err);
        assert_ok(err);
        assert_int_not_equal(access(path_of("w.bin"), F_OK), 0);
        if (given)
            tern_error_set(&err, "test", TERN_E_INVALID, "given");
        else {
            assert_int_equal(tern_token_writer_write(writer, &high, 1, &err), TERN_E_RANGE);
            assert_non_null(strstr(err.text, "token 10 is 300, expected 0 to 299"));
        }
        assert_int_equal(tern_token_writer_close(writer, &err), err.code);
        assert_int_not_equal(access(path_of("w.bin"), F_OK), 0);
    }
    for (int i = 0; i < 2; i++) {
        tern_token_writer *writer = tern_token_writer_open(path_of("w.bin"), 300, NULL);
        int code = i ? TERN_E_INVALID : TERN_E_RANGE;
        assert_int_equal(tern_token_writer_write(writer, i ? NULL : ids, i ? 3 : -1, NULL), code);
        assert_int_equal(tern_token_writer_close(writer, NULL), code);
        assert_int_not_equal(access(path_of("w.bin"), F_OK), 0);
    }
    tern_error err = {0};
    assert_null(tern_token_writer_open(path_of("w.bin"), 0, &err));
    assert_int_equal(err.code, TERN_E_RANGE);
}

static int set_up(void **state)
{
    tern_allocator allocator = {ledger_alloc, ledger_free, &books};
    (void)state;
    if (tern_allocator_set(&allocator, NULL) || !mkdtemp(folder)) return -1;
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 7919 + i / 13) % 299;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows),
        cmocka_unit_test(shifted_windows),
        cmocka_unit_test(sampler_and_resume),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(writer_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
