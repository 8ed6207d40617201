/* small_gemm.cu - matrix products in f32 by plain multiply-adds.
 *
 * y is cut into tiles of 64 x 32. A block computes one, or a part of its sum over k if there are too few
 * tiles to occupy a GPU. k is processed in chunks of 32, which are copied into shared memory while earlier
 * ones are multiplied. Each pair of the eight warps takes the upper and the lower half of the tile and its
 * own slice of the chunk. A thread has 8 x 4 elements of a half, so it multiplies 32 times for every 12
 * numbers that it reads. At the end the slices are added in shared memory. Then the parts of a tile, whose
 * blocks form a cluster, are added through the cluster's shared memory: each block adds a share of the
 * tile, in the order of the parts, and writes it. */
#include "cuda/kernels/small_gemm.h"
#include "cuda/kernels/cluster.h"
#include "cuda/kernels.h"
#include "cuda/kernels/sums.h"

#ifndef TERN_CUDA_EMULATED
#include <cuda_pipeline.h>
#endif

#define THREADS 256

enum { ROWS = 64, COLUMNS = 32, HALF = 32, DEPTH = 32, SLICES = 4, SLICE = DEPTH / SLICES };
enum {
    HIGH = 8,
    WIDE = 4,
    OWNERS = THREADS / SLICES
}; /* HIGH x WIDE elements of a thread; OWNERS: threads of a slice */
enum { LEAST_DEPTH = 2 * DEPTH, LONGEST = 1 << 14 };

namespace
{
/* Lines of k numbers: a's rows or b's columns. Adjacent elements in memory are along k, or along the
 * lines. */
typedef struct matrix {
    const float *data;
    int step, lines;
    bool along_k, fours;
} matrix;

typedef struct product {
    matrix a, b;
    float *y, *row_sums;
    const float *bias, *gate; /* gate: of y */
    int k, y_step;
    bool add, relu, fours; /* fours: y can be written in fours */
    int across, tiles;     /* tiles in a row of tiles, and in total */
    int parts, depth;      /* parts of a tile's sum, and the k of a part */
    int first_block;       /* the product's blocks: parts of its tiles, then those that sum rows of a */
} product;

typedef struct problem {
    product of[TERN__SMALL_GEMMS];
    const float *gate;
} problem;

/* The layout of a matrix in shared memory, and which of each 32 lines the lanes read. A line along k is
 * padded, so that those of eight lanes are in different banks. */
template <int LINES_, int LANES_, bool ALONG_K_> struct side {
    static constexpr int LINES = LINES_, LANES = LANES_, COUNT = 32 / LANES_;
    static constexpr bool ALONG_K = ALONG_K_;
    static constexpr int SIZE = ALONG_K_ ? LINES_ * (DEPTH + 4) : LINES_ * DEPTH;
    static constexpr int PIECES = LINES_ * DEPTH / 4 / THREADS;
    static __device__ __forceinline__ int place(int line, int k)
    {
        return ALONG_K ? line * (DEPTH + 4) + k : k * LINES + line;
    }
    static __device__ __forceinline__ int line(int lane, int i)
    {
        return ALONG_K ? lane + LANES * i : i / 4 * 4 * LANES + lane * 4 + i % 4;
    }
};

/* Chunks of a, of b and, if there is one, of the gate; at most 48 KB. */
template <class A, class B, bool GATED> struct stage {
    static constexpr int COUNT = GATED ? 2 : 3, SIZE = (GATED ? 2 : 1) * A::SIZE + B::SIZE;
};
} // namespace

/* ---- chunks in shared memory ---- */

/* A thread's part in copying each chunk: four adjacent elements. */
typedef struct piece {
    const float *from;   /* its place in the chunk that is copied next */
    int place, k, lines; /* lines: remaining lines of the matrix from its own on */
} piece;

/* Finds the thread's pieces of chunks that begin at a line and a k. */
template <class S>
static __device__ __forceinline__ void find_pieces(piece (&pieces)[S::PIECES], const matrix &m, int line,
                                                   int k)
{
    constexpr int fours = (S::ALONG_K ? DEPTH : S::LINES) / 4;
#pragma unroll
    for (int n = 0; n < S::PIECES; n++) {
        int number = n * THREADS + threadIdx.x, fast = number % fours * 4, slow = number / fours;
        int l = S::ALONG_K ? slow : fast, d = S::ALONG_K ? fast : slow;
        int64_t at = S::ALONG_K ? (int64_t)(line + l) * m.step + k + d : (int64_t)(k + d) * m.step + line + l;
        pieces[n] = {m.data + at, S::place(l, d), d, m.lines - line - l};
    }
}

