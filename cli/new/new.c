/* new.c - `tern new`: writes a program to start from, with its data, into a new folder. The files are those
 * of cli/new/template, which the build puts into the command; @NAME@ in them becomes the program's name. */
#include "cli.h"
#include "flags.h"

#include "base/file.h"

#include <tern.h>

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_MARK "@NAME@"

static const char FUNC[] = "tern new";

/* Made by the build. */
typedef struct template_file {
    const char *name;
    const unsigned char *bytes;
    size_t count;
} template_file;

#include "new_template.h"

static const tern__cli_option options[] = {TERN__OPTION_HELP, {0}};

const tern__cli_page tern__new_page = {
    "NAME",
    "Writes a program that trains on several ranks into the new folder NAME: main.c, data.c, which reads "
    "data.csv, a "
    "CMakeLists.txt and a README.md, which says how to build it and what to change.\n"
    "\n"
    "    tern new irises && cd irises\n"
    "    cmake -B build && cmake --build build\n"
    "    tern run -n 2 build/irises\n",
    options,
};

/* A target of CMake may be named so. */
static bool is_name(const char *name)
{
    static const char *const taken[] = {"all",  "clean",   "edit_cache",    "help",
                                        "test", "install", "rebuild_cache", "package"};
    bool is_good = isalpha((unsigned char)*name);
    for (size_t i = 0; i < TERN__COUNT(taken); i++) is_good = is_good && strcmp(name, taken[i]) != 0;
    for (const char *c = name; *c; c++) is_good = is_good && (isalnum((unsigned char)*c) || strchr("_-", *c));
    return is_good && strlen(name) <= 64;
}

/* Writes the file with the program's name in the places of the mark. */
static int file_write(const template_file *file, const char *name, tern_error *err)
{
    char path[160];
    tern__output out;
    const char *at = (const char *)file->bytes, *end = at + file->count;
    snprintf(path, sizeof(path), "%s/%s", name, file->name);
    if (tern__output_open(&out, path, FUNC, err)) return err->code;
    int status = TERN_OK;
    while (at < end && !status) {
        const char *mark = memmem(at, (size_t)(end - at), NAME_MARK, strlen(NAME_MARK));
        status = tern__output_write(&out, at, (size_t)((mark ? mark : end) - at), err);
        if (mark && !status) status = tern__output_write(&out, name, strlen(name), err);
        at = mark ? mark + strlen(NAME_MARK) : end;
    }
    return tern__output_close(&out, status, false, err);
}

int tern__cli_new(int argc, char **argv)
{
    tern_error err = {0};
    int status = tern__flags_read(&tern__new_page, FUNC, argc, argv);
    if (status) return status < 0 ? tern__cli_flush(FUNC) : status;
    if (argc - optind != 1) {
        tern__cli_complain(FUNC, "expected the name of a new folder, got %d names", argc - optind);
        return TERN__EXIT_USAGE;
    }
    const char *name = argv[optind];
    if (!is_name(name)) {
        tern__cli_complain(
            FUNC,
            "expected a name of letters, digits, - and _ that begins with a letter and is no target of "
            "CMake's, got \"%s\"",
            name);
        return TERN__EXIT_USAGE;
    }
    if (mkdir(name, 0777)) {
        tern__cli_complain(FUNC, "cannot make the folder %s: %s", name, strerror(errno));
        return TERN__EXIT_FAILED;
    }
    for (size_t i = 0; i < sizeof(template_files) / sizeof(*template_files) && !err.code; i++)
        file_write(&template_files[i], name, &err);
    if (tern_error_print(&err)) return TERN__EXIT_FAILED;
    printf("wrote %s; next, as README.md in it says:\n\n"
           "    cd %s\n"
           "    cmake -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build    # PREFIX: tern's, if not "
           "/usr\n"
           "    tern run -n 2 build/%s\n",
           name, name, name);
    return tern__cli_flush(FUNC);
}
