/* safetensors_file.h - files in memory, for the tests of safetensors. */
#ifndef TERN_TESTS_SAFETENSORS_FILE_H
#define TERN_TESTS_SAFETENSORS_FILE_H

#include "check.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM ((size_t)16 << 20)

static inline int make_file(const void *data, size_t bytes)
{
    int fd = memfd_create("tern-safetensors", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    return fd;
}

static inline size_t size_of(int fd)
{
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    return (size_t)status.st_size;
}

static inline tern_object *load_any(int fd, size_t claimed, size_t room, bool records, bool metadata,
                                    tern_error *err)
{
    tern__input in = {
        .path = "a.safetensors", .fd = fd, .size = (int64_t)claimed, .room = (int64_t)(claimed + room)};
    tern_object *dict = tern__safetensors_load(&in, records, metadata, err);
    close(fd);
    return dict;
}

/* Loads and closes the file; `claimed` is the size that the loader is told. */
static inline tern_object *load_sized(int fd, size_t claimed, size_t room, bool metadata, tern_error *err)
{
    return load_any(fd, claimed, room, false, metadata, err);
}

static inline tern_object *load_records(int fd, tern_error *err)
{
    return load_any(fd, size_of(fd), ROOM, true, true, err);
}

static inline tern_object *load(int fd, bool metadata, tern_error *err)
{
    return load_sized(fd, size_of(fd), ROOM, metadata, err);
}

static inline int make_safetensors(const char *header, size_t bytes, size_t data)
{
    char *file = calloc(1, 8 + bytes + data);
    for (int i = 0; i < 8; i++) file[i] = (char)(bytes >> 8 * i);
    memcpy(file + 8, header, bytes);
    int fd = make_file(file, 8 + bytes + data);
    free(file);
    return fd;
}

#endif
