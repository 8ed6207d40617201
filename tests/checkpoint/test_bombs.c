/* test_bombs.c - pickles whose small instructions make large objects: whatever they repeat a million times,
 * loading takes no more than the file's size and 16 MiB, as counted by malloc and by the kernel. */
#include "check.h"

#include "base/base.h"
#include "checkpoint/zip.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILE_BYTES = 6 << 20, ROOM = 16 << 20 };

static char path[] = "/tmp/tern-bomb-XXXXXX";

/* ---- the memory that a load takes ---- */

typedef struct meter {
    size_t now, peak;
} meter;

static void *meter_alloc(size_t bytes, size_t align, void *ctx)
{
    meter *m = ctx;
    void *block = aligned_alloc(align, (bytes + align - 1) / align * align);
    m->now += malloc_usable_size(block) + sizeof(size_t);
    m->peak = TERN__MAX(m->peak, m->now);
    return block;
}

static void meter_free(void *block, void *ctx)
{
    ((meter *)ctx)->now -= malloc_usable_size(block) + sizeof(size_t);
    free(block);
}

/* Returns this process's peak resident memory. */
static size_t resident(void)
{
    char line[128];
    size_t kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "VmHWM: %zu", &kilobytes) == 1) break;
    if (status) fclose(status);
    return kilobytes << 10;
}

typedef struct taken {
    size_t allocated, resident;
    int code;
} taken;

/* Runs in its own process, so that the peak is that of this load. */
static void measure(bool records, int out)
{
    meter m = {0};
    tern_error err = {0};
    size_t before = resident();
    tern__allocator_replace(&(tern_allocator){meter_alloc, meter_free, &m});
    tern_load_opts opts = tern_load_defaults();
    opts.records = records;
    tern_object_free(tern_load(path, &opts, &err));
    taken t = {m.peak, resident() - before, err.code};
    _exit(m.now || write(out, &t, sizeof(t)) != sizeof(t));
}

static taken take(bool records)
{
    taken t;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) measure(records, ends[1]);
    assert_int_equal(read(ends[0], &t, sizeof(t)), sizeof(t));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
    return t;
}

/* ---- bombs ---- */

typedef struct bomb {
    const char *name;
    const char *head, *piece, *tail; /* size of the pickle: the piece is repeated as often as it fits */
    size_t head_bytes, piece_bytes;
    bool records;
} bomb;

#define START "\x80\2("
#define BOMB_OF(name, head, piece, tail, records)                                                            \
    {                                                                                                        \
        name, START head, piece, tail, sizeof(START head) - 1, sizeof(piece) - 1, records                    \
    }
#define BOMB(name, head, piece, tail)   BOMB_OF(name, head, piece, tail, false)
#define RECORD(name, head, piece, tail) BOMB_OF(name, head, piece, tail, true)
#define STORAGE                                                                                              \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"                                                       \
    "0X\3\0\0\0cpuK\1tQ"

