/* tensor_record.h - the record that stands for a tensor that tern does not have, because of its dtype or its
 * number of dimensions. Its class is "torch.Tensor", its arguments are the dtype's name ("i8") and the shape,
 * and its state is a u8 tensor of its bytes in row-major order. So it can be written again in any format that
 * has the dtype. */
#ifndef TERN_SRC_CHECKPOINT_TENSOR_RECORD_H
#define TERN_SRC_CHECKPOINT_TENSOR_RECORD_H

#include "checkpoint/dtypes.h"
#include "tensor/object.h"

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
