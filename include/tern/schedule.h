/* schedule.h - schedules of the learning rate.
 *
 * Threads: a schedule belongs to its optimizer's thread. */
#ifndef TERN_SCHEDULE_H
#define TERN_SCHEDULE_H

#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A schedule makes of every group's learning rate another one, by the step or by the epoch.
 *
 * Call tern_schedule_step after every optimizer step and tern_schedule_epoch after every epoch: a schedule
 * counts in the unit that it was made with and ignores the other call. t = 0 is set at once. Of several on
 * one optimizer each takes what those before have made of the rate: factors multiply (torch's
 * ChainedScheduler), so a warm-up goes with any other. Below, lr is that rate; of a single schedule it is the
 * group's own (tern_optim_lr_set, torch's base_lr). Rates are functions of t, so a resumed run has the bits
 * of one that never stopped. A schedule that lowers the rate, is made in steps and has passed its last
 * milestone or `total` when the first epoch ends warns once: it was probably meant in epochs.
 *
 * They borrow the optimizer. Yours: tern_schedule_free, before the optimizer; the rates are then as if it had
 * not been. E_INVALID: no optimizer, no such unit; E_RANGE: a number that cannot be, by default one below 0,
 * `every`, `total` or a period below 1; E_MEMORY. */

typedef struct tern_schedule tern_schedule;
typedef enum tern_unit { TERN_UNIT_STEPS, TERN_UNIT_EPOCHS } tern_unit;

/* torch's ConstantLR: lr factor until `total`, then lr. */
TERN_API tern_schedule *tern_constant_schedule_new(tern_optim *optim, tern_unit unit, double factor,
                                                   int64_t total, tern_error *err);
/* torch's StepLR: lr gamma^(t / every), rounded down. */
TERN_API tern_schedule *tern_step_schedule_new(tern_optim *optim, tern_unit unit, int64_t every, double gamma,
                                               tern_error *err);
/* torch's MultiStepLR: lr gamma^(milestones <= t); `milestones`, at least one, rise from 0 on (E_RANGE) and
 * are copied. */
TERN_API tern_schedule *tern_multi_step_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                                     const int64_t *milestones, double gamma,
                                                     tern_error *err);
/* torch's ExponentialLR: lr gamma^t. */
TERN_API tern_schedule *tern_exponential_schedule_new(tern_optim *optim, tern_unit unit, double gamma,
                                                      tern_error *err);
/* torch's LinearLR, the usual warm-up: lr (start + (end - start) min(t, total) / total). */
TERN_API tern_schedule *tern_linear_schedule_new(tern_optim *optim, tern_unit unit, double start, double end,
                                                 int64_t total, tern_error *err);
/* torch's PolynomialLR: lr (1 - min(t, total) / total)^power. */
TERN_API tern_schedule *tern_polynomial_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                     double power, tern_error *err);
/* lr (t + 1) / warm_up while t < warm_up, then lr (1 + cos(pi (t - warm_up) / (total - warm_up))) / 2, and 0
 * from `total` on (Loshchilov and Hutter 2017, without restarts). E_RANGE unless 0 <= warm_up <= total. */
TERN_API tern_schedule *tern_cosine_schedule_new(tern_optim *optim, tern_unit unit, int64_t warm_up,
                                                 int64_t total, tern_error *err);
/* torch's CosineAnnealingLR: min + (lr - min) (1 + cos(pi t / total)) / 2; it rises again after `total`. */
TERN_API tern_schedule *tern_cosine_annealing_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                           double min, tern_error *err);
/* torch's CosineAnnealingWarmRestarts: the same from lr to min in `first` steps or epochs, then anew in
 * `times` as many, and so on. */
TERN_API tern_schedule *tern_cosine_restarts_schedule_new(tern_optim *optim, tern_unit unit, int64_t first,
                                                          int64_t times, double min, tern_error *err);

/* torch's LambdaLR: lr fn(t, group, ctx). The same on all ranks; called whenever rates are computed. */
typedef double (*tern_schedule_fn)(int64_t t, int group, void *ctx);
TERN_API tern_schedule *tern_lambda_schedule_new(tern_optim *optim, tern_unit unit, tern_schedule_fn fn,
                                                 void *ctx, tern_error *err);

typedef struct tern_one_cycle_opts {
    size_t size;
    double pct_start;        /* share of the steps in which the rate rises, in [0, 1]; default 0.3       */
    bool linear;             /* between the turning points; default false: along a cosine                */
    bool three_phase;        /* falls to the first rate as long as it rose, then on; default false       */
    bool cycle_momentum;     /* default true: the momentum, or beta1, falls while the rate rises, and    */
    double base_momentum;    /* rises while it falls: between this, default 0.85,                        */
    double max_momentum;     /* and this, default 0.95; both in [0, 1)                                   */
    double div_factor;       /* begins with lr / div_factor, > 0; default 25                             */
    double final_div_factor; /* and ends with that / final_div_factor, > 0; default 1e4                  */
} tern_one_cycle_opts;
TERN_API tern_one_cycle_opts tern_one_cycle_defaults(void);

