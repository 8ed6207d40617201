/* folder.h - a folder for a test's figures, which finds the plug-in, and what a PNG says of itself. */
#ifndef TERN_TESTS_REPORT_FOLDER_H
#define TERN_TESTS_REPORT_FOLDER_H

#include "check.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct folder {
    char path[64], file[96];
} folder;

/* The plug-in lies in the build folder, one above this program's. */
static inline int choose_plugins(void)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 4);
    if (length <= 0) return -1;
    path[length] = '\0';
    strcpy(strrchr(path, '/'), "/..");
    return setenv("TERN_PLUGIN_PATH", path, 1);
}

static inline int open_folder(void **state)
{
    static folder f;
    snprintf(f.path, sizeof(f.path), "/tmp/tern-picture-XXXXXX");
    if (!mkdtemp(f.path)) return -1;
    snprintf(f.file, sizeof(f.file), "%s/grid.png", f.path);
    *state = &f;
    return choose_plugins();
}

static inline int close_folder(void **state)
{
    folder *f = *state;
    unlink(f->file);
    return rmdir(f->path);
}

/* Width and height from a PNG's header: signature, then a chunk of 13 bytes named IHDR. */
static inline void read_png(const char *path, uint32_t *width, uint32_t *height)
{
    static const unsigned char start[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                                          0,    0,   0,   13,  'I',  'H',  'D',  'R'};
    unsigned char head[24];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof(head), file), sizeof(head));
    fclose(file);
    assert_memory_equal(head, start, sizeof(start));
    memcpy(width, head + 16, 4);
    memcpy(height, head + 20, 4);
    *width = ntohl(*width);
    *height = ntohl(*height);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

#endif
