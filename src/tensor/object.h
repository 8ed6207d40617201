/* object.h - the nodes of nested objects from inside, for whoever reads them from a file. */
#ifndef TERN_SRC_TENSOR_OBJECT_H
#define TERN_SRC_TENSOR_OBJECT_H

#include "tensor/tensor.h"

#include <tern/object.h>

#include <stdio.h>

/* What every node begins with. A node that was made by hand stands in one container at most; files may name
 * one several times, so nodes are counted. `link` is the container of a node made by hand; while objects
 * are read or freed, the next one in a list. */
struct tern_object {
    uint8_t kind;
    bool owned;
    uint32_t refs;
    tern_object *link;
};

/* At most so many bytes a node takes with malloc's own, beside its text, and a list or dict for each item
 * while it grows; a tensor's takes its handle too. */
#define TERN__OBJECT_BYTES      96
#define TERN__OBJECT_ITEM_BYTES 24
#define TERN__OBJECT_PAIR_BYTES 96

/* Strings and records with a length. E_FORMAT unless it is UTF-8; a string may hold zeros. */
tern_object *tern__object_string(const char *text, size_t bytes, tern_error *err);
tern_object *tern__object_record(const char *name, size_t bytes, tern_error *err);
/* A string or bytes whose text the caller fills in; a string's he checks himself. */
tern_object *tern__object_text(tern_object_kind kind, size_t bytes, char **text, tern_error *err);
/* Takes `tensor`, a handle of its own (not after a failure). */
tern_object *tern__object_tensor_take(tern_tensor *tensor, tern_error *err);

static inline tern_object *tern__object_hold(tern_object *object)
{
    object->refs++;
    return object;
}
/* With the last reference the node goes, and what only it held; no recursion, however deep. */
void tern__object_drop(tern_object *object);
/* Drops what a container holds: what is in a circle goes only so. */
void tern__object_empty(tern_object *container);

/* As the public functions, of nodes that may stand elsewhere too: each holds `item` (and `key`) anew and
 * leaves the caller his reference. Cycles are the caller's to find. */
/* Room for `count` items, no more, in a list or tuple. */
int tern__object_reserve(tern_object *list, int64_t count, tern_error *err);
int tern__object_append(tern_object *list, tern_object *item, tern_error *err);
int tern__object_set(tern_object *dict, tern_object *key, tern_object *item, tern_error *err);
/* Replaces the arguments or the state of a record; either may be NULL: as it is. */
void tern__object_record_set(tern_object *record, tern_object *args, tern_object *state);
/* Its name, whatever its kind has become. */
const char *tern__object_name(const tern_object *record);
bool tern__object_is_key(const tern_object *object);

/* What a node holds beside its key: item `index` of a container; a record's arguments and state are 0 and 1
 * (NULL: it has none). */
int64_t tern__object_child_count(const tern_object *object);
tern_object *tern__object_child(const tern_object *object, int64_t index);

/* As tern_object_print, anywhere. */
void tern__object_print(FILE *file, const tern_object *object);

#endif
