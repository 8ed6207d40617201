/* pickle_calls.c - the functions and classes that a pickle may name; tern makes their results itself. */
#include "base/half.h"
#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/pickle_vm.h"
#include "checkpoint/dtypes.h"

#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_load";

/* ---- arguments ---- */

static tern_object *arg(const tern_object *args, int64_t index)
{
    return tern__object_child(args, index);
}

static bool arg_is(const tern_object *args, int64_t index, int kind)
{
    tern_object *one = arg(args, index);
    return one && one->kind == kind;
}

static tern_object *refuse_args(tern__vm *vm, const char *name)
{
    tern__vm_refuse(vm, TERN_E_FORMAT, "%s is called with arguments that PyTorch does not use", name);
    return NULL;
}

/* ---- storages ---- */

/* Returns the dtype of "torch.FloatStorage", "torch.cuda.FloatStorage" or "torch.storage.UntypedStorage";
 * NULL: not a storage. */
static const tern__file_dtype *storage_dtype(const char *name)
{
    if (strncmp(name, "torch.", 6) != 0) return NULL;
    name += 6;
    if (strncmp(name, "cuda.", 5) == 0) name += 5;
    if (strncmp(name, "storage.", 8) == 0) name += 8;
    return tern__file_dtype_of_storage(name);
}

/* A persistent id is ("storage", class, key, location, elements). The older format has a sixth item: None, or
 * a part of the storage. */
static int check_id(tern__vm *vm, const tern_object *id, const tern__file_dtype **dtype, int64_t *bytes)
{
    int64_t elements = -1, count = tern_object_count(id);
    const char *kind = tern_object_to_string(arg(id, 0)), *key = tern_object_to_string(arg(id, 2));
    bool is_id = kind && strcmp(kind, "storage") == 0 && arg_is(id, 1, TERN__VM_GLOBAL) && key &&
                 count <= 6 && strlen(key) == (size_t)tern_object_count(arg(id, 2));
    if (is_id) is_id = tern_object_to_int(arg(id, 4), &elements, NULL) == TERN_OK && elements >= 0;
    if (!is_id) return tern__vm_refuse(vm, TERN_E_FORMAT, "a persistent id does not name a storage");
    if (count == 6 && arg(id, 5)->kind != TERN_OBJECT_NONE)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED,
                               "a storage is a part of another one (a file of PyTorch before 0.4)");
    const char *class = tern__object_name(arg(id, 1));
    *dtype = storage_dtype(class);
    if (!*dtype)
        return tern__vm_refuse(vm, TERN_E_FORMAT, "a persistent id names %s, expected a storage", class);
    if (__builtin_mul_overflow(elements, (int64_t)(*dtype)->bits / 8, bytes))
        return tern__vm_refuse(vm, TERN_E_FORMAT, "a storage has %lld elements, which is too many",
                               (long long)elements);
    return TERN_OK;
}

static tern_object *new_storage(tern__vm *vm, tern_object *key, tern_object *class,
                                const tern__file_dtype *dtype, int64_t bytes)
{
    if (tern__vm_charge(vm, TERN__VM_STORAGE_BYTES)) return NULL;
    tern__storage *storage =
        vm->source->storage(vm->source->ctx, tern_object_to_string(key), dtype, bytes, vm->err);
    tern__vm_storage *node = storage ? tern__alloc_raw(sizeof(*node), 16) : NULL;
    if (!node) {
        tern__storage_drop(storage);
        tern__error_set(vm->err, FUNC, TERN_E_MEMORY, "out of memory: %zu bytes", sizeof(*node));
        return NULL;
    }
    *node = (tern__vm_storage){{.kind = TERN__VM_STORAGE, .refs = 1}, storage, dtype, bytes, class, NULL};
    tern__vm_take(vm, &node->object);
    return tern__object_set(vm->storages, key, &node->object, vm->err) ? NULL : &node->object;
}

static const char *dtype_name(const tern__file_dtype *dtype)
{
    return dtype->name ? dtype->name : "any dtype";
}

/* In the older format, ("module", class, source ..) stands for the class. */
static bool is_module(const tern_object *id)
{
    const char *kind = tern_object_to_string(arg(id, 0));
    return kind && strcmp(kind, "module") == 0 && arg(id, 1);
}

