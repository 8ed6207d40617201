/* nn.h - the inside of the module tree, and its seal. */
#ifndef TERN_SRC_NN_H
#define TERN_SRC_NN_H

#include "autograd/autograd.h"

#include <tern/nn.h>

/* A parameter or a buffer; parameters have a leaf. A second name of a parameter (tern_parameter_share) is a
 * member whose tensor has the memory and the leaf of the first. */
typedef struct tern__member {
    char *name;   /* local: "weight"                           */
    void *memory; /* before the seal, owned; NULL in a range   */
    tern_tensor tensor;
    tern__leaf leaf;
    bool is_buffer;
    bool is_transient; /* a buffer that stays out of the state dict */
    struct tern__member *next;
    struct tern__member *names; /* the next name of this parameter, or NULL */
} tern__member;

/* True unless the member is a second name of another member's parameter. */
static inline bool tern__member_owns(const tern__member *member)
{
    return member->is_buffer || member->tensor.leaf == &member->leaf;
}

/* The settings of amp for a tree, kept in its root and made before the seal. All zero: no amp. */
typedef struct tern__precision {
    bool set;
    const tern__policy *policy; /* set on a scope by its first call of the module; NULL: none           */
    bool casts;                 /* casts the module's f32 inputs to `input`, its results to `output`    */
    tern_dtype input, output;   /* TERN_DTYPE_NONE: no cast                                             */
    bool masters;               /* optimizers keep f32 masters of 16-bit parameters                     */
    bool gradients_f32;         /* gradients of 16-bit parameters are f32                               */
} tern__precision;

/* For errors about the order of set-up. */
#define TERN__SETUP_ORDER "the order is SyncBN, amp, DDP, optimizer, steps"

typedef struct tern__module_tree {
    tern_module *module, *parent;
    char *name;                /* under the parent */
    char options[112];         /* " stride 2x2 padding 1x1": what it computes, beside kind and parameters */
    bool heap;                 /* made by a _new function: freed with its parent */
    bool is_checkpointed;      /* tern_module_checkpoint_set */
    tern_forward_fn forward;   /* the original one: the module's may have been replaced             */
    tern_forward_fn with_relu; /* forward plus a following ReLU as one operation, or NULL           */
    struct tern__module_tree *children, *last_child, *next;
    tern__member *members, *last_member; /* in registration order */
    tern__precision precision;           /* of the root                           */
    struct tern__seal *seal;             /* of the root, once sealed; owned by it */
    tern_state_entry *state;             /* the flat list, made when first asked for; names owned */
    int state_count;                     /* of the state dict                   */
    int entry_count;                     /* with the transient buffers after it */
} tern__module_tree;

/* The address range of all parameters of one dtype in one device's memory, and the parallel one of their
 * gradients. Parameters that require no gradient at the seal have ranges of their own: an optimizer keeps no
 * state for them, and a ddp's buckets have none of them beside others. */
typedef struct tern__range {
    tern_dtype dtype, grad_dtype;
    bool is_frozen;
    tern_device *device;      /* NULL: the host's memory */
    size_t bytes, grad_bytes; /* multiples of the page size */
    char *params, *grads;
} tern__range;

#define TERN__RANGES 16

/* Returns the offset in the gradients' range of the parameter at `offset` in the parameters' range. */
static inline size_t tern__grad_offset(const tern__range *range, size_t offset)
{
    return offset / tern_dtype_bytes(range->dtype) * tern_dtype_bytes(range->grad_dtype);
}

typedef struct tern__seal {
    tern_module *root;
    int leaf_count;
    tern__leaf **leaves; /* in reverse registration order, roughly that in which backward finishes them */
    int *range_of;       /* [leaf_count]                   */
    size_t *offset;      /* [leaf_count] byte offset in its range */
    tern__range ranges[TERN__RANGES];
    int range_count;
    char *buffers;                     /* one range for all of the host's buffers of every dtype */
    size_t buffer_bytes;               /* 0: no buffers on the host; a device's buffers are not moved   */
    tern__listener *attached;          /* the ddp that shares the gradients, or NULL */
    tern_group *group;                 /* its group                                  */
    bool is_asked;                     /* an optimizer on some rank has all ranks agree on whether to step */
    struct tern_optim *optims;         /* all live ones, newest first */
    struct tern__shard_blocks *blocks; /* sharded optimizers' windows over the parameters, or NULL */
} tern__seal;

/* A linear, and its low-rank adapter (tern/lora.h). */
typedef struct tern__linear tern__linear;
typedef struct tern__lora {
    tern__linear *a,
        *b; /* without biases, the children "lora_A" and "lora_B"; NULL: the linear has no adapter */
    double lora_alpha, scale, dropout;
    bool use_rslora;
    bool is_merged; /* the weight contains the product, and a call passes a and b over */
} tern__lora;

struct tern__linear {
    tern_module base;
    tern_tensor *weight, *bias; /* bias: or NULL */
    bool is_turned;             /* the weight is (in, out) */
    tern__lora lora;
};

/* Returns the module if it is a linear, else NULL. */
tern__linear *tern__linear_of(const tern_module *module);
/* tern_linear_new without initial values: zeros. */
tern_module *tern__linear_new_zeros(int64_t in, int64_t out, bool bias, const char *func, tern_error *err);
/* The same with a weight (in, out) and a bias: transformers' Conv1D. */
tern_module *tern__linear_new_turned(int64_t in, int64_t out, const char *func, tern_error *err);
/* tern_embedding_new in the same way. */
tern_module *tern__embedding_new_zeros(int64_t count, int64_t size, const tern_embedding_opts *opts,
                                       tern_error *err);
