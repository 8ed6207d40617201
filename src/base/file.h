/* file.h - opens regular files only, reads them by length, and writes them so that the old file stays until
 * the new one is complete. Joins paths and makes folders. */
#ifndef TERN_SRC_BASE_FILE_H
#define TERN_SRC_BASE_FILE_H

#include "base/base.h"

#include <sys/stat.h>

/* ---- paths and folders ---- */

/* Returns "folder/name", which the caller frees (tern__free). E_MEMORY. */
char *tern__path_join(const char *folder, const char *name, const char *func, tern_error *err);
/* Makes the folder and its parents where they are missing. E_IO, E_MEMORY. */
int tern__folder_make(const char *path, mode_t mode, const char *func, tern_error *err);
/* Waits until the names in the folder are on the disk. E_IO. */
int tern__folder_sync(const char *path, const char *func, tern_error *err);

/* Removes the temporary files (tern__output) that killed processes have left in the folder: each NAME.PID.tmp
 * whose NAME, of `bytes` bytes, `is_ours` accepts, and whose process does not exist any more. E_IO. */
typedef bool tern__name_fn(const char *name, size_t bytes, const void *ctx);
int tern__folder_tidy(const char *path, tern__name_fn *is_ours, const void *ctx, const char *func,
                      tern_error *err);

/* ---- opening and reading: with pread, never mapped, since a mapped file that shrinks raises SIGBUS ---- */

/* open(2) for regular files, existing or created by `flags`. Refuses anything else: opening a pipe would
 * block, and a device might do anything. Fills in *about, unless NULL, with the file's fstat. Returns the
 * descriptor, or -1 with E_IO. */
int tern__file_open(const char *path, int flags, mode_t mode, struct stat *about, const char *func,
                    tern_error *err);
/* Reads all bytes at `offset`. E_IO, also if the file has become shorter. */
int tern__file_read(int fd, const char *path, int64_t offset, void *out, size_t bytes, const char *func,
                    tern_error *err);

/* Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed. Otherwise one of tern's sockets
 * could get that number, and the program would write its messages into the socket. E_SYSTEM. */
int tern__standard_hold(const char *func, tern_error *err);

/* ---- writing ---- */

typedef struct tern__output {
    const char *path, *func; /* borrowed               */
    char *temp;              /* PATH.PID.tmp           */
    int fd;                  /* of temp                */
    int64_t offset;          /* bytes written          */
    char *buffer;            /* collects small writes  */
    size_t buffered;
} tern__output;

/* Starts writing `path`. E_IO, also if `path` exists and is not a regular file. A lock (flock) on the
 * temporary file tells other hosts that the process lives. */
int tern__output_open(tern__output *out, const char *path, const char *func, tern_error *err);
int tern__output_write(tern__output *out, const void *data, size_t bytes, tern_error *err);
/* Writes the buffer, so that the caller may write to `fd` itself. */
int tern__output_flush(tern__output *out, tern_error *err);
/* Moves the file to its name if `status` is TERN_OK and closing succeeds; removes it otherwise. Returns the
 * first error. With `sync` the data is on the disk before the file gets its name. */
int tern__output_close(tern__output *out, int status, bool sync, tern_error *err);
/* Removes the temporary files of processes that were killed while they wrote `path`, as far as it can.
 * E_MEMORY. */
int tern__output_tidy(const char *path, const char *func, tern_error *err);

#endif
