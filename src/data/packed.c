#include "data/packed.h"
#include "data/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* Deflate cannot make more than this many bytes of one. */
#define RATIO_MOST 1032
#define AT_ONCE    ((size_t)1 << 30)

/* ---- reading ---- */

int tern__packed_open(tern__packed *file, const char *path, const char *func, tern_error *err)
{
    struct stat info;
    *file = (tern__packed){.path = path, .func = func};
    if (stat(path, &info)) return tern__error_errno(err, func, TERN_E_IO, "cannot open %s", path);
    if (!S_ISREG(info.st_mode))
        return tern__error_set(err, func, TERN_E_IO, "%s is %s", path,
                               S_ISDIR(info.st_mode) ? "a directory, no regular file" : "no regular file");
    errno = ENOMEM; /* what gzopen means when it sets nothing */
    file->gz = gzopen(path, "rbe");
    if (!file->gz) return tern__error_errno(err, func, TERN_E_IO, "cannot open %s", path);
    gzbuffer(file->gz, 1 << 17);
    bool is_plain = gzdirect(file->gz);
    file->most = is_plain ? info.st_size : RATIO_MOST * TERN__MIN(info.st_size, INT64_MAX / RATIO_MOST);
    return TERN_OK;
}

static int cannot_read(const tern__packed *file, tern_error *err)
{
    int code;
    const char *why = gzerror(file->gz, &code);
    if (code == Z_ERRNO) return tern__error_errno(err, file->func, TERN_E_IO, "cannot read %s", file->path);
    return tern__error_set(err, file->func, TERN_E_FORMAT, "cannot unpack %s: %s", file->path, why);
}

int64_t tern__packed_some(const tern__packed *file, void *out, size_t bytes, tern_error *err)
{
    size_t got = 0;
    for (int n = 1; n > 0 && got < bytes; got += (size_t)n) {
        n = gzread(file->gz, (char *)out + got, (unsigned)TERN__MIN(bytes - got, AT_ONCE));
        if (n < 0) return cannot_read(file, err);
    }
    return (int64_t)got;
}

int tern__packed_read(const tern__packed *file, void *out, size_t bytes, tern_error *err)
{
    char skipped[4096];
    for (size_t got = 0; got < bytes;) {
        size_t want = out ? bytes - got : TERN__MIN(bytes - got, sizeof(skipped));
        int64_t n = tern__packed_some(file, out ? (char *)out + got : skipped, want, err);
        if (n < 0) return (int)n;
        if (n == 0)
            return tern__error_set(err, file->func, TERN_E_IO,
                                   "%s is truncated: expected %zu more bytes, got %zu", file->path, bytes,
                                   got);
        got += (size_t)n;
    }
    return TERN_OK;
}

int tern__packed_end(const tern__packed *file, int64_t *extra, tern_error *err)
{
    char rest[4096];
    int64_t n;
    *extra = 0;
    while ((n = tern__packed_some(file, rest, sizeof(rest), err)) > 0) *extra += n;
    if (n < 0) return (int)n;
    int code;
    gzerror(file->gz, &code);
    if (code == Z_OK || code == Z_STREAM_END) return TERN_OK;
    return tern__error_set(err, file->func, TERN_E_IO, "%s is truncated: its checksum is missing",
                           file->path);
}

void tern__packed_close(tern__packed *file)
{
    if (file->gz) gzclose(file->gz);
    file->gz = NULL;
}

/* ---- writing ---- */

int tern__packed_create(tern__packed *file, const char *path, const char *func, tern_error *err)
{
    size_t room = strlen(path) + 32;
    bool is_gzipped = tern__ends_with(path, ".gz");
    *file = (tern__packed){.path = path, .func = func, .temp = tern__alloc(room, func, err)};
    if (!file->temp) return TERN_E_MEMORY;
    snprintf(file->temp, room, "%s.%d.tmp", path, (int)getpid());
    errno = ENOMEM;
    file->gz = gzopen(file->temp, is_gzipped ? "wbe4" : "wbeT");
    if (file->gz) return TERN_OK;
    int status = tern__error_errno(err, func, TERN_E_IO, "cannot create %s", path);
    tern__free(file->temp);
    return status;
}

static int cannot_write(const tern__packed *file, tern_error *err)
{
    return tern__error_errno(err, file->func, TERN_E_IO, "cannot write %s", file->path);
}

int tern__packed_write(const tern__packed *file, const void *data, size_t bytes, tern_error *err)
{
    for (size_t done = 0; done < bytes;) {
        unsigned some = (unsigned)TERN__MIN(bytes - done, AT_ONCE);
        if (gzwrite(file->gz, (const char *)data + done, some) != (int)some) return cannot_write(file, err);
        done += some;
    }
    return TERN_OK;
}

int tern__packed_finish(tern__packed *file, int status, tern_error *err)
{
    if (gzclose(file->gz) != Z_OK && !status) status = cannot_write(file, err);
    if (!status && rename(file->temp, file->path)) status = cannot_write(file, err);
    if (status) unlink(file->temp);
    tern__free(file->temp);
    return status;
}
