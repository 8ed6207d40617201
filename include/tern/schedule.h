/* schedule.h - schedules of the learning rate.
 *
 * Threads: a schedule belongs to its optimizer's thread. */
#ifndef TERN_SCHEDULE_H
#define TERN_SCHEDULE_H

#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A schedule is a factor on every group's learning rate, by the step or by the epoch.
 *
 * Call tern_schedule_step after every optimizer step and tern_schedule_epoch after every epoch: a schedule
 * counts in the unit that it was made with and ignores the other call. t = 0 is set at once. Several
 * schedules on one optimizer multiply (torch's ChainedScheduler), so a warm-up goes with any other. One that
 * lowers the rate, is made in steps and has passed its last milestone or `total` when the first epoch ends
 * warns once: it was probably meant in epochs. They borrow the optimizer. Yours: tern_schedule_free, before
 * the optimizer; its factor is gone with it. E_INVALID: no optimizer, no such unit; E_RANGE: a gamma, start
 * or end below 0, `every` or `total` below 1; E_MEMORY. */

typedef struct tern_schedule tern_schedule;
typedef enum tern_unit { TERN_UNIT_STEPS, TERN_UNIT_EPOCHS } tern_unit;

/* torch's StepLR: gamma^(t / every), rounded down. */
TERN_API tern_schedule *tern_step_schedule_new(tern_optim *optim, tern_unit unit, int64_t every, double gamma,
                                               tern_error *err);
/* torch's MultiStepLR: gamma^(milestones <= t); `milestones`, at least one, rise from 0 on (E_RANGE) and are
 * copied. */
TERN_API tern_schedule *tern_multi_step_schedule_new(tern_optim *optim, tern_unit unit, int count,
                                                     const int64_t *milestones, double gamma,
                                                     tern_error *err);
/* torch's ExponentialLR: gamma^t. */
TERN_API tern_schedule *tern_exponential_schedule_new(tern_optim *optim, tern_unit unit, double gamma,
                                                      tern_error *err);
/* torch's LinearLR, the usual warm-up: start + (end - start) min(t, total) / total. */
TERN_API tern_schedule *tern_linear_schedule_new(tern_optim *optim, tern_unit unit, double start, double end,
                                                 int64_t total, tern_error *err);
/* (t + 1) / warm_up while t < warm_up, then (1 + cos(pi (t - warm_up) / (total - warm_up))) / 2, and 0 from
 * `total` on (Loshchilov and Hutter 2017, without restarts). E_RANGE unless 0 <= warm_up <= total, total > 0.
 */
TERN_API tern_schedule *tern_cosine_schedule_new(tern_optim *optim, tern_unit unit, int64_t warm_up,
                                                 int64_t total, tern_error *err);
TERN_API void tern_schedule_free(tern_schedule *schedule);

TERN_API void tern_schedule_step(tern_schedule *schedule);
TERN_API void tern_schedule_epoch(tern_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
