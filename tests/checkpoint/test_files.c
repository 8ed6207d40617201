/* test_files.c - tern_save and tern_load: shared memory stays shared, no failure loses the old file, and
 * memory stays within the file's size and 16 MiB. tests/torch/test_files.py exchanges files with PyTorch. */
#include "check.h"
#include "ledger.h"

#include "checkpoint/torch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/tern-files-XXXXXX", path[96];

static int open_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/state.pt", folder);
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static tern_tensor *wrap(float *values, int ndim, const int64_t *shape, tern_error *err)
{
    return tern_tensor_wrap(values, TERN_F32, ndim, shape, NULL, NULL, err);
}

/* {"epoch": 1, "weight": tensor of `count`} */
static tern_object *state_of(float *values, int64_t count, tern_error *err)
{
    tern_tensor *tensor = wrap(values, 1, &count, err);
    tern_object *state = tern_object_dict(err);
    tern_object_set(state, "epoch", tern_object_int(1, err), err);
    tern_object_set(state, "weight", tern_object_tensor(tensor, err), err);
    tern_tensor_free(tensor);
    return state;
}

static void save_floats(float *values, int64_t count)
{
    tern_error err = {0};
    tern_object *state = state_of(values, count, &err);
    assert_int_equal(tern_save(path, state, &err), TERN_OK);
    tern_object_free(state);
}

static float first_of_file(void)
{
    tern_error err = {0};
    tern_object *state = tern_load(path, NULL, &err);
    assert_ok(err);
    tern_tensor *weight = tern_object_to_tensor(tern_object_get(state, "weight"));
    float first = *(float *)tern_tensor_data(weight);
    tern_object_free(state);
    return first;
}

/* Counts the names in the folder. */
static int count_files(void)
{
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *one; (one = readdir(dir));) count += one->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* ---- sharing ---- */

/* Tied weights, a part of one, an adjacent tensor, and one of another dtype at the same address. */
static void what_is_shared_stays_shared(void **state)
{
    (void)state;
    tern_error err = {0};
    float values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    tern_object *list = tern_object_list(&err);
    const struct {
        float *begin;
        int64_t count;
    } parts[] = {{values, 6}, {values, 6}, {values + 2, 3}, {values + 6, 2}};
    for (size_t i = 0; i < 4; i++) {
        tern_tensor *tensor = wrap(parts[i].begin, 1, &parts[i].count, &err);
        tern_object_append(list, tern_object_tensor(tensor, &err), &err);
        tern_tensor_free(tensor);
    }
    tern_tensor *bits = tern_tensor_wrap(values, TERN_I32, 1, (int64_t[]){8}, NULL, NULL, &err);
    tern_object_append(list, tern_object_tensor(bits, &err), &err);
    tern_tensor_free(bits);
    assert_int_equal(tern_save(path, list, &err), TERN_OK);
    tern_object_free(list);
    list = tern_load(path, NULL, &err);
    assert_ok(err);
    float *data[5];
    for (int i = 0; i < 5; i++) data[i] = tern_tensor_data(tern_object_to_tensor(tern_object_at(list, i)));
    assert_ptr_equal(data[0], data[1]);
    assert_ptr_equal(data[0] + 2, data[2]);
    assert_true(data[3] < data[0] || data[3] >= data[0] + 6);
    assert_true((float *)data[4] != data[0]);
    for (int i = 0; i < 6; i++) assert_true(data[0][i] == (float)i);
    assert_true(data[3][0] == 6 && data[3][1] == 7);
    assert_memory_equal(data[4], values, sizeof(values));
    data[0][3] = 42;
    assert_true(data[2][1] == 42);
    tern_object_free(list);
}