/* Copies four numbers, with zeros after the first `count`. */
static __device__ __forceinline__ void copy_four(float *to, const float *from, int count, bool fours)
{
    if (fours) {
        __pipeline_memcpy_async(to, from, 16, count > 0 ? 0 : 16);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) __pipeline_memcpy_async(to + i, from + i, 4, i < count ? 0 : 4);
}

/* Starts copying a chunk with `depth` numbers of a line left; `beside`: distance in bytes if another
 * matrix is copied (the gate). */
template <class S>
static __device__ __forceinline__ void copy_panel(float *panel, const piece (&pieces)[S::PIECES], int depth,
                                                  bool fours, int64_t beside)
{
#pragma unroll
    for (const piece &p : pieces) {
        int count = S::ALONG_K ? (p.lines > 0 ? depth - p.k : 0) : (p.k < depth ? p.lines : 0);
        copy_four(panel + p.place, (const float *)((const char *)p.from + beside), count, fours);
    }
}

template <class S> static __device__ __forceinline__ void move_on(piece (&pieces)[S::PIECES], int step)
{
#pragma unroll
    for (piece &p : pieces) p.from += step;
}

static __device__ __forceinline__ float passed(float a, float gate)
{
    return gate <= 0 ? 0 : a;
}
static __device__ __forceinline__ float4 passed_four(float4 a, float4 gate)
{
    return {passed(a.x, gate.x), passed(a.y, gate.y), passed(a.z, gate.z), passed(a.w, gate.w)};
}

/* Applies the gate to what this thread has copied, which it sees before the others do. */
template <class S>
static __device__ __forceinline__ void pass_gate(float *panel, const float *gate,
                                                 const piece (&pieces)[S::PIECES])
{
#pragma unroll
    for (const piece &p : pieces) {
        float4 *a = (float4 *)(panel + p.place);
        *a = passed_four(*a, *(const float4 *)(gate + p.place));
    }
}

/* ---- multiplying ---- */

/* A lane's place among those that share a's lines, and b's. Neighbouring lanes share b's lines, every
 * second lane a's: according to NVIDIA such pairs halve the shared memory accesses of a 16-byte read. */
static __device__ __forceinline__ int lane_of_a(int lane)
{
    return lane % 2 + lane / 16 * 2;
}
static __device__ __forceinline__ int lane_of_b(int lane)
{
    return lane / 2 % 8;
}

/* Reads four k of a lane's lines. */
template <class S>
static __device__ __forceinline__ void read_lines(float (&to)[S::COUNT][4], const float *panel, int lane,
                                                  int k)
{
#pragma unroll
    for (int n = 0; n < S::COUNT; n++) {
        int i = S::ALONG_K ? n : n / 4 * 4, along = S::ALONG_K ? 0 : n % 4;
        const float4 v = *(const float4 *)(panel + S::place(S::line(lane, i), k + along));
        const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int f = 0; f < 4; f++) to[S::ALONG_K ? n : i + f][S::ALONG_K ? f : along] = four[f];
    }
}

template <class A, class B>
static __device__ __forceinline__ void multiply(float (&sum)[HIGH][WIDE], const float *a_panel,
                                                const float *b_panel, int lane, int k)
{
    float a[HIGH][4], b[WIDE][4];
    read_lines<A>(a, a_panel, lane_of_a(lane), k);
    read_lines<B>(b, b_panel, lane_of_b(lane), k);
#pragma unroll
    for (int f = 0; f < 4; f++)
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) sum[i][j] += a[i][f] * b[j][f];
}

/* Sums the products over a slice's k of all chunks. Chunk c is copied while earlier ones are multiplied,
 * into the place of one that all threads have finished. */
