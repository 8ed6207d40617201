#include "checkpoint/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char LOAD[] = "tern_load", SAVE[] = "tern_save";

#define AT_ONCE ((size_t)1 << 30) /* one call of the kernel's moves less than 2 GiB */
#define BUFFER  ((size_t)1 << 16)

/* ---- reading ---- */

int tern__input_open(tern__input *in, const char *path, size_t memory, tern_error *err)
{
    struct stat stat;
    *in = (tern__input){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
    if (in->fd < 0) return tern__error_errno(err, LOAD, TERN_E_IO, "cannot open %s", path);
    int status =
        fstat(in->fd, &stat) ? tern__error_errno(err, LOAD, TERN_E_IO, "cannot look at %s", path) : TERN_OK;
    if (!status && !S_ISREG(stat.st_mode))
        status = tern__error_set(err, LOAD, TERN_E_IO, "%s is no regular file", path);
    if (status) {
        tern__input_close(in);
        return status;
    }
    in->size = stat.st_size;
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
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(in->fd, (char *)out + got, TERN__MIN(bytes - got, AT_ONCE), offset + (int64_t)got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tern__error_errno(err, LOAD, TERN_E_IO, "cannot read %s", in->path);
        if (n == 0)
            return tern__error_set(err, LOAD, TERN_E_IO,
                                   "%s became shorter while it was read: expected %lld bytes, got %lld",
                                   in->path, (long long)in->size, (long long)(offset + (int64_t)got));
        got += (size_t)n;
    }
    return TERN_OK;
}

int tern__input_charge(tern__input *in, int64_t bytes, tern_error *err)
{
    if (bytes <= in->room) {
        in->room -= bytes;
        return TERN_OK;
    }
    return tern__error_set(
        err, LOAD, TERN_E_MEMORY,
        "%s: what it holds takes more memory than its %lld bytes and those that are allowed "
        "beyond (tern_load_opts.memory)",
        in->path, (long long)in->size);
}

/* ---- writing ---- */

static int failed(const tern__output *out, const char *what, tern_error *err)
{
    return tern__error_errno(err, SAVE, TERN_E_IO, "cannot %s %s", what, out->temp);
}

static void discard(tern__output *out)
{
    if (out->fd >= 0) {
        close(out->fd);
        unlink(out->temp);
    }
    tern__free(out->temp);
    tern__free(out->buffer);
}

int tern__output_open(tern__output *out, const char *path, tern_error *err)
{
    struct stat old;
    *out = (tern__output){.path = path, .fd = -1};
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode))
        return tern__error_set(err, SAVE, TERN_E_IO, "%s is there and no regular file", path);
    size_t room = strlen(path) + 32;
    out->temp = tern__alloc(room, SAVE, err);
    out->buffer = out->temp ? tern__alloc_raw(BUFFER, TERN__LINE) : NULL;
    if (!out->buffer) {
        tern__free(out->temp);
        return tern__error_set(err, SAVE, TERN_E_MEMORY, "out of memory: %zu bytes", BUFFER);
    }
    snprintf(out->temp, room, "%s.%d.tmp", path, (int)getpid());
    out->fd = open(out->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (out->fd >= 0) return TERN_OK;
    int status = failed(out, "create", err);
    discard(out);
    return status;
}

static int write_all(tern__output *out, const char *data, size_t bytes, tern_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(out->fd, data + done, TERN__MIN(bytes - done, AT_ONCE));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(out, "write", err);
        done += (size_t)n;
    }
    return TERN_OK;
}

int tern__output_flush(tern__output *out, tern_error *err)
{
    size_t bytes = out->buffered;
    out->buffered = 0;
    return write_all(out, out->buffer, bytes, err);
}

int tern__output_write(tern__output *out, const void *data, size_t bytes, tern_error *err)
{
    out->offset += (int64_t)bytes;
    if (out->buffered + bytes > BUFFER && tern__output_flush(out, err)) return TERN_E_IO;
    if (bytes > BUFFER) return write_all(out, data, bytes, err);
    if (bytes) memcpy(out->buffer + out->buffered, data, bytes);
    out->buffered += bytes;
    return TERN_OK;
}

/* The rename is on the disk when the directory is. */
static int sync_folder(const tern__output *out, tern_error *err)
{
    int folder = open(dirname(out->temp), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int status = folder < 0 || fsync(folder) ? failed(out, "sync", err) : TERN_OK;
    if (folder >= 0) close(folder);
    return status;
}

int tern__output_close(tern__output *out, int status, bool sync, tern_error *err)
{
    if (!status) status = tern__output_flush(out, err);
    if (!status && sync && fsync(out->fd)) status = failed(out, "sync", err);
    if (!status && rename(out->temp, out->path)) status = failed(out, "rename", err);
    if (status) {
        discard(out);
        return status;
    }
    if (close(out->fd)) status = failed(out, "close", err);
    out->fd = -1;
    if (!status && sync) status = sync_folder(out, err);
    discard(out);
    return status;
}
