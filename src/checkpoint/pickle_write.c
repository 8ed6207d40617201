/* pickle_write.c - writes pickles, with the opcodes that PyTorch's restricted reader knows. Only what every
 * tensor repeats, the names of functions and classes, goes to the memo. */
#include "checkpoint/bytes.h"
#include "checkpoint/pickle.h"
#include "checkpoint/dtypes.h"

#include <string.h>

static const char FUNC[] = "tern_save";

/* The memo's numbers. */
enum {
    REBUILD,
    REBUILD_V3,
    ORDERED_DICT,
    ENCODE,
    STORAGE,
    CPU,
    UNTYPED, /* the class of storages of bytes */
    CLASSES, /* one for each dtype with a class of storage, or its dtype if it has none */
    MEMO = CLASSES + TERN__FILE_DTYPES
};

typedef struct writer {
    tern__pickle *out;
    const tern__pickle_place *places; /* the next tensor's place */
    bool is_known[MEMO];
    tern_error *err;
} writer;

/* ---- bytes ---- */

static int pickle_put(writer *w, const void *data, size_t bytes)
{
    tern__pickle *out = w->out;
    if (tern__array_reserve(&out->data, &out->room, out->bytes + bytes, 1, FUNC, w->err))
        return TERN_E_MEMORY;
    if (bytes) memcpy(out->data + out->bytes, data, bytes);
    out->bytes += bytes;
    return TERN_OK;
}

static int put_op(writer *w, char op, uint64_t value, int bytes)
{
    char text[9] = {op};
    tern__bytes_put(text + 1, value, bytes);
    return pickle_put(w, text, 1 + (size_t)bytes);
}

static int put_string(writer *w, const char *text, size_t bytes)
{
    if (bytes > UINT32_MAX)
        return tern__error_set(w->err, FUNC, TERN_E_UNSUPPORTED,
                               "a string has %zu bytes, the format allows less than 2^32", bytes);
    int status = put_op(w, 'X', bytes, 4);
    return status ? status : pickle_put(w, text, bytes);
}

static int put_int(writer *w, int64_t value)
{
    if (value >= 0 && value < 0x100) return put_op(w, 'K', (uint64_t)value, 1);
    if (value >= 0 && value < 0x10000) return put_op(w, 'M', (uint64_t)value, 2);
    if (value == (int32_t)value) return put_op(w, 'J', (uint64_t)value, 4);
    int status = pickle_put(w, "\x8a\x08", 2);
    char text[8];
    tern__bytes_put(text, (uint64_t)value, 8);
    return status ? status : pickle_put(w, text, 8);
}

static int put_float(writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return put_op(w, 'G', __builtin_bswap64(bits), 8);
}

/* Writes `text`, opcodes that push an object, the first time; later the object's memo number. */
static int put_known(writer *w, int number, const char *text, size_t bytes)
{
    if (w->is_known[number]) return put_op(w, 'h', (uint64_t)number, 1);
    w->is_known[number] = true;
    int status = pickle_put(w, text, bytes);
    return status ? status : put_op(w, 'q', (uint64_t)number, 1);
}

#define PUT_KNOWN(w, number, text) put_known(w, number, text, sizeof(text) - 1)

/* ---- tensors: _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks), or, for a dtype
 * without a class of storage, _rebuild_tensor_v3(.., dtype) ---- */

/* Writes the name of a dtype's storage, or of the dtype itself. */
static int put_name(writer *w, const tern__file_dtype *dtype)
{
    char text[64];
    int bytes = snprintf(text, sizeof(text), "ctorch\n%s\n", dtype->storage ? dtype->storage : dtype->torch);
    return put_known(w, CLASSES + (int)(dtype - tern__file_dtypes), text, (size_t)bytes);
}

