/* optim.h - the inside of an optimizer: groups of parameters, their state, and the update rule. */
#ifndef TERN_SRC_OPTIM_H
#define TERN_SRC_OPTIM_H

#include "kernels/norm_factors.h"
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "nn/nn.h"

#include <tern/optim.h>

#include <string.h>

/* A rule's own states, and the f32 master of a 16-bit parameter (master.c). State s is the kernel's output 1
 * + s, but a master takes the place of p, and p is its rounded copy. */
#define TERN__OPTIM_STATES (TERN__OPTIM_MASTER + 1)
#define TERN__OPTIM_MASTER 3

typedef struct tern_schedule tern_schedule;

typedef struct tern__optim_group {
    union {
        struct {
            size_t size;
            double lr;
        } any; /* the fields that all begin with */
        tern_sgd_opts sgd;
        tern_adam_opts adam;
        tern_rmsprop_opts rmsprop;
        tern_adagrad_opts adagrad;
        tern_lamb_opts lamb;
    } opts;
    double lr;       /* before the schedules                           */
    double rate;     /* after them, for the next step                  */
    double momentum; /* the option's own value, while it is cycled     */
    bool is_cycled;  /* a schedule has changed the momentum            */
    unsigned states; /* bit s: the parameters have the rule's state s  */
} tern__optim_group;

static inline tern__step_attr tern__step_attr_make(double lr, bool maximize, double weight_decay,
                                                   int64_t count)
{
    return (tern__step_attr){lr, maximize ? -1 : 1, weight_decay, (double)count};
}

/* A key of torch's param_groups, and its offset in a group's `opts`. */
typedef enum tern__option_kind {
    TERN__OPTION_REAL,
    TERN__OPTION_BOOL,
    TERN__OPTION_PAIR,  /* two reals, one after the other: a tuple                    */
    TERN__OPTION_NONE,  /* written as None, and ignored: chooses torch's implementation */
    TERN__OPTION_FALSE, /* written as False, and ignored                              */
    TERN__OPTION_STEP,  /* apex's: the most steps of a parameter; read only if parameters have none */
} tern__option_kind;

typedef struct tern__option {
    const char *name; /* NULL ends a list; "lr" is not in it */
    tern__option_kind kind;
    size_t offset;
} tern__option;

/* The rule of an optimizer: all that optimizers differ in. The kernel's input is the gradient, its outputs
 * are the parameter and the states. */
typedef struct tern__optim_rule {
    const char *name; /* "adamw" */
    tern__kernel kernel;
    /* The kernel's attributes for a parameter's own step number `count`, from 1. */
    tern__optim_attr (*attr)(const tern__optim_group *group, int64_t count);
    size_t attr_bytes;                      /* of that member of the union */
    const char *states[TERN__OPTIM_MASTER]; /* torch's names                           */
    bool counts;                            /* the update depends on the step's number */
    bool stepless;                          /* torch's state has no "step"             */
    /* Returns the value of torch's states before a parameter's first step; NULL: there are none then. */
    double (*initial)(const tern__optim_group *group);
    const tern__option *options; /* in torch's order     */
    const void *defaults;        /* of a group's options */
    size_t opts_bytes;
    /* Checks a group's options, and sets its states by them. */
    int (*settle)(const char *func, tern__optim_group *group, tern_error *err);
    /* NULL: there is one pass. A rule with trust ratios has a first pass, which is made before the updates of
     * a step; its kernel sums up norms by section. */
    int (*first_pass)(tern_optim *optim, tern_scope *scope, tern_error *err);
    /* Whether the updates of a group have trust ratios; only with a first pass. */
    bool (*has_trust)(const tern__optim_group *group);
} tern__optim_rule;

/* The option of this name, or NULL. */
static inline const tern__option *tern__option_find(const tern__optim_rule *rule, const char *name)
{
    const tern__option *option = rule->options;
    while (option->name && strcmp(option->name, name)) option++;
    return option->name ? option : NULL;
}

