/* input.h - the file of a load, from a stranger, and the memory that what it holds may take. */
#ifndef TERN_SRC_CHECKPOINT_INPUT_H
#define TERN_SRC_CHECKPOINT_INPUT_H

#include "base/base.h"

typedef struct tern__input {
    const char *path;
    int fd;
    int64_t size; /* when it was opened */
    int64_t room; /* bytes that may still be allocated for what it holds */
} tern__input;

/* A regular file only. E_IO. */
int tern__input_open(tern__input *in, const char *path, size_t memory, tern_error *err);
void tern__input_close(tern__input *in);
/* All bytes or an error: E_IO if the file has become shorter. */
int tern__input_read(const tern__input *in, int64_t offset, void *out, size_t bytes, tern_error *err);
/* Before an allocation of `bytes`: E_MEMORY if all of them were more than the file's size and what was
 * allowed beyond. */
int tern__input_charge(tern__input *in, int64_t bytes, tern_error *err);

#endif
