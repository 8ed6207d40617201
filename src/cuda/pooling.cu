/* pooling.cu - max and average pooling. A thread has one element of the result, or of as many channels as 16
 * bytes hold where they lie next to each other. In the gradients it goes through all windows that see its
 * element, so nothing is added up by several threads. */
#include "cuda/kernels.h"
#include "cuda/planes.h"

extern "C" {
#include "kernels/pool.h"
}

#include <math.h>

#define THREADS 256
#define AHEAD   3 /* elements of a window's row that are read at a time */

typedef struct pooling {
    tern__pool_attr attr;
    tern__sites sites;
    tern__planes x, y, place; /* or their gradients; place.data NULL: not wanted */
    int64_t in[TERN__SPACE], out[TERN__SPACE];
    int place_dtype;
    bool add;
} pooling;

template <int N> struct alignas(N) bytes {
    uint8_t v[N];
};

template <int N> static __device__ void put_places(const pooling &p, int64_t at, const int *place)
{
    if (p.place_dtype != TERN_U8) {
        for (int i = 0; i < N; i++) ((int32_t *)p.place.data)[at + i] = place[i];
        return;
    }
    bytes<N> narrow;
    for (int i = 0; i < N; i++) narrow.v[i] = (uint8_t)place[i];
    *(bytes<N> *)((uint8_t *)p.place.data + at) = narrow;
}

template <int N> static __device__ void get_places(const pooling &p, int64_t at, int *place)
{
    if (p.place_dtype != TERN_U8) {
        for (int i = 0; i < N; i++) place[i] = ((const int32_t *)p.place.data)[at + i];
        return;
    }
    bytes<N> narrow = *(const bytes<N> *)((const uint8_t *)p.place.data + at);
    for (int i = 0; i < N; i++) place[i] = narrow.v[i];
}

/* ---- windows ---- */

typedef struct window {
    tern__span span[TERN__SPACE];
} window;

static __device__ __forceinline__ window window_of(const pooling &p, const tern__site &site)
{
    window w;
    for (int axis = 0; axis < TERN__SPACE; axis++)
        w.span[axis] = tern__span_of(&p.attr, axis, p.in[axis], site.at[axis]);
    return w;
}

/* Of kernel place `k` along an axis: its offset in x. */
static __device__ __forceinline__ int64_t seen_at(const pooling &p, const window &w, int axis, int64_t k)
{
    return (w.span[axis].corner + k * p.attr.dilation[axis]) * p.x.step[axis];
}

/* The first of equals, the last NaN. */
template <int DTYPE, int N> static __global__ void run_max(pooling p)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        window w = window_of(p, site);
        int64_t plane = tern__plane_at(p.x, site.n, site.c);
        int first = (int)tern__pool_place(&p.attr, w.span[0].first, w.span[1].first, w.span[2].first);
        R best[N];
        int place[N];
        for (int l = 0; l < N; l++) best[l] = -(R)INFINITY, place[l] = first;
        for (int64_t d = w.span[0].first; d < w.span[0].last; d++)
            for (int64_t r = w.span[1].first; r < w.span[1].last; r++)
                for (int64_t c = w.span[2].first; c < w.span[2].last; c += AHEAD) {
                    int64_t at = plane + seen_at(p, w, 0, d) + seen_at(p, w, 1, r);
                    int here = (int)tern__pool_place(&p.attr, d, r, c);
                    tern__bunch<DTYPE, N> x[AHEAD] = {};
#pragma unroll
                    for (int j = 0; j < AHEAD; j++)
                        if (c + j < w.span[2].last)
                            x[j] = tern__bunch_get<DTYPE, N>(p.x.data, at + seen_at(p, w, 2, c + j));
#pragma unroll
                    for (int j = 0; j < AHEAD; j++)
                        for (int l = 0; l < N && c + j < w.span[2].last; l++) {
                            R v = x[j].get(l);
                            if (v > best[l] || v != v) best[l] = v, place[l] = here + j;
                        }
                }
        int64_t inner = tern__plane_at(p.y, site.n, site.c);
        tern__bunch_put<DTYPE>(p.y.data, inner + tern__position_at(p.y, site.at[0], site.at[1], site.at[2]),
                               best, p.add);
        if (!p.place.data) continue;
        inner = tern__plane_at(p.place, site.n, site.c);
        put_places<N>(p, inner + tern__position_at(p.place, site.at[0], site.at[1], site.at[2]), place);
    }
}

