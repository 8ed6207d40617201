/* exchange.c - transfers the elements of works between hosts. The same number of ranks takes part on every
 * host. The rank at place j exchanges its share of the elements with the ranks at place j of the other
 * hosts, so that as many flows as possible run in parallel.
 *
 * When all headers of a work are here (headers.c), its elements are sent in rounds that fit the buffers. A
 * round has two steps:
 *
 * partials   (reductions) Each host sends every other host the sum, over its own ranks, of that host's
 *              region. It joins the partials of its own region in host order.
 * results    (works whose result all ranks get) Each host sends its region to every other host.
 *
 * Only an all_reduce does both. Each host then sends and receives 2 (h - 1) / h of the bytes, the minimum,
 * and every rank gets the same bits, because each element is computed once.
 *
 * Several rounds are in flight at a time, from one work or from consecutive works: while one is joined, the
 * bytes of the next ones are transferred. Every rank begins, joins and ends the rounds in the same order,
 * and each step has its own tag, so messages match whatever the timing.
 *
 * If a message's elements are contiguous in a window, they are sent from or received into the window;
 * otherwise they go through a buffer. A round may receive its results into the memory that its partials
 * were sent from: a host sends results only when it has received all the partials that they are made of. */
#include "comm/move/transport/hosts.h"

#include <stdio.h>
#include <string.h>

enum { HEADS, PARTIALS, RESULTS }; /* tags, relative to the channel's first */

static const char func[] = "tern_group_open";

/* ---- life ---- */

static int open_round(tern__round *round, const tern__exchange *x, tern_error *err)
{
    size_t hosts = (size_t)x->channel->hosts->map.count;
    round->partials = tern__alloc_raw(hosts * x->round_bytes, TERN__LINE);
    round->arrivals = tern__alloc_raw(hosts * x->round_bytes, TERN__LINE);
    round->results = tern__alloc_raw(hosts * x->round_bytes, TERN__LINE);
    round->parts = tern__alloc(hosts * sizeof(*round->parts), func, err);
    round->landings = tern__alloc(hosts * sizeof(*round->landings), func, err);
    if (!round->parts || !round->landings) return TERN_E_MEMORY;
    if (!round->partials || !round->arrivals || !round->results)
        return tern__error_set(err, func, TERN_E_MEMORY, "no memory for %zu bytes between %zu hosts",
                               3 * hosts * x->round_bytes, hosts);
    int status = tern__messages_open(&round->to_join, x->channel->hosts, err);
    if (!status) status = tern__messages_open(&round->given, x->channel->hosts, err);
    return status ? status : tern__messages_open(&round->to_end, x->channel->hosts, err);
}

static void close_round(tern__round *round)
{
    tern__messages_close(&round->to_join);
    tern__messages_close(&round->given);
    tern__messages_close(&round->to_end);
    tern__free(round->partials);
    tern__free(round->arrivals);
    tern__free(round->results);
    tern__free(round->parts);
    tern__free(round->landings);
}

/* The more hosts, the smaller the buffers, but not below the size where latency costs more than the bytes.
 */
static size_t choose_round(int hosts)
{
    const size_t all = 8 << 20, most = 2 << 20, least = 64 << 10;
    return TERN__MAX(TERN__MIN(tern__align_up(all / (size_t)hosts, TERN__LINE), most), least);
}

int tern__exchange_open(tern__exchange *x, tern__hosts_channel *channel, tern_error *err)
{
    int status = TERN_OK;
    *x = (tern__exchange){.channel = channel, .round_bytes = choose_round(channel->hosts->map.count)};
    for (int i = 0; i < TERN__ROUNDS && !status; i++) status = open_round(&x->rounds[i], x, err);
    for (int i = 0; i < TERN__HEADERS && !status; i++)
        status = tern__headers_open(&x->headers[i], channel, err);
    return status;
}

void tern__exchange_close(tern__exchange *x)
{
    for (int i = 0; i < TERN__ROUNDS; i++) close_round(&x->rounds[i]);
    for (int i = 0; i < TERN__HEADERS; i++) tern__headers_close(&x->headers[i]);
}

/* ---- the elements of a round ---- */

static tern__round *round_at(tern__exchange *x, uint64_t number)
{
    return &x->rounds[number % TERN__ROUNDS];
}

static tern__headers *headers_at(tern__exchange *x, uint64_t seq)
{
    return &x->headers[seq % TERN__HEADERS];
}

