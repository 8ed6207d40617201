/* optim.h - an optimizer from inside: groups of parameters, their state, and the rule of the update. */
#ifndef TERN_SRC_OPTIM_H
#define TERN_SRC_OPTIM_H

#include "kernels/norm_factors.h"
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "nn/nn.h"

#include <tern/optim.h>

/* A rule's own states, and the f32 master of a parameter of 16 bits (master.c). State s is the kernel's
 * output 1 + s, but the master takes the place of p, and p becomes the copy of it. */
#define TERN__OPTIM_STATES (TERN__OPTIM_MASTER + 1)
#define TERN__OPTIM_MASTER 3

typedef struct tern_schedule tern_schedule;

typedef struct tern__optim_group {
    union {
        struct {
            size_t size;
            double lr;
        } any; /* what all begin with */
        tern_sgd_opts sgd;
        tern_adam_opts adam;
        tern_rmsprop_opts rmsprop;
        tern_adagrad_opts adagrad;
        tern_lamb_opts lamb;
    } opts;
    double lr;       /* before the schedules                    */
    double rate;     /* what they make of it, for the next step */
    double momentum; /* the option, while a schedule has changed it */
    bool is_cycled;  /* one has                                     */
    unsigned states; /* bit s: a parameter has the rule's state s */
} tern__optim_group;

static inline tern__step_attr tern__step_attr_make(double lr, bool maximize, double weight_decay,
                                                   int64_t count)
{
    return (tern__step_attr){lr, maximize ? -1 : 1, weight_decay, (double)count};
}

/* A key of torch's param_groups, and where it lies in `opts` of a group. */
typedef enum tern__option_kind {
    TERN__OPTION_REAL,
    TERN__OPTION_BOOL,
    TERN__OPTION_PAIR,  /* two reals, one after the other: a tuple         */
    TERN__OPTION_NONE,  /* None, and ignored: torch's choice of its code   */
    TERN__OPTION_FALSE, /* False, and ignored                              */
    TERN__OPTION_STEP,  /* apex's: the most steps of a parameter; read only where parameters have none */
} tern__option_kind;

typedef struct tern__option {
    const char *name; /* NULL ends a list; "lr" is not in it */
    tern__option_kind kind;
    size_t offset;
} tern__option;

/* What optimizers differ in. The kernel's input is the gradient, its outputs are the parameter and
 * the states. */
typedef struct tern__optim_rule {
    const char *name; /* "adamw" */
    tern__kernel kernel;
    /* The kernel's attributes for a parameter's own step number `count`, from 1. */
    tern__optim_attr (*attr)(const tern__optim_group *group, int64_t count);
    size_t attr_bytes;                      /* of that member of the union */
    const char *states[TERN__OPTIM_MASTER]; /* torch's names                                        */
    bool counts;                            /* the update depends on how many steps there were       */
    bool stepless;                          /* torch's has no "step" in its state                    */
    /* What torch's has in its states before a parameter's first step; NULL: nothing is there. */
    double (*initial)(const tern__optim_group *group);
    const tern__option *options; /* in torch's order                                      */
    const void *defaults;        /* of a group's options                                */
    size_t opts_bytes;
    /* Checks a group's options, and says by them which states it has. */
    int (*settle)(const char *func, tern__optim_group *group, tern_error *err);
} tern__optim_rule;

/* Bytes of a range. */
typedef struct tern__slice {
    size_t begin, end;
} tern__slice;

static inline tern__slice tern__slice_cut(tern__slice a, tern__slice b)
{
    return (tern__slice){TERN__MAX(a.begin, b.begin), TERN__MIN(a.end, b.end)};
}

static inline size_t tern__slice_bytes(tern__slice slice)
{
    return slice.end > slice.begin ? slice.end - slice.begin : 0;
}

/* Of steps that may be none (skips.c): numbers in the memory of the parameters, once somebody has looked for
 * what is not finite. */