/* A large window is summed row by row, slice by slice. */
template <int DTYPE, int N> static __global__ void run_mean(pooling p)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        window w = window_of(p, site);
        int64_t plane = tern__plane_at(p.x, site.n, site.c);
        R sum[N] = {};
        for (int64_t d = w.span[0].first; d < w.span[0].last; d++) {
            R slice[N] = {};
            for (int64_t r = w.span[1].first; r < w.span[1].last; r++) {
                R row[N] = {};
                int64_t at = plane + seen_at(p, w, 0, d) + seen_at(p, w, 1, r);
                for (int64_t c = w.span[2].first; c < w.span[2].last; c++) {
                    tern__bunch<DTYPE, N> x = tern__bunch_get<DTYPE, N>(p.x.data, at + seen_at(p, w, 2, c));
                    for (int l = 0; l < N; l++) row[l] += x.get(l);
                }
                for (int l = 0; l < N; l++) slice[l] += row[l];
            }
            for (int l = 0; l < N; l++) sum[l] += slice[l];
        }
        R divisor = (R)(w.span[0].divisor * w.span[1].divisor * w.span[2].divisor);
        for (int l = 0; l < N; l++) sum[l] /= divisor;
        int64_t inner = tern__plane_at(p.y, site.n, site.c);
        tern__bunch_put<DTYPE>(p.y.data, inner + tern__position_at(p.y, site.at[0], site.at[1], site.at[2]),
                               sum, p.add);
    }
}

/* ---- gradients ---- */

/* Along one axis: the windows first to last may see an element, and `edge` is what they have to come to. */
typedef struct viewers {
    int first, last, edge;
} viewers;

static __device__ __forceinline__ viewers viewers_of(const pooling &p, int axis, int at)
{
    int stride = (int)p.attr.stride[axis], edge = at + (int)p.attr.padding[axis];
    int before = edge - (int)(p.attr.kernel[axis] - 1) * (int)p.attr.dilation[axis];
    int first = before > 0 ? (before + stride - 1) / stride : 0;
    return {first, TERN__MIN(edge / stride, (int)p.out[axis] - 1), edge};
}

/* Where in window `o` the element is; -1: it is passed over. */
static __device__ __forceinline__ int place_in(const pooling &p, const viewers &v, int axis, int o)
{
    int within = v.edge - o * (int)p.attr.stride[axis], dilation = (int)p.attr.dilation[axis];
    if (dilation == 1) return within;
    int place = within / dilation;
    return place * dilation == within ? place : -1;
}

/* What an element of dx gets from the window (d, r, c) of dy, in which its own place is that number. */
struct from_max {
    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const pooling &p, const tern__site &site, const int at[3],
                                               int place, tern__number<DTYPE> *sum)
    {
        int64_t plane = tern__plane_at(p.y, site.n, site.c);
        int places[N];
        get_places<N>(
            p, tern__plane_at(p.place, site.n, site.c) + tern__position_at(p.place, at[0], at[1], at[2]),
            places);
        tern__bunch<DTYPE, N> dy =
            tern__bunch_get<DTYPE, N>(p.y.data, plane + tern__position_at(p.y, at[0], at[1], at[2]));
        for (int l = 0; l < N; l++)
            if (places[l] == place) sum[l] += dy.get(l);
    }
};

struct from_mean {
    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const pooling &p, const tern__site &site, const int at[3], int,
                                               tern__number<DTYPE> *sum)
    {
        int64_t divisor = 1, plane = tern__plane_at(p.y, site.n, site.c);
        for (int axis = 0; axis < TERN__SPACE; axis++)
            divisor *= tern__span_of(&p.attr, axis, p.in[axis], at[axis]).divisor;
        tern__bunch<DTYPE, N> dy =
            tern__bunch_get<DTYPE, N>(p.y.data, plane + tern__position_at(p.y, at[0], at[1], at[2]));
        for (int l = 0; l < N; l++) sum[l] += dy.get(l) / (tern__number<DTYPE>)divisor;
    }
};