static char *buffer_at(const tern__exchange *x, char *buffers, int host)
{
    return buffers + (size_t)host * x->round_bytes;
}

static int rank_at(const tern__hosts *hosts, int host)
{
    return tern__host_rank(&hosts->map, host, hosts->map.place);
}

/* True if all ranks get the result. */
static bool spreads_results(const tern__hosts_work *work)
{
    return work->post.kind != TERN__REDUCE_SCATTER && work->post.kind != TERN__REDUCE;
}

static bool is_silent(const tern__hosts_work *work)
{
    tern__kind kind = work->post.kind;
    return kind == TERN__BARRIER || kind == TERN__MONITORED_BARRIER || tern__kind_is_move(kind);
}

/* Returns how many elements of a host's region are in this round; *first = the first of them. */
static uint64_t in_round(const tern__exchange *x, const tern__round *round, int host, uint64_t *first)
{
    uint64_t count = tern__region_count(x->channel->hosts, round->work, host), each = round->work->each;
    *first = TERN__MIN(round->index * each, count);
    return TERN__MIN(count - *first, each);
}

static uint64_t round_parts(uint64_t count, uint64_t each)
{
    return (count + each - 1) / each;
}

/* Cuts a work into rounds of equal size, as few as the buffers allow. A work that is a whole call gets at
 * least two, so that they overlap, unless they would be shorter than `shortest`. */
static void cut_rounds(const tern__exchange *x, tern__hosts_work *work)
{
    const uint64_t shortest = 256 << 10, fewest = work->desc.total > work->count ? 1 : 2;
    size_t size = tern_dtype_bytes(tern__partial_dtype(x->channel->hosts, work));
    uint64_t most = 0, fit = x->round_bytes / size;
    if (work->is_moot || work->is_small || is_silent(work)) return;
    for (int host = 0; host < x->channel->hosts->map.count; host++)
        most = TERN__MAX(most, tern__region_count(x->channel->hosts, work, host));
    if (!most) return;
    uint64_t wish = TERN__MAX(round_parts(most, fewest), shortest / size);
    uint64_t each = round_parts(most, round_parts(most, TERN__MIN(wish, fit)));
    work->each = TERN__MIN(tern__align_up(each, TERN__LINE), fit);
    work->rounds = round_parts(most, work->each);
}

/* Copies a result to the windows of all ranks of this host, or to its owner's, unless it is there already.
 */
static void keep_partial(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                         uint64_t count, const char *result)
{
    int from = spreads_results(work) ? 0 : TERN__OWNER,
        to = spreads_results(work) ? hosts->here.boot.world - 1 : TERN__OWNER;
    for (int place = from; place <= to; place++)
        if (tern__region_at(hosts, work, host, first, count, place) != result)
            tern__region_write(hosts, work, host, first, count, place, result);
}

/* ---- partials ---- */

/* Returns a partial: the elements in the window where they are the sum already, else a buffer with the sum.
 */
static char *make_partial(const tern__exchange *x, const tern__round *round, int host)
{
    const tern__hosts *hosts = x->channel->hosts;
    const tern__hosts_work *work = round->work;
    const tern__tally *local = &tern__meeting_work(x->channel->arrive, work->arrive)->tally;
    uint64_t first, count = in_round(x, round, host, &first);
    char *at = tern__partial_is_raw(hosts, work) ? tern__region_at(hosts, work, host, first, count, 0) : NULL;
    if (at) return at;
    at = buffer_at(x, round->partials, host);
    tern__partial_make(hosts, work, local, host, first, count, at);
    return at;
}

static int begin_partials(tern__exchange *x, tern__round *round, int host, tern_error *err)
{
    const tern__hosts *hosts = x->channel->hosts;
    int rank = rank_at(hosts, host), tag = x->channel->tag + PARTIALS;
    size_t size = tern_dtype_bytes(tern__partial_dtype(hosts, round->work));
    uint64_t first, own = in_round(x, round, hosts->map.own, &first),
                    theirs = in_round(x, round, host, &first);
    round->parts[host] = buffer_at(x, round->arrivals, host);
    int status = tern__messages_recv(&round->to_join, rank, tag, round->parts[host], own * size, err);
    if (status) return status;
    return tern__messages_send(&round->given, rank, tag, make_partial(x, round, host), theirs * size, err);
}

/* ---- results ---- */

