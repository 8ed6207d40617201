/* file.h - files: opened only if they are some, read by length, and written so that the old one stays until
 * the new one is whole. */
#ifndef TERN_SRC_BASE_FILE_H
#define TERN_SRC_BASE_FILE_H

#include "base/base.h"

#include <sys/stat.h>

/* ---- opening and reading: by pread, never mapped, since a mapped file that shrinks is a SIGBUS ---- */

/* open(2) of a regular file, or of none where `flags` create one: a pipe would be waited for, and what a
 * device does nobody knows. *about, unless it is NULL, is its fstat. The descriptor, or -1 and E_IO. */
int tern__file_open(const char *path, int flags, mode_t mode, struct stat *about, const char *func,
                    tern_error *err);
/* All bytes at `offset`; E_IO also if the file has become shorter. */
int tern__file_read(int fd, const char *path, int64_t offset, void *out, size_t bytes, const char *func,
                    tern_error *err);

/* Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed, which else would become a socket of
 * ours, into which the program writes its messages. E_SYSTEM. */
int tern__standard_hold(const char *func, tern_error *err);

/* ---- writing ---- */

typedef struct tern__output {
    const char *path, *func; /* borrowed               */
    char *temp;              /* PATH.PID.tmp           */
    int fd;                  /* of it                  */
    int64_t offset;          /* bytes written          */
    char *buffer;            /* small pieces meet here */
    size_t buffered;
} tern__output;

/* E_IO if at `path` there is anything but a regular file. */
int tern__output_open(tern__output *out, const char *path, const char *func, tern_error *err);
int tern__output_write(tern__output *out, const void *data, size_t bytes, tern_error *err);
/* Empties the buffer, for whoever writes to `fd` himself. */
int tern__output_flush(tern__output *out, tern_error *err);
/* The file takes its name if `status`, which is returned then, and all else went well; else it is removed.
 * `sync`: it is on the disk before it does. */
int tern__output_close(tern__output *out, int status, bool sync, tern_error *err);

#endif