/* A tensor outlives the object it was loaded with. */
/* All 256 bytes, and none, come back. In the file they are UTF-8, which PyTorch encodes as Latin-1. */
static void bytes_come_back(void **state)
{
    (void)state;
    char all[256];
    tern_error err = {0};
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    tern_object *saved = tern_object_dict(&err);
    tern_object_set(saved, "all", tern_object_bytes(all, sizeof(all), &err), &err);
    tern_object_set(saved, "none", tern_object_bytes("", 0, &err), &err);
    assert_int_equal(tern_save(path, saved, &err), TERN_OK);
    tern_object *loaded = tern_load(path, NULL, &err);
    assert_ok(err);
    assert_int_equal(tern_object_count(tern_object_get(loaded, "all")), sizeof(all));
    assert_memory_equal(tern_object_to_bytes(tern_object_get(loaded, "all")), all, sizeof(all));
    assert_int_equal(tern_object_kind_get(tern_object_get(loaded, "none")), TERN_OBJECT_BYTES);
    assert_int_equal(tern_object_count(tern_object_get(loaded, "none")), 0);
    tern_object_free(loaded);
    tern_object_free(saved);
}

static void a_storage_lives_as_long_as_a_view(void **state)
{
    (void)state;
    tern_error err = {0};
    float values[4] = {1, 2, 3, 4};
    save_floats(values, 4);
    tern_object *loaded = tern_load(path, NULL, &err);
    tern_object *other = tern_object_tensor(tern_object_to_tensor(tern_object_get(loaded, "weight")), &err);
    assert_ok(err);
    tern_object_free(loaded);
    assert_memory_equal(tern_tensor_data(tern_object_to_tensor(other)), values, sizeof(values));
    tern_object_free(other);
}

/* A process that is killed while it saves leaves a file; the next save removes those of its own name. */
static void what_a_killed_save_left_is_removed(void **state)
{
    (void)state;
    float values[1] = {3};
    char left[3][128];
    pid_t pid = fork();
    if (!pid) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    snprintf(left[0], sizeof(left[0]), "%s.%d.tmp", path, (int)pid);
    snprintf(left[1], sizeof(left[1]), "%s/other.pt.%d.tmp", folder, (int)pid);
    snprintf(left[2], sizeof(left[2]), "%s.%d.tmp", path, (int)getppid());
    for (int i = 0; i < 3; i++) assert_return_code(close(open(left[i], O_CREAT | O_WRONLY, 0600)), errno);
    save_floats(values, 1);
    for (int i = 0; i < 3; i++) assert_int_equal(access(left[i], F_OK), i ? 0 : -1);
    for (int i = 1; i < 3; i++) unlink(left[i]);
    assert_true(first_of_file() == 3);
}

/* ---- objects that cannot be saved ---- */

