/* dtypes.h - the dtypes of checkpoint files with their names in each format, also those that tern does not
 * compute with. */
#ifndef TERN_SRC_CHECKPOINT_DTYPES_H
#define TERN_SRC_CHECKPOINT_DTYPES_H

#include <tern/base.h>

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

#endif
