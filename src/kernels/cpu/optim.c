/* optim.c - optimizers in one pass over memory: each element of gradient, parameter and state is read once
 * and written once, in place. */
#include "kernels/optim.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/staging.h"
#include "kernels/sections.h"

#include <math.h>
#include <string.h>

typedef void (*update_fn)(const tern__call *call, int64_t first, int64_t count);

static const tern__view *operand(const tern__call *call, int i)
{
    return i ? call->out[i - 1] : call->in[0];
}

static bool all_are(const tern__call *call, tern_dtype dtype)
{
    bool fine = true;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++)
        fine &= !operand(call, i) || operand(call, i)->dtype == dtype;
    return fine;
}

/* Whether the f32 loops can do it. */
static bool takes(const tern__call *call)
{
    bool fine = true;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++) {
        const tern__view *view = operand(call, i);
        fine &= !view || (tern__dtype_is_float(view->dtype) && view->dtype != TERN_F64);
    }
    return fine;
}

static bool has_gaps(const tern__call *call)
{
    bool gaps = false;
    for (int i = 0; i <= TERN__KERNEL_OUTS; i++)
        gaps |= operand(call, i) && !tern__view_is_contiguous(operand(call, i));
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
        const tern__view *view = operand(call, i);
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
        const tern__view *view = operand(call, i);
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
static int64_t start_of(int64_t count, int t, int threads)
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
        int64_t first = start_of(count, t, threads), next = start_of(count, t + 1, threads);
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

static int run(const tern__call *call, size_t attr_bytes, update_fn f32, update_fn f64)
{
    bool wide = all_are(call, TERN_F64) && !call->out[TERN__OPTIM_COPY];
    bool plain = wide || (all_are(call, TERN_F32) && !call->out[TERN__OPTIM_COPY]);
    if (has_numbers(call) || has_gaps(call) || !(plain || takes(call))) return TERN_E_UNSUPPORTED;
    const update u = {wide ? f64 : f32, plain, attr_bytes};
    (call->in[TERN__OPTIM_SECTIONS] ? update_sections : update_all)(call, &u);
    return TERN_OK;
}

#define AT(type, view, first) ((view) ? (type *)(view)->data + (first) : NULL)

/* Reads what all attributes begin with. */
#define TAKE_STEP(type, attr)                                                                                \
    type lr = (type)(attr)->step.lr, scale = (type)(attr)->step.scale, decay = (type)(attr)->step.decay

/* Loop-invariant conditions are arithmetic or outside of the loop, so that it is vectorised. */
#define DEFINE_SGD(name, type)                                                                               \
    TERN__SIMD static void name##_plain(type *restrict p, const type *restrict g, int64_t n,                 \
                                        const tern__sgd_attr *attr)                                          \
    {                                                                                                        \
        TAKE_STEP(type, attr);                                                                               \
        for (int64_t i = 0; i < n; i++) p[i] -= lr * (scale * g[i] + decay * p[i]);                          \
    }                                                                                                        \
    TERN__SIMD static void name##_momentum(type *restrict p, type *restrict b, const type *restrict g,       \
                                           int64_t n, const tern__sgd_attr *attr)                            \
    {                                                                                                        \
        TAKE_STEP(type, attr);                                                                               \
        type keep = attr->step.count == 1 ? 0 : (type)attr->momentum;                                        \
        type take = attr->step.count == 1 ? 1 : (type)(1 - attr->dampening);                                 \
        type momentum = (type)attr->momentum;                                                                \
        bool look = attr->nesterov != 0;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            type d = scale * g[i] + decay * p[i];                                                            \
            b[i] = keep * b[i] + take * d;                                                                   \
            p[i] -= lr * (look ? d + momentum * b[i] : b[i]);                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void name(const tern__call *call, int64_t first, int64_t count)                                   \
    {                                                                                                        \
        type *p = AT(type, call->out[0], first), *b = AT(type, call->out[1], first);                         \
        const type *g = AT(const type, call->in[0], first);                                                  \
        if (b)                                                                                               \
            name##_momentum(p, b, g, count, call->attr);                                                     \
        else                                                                                                 \
            name##_plain(p, g, count, call->attr);                                                           \
    }
DEFINE_SGD(sgd_f32, float)
DEFINE_SGD(sgd_f64, double)

int tern__cpu_sgd(const tern__call *call)
{
    return run(call, sizeof(tern__sgd_attr), sgd_f32, sgd_f64);
}

/* p, m, v and amsgrad's largest v, or NULL. */
#define DEFINE_ADAM(name, type, ROOT)                                                                        \
    TERN__SIMD static void name##_loop(type *restrict p, type *restrict m, type *restrict v,                 \
                                       type *restrict top, const type *restrict g, int64_t n,                \
                                       const tern__adam_attr *attr)                                          \
    {                                                                                                        \
        type scale = (type)attr->step.scale, decay = (type)attr->step.decay, keep = (type)attr->keep;        \
        type beta1 = (type)attr->beta1, rest1 = (type)(1 - attr->beta1);                                     \
        type beta2 = (type)attr->beta2, rest2 = (type)(1 - attr->beta2), eps = (type)attr->eps;              \
        type rate = (type)(attr->step.lr / (1 - pow(attr->beta1, attr->step.count)));                        \
        type unbias = (type)(1 / sqrt(1 - pow(attr->beta2, attr->step.count)));                              \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            type d = scale * g[i] + decay * p[i];                                                            \
            m[i] = beta1 * m[i] + rest1 * d;                                                                 \
            v[i] = beta2 * v[i] + rest2 * d * d;                                                             \
            type high = v[i];                                                                                \
            if (top) high = top[i] = top[i] >= v[i] || top[i] != top[i] ? top[i] : v[i];                     \
            p[i] = keep * p[i] - rate * m[i] / (unbias * ROOT(high) + eps);                                  \
        }                                                                                                    \
    }                                                                                                        \
    static void name(const tern__call *call, int64_t first, int64_t count)                                   \
    {                                                                                                        \
        name##_loop(AT(type, call->out[0], first), AT(type, call->out[1], first),                            \
                    AT(type, call->out[2], first), AT(type, call->out[3], first),                            \
                    AT(const type, call->in[0], first), count, call->attr);                                  \
    }