typedef struct tern__skips {
    double *bad;     /* how many numbers of the gradients were not finite when somebody looked last     */
    double *verdict; /* in a device's memory: the next step is none, unless it is 0; only while `skip`   */
    double *scale;   /* by what the gradients are multiplied, while `is_scaled`                          */
    double *factor;  /* a place for what is made of it                                                   */
    double *steps;   /* [leaf_count] in a device's memory: how many of the optimizer's were none         */
    bool *apart;     /* [leaf_count] it and its neighbour before have not made the same steps            */
} tern__skips;

/* Slices of an optimizer are cut at multiples of it, and so are its parameters where norms are made. */
#define TERN__SECTION ((size_t)4096)

/* What norms say (norm.c): of all sections and parameters, range by range. */
typedef struct tern__norms {
    int *first;           /* [leaf_count] a parameter's first section       */
    int *place;           /* [leaf_count] its row among the parameters    */
    int sections, leaves; /* how many there are                           */
    /* In the memory of the parameters. */
    tern__section *
        table; /* [sections] elements and leaf; then [leaves] rows of sums and leaf; NULL: nobody needs any */
    double *own;     /* [sections][2]                                  */
    double *sums;    /* the same, or what takes its place in a shard's window */
    double *factors; /* [leaf_count + group_count][3]                */
} tern__norms;

struct tern_optim {
    const tern__optim_rule *rule;
    tern__seal *seal; /* borrowed from the module                                  */
    int *group_of;    /* [leaf_count]; -1: a parameter that is not under the module */
    int64_t *steps;   /* [leaf_count] updates of each parameter                     */
    tern__optim_group *groups;
    int group_count;
    bool begun; /* there is state: groups and shards are final                 */
    /* Of each range, what our parameters lie in, and what of it this rank updates: all without a shard. State
     * is parallel to that; NULL if no group wants it. */
    tern__slice all[TERN__RANGES], own[TERN__RANGES];
    char *state[TERN__OPTIM_STATES][TERN__RANGES]; /* in the range's memory */
    bool masters;       /* parameters of 16 bits have an f32 master, and state of f32 */
    uint64_t *versions; /* [leaf_count] of the parameter that its master is of */
    bool skip;          /* the next step is none, or as skips.verdict says, if that is away */
    bool is_scaled;     /* its gradients are multiplied by skips.scale  */
    tern__skips skips;
    tern__norms norms;
    struct tern_optim *next;   /* of the seal                                          */
    struct tern__shard *shard; /* NULL: not sharded */
    tern_larc_opts larc;       /* size 0: not wanted */
    tern_schedule *schedules;  /* all that are alive, the oldest first */
};

/* An optimizer with one group of all parameters under `module`, and another group, whose number is returned;
 * opts: the caller's, or NULL. NULL, or an error code, sets *err in the name of `func`. */
tern_optim *tern__optim_new(const char *func, const tern__optim_rule *rule, tern_module *module,
                            const void *opts, tern_error *err);
int tern__optim_group_add(const char *func, tern__kernel kernel, tern_optim *optim, tern_parameter_fn belongs,
                          void *ctx, const void *opts, tern_error *err);

/* It has a gradient to be updated with. */
static inline bool tern__optim_is_due(const tern_optim *optim, int k)
{
    return optim->group_of[k] >= 0 && optim->seal->leaves[k]->fresh;
}
static inline size_t tern__optim_end(const tern_optim *optim, int k)
{
    return optim->seal->offset[k] + tern__view_bytes(&optim->seal->leaves[k]->parameter->view);
}
static inline bool tern__optim_is_lamb(const tern_optim *optim)
{
    return optim->rule->kernel == TERN__LAMB;
}
/* Its updates have factors that norms decide. */
static inline bool tern__optim_has_norms(const tern_optim *optim)
{
    return tern__optim_is_lamb(optim) || optim->larc.size;
}
/* Where its parameters are, the first of them; NULL: in the host's memory. */
tern_device *tern__optim_device(const tern_optim *optim);
/* Calls `visit` with what is due, in runs of neighbours that may be updated together: the leaves from `first`
 * to `last` of one range. False after a failure, as the next. */
