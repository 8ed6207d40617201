/* test_store_file.c - invalid files of a file store: each is an error with its position, at once. Also users
 * that come and go. */
#include "check.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tern/store.h>
#include <unistd.h>

static int signals; /* that interrupt open, as they may on a network file system */

int open(const char *name, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (signals-- <= 0) return (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
    errno = EINTR;
    return -1;
}

static char folder[] = "/tmp/tern-store-XXXXXX", path[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/store", folder);
    return 0;
}

static int clean(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static int teardown(void **state)
{
    return clean(state) || rmdir(folder);
}

static void write_file(const void *data, size_t bytes, int flags)
{
    int fd = open(path, O_WRONLY | O_CREAT | flags, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
}

static size_t file_bytes(void)
{
    struct stat now;
    assert_return_code(stat(path, &now), errno);
    return (size_t)now.st_size;
}

static void assert_spoiled(tern_error err, const char *text)
{
    assert_int_equal(err.code, TERN_E_FORMAT);
    assert_non_null(strstr(err.text, path));
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not contain \"%s\"", err.text, text);
}

/* "/k" -> "v", "n" -> "" and a deletion of "/k", as PyTorch writes them. */
static const char records[] = "\2\0\0\0/k\1\0\0\0v\1\0\0\0n\0\0\0\0\3\0\0\0-/k\0\0\0\0";

static void a_file_that_ends_anywhere_in_a_record_is_an_error(void **state)
{
    (void)state;
    const size_t ends[] = {0, 11, 20, 31}; /* after a record */
    size_t sound = 0;
    for (size_t cut = 0; cut < sizeof(records); cut++) {
        tern_error err = {0};
        write_file(records, cut, O_TRUNC);
        tern_store *store = tern_store_file_open(path, -1, &err);
        if (cut == ends[sound]) {
            assert_ok(err);
            assert_int_equal(tern_store_check(store, (const char *[]){"k"}, 1, &err), cut > 0 && cut < 31);
            sound++;
        } else {
            char place[32];
            snprintf(place, sizeof(place), "byte %zu", ends[sound - 1]);
            assert_null(store);
            assert_spoiled(err, "middle of a record");
            assert_non_null(strstr(err.text, place));
        }
        tern_store_close(store);
    }
    assert_int_equal(sound, 4);
}

static void garbage_is_an_error_and_takes_no_memory(void **state)
{
    (void)state;
    static const char garbage[][40] = {
        "\xff\xff\xff\xff, a length of four GiB",
        "\x02\x20\0\0, a key of 8194 bytes",
        "\1\0\0\0k\1\0\x80\0, 8 MiB and a byte",
        "GET / HTTP/1.1\r\n\r\n",
        "\x7f"
        "ELF\2\1\1",
    };
    for (size_t i = 0; i < TERN__COUNT(garbage); i++) {
        tern_error err = {0};
        write_file(garbage[i], sizeof(garbage[i]), O_TRUNC);
        assert_null(tern_store_file_open(path, 1, &err));
        assert_spoiled(err, "byte 0: not a record");
        assert_int_equal(file_bytes(), sizeof(garbage[i])); /* nothing was written to it */
    }
}

/* The file is damaged after it was opened: the next call fails, whichever it is, and a wait returns at once.
 */
static void what_is_spoiled_later_is_an_error_of_the_next_call(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        tern_error err = {0};
        static const char *const keys[] = {"never"};
        static const char *const texts[] = {"middle of a record", "shorter", "removed"};
        clean(state);
        tern_store *store = tern_store_file_open(path, -1, &err);
        tern_store_set(store, "k", "v", 1, &err);
        assert_ok(err);
        if (how == 0) write_file("\5\0\0\0/hal", 8, O_APPEND);
        if (how == 1) assert_return_code(truncate(path, 5), errno);
        if (how == 2) {
            unlink(path);
            write_file(records, sizeof(records) - 1, O_TRUNC);
        }
        int64_t start = tern__now_ns();
        assert_int_equal(tern_store_wait(store, keys, 1, 20, &err), TERN_E_FORMAT);
        assert_true(tern__now_ns() - start < INT64_C(5000000000));
        assert_spoiled(err, texts[how]);
        err = (tern_error){0};
        assert_int_equal(tern_store_set(store, "k", "v", 1, &err), TERN_E_FORMAT);
        tern_store_close(store);
    }
}

static void what_cannot_be_opened_names_the_path(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_null(tern_store_file_open("/nowhere/at/all", 1, &err));
    assert_int_equal(err.code, TERN_E_IO);
    assert_int_equal(err.native, ENOENT);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    err = (tern_error){0};
    assert_null(tern_store_file_open(folder, 1, &err));
    assert_int_equal(err.native, EISDIR);
    err = (tern_error){0};
    assert_null(tern_store_file_open("/dev/zero", 1, &err)); /* its records would never end */
    assert_non_null(strstr(err.text, "regular file"));
    err = (tern_error){0};
    assert_null(tern_store_file_open("", 1, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
}

/* There is space for a part of the record only. */
static int write_beyond_a_limit(void)
{
    tern_error err = {0};
    tern_store *store = tern_store_file_open(path, -1, &err);
    tern_store_set(store, "k", "before", 6, &err);
    size_t before = file_bytes();
    const struct rlimit limit = {before + 5, before + 5};
    signal(SIGXFSZ, SIG_IGN);
    if (err.code || setrlimit(RLIMIT_FSIZE, &limit)) return 1;
    if (tern_store_set(store, "k", "after", 5, &err) != TERN_E_IO || err.native != EFBIG) return 2;
    if (file_bytes() != before) return 3;
    err = (tern_error){0};
    const char *value = tern_store_get(store, "k", NULL, &err);
    return value && !strcmp(value, "before") ? 0 : 4;
}

static void a_full_disk_leaves_what_was_there(void **state)
{
    (void)state;
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(write_beyond_a_limit());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void a_lock_that_is_kept_is_a_timeout(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_store *store = tern_store_file_open(path, -1, &err);
    tern_store_timeout_set(store, 0.1, &err);
    assert_ok(err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_return_code(flock(fd, LOCK_EX), errno);
    assert_int_equal(tern_store_set(store, "k", "", 0, &err), TERN_E_TIMEOUT);
    assert_non_null(strstr(err.text, "lock"));
    err = (tern_error){0};
    assert_null(tern_store_get(store, "k", NULL, &err));
    assert_non_null(strstr(err.text, "lock"));
    close(fd);
    err = (tern_error){0};
    tern_store_set(store, "k", "", 0, &err);
    assert_ok(err);
    tern_store_close(store);
}

static void the_last_of_the_world_removes_the_file(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_store *first = tern_store_file_open(path, 2, &err);
    tern_store_close(first); /* alone for now, but another user is still to come */
    assert_int_equal(access(path, F_OK), 0);
    tern_store *second = tern_store_file_open(path, 2, &err), *clone = tern_store_clone(second, &err);
    tern_store_close(second);
    assert_int_equal(access(path, F_OK), 0);
    tern_store_close(clone);
    assert_int_equal(access(path, F_OK), -1);
    tern_store *kept = tern_store_file_open(path, -1, &err);
    tern_store_close(kept);
    assert_int_equal(access(path, F_OK), 0);
    assert_ok(err);
}

enum { processes = 4, adds = 200 };

static void add_and_exit(void)
{
    tern_error err = {0};
    int64_t sum;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tern_store *store = tern_store_file_open(path, -1, &err);
    for (int i = 0; i < adds; i++) tern_store_add(store, "n", 1, &sum, &err);
    tern_store_close(store);
    _exit(err.code ? 1 : 0);
}

static void processes_count_together(void **state)
{
    (void)state;
    pid_t pids[processes];
    for (int i = 0; i < processes; i++) {
        fflush(NULL);
        pids[i] = fork();
        if (pids[i] == 0) add_and_exit();
    }
    for (int i = 0, status; i < processes; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    tern_error err = {0};
    int64_t sum;
    tern_store *store = tern_store_file_open(path, -1, &err);
    tern_store_add(store, "n", 0, &sum, &err);
    assert_ok(err);
    assert_int_equal(sum, processes * adds);
    tern_store_close(store);
}

static void a_signal_while_it_is_opened(void **state)
{
    (void)state;
    tern_error err = {0};
    signals = 2;
    tern_store_close(tern_store_file_open(path, 1, &err));
    assert_ok(err);
}

#define CLEAN(test) cmocka_unit_test_setup_teardown(test, clean, clean)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLEAN(a_file_that_ends_anywhere_in_a_record_is_an_error),
        CLEAN(garbage_is_an_error_and_takes_no_memory),
        CLEAN(what_is_spoiled_later_is_an_error_of_the_next_call),
        CLEAN(what_cannot_be_opened_names_the_path),
        CLEAN(a_full_disk_leaves_what_was_there),
        CLEAN(a_lock_that_is_kept_is_a_timeout),
        CLEAN(a_signal_while_it_is_opened),
        CLEAN(the_last_of_the_world_removes_the_file),
        CLEAN(processes_count_together),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