static void expect_save(const char *where, const tern_object *object, int code, const char *part)
{
    tern_error err = {0};
    assert_int_equal(tern_save(where, object, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_save");
    if (!strstr(err.text, part)) fail_msg("expected \"%s\" in \"%s\"", part, err.text);
}

static void what_cannot_be_saved(void **state)
{
    (void)state;
    tern_error err = {0};
    float values[1] = {7};
    save_floats(values, 1);
    tern_object *object = tern_object_dict(&err), *list = tern_object_list(&err);
    tern_object_set(object, "a\n", list, &err);
    tern_object_append(list, tern_object_none(&err), &err);
    tern_object_append(list, tern_object_record("my.Net", NULL, NULL, &err), &err);
    assert_ok(err);
    expect_save(path, object, TERN_E_UNSUPPORTED, "state.pt: state[\"a\\n\"][1] is a record");
    expect_save(NULL, object, TERN_E_INVALID, "the path is NULL");
    expect_save(path, NULL, TERN_E_INVALID, "the object is NULL");
    expect_save(folder, list, TERN_E_IO, "exists and is not a regular file");
    expect_save("/nowhere/at/all.pt", list, TERN_E_IO, "cannot create /nowhere/at/all.pt.");
    tern_object_free(object);
    err.code = TERN_E_PEER;
    assert_int_equal(tern_save(path, NULL, &err), TERN_E_PEER);
    assert_true(first_of_file() == 7);
    assert_int_equal(count_files(), 1);
}

static void nested_too_deep(void **state)
{
    (void)state;
    for (int depth = 500; depth <= 501; depth++) {
        tern_error err = {0};
        tern_object *object = tern_object_none(&err);
        for (int i = 0; i < depth; i++) {
            tern_object *list = tern_object_list(&err);
            tern_object_append(list, object, &err);
            object = list;
        }
        if (depth > 500)
            expect_save(path, object, TERN_E_RANGE, "is nested more than 500 deep");
        else
            assert_int_equal(tern_save(path, object, &err), TERN_OK);
        tern_object_free(object);
    }
    tern_object *object = tern_load(path, NULL, NULL);
    assert_int_equal(tern_object_count(object), 1);
    tern_object_free(object);
}

/* ---- the old file stays ---- */

/* The disk is full after that many bytes. */
static void a_full_disk(void **state)
{
    (void)state;
    static float values[100000];
    struct rlimit whole, small = {.rlim_max = RLIM_INFINITY};
    values[0] = 1;
    save_floats(values, 100000);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &whole);
    values[0] = 2;
    for (rlim_t bytes = 0; bytes < 400000; bytes += 70000) {
        tern_error err = {0};
        tern_object *object = state_of(values, 100000, &err);
        small.rlim_cur = bytes;
        small.rlim_max = whole.rlim_max;
        setrlimit(RLIMIT_FSIZE, &small);
        tern_save(path, object, &err);
        setrlimit(RLIMIT_FSIZE, &whole);
        assert_int_equal(err.code, TERN_E_IO);
        assert_int_equal(err.native, EFBIG);
        assert_non_null(strstr(err.text, "cannot write "));
        tern_object_free(object);
        assert_true(first_of_file() == 1);
        assert_int_equal(count_files(), 1);
    }
    signal(SIGXFSZ, SIG_DFL);
}

static void permissions_are_the_umask_s(void **state)
{
    (void)state;
    float values[1] = {1};
    struct stat entry;
    mode_t before = umask(027);
    unlink(path);
    save_floats(values, 1);
    umask(before);
    assert_int_equal(stat(path, &entry), 0);
    assert_int_equal(entry.st_mode & 0777, 0640);
}

/* Whichever allocation fails, the old file is there, no other file is, and nothing leaks. */
static void out_of_memory(void **state)
{
    (void)state;
    float old[] = {1}, new[] = {2, 3};
    save_floats(old, 1);
    int saved = 0, loaded = 0;
    for (int at = 1; !saved; at++) {
        tern_error err = {0};
        ledger books = {.refuse_at = at};
        tern_object *object = state_of(new, 2, &err);
        assert_ok(err);
        ledger_open(&books);
        tern_save(path, object, &err);
        ledger_close(&books);
        if (err.code) {
            assert_int_equal(err.code, TERN_E_MEMORY);
            assert_true(first_of_file() == 1);
        } else {
            saved = at;
        }
        assert_int_equal(count_files(), 1);
        tern_object_free(object);
    }
    for (int at = 1; !loaded; at++) {
        tern_error err = {0};
        ledger books = {.refuse_at = at};
        ledger_open(&books);
        tern_object *object = tern_load(path, NULL, &err);
        if (object)
            loaded = at;
        else
            assert_int_equal(err.code, TERN_E_MEMORY);
        tern_object_free(object);
        ledger_close(&books);
    }
    assert_in_range(saved, 6, 40);
    assert_in_range(loaded, 20, 80);
}

/* ---- a large file, read by several threads ---- */

enum { LARGE = 5 << 20, MIDDLE = 13 << 20 }; /* floats; an offset in the file */

static void flip_byte(off_t at)
{
    char byte;
    int file = open(path, O_RDWR);
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static void every_piece_comes_to_its_place(void **state)
{
    (void)state;
    float *values = malloc(LARGE * sizeof(float));
    for (int i = 0; i < LARGE; i++) values[i] = (float)i;
    save_floats(values, LARGE);
    tern_object *object = tern_load(path, NULL, NULL);
    tern_tensor *weight = tern_object_to_tensor(tern_object_get(object, "weight"));
    assert_int_equal(tern_tensor_count(weight), LARGE);
    assert_int_equal(memcmp(tern_tensor_data(weight), values, LARGE * sizeof(float)), 0);
    tern_object_free(object);
    free(values);
}

/* Of the file before. */
static void every_piece_is_checked(void **state)
{
    (void)state;
    tern_error err = {0};
    flip_byte(MIDDLE);
    assert_null(tern_load(path, NULL, &err));
    assert_int_equal(err.code, TERN_E_FORMAT);
    assert_non_null(strstr(err.text, "\"state/data/0\" is damaged: its CRC-32 is "));
    flip_byte(MIDDLE);
    tern_object *object = tern_load(path, NULL, NULL);
    assert_non_null(object);
    tern_object_free(object);
}

/* ---- a file that changes while it is read ---- */

/* Truncates the file when memory for its tensor is allocated. */
static void *cutting_alloc(size_t bytes, size_t align, void *ctx)
{
    if (bytes >= LEDGER_BIG) assert_return_code(truncate(path, 100000), errno);
    return ledger_alloc(bytes, align, ctx);
}

static void a_file_that_becomes_shorter(void **state)
{
    (void)state;
    static float values[100000];
    tern_error err = {0};
    ledger books = {0};
    save_floats(values, 100000);
    tern__allocator_replace(&(tern_allocator){cutting_alloc, ledger_free, &books});
    assert_null(tern_load(path, NULL, &err));
    ledger_close(&books);
    assert_int_equal(err.code, TERN_E_IO);
    if (!strstr(err.text, "became shorter while it was read: expected 40")) fail_msg("%s", err.text);
}

/* ---- memory ---- */

/* Returns this process's peak resident memory, in bytes. */
static size_t peak_resident(void)
{
    char line[128];
    size_t kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof(line), status))
        if (sscanf(line, "VmHWM: %zu", &kilobytes) == 1) break;
    fclose(status);
    return kilobytes << 10;
}