/* Writes a storage's persistent id: ("storage", class, key, "cpu", elements). */
static int put_storage(writer *w, const tern__file_dtype *dtype, const tern__pickle_place *place)
{
    char key[24];
    int key_bytes = snprintf(key, sizeof(key), "%lld", (long long)place->number);
    int status = pickle_put(w, "(", 1);
    if (!status) status = PUT_KNOWN(w, STORAGE, "X\7\0\0\0storage");
    if (!status)
        status =
            dtype->storage ? put_name(w, dtype) : PUT_KNOWN(w, UNTYPED, "ctorch.storage\nUntypedStorage\n");
    if (!status) status = put_string(w, key, (size_t)key_bytes);
    if (!status) status = PUT_KNOWN(w, CPU, "X\3\0\0\0cpu");
    if (!status) status = put_int(w, place->elements);
    return status ? status : pickle_put(w, "tQ", 2);
}

static int put_sizes(writer *w, int ndim, const int64_t *sizes)
{
    int status = pickle_put(w, "(", 1);
    for (int d = 0; !status && d < ndim; d++) status = put_int(w, sizes[d]);
    return status ? status : pickle_put(w, "t", 1);
}

/* Writes what comes before the shape. */
static int tensor_pickle_begin(writer *w, const tern__file_dtype *dtype)
{
    const tern__pickle_place *place = w->places++;
    int status = dtype->storage ? PUT_KNOWN(w, REBUILD, "ctorch._utils\n_rebuild_tensor_v2\n")
                                : PUT_KNOWN(w, REBUILD_V3, "ctorch._utils\n_rebuild_tensor_v3\n");
    if (!status) status = pickle_put(w, "(", 1);
    if (!status) status = put_storage(w, dtype, place);
    return status ? status : put_int(w, place->offset);
}

/* Writes what comes after the strides. */
static int tensor_pickle_end(writer *w, const tern__file_dtype *dtype)
{
    int status = pickle_put(w, "\x89", 1);
    if (!status) status = PUT_KNOWN(w, ORDERED_DICT, "ccollections\nOrderedDict\n");
    if (!status) status = pickle_put(w, ")R", 2);
    if (!status && !dtype->storage) status = put_name(w, dtype);
    return status ? status : pickle_put(w, "tR", 2);
}

static int put_tensor(writer *w, const tern_tensor *tensor)
{
    const tern__view *view = &tensor->view;
    const tern__file_dtype *dtype = tern__file_dtype_of(view->dtype);
    int status = tensor_pickle_begin(w, dtype);
    if (!status) status = put_sizes(w, view->ndim, view->shape);
    if (!status) status = put_sizes(w, view->ndim, view->stride);
    return status ? status : tensor_pickle_end(w, dtype);
}

/* Writes row-major strides. */
static int put_strides(writer *w, const tern_object *shape)
{
    int64_t ndim = tern_object_count(shape), stride = 1;
    int64_t *strides = tern__alloc((size_t)ndim * sizeof(*strides), FUNC, w->err);
    if (!strides) return TERN_E_MEMORY;
    for (int64_t d = ndim - 1; d >= 0; d--) {
        int64_t size = 0;
        tern_object_to_int(tern_object_at(shape, d), &size, NULL);
        strides[d] = stride;
        if (__builtin_mul_overflow(stride, TERN__MAX(size, 1), &stride)) stride = 1; /* it has no elements */
    }
    int status = put_sizes(w, (int)ndim, strides);
    tern__free(strides);
    return status;
}

static int put_tuple(writer *w, const tern_object *tuple);

static int put_tensor_record(writer *w, const tern_object *record)
{
    tern__tensor_record tensor = {0};
    tern__tensor_record_read(&tensor, record);
    int status = tensor_pickle_begin(w, tensor.dtype);
    if (!status) status = put_tuple(w, tensor.shape);
    if (!status) status = put_strides(w, tensor.shape);
    return status ? status : tensor_pickle_end(w, tensor.dtype);
}

/* ---- bytes: protocol 2 has none, so, as Python does, write text that the reader encodes as Latin-1 ---- */

