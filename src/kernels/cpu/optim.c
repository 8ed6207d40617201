/* optim.c - optimizers in one pass over memory: each element of gradient, parameter and state is read once
 * and written once, in place. The updates are those of optim.def. */
#include "kernels/optim.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/sections.h"

#include <string.h>

typedef void (*update_fn)(const tern__call *call, int64_t first, int64_t count);

static const tern__view *optim_operand(const tern__call *call, int i)
{
    return i ? call->out[i - 1] : call->in[0];
}

static bool all_are(const tern__call *call, tern_dtype dtype)
{
    bool fine = true;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++)
        fine &= !optim_operand(call, i) || optim_operand(call, i)->dtype == dtype;
    return fine;
}

/* Whether the f32 loops can do it. */
static bool optim_takes(const tern__call *call)
{
    bool fine = true;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++) {
        const tern__view *view = optim_operand(call, i);
        fine &= !view || (tern__dtype_is_float(view->dtype) && view->dtype != TERN_F64);
    }
    return fine;
}

static bool has_gaps(const tern__call *call)
{
    bool gaps = false;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++)
        gaps |= optim_operand(call, i) && !tern__view_is_contiguous(optim_operand(call, i));
    return gaps;
}

/* Whether the call has numbers in a device's memory, other than a row of factors per section. */
static bool has_numbers(const tern__call *call)
{
    const tern__view *factors = call->in[TERN__OPTIM_FACTORS];
    return (factors && factors->ndim == 1) || call->in[TERN__OPTIM_SKIP] || call->in[TERN__OPTIM_SKIPPED];
}

/* Updates a short stretch: operands that are not f32 go through arrays in the first-level cache, and p's
 * copy is made from there. */
static void update_stage(const tern__call *call, update_fn f32, int64_t at, int64_t count)
{
    tern__stage stages[TERN__OPTIM_COPY + 1];
    tern__view views[TERN__OPTIM_COPY + 1];
    tern__call part = {.attr = call->attr};
    for (int i = 0; i <= TERN__OPTIM_COPY; i++) {
        const tern__view *view = optim_operand(call, i);
        if (!view) continue;
        views[i].data = (float *)view->data + at;
        if (view->dtype != TERN_F32) {
            tern__stage_load(TERN__COMPUTE_F32, &stages[i], view->dtype, view->data, at, 1, count);
            views[i].data = stages[i].f32;
        }
        *(i ? &part.out[i - 1] : &part.in[0]) = &views[i];
    }
    f32(&part, 0, count);
    for (int i = 1; i <= TERN__OPTIM_COPY; i++) {
        const tern__view *view = optim_operand(call, i);
        if (view && view->dtype != TERN_F32)
            tern__stage_store(TERN__COMPUTE_F32, &stages[i], view->dtype, view->data, at, 1, count, false);
    }
    const tern__view *copy = call->out[TERN__OPTIM_COPY];
    if (copy)
        tern__stage_store(TERN__COMPUTE_F32, views[1].data, copy->dtype, copy->data, at, 1, count, false);
}

static void update_staged(const tern__call *call, update_fn f32, int64_t first, int64_t count)
{
    for (int64_t at = first; at < first + count; at += TERN__STAGE)
        update_stage(call, f32, at, TERN__MIN(TERN__STAGE, first + count - at));
}

/* Where thread t's part begins; parts are whole cache lines. */
static int64_t optim_start_of(int64_t count, int t, int threads)
{
    return t == threads ? count : count * t / threads / 32 * 32;
}

/* How a call updates a stretch of its elements. */
typedef struct update {
    update_fn run;
    bool plain;        /* all operands have one dtype */
    size_t attr_bytes; /* of the rule's attributes */
} update;

static void update_stretch(const tern__call *call, const update *u, int64_t first, int64_t count)
{
    if (u->plain)
        u->run(call, first, count);
    else
        update_staged(call, u->run, first, count);
}

static void update_all(const tern__call *call, const update *u)
{
    int64_t count = tern__view_count(call->out[0]);
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t first = optim_start_of(count, t, threads), next = optim_start_of(count, t + 1, threads);
        update_stretch(call, u, first, next - first);
    }
}