/* Returns where results are received: this rank's window, the owner's window, or a buffer. */
static char *landing_at(const tern__exchange *x, const tern__round *round, int host)
{
    const tern__hosts *hosts = x->channel->hosts;
    int place = spreads_results(round->work) ? hosts->map.place : TERN__OWNER;
    uint64_t first, count = in_round(x, round, host, &first);
    char *at = tern__region_at(hosts, round->work, host, first, count, place);
    return at ? at : buffer_at(x, round->results, host);
}

static int ask_results(tern__exchange *x, tern__round *round, int host, tern_error *err)
{
    int rank = rank_at(x->channel->hosts, host), tag = x->channel->tag + RESULTS;
    size_t size = tern_dtype_bytes(round->work->post.dtype);
    uint64_t first, count = in_round(x, round, host, &first);
    round->landings[host] = landing_at(x, round, host);
    return tern__messages_recv(&round->to_end, rank, tag, round->landings[host], count * size, err);
}

/* Returns elements that need no sum: their address in the owner's window, or a copy in a buffer. */
static char *collect_parts(const tern__exchange *x, const tern__round *round, uint64_t first, uint64_t count)
{
    const tern__hosts *hosts = x->channel->hosts;
    int own = hosts->map.own;
    char *at = tern__region_at(hosts, round->work, own, first, count, TERN__OWNER);
    if (at) return at;
    at = buffer_at(x, round->results, own);
    tern__region_read(hosts, round->work, own, first, count, TERN__OWNER, at);
    return at;
}

static char *make_result(const tern__exchange *x, const tern__round *round, uint64_t first, uint64_t count)
{
    const tern__hosts *hosts = x->channel->hosts;
    if (!tern__kind_reduces(round->work->post.kind)) return collect_parts(x, round, first, count);
    char *at = landing_at(x, round, hosts->map.own);
    tern__partial_join(hosts, round->work, round->parts, count, at);
    return at;
}

static int send_results(tern__exchange *x, tern__round *round, tern_error *err)
{
    const tern__hosts *hosts = x->channel->hosts;
    const tern__host_map *map = &hosts->map;
    size_t size = tern_dtype_bytes(round->work->post.dtype);
    uint64_t first, count = in_round(x, round, map->own, &first);
    if (!count) return TERN_OK;
    const char *result = make_result(x, round, first, count);
    int status = TERN_OK;
    for (int i = 1; i < map->count && spreads_results(round->work) && !status; i++)
        status = tern__messages_send(&round->to_end, rank_at(hosts, (map->own + i) % map->count),
                                     x->channel->tag + RESULTS, result, count * size, err);
    keep_partial(hosts, round->work, map->own, first, count, result);
    return status;
}

static void take_results(const tern__exchange *x, const tern__round *round)
{
    const tern__hosts *hosts = x->channel->hosts;
    for (int host = 0; host < hosts->map.count && spreads_results(round->work); host++) {
        uint64_t first, count = in_round(x, round, host, &first);
        if (host != hosts->map.own && count)
            keep_partial(hosts, round->work, host, first, count, round->landings[host]);
    }
}

/* ---- the steps of a round ---- */

/* Posts all receives before any send, so that arriving bytes always find their buffer. */
static int begin_round(tern__exchange *x, tern__round *round, tern_error *err)
{
    const tern__host_map *map = &x->channel->hosts->map;
    bool reduces = tern__kind_reduces(round->work->post.kind);
    int status = TERN_OK;
    for (int i = 1; i < map->count && spreads_results(round->work) && !status; i++)
        status = ask_results(x, round, (map->own + i) % map->count, err);
    for (int i = 1; i < map->count && reduces && !status; i++)
        status = begin_partials(x, round, (map->own + i) % map->count, err);
    if (reduces && !status) round->parts[map->own] = make_partial(x, round, map->own);
    return status;
}

static tern__hosts_work *exchange_work_at(const tern__exchange *x, uint64_t seq)
{
    return &x->channel->works[seq % x->channel->slots];
}

static int begin_rounds(tern__exchange *x, tern_error *err)
{
    int status = TERN_OK;
    while (!status && x->fed < x->headers_received && x->begun < x->ended + TERN__ROUNDS) {
        tern__hosts_work *work = exchange_work_at(x, x->fed + 1);
        if (work->begun == work->rounds) {
            x->fed++;
            continue;
        }
        tern__round *round = round_at(x, x->begun++);
        round->work = work;
        round->index = work->begun++;
        status = begin_round(x, round, err);
    }
    return status;
}