static atomic_size_t live, peak;

static void *count_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    void *block = aligned_alloc(align, (bytes + align - 1) / align * align);
    size_t now = atomic_fetch_add(&live, malloc_usable_size(block)) + malloc_usable_size(block);
    if (now > atomic_load(&peak)) atomic_store(&peak, now);
    return block;
}

static void count_free(void *block, void *ctx)
{
    (void)ctx;
    atomic_fetch_sub(&live, malloc_usable_size(block));
    free(block);
}

/* Loads the file in its own process and reports the memory, by the allocator and by the kernel. */
static void measure_load(int out)
{
    size_t took[3] = {0, 0, 0}, before = peak_resident();
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, NULL});
    tern_error err = {0};
    tern_object *object = tern_load(path, NULL, &err);
    took[0] = atomic_load(&peak);
    took[1] = peak_resident() - before;
    took[2] = object != NULL;
    tern_object_free(object);
    _exit(write(out, took, sizeof(took)) == sizeof(took) ? 0 : 1);
}

/* A forked process maps its pages of code anew: 1.8 MiB. They are hidden if it happens to reuse memory that
 * its parent has freed. */
enum { CODE_BYTES = 4 << 20 };

static void expect_within(size_t allowance, bool loads)
{
    size_t took[3];
    int ends[2];
    struct stat entry;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) measure_load(ends[1]);
    assert_int_equal(read(ends[0], took, sizeof(took)), sizeof(took));
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    stat(path, &entry);
    assert_int_equal(took[2], loads);
    assert_in_range(took[0], loads ? (size_t)entry.st_size / 2 : 0, (size_t)entry.st_size + allowance);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_in_range(took[1], 0, (size_t)entry.st_size + allowance + CODE_BYTES);
#endif
}

/* Many small tensors, whose names and sizes take more than the data; then a large one. */
static void memory_is_the_file_s_size_and_16_mib(void **state)
{
    (void)state;
    enum { COUNT = 8000, BYTES = 32 << 20 };
    static float values[COUNT];
    tern_error err = {0};
    tern_object *dict = tern_object_dict(&err);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer.%d.weight", i);
        tern_tensor *tensor = wrap(&values[i], 1, (int64_t[]){1}, &err);
        tern_object_set(dict, name, tern_object_tensor(tensor, &err), &err);
        tern_tensor_free(tensor);
    }
    assert_int_equal(tern_save(path, dict, &err), TERN_OK);
    tern_object_free(dict);
    expect_within((size_t)16 << 20, true);
    float *large = malloc(BYTES);
    memset(large, 1, BYTES);
    save_floats(large, BYTES / (int)sizeof(float));
    free(large);
    expect_within((size_t)1 << 20, true);
}

