/* folder.h - a folder for a test's figures, and the headers of PNGs. */
#ifndef TERN_TESTS_REPORT_FOLDER_H
#define TERN_TESTS_REPORT_FOLDER_H

#include "check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct folder {
    char path[64], file[96];
} folder;

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

/* Reads width and height from a PNG's header: the signature, then a chunk of 13 bytes named IHDR. */
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

/* Counts what is in the folder beside the file. */
static inline int count_others(const folder *f)
{
    int count = 0;
    DIR *dir = opendir(f->path);
    for (struct dirent *one; (one = readdir(dir));)
        count += one->d_name[0] != '.' && strcmp(one->d_name, strrchr(f->file, '/') + 1) != 0;
    closedir(dir);
    return count;
}

/* Returns the file's bytes, which the caller frees. */
static inline char *file_bytes(const folder *f, size_t *size)
{
    struct stat about;
    assert_int_equal(stat(f->file, &about), 0);
    char *bytes = malloc((size_t)about.st_size);
    FILE *file = fopen(f->file, "rb");
    *size = fread(bytes, 1, (size_t)about.st_size, file);
    fclose(file);
    assert_int_equal(*size, about.st_size);
    return bytes;
}

/* Writing over the file with `save` fails after `room` bytes: the old file is unchanged, nothing is left
 * beside it, and the error says why. */
static inline void expect_old_file(const folder *f, size_t room,
                                   int (*save)(const char *path, tern_error *err))
{
    tern_error err = {0};
    size_t before, after;
    struct rlimit whole;
    char *old = file_bytes(f, &before);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &whole);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){room, whole.rlim_max});
    int status = save(f->file, &err);
    setrlimit(RLIMIT_FSIZE, &whole);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, TERN_E_IO);
    assert_non_null(strstr(err.text, f->file));
    if (!strstr(err.text, "File too large")) fail_msg("no reason in \"%s\"", err.text);
    char *new = file_bytes(f, &after);
    assert_int_equal(after, before);
    assert_memory_equal(new, old, before);
    assert_int_equal(count_others(f), 0);
    free(old);
    free(new);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

#endif
