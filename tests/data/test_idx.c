/* test_idx.c - datasets in IDX files: values, truncated and damaged files, and memory. */
#include "check.h"

#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zlib.h>

static bool ticks; /* every system call would be interrupted by a signal, unless that is blocked */

static bool is_interrupted(void)
{
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!ticks || sigismember(&blocked, SIGALRM)) return false;
    errno = EINTR;
    return true;
}

__attribute__((visibility("default"))) /* for zlib */ ssize_t read(int fd, void *to, size_t bytes)
{
    return is_interrupted() ? -1 : syscall(SYS_read, fd, to, bytes);
}

/* Three images of 2 x 2 and their labels, written plain or gzipped to a new folder. */
enum {
    COUNT = 3,
    ROWS = 2,
    COLUMNS = 2,
    IMAGES_BYTES = 16 + COUNT * ROWS * COLUMNS,
    LABELS_BYTES = 8 + COUNT
};

typedef struct files {
    char folder[64], images[96], labels[96];
    uint8_t image_bytes[IMAGES_BYTES + 1], label_bytes[LABELS_BYTES + 1];
} files;

static int setup(void **state)
{
    static const uint8_t image_header[] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, ROWS, 0, 0, 0, COLUMNS};
    static const uint8_t pixels[] = {0, 51, 102, 255, 1, 2, 3, 4, 250, 251, 252, 253};
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, COUNT, 9, 0, 5};
    files *f = calloc(1, sizeof(*f));
    strcpy(f->folder, "/tmp/tern-idx-XXXXXX");
    if (!mkdtemp(f->folder)) return -1;
    snprintf(f->images, sizeof(f->images), "%s/images.gz", f->folder);
    snprintf(f->labels, sizeof(f->labels), "%s/labels.gz", f->folder);
    memcpy(f->image_bytes, image_header, sizeof(image_header));
    memcpy(f->image_bytes + sizeof(image_header), pixels, sizeof(pixels));
    memcpy(f->label_bytes, labels, sizeof(labels));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    files *f = *state;
    unlink(f->images);
    unlink(f->labels);
    int status = rmdir(f->folder);
    free(f);
    return status;
}

/* Mode "wb" is gzip, "wbT" plain. */
static void write_file(const char *path, const char *mode, const uint8_t *bytes, size_t count)
{
    gzFile gz = gzopen(path, mode);
    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, bytes, (unsigned)count), count);
    assert_int_equal(gzclose(gz), Z_OK);
}

static void write_pair(const files *f, const char *mode)
{
    write_file(f->images, mode, f->image_bytes, IMAGES_BYTES);
    write_file(f->labels, mode, f->label_bytes, LABELS_BYTES);
}

static void expect_error(const files *f, const tern_idx_opts *opts, int code, const char *file,
                         const char *text)
{
    tern_error err = {0};
    assert_null(tern_idx_open(f->images, f->labels, opts, &err));
    assert_string_equal(tern_status_name(err.code), tern_status_name(code));
    if (!strstr(err.text, file) || !strstr(err.text, text))
        fail_msg("expected \"%s\" and \"%s\" in: %s", file, text, err.text);
    assert_string_equal(err.func, "tern_idx_open");
}

static void expect_samples(const files *f)
{
    tern_error err = {0};
    tern_idx_opts opts = tern_idx_defaults();
    opts.mean = 0.2860f;
    opts.std = 0.3530f;
    tern_dataset *dataset = tern_idx_open(f->images, f->labels, &opts, &err);
    assert_ok(err);
    assert_int_equal(dataset->length, COUNT);
    assert_int_equal(dataset->ndim, 3);
    assert_memory_equal(dataset->shape, ((int64_t[]){1, ROWS, COLUMNS}), 3 * sizeof(int64_t));
    for (int64_t i = 0; i < COUNT; i++) {
        float x[ROWS * COLUMNS];
        int64_t y = -1;
        assert_int_equal(dataset->get(dataset, 0, i, x, &y, &err), TERN_OK);
        assert_int_equal(y, f->label_bytes[8 + i]);
        for (int j = 0; j < ROWS * COLUMNS; j++) {
            float byte = f->image_bytes[16 + i * ROWS * COLUMNS + j];
            assert_true(x[j] == (byte / 255.0f - opts.mean) / opts.std);
        }
    }
    tern_dataset_free(dataset);
}