template <class A, class B, bool GATED>
static __device__ __forceinline__ void sum_slice(float (&sum)[HIGH][WIDE], const product &p,
                                                 const float *gate, int row, int column, int k, int end)
{
    constexpr int count = stage<A, B, GATED>::COUNT, size = stage<A, B, GATED>::SIZE;
    float *stages = (float *)tern__cuda_shared();
    int chunks = (end - k + DEPTH - 1) / DEPTH, lane = threadIdx.x % TERN__WARP;
    int half = threadIdx.x / TERN__WARP % 2, slice = threadIdx.x / OWNERS * SLICE;
    int a_step = A::ALONG_K ? DEPTH : DEPTH * p.a.step, b_step = B::ALONG_K ? DEPTH : DEPTH * p.b.step;
    bool a_fours = p.a.fours, b_fours = p.b.fours;
    int64_t beside = GATED ? (const char *)gate - (const char *)p.a.data : 0;
    piece a[A::PIECES], b[B::PIECES];
    find_pieces<A>(a, p.a, row, k);
    find_pieces<B>(b, p.b, column, k);
    auto copy = [&](int c) {
        float *to = stages + c % count * size;
        int depth = end - k - c * DEPTH;
        if (c < chunks) {
            copy_panel<A>(to, a, depth, a_fours, 0);
            copy_panel<B>(to + A::SIZE, b, depth, b_fours, 0);
            if (GATED) copy_panel<A>(to + A::SIZE + B::SIZE, a, depth, a_fours, beside);
            move_on<A>(a, a_step);
            move_on<B>(b, b_step);
        }
        __pipeline_commit();
    };
    for (int c = 0; c < count - 1; c++) copy(c);
    for (int c = 0; c < chunks; c++) {
        float *here = stages + c % count * size;
        __pipeline_wait_prior(count - 2);
        if (GATED) pass_gate<A>(here, here + A::SIZE + B::SIZE, a);
        __syncthreads();
        copy(c + count - 1);
#pragma unroll
        for (int n = 0; n < SLICE; n += 4)
            multiply<A, B>(sum, here + A::place(half * HALF, 0), here + A::SIZE, lane, slice + n);
    }
}

/* ---- adding up ---- */

/* A thread's results after adding: `count` rows from `first` on of an owner's eight. */
typedef struct share {
    int owner, first, count;
    float4 of_row[HIGH / SLICES];
} share;

static __device__ __forceinline__ float4 plus(float4 a, float4 b)
{
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

static __device__ __forceinline__ share add_slices(const float (&sum)[HIGH][WIDE])
{
    float4(*sums)[HIGH][OWNERS] = (float4(*)[HIGH][OWNERS])tern__cuda_shared();
    constexpr int count = HIGH / SLICES;
    share s = {(int)threadIdx.x % OWNERS, (int)threadIdx.x / OWNERS * count, count, {}};
    __syncthreads(); /* all have read the last chunk */
#pragma unroll
    for (int i = 0; i < HIGH; i++)
        sums[threadIdx.x / OWNERS][i][s.owner] = {sum[i][0], sum[i][1], sum[i][2], sum[i][3]};
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; i++) {
        s.of_row[i] = sums[0][s.first + i][s.owner];
        for (int n = 1; n < SLICES; n++) s.of_row[i] = plus(s.of_row[i], sums[n][s.first + i][s.owner]);
    }
    return s;
}

/* Loads all of them before it adds. */
static __device__ __forceinline__ float4 sum_of_parts(const float4 *at, int parts)
{
    float4 of_part[TERN__CLUSTER_MOST];
#pragma unroll
    for (int n = 0; n < TERN__CLUSTER_MOST; n++)
        if (n < parts) of_part[n] = *tern__cluster_at(at, n);
    float4 sum = of_part[0];
#pragma unroll
    for (int n = 1; n < TERN__CLUSTER_MOST; n++)
        if (n < parts) sum = plus(sum, of_part[n]);
    return sum;
}

/* Stores a part after the slices and takes a share of the sums over all parts (two or more), of which a
 * thread has at most one row. Other blocks read this memory until tern__cluster_wait. */
static __device__ __forceinline__ share add_parts(const share &own, int parts, int part)
{
    float4 *sums = (float4 *)tern__cuda_shared() + SLICES * HIGH * OWNERS;
#pragma unroll
    for (int i = 0; i < HIGH / SLICES; i++) sums[(own.first + i) * OWNERS + own.owner] = own.of_row[i];
    tern__cluster_arrive();
    int each = (HIGH * OWNERS + parts - 1) / parts, at = part * each + (int)threadIdx.x;
    share s = {at % OWNERS, at / OWNERS, (int)threadIdx.x < each && at < HIGH * OWNERS, {}};
    tern__cluster_wait();
    if (s.count) s.of_row[0] = sum_of_parts(sums + at, parts);
    tern__cluster_arrive();
    return s;
}

static __device__ __forceinline__ void put(const product &p, int row, int column, float value)
{
    if (column >= p.b.lines) return;
    float *y = p.y + (int64_t)row * p.y_step + column;
    if (p.add) value += *y;
    if (p.bias) value += p.bias[column];
    if (p.gate) value = passed(value, p.gate[y - p.y]);
    *y = p.relu && value < 0 ? 0 : value;
}