static void update_sections(const tern__call *call, const update *u)
{
    const tern__view *sections = call->in[TERN__OPTIM_SECTIONS], *factors = call->in[TERN__OPTIM_FACTORS];
    int64_t number = tern__section_count(sections);
    int threads = tern__loop_threads(call, tern__view_count(call->out[0]));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < number; n++) {
        tern__section section = tern__section_get(tern__section_table(sections), n, 0);
        tern__optim_attr attr;
        memcpy(&attr, call->attr, u->attr_bytes);
        tern__step_settle(&attr.step, factors ? (const double *)factors->data + 3 * section.row : NULL, NULL);
        tern__call part = *call;
        part.attr = &attr;
        update_stretch(&part, u, section.begin, section.count);
    }
}

static int update_run(const tern__call *call, size_t attr_bytes, update_fn f32, update_fn f64)
{
    bool wide = all_are(call, TERN_F64) && !call->out[TERN__OPTIM_COPY];
    bool plain = wide || (all_are(call, TERN_F32) && !call->out[TERN__OPTIM_COPY]);
    if (has_numbers(call) || has_gaps(call) || !(plain || optim_takes(call))) return TERN_E_UNSUPPORTED;
    const update u = {wide ? f64 : f32, plain, attr_bytes};
    (call->in[TERN__OPTIM_SECTIONS] ? update_sections : update_all)(call, &u);
    return TERN_OK;
}

/* ---- the loops: one for each type and set of states ---- */

#define AT(view, first) ((view) ? (R *)(view)->data + (first) : NULL)

#define N(name, value)                                                                                       \
    const R name = (R)(value);                                                                               \
    (void)name;
/* A state is stored as soon as it is known, so that its register is free. */
#define SET(which, name, value)                                                                              \
    name = value;                                                                                            \
    if (has >> which & 1) s##which[i] = name

/* What a loop goes over: parameter, states, gradient, and their number. */
#define OPERANDS                                                                                             \
    R *restrict ps, R *restrict s0, R *restrict s1, R *restrict s2, const R *restrict gs, int64_t count

/* Conditions on `has`, a constant, are gone before loops are vectorised; those on `numbers` are moved out of
 * the loop. */
#define LOOP(name, suffix, steps, written, S0, S1, S2, numbers, ...)                                         \
    static inline __attribute__((always_inline)) void name##_loop_##suffix(                                  \
        OPERANDS, const tern__##name##_attr *a, const unsigned has)                                          \
    {                                                                                                        \
        const R scale = (R)a->step.scale, decay = (R)a->step.decay;                                          \
        numbers;                                                                                             \
        for (int64_t i = 0; i < count; i++) {                                                                \
            R p = ps[i], S0 = has & 1 ? s0[i] : 0, S1 = has & 2 ? s1[i] : 0, S2 = has & 4 ? s2[i] : 0;       \
            const R d = scale * gs[i] + decay * p;                                                           \
            (void)d, (void)S1, (void)S2;                                                                     \
            __VA_ARGS__;                                                                                     \
            if (steps) ps[i] = p;                                                                            \
        }                                                                                                    \
    }

/* Runs the loop for these states, if they are a set that the optimizer may have. */
#define LOOP_FOR(states, name, suffix, always, may)                                                          \
    if (has == states && (states & always) == always && (states & may) == states)                            \
        name##_loop_##suffix(ps, s0, s1, s2, gs, count, a, states);
#define UPDATE(name, suffix, steps, always, may, ...)                                                        \
    LOOP(name, suffix, steps, __VA_ARGS__)                                                                   \
    TERN__SIMD static void name##_loops_##suffix(OPERANDS, const tern__##name##_attr *a, unsigned has)       \
    {                                                                                                        \
        LOOP_FOR(0, name, suffix, always, may)                                                               \
        LOOP_FOR(1, name, suffix, always, may)                                                               \
        LOOP_FOR(3, name, suffix, always, may)                                                               \
        LOOP_FOR(5, name, suffix, always, may)                                                               \
        LOOP_FOR(7, name, suffix, always, may)                                                               \
    }                                                                                                        \
    static void name##_##suffix(const tern__call *call, int64_t first, int64_t count)                        \
    {                                                                                                        \
        name##_loops_##suffix(AT(call->out[0], first), AT(call->out[1], first), AT(call->out[2], first),     \
                              AT(call->out[3], first), AT(call->in[0], first), count, call->attr,            \
                              tern__optim_states(call) & may);                                               \
    }

