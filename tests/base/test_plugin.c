/* test_plugin.c - where plug-ins are looked for. The program copies itself to a new prefix, together with
 * another library under the plug-in's name, and starts the copy. */
#include "base/plugin.h"
#include "check.h"

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
static int probe(void)
{
    tern_error err = {0};
    if (tern__plugin_open("probe.so", SYMBOL, &err)) return FOUND;
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

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "probe")) return probe();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_the_program_and_where_it_is_installed),
        cmocka_unit_test(not_in_the_working_folder),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
