/* global_avg_pool.cu - the mean of each plane, and its gradient. A block takes some neighbouring columns
 * (columns.h) of one image with all their positions; each thread sums some, and then they are joined
 * pairwise. */
#include "cuda/kernels/columns.h"
#include "cuda/kernels.h"

#define THREADS TERN__COLUMN_THREADS
#define AHEAD   4 /* rows that are read at a time */

typedef struct plane_mean {
    tern__columns k; /* columns of one image */
    const void *x;
    void *y;
    int y_dtype;
    int64_t image, y_image, y_channel; /* distances between images and channels */
    double share;
    bool add;
} plane_mean;

template <int DTYPE, int N> static __global__ void run_mean(plane_mean a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    __shared__ R sums[N][THREADS];
    tern__seat s = tern__seat_of(a.k, 0), from = s;
    R sum[N] = {};
    tern__bunch<DTYPE, N> x[AHEAD];
    s.at += blockIdx.y * a.image;
    while (tern__seat_read(a.k, &s, a.x, x) > 0)
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int l = 0; l < N; l++) sum[l] += x[i].get(l);
    for (int l = 0; l < N; l++) sums[l][threadIdx.x] = sum[l];
    for (int half = THREADS / 2; half >= a.k.across; half /= 2) {
        __syncthreads();
        for (int l = 0; l < N && (int)threadIdx.x < half; l++)
            sums[l][threadIdx.x] += sums[l][threadIdx.x + half];
    }
    if (from.y > 0 || from.column >= a.k.columns) return;
    for (int l = 1; l < N && !a.k.is_last; l++) sums[0][threadIdx.x] += sums[l][threadIdx.x];
    for (int l = 0; l < (a.k.is_last ? N : 1); l++) {
        int64_t c = tern__seat_channel(a.k, from, l, N), at = blockIdx.y * a.y_image + c * a.y_channel;
        R y = sums[l][threadIdx.x] * (R)a.share;
        if (a.add) y += tern__element<R>(a.y, a.y_dtype, at);
        tern__element_set<R>(a.y, a.y_dtype, at, y);
    }
}

/* The same columns: spreads dy over them. */
template <int DTYPE, int N> static __global__ void run_spread(plane_mean a)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    tern__seat s = tern__seat_of(a.k, 0);
    int64_t image = blockIdx.y * a.image;
    R dx[N] = {};
    for (int l = 0; l < N; l++) {
        if (s.column >= a.k.columns) break;
        int64_t c = tern__seat_channel(a.k, s, l, N);
        dx[l] = tern__element<R>(a.y, a.y_dtype, blockIdx.y * a.y_image + c * a.y_channel) * (R)a.share;
    }
    for (; s.row < s.last; tern__seat_move(a.k, &s))
        tern__bunch_put<DTYPE>((void *)a.x, image + s.at, dx, a.add);
}

static plane_mean mean_of(const tern__call *call, const tern__view *x, const tern__view *y, int lanes)
{
    tern__view one = *x;
    one.shape[0] = 1;
    int64_t positions = tern__positions_of(x);
    plane_mean a = {};
    a.k = tern__columns_of(&one, lanes, 1, 8);
    a.x = x->data;
    a.y = y->data;
    a.y_dtype = y->dtype;
    a.image = x->shape[1] * positions;
    a.y_image = y->stride[0];
    a.y_channel = y->stride[1];
    a.share = 1 / (double)positions;
    a.add = call->add[0];
    return a;
}

static bool takes(const tern__view *x, const tern__view *y)
{
    return tern__dtype_is_float(x->dtype) && x->dtype == y->dtype && tern__view_is_dense(x) &&
           x->layout != TERN__BLOCKED16 && y->layout != TERN__BLOCKED16 && x->shape[0] <= UINT16_MAX;
}

static bool is_bunched(const tern__view *x)
{
    int64_t positions = tern__positions_of(x);
    return tern__bunches_fit(&x, 1, tern__columns_are_last(x, positions) ? x->shape[1] : positions);
}

static int launch(const tern__call *call, const plane_mean &a, int64_t images, void (*kernel)(plane_mean a))
{
    dim3 grid = tern__columns_grid(a.k);
    grid.y = (unsigned)images;
    return tern__cuda_launch(call, kernel, grid, THREADS, 0, a);
}

template <int DTYPE, int N>
static int start_mean(const tern__call *call, const tern__view *x, const tern__view *y)
{
    return launch(call, mean_of(call, x, y, N), x->shape[0], run_mean<DTYPE, N>);
}
template <int DTYPE, int N>
static int start_spread(const tern__call *call, const tern__view *x, const tern__view *y)
{
    return launch(call, mean_of(call, x, y, N), x->shape[0], run_spread<DTYPE, N>);
}

int tern__cuda_global_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!takes(x, y) || tern__view_count(x) == 0) return TERN_E_UNSUPPORTED;
    TERN__BUNCHED(x->dtype, is_bunched(x), start_mean, call, x, y);
}

int tern__cuda_global_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    if (!takes(dx, dy)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(dx) == 0) return TERN_OK;
    TERN__BUNCHED(dx->dtype, is_bunched(dx), start_spread, call, dx, dy);
}
