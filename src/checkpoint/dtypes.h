/* dtypes.h - the dtypes of checkpoint files with their names in each format, also those that tern does not
 * compute with, and the records that stand for their tensors. */
#ifndef TERN_SRC_CHECKPOINT_DTYPES_H
#define TERN_SRC_CHECKPOINT_DTYPES_H

#include "tensor/object.h"

typedef struct tern__file_dtype {
    const char *name;        /* as tern names dtypes: "i8"; NULL: a storage of bytes of any dtype */
    tern_dtype dtype;        /* TERN_DTYPE_NONE: tern does not have it */
    int bits;                /* of an element */
    const char *safetensors; /* "I8"; NULL: the format does not have it */
    const char *torch;       /* "int8"; NULL: PyTorch does not have it */
    const char *storage;     /* "CharStorage"; NULL: PyTorch saves it in a storage of bytes */
} tern__file_dtype;

/* All of them, in the order in which safetensors writes their tensors. */
enum { TERN__FILE_DTYPES = 33 };
extern const tern__file_dtype tern__file_dtypes[TERN__FILE_DTYPES];

/* Return the dtype with that name in one of the formats; NULL if there is none. */
const tern__file_dtype *tern__file_dtype_of(tern_dtype dtype);
const tern__file_dtype *tern__file_dtype_of_name(const char *name);
const tern__file_dtype *tern__file_dtype_of_torch(const char *name);
const tern__file_dtype *tern__file_dtype_of_storage(const char *name);

/* The record that stands for a tensor that tern does not have, because of its dtype or its number of
 * dimensions. Its class is "torch.Tensor", its arguments are the dtype's name ("u16") and the shape, and its
 * state is a u8 tensor of its bytes in row-major order. So it can be written again in any format that has the
 * dtype. */
#define TERN__TENSOR_RECORD "torch.Tensor"

typedef struct tern__tensor_record {
    const tern__file_dtype *dtype;
    const tern_object *shape; /* a tuple of ints        */
    int64_t count;            /* of elements            */
    const tern_tensor *bytes; /* any shape and strides  */
} tern__tensor_record;

/* Returns false if the object is not such a record, or if its parts do not fit each other. */
bool tern__tensor_record_read(tern__tensor_record *out, const tern_object *object);

/* An upper bound of the bytes that tern__tensor_record_new allocates. */
#define TERN__TENSOR_RECORD_BYTES (4 * TERN__OBJECT_BYTES)
/* Makes such a record; it adds references to both objects. E_MEMORY. */
tern_object *tern__tensor_record_new(const tern__file_dtype *dtype, tern_object *shape, tern_object *bytes,
                                     tern_error *err);

#endif
