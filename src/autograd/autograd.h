/* autograd.h - the scope and the tape as ops see them: making a result, recording a gradient, passing
 * gradients on.
 *
 * Ownership: a handle (tern_tensor) lives in the scope's arena until the scope ends. Its storage is
 * reference counted: the handle holds one reference, and so does every tape entry that saved it. When a
 * module call returns, all handles made inside it except its result drop their reference, as those after a
 * mark do when it is released. Storage that the tape saved lives until backward has used it; the rest goes
 * back to the device at once. */
#ifndef TERN_SRC_AUTOGRAD_H
#define TERN_SRC_AUTOGRAD_H

#include "base/trace.h"
#include "kernels/kernel.h"
#include "tensor/tensor.h"

#include <tern/autograd.h>

#define TERN__NODE_INS   5 /* a node has room for at least this many inputs */
#define TERN__NODE_SAVES 6

struct tern_module;

/* A parameter's gradient record. The gradient's memory exists once its module tree is sealed. */
typedef struct tern__leaf {
    const char *name; /* full name once sealed: "layer1.0.conv1.weight" */
    tern_tensor *parameter;
    tern_tensor *grad;          /* over the sealed gradient range; NULL before the seal */
    bool fresh;                 /* the gradient holds a value, so the next write adds to it */
    int pending;                /* uses that the running backward has yet to reach */
    tern__packs packs;          /* the kernels' own copies of the parameter */
    struct tern_module *module; /* the module that owns the parameter, for the seal */
    int (*seal)(struct tern_module *module, tern_error *err);
    /* Writes the full name, sealed or not. */
    void (*describe)(const struct tern__leaf *leaf, char *text, size_t size);
    struct tern__listener *listener; /* a ddp that waits for this gradient, or NULL */
    int index;                       /* its index in the seal */
    bool shared;                     /* the module tree names it more than once */
} tern__leaf;

/* Callbacks for a live ddp during a backward. Each returns TERN_OK, or a negative status with *err set. */
typedef struct tern__listener {
    /* Called before the first gradient, when every leaf's `pending` is final. */
    int (*begin)(struct tern__listener *self, const tern_tensor *loss, tern_error *err);
    /* Called after the last write to the gradient of a leaf whose listener is `self`. */
    int (*ready)(struct tern__listener *self, tern__leaf *leaf, tern_error *err);
    /* Called after the last gradient. */
    int (*end)(struct tern__listener *self, tern_error *err);
    /* Called instead of the others if backward reaches one of its leaves on a scope without a group, or with
     * a group of another family than `group`. */
    int (*missed)(struct tern__listener *self, tern_error *err);
    tern_group *group;
    struct tern__listener *next;
} tern__listener;

typedef struct tern__saved {
    tern__view view;
    tern__storage *storage;
    const tern_tensor *member; /* set for a parameter or buffer: the seal may move its memory */
    tern_device *device;       /* where ops on it run */
    struct tern__node *maker;  /* set if this entry makes the data again; it has no storage till then */
} tern__saved;

/* The part of its input that a view shows: the offset of its first element in the memory of the input's
 * gradient, which is dense, and the strides of its dimensions there. */
#define TERN__PART_WHOLE (-1)
#define TERN__PART_ODD   (-2)
typedef struct tern__view_part {
    int64_t offset, stride[TERN_NDIM_MAX];
    int dim; /* it shows [start, stop) of this dimension and all of the others; or the whole input, each
                          * element once; or something else */
    int64_t start, stop;
} tern__view_part;

typedef struct tern__node tern__node;

/* Computes the gradients of the node's inputs from that of its output, dy. It may overwrite dy if
 * tern__owns_dy says so. */
typedef int (*tern__gradient_fn)(tern_scope *scope, tern__node *node);
/* Computes the node's result once more from what it has saved. False after a failure. */
typedef bool (*tern__remake_fn)(tern_scope *scope, tern__node *node, const tern__view *y);

struct tern__node {
    const char *op;
    tern__gradient_fn gradient;
    tern_tensor *out;
    int in_count;
    tern_tensor **in; /* [in_count]; NULL: absent, or wants no gradient */
    tern__saved saved[TERN__NODE_SAVES];
    tern__remake_fn remake;       /* of an op that costs little beside a product; else NULL */
    tern__saved remade;           /* its result, once it was made again */
    tern__saved *aside;           /* [in_count] temporary gradients of leaves; NULL: none */
    const void *attr;             /* in the scope's arena */
    const tern__view_part *shows; /* of an op that is a view of input 0; else NULL */
    double normaliser;            /* a mean loss: the number its sum was divided by; else NAN */
    const tern__view *divisor;    /* the normaliser, if it is in a device's memory; else NULL */
    double scale;                 /* the factor that tern__loss_scaled applied; else 1 */
    const tern__view *scale_at;   /* the scale, if it is in a device's memory; else NULL */
    bool marked, done;
    bool again;           /* it saves nothing, so backward may go through it a second time */
    tern__node *previous; /* the entry before it on the tape */
};