DEFINE_ADAM(adam_f32, float, sqrtf)
DEFINE_ADAM(adam_f64, double, sqrt)

int tern__cpu_adam(const tern__call *call)
{
    return run(call, sizeof(tern__adam_attr), adam_f32, adam_f64);
}

/* p, s, momentum or NULL, mean gradient or NULL. */
#define DEFINE_RMSPROP(name, type, ROOT)                                                                     \
    TERN__SIMD static void name##_loop(type *restrict p, type *restrict s, type *restrict b,                 \
                                       type *restrict mean, const type *restrict g, int64_t n,               \
                                       const tern__rmsprop_attr *attr)                                       \
    {                                                                                                        \
        TAKE_STEP(type, attr);                                                                               \
        type alpha = (type)attr->alpha, rest = (type)(1 - attr->alpha), eps = (type)attr->eps;               \
        type momentum = (type)attr->momentum;                                                                \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            type d = scale * g[i] + decay * p[i];                                                            \
            type spread = s[i] = alpha * s[i] + rest * d * d;                                                \
            if (mean) {                                                                                      \
                mean[i] = alpha * mean[i] + rest * d;                                                        \
                spread -= mean[i] * mean[i];                                                                 \
                spread = 0 > spread ? 0 : spread; /* rounding: the gradients were equal */                   \
            }                                                                                                \
            type u = d / (ROOT(spread) + eps);                                                               \
            if (b) u = b[i] = momentum * b[i] + u;                                                           \
            p[i] -= lr * u;                                                                                  \
        }                                                                                                    \
    }                                                                                                        \
    static void name(const tern__call *call, int64_t first, int64_t count)                                   \
    {                                                                                                        \
        name##_loop(AT(type, call->out[0], first), AT(type, call->out[1], first),                            \
                    AT(type, call->out[2], first), AT(type, call->out[3], first),                            \
                    AT(const type, call->in[0], first), count, call->attr);                                  \
    }