static const bomb bombs[] = {
    BOMB("empty dicts", "", "}", "t."),
    BOMB("empty lists", "", "]", "t."),
    BOMB("empty tuples", "", ")", "t."),
    BOMB("Nones", "", "N", "t."),
    BOMB("ints", "", "K\1", "t."),
    BOMB("floats", "", "G\0\0\0\0\0\0\0\0", "t."),
    BOMB("texts", "", "X\1\0\0\0a", "t."),
    BOMB("marks", "", "(", "t."),
    BOMB("one None again and again", "N", "2", "t."),
    BOMB("tuples in each other", "N", "\x85", "t."),
    BOMB("lists of one", "Nq\1", "]h\1a", "t."),
    BOMB("lists of three", "Nq\1", "](h\1h\1h\1e", "t."),
    BOMB("lists of five", "Nq\1", "](h\1h\1h\1h\1h\1e", "t."),
    BOMB("dicts of one", "K\1q\1", "}h\1h\1s", "t."),
    BOMB("dicts of three", "K\1q\1K\2q\2K\3q\3", "}(h\1h\1h\2h\1h\3h\1u", "t."),
    BOMB("ordered dicts", "ccollections\nOrderedDict\nq\1", "h\1)R", "t."),
    BOMB("shapes", "ctorch\nSize\nq\1", "h\1)\x85R", "t."),
    BOMB("tensors", "ctorch._utils\n_rebuild_tensor_v2\nq\1" STORAGE "q\2ccollections\nOrderedDict\n)Rq\3",
         "h\1(h\2K\0))\x89h\3tR", "t."),
    BOMB("storages", "", STORAGE, "t."),
    RECORD("classes", "", "ca\nb\n", "t."),
    RECORD("instances", "ca\nb\nq\1", "h\1)\x81", "t."),
    RECORD("instances with a state", "ca\nb\nq\1Nq\2", "h\1)\x81h\2b", "t."),
    BOMB("types", "", "ctorch\nfloat32\n", "t."),
    BOMB("instances that are refused", "ca\nb\nq\1", "h\1)\x81", "t."),
    RECORD("large ints", "", "\x8a\x09\1\2\3\4\5\6\7\x08\x09", "t."),
    RECORD("numpy's dtypes", "cnumpy\ndtype\nq\1X\2\0\0\0V8q\2", "h\1h\2\x85R", "t."),
    RECORD("numpy's texts",
           "cnumpy.core.multiarray\nscalar\nq\1cnumpy\ndtype\nX\2\0\0\0U1\x85Rq\2B\4\0\0\0a\0\0\0q\3",
           "h\1h\2h\3\x86R", "t."),
    RECORD("numpy's complex numbers",
           "cnumpy.core.multiarray\nscalar\nq\1cnumpy\ndtype\nX\2\0\0\0c8\x85Rq\2C\1aq\3", "h\1h\2h\3\x86R",
           "t."),
    RECORD("tensors of another dtype",
           "ctorch._utils\n_rebuild_tensor_v2\nq\1(X\7\0\0\0storagectorch\nQInt8Storage\nX\1\0\0\0"
           "0X\3\0\0\0cpuK\4tQq\2)q\3",
           "h\1(h\2K\0h\3h\3\x89NtR", "t."),
    RECORD("storages", "", STORAGE, "t."),
    RECORD("keys", "}", ")Ns", "t."),
    BOMB("keys that are refused", "}", ")Ns", "t."),
};

static void write_bomb(const bomb *b)
{
    tern_error err = {0};
    tern__output out;
    size_t pieces = FILE_BYTES / b->piece_bytes,
           bytes = b->head_bytes + pieces * b->piece_bytes + strlen(b->tail);
    char *pickle = malloc(bytes);
    memcpy(pickle, b->head, b->head_bytes);
    for (size_t i = 0; i < pieces; i++)
        memcpy(pickle + b->head_bytes + i * b->piece_bytes, b->piece, b->piece_bytes);
    memcpy(pickle + bytes - strlen(b->tail), b->tail, strlen(b->tail));
    assert_int_equal(tern__output_open(&out, path, "f", &err), TERN_OK);
    tern__zip_writer zip = {.out = &out, .prefix = "archive/"};
    int status = tern__zip_add(&zip, "data.pkl", pickle, bytes, &err);
    if (!status) status = tern__zip_add(&zip, "data/0", "\0\0\0\0", 4, &err);
    if (!status) status = tern__zip_add(&zip, "version", "3\n", 2, &err);
    status = tern__zip_end(&zip, status, &err);
    assert_int_equal(tern__output_close(&out, status, false, &err), TERN_OK);
    free(pickle);
}

static void no_bomb_takes_more_than_the_file_and_16_mib(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(bombs); i++) {
        struct stat entry;
        write_bomb(&bombs[i]);
        assert_int_equal(stat(path, &entry), 0);
        taken t = take(bombs[i].records);
        size_t allowed = (size_t)entry.st_size + ROOM;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        t.resident = 0; /* memory of the sanitizer */
#endif
        if (t.allocated > allowed || t.resident > allowed)
            fail_msg("%s: %zu bytes allocated, %zu resident, allowed %zu", bombs[i].name, t.allocated,
                     t.resident, allowed);
        if (t.code != TERN_E_MEMORY) fail_msg("%s: %s", bombs[i].name, tern_status_name(t.code));
    }
}

static int make_path(void **state)
{
    (void)state;
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_bomb_takes_more_than_the_file_and_16_mib)};
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