static void gzipped_and_plain_files_are_read(void **state)
{
    const files *f = *state;
    write_pair(f, "wb");
    expect_samples(f);
    write_pair(f, "wbT");
    expect_samples(f);
}

/* As by a file system in user space, for a program with a timer. */
static void signals_do_not_end_a_file(void **state)
{
    const files *f = *state;
    for (int plain = 0; plain < 2; plain++) {
        write_pair(f, plain ? "wbT" : "wb");
        ticks = true;
        expect_samples(f);
        ticks = false;
    }
}

static void a_missing_file_is_named(void **state)
{
    const files *f = *state;
    expect_error(f, NULL, TERN_E_IO, "images.gz", "No such file");
    write_file(f->images, "wb", f->image_bytes, IMAGES_BYTES);
    expect_error(f, NULL, TERN_E_IO, "labels.gz", "No such file");
}

static void a_folder_is_an_error(void **state)
{
    const files *f = *state;
    tern_error err = {0};
    assert_null(tern_idx_open(f->folder, f->labels, NULL, &err));
    assert_int_equal(err.code, TERN_E_IO);
    assert_non_null(strstr(err.text, "directory"));
}

/* Truncates both plain files to every shorter length, down to nothing. */
static void truncated_data_says_expected_and_got(void **state)
{
    const files *f = *state;
    char text[64];
    write_pair(f, "wbT");
    for (int size = 0; size < IMAGES_BYTES; size++) {
        write_file(f->images, "wbT", f->image_bytes, (size_t)size);
        bool header = size < 16;
        snprintf(text, sizeof(text), "expected %d bytes of %s, got %d", header ? 16 : IMAGES_BYTES - 16,
                 header ? "header" : "data", header ? size : size - 16);
        expect_error(f, NULL, TERN_E_IO, "images.gz", text);
    }
    write_pair(f, "wbT");
    write_file(f->labels, "wbT", f->label_bytes, LABELS_BYTES - 1);
    expect_error(f, NULL, TERN_E_IO, "labels.gz", "expected 3 bytes of data, got 2");
}

/* Truncates a gzip stream to every shorter length. With fewer than two bytes it is not recognised as gzip. */
static void a_truncated_gzip_is_an_error(void **state)
{
    const files *f = *state;
    write_pair(f, "wb");
    FILE *whole = fopen(f->images, "rb");
    uint8_t bytes[256];
    size_t size = fread(bytes, 1, sizeof(bytes), whole);
    fclose(whole);
    assert_true(size > 20 && size < sizeof(bytes));
    for (size_t cut = 0; cut < size; cut++) {
        write_file(f->images, "wbT", bytes, cut);
        expect_error(f, NULL, TERN_E_IO, "images.gz", "is truncated");
    }
}

