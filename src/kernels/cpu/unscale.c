/* unscale.c - counts non-finite elements and multiplies, in one pass over memory: a chunk is read twice,
 * the second time from the first-level cache. */
#include "kernels/loss_scale.h"
#include "base/half.h"
#include "kernels/cpu/loops.h"

enum { CHUNK = 2048 };

static inline uint64_t bits_of_f64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Elements with all exponent bits set are not finite. `y` may be NULL; the count may not be wanted. */
#define DEFINE(name, type, real, BITS, exponent, GET, PUT)                                                   \
    TERN__SIMD static int name(const void *from, void *to, int64_t n, double by, bool look)                  \
    {                                                                                                        \
        const type *x = from;                                                                                \
        type *y = to;                                                                                        \
        real factor = (real)by;                                                                              \
        int bad = 0;                                                                                         \
        if (look)                                                                                            \
            for (int64_t i = 0; i < n; i++) bad += (BITS(x[i]) & exponent) == exponent;                      \
        if (y)                                                                                               \
            for (int64_t i = 0; i < n; i++) y[i] = PUT(GET(x[i]) * factor);                                  \
        return bad;                                                                                          \
    }
DEFINE(unscale_f32, float, float, tern__bits_of, 0x7f800000u, , )
DEFINE(unscale_f64, double, double, bits_of_f64, UINT64_C(0x7ff0000000000000), , )
DEFINE(unscale_bf16, uint16_t, float, , 0x7f80, tern__bf16_to_f32, tern__bf16_from_f32)
DEFINE(unscale_f16, uint16_t, float, , 0x7c00, tern__f16_to_f32, tern__f16_from_f32)

typedef int (*unscale_fn)(const void *from, void *to, int64_t n, double by, bool look);

static const unscale_fn functions[TERN_DTYPE_COUNT] = {
    [TERN_F32] = unscale_f32,
    [TERN_F64] = unscale_f64,
    [TERN_BF16] = unscale_bf16,
    [TERN_F16] = unscale_f16,
};

static bool unscale_takes(const tern__view *x, const tern__view *y)
{
    return functions[x->dtype] && tern__view_is_contiguous(x) &&
           (!y || (y->dtype == x->dtype && tern__view_is_contiguous(y)));
}

int tern__cpu_unscale(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!unscale_takes(x, y) || call->in[TERN__UNSCALE_FACTOR] || call->in[TERN__UNSCALE_DROP])
        return TERN_E_UNSUPPORTED;
    double factor = ((const tern__unscale_attr *)call->attr)->factor;
    const char *from = x->data;
    char *to = y ? y->data : NULL;
    size_t bytes = tern_dtype_bytes(x->dtype);
    int64_t count = tern__view_count(x), bad = 0;
    int threads = tern__loop_threads(call, count);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : bad) if (threads > 1)
    for (int64_t first = 0; first < count; first += CHUNK) {
        size_t at = (size_t)first * bytes;
        bad += functions[x->dtype](from + at, to ? to + at : NULL, TERN__MIN(CHUNK, count - first), factor,
                                   call->out[1] != NULL);
    }
    if (call->out[1]) {
        double *found = call->out[1]->data;
        *found = (double)bad + (call->add[1] ? *found : 0);
    }
    return TERN_OK;
}