/* Stores adjacent columns. */
static __device__ __forceinline__ void put_four(const product &p, int row, int column, float4 v)
{
    if (column >= p.b.lines) return;
    int64_t at = (int64_t)row * p.y_step + column;
    float4 *y = (float4 *)(p.y + at);
    if (p.add) v = plus(v, *y);
    if (p.bias) v = plus(v, {p.bias[column], p.bias[column + 1], p.bias[column + 2], p.bias[column + 3]});
    if (p.gate) v = passed_four(v, *(const float4 *)(p.gate + at));
    if (p.relu) v = {v.x < 0 ? 0 : v.x, v.y < 0 ? 0 : v.y, v.z < 0 ? 0 : v.z, v.w < 0 ? 0 : v.w};
    *y = v;
}

template <class A, class B>
static __device__ __forceinline__ void put_share(const product &p, int row, int column, const share &s)
{
    int half = s.owner / TERN__WARP, lane = s.owner % TERN__WARP;
#pragma unroll
    for (int i = 0; i < HIGH / SLICES; i++) {
        int at = row + half * HALF + A::line(lane_of_a(lane), s.first + i);
        if (at >= p.a.lines || i >= s.count) continue;
        const float four[WIDE] = {s.of_row[i].x, s.of_row[i].y, s.of_row[i].z, s.of_row[i].w};
        if (!B::ALONG_K && p.fours)
            put_four(p, at, column + B::line(lane_of_b(lane), 0), s.of_row[i]);
        else
            for (int j = 0; j < WIDE; j++) put(p, at, column + B::line(lane_of_b(lane), j), four[j]);
    }
}

/* ---- blocks ---- */

template <bool A_ALONG_K, bool B_ALONG_K, bool GATED>
static __device__ __forceinline__ void make_part(const product &p, const float *gate, int block)
{
    typedef side<ROWS, 4, A_ALONG_K> A;
    typedef side<COLUMNS, 8, B_ALONG_K> B;
    float sum[HIGH][WIDE] = {};
    int tile = block / p.parts, part = block % p.parts;
    int row = tile / p.across * ROWS, column = tile % p.across * COLUMNS, k = part * p.depth;
    sum_slice<A, B, GATED>(sum, p, gate, row, column, k, TERN__MIN(k + p.depth, p.k));
    share s = add_slices(sum);
    if (p.parts > 1) s = add_parts(s, p.parts, part);
    put_share<A, B>(p, row, column, s);
    if (p.parts > 1) tern__cluster_wait();
}

/* Sums 32 of a's rows, which are adjacent in memory across rows: a lane takes a row, and a warp every
 * eighth k. */