static int put_bytes(writer *w, const char *data, size_t bytes)
{
    size_t high = 0;
    for (size_t i = 0; i < bytes; i++) high += (uint8_t)data[i] >> 7;
    if (bytes + high > UINT32_MAX)
        return tern__error_set(w->err, FUNC, TERN_E_UNSUPPORTED,
                               "bytes take %zu bytes, the format allows less than 2^32", bytes + high);
    int status = PUT_KNOWN(w, ENCODE, "c_codecs\nencode\n");
    if (!status) status = pickle_put(w, "(", 1);
    if (!status) status = put_op(w, 'X', bytes + high, 4);
    for (size_t i = 0; !status && i < bytes; i++) {
        uint8_t c = (uint8_t)data[i];
        char text[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        status = c < 0x80 ? pickle_put(w, &data[i], 1) : pickle_put(w, text, 2);
    }
    if (!status) status = put_string(w, "latin1", 6);
    return status ? status : pickle_put(w, "tR", 2);
}

/* ---- objects ---- */

static int put_object(writer *w, const tern_object *object);

/* Writes batches, as Python does: a reader keeps a batch on its stack. */
static int put_items(writer *w, const tern_object *object)
{
    enum { BATCH = 1000 };
    bool is_dict = tern_object_kind_get(object) == TERN_OBJECT_DICT;
    int64_t count = tern_object_count(object);
    int status = pickle_put(w, is_dict ? "}" : "]", 1);
    for (int64_t i = 0; !status && i < count; i++) {
        if (i % BATCH == 0) status = pickle_put(w, "(", 1);
        if (!status && is_dict) status = put_object(w, tern_object_key(object, i));
        if (!status) status = put_object(w, tern_object_at(object, i));
        if (!status && (i % BATCH == BATCH - 1 || i == count - 1))
            status = pickle_put(w, is_dict ? "u" : "e", 1);
    }
    return status;
}

static int put_tuple(writer *w, const tern_object *tuple)
{
    int status = pickle_put(w, "(", 1);
    for (int64_t i = 0; !status && i < tern_object_count(tuple); i++)
        status = put_object(w, tern_object_at(tuple, i));
    return status ? status : pickle_put(w, "t", 1);
}

static int put_number(writer *w, const tern_object *object)
{
    int64_t i = 0;
    double f = 0;
    switch (tern_object_kind_get(object)) {
    case TERN_OBJECT_BOOL: tern_object_to_int(object, &i, NULL); return pickle_put(w, i ? "\x88" : "\x89", 1);
    case TERN_OBJECT_INT: tern_object_to_int(object, &i, NULL); return put_int(w, i);
    default: tern_object_to_float(object, &f, NULL); return put_float(w, f);
    }
}

/* torch_save.c has refused objects that cannot be written. */
static int put_object(writer *w, const tern_object *object)
{
    switch (tern_object_kind_get(object)) {
    case TERN_OBJECT_NONE: return pickle_put(w, "N", 1);
    case TERN_OBJECT_STRING:
        return put_string(w, tern_object_to_string(object), (size_t)tern_object_count(object));
    case TERN_OBJECT_BYTES:
        return put_bytes(w, tern_object_to_bytes(object), (size_t)tern_object_count(object));
    case TERN_OBJECT_LIST:
    case TERN_OBJECT_DICT: return put_items(w, object);
    case TERN_OBJECT_TUPLE: return put_tuple(w, object);
    case TERN_OBJECT_TENSOR: return put_tensor(w, tern_object_to_tensor(object));
    case TERN_OBJECT_RECORD: return put_tensor_record(w, object);
    default: return put_number(w, object);
    }
}

int tern__pickle_write(tern__pickle *out, const tern_object *object, const tern__pickle_place *places,
                       tern_error *err)
{
    writer w = {.out = out, .places = places, .err = err};
    int status = pickle_put(&w, "\x80\x02", 2);
    if (!status) status = put_object(&w, object);
    return status ? status : pickle_put(&w, ".", 1);
}
