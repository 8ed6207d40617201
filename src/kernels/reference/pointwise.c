/* pointwise.c - the formulas of pointwise.def in double, or in 64-bit integers if all operands are
 * integers. */
#include "kernels/pointwise.h"
#include "kernels/reference/reference.h"

#include <math.h>

typedef double (*real_fn)(double a, double b, double c, double d, const double k[2]);
typedef int64_t (*integer_fn)(int64_t a, int64_t b, int64_t c, int64_t d, const double k[2]);

#define R double
#define P(ID, name, inputs, dtypes, expression)                                                              \
    static double ID##_real(double a, double b, double c, double d, const double k[2])                       \
    {                                                                                                        \
        (void)b, (void)c, (void)d, (void)k;                                                                  \
        return expression;                                                                                   \
    }
#include "kernels/pointwise.def"
#undef P
#undef R

#define INTEGER_FLOAT(ID, expression)
#define INTEGER_ANY(ID, expression)                                                                          \
    static int64_t ID##_integer(int64_t a, int64_t b, int64_t c, int64_t d, const double numbers[2])         \
    {                                                                                                        \
        const int64_t k[2] = {tern__nearest_integer(numbers[0]), tern__nearest_integer(numbers[1])};         \
        (void)b, (void)c, (void)d, (void)k;                                                                  \
        return expression;                                                                                   \
    }
#define P(ID, name, inputs, dtypes, expression) INTEGER_##dtypes(ID, expression)
#include "kernels/pointwise.def"
#undef P

#define ENTRY_ANY(ID)   ID##_integer
#define ENTRY_FLOAT(ID) NULL
static const struct {
    real_fn real;
    integer_fn integer;
} table[TERN__KERNEL_COUNT] = {
#define P(ID, name, inputs, dtypes, expression) [TERN__##ID] = {ID##_real, ENTRY_##dtypes(ID)},
#include "kernels/pointwise.def"
#undef P
};

static bool all_integers(const tern__call *call)
{
    bool all = !tern__dtype_is_float(call->out[0]->dtype);
    for (int i = 0; i < TERN__POINTWISE_INS && call->in[i]; i++)
        all = all && !tern__dtype_is_float(call->in[i]->dtype);
    return all;
}

/* The number of inputs whose elements are read. A fill's only tells the shape, and may hold no values yet. */
static int inputs_of(const tern__call *call)
{
    int count = 0;
    while (count < TERN__POINTWISE_INS && call->in[count]) count++;
    return call->kernel == TERN__FILL ? 0 : count;
}

/* Copying an integer into another dtype rounds once, without going through f64. */
static double pointwise_get(const tern__call *call, int n, int64_t i)
{
    const tern__view *in = call->in[n];
    bool shortens = call->kernel == TERN__COPY && call->out[0]->dtype != TERN_F64;
    if (shortens && !tern__dtype_is_float(in->dtype)) return (double)(float)tern__view_get_int(in, i);
    return tern__view_get(in, i);
}

static void put_real(const tern__call *call, int64_t i, const double k[2])
{
    double v[TERN__POINTWISE_INS] = {0};
    for (int n = 0; n < inputs_of(call); n++) v[n] = pointwise_get(call, n, i);
    tern__reference_put(call, 0, i, table[call->kernel].real(v[0], v[1], v[2], v[3], k));
}

static void put_integer(const tern__call *call, int64_t i, const double k[2])
{
    int64_t v[TERN__POINTWISE_INS] = {0};
    for (int n = 0; n < inputs_of(call); n++) v[n] = tern__view_get_int(call->in[n], i);
    int64_t value = table[call->kernel].integer(v[0], v[1], v[2], v[3], k);
    tern__view_set_int(call->out[0], i, call->add[0] ? tern__view_get_int(call->out[0], i) + value : value);
}

int tern__reference_pointwise(const tern__call *call)
{
    double k[2];
    tern__pointwise_numbers(call, k);
    bool integers = all_integers(call);
    int64_t count = tern__view_count(call->out[0]);
    if (integers && !table[call->kernel].integer) return TERN_E_UNSUPPORTED;
    for (int64_t i = 0; i < count; i++)
        if (integers)
            put_integer(call, i, k);
        else
            put_real(call, i, k);
    return TERN_OK;
}

/* Copies a tensor into another layout. */
int tern__reference_reorder(const tern__call *call)
{
    int64_t count = tern__view_count(call->in[0]);
    for (int64_t i = 0; i < count; i++) tern__reference_put(call, 0, i, tern__view_get(call->in[0], i));
    return TERN_OK;
}
