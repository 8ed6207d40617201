/* test_file.c - folders that are made with their parents, and joined paths. */
#include "base/file.h"
#include "check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_made_with_their_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