/* Allocates a module of `bytes` bytes whose first field is a tern_module. Free it with tern_module_free. */
void *tern__module_new(size_t bytes, const char *kind, tern_forward_fn forward, tern_error *err);
tern_module *tern__module_root(tern_module *module);
/* Returns the number of modules in the tree, including `module`. */
int tern__module_count(const tern_module *module);

/* Gives a member of an unsealed tree the memory in `view`, which has its shape, under all its names. */
void tern__member_place(tern__member *member, const tern__view *view);

/* Calls `forward`, with the casts of amp around it. */
tern_tensor *tern__module_call(tern_module *module, tern_scope *scope, tern_tensor *x,
                               tern_forward_fn forward);
/* tern_forward, calling `forward` in place of the module's own. */
tern_tensor *tern__forward_by(tern_module *module, tern_scope *scope, tern_tensor *x,
                              tern_forward_fn forward);
/* A call with several inputs, and with options that the module's own forward takes the defaults of. */
typedef struct tern__call_kind {
    const char *func, *kind;
    tern_forward_fn made; /* the module's own forward, which tells the kind of module */
    tern_tensor *(*forward)(tern_module *module, tern_scope *scope, tern_tensor *const *x, const void *opts);
    int needed, count; /* the first `needed` of the `count` inputs must be given, the others may be NULL */
    size_t opts;       /* bytes of the options; 0: it has none */
} tern__call_kind;
#define TERN__CALL_INPUTS 8
/* Calls kind->forward, with the casts of amp around it. */
tern_tensor *tern__module_call_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                      tern_tensor **x, const void *opts);
/* tern_forward for such a call. E_INVALID: another kind of module. */
tern_tensor *tern__forward_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                  tern_tensor **x, const void *opts);
/* Both whether or not the module is set to be checkpointed: once, and as a checkpoint. */
tern_tensor *tern__forward_once(tern_module *module, tern_scope *scope, tern_tensor *x,
                                tern_forward_fn forward);
tern_tensor *tern__forward_inputs_once(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                       tern_tensor **x, const void *opts);
tern_tensor *tern__checkpoint_by(tern_module *module, tern_scope *scope, tern_tensor *x,
                                 tern_forward_fn forward);
tern_tensor *tern__checkpoint_inputs(const tern__call_kind *kind, tern_module *module, tern_scope *scope,
                                     tern_tensor **x, const void *opts);
/* torch.nn.LayerNorm(features, eps, bias=bias), of checked arguments. */
tern_module *tern__layer_norm_new(int64_t features, double eps, bool bias, tern_error *err);
bool tern__is_relu(const tern_module *module);
/* Applies the module's amp settings to a scope in which it is called. */
void tern__precision_enter(const tern_module *module, tern_scope *scope);
/* tern_module_cast, before the seal; with `keep_batch_norm`, batch norms keep their dtype. */
int tern__module_cast(tern_module *module, tern_dtype dtype, bool keep_batch_norm, tern_error *err);

/* Ends a module call that began at `mark`: releases all handles made since, except y. Returns y,
 * or NULL after a failure. */
tern_tensor *tern__module_return(const tern_module *module, tern_scope *scope, int64_t mark, tern_tensor *y);

/* Add to the module's options text, as " stride 2x2" or " eps 1e-05". For _new functions. */
void tern__options_add(tern_module *module, const char *name, int count, const int64_t *values);
void tern__options_add_real(tern_module *module, const char *name, double value);

/* Seals the whole tree of `module`, if it is not sealed yet. Returns the seal, or NULL with *err set. */
tern__seal *tern__module_seal(tern_module *module, tern_error *err);
void tern__seal_free(tern__seal *seal);
/* Prepares a change of the tree: drops the state's list. E_STATE after the seal; E_INVALID: not a valid name.
 */
int tern__tree_open(tern_module *module, const char *func, const char *name, tern_error *err);
/* Frees a child that a call has taken over and could not add; NULL does nothing. */
void tern__child_drop(tern_module *child);
/* Makes tree->state if there is none: for each module its parameters, its buffers, then its children. */
int tern__module_state(const tern_module *module, tern_error *err);
/* tern_state_find, where a lack of memory is an error. */
tern_tensor *tern__state_find(const tern_module *module, const char *name, tern_error *err);
/* Return the number of all parameters and buffers, and entry `index`: those of the state dict, then the
 * buffers that are not in it. */
int tern__entry_count(const tern_module *module);
tern_state_entry tern__entry_get(const tern_module *module, int index);
/* True if entry `index` is a second name of a parameter that an earlier entry has. */
bool tern__state_repeats(const tern_module *module, int index);
/* Returns the first member under `module`, in the state's order, that is this parameter; or NULL. */
const tern__member *tern__leaf_member(const tern_module *module, const tern__leaf *leaf);
/* True if the parameter is under `module` by any of its names. */
bool tern__leaf_is_under(const tern__leaf *leaf, const tern_module *module);
/* Sets requires_grad under every name of the leaf's parameter. */
void tern__leaf_require(tern__leaf *leaf, bool required);
/* Writes the module's full name, "layer1.0.conv1"; "" for the root. */
void tern__module_describe(const tern_module *module, char *text, size_t size);
/* Writes the parameter's present full name, "layer1.0.conv1.weight". */
void tern__leaf_describe(const tern__leaf *leaf, char *text, size_t size);
/* Marks the kernels' copies stale, after the parameters were written. */
void tern__seal_touch(tern__seal *seal);

#endif
