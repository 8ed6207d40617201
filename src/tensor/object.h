/* object.h - the nodes of nested objects, for code that reads them from a file. */
#ifndef TERN_SRC_TENSOR_OBJECT_H
#define TERN_SRC_TENSOR_OBJECT_H

#include "tensor/tensor.h"

#include <tern/object.h>

#include <stdio.h>

/* The head of every node. A node made with the public functions is in at most one container. A file may use a
 * node several times, so nodes are reference-counted. `link` is the container of a node made with the public
 * functions; while objects are read or freed, it links a list. */
struct tern_object {
    uint8_t kind;
    bool owned;
    uint32_t refs;
    tern_object *link;
};

/* Upper bounds of the bytes, with malloc's overhead, of a node without its text, and of an item of a list or
 * dict while that grows. A tensor's node also has a handle. */
#define TERN__OBJECT_BYTES      96
#define TERN__OBJECT_ITEM_BYTES 24
#define TERN__OBJECT_PAIR_BYTES 96

/* Make a string or a record from text with a length. E_FORMAT unless it is UTF-8; a string may contain zeros.
 */
tern_object *tern__object_string(const char *text, size_t bytes, tern_error *err);
tern_object *tern__object_record(const char *name, size_t bytes, tern_error *err);
/* Makes a string or bytes; the caller fills in the text, and checks that a string's is UTF-8. */
tern_object *tern__object_text(tern_object_kind kind, size_t bytes, char **text, tern_error *err);
/* Takes ownership of `tensor`, except after a failure. */
tern_object *tern__object_tensor_take(tern_tensor *tensor, tern_error *err);

static inline tern_object *tern__object_hold(tern_object *object)
{
    object->refs++;
    return object;
}
/* Drops a reference. The last one frees the node and everything that only it held, without recursion. */
void tern__object_drop(tern_object *object);
/* Drops everything that a container holds; needed to free a cycle. */
void tern__object_empty(tern_object *container);

/* As the public functions, but for nodes that may be in several containers: they add a reference to `item`
 * (and `key`), and the caller keeps its own. The caller must find cycles. */
/* Reserves exactly `count` items in a list or tuple. */
int tern__object_reserve(tern_object *list, int64_t count, tern_error *err);
int tern__object_append(tern_object *list, tern_object *item, tern_error *err);
int tern__object_set(tern_object *dict, tern_object *key, tern_object *item, tern_error *err);
/* Replaces the arguments or the state of a record; NULL keeps the old one. */
void tern__object_record_set(tern_object *record, tern_object *args, tern_object *state);
/* Returns the name of a node made as a record, even if its kind has changed. */
const char *tern__object_name(const tern_object *record);
bool tern__object_is_key(const tern_object *object);

/* A node's children: the items of a container, without keys; for a record, 0 is the arguments and 1 the state
 * (either may be NULL). */
int64_t tern__object_child_count(const tern_object *object);
tern_object *tern__object_child(const tern_object *object, int64_t index);
/* Replaces a child that is not NULL. */
void tern__object_child_set(tern_object *object, int64_t index, tern_object *child);

/* Where a walk is: at child `index` of `container`, whose own place is `up`. NULL: at the root. */
typedef struct tern__object_place {
    const struct tern__object_place *up;
    const tern_object *container;
    int64_t index;
} tern__object_place;

/* Writes `state["model"][3]` for an error, and returns it; of a deep place, the eight outermost levels. */
#define TERN__PLACE_TEXT 256
const char *tern__object_place_text(const tern__object_place *place, char text[TERN__PLACE_TEXT]);

/* As tern_object_print, to any file. */
void tern__object_print(FILE *file, const tern_object *object);

#endif
