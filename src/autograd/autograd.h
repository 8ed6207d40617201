/* autograd.h - scope and tape from inside: how an op makes its result, records its gradient, and sends
 * gradients on.
 *
 * Whose memory is it? A handle (tern_tensor) lives in the scope's arena until the scope ends. Its storage is
 * counted: one reference by the handle, one by every tape entry that saved it. When a module call returns,
 * the handles made inside it, but for its result, give their reference up; what the tape saved lives on until
 * backward has used it, the rest goes back to the device at once. */
#ifndef TERN_SRC_AUTOGRAD_H
#define TERN_SRC_AUTOGRAD_H

#include "base/trace.h"
#include "kernels/kernel.h"
#include "tensor/tensor.h"

#include <tern/autograd.h>

#define TERN__NODE_INS   5 /* a node has room for at least so many */
#define TERN__NODE_SAVES 6

struct tern_module;

/* A parameter's gradient record. The gradient's memory exists once its module tree is sealed. */
typedef struct tern__leaf {
    const char *name; /* full name once sealed: "layer1.0.conv1.weight"        */
    tern_tensor *parameter;
    tern_tensor *grad;          /* over the sealed gradient range; NULL before the seal  */
    bool fresh;                 /* the gradient holds something: the next write adds     */
    int pending;                /* uses on the running backward's tape still to come     */
    tern__packs packs;          /* the kernels' copies of the parameter                  */
    struct tern_module *module; /* that owns the parameter, for the seal                 */
    int (*seal)(struct tern_module *module, tern_error *err);
    /* Writes the full name, sealed or not. */
    void (*describe)(const struct tern__leaf *leaf, char *text, size_t size);
    struct tern__listener *listener; /* a ddp that waits for this gradient, or NULL          */
    int index;                       /* its place in the seal                                 */
    bool shared;                     /* the tree has it under more than one name              */
} tern__leaf;

/* Who wants to know about a backward (a live ddp). Each call returns TERN_OK or a negative status with *err
 * set. */
typedef struct tern__listener {
    /* Before the first gradient: every leaf's `pending` is final. */
    int (*begin)(struct tern__listener *self, const tern_tensor *loss, tern_error *err);
    /* The last write to a leaf's gradient has happened (leaf->listener == self). */
    int (*ready)(struct tern__listener *self, tern__leaf *leaf, tern_error *err);
    /* After the last gradient. */
    int (*end)(struct tern__listener *self, tern_error *err);
    /* Instead of all these: a leaf of it is reached on a scope that is of another family than `group`, or of
     * none. */
    int (*missed)(struct tern__listener *self, tern_error *err);
    tern_group *group;
    struct tern__listener *next;
} tern__listener;

typedef struct tern__saved {
    tern__view view;
    tern__storage *storage;
    const tern_tensor *member; /* a parameter or buffer, which the seal may move meanwhile */
    tern_device *device;       /* where its ops run, as the tensor's                       */
} tern__saved;

typedef struct tern__node tern__node;

/* Sends the gradient of the node's output on to its inputs; dy may be overwritten if tern__owns_dy says so.
 */
typedef int (*tern__gradient_fn)(tern_scope *scope, tern__node *node);

struct tern__node {
    const char *op;
    tern__gradient_fn gradient;
    tern_tensor *out;
    int in_count;
    tern_tensor **in; /* [in_count]; NULL: absent or without gradient */
    tern__saved saved[TERN__NODE_SAVES];
    tern__saved *aside;         /* [in_count] gradients that are added by and by; NULL: none */
    const void *attr;           /* in the scope's arena             */
    double normaliser;          /* of a loss that is a mean: what its sum was divided by; else NAN */
    const tern__view *divisor;  /* where that is, in a device's memory; else NULL */
    double scale;               /* of a loss that tern__loss_scaled has made: by what; else 1    */
    const tern__view *scale_at; /* where that is, in a device's memory; else NULL */
    bool marked, done;
    bool again;           /* it keeps nothing: backward may go through it once more */
    tern__node *previous; /* on the tape                      */
};

/* ---- scope ---- */

/* Told of every module call that has returned, innermost first. */
typedef struct tern__observer {
    void (*called)(struct tern__observer *self, const struct tern_module *module, const tern_tensor *y);
} tern__observer;

/* Told of every leaf whose gradient is written, before a ddp is. */
typedef struct tern__watch {
    int (*ready)(struct tern__watch *self, tern_scope *scope, const tern__leaf *leaf); /* TERN_OK, or the
                                                                                        * scope's error */
} tern__watch;

/* Where the gradient of one leaf goes in a replica: not into the leaf, which all replicas share. */
typedef struct tern__slot {
    const tern__leaf *leaf;
    tern__view grad;
    bool fresh;
    int pending;
} tern__slot;

/* A leaf that tern_checkpoint's function uses. */
typedef struct tern__use {
    tern__leaf *leaf;
    struct tern__use *next;
} tern__use;

