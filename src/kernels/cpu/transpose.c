/* transpose.c - transposing copies in square tiles, each through a buffer, so that every cache line of
 * input and output is touched once, however far apart the rows are. A cast between f32, bf16 and f16 is
 * done row by row on the way to another buffer. */
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/staging.h"

#include <string.h>

#define TILE   32  /* elements along the output's contiguous dimension */
#define FEW    8   /* so few do not pay for a buffer */
#define WIDEST 256 /* and along the input's, if there are only FEW */

/* to[j * to_step + i] = from[i * from_step + j] for i < n, j < m. */
#define DEFINE(type)                                                                                         \
    TERN__SIMD static void turn_##type(void *to, int64_t to_step, const void *from, int64_t from_step,       \
                                       int64_t n, int64_t m)                                                 \
    {                                                                                                        \
        type buffer[TILE * TILE], *y = to;                                                                   \
        const type *x = from;                                                                                \
        for (int64_t i = 0; i < n && n < FEW; i++)                                                           \
            for (int64_t j = 0; j < m; j++) y[j * to_step + i] = x[i * from_step + j];                       \
        if (n < FEW) return;                                                                                 \
        for (int64_t i = 0; i < n; i++) memcpy(buffer + i * m, x + i * from_step, (size_t)m * sizeof(type)); \
        for (int64_t j = 0; j < m; j++)                                                                      \
            for (int64_t i = 0; i < n; i++) y[j * to_step + i] = buffer[i * m + j];                          \
    }
DEFINE(uint8_t)
DEFINE(uint16_t)
DEFINE(uint32_t)
DEFINE(uint64_t)

typedef void (*turn_fn)(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t n, int64_t m);

typedef struct turn {
    const tern__plan *plan;
    const tern__view *in_view, *out_view;
    int in, out;          /* operands of the plan */
    int in_dim, out_dim;  /* the contiguous dimensions of input and output */
    tern__plan rest;      /* the other dimensions */
    int64_t width, tiles; /* along in_dim */
    turn_fn fn;
    bool casts;
} turn;

static turn_fn turn_of(tern_dtype dtype)
{
    switch (tern_dtype_bytes(dtype)) {
    case 1: return turn_uint8_t;
    case 2: return turn_uint16_t;
    case 4: return turn_uint32_t;
    default: return turn_uint64_t;
    }
}

/* The dimension along which an operand is contiguous; -1: none. */
static int near_dim(const tern__plan *plan, int operand)
{
    for (int d = 0; d < plan->ndim; d++)
        if (plan->stride[operand][d] == 1) return d;
    return -1;
}

static char *transpose_place(const tern__view *view, int64_t at)
{
    return (char *)view->data + at * (int64_t)tern_dtype_bytes(view->dtype);
}

/* Casts n rows of m elements, at most a tile, to the output's dtype, one after the other. */
static void cast_rows(const turn *t, void *to, int64_t at, int64_t step, int64_t n, int64_t m)
{
    tern__stage stage;
    for (int64_t i = 0; i < n; i++) {
        tern__stage_load(TERN__COMPUTE_F32, &stage, t->in_view->dtype, t->in_view->data, at + i * step, 1, m);
        tern__stage_store(TERN__COMPUTE_F32, &stage, t->out_view->dtype, to, i * m, 1, m, false);
    }
}

/* Copies the tile whose first elements are at these offsets. */
static void tile(const turn *t, int64_t to, int64_t from, int64_t n, int64_t m)
{
    int64_t to_step = t->plan->stride[t->out][t->in_dim], step = t->plan->stride[t->in][t->out_dim];
    uint32_t rows[TILE * TILE];
    if (!t->casts) {
        t->fn(transpose_place(t->out_view, to), to_step, transpose_place(t->in_view, from), step, n, m);
        return;
    }
    cast_rows(t, rows, from, step, n, m);
    t->fn(transpose_place(t->out_view, to), to_step, rows, m, n, m);
}

/* Copies all tiles along out_dim at one place along in_dim. */
static void strip(const turn *t, int64_t number)
{
    const int64_t *in = t->plan->stride[t->in], *out = t->plan->stride[t->out];
    tern__cursor c = tern__cursor_at(&t->rest, number / t->tiles);
    int64_t j = number % t->tiles * t->width, size = t->plan->shape[t->out_dim];
    int64_t m = TERN__MIN(t->width, t->plan->shape[t->in_dim] - j);
    for (int64_t i = 0; i < size; i += TILE)
        tile(t, c.at[t->out] + j * out[t->in_dim] + i, c.at[t->in] + j + i * in[t->out_dim],
             TERN__MIN(TILE, size - i), m);
}

static bool transpose_is_short(tern_dtype dtype)
{
    return dtype == TERN_F32 || dtype == TERN_BF16 || dtype == TERN_F16;
}

bool tern__transpose(const tern__call *call, const tern__plan *plan, int in, int out)
{
    turn t = {.plan = plan, .in_view = call->in[0], .out_view = call->out[0], .in = in, .out = out};
    t.in_dim = near_dim(plan, in);
    t.out_dim = near_dim(plan, out);
    t.casts = t.in_view->dtype != t.out_view->dtype;
    if (call->add[0] ||
        (t.casts && !(transpose_is_short(t.in_view->dtype) && transpose_is_short(t.out_view->dtype))) ||
        t.in_dim < 0 || t.out_dim < 0 || t.in_dim == t.out_dim)
        return false;
    t.fn = turn_of(t.out_view->dtype);
    t.width = TERN__MIN(TILE * TILE / TERN__MIN(TILE, plan->shape[t.out_dim]), WIDEST);
    t.tiles = (plan->shape[t.in_dim] + t.width - 1) / t.width;
    t.rest = *plan;
    t.rest.shape[t.in_dim] = t.rest.shape[t.out_dim] = 1;
    int64_t strips = plan->count / (plan->shape[t.in_dim] * plan->shape[t.out_dim]) * t.tiles;
    int threads = tern__loop_threads(call, plan->count);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t s = 0; s < strips; s++) strip(&t, s);
    return true;
}
