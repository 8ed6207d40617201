#include "base/base.h"

#include <tern/optim.h>

#include <math.h>

struct tern_schedule {
    tern_optim *optim; /* borrowed */
    double peak;
    int64_t warm_up, steps, step;
};

static double rate(const tern_schedule *s)
{
    if (s->step < s->warm_up) return s->peak * (double)(s->step + 1) / (double)s->warm_up;
    if (s->step >= s->steps) return 0;
    return s->peak * (1 + cos(M_PI * (double)(s->step - s->warm_up) / (double)(s->steps - s->warm_up))) / 2;
}

tern_schedule *tern_warm_up_cosine_new(tern_optim *optim, double peak, int64_t warm_up, int64_t steps,
                                       tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (!optim) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the optimizer is NULL");
        return NULL;
    }
    if (steps < 1 || warm_up < 0 || warm_up > steps) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "warm-up of %lld steps in %lld: expected 0 <= warm-up <= steps and steps > 0",
                        (long long)warm_up, (long long)steps);
        return NULL;
    }
    tern_schedule *schedule = tern__alloc(sizeof(*schedule), __func__, err);
    if (!schedule) return NULL;
    *schedule = (tern_schedule){.optim = optim, .peak = peak, .warm_up = warm_up, .steps = steps};
    tern_optim_lr_set(optim, rate(schedule));
    return schedule;
}

void tern_schedule_step(tern_schedule *schedule)
{
    schedule->step++;
    tern_optim_lr_set(schedule->optim, rate(schedule));
}

void tern_schedule_free(tern_schedule *schedule)
{
    tern__free(schedule);
}
