/* region.c - which elements of a work this rank transfers. The elements of a work are those of its extents,
 * in order. They are cut twice: into regions, one per host, and each region into shares, one per rank that
 * talks to other hosts. The share at place j is transferred only between ranks at place j.
 *
 * The region of a host is:
 *
 *   all_reduce                   one of equal pieces, one per host, which the host sums; all elements of a
 *                                small work
 *   all_gather, reduce_scatter   the parts of its ranks
 *   broadcast, reduce            all elements if the root is on this host, else none */
#include "comm/move/transport/hosts.h"

#include <string.h>

/* Elements [begin, end) of the work, and the rank that owns them. */
typedef struct piece {
    uint64_t begin, end;
    int owner;
} piece;

/* Returns piece `index` of `parts`, cut at multiples of a cache line of `line` elements. */
static piece region_cut(piece of, int parts, int index, uint64_t line)
{
    uint64_t count = of.end - of.begin;
    uint64_t each = tern__align_up((count + (uint64_t)parts - 1) / (uint64_t)parts, line);
    piece p = {.begin = of.begin + TERN__MIN((uint64_t)index * each, count), .owner = of.owner};
    p.end = of.begin + TERN__MIN((uint64_t)(index + 1) * each, count);
    return p;
}

static bool has_parts(const tern__hosts_work *work)
{
    return work->post.kind == TERN__ALL_GATHER || work->post.kind == TERN__REDUCE_SCATTER;
}

static int piece_count(const tern__hosts *hosts, const tern__hosts_work *work, int host)
{
    return has_parts(work) ? tern__host_size(&hosts->map, host) : 1;
}

/* Returns piece `index` of the region of `host`, before it is cut into shares. */
static piece whole_piece(const tern__hosts *hosts, const tern__hosts_work *work, int host, int index,
                         uint64_t line)
{
    const tern__host_map *map = &hosts->map;
    piece all = {0, work->count, work->source};
    if (has_parts(work)) {
        int owner = tern__host_rank(map, host, index);
        uint64_t each = work->count / (uint64_t)hosts->group->boot.world;
        return (piece){(uint64_t)owner * each, (uint64_t)(owner + 1) * each, owner};
    }
    if (work->is_small) return all;
    if (work->post.kind == TERN__ALL_REDUCE) return region_cut(all, map->count, host, line);
    bool is_there = work->source >= 0 && map->host[work->source] == host;
    return is_there ? all : (piece){.owner = work->source};
}

static piece region_share(const tern__hosts *hosts, const tern__hosts_work *work, int host, int index)
{
    uint64_t line = TERN__LINE / tern_dtype_bytes(work->post.dtype);
    piece of = whole_piece(hosts, work, host, index, line);
    return region_cut(of, hosts->map.flows, hosts->map.place, line);
}

uint64_t tern__region_count(const tern__hosts *hosts, const tern__hosts_work *work, int host)
{
    uint64_t count = 0;
    for (int i = 0; i < piece_count(hosts, work, host); i++) {
        piece p = region_share(hosts, work, host, i);
        count += p.end - p.begin;
    }
    return count;
}

/* ---- memory ---- */

/* `count` contiguous elements from byte `from` of an extent on. */
typedef struct run {
    const tern__extent *extent;
    uint64_t from, count;
    int owner;
} run;

/* Returns up to `most` contiguous elements from element `element` of the work on. */
static run region_find(const tern__hosts_work *work, uint64_t element, uint64_t most, int owner)
{
    const tern__extent *e = work->post.extents;
    for (; element >= e->count; e++) element -= e->count;
    return (run){.extent = e,
                 .from = element * tern_dtype_bytes(work->post.dtype),
                 .count = TERN__MIN(most, e->count - element),
                 .owner = owner};
}

/* Returns up to `most` contiguous elements from element `at` of this rank's share of a region on. */
static run next_run(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t at,
                    uint64_t most)
{
    int index = 0;
    piece p = region_share(hosts, work, host, index);
    while (at >= p.end - p.begin) {
        at -= p.end - p.begin;
        p = region_share(hosts, work, host, ++index);
    }
    uint64_t element = p.begin + at;
    return region_find(work, element, TERN__MIN(most, p.end - element), p.owner);
}

static int owner_place(const tern__hosts *hosts, int owner)
{
    int place = 0;
    while (tern__host_rank(&hosts->map, hosts->map.own, place) != owner) place++;
    return place;
}

/* The extents of a placed work are elsewhere in the memory of each rank of the host, which have met in it. No
 * rank of the host reuses their descriptors before all have crossed. */
static char *region_memory(const tern__hosts *hosts, const tern__hosts_work *work, const run *r, int place)
{
    const tern_group *here = &hosts->here;
    const tern__post *post = &work->post;
    tern__extent at = *r->extent;
    if (place == TERN__OWNER) place = owner_place(hosts, r->owner);
    if (at.window == TERN__OWN_MEMORY) return (char *)(uintptr_t)at.offset + r->from;
    if (post->is_placed && place != hosts->map.place) {
        at.window = work->said[place].window;
        at.offset = work->said[place].place;
        const char *table = here->backend->window_at(here->state, at.window, place) + at.offset;
        if (post->has_table) at = ((const tern__extent *)table)[r->extent - post->extents];
    }
    return here->backend->window_at(here->state, at.window, place) + at.offset + r->from;
}

void tern__region_read(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                       uint64_t count, int place, char *buffer)
{
    size_t size = tern_dtype_bytes(work->post.dtype);
    for (uint64_t done = 0; done < count;) {
        run r = next_run(hosts, work, host, first + done, count - done);
        memcpy(buffer + done * size, region_memory(hosts, work, &r, place), r.count * size);
        done += r.count;
    }
}

void tern__region_write(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                        uint64_t count, int place, const char *buffer)
{
    size_t size = tern_dtype_bytes(work->post.dtype);
    for (uint64_t done = 0; done < count;) {
        run r = next_run(hosts, work, host, first + done, count - done);
        memcpy(region_memory(hosts, work, &r, place), buffer + done * size, r.count * size);
        done += r.count;
    }
}

char *tern__region_at(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                      uint64_t count, int place)
{
    if (!count) return NULL;
    run r = next_run(hosts, work, host, first, count);
    return r.count == count ? region_memory(hosts, work, &r, place) : NULL;
}
