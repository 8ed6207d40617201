/* move.cu - copies between views that need no element-by-element addressing.
 *
 * If rows of both views are whole 16-byte words, these are copied. If elements that are adjacent in one
 * view are far apart in the other, as between channels first and channels last, a block moves a tile
 * through shared memory: it reads along the source's innermost dimension and writes along the result's. If
 * one of these is short the tile has more of the other, so neighbouring threads still access adjacent
 * memory. Rows of a tile are an odd number of 4-byte words apart, so that threads that go down a column
 * access different banks of shared memory. */
#include "cuda/copy.h"
#include "cuda/kernels/elements.h"

extern "C" {
#include "kernels/plan.h"
}

#define THREADS           256
#define EACH              16 /* elements of a tile per thread */
#define TILE              (THREADS * EACH)
#define SIDE              64 /* least side of a tile, if the dimension is that long */
#define PARTS(size, part) (((size) + (part)-1) / (part))

#define AHEAD 4 /* words that a thread loads at a time */

namespace
{
typedef struct move {
    tern__plan plan; /* of words if rows consist of them; operands: from, to */
    const void *from;
    void *to;
    int from_dtype, to_dtype;
    bool add;
} move;

/* A side of a tile. A thread that goes over the tile moves `along` along this side and `across` along the
 * other in THREADS steps. */
typedef struct side {
    int dim;
    uint32_t size, along, across;
    int64_t tiles;
} side;

typedef struct turn {
    move m;
    side a, b; /* the source is contiguous along a, the result along b */
    uint32_t pitch;
    int64_t tiles;
} turn;
} // namespace

/* ---- words ---- */

static __device__ __forceinline__ void places_of(const tern__plan &plan, int64_t i, int64_t (&at)[2])
{
    at[0] = at[1] = 0;
    for (int d = 0; d < plan.ndim; d++) {
        int64_t next = d + 1 < plan.ndim ? tern__quotient(i, plan.shape[d]) : 0,
                index = i - next * plan.shape[d];
        for (int o = 0; o < 2; o++) at[o] += index * plan.stride[o][d];
        i = next;
    }
}

static __global__ void run_words(move m)
{
    tern__kernel_begin();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < m.plan.count; i += AHEAD * step) {
        uint4 word[AHEAD];
        int64_t to[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            if (i + n * step >= m.plan.count) break;
            int64_t at[2];
            places_of(m.plan, i + n * step, at);
            word[n] = ((const uint4 *)m.from)[at[0]];
            to[n] = at[1];
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (i + n * step < m.plan.count) ((uint4 *)m.to)[to[n]] = word[n];
    }
}

/* The plan in 16-byte words; false: rows are not whole words. */
static bool takes_words(const move *m, tern__plan *words)
{
    int64_t most = 16 / (int64_t)tern_dtype_bytes((tern_dtype)m->to_dtype);
    bool fit = m->from_dtype == m->to_dtype && !m->add && m->plan.stride[0][0] == 1 &&
               m->plan.stride[1][0] == 1 && m->plan.shape[0] % most == 0 && (uintptr_t)m->from % 16 == 0 &&
               (uintptr_t)m->to % 16 == 0;
    *words = m->plan;
    words->shape[0] /= most;
    words->count /= most;
    for (int d = 1; d < words->ndim; d++)
        for (int o = 0; o < 2; o++) {
            fit = fit && words->stride[o][d] % most == 0;
            words->stride[o][d] /= most;
        }
    return fit;
}

/* ---- transposing tiles ---- */

/* The first element of a tile's side, and the tile's extent within its dimension. */
typedef struct corner {
    int64_t from, to;
    uint32_t a, b;
} corner;

static __device__ __forceinline__ int64_t tile_first(const side &s, int64_t *rest)
{
    int64_t next = tern__quotient(*rest, s.tiles), first = (*rest - next * s.tiles) * s.size;
    *rest = next;
    return first;
}

static __device__ __forceinline__ uint32_t room(const turn &t, const side &s, int64_t first)
{
    int64_t left = t.m.plan.shape[s.dim] - first;
    return left < s.size ? (uint32_t)left : s.size;
}

static __device__ __forceinline__ corner corner_of(const turn &t, int64_t tile)
{
    const tern__plan &plan = t.m.plan;
    int64_t b = tile_first(t.b, &tile), a = tile_first(t.a, &tile);
    corner c = {a + b * plan.stride[0][t.b.dim], a * plan.stride[1][t.a.dim] + b, room(t, t.a, a),
                room(t, t.b, b)};
    for (int d = 0; d < plan.ndim; d++) {
        if (d == t.a.dim || d == t.b.dim) continue;
        int64_t next = tern__quotient(tile, plan.shape[d]), index = tile - next * plan.shape[d];
        c.from += index * plan.stride[0][d];
        c.to += index * plan.stride[1][d];
        tile = next;
    }
    return c;
}

/* A thread's next element of a tile, going along a side. */
typedef struct spot {
    uint32_t along, across;
} spot;

static __device__ __forceinline__ spot spot_of(const side &s)
{
    return {threadIdx.x % s.size, threadIdx.x / s.size};
}

static __device__ __forceinline__ void spot_move(const side &s, spot *at)
{
    at->along += s.along;
    at->across += s.across;
    if (at->along < s.size) return;
    at->along -= s.size;
    at->across++;
}