/* torch's OneCycleLR (Smith and Topin 2018): from lr / div_factor up to lr, which torch calls max_lr, and
 * down again within `total`; it stays there after, where torch fails. E_INVALID: cycle_momentum for an
 * optimizer without a momentum > 0 or beta1. Without the schedule the groups have their own momentum again.
 */
TERN_API tern_schedule *tern_one_cycle_schedule_new(tern_optim *optim, tern_unit unit, int64_t total,
                                                    const tern_one_cycle_opts *opts, tern_error *err);

typedef struct tern_plateau_opts {
    size_t size;
    bool maximize;    /* larger is better; default false                                           */
    bool absolute;    /* threshold is a difference, not a share of the best; default false         */
    double factor;    /* in [0, 1); default 0.1                                                    */
    int64_t patience; /* metrics that may be no better in a row; default 10                        */
    double threshold; /* by which a better one is better; default 1e-4                             */
    int64_t cooldown; /* metrics that do not count after a reduction; default 0                    */
    double min;       /* no rate falls below; default 0                                            */
    double eps;       /* changes that are not larger are not made; default 1e-8                    */
} tern_plateau_opts;
TERN_API tern_plateau_opts tern_plateau_defaults(void);

/* torch's ReduceLROnPlateau: lr = max(lr factor, min) whenever the metric has not become better for more than
 * `patience` calls of tern_schedule_metric, which is what it counts. */
TERN_API tern_schedule *tern_plateau_schedule_new(tern_optim *optim, const tern_plateau_opts *opts,
                                                  tern_error *err);
/* The metric of an epoch, of a plateau schedule (E_INVALID). While the optimizer's model has a tern_ddp it is
 * collective, and rank 0's metric counts on all ranks: rates that differ would let the models drift apart.
 * E_PEER. */
TERN_API int tern_schedule_metric(tern_schedule *schedule, double metric, tern_error *err);

/* torch's SequentialLR: part i counts from milestones[i - 1] on, from 0 there, until milestones[i], which
 * rise from 1 on (E_RANGE) and are one fewer than `count`. The parts are the sequence's from then on, freed
 * with it, and nothing by themselves. E_INVALID, and they stay yours: one that is missing, of another
 * optimizer or unit, has begun, or is a part already; E_UNSUPPORTED: a plateau. */
TERN_API tern_schedule *tern_sequential_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                                     tern_schedule *const *parts, const int64_t *milestones,
                                                     tern_error *err);

TERN_API void tern_schedule_free(tern_schedule *schedule);

TERN_API void tern_schedule_step(tern_schedule *schedule);
TERN_API void tern_schedule_epoch(tern_schedule *schedule);

/* What torch's state_dict() has for the scheduler of that class, as far as it is numbers: "last_epoch" (t),
 * "_step_count", "base_lrs" (the groups' own rates), "_last_lr", the options, a plateau's "best",
 * "num_bad_epochs" and "cooldown_counter", a sequence's "_milestones" and "_schedulers"; and of tern's own
 * "max_lrs" of a one-cycle and "num_reductions" of a plateau. Yours. E_INVALID: no schedule; E_MEMORY. */
TERN_API tern_object *tern_schedule_state_dict(const tern_schedule *schedule, tern_error *err);
/* Sets t, the groups' own rates and what a plateau remembers; the options stay those that it was made with.
 * Takes torch's too; of a plateau's, which does not say how often it has reduced the rate, the rates of now
 * count as the reduced ones. After an error nothing has changed; it names the key.
 * E_INVALID: no schedule, a key that is missing, another number of groups or parts, a part of a sequence;
 * E_DTYPE, E_RANGE: a value that does not fit. */
TERN_API int tern_schedule_state_dict_load(tern_schedule *schedule, const tern_object *state,
                                           tern_error *err);

/* ---- the rate of a larger batch ----
 *
 * k times as many samples a step (k ranks, or k times the batch) want a larger rate: lr k^p, with p = 1 the
 * linear rule (Goyal et al. 2017), p = 1/2 the square root that keeps the variance of an SGD step (Krizhevsky
 * 2014; also for Adam and LAMB, You et al. 2020), p = 2/3 in between: 8 ranks, 4 times the rate. For a factor
 * f of your own, k = f and p = 1. NAN unless k > 0.
 *
 * A rate that is scaled so is too large for the first epochs; Goyal et al. begin with the unscaled one and
 * rise to it in five, which is tern_linear_schedule_new(optim, TERN_UNIT_STEPS, tern_lr_scale(1, k, -p), 1,
 * steps of five epochs, err). */
TERN_API double tern_lr_scale(double lr, double k, double p);

#ifdef __cplusplus
}
#endif
#endif
