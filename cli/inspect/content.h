/* content.h - what a file holds, as `tern inspect` and `tern convert` see it: its tensors, each with the name
 * that the keys on the way to it make. */
#ifndef TERN_CLI_INSPECT_CONTENT_H
#define TERN_CLI_INSPECT_CONTENT_H

#include "tensor/object.h"

/* A value that is no container, or an empty one, and its path: "model.conv1.weight",
 * "optimizer.state[3].exp_avg". */
typedef struct tern__content_item {
    char *name;
    size_t name_bytes;
    const tern_object *value;
} tern__content_item;

typedef struct tern__content {
    tern__content_item *items; /* in the file's order */
    int64_t count, room;
} tern__content;

/* Of a record the arguments and the state are listed. What tern_load returns is neither too deep for
 * recursion nor without end. E_MEMORY. */
int tern__content_list(tern__content *content, const tern_object *object, tern_error *err);
void tern__content_free(tern__content *content);
/* By name; then an item of the same name is found, or NULL. */
void tern__content_sort(tern__content *content);
const tern__content_item *tern__content_find(const tern__content *content, const tern__content_item *like);

/* A tern__flag_fn for --memory: reads MiB that a file may take beyond its size into a size_t of bytes. */
bool tern__memory_take(const char *who, char *text, void *to);

static inline bool tern__item_is_tensor(const tern__content_item *item)
{
    return tern_object_kind_get(item->value) == TERN_OBJECT_TENSOR;
}

#endif