DEFINE_RMSPROP(rmsprop_f32, float, sqrtf)
DEFINE_RMSPROP(rmsprop_f64, double, sqrt)

int tern__cpu_rmsprop(const tern__call *call)
{
    return run(call, sizeof(tern__rmsprop_attr), rmsprop_f32, rmsprop_f64);
}

#define DEFINE_ADAGRAD(name, type, ROOT)                                                                     \
    TERN__SIMD static void name##_loop(type *restrict p, type *restrict sum, const type *restrict g,         \
                                       int64_t n, const tern__adagrad_attr *attr)                            \
    {                                                                                                        \
        type scale = (type)attr->step.scale, decay = (type)attr->step.decay;                                 \
        type lr = (type)tern__adagrad_rate(attr), eps = (type)attr->eps, start = (type)attr->start;          \
        bool first = attr->step.count == 1;                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            type d = scale * g[i] + decay * p[i];                                                            \
            sum[i] = (first ? start : sum[i]) + d * d;                                                       \
            p[i] -= lr * (d / (ROOT(sum[i]) + eps));                                                         \
        }                                                                                                    \
    }                                                                                                        \
    static void name(const tern__call *call, int64_t first, int64_t count)                                   \
    {                                                                                                        \
        name##_loop(AT(type, call->out[0], first), AT(type, call->out[1], first),                            \
                    AT(const type, call->in[0], first), count, call->attr);                                  \
    }
DEFINE_ADAGRAD(adagrad_f32, float, sqrtf)
DEFINE_ADAGRAD(adagrad_f64, double, sqrt)

int tern__cpu_adagrad(const tern__call *call)
{
    return run(call, sizeof(tern__adagrad_attr), adagrad_f32, adagrad_f64);
}

/* LAMB in two passes. A section's moments are still in the first-level cache when its norms are summed, in
 * double and in one order. */