static void a_flipped_bit_in_a_gzip_is_an_error(void **state)
{
    const files *f = *state;
    write_pair(f, "wb");
    FILE *file = fopen(f->images, "r+b");
    fseek(file, -6, SEEK_END); /* in the checksum */
    int byte = fgetc(file);
    fseek(file, -6, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz", "incorrect data check");
}

static void more_data_than_the_header_says_is_an_error(void **state)
{
    const files *f = *state;
    write_pair(f, "wb");
    write_file(f->images, "wb", f->image_bytes, IMAGES_BYTES + 1);
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz", "expected 12 bytes of data, got more");
}

static void a_wrong_magic_says_expected_and_got(void **state)
{
    files *f = *state;
    write_pair(f, "wb");
    write_file(f->images, "wb", f->label_bytes, LABELS_BYTES); /* the files are swapped */
    expect_error(f, NULL, TERN_E_IO, "images.gz", "expected 16 bytes of header, got 11");
    f->image_bytes[3] = 1;
    write_pair(f, "wb");
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz", "expected magic 0x00000803, got 0x00000801");
}

static void counts_that_differ_name_both_files(void **state)
{
    files *f = *state;
    f->label_bytes[7] = 2;
    write_file(f->images, "wb", f->image_bytes, IMAGES_BYTES);
    write_file(f->labels, "wb", f->label_bytes, LABELS_BYTES - 1);
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz has 3 images", "labels.gz has 2 labels");
}

static void a_label_out_of_range_says_where(void **state)
{
    files *f = *state;
    tern_idx_opts opts = tern_idx_defaults();
    f->label_bytes[8 + 1] = 10;
    write_pair(f, "wb");
    expect_error(f, &opts, TERN_E_RANGE, "labels.gz", "label 1 is 10, expected [0, 9]");
    opts.classes = 11;
    tern_dataset_free(tern_idx_open(f->images, f->labels, &opts, NULL));
    opts.classes = 0; /* not checked */
    f->label_bytes[8 + 1] = 255;
    write_pair(f, "wb");
    tern_error err = {0};
    tern_dataset_free(tern_idx_open(f->images, f->labels, &opts, &err));
    assert_ok(err);
}

/* The header is not trusted: it causes no allocation of missing data and no overflow. */
static void a_lying_header_is_an_error(void **state)
{
    files *f = *state;
    memset(f->image_bytes + 8, 0x7f, 3); /* rows: 2^31 */
    write_pair(f, "wb");
    expect_error(f, NULL, TERN_E_IO, "images.gz", "is truncated");
    memset(f->image_bytes + 4, 0xff, 12);
    write_pair(f, "wb");
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz", "4294967295 x 4294967295 x 4294967295");
    memset(f->image_bytes + 8, 0, 4);
    write_pair(f, "wb");
    expect_error(f, NULL, TERN_E_FORMAT, "images.gz", "x 0 x");
}

static void bad_arguments_are_refused(void **state)
{
    const files *f = *state;
    tern_error err = {0};
    tern_idx_opts opts = tern_idx_defaults();
    write_pair(f, "wb");
    opts.std = 0.0f;
    expect_error(f, &opts, TERN_E_INVALID, "std 0", "more than 0");
    opts = (tern_idx_opts){.classes = 10, .std = 1.0f};
    expect_error(f, &opts, TERN_E_INVALID, "size is 0", "_defaults");
    tern_dataset *dataset = tern_idx_open(f->images, f->labels, NULL, &err);
    assert_ok(err);
    float x[ROWS * COLUMNS];
    int64_t y;
    assert_int_equal(dataset->get(dataset, 0, COUNT, x, &y, &err), TERN_E_RANGE);
    assert_non_null(strstr(err.text, "index is 3, expected [0, 2]"));
    assert_null(tern_idx_open(f->images, f->labels, NULL, &err)); /* an error that is set is kept */
    tern_dataset_free(dataset);
    tern_dataset_free(NULL);
}

/* Lets the n-th allocation fail, for every n until none does; nothing leaks. */
typedef struct scarce {
    int left, live;
} scarce;

static void *scarce_alloc(size_t bytes, size_t align, void *ctx)
{
    scarce *memory = ctx;
    if (memory->left-- <= 0) return NULL;
    memory->live++;
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void scarce_free(void *ptr, void *ctx)
{
    ((scarce *)ctx)->live--;
    free(ptr);
}

static void no_memory_is_an_error_and_leaks_nothing(void **state)
{
    const files *f = *state;
    write_pair(f, "wb");
    int failures = 0;
    tern_dataset *dataset = NULL;
    scarce memory = {0};
    for (; !dataset; failures++) {
        tern_error err = {0};
        memory.left = failures;
        tern__allocator_replace(&(tern_allocator){scarce_alloc, scarce_free, &memory});
        dataset = tern_idx_open(f->images, f->labels, NULL, &err);
        if (dataset) break;
        assert_int_equal(err.code, TERN_E_MEMORY);
        assert_int_equal(memory.live, 0);
    }
    assert_int_equal(failures, 3); /* images, labels, the dataset */
    tern_dataset_free(dataset);
    tern__allocator_replace(NULL);
    assert_int_equal(memory.live, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gzipped_and_plain_files_are_read),
        TEST(signals_do_not_end_a_file),
        TEST(a_missing_file_is_named),
        TEST(a_folder_is_an_error),
        TEST(truncated_data_says_expected_and_got),
        TEST(a_truncated_gzip_is_an_error),
        TEST(a_flipped_bit_in_a_gzip_is_an_error),
        TEST(more_data_than_the_header_says_is_an_error),
        TEST(a_wrong_magic_says_expected_and_got),
        TEST(counts_that_differ_name_both_files),
        TEST(a_label_out_of_range_says_where),
        TEST(a_lying_header_is_an_error),
        TEST(bad_arguments_are_refused),
        TEST(no_memory_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
