/* packed.h - files that may be gzipped: read by length, up to the checksum at their end, and written so that
 * the old one stays until the new one is whole. */
#ifndef TERN_SRC_DATA_PACKED_H
#define TERN_SRC_DATA_PACKED_H

#include "base/file.h"

typedef struct tern__packed {
    const char *path, *func; /* borrowed */
    void *gz;                /* zlib's gzFile                                                       */
    int64_t most;            /* bytes that the file can hold, unpacked: a header that says more lies */
    tern__output out;        /* of a file that is written                                           */
} tern__packed;

/* A regular file, gzipped or not. */
int tern__packed_open(tern__packed *file, const char *path, const char *func, tern_error *err);
/* How many of `bytes` there were, fewer only at the end; negative with *err filled: E_IO, E_FORMAT. */
int64_t tern__packed_some(const tern__packed *file, void *out, size_t bytes, tern_error *err);
/* All `bytes`, or E_IO saying that the file is truncated, or E_FORMAT that it cannot be unpacked. `out` NULL:
 * skips them. */
int tern__packed_read(const tern__packed *file, void *out, size_t bytes, tern_error *err);
/* Reads on to the end, where zlib compares the checksum; *extra = the bytes that were left. */
int tern__packed_end(const tern__packed *file, int64_t *extra, tern_error *err);
void tern__packed_close(tern__packed *file);

/* Gzipped if `path` ends in .gz. */
int tern__packed_create(tern__packed *file, const char *path, const char *func, tern_error *err);
int tern__packed_write(const tern__packed *file, const void *data, size_t bytes, tern_error *err);
/* The file takes its name if `status`, which is returned then, and all else went well; else it is removed. */
int tern__packed_finish(tern__packed *file, int status, tern_error *err);

#endif
