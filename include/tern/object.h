/* object.h - nested objects: values as Python's None, bool, int, float, str, bytes, list, tuple, dict and
 * torch.Tensor. Checkpoints (checkpoint.h) and state dicts are made of them.
 *
 * Constructors take an error: if it is set already, they do nothing and return NULL. A function that puts an
 * object into a container returns the error's code if it is given a NULL object and an error that is set. So
 * you can build an object without checks between the calls:
 *
 *     tern_object *state = tern_object_dict(&err);
 *     tern_object_set(state, "epoch", tern_object_int(epoch, &err), &err);
 *     tern_object_set(state, "model", tern_module_state_dict(model, &err), &err);
 *     tern_save("last.pt", state, &err);
 *     tern_object_free(state);
 *
 * Threads: an object belongs to one thread at a time. Several threads may read one that nobody changes. */
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
    TERN_OBJECT_DICT, /* keeps the order of insertion, as Python's                           */
    TERN_OBJECT_TENSOR,
    TERN_OBJECT_RECORD /* an instance of a Python class: its name, arguments and state, no code;
                        * checkpoint.h says what else stands as a record in a file */
} tern_object_kind;

/* ---- making objects ---- */

/* Constructors of the simple kinds. Each returns an object that is yours until a container owns it:
 * tern_object_free. NULL on error: E_MEMORY. */
TERN_API tern_object *tern_object_none(tern_error *err);
TERN_API tern_object *tern_object_bool(bool value, tern_error *err);
TERN_API tern_object *tern_object_int(int64_t value, tern_error *err);
TERN_API tern_object *tern_object_float(double value, tern_error *err);
/* Copies a string, which must be UTF-8 (E_FORMAT); E_INVALID for NULL. */
TERN_API tern_object *tern_object_string(const char *text, tern_error *err);
/* Copies `bytes` bytes. */
TERN_API tern_object *tern_object_bytes(const void *data, size_t bytes, tern_error *err);
/* Make an empty list, tuple or dict. */
TERN_API tern_object *tern_object_list(tern_error *err);
TERN_API tern_object *tern_object_tuple(tern_error *err);
TERN_API tern_object *tern_object_dict(tern_error *err);
/* Makes an object that shares the tensor's memory, without a copy; what is saved are the values at the time
 * of saving. You may free a kept or wrapped tensor before the object. A parameter or buffer may still be
 * moved by the seal, so its module must outlive the object. A tensor of a scope is E_LIFETIME: tern_keep it
 * first. */
TERN_API tern_object *tern_object_tensor(const tern_tensor *tensor, tern_error *err);
/* Makes an instance of class `name` ("torch.nn.modules.linear.Linear"). Takes over `args`, a tuple, and
 * `state`, also on error, unless another container owns them; both may be NULL. E_INVALID, E_MEMORY. */
TERN_API tern_object *tern_object_record(const char *name, tern_object *args, tern_object *state,
                                         tern_error *err);
/* Frees an object and all that it contains. NULL is allowed. An object that a container owns stays. */
TERN_API void tern_object_free(tern_object *object);

/* Append an item to a list or tuple; set the value of a key in a dict, where an existing key keeps its place.
 * They take over `item` (and `key`), also on error. E_INVALID: the first argument is no such container, or an
 * argument is NULL; or `item` has an owner already or contains the container, and is then left as it is. */
TERN_API int tern_object_append(tern_object *list, tern_object *item, tern_error *err);
TERN_API int tern_object_set(tern_object *dict, const char *key, tern_object *item, tern_error *err);
/* Sets a dict's value under a key that is a none, bool, int, float, string or bytes (else E_INVALID); an
 * optimizer's state has int keys. Numbers that are equal are one key, as in Python: True, 1 and 1.0. */
TERN_API int tern_object_set_at(tern_object *dict, tern_object *key, tern_object *item, tern_error *err);

/* ---- reading objects ----
 *
 * Everything that these functions return is borrowed. For a NULL object they return NULL, 0 or E_INVALID. */

/* Return an object's kind (TERN_OBJECT_NONE for NULL), and the name of a kind: "dict". */
TERN_API tern_object_kind tern_object_kind_get(const tern_object *object);
TERN_API const char *tern_object_kind_name(tern_object_kind kind);

/* Returns the number of items in a list, tuple or dict, or of bytes in a string or bytes; else 0. */
TERN_API int64_t tern_object_count(const tern_object *object);
/* Return item `index`, from 0, of a list, tuple or dict, and its key in a dict; NULL if there is none. */
TERN_API const tern_object *tern_object_at(const tern_object *object, int64_t index);
TERN_API const tern_object *tern_object_key(const tern_object *dict, int64_t index);
/* Return a dict's value under a string or an int key; NULL if there is none. A large dict takes about as long
 * as a small one. */
TERN_API const tern_object *tern_object_get(const tern_object *dict, const char *key);
TERN_API const tern_object *tern_object_get_at(const tern_object *dict, int64_t key);

/* Store the object's value in *out if it has that kind; otherwise E_DTYPE, which names both kinds. A bool is
 * also an int, and an int is also a float, as in Python. */
TERN_API int tern_object_to_bool(const tern_object *object, bool *out, tern_error *err);
TERN_API int tern_object_to_int(const tern_object *object, int64_t *out, tern_error *err);
TERN_API int tern_object_to_float(const tern_object *object, double *out, tern_error *err);
/* Return the value, or NULL if the object has another kind. A string ends with a zero byte; a bytes has
 * tern_object_count bytes. */
TERN_API const char *tern_object_to_string(const tern_object *object);
TERN_API const void *tern_object_to_bytes(const tern_object *object);
TERN_API tern_tensor *tern_object_to_tensor(const tern_object *object);

/* Return a record's class name, its arguments, and its state (NULL if it has none). */
TERN_API const char *tern_object_record_name(const tern_object *record);
TERN_API const tern_object *tern_object_record_args(const tern_object *record);
TERN_API const tern_object *tern_object_record_state(const tern_object *record);

/* Prints an object on stdout as Python would; a tensor is shown as its dtype and shape. Parts nested more
 * than 100 deep are printed as "...". */
TERN_API void tern_object_print(const tern_object *object);

#ifdef __cplusplus
}
#endif
#endif