static int join_rounds(tern__exchange *x, tern_error *err)
{
    int status = TERN_OK;
    while (!status && x->joined < x->begun) {
        tern__round *round = round_at(x, x->joined);
        status = tern__messages_test(&round->to_join, err);
        if (!status) status = send_results(x, round, err);
        x->joined += !status;
    }
    return TERN__MIN(status, 0);
}

static int end_rounds(tern__exchange *x, tern_error *err)
{
    while (x->ended < x->joined) {
        tern__round *round = round_at(x, x->ended);
        int status = tern__messages_test(&round->to_end, err);
        if (!status) status = tern__messages_test(&round->given, err);
        if (status) return TERN__MIN(status, 0);
        take_results(x, round);
        round->work->ended++;
        x->ended++;
    }
    return TERN_OK;
}

/* ---- the steps of a work ---- */

bool tern__exchange_has_room(const tern__exchange *x)
{
    return x->headers_sent < x->channel->crossed + TERN__HEADERS;
}

int tern__exchange_send_header(tern__exchange *x, tern_error *err)
{
    uint64_t seq = ++x->headers_sent;
    tern__hosts_work *work = exchange_work_at(x, seq);
    const tern__tally *local = &tern__meeting_work(x->channel->arrive, work->arrive)->tally;
    return tern__headers_send(headers_at(x, seq), work, local, err);
}

/* The sums of a small work arrived with the headers. */
static void join_small(const tern__exchange *x, tern__hosts_work *work, char *const *sums)
{
    const tern__hosts *hosts = x->channel->hosts;
    uint64_t count = tern__region_count(hosts, work, hosts->map.own);
    _Alignas(TERN__LINE) char result[TERN__SMALL_BYTES];
    if (work->is_moot || !count) return;
    tern__partial_join(hosts, work, sums, count, result);
    keep_partial(hosts, work, hosts->map.own, 0, count, result);
}

static int receive_headers(tern__exchange *x, tern_error *err)
{
    int status = TERN_OK;
    while (!status && x->headers_received < x->headers_sent) {
        tern__headers *headers = headers_at(x, x->headers_received + 1);
        tern__hosts_work *work = headers->work;
        status = tern__headers_recv(headers, x->headers_received + 1, err);
        if (status) break;
        cut_rounds(x, work);
        if (work->is_small) join_small(x, work, headers->sums);
        x->headers_received++;
    }
    return TERN__MIN(status, 0);
}

bool tern__exchange_is_over(const tern__exchange *x, uint64_t seq)
{
    const tern__hosts_work *work = exchange_work_at(x, seq);
    return x->headers_received >= seq && work->ended == work->rounds;
}

static uint64_t exchange_steps(const tern__exchange *x)
{
    return x->headers_received + x->fed + x->begun + x->joined + x->ended;
}

int tern__exchange_step(tern__exchange *x, tern_error *err)
{
    tern__link *link = x->channel->hosts->link;
    tern_transport_message *others = link->awaited;
    uint64_t before;
    int status;
    do {
        before = exchange_steps(x);
        link->awaited = NULL;
        status = join_rounds(x, err);
        if (!status) status = end_rounds(x, err);
        if (!status) status = receive_headers(x, err);
        if (!status) status = begin_rounds(x, err);
    } while (!status && exchange_steps(x) != before);
    if (!link->awaited) link->awaited = others;
    return status;
}

/* ---- late ranks ---- */

bool tern__exchange_awaits(const tern__exchange *x, uint64_t seq, int rank)
{
    if (x->headers_received < seq)
        return tern__messages_awaits(&x->headers[seq % TERN__HEADERS].messages, rank);
    const tern__round *round = &x->rounds[x->ended % TERN__ROUNDS];
    return x->ended < x->begun &&
           (tern__messages_awaits(&round->to_join, rank) || tern__messages_awaits(&round->given, rank) ||
            tern__messages_awaits(&round->to_end, rank));
}

/* A rank's message may be waiting for any other rank of its host, so all of them count as missing. */
void tern__exchange_missing(const tern__exchange *x, uint64_t seq, bool *ranks)
{
    const tern__hosts *hosts = x->channel->hosts;
    const tern__host_map *map = &hosts->map;
    for (int host = 0; host < map->count; host++) {
        if (host == map->own || !tern__exchange_awaits(x, seq, rank_at(hosts, host))) continue;
        for (int place = 0; place < tern__host_size(map, host); place++)
            ranks[tern__host_rank(map, host, place)] = true;
    }
}
