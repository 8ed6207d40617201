/* reduce.c - sum, maximum and minimum over dimensions. */
#include "kernels/reduce.h"
#include "kernels/reference/reference.h"

#include <math.h>

typedef double (*join_fn)(double a, double b);

static double reduce_sum(double a, double b)
{
    return a + b;
}

static double high(double a, double b) /* a NaN stays */
{
    return b > a || b != b ? b : a;
}

static double low(double a, double b)
{
    return b < a || b != b ? b : a;
}

/* A flat view of the output's elements. */
static tern__view own_view(const tern__view *y)
{
    int64_t count = y->layout == TERN__PLAIN ? tern__own_count(y) : tern__view_count(y);
    tern__view own = tern__view_make(y->dtype, TERN__PLAIN, 1, &count);
    own.data = y->data;
    return own;
}

/* Allocates eight bytes for each element of the output. */
static void *results_new(const tern__call *call, int64_t *count)
{
    *count = own_view(call->out[0]).shape[0];
    size_t bytes = (size_t)*count * sizeof(int64_t);
    const char *name = tern__kernel_name(call->kernel);
    void *results = tern__device_scratch(call->device, TERN__SCRATCH_OPERAND, TERN__MAX(bytes, 1));
    if (!results)
        tern__error_set(call->err, name, TERN_E_MEMORY, "%s: out of memory: %zu bytes", name, bytes);
    return results;
}

double *tern__reference_sums_new(const tern__call *call, double start)
{
    int64_t count;
    double *sums = results_new(call, &count);
    for (int64_t i = 0; sums && i < count; i++) sums[i] = start;
    return sums;
}

void tern__reference_sums_put(const tern__call *call, const double *sums, double factor)
{
    const tern__view own = own_view(call->out[0]);
    for (int64_t i = 0; i < own.shape[0]; i++)
        tern__view_set(&own, i, factor * sums[i] + (call->add[0] ? tern__view_get(&own, i) : 0));
}

static int reference_reduce_run(const tern__call *call, join_fn join, double start, double factor)
{
    const tern__view *x = call->in[0];
    int64_t count = tern__view_count(x);
    double *result = tern__reference_sums_new(call, start);
    if (!result) return TERN_E_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        double *to = &result[tern__view_offset(call->out[0], i)];
        *to = join(*to, tern__view_get(x, i));
    }
    tern__reference_sums_put(call, result, factor);
    return TERN_OK;
}

/* ---- integers: as integers, since f64 cannot hold all of them ---- */

typedef int64_t (*join_integers_fn)(int64_t a, int64_t b);

static int64_t sum_integers(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b); /* wraps */
}

static int64_t high_integer(int64_t a, int64_t b)
{
    return TERN__MAX(a, b);
}

static int64_t low_integer(int64_t a, int64_t b)
{
    return TERN__MIN(a, b);
}

static int reduce_integers(const tern__call *call, join_integers_fn join, int64_t start)
{
    const tern__view *x = call->in[0], own = own_view(call->out[0]);
    int64_t results, count = tern__view_count(x), *result = results_new(call, &results);
    if (!result) return TERN_E_MEMORY;
    for (int64_t i = 0; i < results; i++) result[i] = start;
    for (int64_t i = 0; i < count; i++) {
        int64_t *to = &result[tern__view_offset(call->out[0], i)];
        *to = join(*to, tern__view_get_int(x, i));
    }
    for (int64_t i = 0; i < results; i++)
        tern__view_set_int(&own, i, call->add[0] ? tern__view_get_int(&own, i) + result[i] : result[i]);
    return TERN_OK;
}

static bool is_integer(const tern__call *call)
{
    return !tern__dtype_is_float(call->out[0]->dtype);
}

int tern__reference_sum(const tern__call *call)
{
    if (is_integer(call)) return reduce_integers(call, sum_integers, 0);
    return reference_reduce_run(call, reduce_sum, 0, ((const tern__factor_attr *)call->attr)->factor);
}

int tern__reference_amax(const tern__call *call)
{
    return is_integer(call) ? reduce_integers(call, high_integer, INT64_MIN)
                            : reference_reduce_run(call, high, -INFINITY, 1);
}

int tern__reference_amin(const tern__call *call)
{
    return is_integer(call) ? reduce_integers(call, low_integer, INT64_MAX)
                            : reference_reduce_run(call, low, INFINITY, 1);
}
