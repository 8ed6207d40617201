/* pooling.cu - max and average pooling. A thread takes one element of the result, or as many adjacent
 * channels as fit into 16 bytes. In the gradients it goes over all windows that contain its element, so no
 * two threads add to the same element. */
#include "cuda/kernels.h"
#include "cuda/kernels/planes.h"

extern "C" {
#include "kernels/pool.h"
}

#include <math.h>
#include <string.h>

#define THREADS 256
#define AHEAD   3 /* elements of a window's row, and rows, that are read at a time */

typedef struct pooling {
    tern__pool_attr attr;
    tern__sites sites;
    tern__cuda_planes x, y, place; /* or their gradients; place.data NULL: not wanted */
    int64_t in[TERN__SPACE], out[TERN__SPACE];
    tern__divisor stride[TERN__SPACE], dilation[TERN__SPACE];
    int reach[TERN__SPACE]; /* distance from a window's first position to its last */
    int place_dtype;
    bool dilated, add;
} pooling;

/* N places of type P, uint8_t or uint32_t, as they are in memory: bytes packed in words W, since nvcc
 * would unpack single ones as soon as they arrive. */
template <class P, class W, int N> struct alignas(N * sizeof(P) > 16 ? 16 : N * sizeof(P)) words {
    enum { EACH = sizeof(W) / sizeof(P), BITS = 8 * sizeof(P) };
    W word[N / EACH];

    __device__ __forceinline__ bool is(int i, int place) const
    {
        W everywhere = (W)((W)place * ((W)-1 / (P)-1));
        return ((word[i / EACH] ^ everywhere) >> i % EACH * BITS & (P)-1) == 0;
    }
    __device__ __forceinline__ void set(const int *values)
    {
#pragma unroll
        for (int i = 0; i < N / EACH; i++) {
            word[i] = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) word[i] |= (W)((W)values[i * EACH + j] << j * BITS);
        }
    }
};
template <class P, int N> struct places : words<P, uint32_t, N> {
};
template <> struct places<uint8_t, 1> : words<uint8_t, uint8_t, 1> {
};
template <> struct places<uint8_t, 2> : words<uint8_t, uint16_t, 2> {
};

template <class P, int N> static __device__ void put_places(const pooling &p, int64_t at, const int *values)
{
    places<P, N> stored;
    stored.set(values);
    *(places<P, N> *)((P *)p.place.data + at) = stored;
}

/* ---- windows ---- */

/* tern__pool_span of all axes; places and positions fit into 32 bits. */
typedef struct window {
    int corner[TERN__SPACE], first[TERN__SPACE], last[TERN__SPACE];
    int64_t divisor;
} window;

static __device__ __forceinline__ window window_of(const pooling &p, const int (&at)[TERN__SPACE])
{
    window w = {{}, {}, {}, 1};
#pragma unroll
    for (int axis = 0; axis < TERN__SPACE; axis++) {
        tern__pool_span span = tern__span_of(&p.attr, axis, p.in[axis], at[axis]);
        w.corner[axis] = (int)span.corner;
        w.first[axis] = (int)span.first;
        w.last[axis] = (int)span.last;
        w.divisor *= span.divisor;
    }
    return w;
}

/* The offset in x of kernel position `k` along an axis; it is inside x. */
static __device__ __forceinline__ int64_t seen_at(const pooling &p, const window &w, int axis, int k)
{
    return ((uint32_t)w.corner[axis] + (uint32_t)k * (uint32_t)p.attr.dilation[axis]) * p.x.step[axis];
}

static __device__ __forceinline__ int number_of(const pooling &p, int d, int r, int c)
{
    return (d * (int)p.attr.kernel[1] + r) * (int)p.attr.kernel[2] + c;
}