static __device__ void sum_rows(const product &p, const float *gate, int block)
{
    if (!p.row_sums || block * TERN__WARP >= p.a.lines) return; /* the block only completes a cluster */
    float(*sums)[TERN__WARP] = (float(*)[TERN__WARP])tern__cuda_shared();
    int lane = threadIdx.x % TERN__WARP, warp = threadIdx.x / TERN__WARP, row = block * TERN__WARP + lane;
    float sum = 0;
    for (int k = warp; k < p.k && row < p.a.lines; k += THREADS / TERN__WARP) {
        int at = k * p.a.step + row;
        sum += gate ? passed(p.a.data[at], gate[at]) : p.a.data[at];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    for (int n = 1; n < THREADS / TERN__WARP && warp == 0; n++) sum += sums[n][lane];
    if (warp == 0 && row < p.a.lines) p.row_sums[row] = sum;
}

template <bool GATED>
static __global__ void __launch_bounds__(THREADS, 2) make_products(const __grid_constant__ problem all)
{
    tern__kernel_begin();
    int block = (int)blockIdx.x;
    const product &p = all.of[block >= all.of[1].first_block];
    block -= p.first_block;
    if (block >= p.tiles * p.parts)
        sum_rows(p, all.gate, block - p.tiles * p.parts);
    else if (p.a.along_k && p.b.along_k)
        make_part<true, true, GATED>(p, all.gate, block);
    else if (p.a.along_k)
        make_part<true, false, GATED>(p, all.gate, block);
    else if (p.b.along_k)
        make_part<false, true, GATED>(p, all.gate, block);
    else
        make_part<false, false, GATED>(p, all.gate, block);
}

/* ---- choosing ---- */

static bool is_short(const tern__gemm_operand &o)
{
    return o.dtype == TERN_F32 && o.step <= LONGEST;
}

static bool fits(const tern__gemm &g)
{
    return g.count == 1 && is_short(g.a) && is_short(g.b) && is_short(g.y) && g.m <= LONGEST &&
           g.n <= LONGEST && g.k <= LONGEST && (!g.row_sums || g.a.transposed);
}

bool tern__small_gemms_fit(const tern__gemm *g, int count)
{
    bool all = count <= TERN__SMALL_GEMMS;
    for (int i = 0; i < count && all; i++) all = fits(g[i]);
    return all;
}

/* ---- launching ---- */

static int pieces(int64_t all, int64_t each)
{
    return (int)((all + each - 1) / each);
}

static bool is_in_fours(const void *data, int64_t step, int64_t length)
{
    return (uintptr_t)data % 16 == 0 && step % 4 == 0 && length % 4 == 0;
}

static matrix matrix_of(const tern__gemm_operand &o, int64_t lines, int64_t k, bool along_k,
                        const float *gate)
{
    int64_t length = along_k ? k : lines;
    bool fours = is_in_fours(o.data, o.step, length) && is_in_fours(gate, o.step, length);
    return {(const float *)o.data, (int)o.step, (int)lines, along_k, fours};
}

/* The k of a part, in whole chunks. */
static int depth_of(int64_t k, int parts)
{
    return pieces(pieces(k, parts), DEPTH) * DEPTH;
}

/* The number of parts for about `blocks` blocks, if those of a tile can form a cluster. */
static int parts_of(const tern__call *call, int64_t k, int tiles, int blocks)
{
    int most = tern__cuda_of(call->device)->has_clusters ? TERN__CLUSTER_MOST : 1;
    int parts = TERN__MIN(TERN__MIN(most, pieces(k, LEAST_DEPTH)), blocks / tiles);
    return parts > 1 ? pieces(k, depth_of(k, parts)) : 1;
}

/* Fills in a product; lay_out sets its first block and the k of its parts. */
static product product_of(const tern__call *call, const tern__gemm &g, const float *gate, int blocks)
{
    product p = {};
    p.a = matrix_of(g.a, g.m, g.k, !g.a.transposed, gate);
    p.b = matrix_of(g.b, g.n, g.k, g.b.transposed, nullptr);
    p.y = (float *)g.y.data;
    p.row_sums = (float *)g.row_sums;
    p.bias = (const float *)g.bias;
    p.gate = g.gate;
    p.k = (int)g.k;
    p.y_step = (int)g.y.step;
    p.add = g.add;
    p.relu = g.relu;
    p.fours = is_in_fours(g.y.data, g.y.step, g.n) && is_in_fours(g.gate, g.y.step, g.n);
    p.across = pieces(g.n, COLUMNS);
    p.tiles = p.across * pieces(g.m, ROWS);
    p.parts = parts_of(call, g.k, p.tiles, blocks);
    return p;
}

/* The blocks of a product, in whole clusters: blocks of another product must not be among them. */
static int blocks_of(const product &p, int cluster)
{
    return pieces(p.tiles * p.parts + (p.row_sums ? pieces(p.a.lines, TERN__WARP) : 0), cluster) * cluster;
}

/* A launch has clusters of one size: all products that are cut get as many parts as the one that has most.
 * Returns the number of blocks. */
static int lay_out(problem *all, int count, int cluster)
{
    int started = 0;
    for (int i = 0; i < TERN__SMALL_GEMMS; i++) {
        product *p = &all->of[i];
        if (p->parts > 1) p->parts = cluster;
        p->depth = i < count ? depth_of(p->k, p->parts) : 0;
        p->first_block = started;
        started += i < count ? blocks_of(*p, cluster) : 0;
    }
    return started;
}

template <bool GATED> static int start(const tern__call *call, int blocks, int cluster, const problem &all)
{
    typedef stage<side<ROWS, 4, true>, side<COLUMNS, 8, true>, GATED> largest;
    size_t shared = largest::COUNT * largest::SIZE * sizeof(float);
    return tern__cuda_launch_clusters(call, cluster > 1 ? (size_t)cluster : 0, make_products<GATED>, blocks,
                                      THREADS, shared, all);
}

int tern__small_gemms(const tern__call *call, const tern__gemm *g, int count, const float *gate, int blocks)
{
    problem all = {};
    int cluster = 1;
    all.gate = gate;
    for (int i = 0; i < count; i++) {
        all.of[i] = product_of(call, g[i], gate, blocks);
        cluster = TERN__MAX(cluster, all.of[i].parts);
    }
    int started = lay_out(&all, count, cluster);
    return gate ? start<true>(call, started, cluster, all) : start<false>(call, started, cluster, all);
}
