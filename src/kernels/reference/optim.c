/* optim.c - the optimizers' updates (optim.def) in double. */
#include "kernels/optim.h"
#include "kernels/sections.h"
#include "kernels/reference/reference.h"

#include <math.h>

/* Returns section n of a call, and adds to the attributes what only the device knows about its update. */
static tern__section section_settle(const tern__call *call, int64_t n, tern__step_attr *step)
{
    const tern__view *given = call->in[TERN__OPTIM_FACTORS], *skipped = call->in[TERN__OPTIM_SKIPPED],
                     *sections = call->in[TERN__OPTIM_SECTIONS];
    tern__section section =
        tern__section_get(tern__section_table(sections), n, tern__view_count(call->out[0]));
    int64_t row = given && given->ndim == 2 ? section.row : 0;
    double factors[3], count = skipped ? tern__view_get(skipped, 0) : 0;
    for (int i = 0; given && i < 3; i++) factors[i] = tern__view_get(given, 3 * row + i);
    tern__step_settle(step, given ? factors : NULL, &count);
    return section;
}

static int each_section(const tern__call *call, void (*update)(const tern__call *call, int64_t n))
{
    const tern__view *skip = call->in[TERN__OPTIM_SKIP];
    bool skips = skip && tern__view_get(skip, 0) != 0;
    int64_t count = skips ? 0 : tern__section_count(call->in[TERN__OPTIM_SECTIONS]);
    for (int64_t n = 0; n < count; n++) update(call, n);
    return TERN_OK;
}

static double state_get(const tern__call *call, unsigned has, int s, int64_t i)
{
    return has >> s & 1 ? tern__view_get(call->out[1 + s], i) : 0;
}

/* Writes the new value of p, and of its copy in another dtype. */
static void parameter_set(const tern__call *call, int64_t i, double value)
{
    const tern__view *copy = call->out[TERN__OPTIM_COPY];
    tern__view_set(call->out[0], i, value);
    if (copy) tern__view_set(copy, i, tern__view_get(call->out[0], i));
}

#define R double
#define N(name, value)                                                                                       \
    const R name = value;                                                                                    \
    (void)name;
#define SET(which, name, value)                                                                              \
    name = value;                                                                                            \
    if (has >> which & 1) tern__view_set(call->out[1 + which], i, name)
#define UPDATE(name, steps, always, may, written, S0, S1, S2, numbers, ...)                                  \
    static void name##_update(const tern__call *call, int64_t n)                                             \
    {                                                                                                        \
        tern__##name##_attr attr = *(const tern__##name##_attr *)call->attr, *const a = &attr;               \
        const tern__section section = section_settle(call, n, &a->step);                                     \
        const unsigned has = tern__optim_states(call) & may;                                                 \
        const R scale = a->step.scale, decay = a->step.decay;                                                \
        numbers;                                                                                             \
        for (int64_t i = section.begin; i < section.begin + section.count; i++) {                            \
            R p = tern__view_get(call->out[0], i), S0 = state_get(call, has, 0, i),                          \
              S1 = state_get(call, has, 1, i), S2 = state_get(call, has, 2, i);                              \
            const R d = scale * tern__view_get(call->in[0], i) + decay * p;                                  \
            (void)d, (void)S1, (void)S2;                                                                     \
            __VA_ARGS__;                                                                                     \
            if (steps) parameter_set(call, i, p);                                                            \
        }                                                                                                    \
    }
#define O(ID, name, ...) UPDATE(name, true, __VA_ARGS__)
#define M(ID, name, ...) UPDATE(name, false, __VA_ARGS__)
#include "kernels/optim.def"

#define M(ID, name, ...)
#define O(ID, name, ...)                                                                                     \
    int tern__reference_##name(const tern__call *call)                                                       \
    {                                                                                                        \
        return each_section(call, name##_update);                                                            \
    }
#include "kernels/optim.def"

static void lamb_sums(const tern__call *call, int64_t n)
{
    tern__lamb_attr attr = *(const tern__lamb_attr *)call->attr;
    const tern__section section = section_settle(call, n, &attr.step);
    const double unbias1 = tern__lamb_unbias1(&attr), unbias2 = tern__lamb_unbias2(&attr), eps = attr.eps,
                 pull = attr.pull;
    double sums[2] = {0, 0};
    for (int64_t i = section.begin; i < section.begin + section.count; i++) {
        double p = tern__view_get(call->out[0], i), m = tern__view_get(call->out[1], i),
               v = tern__view_get(call->out[2], i), update = TERN__LAMB_UPDATE(p, m, v);
        sums[0] += p * p;
        sums[1] += update * update;
    }
    for (int s = 0; s < 2; s++) tern__view_set(call->out[TERN__OPTIM_SUMS], 2 * n + s, sums[s]);
}

int tern__reference_lamb_moments(const tern__call *call)
{
    each_section(call, lamb_moments_update);
    return each_section(call, lamb_sums);
}
