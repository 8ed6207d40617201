/* nn.h - the module tree from inside, and its seal. */
#ifndef TERN_SRC_NN_H
#define TERN_SRC_NN_H

#include "autograd/autograd.h"

#include <tern/nn.h>

/* A parameter or a buffer; parameters have a leaf. Another name of a parameter (tern_parameter_share) is a
 * member whose tensor has that one's memory and leaf. */
typedef struct tern__member {
    char *name;   /* local: "weight"                           */
    void *memory; /* before the seal, owned; NULL in a range   */
    tern_tensor tensor;
    tern__leaf leaf;
    bool is_buffer;
    struct tern__member *next;
    struct tern__member *names; /* further ones of this parameter; NULL at the last */
} tern__member;

/* Not another name of somebody else's parameter. */
static inline bool tern__member_owns(const tern__member *member)
{
    return member->is_buffer || member->tensor.leaf == &member->leaf;
}

/* What amp has made of a tree, in its root: all before the seal. Zeros: nothing. */
typedef struct tern__precision {
    bool set;
    const tern__policy *policy; /* of a scope from its first call of the module on; NULL: none          */
    bool casts;                 /* the module's f32 inputs become `input`, its results `output`         */
    tern_dtype input, output;   /* TERN_DTYPE_COUNT: as they are                                        */
    bool masters;               /* optimizers keep f32 masters of parameters of 16 bits                 */
    bool gradients_f32;         /* gradients of parameters of 16 bits are f32                           */
} tern__precision;

/* In errors about it. */
#define TERN__SETUP_ORDER "the order is SyncBN, amp, DDP, optimizer, steps"

typedef struct tern__module_tree {
    tern_module *module, *parent;
    char *name;                /* under the parent */
    char options[112];         /* " stride 2x2 padding 1x1": beside kind and parameters, what it computes */
    bool heap;                 /* made by a _new function: freed with its parent */
    tern_forward_fn forward;   /* as it was made with: the module's may have been replaced          */
    tern_forward_fn with_relu; /* forward and a ReLU after it as one operation; NULL: there is none */
    struct tern__module_tree *children, *last_child, *next;
    tern__member *members, *last_member; /* in registration order */
    tern__precision precision;           /* of the root                           */
    struct tern__seal *seal;             /* of the root, once sealed; owned by it */
    tern_state_entry *state;             /* the flat list, made when first asked for; names owned */
    int state_count;
} tern__module_tree;

/* The parameters of one dtype in one memory: one address range, and a parallel one for gradients. */
typedef struct tern__range {
    tern_dtype dtype, grad_dtype;
    tern_device *device;      /* whose memory it is in; NULL: the host's */
    size_t bytes, grad_bytes; /* multiples of the page size */
    char *params, *grads;
} tern__range;

#define TERN__RANGES 16

/* Where the gradients of what lies at `offset` of the parameters lie. */
static inline size_t tern__grad_offset(const tern__range *range, size_t offset)
{
    return offset / tern_dtype_bytes(range->dtype) * tern_dtype_bytes(range->grad_dtype);
}

typedef struct tern__seal {
    tern_module *root;
    int leaf_count;
    tern__leaf **leaves; /* in reverse registration order: as backward finishes them, by and large */
    int *range_of;       /* [leaf_count]                   */
    size_t *offset;      /* [leaf_count] byte offset in its range */
    tern__range ranges[TERN__RANGES];
    int range_count;
    char *buffers;                   /* one range for all of the host's buffers of every dtype */
    size_t buffer_bytes;             /* 0: no buffers; those in a device's memory stay where they are */
    tern__listener *attached;        /* the ddp that shares the gradients, or NULL */
    tern_group *group;               /* its group                                  */
    bool is_asked;                   /* an optimizer, here or on another rank, asks all whether to step */
    struct tern_optim *optims;       /* all that are alive, the newest first */
    struct tern__shard_panes *panes; /* sharded optimizers' windows over the parameters, or NULL */
} tern__seal;

/* Heap-allocates a module of `bytes` bytes whose first field is tern_module; freed by tern_module_free. */
void *tern__module_new(size_t bytes, const char *kind, tern_forward_fn forward, tern_error *err);
tern_module *tern__module_root(tern_module *module);
/* Of the tree under it, itself included. */
int tern__module_count(const tern_module *module);

/* Hands the member, before the seal, the memory in `view`, of its shape, under all its names. */
void tern__member_place(tern__member *member, const tern__view *view);

/* Calls a module's forward, with what amp has made of it. */
tern_tensor *tern__module_call(tern_module *module, tern_scope *scope, tern_tensor *x,
                               tern_forward_fn forward);
/* tern_forward with this function in the place of the module's own. */
tern_tensor *tern__forward_by(tern_module *module, tern_scope *scope, tern_tensor *x,
                              tern_forward_fn forward);
bool tern__is_relu(const tern_module *module);
/* The scope is one in which amp's model is called. */
void tern__precision_enter(const tern_module *module, tern_scope *scope);
/* tern_module_cast, before the seal; with `keep_batch_norm` tensors of batch norms stay as they are. */
int tern__module_cast(tern_module *module, tern_dtype dtype, bool keep_batch_norm, tern_error *err);

/* Ends a module call that began with tern__frame_enter: what it made is given up but for y. Returns y, or
 * NULL after a failure. */
tern_tensor *tern__module_return(const tern_module *module, tern_scope *scope, tern_tensor *mark,
                                 tern_tensor *y);

/* For a _new function to say what its module computes: " stride 2x2", " eps 1e-05" */
void tern__options_add(tern_module *module, const char *name, int count, const int64_t *values);
void tern__options_add_real(tern_module *module, const char *name, double value);

/* Seals the tree that `module` belongs to (once); returns the seal or NULL with *err set. */
tern__seal *tern__module_seal(tern_module *module, tern_error *err);
void tern__seal_free(tern__seal *seal);
/* Before the tree changes: E_STATE after the seal, E_INVALID for a name that is none; the lists of the state
 * are forgotten. */
int tern__tree_open(tern_module *module, const char *func, const char *name, tern_error *err);
/* Makes tree->state if it is not there: per module its parameters, its buffers, then its children. */
int tern__module_state(const tern_module *module, tern_error *err);
/* Entry `index` is another name of a parameter that is there before. */
bool tern__state_repeats(const tern_module *module, int index);
/* The first member under `module` that is this parameter, in the order of the state; NULL: none. */
const tern__member *tern__leaf_member(const tern_module *module, const tern__leaf *leaf);
/* Under any of its names. */
bool tern__leaf_is_under(const tern__leaf *leaf, const tern_module *module);
/* Calls for every name of the parameter that the leaf is of. */
void tern__leaf_require(tern__leaf *leaf, bool required);
/* Writes the module's full name, "layer1.0.conv1"; "" for the root. */
void tern__module_describe(const tern_module *module, char *text, size_t size);
/* Writes the parameter's full name, "layer1.0.conv1.weight", as it is now in the tree. */
void tern__leaf_describe(const tern__leaf *leaf, char *text, size_t size);
/* After the parameters were written: kernels' copies are stale. */
void tern__seal_touch(tern__seal *seal);

#endif