tern_object *tern__vm_storage_get(tern__vm *vm, const tern_object *id)
{
    const tern__file_dtype *dtype = NULL;
    int64_t bytes = 0;
    char quote[TERN__QUOTE_TEXT];
    if (id->kind != TERN_OBJECT_TUPLE) {
        tern__vm_refuse(vm, TERN_E_FORMAT, "a persistent id is not a tuple");
        return NULL;
    }
    if (is_module(id)) return arg(id, 1);
    if (check_id(vm, id, &dtype, &bytes)) return NULL;
    tern_object *key = arg(id, 2);
    const tern_object *known = tern_object_get(vm->storages, tern_object_to_string(key));
    if (!known) return new_storage(vm, key, arg(id, 1), dtype, bytes);
    const tern__vm_storage *storage = (const tern__vm_storage *)known;
    if (storage->dtype == dtype && storage->bytes == bytes) return (tern_object *)known;
    tern__vm_refuse(vm, TERN_E_FORMAT, "storage %s has %lld bytes of %s here, but had %lld of %s before",
                    tern__quote(tern_object_to_string(key), (size_t)tern_object_count(key), quote),
                    (long long)bytes, dtype_name(dtype), (long long)storage->bytes,
                    dtype_name(storage->dtype));
    return NULL;
}

/* ---- tensors ---- */

typedef struct extent {
    int ndim;
    int64_t offset, shape[TERN_NDIM_MAX], stride[TERN_NDIM_MAX];
} extent;

/* An empty tensor may start anywhere, even after the storage's end, as torch.zeros(3, 0)[1:] does. */
static bool is_empty(const extent *e)
{
    bool is = false;
    for (int d = 0; d < e->ndim; d++) is |= e->shape[d] == 0;
    return is;
}

/* Checks that all elements are inside the storage, and that a contiguous copy is no larger than the storage
 * or the file. */
static int check_extent(tern__vm *vm, const extent *e, tern_dtype dtype, const tern__vm_storage *storage)
{
    int64_t element = (int64_t)tern_dtype_bytes(dtype), last = e->offset, span;
    bool fits = true;
    tern_error why = {0};
    if (tern__shape_check(FUNC, dtype, e->ndim, e->shape, &why))
        return tern__vm_refuse(vm, TERN_E_FORMAT, "a tensor is not valid: %.200s", why.text);
    if (is_empty(e)) return TERN_OK;
    for (int d = 0; fits && d < e->ndim; d++)
        fits = !__builtin_mul_overflow(e->shape[d] - 1, e->stride[d], &span) &&
               !__builtin_add_overflow(last, span, &last);
    if (!fits || last >= storage->bytes / element)
        return tern__vm_refuse(vm, TERN_E_FORMAT, "a tensor exceeds its storage of %lld elements",
                               (long long)(8 * storage->bytes / storage->dtype->bits));
    tern__view view = tern__view_make(dtype, TERN__PLAIN, e->ndim, e->shape);
    if (tern__view_bytes(&view) > (size_t)TERN__MAX(storage->bytes, vm->source->in->size))
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "an expanded tensor is larger than the file");
    return TERN_OK;
}

static tern_object *make_tensor(tern__vm *vm, const tern__vm_storage *storage, tern_dtype dtype,
                                const extent *e)
{
    if (check_extent(vm, e, dtype, storage) || tern__vm_charge(vm, TERN__VM_TENSOR)) return NULL;
    size_t offset = is_empty(e) ? 0 : (size_t)e->offset;
    char *data = (char *)storage->storage->data + offset * tern_dtype_bytes(dtype);
    tern_tensor *tensor =
        tern__tensor_over(storage->storage, data, dtype, e->ndim, e->shape, e->stride, FUNC, vm->err);
    tern_object *object = tensor ? tern__object_tensor_take(tensor, vm->err) : NULL;
    if (!object) tern_tensor_free(tensor);
    return tern__vm_take(vm, object);
}

/* Appends a dimension, merged with the one before it if both are one stretch. False: too many are left. */
static bool add_dimension(extent *e, int64_t size, int64_t stride)
{
    int last = e->ndim - 1;
    int64_t span, both = 0;
    bool merges = last >= 0 && !__builtin_mul_overflow(size, stride, &span) && e->stride[last] == span &&
                  !__builtin_mul_overflow(e->shape[last], size, &both);
    if (merges) {
        e->shape[last] = both;
        e->stride[last] = stride;
    }
    if (merges || size == 1) return true;
    if (e->ndim == TERN_NDIM_MAX) return false;
    e->shape[e->ndim] = size;
    e->stride[e->ndim++] = stride;
    return true;
}

