/* gzip_file.h - reads and writes files that may be gzipped. Reading checks lengths and the checksum at the
 * end; writing keeps the old file until the new one is complete. */
#ifndef TERN_SRC_DATA_GZIP_FILE_H
#define TERN_SRC_DATA_GZIP_FILE_H

#include "base/file.h"

typedef struct tern__gzip_file {
    const char *path, *func; /* borrowed */
    void *gz;                /* zlib's gzFile                                                       */
    int64_t most;            /* upper bound of the unpacked bytes: a header that claims more is damaged */
    tern__output out;        /* for writing                                                           */
} tern__gzip_file;

/* Opens a regular file, gzipped or not, for reading. */
int tern__gzip_open(tern__gzip_file *file, const char *path, const char *func, tern_error *err);
/* Reads up to `bytes` and returns how many: fewer only at the end of the file. Negative, with *err set: E_IO
 * or E_FORMAT. */
int64_t tern__gzip_some(const tern__gzip_file *file, void *out, size_t bytes, tern_error *err);
/* Reads exactly `bytes`, or skips them if `out` is NULL. E_IO: the file is truncated; E_FORMAT: it cannot be
 * unpacked. */
int tern__gzip_read(const tern__gzip_file *file, void *out, size_t bytes, tern_error *err);
/* Reads to the end, where zlib compares the checksum; sets *extra to the number of bytes that were left. */
int tern__gzip_end(const tern__gzip_file *file, int64_t *extra, tern_error *err);
void tern__gzip_close(tern__gzip_file *file);

/* Creates a file, gzipped if `path` ends in .gz. */
int tern__gzip_create(tern__gzip_file *file, const char *path, const char *func, tern_error *err);
int tern__gzip_write(const tern__gzip_file *file, const void *data, size_t bytes, tern_error *err);
/* Moves the file to its name if `status` is TERN_OK and closing succeeds; removes it otherwise. Returns the
 * first error. */
int tern__gzip_finish(tern__gzip_file *file, int status, tern_error *err);

#endif