/* ---- scope ---- */

/* Called for every module call that has returned, innermost first. */
typedef struct tern__observer {
    void (*called)(struct tern__observer *self, const struct tern_module *module, const tern_tensor *y);
} tern__observer;

/* Called for every leaf whose gradient is complete, before the leaf's ddp is. */
typedef struct tern__watch {
    int (*ready)(struct tern__watch *self, tern_scope *scope, const tern__leaf *leaf); /* TERN_OK, or the
                                                                                        * scope's error */
} tern__watch;

/* Autocast (amp/autocast.c): how ops of the scope convert their inputs before they look at them. */
typedef struct tern__policy {
    tern_dtype dtype; /* the region's dtype: BF16 or F16 */
    /* Replaces inputs by casts of them. All inputs are on the op's device; absent ones are NULL. A failure is
     * set on the scope. */
    void (*settle)(const struct tern__policy *self, tern_scope *scope, const char *op, int count,
                   tern_tensor **inputs);
} tern__policy;

/* A parameter's cast, made once per autocast region and not by every op that uses the parameter. */
typedef struct tern__kept_cast {
    const tern__leaf *leaf;
    uint64_t version;    /* the parameter's version at the time of the cast */
    tern_tensor *tensor; /* belongs to no frame, so no module call releases it */
    struct tern__kept_cast *next;
} tern__kept_cast;
#define TERN__CASTS 64

/* The scope's autocast region. */
typedef struct tern__autocast {
    const tern__policy *policy;          /* NULL: ops take their inputs as they are */
    tern__kept_cast *casts[TERN__CASTS]; /* this region's, hashed by leaf */
} tern__autocast;

/* A replica's gradient of one leaf. All replicas share the leaf, so each has a slot of its own. */
typedef struct tern__slot {
    const tern__leaf *leaf;
    tern__view grad;
    bool fresh;
    int pending;
} tern__slot;

/* The scope's role, if it computes a part of another scope's step: it belongs to a replica
 * (parallel/replica.c), or tern_checkpoint recomputes in it (nn/checkpoint.c). */
typedef struct tern__role {
    tern__slot *slots; /* [slot_count] its gradients by leaf->index; NULL: they go into the leaves */
    int slot_count;
    bool is_replica;    /* parameters and buffers count as being on its device */
    bool is_again;      /* tern_checkpoint recomputes here, inside another scope's backward */
    bool keeps_buffers; /* leaves running statistics alone: replica 0 or the first pass updates them */
    bool follows;       /* replica 0 chooses its convolutions' algorithms */
} tern__role;

/* A leaf that the function of a tern_checkpoint uses. */
typedef struct tern__use {
    tern__leaf *leaf;
    struct tern__use *next;
} tern__use;

/* The tern_checkpoint whose first pass runs in the scope. */
typedef struct tern__first_pass {
    tern_tensor *const *traced; /* [traced_count] its inputs; NULL: none runs */
    int traced_count;
    tern__use *uses;   /* leaves that it uses, newest first */
    bool paused;       /* the user has turned gradients off inside it */
    tern_scope *child; /* where it is recomputed; owned, NULL before the first */
} tern__first_pass;

struct tern_scope {
    tern_device *device; /* home: new tensors are made here */
    tern_device *here;   /* where the running op's inputs are; else home */
    tern_group *group;
    tern_error error;
    bool grad;           /* gradients on */
    bool asks;           /* the next backward's loss is scaled: ranks will agree on whether to step */
    uint64_t generation; /* counted up by tern_scope_end */
    uint64_t seed, step; /* of the random numbers; tern_scope_end counts step up */
    uint64_t stream;     /* the rank, so that each rank draws its own numbers */
    uint64_t draws;      /* in this step */
    /* In ns: the first op of this step or since its last backward (0: none yet); the backward's begin and
     * end. */
    int64_t forward_began, backward_began, backward_ended;
    tern__trace *trace; /* the group's, or NULL */
    struct tern__arena
        *arenas[2];       /* this step's and the previous one's: a stale handle stays readable for a step */
    tern_tensor *tensors; /* live handles, newest first; their `order` never rises from one to the next */
    int64_t made, first;  /* the newest number of a tensor, mark or step; that of this step */
    tern__node *tape;     /* newest first */
    int64_t marked;       /* entries that the running backward has yet to run */
    int backwards;        /* in this step */
    int refused;          /* batches that a loader withheld because the scope has failed */
    struct tern__borrowed *borrowed; /* handed back when the scope ends */
    tern__storage one;               /* a 1, the gradient of every loss, on `device`; data NULL: none yet */
    tern_dtype one_dtype;
    tern__observer *observer; /* or NULL */
    tern__watch *watch;       /* for the next backward only, or NULL */
    tern__autocast autocast;
    tern__role role;
    tern__first_pass checkpoint;
};