/* Sets the extent of the bytes of a tensor of any dtype and number of dimensions, in as few dimensions as its
 * strides allow: in one, if it is contiguous. False: in more than TERN_NDIM_MAX, or too large. */
static bool extent_of_bytes(extent *e, const tern_object *shape, const tern_object *stride, int64_t element)
{
    bool fits = !__builtin_mul_overflow(e->offset, element, &e->offset), has_elements = true;
    e->ndim = 0;
    for (int64_t d = 0; d < tern_object_count(shape); d++) {
        int64_t size = 0, step = 0;
        tern_object_to_int(tern_object_at(shape, d), &size, NULL);
        tern_object_to_int(tern_object_at(stride, d), &step, NULL);
        has_elements = has_elements && size > 0;
        fits = fits && has_elements && !__builtin_mul_overflow(step, element, &step) &&
               add_dimension(e, size, step);
    }
    if (has_elements) return fits && add_dimension(e, element, 1);
    *e = (extent){.ndim = 1, .stride = {1}};
    return true;
}

/* Makes the record of a tensor that tern does not have (dtypes.h). */
static tern_object *make_tensor_record(tern__vm *vm, const tern__vm_storage *storage,
                                       const tern__file_dtype *dtype, const extent *e, tern_object *shape)
{
    tern_object *bytes = make_tensor(vm, storage, TERN_U8, e);
    if (!bytes || tern__vm_charge(vm, TERN__TENSOR_RECORD_BYTES)) return NULL;
    return tern__vm_take(vm, tern__tensor_record_new(dtype, shape, bytes, vm->err));
}

static int pickle_check_sizes(const tern_object *tuple)
{
    int64_t size = 0;
    for (int64_t d = 0; d < tern_object_count(tuple); d++)
        if (tern_object_to_int(tern_object_at(tuple, d), &size, NULL) || size < 0) return TERN_E_FORMAT;
    return TERN_OK;
}

enum { DIMENSIONS = 64 }; /* of a tensor that becomes a record; PyTorch's ops take no more either */

/* Arguments: (storage, offset, shape, strides, ..). A dtype that is NULL is unknown: then the call itself
 * becomes a record, as it does if its bytes cannot be made a tensor. A file may use one shape for many
 * tensors, so a long one is not walked. */
static tern_object *rebuild_any(tern__vm *vm, const char *name, const tern_object *args,
                                const tern__file_dtype *dtype)
{
    extent e = {0};
    tern_object *shape = arg(args, 2), *stride = arg(args, 3);
    const tern__vm_storage *storage = (const tern__vm_storage *)arg(args, 0);
    if (tern_object_to_int(arg(args, 1), &e.offset, NULL) || e.offset < 0 ||
        tern_object_count(shape) != tern_object_count(stride))
        return refuse_args(vm, name);
    if (tern_object_count(shape) > DIMENSIONS) return tern__vm_record(vm, name, (tern_object *)args);
    if (pickle_check_sizes(shape) || pickle_check_sizes(stride)) return refuse_args(vm, name);
    bool is_ours = dtype && dtype->dtype != TERN_DTYPE_NONE && tern_object_count(shape) <= TERN_NDIM_MAX;
    if (is_ours) {
        e.ndim = (int)tern_object_count(shape);
        for (int d = 0; d < e.ndim; d++) {
            tern_object_to_int(tern_object_at(shape, d), &e.shape[d], NULL);
            tern_object_to_int(tern_object_at(stride, d), &e.stride[d], NULL);
        }
        return make_tensor(vm, storage, dtype->dtype, &e);
    }
    if (!dtype || !dtype->name || !extent_of_bytes(&e, shape, stride, dtype->bits / 8))
        return tern__vm_record(vm, name, (tern_object *)args);
    return make_tensor_record(vm, storage, dtype, &e, shape);
}

static bool is_rebuilt(const tern_object *args)
{
    return arg_is(args, 0, TERN__VM_STORAGE) && arg_is(args, 2, TERN_OBJECT_TUPLE) &&
           arg_is(args, 3, TERN_OBJECT_TUPLE);
}

/* Arguments: (storage, offset, shape, strides, requires_grad, hooks). */
static tern_object *rebuild_tensor(tern__vm *vm, const char *name, const tern_object *args)
{
    if (!is_rebuilt(args)) return refuse_args(vm, name);
    return rebuild_any(vm, name, args, ((const tern__vm_storage *)arg(args, 0))->dtype);
}