/* Some elements of a window, AHEAD rows and columns; 0 from `last` on. */
template <int DTYPE, int N> struct part {
    tern__bunch<DTYPE, N> x[AHEAD][AHEAD];

    /* Reads from row r and column c on, in the slice at `slice`. */
    __device__ __forceinline__ void read(const pooling &p, const window &w, int64_t slice, int r, int c,
                                         const int (&last)[2])
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

/* Updates the maximum: the first of equal values, the last NaN. */
template <int DTYPE, int N>
static __device__ __forceinline__ void see(const pooling &p, const part<DTYPE, N> &of, int d, int r, int c,
                                           const int (&last)[2], tern__number<DTYPE> (&best)[N],
                                           int (&place)[N])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (r + i >= last[0] || c + j >= last[1]) continue;
            int here = number_of(p, d, r + i, c + j);
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

/* How many rows are read at a time: several if they are short. */
static __device__ __forceinline__ int rows_of(const window &w)
{
    return w.last[2] - w.first[2] > AHEAD ? 1 : AHEAD;
}

/* The window's elements are compared in order. */
template <int DTYPE, int N> static __global__ void run_max(pooling p)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        window w = window_of(p, site.at);
        int64_t plane = tern__plane_at(p.x, site.n, site.c);
        int first = number_of(p, w.first[0], w.first[1], w.first[2]);
        R best[N];
        int place[N];
        for (int l = 0; l < N; l++) best[l] = -(R)INFINITY, place[l] = first;
        for (int d = w.first[0]; d < w.last[0]; d++)
            for (int r = w.first[1]; r < w.last[1]; r += rows_of(w))
                for (int c = w.first[2]; c < w.last[2]; c += AHEAD) {
                    int last[2] = {TERN__MIN(r + rows_of(w), w.last[1]), w.last[2]};
                    part<DTYPE, N> of;
                    of.read(p, w, plane + seen_at(p, w, 0, d), r, c, last);
                    see(p, of, d, r, c, last, best, place);
                }
        int64_t inner = tern__plane_at(p.y, site.n, site.c);
        tern__bunch_put<DTYPE>(p.y.data, inner + tern__position_at(p.y, site.at[0], site.at[1], site.at[2]),
                               best, p.add);
        if (!p.place.data) continue;
        inner = tern__plane_at(p.place, site.n, site.c);
        inner += tern__position_at(p.place, site.at[0], site.at[1], site.at[2]);
        if (p.place_dtype == TERN_U8)
            put_places<uint8_t, N>(p, inner, place);
        else
            put_places<uint32_t, N>(p, inner, place);
    }
}

/* A large window is summed by rows, then by slices. */
template <int DTYPE, int N> static __global__ void __launch_bounds__(THREADS, 2) run_mean(pooling p)
{
    tern__kernel_begin();
    typedef tern__number<DTYPE> R;
    int64_t pace = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.sites.count; i += pace) {
        tern__site site = tern__site_of(p.sites, i);
        window w = window_of(p, site.at);
        int64_t plane = tern__plane_at(p.x, site.n, site.c);
        R sum[N] = {};
        for (int d = w.first[0]; d < w.last[0]; d++) {
            R slice[N] = {};
            for (int r = w.first[1]; r < w.last[1]; r += rows_of(w))
                for (int c = w.first[2]; c < w.last[2]; c += AHEAD) {
                    int last[2] = {TERN__MIN(r + rows_of(w), w.last[1]), w.last[2]};
                    part<DTYPE, N> of;
                    of.read(p, w, plane + seen_at(p, w, 0, d), r, c, last);
                    add_up(of, slice);
                }
            for (int l = 0; l < N; l++) sum[l] += slice[l];
        }
        R divisor = (R)w.divisor;
        for (int l = 0; l < N; l++) sum[l] /= divisor;
        int64_t inner = tern__plane_at(p.y, site.n, site.c);
        tern__bunch_put<DTYPE>(p.y.data, inner + tern__position_at(p.y, site.at[0], site.at[1], site.at[2]),
                               sum, p.add);
    }
}

/* ---- gradients ---- */

/* The windows first .. last along one axis that may contain an element; `edge` is the position they must
 * reach. */
typedef struct viewers {
    int first, last, edge;
} viewers;

static __device__ __forceinline__ viewers viewers_of(const pooling &p, int axis, int at)
{
    int edge = at + (int)p.attr.padding[axis], before = edge - p.reach[axis];
    int first = before > 0 ? (int)tern__quotient_of((uint32_t)before - 1, p.stride[axis]) + 1 : 0;
    int last = (int)tern__quotient_of((uint32_t)edge, p.stride[axis]);
    return {first, TERN__MIN(last, (int)p.out[axis] - 1), edge};
}

/* The kernel position at distance `within` from the window's first along an axis; -1: dilation skips it. */
static __device__ __forceinline__ int place_in(const pooling &p, int axis, int within)
{
    int place = (int)tern__quotient_of((uint32_t)within, p.dilation[axis]);
    return place * (int)p.attr.dilation[axis] == within ? place : -1;
}

/* The element's position in the windows (d, r, c) and (d, r, c + 1): k[0] and k[1] along the outer axes in
 * both, k[2] and k[3] along the last axis in each. Negative: skipped by dilation, or there is no second
 * window. */