/* True if the scope has a group and it is of the same family as `group`. */
bool tern__scope_is_of(const tern_scope *scope, const tern_group *group);

/* Records the scope's first error and aborts its group; returns the code. */
int tern__scope_fail(tern_scope *scope, const char *func, int code, const char *fmt, ...) TERN__PRINTF(4, 5);
/* The same with an error that is already filled in. */
int tern__scope_fail_with(tern_scope *scope, const tern_error *err);

/* Returns zeroed memory that lives until the scope ends. On failure returns NULL and sets the scope's error.
 */
void *tern__scope_alloc(tern_scope *scope, size_t bytes);
/* Calls give_back(ctx) when the scope ends. */
int tern__scope_borrow(tern_scope *scope, void (*give_back)(void *ctx), void *ctx);

/* Sets the policy of the ops that follow (NULL: none) and returns the old one. NULL drops the kept casts. */
const tern__policy *tern__policy_set(tern_scope *scope, const tern__policy *policy);

/* Returns the kept cast of a parameter to `dtype`, or NULL. It was made from the parameter's present values,
 * is on the running op's device, and takes a gradient if the parameter wants one. */
tern_tensor *tern__cast_find(const tern_scope *scope, const tern_tensor *parameter, tern_dtype dtype);
/* Keeps `cast`, which must be the scope's newest tensor, until the region or the scope ends. */
void tern__cast_keep(tern_scope *scope, const tern_tensor *parameter, tern_tensor *cast);

/* A position in the random numbers that no other draw of this job uses. */
typedef struct tern__draw {
    uint64_t key; /* made of the seed and the rank */
    uint64_t step, number;
} tern__draw;
tern__draw tern__scope_draw(tern_scope *scope);
/* Returns the first step that has drawn no numbers: the running one if nothing has happened in it. */
uint64_t tern__scope_next_step(const tern_scope *scope);

/* ---- what an op's forward is made of ---- */

/* Checks an op's inputs and returns true if the op may go on. All inputs must be valid and on one device,
 * where the op then runs; the first `needed` of the `count` must be given, the others may be NULL. The
 * scope's policy may replace inputs by casts of them. */
bool tern__op_enter(tern_scope *scope, const char *op, int needed, int count, tern_tensor **inputs);
/* The same for up to TERN__ENTER_MAX variables, whose addresses follow. */
#define TERN__ENTER_MAX 8
#define TERN__ENTER(scope, op, needed, ...)                                                                  \
    tern__op_enter_at(scope, op, needed, (int)TERN__COUNT(((tern_tensor **[]){__VA_ARGS__})),                \
                      (tern_tensor * *[]){__VA_ARGS__})
bool tern__op_enter_at(tern_scope *scope, const char *op, int needed, int count, tern_tensor ***inputs);

/* Makes a result with memory of its own. */
tern_tensor *tern__result(tern_scope *scope, tern_dtype dtype, tern__layout layout, int ndim,
                          const int64_t *shape);
/* Makes a tensor on the scope's home device over memory that the caller keeps until the scope ends. */
tern_tensor *tern__result_over(tern_scope *scope, const tern__view *view);
/* Makes a result that shares the memory of `source` under another shape. */
tern_tensor *tern__result_view(tern_scope *scope, const tern_tensor *source, const tern__view *view);
/* Runs a kernel on the running op's device. False after a failure, which is set on the scope. */
bool tern__run(tern_scope *scope, tern__call *call);
/* Returns the device on which ops on the tensor run. NULL for a replica's parameters: it has them wherever
 * it runs. */
tern_device *tern__device_of(const tern_scope *scope, const tern_tensor *tensor);
/* Makes the kernels that follow run on the device that holds these bytes. */
void tern__go_to(tern_scope *scope, const void *data);