#define LANES 16
#define DEFINE_LAMB(name, type, ROOT)                                                                        \
    TERN__SIMD static void name##_move(type *restrict m, type *restrict v, const type *restrict p,           \
                                       const type *restrict g, int64_t n, const tern__lamb_attr *attr)       \
    {                                                                                                        \
        type scale = (type)attr->step.scale, decay = (type)attr->step.decay;                                 \
        type beta1 = (type)attr->beta1, take = (type)attr->take;                                             \
        type beta2 = (type)attr->beta2, rest = (type)(1 - attr->beta2);                                      \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            type d = scale * g[i] + decay * p[i];                                                            \
            m[i] = beta1 * m[i] + take * d;                                                                  \
            v[i] = beta2 * v[i] + rest * d * d;                                                              \
        }                                                                                                    \
    }                                                                                                        \
    static void name##_moments(const tern__call *call, int64_t first, int64_t count)                         \
    {                                                                                                        \
        name##_move(AT(type, call->out[1], first), AT(type, call->out[2], first),                            \
                    AT(const type, call->out[0], first), AT(const type, call->in[0], first), count,          \
                    call->attr);                                                                             \
    }                                                                                                        \
    TERN__SIMD static void name##_sums(const type *restrict p, const type *restrict m,                       \
                                       const type *restrict v, int64_t n, const tern__lamb_attr *attr,       \
                                       const double unbias[2], double sums[2])                               \
    {                                                                                                        \
        type unbias1 = (type)unbias[0], unbias2 = (type)unbias[1];                                           \
        type eps = (type)attr->eps, pull = (type)attr->pull;                                                 \
        double pp[LANES] = {0}, uu[LANES] = {0};                                                             \
        int64_t whole = n / LANES * LANES;                                                                   \
        for (int64_t i = 0; i < whole; i += LANES)                                                           \
            for (int l = 0; l < LANES; l++) {                                                                \
                type x = p[i + l], u = unbias1 * m[i + l] / (unbias2 * ROOT(v[i + l]) + eps) + pull * x;     \
                pp[l] += (double)x * (double)x;                                                              \
                uu[l] += (double)u * (double)u;                                                              \
            }                                                                                                \
        for (int64_t i = whole; i < n; i++) {                                                                \
            type x = p[i], u = unbias1 * m[i] / (unbias2 * ROOT(v[i]) + eps) + pull * x;                     \
            pp[0] += (double)x * (double)x;                                                                  \
            uu[0] += (double)u * (double)u;                                                                  \
        }                                                                                                    \
        sums[0] = sums[1] = 0;                                                                               \
        for (int l = 0; l < LANES; l++) {                                                                    \
            sums[0] += pp[l];                                                                                \
            sums[1] += uu[l];                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    static void name##_norms(const tern__call *call, int64_t first, int64_t count, const double unbias[2],   \
                             double sums[2])                                                                 \
    {                                                                                                        \
        name##_sums(AT(const type, call->out[0], first), AT(const type, call->out[1], first),                \
                    AT(const type, call->out[2], first), count, call->attr, unbias, sums);                   \
    }                                                                                                        \
    TERN__SIMD static void name##_loop(type *restrict p, const type *restrict m, const type *restrict v,     \
                                       int64_t n, const tern__lamb_attr *attr)                               \
    {                                                                                                        \
        type unbias1 = (type)tern__lamb_unbias1(attr), unbias2 = (type)tern__lamb_unbias2(attr);             \
        type lr = (type)attr->step.lr, eps = (type)attr->eps, pull = (type)attr->pull;                       \
        for (int64_t i = 0; i < n; i++)                                                                      \
            p[i] -= lr * (unbias1 * m[i] / (unbias2 * ROOT(v[i]) + eps) + pull * p[i]);                      \
    }                                                                                                        \
    static void name(const tern__call *call, int64_t first, int64_t count)                                   \
    {                                                                                                        \
        name##_loop(AT(type, call->out[0], first), AT(const type, call->out[1], first),                      \
                    AT(const type, call->out[2], first), count, call->attr);                                 \
    }
DEFINE_LAMB(lamb_f32, float, sqrtf)
DEFINE_LAMB(lamb_f64, double, sqrt)

int tern__cpu_lamb(const tern__call *call)
{
    return run(call, sizeof(tern__lamb_attr), lamb_f32, lamb_f64);
}

/* Parameter and moments are f32 or f64; with masters the gradient may have 16 bits. */
int tern__cpu_lamb_moments(const tern__call *call)
{
    const tern__lamb_attr *attr = call->attr;
    tern__call moments = {
        .in = {call->in[0]}, .out = {call->out[0], call->out[1], call->out[2]}, .attr = attr};
    tern_dtype dtype = call->out[0]->dtype;
    bool wide = dtype == TERN_F64, plain = all_are(&moments, dtype);
    bool fine =
        call->out[1]->dtype == dtype && call->out[2]->dtype == dtype && !has_gaps(call) && !has_numbers(call);
    if (!fine || (!wide && dtype != TERN_F32) || !(plain || takes(&moments))) return TERN_E_UNSUPPORTED;
    const tern__view *sections = call->in[TERN__OPTIM_SECTIONS];
    int64_t number = tern__section_count(sections), count = tern__view_count(call->out[0]);
    double *sums = call->out[3]->data;
    const double unbias[] = {tern__lamb_unbias1(attr), tern__lamb_unbias2(attr)};
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t n = 0; n < number; n++) {
        tern__section section = tern__section_get(tern__section_table(sections), n, count);
        if (plain)
            (wide ? lamb_f64_moments : lamb_f32_moments)(&moments, section.begin, section.count);
        else
            update_staged(&moments, lamb_f32_moments, section.begin, section.count);
        (wide ? lamb_f64_norms : lamb_f32_norms)(&moments, section.begin, section.count, unbias,
                                                 sums + 2 * n);
    }
    return TERN_OK;
}
