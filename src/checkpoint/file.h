/* file.h - the files below all formats: read from a stranger's, written so that the old one stays until the
 * new one is whole. */
#ifndef TERN_SRC_CHECKPOINT_FILE_H
#define TERN_SRC_CHECKPOINT_FILE_H

#include "base/base.h"

/* ---- reading: by pread, never mapped, since a mapped file that shrinks is a SIGBUS ---- */

typedef struct tern__input {
    const char *path;
    int fd;
    int64_t size; /* when it was opened */
    int64_t room; /* bytes that may still be allocated for what it holds */
} tern__input;

/* A regular file only; a FIFO does not block. E_IO, E_UNSUPPORTED. */
int tern__input_open(tern__input *in, const char *path, size_t memory, tern_error *err);
void tern__input_close(tern__input *in);
/* All bytes or an error: E_IO if the file has become shorter. */
int tern__input_read(const tern__input *in, int64_t offset, void *out, size_t bytes, tern_error *err);
/* Before an allocation of `bytes`: E_MEMORY if all of them were more than the file's size and what was
 * allowed beyond. */
int tern__input_charge(tern__input *in, int64_t bytes, tern_error *err);

/* ---- writing ---- */

typedef struct tern__output {
    const char *path;
    char *temp; /* PATH.PID.tmp */
    int fd;
    int64_t offset; /* bytes written */
    char *buffer;   /* small pieces meet here */
    size_t buffered;
} tern__output;

int tern__output_open(tern__output *out, const char *path, tern_error *err);
int tern__output_write(tern__output *out, const void *data, size_t bytes, tern_error *err);
/* Empties the buffer, for whoever writes to `fd` himself. */
int tern__output_flush(tern__output *out, tern_error *err);
/* The file takes its name if `status`, which is returned then, and all else went well; else it is removed.
 * `sync`: it is on the disk before it does. */
int tern__output_close(tern__output *out, int status, bool sync, tern_error *err);

#endif
