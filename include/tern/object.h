/* object.h - nested objects: what Python has as None, bool, int, float, str, bytes, list, tuple, dict and
 * torch.Tensor. Checkpoints are made of them (checkpoint.h), and state dicts.
 *
 * Constructors take an error as all do: with one that is set already they do nothing and return NULL, and a
 * container that is given a NULL with an error set returns its code, so that an object is put together
 * without checks between:
 *
 *     tern_object *state = tern_object_dict(&err);
 *     tern_object_set(state, "epoch", tern_object_int(epoch, &err), &err);
 *     tern_object_set(state, "model", tern_module_state_dict(model, &err), &err);
 *     tern_save("last.pt", state, &err);
 *     tern_object_free(state);
 *
 * Threads: an object belongs to one thread at a time; several may read one that nobody changes. */
#ifndef TERN_OBJECT_H
#define TERN_OBJECT_H

#include <tern/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_object tern_object;

typedef enum tern_object_kind {
    TERN_OBJECT_NONE,
    TERN_OBJECT_BOOL,
    TERN_OBJECT_INT,
    TERN_OBJECT_FLOAT,
    TERN_OBJECT_STRING,
    TERN_OBJECT_BYTES,
    TERN_OBJECT_LIST,
    TERN_OBJECT_TUPLE,
    TERN_OBJECT_DICT, /* in the order of insertion, as Python's                              */
    TERN_OBJECT_TENSOR,
    TERN_OBJECT_RECORD, /* an instance of a Python class, without its code: name, arguments, state */
} tern_object_kind;

/* ---- making: yours until a container owns it; tern_object_free. E_MEMORY ---- */

TERN_API tern_object *tern_object_none(tern_error *err);
TERN_API tern_object *tern_object_bool(bool value, tern_error *err);
TERN_API tern_object *tern_object_int(int64_t value, tern_error *err);
TERN_API tern_object *tern_object_float(double value, tern_error *err);
/* Copies; E_FORMAT unless it is UTF-8, E_INVALID for NULL. */
TERN_API tern_object *tern_object_string(const char *text, tern_error *err);
TERN_API tern_object *tern_object_bytes(const void *data, size_t bytes, tern_error *err);
TERN_API tern_object *tern_object_list(tern_error *err);
TERN_API tern_object *tern_object_tuple(tern_error *err);
TERN_API tern_object *tern_object_dict(tern_error *err);
/* Shares the tensor's memory, without a copy: what is saved is what it holds then. A kept or wrapped tensor
 * may be freed before; of a parameter or buffer, which the seal may still move, the module must outlive the
 * object. Tensors of a scope: tern_keep first (E_LIFETIME). */
TERN_API tern_object *tern_object_tensor(const tern_tensor *tensor, tern_error *err);
/* An instance of `name` ("torch.nn.modules.linear.Linear"); takes `args`, a tuple, and `state`, or NULL. */
TERN_API tern_object *tern_object_record(const char *name, tern_object *args, tern_object *state,
                                         tern_error *err);
/* With all that is in it. NULL is fine, and so is what a container owns: it stays there. */
TERN_API void tern_object_free(tern_object *object);

/* Adds to a list or tuple; sets a key of a dict, in its old place if it is there. They take `item` (and
 * `key`), also after a failure. E_INVALID: not such a container or nothing given; or `item` has an owner
 * already or holds the container itself: then it stays as it is. */
TERN_API int tern_object_append(tern_object *list, tern_object *item, tern_error *err);
TERN_API int tern_object_set(tern_object *dict, const char *key, tern_object *item, tern_error *err);
/* The same with a key that is none, bool, int, float, string or bytes (E_INVALID): ints, in an optimizer's
 * state. Numbers that are equal are one key, as in Python: True, 1 and 1.0. */
TERN_API int tern_object_set_at(tern_object *dict, tern_object *key, tern_object *item, tern_error *err);

/* ---- reading: what is returned is borrowed; of NULL everything is NULL, 0 or E_INVALID ---- */

TERN_API tern_object_kind tern_object_kind_get(const tern_object *object); /* NULL: TERN_OBJECT_NONE */
TERN_API const char *tern_object_kind_name(tern_object_kind kind);         /* "dict"                 */

/* Items of a list, tuple or dict; bytes of a string or bytes; else 0. */
TERN_API int64_t tern_object_count(const tern_object *object);
/* Item `index`, from 0, of a list, tuple or dict, and its key in a dict; NULL if there is none. */
TERN_API const tern_object *tern_object_at(const tern_object *object, int64_t index);
TERN_API const tern_object *tern_object_key(const tern_object *dict, int64_t index);
/* The value of a key; NULL if there is none. Takes about as long in a large dict as in a small one. */
TERN_API const tern_object *tern_object_get(const tern_object *dict, const char *key);
TERN_API const tern_object *tern_object_get_at(const tern_object *dict, int64_t key);

/* The value, if the object is of that kind: E_DTYPE otherwise, naming both. A bool is also an int, and an int
 * a float, as in Python. */
TERN_API int tern_object_to_bool(const tern_object *object, bool *out, tern_error *err);
TERN_API int tern_object_to_int(const tern_object *object, int64_t *out, tern_error *err);
TERN_API int tern_object_to_float(const tern_object *object, double *out, tern_error *err);
/* NULL if it is of another kind. The string ends with a 0; bytes are tern_object_count long. */
TERN_API const char *tern_object_to_string(const tern_object *object);
TERN_API const void *tern_object_to_bytes(const tern_object *object);
TERN_API tern_tensor *tern_object_to_tensor(const tern_object *object);

/* Of a record: its class, arguments and state (NULL if it has none). */
TERN_API const char *tern_object_record_name(const tern_object *record);
TERN_API const tern_object *tern_object_record_args(const tern_object *record);
TERN_API const tern_object *tern_object_record_state(const tern_object *record);

/* Prints it on stdout as Python would, tensors by dtype and shape. What is more than 100 deep is "...". */
TERN_API void tern_object_print(const tern_object *object);

#ifdef __cplusplus
}
#endif
#endif