typedef bool (*tern__update_fn)(tern_optim *optim, tern_scope *scope, int first, int last);
bool tern__optim_each_update(tern_optim *optim, tern_scope *scope, tern__update_fn visit);
/* Runs the rule's kernel, or LAMB_MOMENTS, over this rank's part of such a run. `factors`, (3) in a device's
 * memory or (leaf_count, 3), may be NULL. */
bool tern__optim_run(tern_optim *optim, tern_scope *scope, tern__kernel kernel, int first, int last,
                     const tern__optim_attr *attr, const tern__view *factors);
/* Where a group has its weight decay; NULL: its rule has none. */
double *tern__optim_decay(const tern_optim *optim, tern__optim_group *group);
/* The option of this name, or NULL. */
const tern__option *tern__option_find(const tern__optim_rule *rule, const char *name);

/* ---- norm.c ---- */

/* Tables and sums; they are there, and factors too, before the updates of a step. */
int tern__norms_open(const char *func, tern_optim *optim, tern_error *err);
int tern__norms_begin(tern_optim *optim, tern_error *err);
void tern__norms_free(tern_optim *optim);
/* How many sections of the leaves from `first` to `last` of one range lie in a slice; *section: the first. */
int tern__norm_sections(const tern_optim *optim, int first, int last, tern__slice slice, int *section);
/* Operands: `count` sections, and their sums; factors (leaf_count, 3), and a group's (3). */
tern__view tern__norm_table(const tern_optim *optim, int section, int count);
tern__view tern__norm_sums(const tern_optim *optim, int section, int count);
tern__view tern__norm_factors_of_leaves(const tern_optim *optim);
tern__view tern__norm_factors_of_group(const tern_optim *optim, int g);
/* The sum of the squares of x, or of each of its sections; false after a failure, as the next. */
bool tern__norm_squares(tern_scope *scope, const tern__view *x, const tern__view *sections,
                        const tern__view *sums);
/* What sums (n, 1) say: three factors. */
bool tern__norm_decide(tern_scope *scope, const tern__norm_attr *attr, const tern__view *sums,
                       const tern__view *factors);
/* What the sums of the leaves from `first` to `last` of one range say of each. */
bool tern__norm_decide_leaves(tern_optim *optim, tern_scope *scope, const tern__norm_attr *attr, int first,
                              int last);

/* ---- larc.c ---- */

/* Before the updates of a step: the factors of all parameters. False after a failure. */
bool tern__larc_prepare(tern_optim *optim, tern_scope *scope);

/* ---- lamb.c ---- */

/* Before the updates of a step: moments, norms, trust ratios. */
int tern__lamb_prepare(tern_optim *optim, tern_scope *scope, tern_error *err);
/* The updates of this group have factors. */
bool tern__lamb_has_trust(const tern_optim *optim, int g);

/* ---- master.c ---- */

static inline bool tern__optim_has_master(const tern_optim *optim, int r)
{
    tern_dtype dtype = optim->seal->ranges[r].dtype;
    return optim->masters && tern__dtype_is_half(dtype);
}
/* In which the state of a range is kept. */
static inline tern_dtype tern__optim_dtype(const tern_optim *optim, int r)
{
    return tern__optim_has_master(optim, r) ? TERN_F32 : optim->seal->ranges[r].dtype;
}
/* How many bytes of state belong to so many of the range's parameters. */
static inline size_t tern__optim_scaled(const tern_optim *optim, int r, size_t bytes)
{
    return bytes / tern_dtype_bytes(optim->seal->ranges[r].dtype) *
           tern_dtype_bytes(tern__optim_dtype(optim, r));
}
/* Masters are to be compared with their parameters. */
void tern__masters_forget(tern_optim *optim);
/* Before an update of the leaves from `first` to `last` of one range: masters of parameters that somebody has
 * written to follow them. False after a failure. */