/* A slice of a range, in bytes. */
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

/* The numbers of steps that may be skipped (skips.c), in the memory of the parameters. They are NULL until
 * gradients are first checked for overflow. */
typedef struct tern__skips {
    double *bad;     /* how many elements of the gradients were not finite in the last check              */
    double *verdict; /* in a device's memory, valid while `skip`: the next step is skipped unless it is 0 */
    double *scale;   /* the factor that the gradients are multiplied by, while `is_scaled`                */
    double *factor;  /* scratch for a factor computed from it                                             */
    double *steps;   /* [leaf_count] in a device's memory: how many of its steps were skipped             */
    bool *apart;     /* [leaf_count] it has not made the same steps as its neighbour before               */
} tern__skips;

/* The bytes of a section. An optimizer's slices are cut at multiples of it, and norms are summed in such
 * units. */
#define TERN__SECTION ((size_t)4096)

/* The tables and sums of norms (norm.c), for all sections and parameters, range by range. */
typedef struct tern__norms {
    int *first;           /* [leaf_count] a parameter's first section       */
    int *place;           /* [leaf_count] its row among the parameters    */
    int sections, leaves; /* their numbers                                */
    /* In the memory of the parameters. */
    tern__section *
        table; /* [sections] elements and leaf; then [leaves] rows of sums and leaf; NULL: nobody needs any */
    double *own;     /* [sections][2]                                  */
    double *sums;    /* `own`, or a shard's block in its place        */
    double *factors; /* [leaf_count + group_count][3]                */
} tern__norms;

struct tern_optim {
    const tern__optim_rule *rule;
    tern__seal *seal;    /* borrowed from the module                                  */
    tern_device *device; /* of the first parameter that is on one; NULL: the host  */
    int *group_of;       /* [leaf_count]; -1: a parameter that is not under the module */
    int64_t *steps;      /* [leaf_count] updates of each parameter                     */
    tern__optim_group *groups;
    int group_count;
    bool begun; /* there is state, so groups and shards are final              */
    /* By range: the slice with the optimizer's parameters, and the part of it that this rank updates (without
     * a shard, all of it). State is parallel to that part; NULL if no group wants it. */
    tern__slice all[TERN__RANGES], own[TERN__RANGES];
    char *state[TERN__OPTIM_STATES][TERN__RANGES]; /* in the range's memory */
    bool masters;       /* parameters of 16 bits have an f32 master, and state of f32 */
    uint64_t *versions; /* [leaf_count] the parameter's version that its master corresponds to */
    bool skip;          /* the next step is skipped; if skips.verdict is on a device, unless that is 0 */
    bool is_scaled;     /* the gradients are multiplied by skips.scale     */
    tern__skips skips;
    tern__norms norms;
    struct tern_optim *next;   /* of the seal                                          */
    struct tern__shard *shard; /* NULL: not sharded */
    tern_larc_opts larc;       /* size 0: no LARC */
    tern_schedule *schedules;  /* the live ones, the oldest first */
};

/* Makes an optimizer with one group of all parameters under `module`; adds another group and returns its
 * number. `opts` are the caller's, or NULL. On NULL, or a negative status, *err is set in the name of `func`.
 */
tern_optim *tern__optim_new(const char *func, const tern__optim_rule *rule, tern_module *module,
                            const void *opts, tern_error *err);
int tern__optim_group_add(const char *func, tern__kernel kernel, tern_optim *optim, tern_parameter_fn belongs,
                          void *ctx, const void *opts, tern_error *err);

/* Whether leaf k has a gradient and is to be updated. */
static inline bool tern__optim_is_due(const tern_optim *optim, int k)
{
    return optim->group_of[k] >= 0 && optim->seal->leaves[k]->fresh;
}
static inline size_t tern__optim_end(const tern_optim *optim, int k)
{
    return optim->seal->offset[k] + tern__view_bytes(&optim->seal->leaves[k]->parameter->view);
}
/* A group's weight decay; NULL: its rule has none. */
double *tern__optim_decay(const tern_optim *optim, tern__optim_group *group);

