/* test_plugin.c - where plug-ins are looked for, and whether they are of this build. The program copies
 * itself to a new prefix, together with another library under the plug-in's name, and starts the copy. */
#include "base/plugin.h"
#include "check.h"

#include <tern/backend/figure.h>
#include <tern/backend/image.h>
#include <tern/backend/nifti.h>
#include <tern/backend/regex.h>
#include <tern/backend/topology.h>
#include <tern/backend/unicode.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYMBOL "zlibVersion" /* of a library that is certainly loaded */

enum { FOUND = 0, MISSING = 3 };

/* Runs in the copy. */
static int probe(bool tells)
{
    tern_error err = {0};
    if (tern__plugin_open("probe.so", SYMBOL, &err)) return FOUND;
    if (tells) printf("%s", err.text);
    return err.code == TERN_E_UNSUPPORTED ? MISSING : 1;
}

static char root[] = "/tmp/tern-plugin-XXXXXX";

static const char *in_root(const char *path)
{
    static char full[2][256];
    static int turn;
    turn = !turn;
    snprintf(full[turn], sizeof(full[turn]), "%s/%s", root, path);
    return full[turn];
}

static void copy_self(const char *path)
{
    char bytes[1 << 16];
    FILE *from = fopen("/proc/self/exe", "rb"), *to = fopen(path, "wb");
    assert_true(from && to);
    for (size_t n; (n = fread(bytes, 1, sizeof(bytes), from)) > 0;)
        assert_int_equal(fwrite(bytes, 1, n, to), n);
    fclose(from);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(chmod(path, 0700), 0);
}

static int make_root(void **state)
{
    (void)state;
    static const char *const folders[] = {"bin", "lib", "lib/tern", "elsewhere"};
    if (!mkdtemp(root)) return -1;
    for (size_t i = 0; i < 4; i++)
        if (mkdir(in_root(folders[i]), 0700)) return -1;
    copy_self(in_root("bin/probe"));
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

static void put_plugin(const char *folder)
{
    Dl_info info;
    char path[64];
    assert_true(dladdr(dlsym(RTLD_DEFAULT, SYMBOL), &info));
    snprintf(path, sizeof(path), "%s/probe.so", folder);
    assert_int_equal(symlink(info.dli_fname, in_root(path)), 0);
}

static void take_plugin(const char *folder)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/probe.so", folder);
    assert_int_equal(unlink(in_root(path)), 0);
}

/* Starts the copy with a shell command, in the folder `elsewhere`. */
static int start(const char *line)
{
    char command[512];
    snprintf(command, sizeof(command), "cd %s/elsewhere && %s", root, line);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void beside_the_program_and_where_it_is_installed(void **state)
{
    (void)state;
    static const char *const folders[] = {"bin", "lib/tern"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(start("../bin/probe probe"), MISSING);
        put_plugin(folders[i]);
        assert_int_equal(start("../bin/probe probe"), FOUND);
        assert_int_equal(start("PATH=$PWD/../bin:$PATH && probe probe"), FOUND);
        take_plugin(folders[i]);
    }
}

static void not_in_the_working_folder(void **state)
{
    (void)state;
    put_plugin("elsewhere");
    assert_int_equal(start("PATH=$PWD/../bin:$PATH && probe probe"), MISSING);
    assert_int_equal(start("TERN_PLUGIN_PATH=. ../bin/probe probe"), FOUND);
    take_plugin("elsewhere");
}

/* The folder of installed plug-ins is there, so it is the one to name; otherwise the program's. */
static void where_it_was_looked_for_is_named(void **state)
{
    (void)state;
    static const char *const folders[] = {"bin/../lib/tern", "bin", "bin/tern"};
    for (int i = 0; i < 3; i++) {
        char text[TERN_ERROR_TEXT] = "", expected[TERN_ERROR_TEXT];
        if (i == 1) assert_int_equal(rename(in_root("lib"), in_root("hidden")), 0);
        if (i == 2) assert_int_equal(mkdir(in_root("bin/tern"), 0700), 0);
        assert_int_equal(start("../bin/probe probe tells >said"), MISSING);
        FILE *said = fopen(in_root("elsewhere/said"), "r");
        assert_non_null(said);
        assert_non_null(fgets(text, sizeof(text), said));
        fclose(said);
        snprintf(expected, sizeof(expected), "the plug-in probe.so cannot be loaded: ../%s has no such file",
                 folders[i]);
        assert_string_equal(text, expected);
    }
    assert_int_equal(rmdir(in_root("bin/tern")), 0);
    assert_int_equal(rename(in_root("hidden"), in_root("lib")), 0);
}

/* Of another release, or of a build between two. */
static void another_abi_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *purpose;
        int abi;
    } expected[TERN__PLUGIN_COUNT] = {
        [TERN__PLUGIN_FIGURE] = {"", TERN_FIGURE_ABI},
        [TERN__PLUGIN_JPEG] = {"JPEG: ", TERN_IMAGE_ABI},
        [TERN__PLUGIN_PNG] = {"PNG: ", TERN_IMAGE_ABI},
        [TERN__PLUGIN_TIFF] = {"TIFF: ", TERN_IMAGE_ABI},
        [TERN__PLUGIN_NIFTI] = {"", TERN_NIFTI_ABI},
        [TERN__PLUGIN_REGEX] = {"regular expression: ", TERN_REGEX_ABI},
        [TERN__PLUGIN_UNICODE] = {"normalizer: ", TERN_UNICODE_ABI},
        [TERN__PLUGIN_TOPOLOGY] = {"", TERN_TOPOLOGY_ABI},
    };
    assert_int_equal(setenv("TERN_PLUGIN_PATH", in_root("elsewhere"), 1), 0);
    for (tern__plugin i = 0; i < TERN__PLUGIN_COUNT; i++) {
        char path[64], why[128], text[192];
        snprintf(path, sizeof(path), "elsewhere/%s", tern__plugin_file(i));
        assert_int_equal(symlink(OTHER_ABI, in_root(path)), 0);
        snprintf(why, sizeof(why), "the plug-in %s has ABI %d, expected %d", tern__plugin_file(i),
                 expected[i].abi + 1, expected[i].abi);
        snprintf(text, sizeof(text), "a file: %s%s", expected[i].purpose, why);
        tern_error err = {0}, alone = {0};
        assert_null(tern__plugin_get(i, "a file", "asker", &err));
        assert_int_equal(err.code, TERN_E_UNSUPPORTED);
        assert_string_equal(err.text, text);
        assert_string_equal(err.func, "asker");
        assert_null(tern__plugin_get(i, NULL, "asker", &alone));
        assert_string_equal(alone.text, why);
    }
    unsetenv("TERN_PLUGIN_PATH");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "probe")) return probe(argc > 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_the_program_and_where_it_is_installed),
        cmocka_unit_test(not_in_the_working_folder),
        cmocka_unit_test(where_it_was_looked_for_is_named),
        cmocka_unit_test(another_abi_is_refused),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
