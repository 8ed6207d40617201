/* input.c - reads an untrusted file, and limits the memory of its contents. */
#include "checkpoint/input.h"

#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

static const char LOAD[] = "tern_load";

int tern__input_open(tern__input *in, const char *path, size_t memory, tern_error *err)
{
    struct stat about;
    *in = (tern__input){.path = path, .fd = tern__file_open(path, O_RDONLY, 0, &about, LOAD, err)};
    if (in->fd < 0) return TERN_E_IO;
    in->size = about.st_size;
    if (__builtin_add_overflow(in->size, memory, &in->room)) in->room = INT64_MAX;
    return TERN_OK;
}

void tern__input_close(tern__input *in)
{
    if (in->fd >= 0) close(in->fd);
    in->fd = -1;
}

int tern__input_read(const tern__input *in, int64_t offset, void *out, size_t bytes, tern_error *err)
{
    return tern__file_read(in->fd, in->path, offset, out, bytes, LOAD, err);
}

int tern__input_charge(tern__input *in, int64_t bytes, tern_error *err)
{
    if (bytes <= in->room) {
        in->room -= bytes;
        return TERN_OK;
    }
    return tern__error_set(
        err, LOAD, TERN_E_MEMORY,
        "%s: its contents need more memory than its size, %lld bytes, and the allowance beyond that "
        "(tern_load_opts.memory)",
        in->path, (long long)in->size);
}
