/* schedule.h - learning rate schedules.
 *
 * A schedule changes the learning rate of every parameter group, by steps or by epochs (t below). Call
 * tern_schedule_step after every optimizer step and tern_schedule_epoch after every epoch: a schedule counts
 * calls in the unit it was made with, and ignores the others. The rate for t = 0 is set at once.
 *
 * Several schedules on one optimizer are applied one after the other in the order in which they were made:
 * factors multiply (torch's ChainedScheduler), so a warm-up can be combined with any other schedule. In the
 * formulas, lr is the rate that a schedule gets; for the first one it is the group's own (tern_optim_lr_set,
 * torch's base_lr). Rates are functions of t, so a resumed run has the same bits as one that never stopped.
 *
 * A schedule in steps that lowers the rate, and has passed its last milestone or `total` when the first epoch
 * ends, logs a warning once: it was probably meant in epochs.
 *
 * Schedules borrow the optimizer. Yours: tern_schedule_free, before the optimizer; it restores the rates as
 * they would be without the schedule. The _new functions return NULL on error: E_INVALID (no optimizer, no
 * such unit), E_RANGE (a number out of its range; if none is stated: below 0, or `every`, `total` or a period
 * below 1), E_MEMORY.
 *
 * Threads: a schedule belongs to its optimizer's thread. */
#ifndef TERN_SCHEDULE_H
#define TERN_SCHEDULE_H

#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_schedule tern_schedule;
/* What a schedule counts. */
typedef enum tern_unit { TERN_UNIT_STEPS, TERN_UNIT_EPOCHS } tern_unit;

/* ---- schedules: each comment says what the rate becomes ---- */

/* lr factor until `total`, then lr. torch's ConstantLR. */
TERN_API tern_schedule *tern_constant_schedule_new(tern_optim *optim, tern_unit unit, double factor,
                                                   int64_t total, tern_error *err);
/* lr gamma^(t / every), the exponent rounded down. torch's StepLR. */
TERN_API tern_schedule *tern_step_schedule_new(tern_optim *optim, tern_unit unit, int64_t every, double gamma,
                                               tern_error *err);
/* lr gamma^n, where n is the number of milestones <= t. `milestones` are at least one, ascend from 0
 * (E_RANGE), and are copied. torch's MultiStepLR. */
TERN_API tern_schedule *tern_multi_step_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                                     const int64_t *milestones, double gamma,
                                                     tern_error *err);
/* lr gamma^t. torch's ExponentialLR. */
TERN_API tern_schedule *tern_exponential_schedule_new(tern_optim *optim, tern_unit unit, double gamma,
                                                      tern_error *err);
/* lr (start + (end - start) min(t, total) / total): the usual warm-up. torch's LinearLR. */
TERN_API tern_schedule *tern_linear_schedule_new(tern_optim *optim, tern_unit unit, double start, double end,
                                                 int64_t total, tern_error *err);
/* lr (1 - min(t, total) / total)^power. torch's PolynomialLR. */
TERN_API tern_schedule *tern_polynomial_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                     double power, tern_error *err);
/* lr (t + 1) / warm_up while t < warm_up, then lr (1 + cos(pi (t - warm_up) / (total - warm_up))) / 2, and 0
 * from `total` on. E_RANGE unless 0 <= warm_up <= total. Loshchilov and Hutter 2017, without restarts. */
TERN_API tern_schedule *tern_cosine_schedule_new(tern_optim *optim, tern_unit unit, int64_t warm_up,
                                                 int64_t total, tern_error *err);
/* Sets the lowest rate of such a schedule, to which it then falls instead of 0: min + (lr - min) (1 +
 * cos(..)) / 2 after the warm-up, and min from `total` on. E_INVALID: another schedule; E_RANGE: below 0.
 * transformers' get_cosine_with_min_lr_schedule_with_warmup. */
TERN_API int tern_cosine_schedule_min_set(tern_schedule *schedule, double min, tern_error *err);
/* min + (lr - min) (1 + cos(pi t / total)) / 2; it rises again after `total`. torch's CosineAnnealingLR. */
TERN_API tern_schedule *tern_cosine_annealing_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                           double min, tern_error *err);
/* The same from lr to min in the first `first` units, then again in `times` as many, and so on. torch's
 * CosineAnnealingWarmRestarts. */
TERN_API tern_schedule *tern_cosine_restarts_schedule_new(tern_optim *optim, tern_unit unit, int64_t first,
                                                          int64_t times, double min, tern_error *err);

/* lr fn(t, group, ctx), where `fn` must return the same on all ranks; it is called whenever rates are
 * computed. `ctx` must outlive the schedule. torch's LambdaLR. */
typedef double (*tern_schedule_fn)(int64_t t, int group, void *ctx);
TERN_API tern_schedule *tern_lambda_schedule_new(tern_optim *optim, tern_unit unit, tern_schedule_fn fn,
                                                 void *ctx, tern_error *err);