template <class T> static __device__ __forceinline__ void read_tile(const turn &t, const corner &c, T *tile)
{
    const T *from = (const T *)t.m.from + c.from;
    const int64_t step = t.m.plan.stride[0][t.b.dim];
    spot ask = spot_of(t.a), keep = ask;
    T value[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++, spot_move(t.a, &ask))
        if (ask.along < c.a && ask.across < c.b) value[n] = from[ask.along + ask.across * step];
#pragma unroll
    for (int n = 0; n < EACH; n++, spot_move(t.a, &keep))
        if (keep.along < c.a && keep.across < c.b) tile[keep.across * t.pitch + keep.along] = value[n];
}

/* AS_IS: the result has the source's dtype; otherwise both are converted through f32. */
template <class T, bool AS_IS>
static __device__ __forceinline__ void put(const turn &t, int64_t to, const T *tile, uint32_t at)
{
    if constexpr (AS_IS) {
        ((T *)t.m.to)[to] = tile[at];
        return;
    }
    float value = tern__element<float>(tile, t.m.from_dtype, at);
    if (t.m.add) value += tern__element<float>(t.m.to, t.m.to_dtype, to);
    tern__element_set<float>(t.m.to, t.m.to_dtype, to, value);
}

template <class T, bool AS_IS> static __global__ void __launch_bounds__(THREADS, 4) run_tiles(turn t)
{
    tern__kernel_begin();
    T *tile = (T *)tern__cuda_shared();
    const int64_t step = t.m.plan.stride[1][t.a.dim];
    for (int64_t n = blockIdx.x; n < t.tiles; n += gridDim.x) {
        corner c = corner_of(t, n);
        read_tile<T>(t, c, tile);
        __syncthreads();
        spot at = spot_of(t.b);
#pragma unroll 4
        for (int i = 0; i < EACH; i++, spot_move(t.b, &at))
            if (at.across < c.a && at.along < c.b)
                put<T, AS_IS>(t, c.to + at.across * step + at.along, tile, at.along * t.pitch + at.across);
        __syncthreads(); /* before the next tile is read */
    }
}

/* The longest side that fits a tile beside `other`, but without a last tile much shorter than the rest. */
static side side_of(const tern__plan *plan, int dim, int64_t other)
{
    int64_t size = plan->shape[dim], most = TILE / TERN__MIN(other, (int64_t)SIDE);
    if (size > most) size = (int64_t)tern__align_up((size_t)PARTS(size, PARTS(size, most)), 32);
    side s = {};
    s.dim = dim;
    s.size = (uint32_t)TERN__MIN(size, most);
    s.along = THREADS % s.size;
    s.across = THREADS / s.size;
    s.tiles = PARTS(plan->shape[dim], s.size);
    return s;
}

/* The dimension in which an operand's elements are adjacent, or -1. */
static int innermost(const tern__plan *plan, int operand)
{
    for (int d = 0; d < plan->ndim; d++)
        if (plan->stride[operand][d] == 1 && plan->shape[d] > 1) return d;
    return -1;
}

static bool is_single(int dtype)
{
    return dtype == TERN_F32 || dtype == TERN_BF16 || dtype == TERN_F16;
}

static bool takes_tiles(const move *m, turn *t)
{
    bool as_is = m->from_dtype == m->to_dtype && !m->add;
    int a = innermost(&m->plan, 0), b = innermost(&m->plan, 1);
    if (a < 0 || b < 0 || a == b) return false;
    if (!as_is && !(is_single(m->from_dtype) && is_single(m->to_dtype))) return false;
    int64_t of_a = m->plan.shape[a], of_b = m->plan.shape[b];
    *t = {};
    t->m = *m;
    t->a = side_of(&m->plan, a, of_b);
    t->b = side_of(&m->plan, b, of_a);
    uint32_t in_word = (uint32_t)TERN__MAX(4 / tern_dtype_bytes((tern_dtype)m->from_dtype), (size_t)1);
    t->pitch = t->a.size;
    while (t->pitch % (2 * in_word) != in_word) t->pitch++;
    t->tiles = t->a.tiles * t->b.tiles * (m->plan.count / (of_a * of_b));
    return true;
}

template <class T> static int start_tiles(const tern__call *call, const turn &t)
{
    bool as_is = t.m.from_dtype == t.m.to_dtype && !t.m.add;
    dim3 grid = tern__cuda_grid(call, t.tiles, 1, 1);
    size_t shared = t.b.size * t.pitch * sizeof(T);
    if (as_is) return tern__cuda_launch(call, run_tiles<T, true>, grid, THREADS, shared, t);
    if constexpr (sizeof(T) == 2 || sizeof(T) == 4)
        return tern__cuda_launch(call, run_tiles<T, false>, grid, THREADS, shared, t);
    return TERN_E_UNSUPPORTED;
}

/* ---- launching ---- */

int tern__cuda_move(const tern__call *call, const tern__view *from, const tern__view *to, bool add)
{
    const tern__view *views[] = {from, to};
    move m = {tern__plan_of(views, 2), from->data, to->data, (int)from->dtype, (int)to->dtype, add};
    tern__plan words;
    turn t;
    if (takes_words(&m, &words)) {
        m.plan = words;
        return tern__cuda_launch(call, run_words, tern__cuda_grid(call, words.count, THREADS, AHEAD), THREADS,
                                 0, m);
    }
    if (!takes_tiles(&m, &t)) return TERN_E_UNSUPPORTED;
    switch (tern_dtype_bytes(from->dtype)) {
    case 1: return start_tiles<uint8_t>(call, t);
    case 2: return start_tiles<uint16_t>(call, t);
    case 4: return start_tiles<uint32_t>(call, t);
    default: return start_tiles<uint64_t>(call, t);
    }
}
