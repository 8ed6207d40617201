/* tensor_record.c - makes and reads the records of tensors that tern does not have. */
#include "checkpoint/tensor_record.h"

#include <string.h>

/* Multiplies *count by all sizes; false if one is not valid, or the product too large. */
static bool count_elements(const tern_object *shape, int64_t *count)
{
    bool fits = true;
    int64_t size = 0;
    for (int64_t d = 0; fits && d < tern_object_count(shape); d++)
        fits = !tern_object_to_int(tern_object_at(shape, d), &size, NULL) && size >= 0 &&
               !__builtin_mul_overflow(*count, size, count);
    return fits;
}

bool tern__tensor_record_read(tern__tensor_record *out, const tern_object *object)
{
    const char *class = tern_object_record_name(object);
    const tern_object *args = tern_object_record_args(object);
    int64_t bits = 0;
    if (!class || strcmp(class, TERN__TENSOR_RECORD) != 0) return false;
    *out = (tern__tensor_record){
        .dtype = tern__file_dtype_of_name(tern_object_to_string(tern_object_at(args, 0))),
        .shape = tern_object_at(args, 1),
        .count = 1,
        .bytes = tern_object_to_tensor(tern_object_record_state(object)),
    };
    return out->dtype && tern_object_kind_get(out->shape) == TERN_OBJECT_TUPLE && out->bytes &&
           out->bytes->view.dtype == TERN_U8 && count_elements(out->shape, &out->count) &&
           !__builtin_mul_overflow(out->count, (int64_t)out->dtype->bits, &bits) && bits % 8 == 0 &&
           bits / 8 == tern__view_count(&out->bytes->view);
}

tern_object *tern__tensor_record_new(const tern__file_dtype *dtype, tern_object *shape, tern_object *bytes,
                                     tern_error *err)
{
    tern_object *record = tern__object_record(TERN__TENSOR_RECORD, strlen(TERN__TENSOR_RECORD), err);
    tern_object *name = tern_object_string(dtype->name, err), *args = tern_object_tuple(err);
    int status = record && name && args ? TERN_OK : TERN_E_MEMORY;
    if (!status) status = tern__object_append(args, name, err);
    if (!status) status = tern__object_append(args, shape, err);
    if (!status) tern__object_record_set(record, args, bytes);
    if (name) tern__object_drop(name);
    if (args) tern__object_drop(args);
    if (!status) return record;
    if (record) tern__object_drop(record);
    return NULL;
}
