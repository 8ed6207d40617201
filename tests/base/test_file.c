/* test_file.c - folders that are made with their parents, joined paths, and folders that are synced. fsync is
 * simulated. */
#include "base/file.h"
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int sync_error, sync_errors; /* how fsync fails, and how often */

int fsync(int fd)
{
    (void)fd;
    if (sync_errors-- <= 0) return 0;
    errno = sync_error;
    return -1;
}

static void expect_folder(const char *path, mode_t mode)
{
    struct stat about;
    tern_error err = {0};
    assert_int_equal(tern__folder_make(path, mode, __func__, &err), TERN_OK);
    assert_ok(err);
    assert_int_equal(stat(path, &about), 0);
    assert_true(S_ISDIR(about.st_mode));
    assert_int_equal(about.st_mode & 0777 & ~mode, 0);
}

static void expect_refusal(const char *path, int native, const char *named)
{
    tern_error err = {0};
    assert_int_equal(tern__folder_make(path, 0777, "func", &err), TERN_E_IO);
    assert_int_equal(err.native, native);
    assert_non_null(strstr(err.text, named));
}

static void folders_are_made_with_their_parents(void **state)
{
    (void)state;
    char base[] = "/tmp/tern-file-XXXXXX";
    assert_non_null(mkdtemp(base));
    assert_int_equal(chdir(base), 0);
    expect_folder("a/b/c", 0700);
    expect_folder("a/b/c", 0777);
    expect_folder("a//d/", 0777);
    expect_folder(".", 0777);
    expect_folder("/", 0777);
    char *path = tern__path_join(base, "e/f", __func__, NULL);
    expect_folder(path, 0777);
    assert_int_equal(access("e/f", X_OK), 0);
    assert_int_equal(symlink("a", "file"), 0);
    expect_folder("file/g", 0777);
    assert_int_equal(unlink("file"), 0);
    assert_int_equal(symlink("nowhere", "file"), 0);
    expect_refusal("file/g", ENOENT, "\"file/g\"");
    expect_refusal("", ENOENT, "\"\"");
    expect_refusal("/dev/null/h/i", ENOTDIR, "\"/dev/null/h\"");
    tern__free(path);
    for (const char *const *made = (const char *const[]){"a/b/c", "a/b", "a/d", "a/g", "a", "e/f", "e", NULL};
         *made; made++)
        assert_int_equal(rmdir(*made), 0);
    assert_int_equal(unlink("file"), 0);
    assert_int_equal(rmdir(base), 0);
}

static void expect_sync(int native, int times, int code)
{
    tern_error err = {0};
    sync_error = native, sync_errors = times;
    assert_int_equal(tern__folder_sync("/tmp", "func", &err), code);
    assert_int_equal(err.native, code ? native : 0);
    if (code) assert_non_null(strstr(err.text, "cannot sync the folder /tmp"));
}

static void a_folder_is_synced_where_that_exists(void **state)
{
    (void)state;
    tern_error err = {0};
    expect_sync(0, 0, TERN_OK);
    expect_sync(EINTR, 2, TERN_OK);
    expect_sync(EINVAL, 1, TERN_OK);
    expect_sync(EIO, 1, TERN_E_IO);
    assert_int_equal(tern__folder_sync("/nowhere", "func", &err), TERN_E_IO);
    assert_int_equal(err.native, ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_made_with_their_parents),
        cmocka_unit_test(a_folder_is_synced_where_that_exists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