/* Puts the op on the tape if gradients are on and an input wants one. NULL if not, and on failure. */
tern__node *tern__record(tern_scope *scope, const char *op, tern__gradient_fn gradient, tern_tensor *out,
                         int count, tern_tensor *const *inputs);
/* True if tern__record puts an op on x on the tape, with a gradient for x. In the first pass of
 * tern_checkpoint only tensors that began to want gradients in it are, for backwards inside the call. */
bool tern__is_taped(const tern_scope *scope, const tern_tensor *x);
/* Returns a tensor's data, held until tern__saved_drop. */
tern__saved tern__saved_of(const tern_scope *scope, const tern_tensor *tensor);
/* Saves a tensor's data for the gradient. Does nothing if `node` is NULL. */
void tern__save(tern__node *node, int slot, const tern_tensor *tensor);
/* The same for an operand of a product. On a CPU it is not kept if its op can make it again. */
void tern__save_operand(tern__node *node, int slot, const tern_tensor *tensor);
void tern__save_attr(tern_scope *scope, tern__node *node, const void *attr, size_t bytes);

/* tern_scope_release, of a valid mark, and by whom. Encloses a module call, too. */
void tern__scope_release(tern_scope *scope, int64_t mark, tern__released by, int count,
                         tern_tensor *const *kept);

/* ---- what an op's gradient is made of ---- */

static inline bool tern__wants(const tern__node *node, int i)
{
    return node->in[i] != NULL;
}
/* Returns the gradient of the node's output. */
static inline const tern__view *tern__dy(const tern__node *node)
{
    return &node->out->grad;
}
/* True if dy is the constant 1 with which a backward begins. */
static inline bool tern__dy_is_one(const tern_scope *scope, const tern__node *node)
{
    return node->out->grad_storage == &scope->one;
}
/* True if nothing else holds dy's memory, so a result may overwrite it. */
bool tern__owns_dy(const tern__node *node);

/* Returns the memory for the gradient of input i, in that input's layout, and sets *add if the gradient must
 * be added and not stored. Call tern__grad_done after writing. NULL after a failure. */
const tern__view *tern__grad_open(tern_scope *scope, tern__node *node, int i, bool *add);
int tern__grad_done(tern_scope *scope, tern__node *node, int i);
/* The same for a view: opens what it shows of the gradient of its input, in the shape of `like`. Slices that
 * do not overlap fill one gradient without zeros before them: what none has written becomes 0 when the
 * gradient is used. False after a failure. */
bool tern__grad_open_part(tern_scope *scope, tern__node *node, const tern__view *like, tern__view *seen,
                          bool *add);
/* tern__grad_open for kernels that write any strides: the gradient of a slice is written into that of the
 * tensor it shows. False after a failure. */
bool tern__grad_open_strided(tern_scope *scope, tern__node *node, int i, tern__view *to, bool *add);
/* Computes the gradient of input i, output 0 of `call`, by one kernel. TERN_OK, or the scope's error. */
int tern__grad_run(tern_scope *scope, tern__node *node, int i, tern__call *call);
/* Makes dx, a tensor of the same scope, the gradient of input i without a copy. False, with nothing done, if
 * input i already has a gradient or needs another dtype or layout. */
bool tern__grad_share(tern__node *node, int i, const tern_tensor *dx);
/* Gives the memory of dy, perhaps overwritten and seen as `view`, to input i as its gradient. */
int tern__grad_give(tern_scope *scope, tern__node *node, int i, const tern__view *view);
/* The same for memory that the node has saved, if nothing else holds it. */
bool tern__owns_saved(const tern__node *node, int slot);
int tern__grad_give_saved(tern_scope *scope, tern__node *node, int i, int slot);

/* Runs backward over this scope's own tape from `count` results with the given gradients; skips results whose
 * dy[i].data is NULL. Calls no listener's begin or end. */
int tern__backward_from(tern_scope *scope, int count, tern_tensor *const *outs, const tern__view *dy);

/* Return a tensor's gradient, and what an entry has saved, as tensors of `scope`. */
tern_tensor *tern__grad_tensor(tern_scope *scope, const tern_tensor *tensor);
tern_tensor *tern__saved_tensor(tern_scope *scope, const tern__saved *saved);

/* Returns temporary memory for a gradient function. */
tern__saved tern__temporary(tern_scope *scope, const tern__view *like);
static inline void tern__saved_drop(tern__saved *saved)
{
    tern__storage_drop(saved->storage);
    *saved = (tern__saved){0};
}

#endif
