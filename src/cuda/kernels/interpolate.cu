/* interpolate.cu - resizing as products with band matrices: along each axis an element of y is a weighted
 * sum of a few neighbours of x. A first kernel computes these bands for each position of each axis; for
 * the gradient also which neighbours in y an element of x contributes to. The second kernel has a thread
 * for each element of the result, or for as many of its channels as fit into 16 bytes. Elements of weight
 * 0 are not read. */
#include "cuda/kernels.h"
#include "cuda/kernels/planes.h"

extern "C" {
#include "kernels/interpolate.h"
}

#define THREADS 256
#define AHEAD   2 /* rows and columns that are read at a time */

/* Elements first to first + count - 1; for y's bands the first has weight[0], the others weight[1]. */
typedef struct band {
    int first, count;
    double weight[2];
} band;

typedef struct resizing {
    tern__interpolate_attr attr;
    tern__sites sites;
    tern__cuda_planes from, to;
    int64_t x_size[TERN__SPACE], y_size[TERN__SPACE];
    band *of_y[TERN__SPACE], *of_x[TERN__SPACE]; /* of_x: for the gradient only, without weights */
    bool wide, add;
} resizing;

/* ---- bands ---- */

static __global__ void find_bands(resizing r)
{
    tern__kernel_begin();
    int axis = (int)blockIdx.y;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.y_size[axis]; i += pace) {
        tern__taps t = tern__taps_of(&r.attr, axis, r.x_size[axis], r.y_size[axis], i, r.wide);
        r.of_y[axis][i] = {(int)t.first, (int)t.count, {t.weight[0], t.weight[1]}};
    }
}

/* How many of the first `count` bands end (or begin) at or before element `x`; bands are in ascending
 * order. */
static __device__ int64_t bands_before(const band *bands, int64_t count, int64_t x, bool begin)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        const band *b = &bands[middle];
        if (begin ? b->first <= x : b->first + b->count <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static __global__ void find_transposed_bands(resizing r)
{
    tern__kernel_begin();
    int axis = (int)blockIdx.y;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.x_size[axis]; i += pace) {
        int64_t first = bands_before(r.of_y[axis], r.y_size[axis], i, false);
        int64_t next = bands_before(r.of_y[axis], r.y_size[axis], i, true);
        r.of_x[axis][i] = {(int)first, (int)(next > first ? next - first : 0), {0, 0}};
    }
}

/* ---- sums ---- */

/* The weight of element `k` of a band: y's band weighs x; x's band lists the elements of y that weigh it. */
template <class R, bool GRADIENT>
static __device__ __forceinline__ R weight_of(const resizing &r, int axis, const band &b, int at, int k)
{
    if (!GRADIENT) return (R)(k > 0 ? b.weight[1] : b.weight[0]);
    const band *y = &r.of_y[axis][b.first + k];
    return (R)(at > y->first ? y->weight[1] : y->weight[0]);
}

/* Adds AHEAD rows and columns of a slice's weighted elements, from row y and column x of the bands on. All
 * are loaded before the first is used. Those beyond the bands have weight 0. */
template <int DTYPE, int N, bool GRADIENT>
static __device__ __forceinline__ void add_part(const resizing &r, const band (&b)[TERN__SPACE],
                                                const int *at, int64_t slice, int y, int x,
                                                tern__number<DTYPE> (&sum)[N])
{
    typedef tern__number<DTYPE> R;
    tern__bunch<DTYPE, N> v[AHEAD][AHEAD] = {};
    R high[AHEAD] = {}, wide[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (y + i < b[1].count && x + j < b[2].count)
                v[i][j] = tern__bunch_get<DTYPE, N>(r.from.data, slice + (y + i) * r.from.step[1] +
                                                                     (x + j) * r.from.step[2]);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (y + i < b[1].count) high[i] = weight_of<R, GRADIENT>(r, 1, b[1], at[1], y + i);
        if (x + i < b[2].count) wide[i] = weight_of<R, GRADIENT>(r, 2, b[2], at[2], x + i);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int l = 0; l < N; l++) {
            R row = 0;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) row += wide[j] * v[i][j].get(l);
            sum[l] += high[i] * row;
        }
}