/* The same with a dtype at the end, for dtypes that have no class of storage. */
static tern_object *rebuild_tensor_v3(tern__vm *vm, const char *name, const tern_object *args)
{
    const char *text = tern_object_to_string(arg(args, 6));
    if (!is_rebuilt(args)) return refuse_args(vm, name);
    bool is_torch = text && strncmp(text, "torch.", 6) == 0;
    const tern__file_dtype *dtype = is_torch ? tern__file_dtype_of_torch(text + 6) : NULL;
    if (dtype && dtype->dtype != TERN_DTYPE_NONE) return refuse_args(vm, name);
    return rebuild_any(vm, name, args, dtype);
}

/* Arguments: (tensor, requires_grad, ..). Returns the tensor, or what stands for one that tern does not have.
 */
static tern_object *first_tensor(tern__vm *vm, const char *name, const tern_object *args)
{
    bool is_tensor = arg_is(args, 0, TERN_OBJECT_TENSOR) || arg_is(args, 0, TERN_OBJECT_RECORD);
    return is_tensor ? arg(args, 0) : refuse_args(vm, name);
}

/* Arguments: (function, class, args, state), for a tensor with attributes, which are dropped. */
static tern_object *rebuild_from_type(tern__vm *vm, const char *name, const tern_object *args)
{
    tern_object *function = arg(args, 0), *inner = arg(args, 2);
    bool is_call = function && function->kind == TERN__VM_GLOBAL && inner && inner->kind == TERN_OBJECT_TUPLE;
    if (!is_call || strstr(tern__object_name(function), "_rebuild_from_type")) return refuse_args(vm, name);
    return tern__vm_call(vm, function, inner);
}

/* ---- containers and small objects ---- */

/* Arguments: (), (dict,) or ([(key, item), ..],). */
static tern_object *make_dict(tern__vm *vm, const char *name, const tern_object *args)
{
    tern_object *from = arg(args, 0), *dict = tern__vm_list(vm, TERN_OBJECT_DICT);
    if (dict && from && from->kind == TERN_OBJECT_DICT) return from;
    if (from && from->kind != TERN_OBJECT_LIST) return refuse_args(vm, name);
    for (int64_t i = 0; dict && i < tern_object_count(from); i++) {
        tern_object *pair = tern__object_child(from, i);
        bool is_pair = pair->kind == TERN_OBJECT_TUPLE || pair->kind == TERN_OBJECT_LIST;
        if (!is_pair || tern_object_count(pair) != 2) return refuse_args(vm, name);
        if (tern__vm_set(vm, dict, arg(pair, 0), arg(pair, 1))) return NULL;
    }
    return dict;
}

/* Arguments: (factory,). The items are set later. */
static tern_object *make_default_dict(tern__vm *vm, const char *name, const tern_object *args)
{
    (void)name;
    (void)args;
    return tern__vm_list(vm, TERN_OBJECT_DICT);
}

/* Arguments: () or (list,). */
static tern_object *make_list(tern__vm *vm, const char *name, const tern_object *args)
{
    tern_object *from = arg(args, 0);
    if (!from) return tern__vm_list(vm, TERN_OBJECT_LIST);
    return from->kind == TERN_OBJECT_LIST ? from : refuse_args(vm, name);
}

static tern_object *make_size(tern__vm *vm, const char *name, const tern_object *args)
{
    tern_object *from = arg(args, 0);
    if (!from) return tern__vm_list(vm, TERN_OBJECT_TUPLE);
    return from->kind == TERN_OBJECT_TUPLE ? from : refuse_args(vm, name);
}

/* ("cuda", 0) becomes "cuda:0". */
static tern_object *make_device(tern__vm *vm, const char *name, const tern_object *args)
{
    char text[64];
    int64_t index;
    const char *type = tern_object_to_string(arg(args, 0));
    if (!type || tern_object_count(arg(args, 0)) > 20) return refuse_args(vm, name);
    if (tern_object_to_int(arg(args, 1), &index, NULL)) return arg(args, 0);
    snprintf(text, sizeof(text), "%s:%lld", type, (long long)index);
    return tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)sizeof(text))
               ? NULL
               : tern__vm_take(vm, tern_object_string(text, vm->err));
}

/* Encodes the string's characters as Latin-1. */
static tern_object *encode_latin1(tern__vm *vm, const char *name, const tern_object *text)
{
    const char *from = tern_object_to_string(text);
    char *out;
    size_t bytes = (size_t)tern_object_count(text), count = 0;
    uint32_t code = 0;
    for (size_t at = 0; at < bytes; at += (size_t)tern__utf8_next(from + at, bytes - at, &code)) count++;
    if (tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)count)) return NULL;
    tern_object *node = tern__vm_take(vm, tern__object_text(TERN_OBJECT_BYTES, count, &out, vm->err));
    for (size_t at = 0; node && at < bytes; *out++ = (char)code) {
        at += (size_t)tern__utf8_next(from + at, bytes - at, &code);
        if (code > 0xff) return refuse_args(vm, name);
    }
    return node;
}