/* ---- update.c ---- */

/* Calls `visit` for all due leaves, in runs of neighbours that may be updated together: the leaves `first` to
 * `last` of one range. Like the next function, false after a failure. */
typedef bool (*tern__update_fn)(tern_optim *optim, tern_scope *scope, int first, int last);
bool tern__optim_each_update(tern_optim *optim, tern_scope *scope, tern__update_fn visit);
/* Runs the rule's kernel, or that of its first pass, over this rank's part of such a run. `factors` is (3)
 * in a device's memory, (leaf_count, 3), or NULL. */
bool tern__optim_run(tern_optim *optim, tern_scope *scope, tern__kernel kernel, int first, int last,
                     const tern__optim_attr *attr, const tern__view *factors);

/* ---- norm.c ---- */

/* _open makes the tables and sums; _begin makes them, and the factors, ready for the updates of a step. */
int tern__norms_open(const char *func, tern_optim *optim, tern_error *err);
int tern__norms_begin(tern_optim *optim, tern_error *err);
void tern__norms_free(tern_optim *optim);
/* Returns how many sections of the leaves `first` to `last` of one range are in a slice; *section is the
 * first. */
int tern__norm_sections(const tern_optim *optim, int first, int last, tern__slice slice, int *section);
/* Operands for kernels: `count` sections, and their sums; the factors (leaf_count, 3), and a group's (3). */
tern__view tern__norm_table(const tern_optim *optim, int section, int count);
tern__view tern__norm_sums(const tern_optim *optim, int section, int count);
tern__view tern__norm_factors_of_leaves(const tern_optim *optim);
tern__view tern__norm_factors_of_group(const tern_optim *optim, int g);
/* Sums the squares of x, or of each of its sections. Like the next functions, false after a failure. */
bool tern__norm_squares(tern_scope *scope, const tern__view *x, const tern__view *sections,
                        const tern__view *sums);
/* Computes three factors from sums (n, 1). */
bool tern__norm_decide(tern_scope *scope, const tern__norm_attr *attr, const tern__view *sums,
                       const tern__view *factors);
/* Computes the factors of each of the leaves `first` to `last` of one range from their sums. */
bool tern__norm_decide_leaves(tern_optim *optim, tern_scope *scope, const tern__norm_attr *attr, int first,
                              int last);

/* ---- larc.c ---- */

/* To be called before the updates of a step: computes the factors of all parameters. False after a failure.
 */
bool tern__larc_prepare(tern_optim *optim, tern_scope *scope);

/* ---- master.c ---- */

static inline bool tern__optim_has_master(const tern_optim *optim, int r)
{
    tern_dtype dtype = optim->seal->ranges[r].dtype;
    return optim->masters && tern__dtype_is_half(dtype);
}
/* The dtype in which the state of a range is kept. */
static inline tern_dtype tern__optim_dtype(const tern_optim *optim, int r)
{
    return tern__optim_has_master(optim, r) ? TERN_F32 : optim->seal->ranges[r].dtype;
}
/* The bytes of state that belong to `bytes` of the range's parameters. */
static inline size_t tern__optim_scaled(const tern_optim *optim, int r, size_t bytes)
{
    return bytes / tern_dtype_bytes(optim->seal->ranges[r].dtype) *
           tern_dtype_bytes(tern__optim_dtype(optim, r));
}
/* Makes all masters be compared with their parameters before the next update. */
void tern__masters_forget(tern_optim *optim);
/* To be called before an update of the leaves `first` to `last` of one range: updates the masters of
 * parameters that were written to. False after a failure. */
bool tern__masters_follow(tern_optim *optim, tern_scope *scope, int first, int last);

/* ---- unscale.c: the gradients of an optimizer ---- */