template <int DTYPE, int N, bool GRADIENT>
static __global__ void __launch_bounds__(THREADS, N > 1 ? 2 : 4) run_resize(resizing r)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.sites.count; i += pace) {
        tern__site site = tern__site_of(r.sites, i);
        const int *at = site.at;
        band b[TERN__SPACE];
        for (int d = 0; d < TERN__SPACE; d++) b[d] = (GRADIENT ? r.of_x[d] : r.of_y[d])[at[d]];
        int64_t first = tern__plane_at(r.from, site.n, site.c) +
                        tern__position_at(r.from, b[0].first, b[1].first, b[2].first);
        R sum[N] = {};
        for (int z = 0; z < b[0].count; z++) {
            R deep = weight_of<R, GRADIENT>(r, 0, b[0], at[0], z), slice[N] = {};
            for (int y = 0; y < b[1].count; y += AHEAD)
                for (int x = 0; x < b[2].count; x += AHEAD)
                    add_part<DTYPE, N, GRADIENT>(r, b, at, first + z * r.from.step[0], y, x, slice);
            for (int l = 0; l < N; l++) sum[l] += deep * slice[l];
        }
        int64_t plane = tern__plane_at(r.to, site.n, site.c);
        tern__bunch_put<DTYPE>(r.to.data, plane + tern__position_at(r.to, at[0], at[1], at[2]), sum, r.add);
    }
}

/* ---- launching ---- */

template <int DTYPE, int N> static int start(const tern__call *call, resizing r, bool gradient)
{
    r.sites = tern__sites_of(call->out[0], N);
    return tern__cuda_launch(call, gradient ? run_resize<DTYPE, N, true> : run_resize<DTYPE, N, false>,
                             tern__cuda_grid(call, r.sites.count, THREADS, 1), THREADS, 0, r);
}

static int resize(const tern__call *call, const resizing &r, bool gradient)
{
    const tern__view *views[] = {call->in[0], call->out[0]};
    TERN__BUNCHED(views[0]->dtype, tern__planes_bunched(views, 2), start, call, r, gradient);
}

/* Allocates the bands of all axes, and sets where each begins. */
static band *bands_new(const tern__call *call, resizing *r, bool gradient)
{
    int64_t count = 0;
    for (int d = 0; d < TERN__SPACE; d++) count += r->y_size[d] + (gradient ? r->x_size[d] : 0);
    band *all = (band *)tern__cuda_scratch(call, (size_t)count * sizeof(band)), *next = all;
    for (int d = 0; d < TERN__SPACE && all; d++) {
        r->of_y[d] = next;
        next += r->y_size[d];
        r->of_x[d] = next;
        next += gradient ? r->x_size[d] : 0;
    }
    return all;
}

static int make_bands(const tern__call *call, const resizing &r, bool gradient)
{
    int64_t x = TERN__MAX(TERN__MAX(r.x_size[0], r.x_size[1]), r.x_size[2]);
    int64_t y = TERN__MAX(TERN__MAX(r.y_size[0], r.y_size[1]), r.y_size[2]);
    dim3 x_grid = tern__cuda_grid(call, x, THREADS, 1), y_grid = tern__cuda_grid(call, y, THREADS, 1);
    x_grid.y = y_grid.y = TERN__SPACE;
    int status = tern__cuda_launch(call, find_bands, y_grid, THREADS, 0, r);
    if (status || !gradient) return status;
    return tern__cuda_launch(call, find_transposed_bands, x_grid, THREADS, 0, r);
}

static int run(const tern__call *call, const tern__view *x, const tern__view *y, bool gradient)
{
    if (x->dtype != y->dtype || !tern__dtype_is_float(x->dtype)) return TERN_E_UNSUPPORTED;
    if (tern__view_count(call->out[0]) == 0) return TERN_OK;
    tern__space in = tern__space_of(x), out = tern__space_of(y);
    resizing r = {};
    r.attr = *(const tern__interpolate_attr *)call->attr;
    r.from = tern__planes_of(call->in[0]);
    r.to = tern__planes_of(call->out[0]);
    for (int d = 0; d < TERN__SPACE; d++) {
        r.x_size[d] = in.size[d];
        r.y_size[d] = out.size[d];
    }
    r.wide = x->dtype == TERN_F64;
    r.add = call->add[0];
    band *bands = bands_new(call, &r, gradient);
    if (!bands) return TERN_E_MEMORY;
    int status = make_bands(call, r, gradient);
    if (!status) status = resize(call, r, gradient);
    tern__cuda_scratch_free(call, bands);
    return status;
}

int tern__cuda_interpolate(const tern__call *call)
{
    return run(call, call->in[0], call->out[0], false);
}

int tern__cuda_interpolate_grad(const tern__call *call)
{
    return run(call, call->out[0], call->in[0], true);
}