/* Arguments: (string, "latin1"), (bytes,) or (). */
static tern_object *make_bytes(tern__vm *vm, const char *name, const tern_object *args)
{
    const char *encoding = tern_object_to_string(arg(args, 1));
    char *none;
    if (arg_is(args, 0, TERN_OBJECT_BYTES)) return arg(args, 0);
    if (tern_object_count(args) == 0 && !tern__vm_charge(vm, TERN__VM_TEXT))
        return tern__vm_take(vm, tern__object_text(TERN_OBJECT_BYTES, 0, &none, vm->err));
    bool is_latin1 = encoding && (strcmp(encoding, "latin1") == 0 || strcmp(encoding, "latin-1") == 0);
    if (!is_latin1 || !arg_is(args, 0, TERN_OBJECT_STRING)) return refuse_args(vm, name);
    return encode_latin1(vm, name, arg(args, 0));
}

/* ---- numpy: a dtype is a record until it is resolved; a scalar is a dtype and bytes ---- */

static tern_object *make_dtype(tern__vm *vm, const char *name, const tern_object *args)
{
    return arg_is(args, 0, TERN_OBJECT_STRING) ? tern__vm_record(vm, name, (tern_object *)args)
                                               : refuse_args(vm, name);
}

static double float_of(const void *data, size_t bytes)
{
    double wide;
    float narrow;
    uint16_t half;
    if (bytes == sizeof(wide)) return memcpy(&wide, data, bytes), wide;
    if (bytes == sizeof(narrow)) return memcpy(&narrow, data, bytes), narrow;
    return memcpy(&half, data, bytes), tern__f16_to_f32(half);
}

