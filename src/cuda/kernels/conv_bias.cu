/* conv_bias.cu - y += the bias of its channels, after a convolution. With channels last, and four at a
 * time, a thread derives its channels from its index; everything else is a copy that adds. */
#include "cuda/copy.h"
#include "cuda/kernels/elements.h"

#define THREADS 256
#define AHEAD   4 /* fours that a thread loads at a time */

namespace
{
typedef struct places {
    void *y;
    const void *bias;
    int y_dtype, bias_dtype;
    uint32_t fours, fours_of_channels;
} places;
} // namespace

template <class R> static __global__ void add_fours(places p)
{
    tern__kernel_begin();
    uint64_t step = gridDim.x * blockDim.x;
    for (uint64_t at = blockIdx.x * blockDim.x + threadIdx.x; at < p.fours; at += AHEAD * step) {
        tern__read read[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (at + n * step < p.fours)
                read[n] = tern__four_read(p.y, p.y_dtype, (int64_t)(at + n * step) * 4);
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (at + n * step >= p.fours) break;
            int64_t first = (int64_t)(at + n * step) * 4;
            int64_t channel = (int64_t)((uint32_t)(at + n * step) % p.fours_of_channels) * 4;
            tern__four<R> y = tern__four_of<R>(read[n], p.y, p.y_dtype, first);
            for (int i = 0; i < 4; i++) y.v[i] += tern__element<R>(p.bias, p.bias_dtype, channel + i);
            tern__four_set<R>(p.y, p.y_dtype, first, y);
        }
    }
}

static bool takes_fours(const tern__view *bias, const tern__view *y)
{
    return y->layout == TERN__CHANNELS_LAST && y->shape[1] % 4 == 0 && bias->stride[0] == 1 &&
           tern__view_count(y) / 4 < UINT32_MAX && tern__fours_fit(y->data, y->dtype);
}

int tern__cuda_add_bias(const tern__call *call, const tern__view *bias, const tern__view *y)
{
    if (!takes_fours(bias, y)) {
        tern__view along = tern__cuda_along(bias, y, 1);
        return tern__cuda_copy_view(call, &along, y, true);
    }
    places p = {y->data,
                bias->data,
                (int)y->dtype,
                (int)bias->dtype,
                (uint32_t)(tern__view_count(y) / 4),
                (uint32_t)(y->shape[1] / 4)};
    dim3 grid = tern__cuda_grid(call, p.fours, THREADS, AHEAD);
    if (y->dtype == TERN_F64) return tern__cuda_launch(call, add_fours<double>, grid, THREADS, 0, p);
    return tern__cuda_launch(call, add_fours<float>, grid, THREADS, 0, p);
}