/* What every op of a scope does to its inputs before it looks at them: autocast (amp/autocast.c). */
typedef struct tern__policy {
    tern_dtype dtype; /* of the region: BF16 or F16 */
    /* Puts casts in the places of inputs, which are where the op runs; NULL ones are absent. A failure is the
     * scope's. */
    void (*settle)(const struct tern__policy *self, tern_scope *scope, const char *op, int count,
                   tern_tensor **inputs);
} tern__policy;

/* A parameter's cast: made once in a region, not by every op that uses the parameter. */
typedef struct tern__kept_cast {
    const tern__leaf *leaf;
    uint64_t version;    /* of the parameter that it was made from */
    tern_tensor *tensor; /* in no frame: module calls leave it     */
    struct tern__kept_cast *next;
} tern__kept_cast;
#define TERN__CASTS 64

struct tern_scope {
    tern_device *device; /* its home: of what is made from nothing               */
    tern_device *here;   /* where the running op's inputs are, or home           */
    tern_group *group;
    tern_error error;
    bool grad;                           /* gradients on                                        */
    const tern__policy *policy;          /* NULL: ops take their inputs as they are            */
    tern__kept_cast *casts[TERN__CASTS]; /* of this region, hashed by the leaf                  */
    bool asks;           /* the next backward's loss has a scale: all ranks will be asked whether to step */
    uint64_t generation; /* counted up by tern_scope_end                        */
    uint64_t seed, step; /* of what is drawn; tern_scope_end counts the step up */
    uint64_t stream;     /* the rank, so that each draws its own                */
    uint64_t draws;      /* in this step                                        */
    /* ns: this step's first op since the scope began or last went backward (0: none yet), and its backward */
    int64_t forward_began, backward_began, backward_ended;
    tern__trace *trace; /* the group's, or NULL */
    struct tern__arena
        *arenas[2];       /* this step's and the last one's: a stale handle stays readable for a step */
    tern_tensor *tensors; /* made and not yet given up, newest first             */
    tern__node *tape;     /* newest first                                        */
    int64_t marked;       /* entries of it that the running backward goes through, and has not yet */
    int backwards;        /* in this step                                        */
    int refused;          /* batches that it was not given, because it has failed */
    struct tern__borrowed *borrowed; /* handed back when the scope ends              */
    tern__storage one;               /* the gradient of a loss by itself, on `device`; data NULL: none yet */
    tern_dtype one_dtype;
    tern__observer *observer; /* NULL: nobody */
    tern__watch *watch;       /* of the next backward only; NULL: nobody */

    /* Of a scope in which a part of another one's step is computed (a replica, a recomputation). */
    tern__slot *slots; /* [slot_count] by leaf->index: its gradients; NULL: the leaves' own */
    int slot_count;
    bool is_replica;           /* parameters and buffers count as being on its device            */
    bool keeps_buffers;        /* running statistics are not moved here, but by replica 0 or the first time */
    bool follows;              /* its convolutions are measured elsewhere, by replica 0              */
    tern_scope *child;         /* in which tern_checkpoint computes again; owned, NULL before the first */
    tern__use *uses;           /* leaves met while gradients are off for tern_checkpoint, newest first */
    const tern_tensor *traced; /* the input of that tern_checkpoint, or NULL */
    bool paused;               /* gradients are off in a part of what it tries */
    bool is_again;             /* tern_checkpoint computes again here, within a backward of another scope */
};

/* Its group is of that one's family. */
bool tern__scope_is_of(const tern_scope *scope, const tern_group *group);

/* Records the scope's first error and aborts its group; returns the code. */
int tern__scope_fail(tern_scope *scope, const char *func, int code, const char *fmt, ...) TERN__PRINTF(4, 5);
/* The same with an error that is already filled. */
int tern__scope_fail_with(tern_scope *scope, const tern_error *err);

/* Zeroed memory until the scope ends; NULL sets the scope's error. */
void *tern__scope_alloc(tern_scope *scope, size_t bytes);
/* Calls give_back(ctx) when the scope ends. */
int tern__scope_borrow(tern_scope *scope, void (*give_back)(void *ctx), void *ctx);

/* The policy of the ops that follow, NULL for none; returns what it was. With the last one the casts end. */
const tern__policy *tern__policy_set(tern_scope *scope, const tern__policy *policy);

/* The cast of a parameter that an op may use here and now, or NULL: in this dtype, from the values that it
 * has, on the device of the running op, with a gradient if one is wanted. */
tern_tensor *tern__cast_find(const tern_scope *scope, const tern_tensor *parameter, tern_dtype dtype);
/* Keeps `cast`, the newest tensor of the scope, until the region or the scope ends. */
void tern__cast_keep(tern_scope *scope, const tern_tensor *parameter, tern_tensor *cast);

/* A place in the scope's random numbers, which no other draw of this job has. */
typedef struct tern__draw {
    uint64_t key; /* of the seed and the rank */
    uint64_t step, number;
} tern__draw;
tern__draw tern__scope_draw(tern_scope *scope);
/* The step whose numbers have not been drawn from: the running one only if nothing has happened in it. */
uint64_t tern__scope_next_step(const tern_scope *scope);

/* ---- what an op's forward is made of ---- */

