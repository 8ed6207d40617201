/* partial.c - sums in two steps: over a host's ranks, then over the hosts, both pairwise in order.
 * Partials of bf16 and f16 are sent in f32, so that the result is rounded once, as in a group on one host. If
 * every host has one rank and nothing is weighted, the elements are sent as they are. */
#include "comm/move/transport/hosts.h"

#include "comm/move/reduce.h"
#include "kernels/halves.h"

#include <string.h>

enum { block_elements = 2 << 10 };

/* ---- dtypes ---- */

tern_dtype tern__partial_dtype(const tern__hosts *hosts, const tern__hosts_work *work)
{
    bool is_raw = hosts->map.most == 1 && !work->is_weighted && !work->is_small;
    return tern__dtype_is_half(work->post.dtype) && !is_raw ? TERN_F32 : work->post.dtype;
}

bool tern__partial_is_raw(const tern__hosts *hosts, const tern__hosts_work *work)
{
    bool is_alone = hosts->here.boot.world == 1 && !work->is_weighted;
    return is_alone && tern__partial_dtype(hosts, work) == work->post.dtype;
}

/* ---- step 1: a host's ranks ---- */

/* A mean is summed first, and divided when the sums of all hosts are joined. */
static tern_reduce_op op_of(const tern__hosts_work *work)
{
    return work->is_weighted || work->post.op == TERN_AVG ? TERN_SUM : work->post.op;
}

/* Reads elements of one rank, converted to the partials' dtype. */
static void read_wide(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                      uint64_t count, int place, tern_dtype dtype, char *out)
{
    uint16_t narrow[block_elements];
    bool widens = dtype != work->post.dtype;
    tern__region_read(hosts, work, host, first, count, place, widens ? (char *)narrow : out);
    if (widens) tern__halves_widen(work->post.dtype, (float *)out, narrow, count);
}

/* Reduces a block straight from the windows. Returns false if a weight, a conversion or an extent's end
 * prevents it. */
static bool make_plain_block(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                             uint64_t count, char *sum)
{
    int places = hosts->here.boot.world;
    const char **in = hosts->in_place;
    if (work->is_weighted || places < 2 || tern__partial_dtype(hosts, work) != work->post.dtype) return false;
    for (int place = 0; place < places; place++)
        if (!(in[place] = tern__region_at(hosts, work, host, first, count, place))) return false;
    tern__reduce(work->post.dtype, op_of(work), in, places, &sum, 1, count);
    return true;
}

/* A block of elements of a work's part on one host. */
typedef struct place_block {
    const tern__hosts *hosts;
    const tern__hosts_work *work;
    const tern__tally *local;
    int host;
    uint64_t first, count;
} place_block;

/* sum = the reduction of `places` ranks from `place` on, each times its weight. Returns false if all weights
 * are 0: then sum is not written. */
static bool sum_places(const place_block *b, int place, int places, char *sum)
{
    _Alignas(TERN__LINE) char other[block_elements * sizeof(double)];
    const tern__hosts_work *work = b->work;
    tern_dtype dtype = tern__partial_dtype(b->hosts, work);
    if (places > 1) {
        int left = tern__pairwise_cut(places);
        bool has_left = sum_places(b, place, left, sum);
        bool has_right = sum_places(b, place + left, places - left, has_left ? other : sum);
        const char *const both[] = {sum, other};
        if (has_left && has_right) tern__reduce(dtype, op_of(work), both, 2, &sum, 1, b->count);
        return has_left || has_right;
    }
    double weight = b->local->weight ? b->local->weight[place] : 1;
    if (work->is_weighted && weight == 0) return false;
    read_wide(b->hosts, work, b->host, b->first, b->count, place, dtype, sum);
    const char *const one[] = {sum};
    if (work->is_weighted) tern__reduce_weighted(dtype, &weight, 1, one, 1, &sum, 1, b->count);
    return true;
}

static void make_block(const place_block *b, char *sum)
{
    size_t bytes = b->count * tern_dtype_bytes(tern__partial_dtype(b->hosts, b->work));
    if (!sum_places(b, 0, b->hosts->here.boot.world, sum)) memset(sum, 0, bytes);
}

void tern__partial_make(const tern__hosts *hosts, const tern__hosts_work *work, const tern__tally *local,
                        int host, uint64_t first, uint64_t count, char *out)
{
    size_t size = tern_dtype_bytes(tern__partial_dtype(hosts, work));
    for (uint64_t done = 0, here; done < count; done += here) {
        here = TERN__MIN(count - done, (uint64_t)block_elements);
        char *sum = out + done * size;
        const place_block block = {hosts, work, local, host, first + done, here};
        if (!make_plain_block(hosts, work, host, first + done, here, sum)) make_block(&block, sum);
    }
}

/* ---- step 2: the hosts ---- */

static bool partial_divides(const tern__hosts_work *work)
{
    return work->is_weighted || work->post.op == TERN_AVG;
}

/* sum /= shares. */
static void partial_divide(tern_dtype dtype, double shares, char *sum, uint64_t count)
{
    const double one = 1;
    const char *const in[] = {sum};
    tern__reduce_weighted(dtype, &one, shares, in, 1, &sum, 1, count);
}

void tern__partial_join(const tern__hosts *hosts, const tern__hosts_work *work, char *const *parts,
                        uint64_t count, char *out)
{
    tern_dtype dtype = tern__partial_dtype(hosts, work), result = work->post.dtype;
    const char *const *in = (const char *const *)parts;
    char *sum = dtype == result ? out : parts[0];
    bool is_raw = tern__dtype_is_half(dtype);
    tern__reduce(dtype, is_raw ? work->post.op : op_of(work), in, hosts->map.count, &sum, 1, count);
    if (partial_divides(work) && !is_raw) partial_divide(dtype, work->tally.shares, sum, count);
    if (dtype != result) tern__halves_narrow(result, (uint16_t *)out, (const float *)sum, count);
}
