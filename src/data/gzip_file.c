/* gzip_file.c - reads and writes files that may be gzipped, with zlib. File systems in user space return
 * EINTR after a signal, and zlib cannot continue after it. So zlib is called with signals blocked, for a
 * short time each. */
#include "data/gzip_file.h"
#include "base/thread.h"
#include "data/files.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

/* Deflate expands a byte to at most this many. */
#define RATIO_MOST 1032
#define AT_ONCE    ((size_t)1 << 20)

/* ---- zlib with signals blocked ---- */

static bool is_direct(gzFile gz)
{
    sigset_t before;
    tern__signals_block(&before);
    bool direct = gzdirect(gz);
    tern__signals_restore(&before);
    return direct;
}

static int gzip_file_read_some(gzFile gz, void *out, size_t bytes)
{
    sigset_t before;
    tern__signals_block(&before);
    int got = gzread(gz, out, (unsigned)TERN__MIN(bytes, AT_ONCE));
    tern__signals_restore(&before);
    return got;
}

static int gzip_file_write_some(gzFile gz, const void *data, size_t bytes)
{
    sigset_t before;
    tern__signals_block(&before);
    int written = gzwrite(gz, data, (unsigned)TERN__MIN(bytes, AT_ONCE));
    tern__signals_restore(&before);
    return written;
}

static int gzip_file_end(gzFile gz)
{
    sigset_t before;
    tern__signals_block(&before);
    int status = gzclose(gz);
    tern__signals_restore(&before);
    return status;
}

/* ---- reading ---- */

int tern__gzip_open(tern__gzip_file *file, const char *path, const char *func, tern_error *err)
{
    struct stat about;
    *file = (tern__gzip_file){.path = path, .func = func};
    int fd = tern__file_open(path, O_RDONLY, 0, &about, func, err);
    if (fd < 0) return TERN_E_IO;
    file->gz = gzdopen(fd, "rb");
    if (!file->gz) {
        close(fd);
        return tern__error_set(err, func, TERN_E_MEMORY, "no memory to read %s", path);
    }
    gzbuffer(file->gz, 1 << 17);
    bool is_plain = is_direct(file->gz);
    file->most = is_plain ? about.st_size : RATIO_MOST * TERN__MIN(about.st_size, INT64_MAX / RATIO_MOST);
    return TERN_OK;
}

static int gzip_file_cannot_read(const tern__gzip_file *file, tern_error *err)
{
    int code;
    const char *why = gzerror(file->gz, &code);
    if (code == Z_ERRNO) return tern__error_errno(err, file->func, TERN_E_IO, "cannot read %s", file->path);
    const char *after = strncmp(why, "<fd:", 4) ? NULL : strstr(why, ">: "); /* zlib's name for the file */
    if (after) why = after + 3;
    return tern__error_set(err, file->func, TERN_E_FORMAT, "cannot unpack %s: %s", file->path, why);
}

int64_t tern__gzip_some(const tern__gzip_file *file, void *out, size_t bytes, tern_error *err)
{
    size_t got = 0;
    for (int n = 1; n > 0 && got < bytes; got += (size_t)n) {
        n = gzip_file_read_some(file->gz, (char *)out + got, bytes - got);
        if (n < 0) return gzip_file_cannot_read(file, err);
    }
    return (int64_t)got;
}

int tern__gzip_read(const tern__gzip_file *file, void *out, size_t bytes, tern_error *err)
{
    char skipped[4096];
    for (size_t got = 0; got < bytes;) {
        size_t want = out ? bytes - got : TERN__MIN(bytes - got, sizeof(skipped));
        int64_t n = tern__gzip_some(file, out ? (char *)out + got : skipped, want, err);
        if (n < 0) return (int)n;
        if (n == 0)
            return tern__error_set(err, file->func, TERN_E_IO,
                                   "%s is truncated: expected %zu more bytes, got %zu", file->path, bytes,
                                   got);
        got += (size_t)n;
    }
    return TERN_OK;
}

int tern__gzip_end(const tern__gzip_file *file, int64_t *extra, tern_error *err)
{
    char rest[4096];
    int64_t n;
    *extra = 0;
    while ((n = tern__gzip_some(file, rest, sizeof(rest), err)) > 0) *extra += n;
    if (n < 0) return (int)n;
    int code;
    gzerror(file->gz, &code);
    if (code == Z_OK || code == Z_STREAM_END) return TERN_OK;
    return tern__error_set(err, file->func, TERN_E_IO, "%s is truncated: its checksum is missing",
                           file->path);
}

void tern__gzip_close(tern__gzip_file *file)
{
    if (file->gz) gzclose(file->gz);
    file->gz = NULL;
}

/* ---- writing ---- */

/* gzclose closes the descriptor, so zlib gets a duplicate. */
static int open_gz(tern__gzip_file *file, tern_error *err)
{
    int fd = fcntl(file->out.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return tern__error_errno(err, file->func, TERN_E_IO, "cannot create %s", file->path);
    file->gz = gzdopen(fd, tern__ends_with(file->path, ".gz") ? "wb4" : "wbT");
    if (file->gz) return TERN_OK;
    close(fd);
    return tern__error_set(err, file->func, TERN_E_MEMORY, "no memory to write %s", file->path);
}

int tern__gzip_create(tern__gzip_file *file, const char *path, const char *func, tern_error *err)
{
    *file = (tern__gzip_file){.path = path, .func = func};
    int status = tern__output_open(&file->out, path, func, err);
    if (status) return status;
    status = open_gz(file, err);
    return status ? tern__output_close(&file->out, status, false, err) : TERN_OK;
}

static int cannot_write(const tern__gzip_file *file, tern_error *err)
{
    return tern__error_errno(err, file->func, TERN_E_IO, "cannot write %s", file->path);
}

int tern__gzip_write(const tern__gzip_file *file, const void *data, size_t bytes, tern_error *err)
{
    for (size_t done = 0; done < bytes;) {
        int some = gzip_file_write_some(file->gz, (const char *)data + done, bytes - done);
        if (some <= 0) return cannot_write(file, err);
        done += (size_t)some;
    }
    return TERN_OK;
}

int tern__gzip_finish(tern__gzip_file *file, int status, tern_error *err)
{
    if (gzip_file_end(file->gz) != Z_OK && !status) status = cannot_write(file, err);
    return tern__output_close(&file->out, status, false, err);
}