/* Calls `visit` with all gradients, in runs of neighbours; false after a failure. */
typedef bool (*tern__run_fn)(tern_scope *scope, const tern__view *run, void *ctx);
bool tern__optim_each_run(const tern_optim *optim, tern_scope *scope, tern__run_fn visit, void *ctx);
/* Whether there is a gradient with this dtype. */
bool tern__optim_has_grad(const tern_optim *optim, tern_dtype dtype);
/* Multiplies all gradients by *factor and adds to *bad how many elements were not finite; *any: there are
 * gradients. False after a failure. */
bool tern__optim_unscale(tern_optim *optim, tern_scope *scope, const double *factor, double *bad, bool *any);
/* Multiplies all gradients by *factor, or zeroes them if a device has decided that the next step is skipped;
 * false after a failure. */
bool tern__optim_rescale(tern_optim *optim, tern_scope *scope, const double *factor);
/* Drops all gradients. */
void tern__optim_forget(tern_optim *optim);
/* To be called in place of a step: drops the gradients. */
void tern__optim_skip(tern_optim *optim);

/* ---- skips.c ---- */

/* To be called before gradients are checked: allocates `bad` and sets it to 0. False after a failure. */
bool tern__skips_begin(tern_optim *optim, tern_scope *scope);
/* Makes the next step be skipped: if *bad is in a device's memory, unless it is 0; in the host's memory
 * always, as the caller has seen that it is not 0. */
bool tern__skips_vote(tern_optim *optim, tern_scope *scope, const double *bad);
/* To be called before the updates of a step that a device may skip: counts it there. */
bool tern__skips_count(tern_optim *optim, tern_scope *scope);
/* Corrects `steps` by the device's counts, which it waits for. */
int tern__skips_settle(tern_optim *optim, tern_error *err);
void tern__skips_free(tern_optim *optim);

/* ---- state.c ---- */

/* Allocates the state that the groups want, zeroed, unless it is there; of frozen parameters only once one of
 * them has a gradient, or given[k] is not 0 for it. */
int tern__optim_state_open(tern_optim *optim, const unsigned *given, const char *func, tern_error *err);
void tern__optim_state_drop(tern_optim *optim);

/* Whether parameter k, which must be the optimizer's, has state s. */
bool tern__optim_keeps(const tern_optim *optim, int k, int s);
const char *tern__optim_state_name(const tern_optim *optim, int s);
/* A view with the dtype and shape of parameter k's states. */
tern__view tern__optim_state_view(const tern_optim *optim, int k);

/* ---- state_dict.c ---- */

/* Sets *numbers, which the caller frees, to the *count leaves in the order in which torch numbers parameters.
 */
int tern__optim_numbers(const tern_optim *optim, const char *func, int **numbers, int *count,
                        tern_error *err);

/* ---- schedule.c ---- */

/* Computes the groups' rates for the next step. */
void tern__schedules_apply(tern_optim *optim);

/* ---- shard.c ---- */

typedef struct tern__shard tern__shard;

tern_group *tern__shard_group(const tern_optim *optim);
/* The slice of range r that rank `rank` updates; without a shard, all of it. */
tern__slice tern__shard_slice(const tern_optim *optim, int r, int rank);
/* To be called before the updates of a step. */
int tern__shard_begin(tern_optim *optim, tern_error *err);
/* Notes an update of the bytes `run` of range r with these attributes; runs come in rising order. */
void tern__shard_note(tern_optim *optim, int r, tern__slice run, const tern__optim_attr *attr);
/* Exchanges the ranks' slices of the noted runs. */
int tern__shard_exchange(tern_optim *optim, tern_error *err);
/* Adds to the digest that ranks compare. */
void tern__shard_digest(tern_optim *optim, const void *data, size_t bytes);
/* Exchanges the sums of a first pass. */
int tern__shard_sums(tern_optim *optim, tern_error *err);
/* Tells the peers that this rank does not make the step, so that they do not wait for it. */
void tern__shard_fail(tern_optim *optim, const tern_error *err);
void tern__shard_free(tern_optim *optim);

#endif