typedef struct tern_one_cycle_opts {
    size_t size;
    double pct_start;        /* share of the cycle in which the rate rises, in [0, 1]; default 0.3        */
    bool linear;             /* change along lines; default false: along a cosine                         */
    bool three_phase;        /* fall to the first rate in as many steps as the rise, then on to the last;
                              * default false                                                             */
    bool cycle_momentum;     /* lower the momentum (or beta1) while the rate rises, raise it while the rate
                              * falls; default true                                                       */
    double base_momentum;    /* lowest momentum, in [0, 1); default 0.85                                  */
    double max_momentum;     /* highest momentum, in [0, 1); default 0.95                                 */
    double div_factor;       /* the first rate is lr / div_factor; > 0; default 25                        */
    double final_div_factor; /* the last rate is the first / final_div_factor; > 0; default 1e4           */
} tern_one_cycle_opts;
TERN_API tern_one_cycle_opts tern_one_cycle_defaults(void);

/* One cycle: the rate goes from lr / div_factor up to lr (torch's max_lr) and down again within `total`.
 * After that it keeps its last value; torch fails there. tern_schedule_free restores the groups' own
 * momentum. E_INVALID: cycle_momentum for an optimizer without a momentum > 0 or beta1. torch's OneCycleLR
 * (Smith and Topin 2018). */
TERN_API tern_schedule *tern_one_cycle_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                    const tern_one_cycle_opts *opts, tern_error *err);

typedef struct tern_plateau_opts {
    size_t size;
    bool maximize;    /* a larger metric is better; default false                                  */
    bool absolute;    /* threshold is a difference; default false: a share of the best metric      */
    double factor;    /* in [0, 1); default 0.1                                                    */
    int64_t patience; /* number of metrics in a row that may be no better; default 10              */
    double threshold; /* smallest change that counts as better; default 1e-4                       */
    int64_t cooldown; /* metrics that are ignored after a reduction; default 0                     */
    double min;       /* no rate falls below it; default 0                                         */
    double eps;       /* smaller changes of the rate are not made; default 1e-8                    */
} tern_plateau_opts;
TERN_API tern_plateau_opts tern_plateau_defaults(void);

/* max(lr factor, min), whenever the metric has not become better for more than `patience` calls of
 * tern_schedule_metric; these calls are what it counts. torch's ReduceLROnPlateau. */
TERN_API tern_schedule *tern_plateau_schedule_new(tern_optim *optim, const tern_plateau_opts *opts,
                                                  tern_error *err);
/* Gives a plateau schedule (else E_INVALID) the metric of an epoch. If the optimizer's model has a tern_ddp
 * this is collective, and rank 0's metric counts on all ranks, since different rates would let the models
 * drift apart: E_PEER. */
TERN_API int tern_schedule_metric(tern_schedule *schedule, double metric, tern_error *err);

/* Runs schedules one after the other: part i counts from 0 at milestones[i - 1] until milestones[i]. There
 * are count - 1 milestones, which ascend from 1 (E_RANGE). The parts then belong to the sequence, are freed
 * with it, and do nothing on their own. On error they stay yours: E_INVALID (a part is missing, has another
 * optimizer or unit, has begun, or is a part already), E_UNSUPPORTED (a plateau). torch's SequentialLR. */
TERN_API tern_schedule *tern_sequential_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                                     tern_schedule *const *parts, const int64_t *milestones,
                                                     tern_error *err);

/* Frees a schedule, and restores the rates as they would be without it. */
TERN_API void tern_schedule_free(tern_schedule *schedule);

/* Count one step, or one epoch, and set the rates. */
TERN_API void tern_schedule_step(tern_schedule *schedule);
TERN_API void tern_schedule_epoch(tern_schedule *schedule);
/* Returns the numbers of torch's state_dict() for the scheduler of that class: "last_epoch" (t),
 * "_step_count", "base_lrs" (the groups' own rates), "_last_lr", the options, a plateau's "best",
 * "num_bad_epochs" and "cooldown_counter", a sequence's "_milestones" and "_schedulers"; in addition, tern's
 * own "max_lrs" of a one-cycle and "num_reductions" of a plateau. NULL on error: E_INVALID (no schedule),
 * E_MEMORY. Yours: tern_object_free. */
TERN_API tern_object *tern_schedule_state_dict(const tern_schedule *schedule, tern_error *err);
/* Sets t, the groups' own rates, and a plateau's counters from a state; the options stay those that the
 * schedule was made with. Also takes torch's state; a plateau's does not contain the number of reductions, so
 * the present rates stay, as in torch, and it will reduce them further. After an error nothing has changed,
 * and its text names the key: E_INVALID (no schedule, a missing key, another number of groups or parts, a
 * part of a sequence), E_DTYPE, E_RANGE (a value that does not fit). */
TERN_API int tern_schedule_state_dict_load(tern_schedule *schedule, const tern_object *state,
                                           tern_error *err);

/* ---- the rate for a larger batch ---- */

/* Returns lr k^p, NAN unless k > 0. A step with k times as many samples (k ranks, or k times the batch) needs
 * a larger rate. p = 1 is the linear rule (Goyal et al. 2017). p = 1/2 keeps the variance of an SGD step
 * (Krizhevsky 2014; also for Adam and LAMB, You et al. 2020). p = 2/3 is in between: 8 ranks, 4 times the
 * rate. For a factor of your own take k = factor and p = 1.
 *
 * A scaled rate is too large for the first epochs. Goyal et al. start from the unscaled rate and rise to the
 * scaled one in five epochs: tern_linear_schedule_new(optim, TERN_UNIT_STEPS, tern_lr_scale(1, k, -p), 1,
 * steps of five epochs, err). */
TERN_API double tern_lr_scale(double lr, double k, double p);

#ifdef __cplusplus
}
#endif
#endif
