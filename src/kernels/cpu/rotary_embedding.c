/* rotary_embedding.c - rotary position embedding in f32 and f64; 16-bit types are widened. Rows may be
 * anywhere, so heads that a transpose has exchanged with positions need no copy; only the elements of a row
 * are next to each other. */
#include "kernels/rotary_embedding.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/widen.h"
#include "kernels/plan.h"

/* The operands, in the plan's order. */
enum { X, COS, SIN, Y, OPERANDS };

typedef struct rotary {
    int64_t pairs, size; /* of a row */
    bool interleaved, back, add;
} rotary;

/* ivdep: y may be x, but no two pairs share an element. */
#define DEFINE_ROTATE(name, R)                                                                               \
    TERN__INLINE void name##_pairs(R *y, const R *x, const R *c, const R *s, const rotary *r, int64_t step,  \
                                   int64_t apart)                                                            \
    {                                                                                                        \
        const R sign = r->back ? -1 : 1;                                                                     \
        const bool add = r->add;                                                                             \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < r->pairs; i++)                                          \
        {                                                                                                    \
            R a = x[i * step], b = x[i * step + apart], sine = sign * s[i];                                  \
            R first = a * c[i] - b * sine, second = b * c[i] + a * sine;                                     \
            y[i * step] = add ? y[i * step] + first : first;                                                 \
            y[i * step + apart] = add ? y[i * step + apart] + second : second;                               \
        }                                                                                                    \
    }                                                                                                        \
    TERN__SIMD static void name(void *to, const void *from, const void *c, const void *s, const rotary *r)   \
    {                                                                                                        \
        R *y = to;                                                                                           \
        const R *x = from;                                                                                   \
        if (r->interleaved)                                                                                  \
            name##_pairs(y, x, c, s, r, 2, 1);                                                               \
        else                                                                                                 \
            name##_pairs(y, x, c, s, r, 1, r->pairs);                                                        \
        _Pragma("GCC ivdep") for (int64_t i = 2 * r->pairs; i < r->size; i++) y[i] =                         \
            r->add ? y[i] + x[i] : x[i];                                                                     \
    }
DEFINE_ROTATE(rotate_f32, float)
DEFINE_ROTATE(rotate_f64, double)

/* Rows first .. last - 1 of the plan. */
static void rotary_rows(const tern__view *const views[OPERANDS], const tern__plan *plan, const rotary *r,
                        int64_t first, int64_t last)
{
    int64_t bytes = (int64_t)tern_dtype_bytes(views[X]->dtype);
    if (first == last) return; /* an empty plan has no place to begin at */
    tern__cursor c = tern__cursor_at(plan, first);
    for (int64_t row = first; row < last; row++) {
        char *at[OPERANDS];
        for (int i = 0; i < OPERANDS; i++) at[i] = (char *)views[i]->data + c.at[i] * bytes;
        (bytes == 8 ? rotate_f64 : rotate_f32)(at[Y], at[X], at[COS], at[SIN], r);
        tern__cursor_move(plan, &c, 1);
    }
}

int tern__cpu_rotary_embedding(const tern__call *call)
{
    const tern__view *x = call->in[0], *views[OPERANDS] = {x, call->in[1], call->in[2], call->out[0]};
    const tern__view *rows[OPERANDS];
    const tern__rotary_attr *attr = call->attr;
    tern__view outer[OPERANDS];
    if (tern__view_is_half(x)) return tern__cpu_widened(call, tern__cpu_rotary_embedding);
    for (int i = 0; i < OPERANDS; i++) {
        int last = views[i]->ndim - 1;
        if (views[i]->layout != TERN__PLAIN || views[i]->dtype != x->dtype ||
            (views[i]->stride[last] != 1 && views[i]->shape[last] > 1))
            return TERN_E_UNSUPPORTED;
        outer[i] = *views[i];
        outer[i].ndim = last;
        rows[i] = &outer[i];
    }
    rotary r = {call->in[1]->shape[x->ndim - 1], x->shape[x->ndim - 1], attr->interleaved != 0,
                attr->back != 0, call->add[0]};
    tern__plan plan = tern__plan_of(rows, OPERANDS);
    if (plan.count == 0) return TERN_OK;
    int threads = tern__loop_threads(call, plan.count * r.size);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int t = 0; t < threads; t++)
        rotary_rows(views, &plan, &r, plan.count * t / threads, plan.count * (t + 1) / threads);
    return TERN_OK;
}