/* The sums of one section for LAMB, in double and in one order. */
#define LANES 16
#define ADD_SQUARES(i, lane)                                                                                 \
    do {                                                                                                     \
        R x = p[i], u = TERN__LAMB_UPDATE(x, m[i], v[i]);                                                    \
        pp[lane] += (double)x * (double)x;                                                                   \
        uu[lane] += (double)u * (double)u;                                                                   \
    } while (0)
#define SUMS(suffix)                                                                                         \
    TERN__SIMD static void lamb_sums_##suffix(const tern__call *call, int64_t first, int64_t count,          \
                                              const double unbias[2], double sums[2])                        \
    {                                                                                                        \
        const tern__lamb_attr *a = call->attr;                                                               \
        const R *p = AT(call->out[0], first), *m = AT(call->out[1], first), *v = AT(call->out[2], first);    \
        const R unbias1 = (R)unbias[0], unbias2 = (R)unbias[1], eps = (R)a->eps, pull = (R)a->pull;          \
        double pp[LANES] = {0}, uu[LANES] = {0};                                                             \
        int64_t whole = count / LANES * LANES;                                                               \
        for (int64_t i = 0; i < whole; i += LANES)                                                           \
            for (int l = 0; l < LANES; l++) ADD_SQUARES(i + l, l);                                           \
        for (int64_t i = whole; i < count; i++) ADD_SQUARES(i, 0);                                           \
        sums[0] = sums[1] = 0;                                                                               \
        for (int l = 0; l < LANES; l++) {                                                                    \
            sums[0] += pp[l];                                                                                \
            sums[1] += uu[l];                                                                                \
        }                                                                                                    \
    }

#define R                float
#define O(ID, name, ...) UPDATE(name, f32, true, __VA_ARGS__)
#define M(ID, name, ...) UPDATE(name, f32, false, __VA_ARGS__)
#include "kernels/optim.def"
SUMS(f32)
#undef R

#define R                double
#define O(ID, name, ...) UPDATE(name, f64, true, __VA_ARGS__)
#define M(ID, name, ...) UPDATE(name, f64, false, __VA_ARGS__)
#include "kernels/optim.def"
SUMS(f64)
#undef R

/* ---- the kernels ---- */

#define M(ID, name, ...)
#define O(ID, name, ...)                                                                                     \
    int tern__cpu_##name(const tern__call *call)                                                             \
    {                                                                                                        \
        return update_run(call, sizeof(tern__##name##_attr), name##_f32, name##_f64);                        \
    }
#include "kernels/optim.def"

/* A section's moments are still in the first-level cache when its squares are summed.
 * Parameter and moments are f32 or f64; with masters the gradient may have 16 bits. */
int tern__cpu_lamb_moments(const tern__call *call)
{
    const tern__lamb_attr *attr = call->attr;
    tern__call moments = {
        .in = {call->in[0]}, .out = {call->out[0], call->out[1], call->out[2]}, .attr = attr};
    tern_dtype dtype = call->out[0]->dtype;
    bool wide = dtype == TERN_F64, plain = all_are(&moments, dtype);
    bool fine =
        call->out[1]->dtype == dtype && call->out[2]->dtype == dtype && !has_gaps(call) && !has_numbers(call);
    if (!fine || (!wide && dtype != TERN_F32) || !(plain || optim_takes(&moments))) return TERN_E_UNSUPPORTED;
    const tern__view *sections = call->in[TERN__OPTIM_SECTIONS];
    int64_t number = tern__section_count(sections), count = tern__view_count(call->out[0]);
    double *sums = call->out[TERN__OPTIM_SUMS]->data;
    const double unbias[] = {tern__lamb_unbias1(attr), tern__lamb_unbias2(attr)};
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < number; n++) {
        tern__section section = tern__section_get(tern__section_table(sections), n, count);
        if (plain)
            (wide ? lamb_moments_f64 : lamb_moments_f32)(&moments, section.begin, section.count);
        else
            update_staged(&moments, lamb_moments_f32, section.begin, section.count);
        (wide ? lamb_sums_f64 : lamb_sums_f32)(&moments, section.begin, section.count, unbias, sums + 2 * n);
    }
    return TERN_OK;
}
