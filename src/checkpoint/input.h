/* input.h - an untrusted file that is being loaded, and a budget for the memory of its contents. */
#ifndef TERN_SRC_CHECKPOINT_INPUT_H
#define TERN_SRC_CHECKPOINT_INPUT_H

#include "base/base.h"

typedef struct tern__input {
    const char *path;
    int fd;
    int64_t size; /* when the file was opened */
    int64_t room; /* bytes that may still be allocated for the contents */
} tern__input;

/* Opens a regular file; the budget is its size plus `memory`. E_IO. */
int tern__input_open(tern__input *in, const char *path, size_t memory, tern_error *err);
void tern__input_close(tern__input *in);
/* Reads all bytes, or fails: E_IO if the file has become shorter. */
int tern__input_read(const tern__input *in, int64_t offset, void *out, size_t bytes, tern_error *err);
/* Takes `bytes` from the budget, before an allocation. E_MEMORY: the budget is used up. */
int tern__input_charge(tern__input *in, int64_t bytes, tern_error *err);

#endif
