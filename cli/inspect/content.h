/* content.h - the content of a file as `tern inspect` and `tern convert` see it: a flat list of values, each
 * named by the keys that lead to it. */
#ifndef TERN_CLI_INSPECT_CONTENT_H
#define TERN_CLI_INSPECT_CONTENT_H

#include "option.h"

#include "checkpoint/dtypes.h"

#include <tern/checkpoint.h>

/* As tern_load. In a file without classes (safetensors) all that tern does not have are tensors, so they are
 * loaded as records without being asked for. */
tern_object *tern__content_load(const char *path, const tern_load_opts *opts, tern_error *err);

/* Returns the value as Python prints it; the caller frees it (free). NULL: out of memory. */
char *tern__value_text(const tern_object *value);

/* A value that is not a container, or an empty container, and its path: "model.conv1.weight",
 * "optimizer.state[3].exp_avg". */
typedef struct tern__content_item {
    char *name;
    size_t name_bytes;
    const tern_object *value;
} tern__content_item;

typedef struct tern__content {
    tern__content_item *items; /* in the file's order, or sorted by name */
    int64_t count;
    size_t room;
} tern__content;

/* Lists all values in `object`; of a record, unless it stands for a tensor, its arguments and its state.
 * Recursion is safe: what tern_load returns has a bounded depth and no cycles. E_MEMORY. */
int tern__content_list(tern__content *content, const tern_object *object, tern_error *err);
void tern__content_free(tern__content *content);
/* Sorts by name; after that, tern__content_find returns the item with the name of `like`, or NULL. */
void tern__content_sort(tern__content *content);
const tern__content_item *tern__content_find(const tern__content *content, const tern__content_item *like);

/* A tern__option_fn for --memory: reads MiB that a file may take beyond its size into a size_t of bytes. */
int tern__memory_take(const tern__cli_option *option, const char *text, tern_error *err);

/* Returns the name as a terminal may show it; the caller frees it (tern__free). E_MEMORY. */
char *tern__item_name(const tern__content_item *item, tern_error *err);

/* What is shown of a tensor, also of one that tern does not have, of which it knows only the bytes. */
typedef struct tern__tensor_info {
    const tern_tensor *tensor; /* or its bytes                         */
    bool has_values;           /* false: only the bytes                */
    const char *dtype;
    int64_t count;                 /* of elements                          */
    const tern_object *dimensions; /* a tuple; NULL: the tensor's */
    char shape[TERN__SHAPE_TEXT];
} tern__tensor_info;

/* Returns false if the value is no tensor; then *info is not set. */
bool tern__tensor_info_get(tern__tensor_info *info, const tern_object *value);

static inline bool tern__value_is_tensor(const tern_object *value)
{
    tern__tensor_record record;
    return tern_object_to_tensor(value) || tern__tensor_record_read(&record, value);
}

static inline bool tern__item_is_tensor(const tern__content_item *item)
{
    return tern__value_is_tensor(item->value);
}

#endif