/* True if the op may go on: no error so far and no input stale or released, or on another device than the
 * rest; there the op runs. The first `needed` of all `count` inputs must be there, the others may be NULL.
 * The scope's policy may have put casts of them in their places. */
bool tern__op_enter(tern_scope *scope, const char *op, int needed, int count, tern_tensor **inputs);
/* The same of variables, whose addresses follow. */
#define TERN__ENTER_MAX 8
#define TERN__ENTER(scope, op, needed, ...)                                                                  \
    tern__op_enter_at(scope, op, needed, (int)TERN__COUNT(((tern_tensor **[]){__VA_ARGS__})),                \
                      (tern_tensor * *[]){__VA_ARGS__})
bool tern__op_enter_at(tern_scope *scope, const char *op, int needed, int count, tern_tensor ***inputs);

/* A result with memory of its own. */
tern_tensor *tern__result(tern_scope *scope, tern_dtype dtype, tern__layout layout, int ndim,
                          const int64_t *shape);
/* A tensor at the scope's home over memory that somebody else keeps until the scope ends. */
tern_tensor *tern__result_over(tern_scope *scope, const tern__view *view);
/* A result that shares `source`'s memory under another shape. */
tern_tensor *tern__result_view(tern_scope *scope, const tern_tensor *source, const tern__view *view);
/* Fills in the scope's device and error and runs; false after a failure. */
bool tern__run(tern_scope *scope, tern__call *call);
/* Where a tensor's ops run: a replica has the parameters where it is, so there it is NULL for them. */
tern_device *tern__device_of(const tern_scope *scope, const tern_tensor *tensor);
/* What follows runs where these bytes are. */
void tern__go_to(tern_scope *scope, const void *data);

/* Puts the op on the tape if gradients are on and an input wants one; NULL if not (or on failure). */
tern__node *tern__record(tern_scope *scope, const char *op, tern__gradient_fn gradient, tern_tensor *out,
                         int count, tern_tensor *const *inputs);
/* True if tern__record puts an op on x on the tape with a gradient for x. The first pass of tern_checkpoint
 * keeps a tape only for backwards inside the module's call: of tensors that began to want gradients there. */
bool tern__is_taped(const tern_scope *scope, const tern_tensor *x);
/* Keeps a tensor's data for the gradient; `node` NULL is fine. */
void tern__save(tern__node *node, int slot, const tern_tensor *tensor);
void tern__save_attr(tern_scope *scope, tern__node *node, const void *attr, size_t bytes);

/* Module calls: what is made between enter and leave is given up at leave, but for `result`. */
tern_tensor *tern__frame_enter(tern_scope *scope);
void tern__frame_leave(tern_scope *scope, tern_tensor *mark, tern_tensor *result);

/* ---- what an op's gradient is made of ---- */

static inline bool tern__wants(const tern__node *node, int i)
{
    return node->in[i] != NULL;
}
/* The gradient of the node's output. */
static inline const tern__view *tern__dy(const tern__node *node)
{
    return &node->out->grad;
}
/* True if dy is the 1 that a backward begins with. */
static inline bool tern__dy_is_one(const tern_scope *scope, const tern__node *node)
{
    return node->out->grad_storage == &scope->one;
}
/* True if nobody else holds dy's memory, so that a result may overwrite it. */
bool tern__owns_dy(const tern__node *node);

/* Where the gradient of input i goes, in that input's layout; *add tells whether to add or to store. After
 * writing call tern__grad_done. NULL after a failure. */
const tern__view *tern__grad_open(tern_scope *scope, tern__node *node, int i, bool *add);
int tern__grad_done(tern_scope *scope, tern__node *node, int i);
/* Gives the memory of a tensor of the same scope to input i as its gradient, if that has none yet and would
 * have it like this; false: nothing is done. */
bool tern__grad_share(tern__node *node, int i, const tern_tensor *dx);
/* Gives dy's own memory (perhaps overwritten, seen as `view`) to input i as its gradient. */
int tern__grad_give(tern_scope *scope, tern__node *node, int i, const tern__view *view);
/* The same of what the node has saved, if nobody else holds that either. */
bool tern__owns_saved(const tern__node *node, int slot);
int tern__grad_give_saved(tern_scope *scope, tern__node *node, int i, int slot);

/* Backward through this scope's own tape from `count` results whose gradients are given; dy[i].data NULL:
 * none. No listener is told when it begins or ends. */
int tern__backward_from(tern_scope *scope, int count, tern_tensor *const *outs, const tern__view *dy);

/* The gradient that a tensor has, and what an entry has saved, as tensors of `scope`. */
tern_tensor *tern__grad_tensor(tern_scope *scope, const tern_tensor *tensor);
tern_tensor *tern__saved_tensor(tern_scope *scope, const tern__saved *saved);

/* Temporary memory of a gradient function. */
tern__saved tern__temporary(tern_scope *scope, const tern__view *like);
static inline void tern__saved_drop(tern__saved *saved)
{
    tern__storage_drop(saved->storage);
    *saved = (tern__saved){0};
}

#endif