/* Reads a two's complement or an unsigned number. */
static int64_t int_of(const void *data, size_t bytes, bool is_signed)
{
    uint64_t value = tern__bytes_get(data, (int)bytes);
    int unused = 64 - 8 * (int)bytes;
    return is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

/* Makes a string of UTF-32. NULL without an error: it is not UTF-32. */
static tern_object *string_of_utf32(tern__vm *vm, const char *data, size_t bytes)
{
    if (tern__vm_charge(vm, TERN__VM_TEXT + 2 * (int64_t)bytes)) return NULL;
    char *text = tern__alloc_raw(bytes + 1, 1);
    size_t used = 0, at = 0;
    if (!text) return tern__error_set(vm->err, FUNC, TERN_E_MEMORY, "out of memory: %zu bytes", bytes), NULL;
    for (; at < bytes; at += 4) {
        uint64_t code = tern__bytes_get(data + at, 4);
        if (code > 0x10ffff || code >> 11 == 0x1b) break;
        used += (size_t)tern__utf8_write((uint32_t)code, text + used);
    }
    tern_object *string = at < bytes ? NULL : tern__object_string(text, used, vm->err);
    tern__free(text);
    return tern__vm_take(vm, string);
}

/* Makes the value of a type whose name is a letter and a number of bytes, or of characters for 'U'. NULL
 * without an error: tern has no such value. */
static tern_object *scalar_of(tern__vm *vm, const char *type, const char *data, size_t bytes)
{
    char *end;
    long size = strtol(type + 1, &end, 10);
    bool is_wide = size == 8 || size == 4 || size == 2, is_whole = *type == 'i' || *type == 'u';
    if (!*type || *end || size < 0 || bytes != (size_t)size * (*type == 'U' ? 4 : 1)) return NULL;
    if (*type == 'U') return string_of_utf32(vm, data, bytes);
    if (*type == 'b' && size == 1) return tern__vm_bool(vm, *data != 0);
    if (*type == 'f' && is_wide) return tern__vm_float(vm, float_of(data, bytes));
    bool fits = is_whole && (is_wide || size == 1) && (*type == 'i' || size < 8 || data[7] >= 0);
    return fits ? tern__vm_int(vm, int_of(data, bytes, *type == 'i')) : NULL;
}

/* Arguments: (dtype, bytes). */
static tern_object *make_scalar(tern__vm *vm, const char *name, const tern_object *args)
{
    tern_object *dtype = arg(args, 0);
    const char *data = tern_object_to_bytes(arg(args, 1));
    const char *class = tern_object_record_name(dtype);
    if (!class || strcmp(class, TERN__NUMPY_DTYPE) != 0 || !data) return refuse_args(vm, name);
    const char *type = tern_object_to_string(tern__vm_resolve(vm, dtype));
    if (type && *type == 'S') return arg(args, 1);
    tern_object *value = type ? scalar_of(vm, type, data, (size_t)tern_object_count(arg(args, 1))) : NULL;
    if (value || tern__is_set(vm->err)) return value;
    return tern__vm_record(vm, TERN__NUMPY_SCALAR, (tern_object *)args);
}

/* ---- the table ---- */

static const struct {
    const char *name;
    tern_object *(*call)(tern__vm *vm, const char *name, const tern_object *args);
} known[] = {
    {"torch._utils._rebuild_tensor", rebuild_tensor},
    {"torch._utils._rebuild_tensor_v2", rebuild_tensor},
    {"torch._utils._rebuild_tensor_v3", rebuild_tensor_v3},
    {"torch._utils._rebuild_parameter", first_tensor},
    {"torch._utils._rebuild_parameter_with_state", first_tensor},
    {"torch._tensor._rebuild_from_type_v2", rebuild_from_type},
    {"torch._tensor._rebuild_from_type", rebuild_from_type},
    {"torch.nn.parameter.Parameter", first_tensor},
    {"torch.Tensor", first_tensor},
    {"torch.Size", make_size},
    {"torch.device", make_device},
    {"collections.OrderedDict", make_dict},
    {"collections.Counter", make_dict},
    {"collections.defaultdict", make_default_dict},
    {"_codecs.encode", make_bytes},
    {"__builtin__.bytes", make_bytes},
    {"builtins.bytes", make_bytes},
    {"__builtin__.bytearray", make_bytes},
    {"builtins.bytearray", make_bytes},
    {"__builtin__.set", make_list},
    {"builtins.set", make_list},
    {"__builtin__.frozenset", make_list},
    {"builtins.frozenset", make_list},
    {TERN__NUMPY_DTYPE, make_dtype},
    {TERN__NUMPY_SCALAR, make_scalar},
    {"numpy._core.multiarray.scalar", make_scalar},
    {"__builtin__.dict", make_dict},
    {"builtins.dict", make_dict},
    {"__builtin__.list", make_list},
    {"builtins.list", make_list},
};

static int index_of(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(known); i++)
        if (strcmp(known[i].name, name) == 0) return (int)i;
    return -1;
}

static bool is_dtype(const char *name)
{
    static const char *const aliases[] = {"float", "double", "half", "long", "int", "short"};
    if (strncmp(name, "torch.", 6) != 0) return false;
    for (size_t i = 0; i < TERN__COUNT(aliases); i++)
        if (strcmp(name + 6, aliases[i]) == 0) return true;
    return tern__file_dtype_of_torch(name + 6) != NULL;
}

tern_object *tern__vm_global(tern__vm *vm, const char *name)
{
    if (tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)strlen(name))) return NULL;
    if (is_dtype(name)) return tern__vm_take(vm, tern_object_string(name, vm->err));
    tern_object *global = tern__object_record(name, strlen(name), vm->err);
    if (global) global->kind = TERN__VM_GLOBAL;
    return tern__vm_take(vm, global);
}

tern_object *tern__vm_record(tern__vm *vm, const char *name, tern_object *args)
{
    if (tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)strlen(name))) return NULL;
    tern_object *record = tern__object_record(name, strlen(name), vm->err);
    if (record) tern__object_record_set(record, args, NULL);
    return tern__vm_take(vm, record);
}

tern_object *tern__vm_call(tern__vm *vm, tern_object *function, tern_object *args)
{
    bool is_global = function->kind == TERN__VM_GLOBAL;
    if (!is_global && function->kind != TERN_OBJECT_RECORD) {
        tern__vm_refuse(vm, TERN_E_FORMAT, "calls an object that is not a function");
        return NULL;
    }
    const char *name = tern__object_name(function);
    int index = is_global ? index_of(name) : -1;
    if (index >= 0) return known[index].call(vm, known[index].name, args);
    if (!is_global || !storage_dtype(name)) return tern__vm_record(vm, name, args);
    char quote[TERN__QUOTE_TEXT];
    tern__vm_refuse(vm, TERN_E_FORMAT, "calls %s, which is not a function",
                    tern__quote(name, strlen(name), quote));
    return NULL;
}
