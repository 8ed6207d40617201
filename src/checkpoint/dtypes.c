/* dtypes.c - the table of the dtypes of checkpoint files, and the records that stand for their tensors. */
#include "checkpoint/dtypes.h"

#include <stddef.h>
#include <string.h>

const tern__file_dtype tern__file_dtypes[TERN__FILE_DTYPES] = {
    {"u64", TERN_DTYPE_NONE, 64, "U64", "uint64", NULL},
    {"i64", TERN_I64, 64, "I64", "int64", "LongStorage"},
    {"f64", TERN_F64, 64, "F64", "float64", "DoubleStorage"},
    {"c64", TERN_DTYPE_NONE, 64, "C64", "complex64", "ComplexFloatStorage"},
    {"f32", TERN_F32, 32, "F32", "float32", "FloatStorage"},
    {"u32", TERN_DTYPE_NONE, 32, "U32", "uint32", NULL},
    {"i32", TERN_I32, 32, "I32", "int32", "IntStorage"},
    {"bf16", TERN_BF16, 16, "BF16", "bfloat16", "BFloat16Storage"},
    {"f16", TERN_F16, 16, "F16", "float16", "HalfStorage"},
    {"u16", TERN_DTYPE_NONE, 16, "U16", "uint16", NULL},
    {"i16", TERN_I16, 16, "I16", "int16", "ShortStorage"},
    {"f8_e5m2fnuz", TERN_DTYPE_NONE, 8, "F8_E5M2FNUZ", "float8_e5m2fnuz", NULL},
    {"f8_e4m3fnuz", TERN_DTYPE_NONE, 8, "F8_E4M3FNUZ", "float8_e4m3fnuz", NULL},
    {"f8_e8m0", TERN_DTYPE_NONE, 8, "F8_E8M0", "float8_e8m0fnu", NULL},
    {"f8_e4m3", TERN_DTYPE_NONE, 8, "F8_E4M3", "float8_e4m3fn", NULL},
    {"f8_e5m2", TERN_DTYPE_NONE, 8, "F8_E5M2", "float8_e5m2", NULL},
    {"i8", TERN_I8, 8, "I8", "int8", "CharStorage"},
    {"u8", TERN_U8, 8, "U8", "uint8", "ByteStorage"},
    {"f6_e3m2", TERN_DTYPE_NONE, 6, "F6_E3M2", NULL, NULL},
    {"f6_e2m3", TERN_DTYPE_NONE, 6, "F6_E2M3", NULL, NULL},
    {"f4", TERN_DTYPE_NONE, 4, "F4", NULL, NULL},
    {"bool", TERN_BOOL, 8, "BOOL", "bool", "BoolStorage"},
    {"c128", TERN_DTYPE_NONE, 128, NULL, "complex128", "ComplexDoubleStorage"},
    {"c32", TERN_DTYPE_NONE, 32, NULL, "complex32", "ComplexHalfStorage"},
    {"f4_x2", TERN_DTYPE_NONE, 8, NULL, "float4_e2m1fn_x2", NULL}, /* two values in an element */
    {"qint32", TERN_DTYPE_NONE, 32, NULL, "qint32", "QInt32Storage"},
    {"qint8", TERN_DTYPE_NONE, 8, NULL, "qint8", "QInt8Storage"},
    {"quint8", TERN_DTYPE_NONE, 8, NULL, "quint8", "QUInt8Storage"},
    {"quint4x2", TERN_DTYPE_NONE, 8, NULL, "quint4x2", "QUInt4x2Storage"},
    {"quint2x4", TERN_DTYPE_NONE, 8, NULL, "quint2x4", "QUInt2x4Storage"},
    {"bits8", TERN_DTYPE_NONE, 8, NULL, "bits8", NULL},
    {"bits16", TERN_DTYPE_NONE, 16, NULL, "bits16", NULL},
    {NULL, TERN_DTYPE_NONE, 8, NULL, NULL, "UntypedStorage"},
};

const tern__file_dtype *tern__file_dtype_of(tern_dtype dtype)
{
    for (int i = 0; dtype != TERN_DTYPE_NONE && i < TERN__FILE_DTYPES; i++)
        if (tern__file_dtypes[i].dtype == dtype) return &tern__file_dtypes[i];
    return NULL;
}

/* Compares the string at `field` of each row. */
static const tern__file_dtype *find_dtype(size_t field, const char *text)
{
    for (int i = 0; text && i < TERN__FILE_DTYPES; i++) {
        const char *own = *(const char *const *)((const char *)&tern__file_dtypes[i] + field);
        if (own && strcmp(own, text) == 0) return &tern__file_dtypes[i];
    }
    return NULL;
}

const tern__file_dtype *tern__file_dtype_of_name(const char *name)
{
    return find_dtype(offsetof(tern__file_dtype, name), name);
}

const tern__file_dtype *tern__file_dtype_of_torch(const char *name)
{
    return find_dtype(offsetof(tern__file_dtype, torch), name);
}

const tern__file_dtype *tern__file_dtype_of_storage(const char *name)
{
    return find_dtype(offsetof(tern__file_dtype, storage), name);
}

/* ---- records ---- */

/* Multiplies *count by all sizes; false if one is not valid, or the product too large. */
static bool shape_count_elements(const tern_object *shape, int64_t *count)
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
           out->bytes->view.dtype == TERN_U8 && shape_count_elements(out->shape, &out->count) &&
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
