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
#define AHEAD   3 /* elements of a window's row, and such rows, that are read at a time */

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

/* Some elements of a window, AHEAD rows and columns of them: 0 from `last` on. */
template <int DTYPE, int N> struct part {
    tern__bunch<DTYPE, N> x[AHEAD][AHEAD];

    /* From row r and column c of the slice that begins at `slice` on. */
    __device__ __forceinline__ void read(const pooling &p, const window &w, int64_t slice, int64_t r,
                                         int64_t c, const int64_t (&last)[2])
    {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                x[i][j] = {};
                if (r + i < last[0] && c + j < last[1])
                    x[i][j] = tern__bunch_get<DTYPE, N>(p.x.data, slice + seen_at(p, w, 1, r + i) +
                                                                      seen_at(p, w, 2, c + j));
            }
    }
};

/* Their largest: the first of equals is kept, the last NaN. */
template <int DTYPE, int N>
static __device__ __forceinline__ void see(const pooling &p, const part<DTYPE, N> &of, int64_t d, int64_t r,
                                           int64_t c, const int64_t (&last)[2],
                                           tern__number<DTYPE> (&best)[N], int (&place)[N])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (r + i >= last[0] || c + j >= last[1]) continue;
            int here = (int)tern__pool_place(&p.attr, d, r + i, c + j);
#pragma unroll
            for (int l = 0; l < N; l++) {
                tern__number<DTYPE> v = of.x[i][j].get(l);
                if (v > best[l] || v != v) best[l] = v, place[l] = here;
            }
        }
}

template <int DTYPE, int N>
static __device__ __forceinline__ void add_up(const part<DTYPE, N> &of, tern__number<DTYPE> (&sum)[N])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int l = 0; l < N; l++) {
            tern__number<DTYPE> row = 0;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) row += of.x[i][j].get(l);
            sum[l] += row;
        }
}

/* How many rows are read at a time: several where they are short. */
static __device__ __forceinline__ int rows_of(const window &w)
{
    return w.span[2].last - w.span[2].first > AHEAD ? 1 : AHEAD;
}

/* The order of a window's elements is kept. */
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
            for (int64_t r = w.span[1].first; r < w.span[1].last; r += rows_of(w))
                for (int64_t c = w.span[2].first; c < w.span[2].last; c += AHEAD) {
                    int64_t last[2] = {TERN__MIN(r + rows_of(w), w.span[1].last), w.span[2].last};
                    part<DTYPE, N> of;
                    of.read(p, w, plane + seen_at(p, w, 0, d), r, c, last);
                    see(p, of, d, r, c, last, best, place);
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
template <int DTYPE, int N> static __global__ void __launch_bounds__(THREADS, 2) run_mean(pooling p)
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
            for (int64_t r = w.span[1].first; r < w.span[1].last; r += rows_of(w))
                for (int64_t c = w.span[2].first; c < w.span[2].last; c += AHEAD) {
                    int64_t last[2] = {TERN__MIN(r + rows_of(w), w.span[1].last), w.span[2].last};
                    part<DTYPE, N> of;
                    of.read(p, w, plane + seen_at(p, w, 0, d), r, c, last);
                    add_up(of, slice);
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

/* What an element of dx gets from the window (d, r, c) of dy, in which its own place is that number: what is
 * asked for, and then what comes of it. */
struct from_max {
    template <int DTYPE, int N> struct asked {
        tern__bunch<DTYPE, N> dy;
        bytes<N> narrow;
        int64_t places;
    };

    template <int DTYPE, int N>
    static __device__ __forceinline__ asked<DTYPE, N> ask(const pooling &p, const tern__site &site,
                                                          const int at[3])
    {
        asked<DTYPE, N> a = {};
        int64_t plane = tern__plane_at(p.y, site.n, site.c);
        a.dy = tern__bunch_get<DTYPE, N>(p.y.data, plane + tern__position_at(p.y, at[0], at[1], at[2]));
        a.places = tern__plane_at(p.place, site.n, site.c) + tern__position_at(p.place, at[0], at[1], at[2]);
        if (p.place_dtype == TERN_U8)
            a.narrow = *(const bytes<N> *)((const uint8_t *)p.place.data + a.places);
        return a;
    }

    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const pooling &p, const asked<DTYPE, N> &a, int place,
                                               tern__number<DTYPE> *sum)
    {
        bool is_narrow = p.place_dtype == TERN_U8;
#pragma unroll
        for (int l = 0; l < N; l++) {
            int its = is_narrow ? a.narrow.v[l] : ((const int32_t *)p.place.data)[a.places + l];
            if (its == place) sum[l] += a.dy.get(l);
        }
    }
};

struct from_mean {
    template <int DTYPE, int N> struct asked {
        tern__bunch<DTYPE, N> dy;
        int64_t divisor;
    };

    template <int DTYPE, int N>
    static __device__ __forceinline__ asked<DTYPE, N> ask(const pooling &p, const tern__site &site,
                                                          const int at[3])
    {
        int64_t divisor = 1, plane = tern__plane_at(p.y, site.n, site.c);
        for (int axis = 0; axis < TERN__SPACE; axis++)
            divisor *= tern__span_of(&p.attr, axis, p.in[axis], at[axis]).divisor;
        return {tern__bunch_get<DTYPE, N>(p.y.data, plane + tern__position_at(p.y, at[0], at[1], at[2])),
                divisor};
    }

    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const pooling &, const asked<DTYPE, N> &a, int,
                                               tern__number<DTYPE> *sum)
    {
        for (int l = 0; l < N; l++) sum[l] += a.dy.get(l) / (tern__number<DTYPE>)a.divisor;
    }
};

/* Two windows that are neighbours are asked for at a time, and before all of them what is added to. */
template <class F, int DTYPE, int N> static __global__ void run_grad(pooling p)
{
    tern__kernel_begin();
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        int64_t to =
            tern__plane_at(p.x, site.n, site.c) + tern__position_at(p.x, site.at[0], site.at[1], site.at[2]);
        tern__bunch<DTYPE, N> before = {};
        if (p.add) before = tern__bunch_get<DTYPE, N>(p.x.data, to);
        viewers v[TERN__SPACE];
        for (int axis = 0; axis < TERN__SPACE; axis++) v[axis] = viewers_of(p, axis, site.at[axis]);
        tern__number<DTYPE> sum[N] = {};
        for (int d = v[0].first; d <= v[0].last; d++)
            for (int r = v[1].first; r <= v[1].last; r++)
                for (int c = v[2].first; c <= v[2].last; c += 2) {
                    int rest[] = {place_in(p, v[0], 0, d), place_in(p, v[1], 1, r)};
                    int k[] = {place_in(p, v[2], 2, c), c < v[2].last ? place_in(p, v[2], 2, c + 1) : -1};
                    if (rest[0] < 0 || rest[1] < 0) continue;
                    typename F::template asked<DTYPE, N> asked[2];
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int at[] = {d, r, c + j};
                        if (k[j] >= 0) asked[j] = F::template ask<DTYPE, N>(p, site, at);
                    }
                    int row = (rest[0] * (int)p.attr.kernel[1] + rest[1]) * (int)p.attr.kernel[2];
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        if (k[j] >= 0) F::template add<DTYPE, N>(p, asked[j], row + k[j], sum);
                }
        for (int l = 0; l < N && p.add; l++) sum[l] += before.get(l);
        tern__bunch_put<DTYPE>(p.x.data, to, sum, false);
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
