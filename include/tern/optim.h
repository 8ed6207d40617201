/* optim.h - optimizers: one fused pass over the sealed parameters; and schedules of the learning rate.
 *
 * Threads: an optimizer belongs to one thread at a time. */
#ifndef TERN_OPTIM_H
#define TERN_OPTIM_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_optim tern_optim;

typedef struct tern_sgd_opts {
    size_t size;
    double lr;           /* default 0.001 */
    double momentum;     /* default 0     */
    double weight_decay; /* default 0     */
    bool nesterov;       /* default false; wants momentum > 0 */
} tern_sgd_opts;
TERN_API tern_sgd_opts tern_sgd_defaults(void);

/* torch.optim.SGD over all parameters of the tree: g += weight_decay p; b = momentum b + g (b = g at first);
 * g = nesterov ? g + momentum b : b; p -= lr g. Seals the tree; borrows the module. Yours: tern_optim_free,
 * before the module. */
TERN_API tern_optim *tern_sgd_new(tern_module *module, const tern_sgd_opts *opts, tern_error *err);
TERN_API void tern_optim_free(tern_optim *optim);

/* Updates every parameter that has a gradient, and forgets the gradients. Does nothing after an error in the
 * scope. */
TERN_API void tern_optim_step(tern_optim *optim, tern_scope *scope);

TERN_API double tern_optim_lr_get(const tern_optim *optim);
TERN_API void tern_optim_lr_set(tern_optim *optim, double lr);

/* ---- schedules: the learning rate by the step ---- */

typedef struct tern_schedule tern_schedule;

/* For step t of `steps`, both counted in optimizer steps: peak (t + 1) / warm_up while t < warm_up, then peak
 * (1 + cos(pi (t - warm_up) / (steps - warm_up))) / 2, and 0 from step `steps` on (Loshchilov and Hutter
 * 2017, without restarts). Sets the rate of step 0 at once; borrows the optimizer. E_RANGE unless 0 <=
 * warm_up <= steps and steps > 0. Yours: tern_schedule_free. */
TERN_API tern_schedule *tern_warm_up_cosine_new(tern_optim *optim, double peak, int64_t warm_up,
                                                int64_t steps, tern_error *err);
TERN_API void tern_schedule_free(tern_schedule *schedule);

/* After every tern_optim_step: sets the next step's rate. */
TERN_API void tern_schedule_step(tern_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
