/* archive.h - files of torch.save, right and wrong, put together from parts. */
#ifndef TERN_TESTS_ARCHIVE_H
#define TERN_TESTS_ARCHIVE_H

#include "check.h"
#include "checkpoint/torch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char archive_path[64];

static inline int archive_open(void **state)
{
    (void)state;
    snprintf(archive_path, sizeof(archive_path), "/tmp/tern-archive-%d.pt", (int)getpid());
    return 0;
}

static inline int archive_close(void **state)
{
    (void)state;
    unlink(archive_path);
    return 0;
}

/* ---- whole files ---- */

static inline void write_file(const void *data, size_t bytes)
{
    FILE *file = fopen(archive_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

/* The caller's. */
static inline uint8_t *read_file(size_t *bytes)
{
    struct stat entry;
    assert_int_equal(stat(archive_path, &entry), 0);
    *bytes = (size_t)entry.st_size;
    uint8_t *data = malloc(*bytes + 1);
    FILE *file = fopen(archive_path, "rb");
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

/* ---- archives ---- */

typedef struct entry {
    const char *name; /* NULL: the last one */
    const void *data;
    size_t bytes;
} entry;

static inline void write_archive(const entry *entries)
{
    tern_error err = {0};
    tern__output out;
    assert_int_equal(tern__output_open(&out, archive_path, &err), TERN_OK);
    tern__zip_writer zip = {.out = &out, .prefix = "archive/"};
    int status = TERN_OK;
    for (; !status && entries->name; entries++)
        status = tern__zip_add(&zip, entries->name, entries->data, entries->bytes, &err);
    status = tern__zip_end(&zip, status, &err);
    tern__output_close(&out, status, false, &err);
    assert_ok(err);
}

/* An archive of this pickle and one storage, "0", of 24 bytes. */
static inline void write_pickle(const void *pickle, size_t bytes)
{
    static const float storage[6] = {1, 2, 3, 4, 5, 6};
    write_archive((entry[]){{"data.pkl", pickle, bytes},
                            {"data/0", storage, sizeof(storage)},
                            {"version", "3\n", 2},
                            {NULL, NULL, 0}});
}

/* A string literal, zeros in it too. */
#define WRITE_PICKLE(text) write_pickle(text, sizeof(text) - 1)

/* ---- what comes of them ---- */

static inline void expect_error(const tern_load_opts *opts, int code, const char *part)
{
    tern_error err = {0};
    tern_object *object = tern_load(archive_path, opts, &err);
    tern_object_free(object);
    if (err.code != code || object || !strstr(err.text, part))
        fail_msg("expected %s \"%s\", got %s \"%s\"", tern_status_name(code), part, tern_status_name(err.code), err.text);
    assert_string_equal(err.func, "tern_load");
}

static inline tern_object *load_well(const tern_load_opts *opts)
{
    tern_error err = {0};
    tern_object *object = tern_load(archive_path, opts, &err);
    assert_ok(err);
    assert_non_null(object);
    return object;
}

#endif