/* Writes an archive with this pickle only. */
static void save_pickle(const char *pickle, size_t bytes)
{
    tern_error err = {0};
    tern__output out;
    assert_int_equal(tern__output_open(&out, path, "f", &err), TERN_OK);
    tern__zip_writer zip = {.out = &out, .prefix = "archive/"};
    int status = tern__zip_add(&zip, "data.pkl", pickle, bytes, &err);
    if (!status) status = tern__zip_add(&zip, "version", "3\n", 2, &err);
    status = tern__zip_end(&zip, status, &err);
    assert_int_equal(tern__output_close(&out, status, false, &err), TERN_OK);
}

/* Three million empty dicts, in a file of as many bytes, are refused before they take more memory. */
static void memory_of_a_bomb(void **state)
{
    (void)state;
    enum { COUNT = 3000000 };
    char *pickle = malloc(COUNT);
    memset(pickle, '}', COUNT);
    memcpy(pickle, "\x80\2(", 3);
    memcpy(pickle + COUNT - 2, "t.", 2);
    save_pickle(pickle, COUNT);
    free(pickle);
    expect_within((size_t)16 << 20, false);
}

/* A list that contains itself is refused in the result and freed outside it; nothing leaks. */
static void a_circle_is_freed(void **state)
{
    (void)state;
    static const char beside[] = "\x80\2]q\0h\0a0N.", within[] = "\x80\2]q\0h\0a.";
    for (int is_within = 0; is_within < 2; is_within++) {
        tern_error err = {0};
        ledger books = {0};
        save_pickle(is_within ? within : beside, is_within ? sizeof(within) - 1 : sizeof(beside) - 1);
        ledger_open(&books);
        tern_object *object = tern_load(path, NULL, &err);
        assert_int_equal(err.code, is_within ? TERN_E_UNSUPPORTED : TERN_OK);
        tern_object_free(object);
        ledger_close(&books);
    }
}

/* ---- tern_load ---- */

static void arguments_of_load(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_null(tern_load(NULL, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_string_equal(err.text, "the path is NULL");
    assert_null(tern_load(path, NULL, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    err.code = 0;
    assert_null(tern_load("/nowhere", NULL, &err));
    assert_int_equal(err.code, TERN_E_IO);
    assert_int_equal(err.native, ENOENT);
    assert_string_equal(err.text, "cannot open /nowhere: No such file or directory");
    assert_null(tern_load("/nowhere", NULL, NULL));
}

/* The same state gives the same file, which is small: repeated names are stored once. */
static void the_same_state_is_the_same_file(void **state)
{
    (void)state;
    float values[3] = {1, 2, 3};
    char bytes[2][4096];
    ssize_t size[2];
    for (int i = 0; i < 2; i++) {
        save_floats(values, 3);
        int file = open(path, O_RDONLY);
        size[i] = read(file, bytes[i], sizeof(bytes[i]));
        close(file);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], (size_t)size[0]);
    assert_in_range(size[0], 400, 1200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_shared_stays_shared),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(a_storage_lives_as_long_as_a_view),
        cmocka_unit_test(what_a_killed_save_left_is_removed),
        cmocka_unit_test(what_cannot_be_saved),
        cmocka_unit_test(nested_too_deep),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(permissions_are_the_umask_s),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(every_piece_comes_to_its_place),
        cmocka_unit_test(every_piece_is_checked),
        cmocka_unit_test(a_file_that_becomes_shorter),
        cmocka_unit_test(memory_is_the_file_s_size_and_16_mib),
        cmocka_unit_test(memory_of_a_bomb),
        cmocka_unit_test(a_circle_is_freed),
        cmocka_unit_test(arguments_of_load),
        cmocka_unit_test(the_same_state_is_the_same_file),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