static __device__ __forceinline__ void places_in(const pooling &p, const viewers *v, int d, int r, int c,
                                                 int (&k)[TERN__SPACE + 1])
{
    int o[] = {d, r, c, c + 1}, axis[] = {0, 1, 2, 2};
#pragma unroll
    for (int i = 0; i < TERN__SPACE + 1; i++) k[i] = v[axis[i]].edge - o[i] * (int)p.attr.stride[axis[i]];
    if (p.dilated) {
#pragma unroll
        for (int i = 0; i < TERN__SPACE + 1; i++) k[i] = place_in(p, axis[i], k[i]);
    }
    if (c == v[2].last) k[3] = -1;
}

/* How an element of dx gets its part from a window of dy in which it has the given place: first the load,
 * then the value, which is 0 if nothing was loaded. BLOCKS fit on a multiprocessor. */
template <class P> struct from_max {
    enum { BLOCKS = sizeof(P) == 1 ? 4 : 3 };

    template <int DTYPE, int N> struct asked {
        tern__bunch<DTYPE, N> dy;
        places<P, N> place;
    };

    template <int DTYPE, int N>
    static __device__ __forceinline__ asked<DTYPE, N> ask(const pooling &p, int64_t at,
                                                          const int (&)[TERN__SPACE])
    {
        return {tern__bunch_get<DTYPE, N>(p.y.data, at),
                *(const places<P, N> *)((const P *)p.place.data + at)};
    }

    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const asked<DTYPE, N> &a, int place, tern__number<DTYPE> *sum)
    {
#pragma unroll
        for (int l = 0; l < N; l++)
            if (a.place.is(l, place)) sum[l] += a.dy.get(l);
    }
};

struct from_mean {
    enum { BLOCKS = 2 };

    template <int DTYPE, int N> struct asked {
        tern__bunch<DTYPE, N> dy;
        tern__number<DTYPE> weight;
    };

    template <int DTYPE, int N>
    static __device__ __forceinline__ asked<DTYPE, N> ask(const pooling &p, int64_t at,
                                                          const int (&o)[TERN__SPACE])
    {
        return {tern__bunch_get<DTYPE, N>(p.y.data, at), 1 / (tern__number<DTYPE>)window_of(p, o).divisor};
    }

    template <int DTYPE, int N>
    static __device__ __forceinline__ void add(const asked<DTYPE, N> &a, int, tern__number<DTYPE> *sum)
    {
#pragma unroll
        for (int l = 0; l < N; l++) sum[l] += a.dy.get(l) * a.weight;
    }
};

/* Loads two neighbouring windows at a time, and before all of them the values that are added to. */
template <class F, int DTYPE, int N>
static __global__ void __launch_bounds__(THREADS, F::BLOCKS) run_grad(pooling p)
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
        int64_t plane = tern__plane_at(p.y, site.n, site.c);
        tern__number<DTYPE> sum[N] = {};
        for (int d = v[0].first; d <= v[0].last; d++)
            for (int r = v[1].first; r <= v[1].last; r++)
                for (int c = v[2].first; c <= v[2].last; c += 2) {
                    int k[TERN__SPACE + 1];
                    places_in(p, v, d, r, c, k);
                    if (k[0] < 0 || k[1] < 0) continue;
                    typename F::template asked<DTYPE, N> asked[2] = {};
                    int64_t at = plane + tern__position_at(p.y, d, r, c);
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        int o[] = {d, r, c + j};
                        if (k[2 + j] >= 0) asked[j] = F::template ask<DTYPE, N>(p, at + j * p.y.step[2], o);
                    }
                    int row = number_of(p, k[0], k[1], 0);
#pragma unroll
                    for (int j = 0; j < 2; j++) F::template add<DTYPE, N>(asked[j], row + k[2 + j], sum);
                }
        for (int l = 0; l < N && p.add; l++) sum[l] += before.get(l);
        tern__bunch_put<DTYPE>(p.x.data, to, sum, false);
    }
}

/* ---- launching ---- */

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
        p.stride[axis] = tern__divisor_of(p.attr.stride[axis]);
        p.dilation[axis] = tern__divisor_of(p.attr.dilation[axis]);
        p.dilated |= p.attr.dilation[axis] != 1;
        p.reach[axis] = (int)TERN__MIN((p.attr.kernel[axis] - 1) * p.attr.dilation[axis], INT32_MAX);
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

/* Whether channels of x and y can be read in bunches; then those of the places, of one or four bytes, can
 * be as well. */
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
    bool narrow = p.place_dtype == TERN_U8;
    return start(call, p,
                 narrow ? run_grad<from_max<uint8_t>, DTYPE, N> : run_grad<from_max<uint32_t>, DTYPE, N>, N);
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
    bool alike = !memcmp(dy->stride, place->stride, (size_t)dy->ndim * sizeof(*dy->stride));
    if (dx->dtype != dy->dtype || !alike) return TERN_E_UNSUPPORTED;
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