template <class F, int DTYPE, int N> static __global__ void run_grad(pooling p)
{
    tern__kernel_begin();
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        viewers v[TERN__SPACE];
        for (int axis = 0; axis < TERN__SPACE; axis++) v[axis] = viewers_of(p, axis, site.at[axis]);
        tern__number<DTYPE> sum[N] = {};
        for (int d = v[0].first; d <= v[0].last; d++)
            for (int r = v[1].first; r <= v[1].last; r++)
                for (int c = v[2].first; c <= v[2].last; c++) {
                    int at[] = {d, r, c},
                        k[] = {place_in(p, v[0], 0, d), place_in(p, v[1], 1, r), place_in(p, v[2], 2, c)};
                    if (k[0] < 0 || k[1] < 0 || k[2] < 0) continue;
                    int place = (k[0] * (int)p.attr.kernel[1] + k[1]) * (int)p.attr.kernel[2] + k[2];
                    F::template add<DTYPE, N>(p, site, at, place, sum);
                }
        int64_t plane = tern__plane_at(p.x, site.n, site.c);
        tern__bunch_put<DTYPE>(p.x.data, plane + tern__position_at(p.x, site.at[0], site.at[1], site.at[2]),
                               sum, p.add);
    }
}

/* ---- which ---- */

static pooling pooling_of(const tern__call *call, const tern__view *x, const tern__view *y,
                          const tern__view *place)
{
    pooling p = {};
    tern__space in = tern__space_of(x), out = tern__space_of(y);
    p.attr = *(const tern__pool_attr *)call->attr;
    p.x = tern__planes_of(x);
    p.y = tern__planes_of(y);
    p.place = tern__planes_of(place);
    p.place_dtype = place ? place->dtype : TERN_U8;
    for (int axis = 0; axis < TERN__SPACE; axis++) {
        p.in[axis] = in.size[axis];
        p.out[axis] = out.size[axis];
    }
    p.add = call->add[0];
    return p;
}

typedef void (*kernel_fn)(pooling p);

static int start(const tern__call *call, pooling p, kernel_fn kernel, int lanes)
{
    p.sites = tern__sites_of(call->out[0], lanes);
    if (p.sites.count == 0) return TERN_OK;
    return tern__cuda_launch(call, kernel, tern__cuda_grid(call, p.sites.count, THREADS, 1), THREADS, 0, p);
}

/* Channels of x and y in bunches; those of the places, of a byte or four, then are so as well. */
static bool is_bunched(const tern__view *x, const tern__view *y, const tern__view *place)
{
    const tern__view *views[] = {x, y};
    bool places = !place || (place->layout == TERN__CHANNELS_LAST && (uintptr_t)place->data % 16 == 0);
    return places && tern__planes_bunched(views, 2);
}

template <int DTYPE, int N> static int start_max(const tern__call *call, const pooling &p)
{
    return start(call, p, run_max<DTYPE, N>, N);
}
template <int DTYPE, int N> static int start_mean(const tern__call *call, const pooling &p)
{
    return start(call, p, run_mean<DTYPE, N>, N);
}
template <int DTYPE, int N> static int start_max_grad(const tern__call *call, const pooling &p)
{
    return start(call, p, run_grad<from_max, DTYPE, N>, N);
}
template <int DTYPE, int N> static int start_mean_grad(const tern__call *call, const pooling &p)
{
    return start(call, p, run_grad<from_mean, DTYPE, N>, N);
}

int tern__cuda_max_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0], *place = call->out[1];
    if (x->dtype != y->dtype) return TERN_E_UNSUPPORTED;
    pooling p = pooling_of(call, x, y, place);
    TERN__BUNCHED(x->dtype, is_bunched(x, y, place), start_max, call, p);
}

int tern__cuda_max_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *place = call->in[1], *dx = call->out[0];
    if (dx->dtype != dy->dtype) return TERN_E_UNSUPPORTED;
    pooling p = pooling_of(call, dx, dy, place);
    TERN__BUNCHED(dx->dtype, is_bunched(dx, dy, place), start_max_grad, call, p);
}

int tern__cuda_avg_pool(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (x->dtype != y->dtype) return TERN_E_UNSUPPORTED;
    pooling p = pooling_of(call, x, y, nullptr);
    TERN__BUNCHED(x->dtype, is_bunched(x, y, nullptr), start_mean, call, p);
}

int tern__cuda_avg_pool_grad(const tern__call *call)
{
    const tern__view *dy = call->in[0], *dx = call->out[0];
    if (dx->dtype != dy->dtype) return TERN_E_UNSUPPORTED;
    pooling p = pooling_of(call, dx, dy, nullptr);
    TERN__BUNCHED(dx->dtype, is_bunched(dx, dy, nullptr), start_mean_grad, call, p);
}
