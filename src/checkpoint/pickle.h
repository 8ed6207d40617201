/* pickle.h - Python's pickle, as far as torch.save uses it. */
#ifndef TERN_SRC_CHECKPOINT_PICKLE_H
#define TERN_SRC_CHECKPOINT_PICKLE_H

#include "checkpoint/dtypes.h"
#include "checkpoint/input.h"
#include "tensor/object.h"

/* ---- writing ---- */

/* A buffer that grows. */
typedef struct tern__pickle {
    char *data;
    size_t bytes, room;
} tern__pickle;

/* Where a tensor's elements are in the file: in storage `number`, an entry of `elements` elements, from
 * element `offset` on. A storage of bytes (tern__file_dtype) has a byte for an element, but `offset` counts
 * the tensor's. */
typedef struct tern__pickle_place {
    int64_t number, elements, offset;
} tern__pickle_place;

/* Writes `object` in protocol 2. It must contain no record but those of tensors (dtypes.h), and not be
 * nested too deep. `places` has an item for each tensor in it, in the order of the walk; a record's bytes are
 * contiguous there. E_MEMORY, E_UNSUPPORTED (a text of 4 GiB). */
int tern__pickle_write(tern__pickle *out, const tern_object *object, const tern__pickle_place *places,
                       tern_error *err);

/* ---- reading ---- */

/* The pickle to read, and the callback that supplies its tensors' storages. */
typedef struct tern__pickle_source {
    tern__input *in;
    const char *what;    /* "data.pkl", for errors  */
    int64_t offset, end; /* in the file: the pickle's start, and the limit of its end */
    bool records;
    /* Returns the storage of that name, of `bytes` bytes, with a reference for the caller. */
    tern__storage *(*storage)(void *ctx, const char *key, const tern__file_dtype *dtype, int64_t bytes,
                              tern_error *err);
    void *ctx;
} tern__pickle_source;

/* Reads one pickle and moves source->offset to its end. E_FORMAT, E_UNSUPPORTED, E_MEMORY, E_IO. */
tern_object *tern__pickle_read(tern__pickle_source *source, tern_error *err);

#endif