bool tern__masters_follow(tern_optim *optim, tern_scope *scope, int first, int last);

/* ---- unscale.c: the gradients of an optimizer ---- */

/* Calls `visit` with all that there are, as runs of neighbours; false after a failure. */
typedef bool (*tern__run_fn)(tern_scope *scope, const tern__view *run, void *ctx);
bool tern__optim_each_run(const tern_optim *optim, tern_scope *scope, tern__run_fn visit, void *ctx);
/* Whether there is a gradient of this dtype. */
bool tern__optim_has_grad(const tern_optim *optim, tern_dtype dtype);
/* Multiplies all that there are with *factor; adds to *bad how many numbers were not finite; *any: there are
 * some. False after a failure. */
bool tern__optim_unscale(tern_optim *optim, tern_scope *scope, const double *factor, double *bad, bool *any);
/* Multiplies all that there are with *factor, but zeros take their place if a device says that the next step
 * is none; false after a failure. */
bool tern__optim_rescale(tern_optim *optim, tern_scope *scope, const double *factor);
/* There are none any more. */
void tern__optim_forget(tern_optim *optim);
/* In place of a step: forgets the gradients. */
void tern__optim_skip(tern_optim *optim);

/* ---- skips.c ---- */

/* Before somebody looks: `bad` is there, and 0. False after a failure. */
bool tern__skips_begin(tern_optim *optim, tern_scope *scope);
/* The next step is none: in a device's memory if *bad is not 0, in the host's as the caller has seen that. */
bool tern__skips_vote(tern_optim *optim, tern_scope *scope, const double *bad);
/* Before the updates of a step that a device may skip. */
bool tern__skips_count(tern_optim *optim, tern_scope *scope);
/* `steps` are right: waits for what a device has counted. */
int tern__skips_settle(tern_optim *optim, tern_error *err);
void tern__skips_free(tern_optim *optim);

/* ---- state.c ---- */

/* Makes the state that the groups want, zeros, if it is not there. */
int tern__optim_state_open(tern_optim *optim, const char *func, tern_error *err);
void tern__optim_state_drop(tern_optim *optim);

/* Parameter k, which is ours, has state s. */
bool tern__optim_keeps(const tern_optim *optim, int k, int s);
const char *tern__optim_state_name(const tern_optim *optim, int s);
/* Dtype and shape of the states of parameter k. */
tern__view tern__optim_state_view(const tern_optim *optim, int k);

/* ---- state_dict.c ---- */

/* *numbers, the caller's: [*count] the leaves in the order in which torch numbers parameters. */
int tern__optim_numbers(const tern_optim *optim, const char *func, int **numbers, int *count,
                        tern_error *err);

/* ---- schedule.c ---- */

/* The groups' rates for the next step. */
void tern__schedules_apply(tern_optim *optim);

/* ---- shard.c ---- */

typedef struct tern__shard tern__shard;

tern_group *tern__shard_group(const tern_optim *optim);
/* The bytes of range r that rank `rank` updates; all of them without a shard. */
tern__slice tern__shard_slice(const tern_optim *optim, int r, int rank);
/* Before the updates of a step. */
int tern__shard_begin(tern_optim *optim, tern_error *err);
/* Tells of an update of the bytes `run` of range r, in rising order, with these attributes. */
void tern__shard_note(tern_optim *optim, int r, tern__slice run, const tern__optim_attr *attr);
/* Each rank's slices of what was noted go to all others. */
int tern__shard_exchange(tern_optim *optim, tern_error *err);
/* Adds to what is compared between ranks. */
void tern__shard_digest(tern_optim *optim, const void *data, size_t bytes);
/* The sums of LAMB's sections come together on all ranks. */
int tern__shard_sums(tern_optim *optim, tern_error *err);
/* The peers need not wait for a step that this rank does not make. */
void tern__shard_fail(tern_optim *optim, const tern_error *err);
void tern__shard_free(tern_optim *optim);

#endif
