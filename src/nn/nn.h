/* nn.h - the module tree from inside, and its seal. */
#ifndef TERN_SRC_NN_H
#define TERN_SRC_NN_H

#include "autograd/autograd.h"

#include <tern/nn.h>

/* A parameter or a buffer; parameters have a leaf. */
typedef struct tern__member {
    char *name;   /* local: "weight"                           */
    void *memory; /* before the seal, owned; NULL in a range   */
    tern_tensor tensor;
    tern__leaf leaf;
    bool is_buffer;
    struct tern__member *next;
} tern__member;

typedef struct tern__module_tree {
    tern_module *module, *parent;
    char *name; /* under the parent */
    bool heap;  /* made by a _new function: freed with its parent */
    struct tern__module_tree *children, *last_child, *next;
    tern__member *members, *last_member; /* in registration order */
    struct tern__seal *seal;             /* of the root, once sealed; owned by it */
    tern_state_entry *state;             /* the flat list, made when first asked for; names owned */
    int state_count;
} tern__module_tree;

/* The parameters of one dtype: one address range, and a parallel one for gradients. */
typedef struct tern__range {
    tern_dtype dtype;
    size_t bytes; /* a multiple of the page size */
    char *params, *grads;
} tern__range;

typedef struct tern__seal {
    tern_module *root;
    int leaf_count;
    tern__leaf **leaves; /* in reverse registration order: as backward finishes them, by and large */
    int *range_of;       /* [leaf_count]                   */
    size_t *offset;      /* [leaf_count] byte offset in its range */
    tern__range ranges[TERN_DTYPE_COUNT];
    int range_count;
    char *buffers;       /* one range for all buffers of every dtype */
    size_t buffer_bytes; /* 0: no buffers */
    void *attached;      /* the ddp that shares the gradients, or NULL */
    tern_group *group;   /* its group                                  */
    void *share;         /* sharded optimizers' windows over the parameters, or NULL */
} tern__seal;

/* Heap-allocates a module of `bytes` bytes whose first field is tern_module; freed by tern_module_free. */
void *tern__module_new(size_t bytes, const char *kind, tern_forward_fn forward, tern_error *err);
tern_module *tern__module_root(tern_module *module);

/* Ends a module call that began with tern__frame_enter: what it made is given up but for y. Returns y, or
 * NULL after a failure. */
tern_tensor *tern__module_return(const tern_module *module, tern_scope *scope, tern_tensor *mark,
                                 tern_tensor *y);

/* Seals the tree that `module` belongs to (once); returns the seal or NULL with *err set. */
tern__seal *tern__module_seal(tern_module *module, tern_error *err);
void tern__seal_free(tern__seal *seal);
/* Makes tree->state if it is not there: per module its parameters, its buffers, then its children. */
int tern__module_state(const tern_module *module, tern_error *err);
/* Writes the parameter's full name, "layer1.0.conv1.weight", as it is now in the tree. */
void tern__leaf_describe(const tern__leaf *leaf, char *text, size_t size);
/* After the parameters were written: kernels' copies are stale. */
void tern__seal_touch(tern__seal *seal);

#endif
