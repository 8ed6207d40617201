/* load.c - passes the input as a file in memory and counts allocations. */
#include "base/base.h"
#include "fuzz.h"

#include <tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEAD = 64 }; /* bytes before each block, which hold its size */
#define ALLOWANCE ((size_t)16 << 20)

static size_t live, peak;

static void *count_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    size_t head = align > HEAD ? align : HEAD;
    char *block = aligned_alloc(head, (head + bytes + head - 1) / head * head);
    if (!block) return NULL;
    char *data = block + head;
    memcpy(data - 2 * sizeof(size_t), (size_t[]){bytes, head}, 2 * sizeof(size_t));
    live += bytes;
    if (live > peak) peak = live;
    return data;
}

static void count_free(void *data, void *ctx)
{
    (void)ctx;
    size_t head[2];
    memcpy(head, (char *)data - sizeof(head), sizeof(head));
    live -= head[0];
    free((char *)data - head[1]);
}

static void read_tensor(const tern_tensor *tensor, size_t size)
{
    size_t bytes = (size_t)tern_tensor_count(tensor) * tern_dtype_bytes(tern_tensor_dtype(tensor));
    if (bytes > size) abort();
    void *copy = malloc(bytes + 1);
    if (copy && tern_tensor_read(tensor, copy, bytes, NULL)) abort();
    free(copy);
}

/* Reads every node, as often as the file refers to it. */
static void read_all(const tern_object *object, size_t size)
{
    if (tern_object_to_tensor(object)) read_tensor(tern_object_to_tensor(object), size);
    if (tern_object_record_args(object)) read_all(tern_object_record_args(object), size);
    if (tern_object_record_state(object)) read_all(tern_object_record_state(object), size);
    for (int64_t i = 0; tern_object_at(object, i); i++) read_all(tern_object_at(object, i), size);
}

int fuzz_file(const uint8_t *data, size_t size, char path[FUZZ_PATH])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, FUZZ_PATH, "/proc/self/fd/%d", fd);
    return fd;
}

void fuzz_load(const uint8_t *data, size_t size, int records)
{
    static const tern_allocator allocator = {count_alloc, count_free, NULL};
    char path[FUZZ_PATH];
    tern_error err = {0};
    tern_load_opts opts = tern_load_defaults();
    opts.records = records;
    int fd = fuzz_file(data, size, path);
    live = peak = 0;
    tern__allocator_replace(&allocator);
    tern_object *object = tern_load(path, &opts, &err);
    if (!object == !err.code) abort();
    read_all(object, size + ALLOWANCE);
    tern_object_free(object);
    tern__allocator_replace(NULL);
    close(fd);
    if (live || peak > size + ALLOWANCE) abort();
}
