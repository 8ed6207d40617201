/* test_collectives.c - every collective and message with tensors in device memory, compared with exact
 * values: ranks that share a device, one on another device and one on the CPU, from no element to more
 * than the staging ring holds. */
#include "comm/ranks.h"
#include "gpus.h"

#include "comm/move/backend.h"
#include "device/backend.h"
#include "device/memory.h"

enum {
    most = 170003,
    shift = 3,
    PINNED = (32 << 20) + 4096 /* size of a transport's ring, in lines */
};
static const size_t counts[] = {0, 1, 7, 1023, most};

/* Ranks 0 and 1 share a device, rank 2 has none. */
static const char *device_of(int rank)
{
    return rank < 2 ? "cuda:0" : rank == 2 ? "cpu" : other_gpu();
}

/* Counts of host memory pinned by all devices since they were opened. */
static struct {
    tern__device_backend backend;
    const tern__device_backend *behind;
    size_t bytes;
} pins;

static void *count_pinned(tern_device *device, size_t bytes)
{
    pins.bytes += bytes;
    return pins.behind->pinned_new(device, bytes);
}

static void watch_pins(tern_device *device)
{
    if (!device->backend) return;
    pins.behind = device->backend;
    pins.backend = *device->backend;
    pins.backend.pinned_new = count_pinned;
    device->backend = &pins.backend;
}

typedef struct rig {
    tern_group *group;
    tern_device *device;
    int rank, world;
    int32_t *in, *out; /* [(world + 1) * most + shift], device memory */
    int32_t *host, *expected;
    tern_error err;
} rig;

static int open_rig(rig *g, int rank, const tern__bootstrap *boot)
{
    tern_group_opts opts = tern_group_defaults();
    size_t bytes = ((size_t)(boot->world + 1) * most + shift) * sizeof(int32_t);
    opts.timeout_s = 30;
    *g = (rig){.rank = rank, .world = boot->world};
    g->group = tern__group_open_boot(boot, &opts, &g->err);
    g->device = tern_device_open(device_of(rank), &g->err);
    RANK_CHECK_OK(rank, g->err);
    watch_pins(g->device);
    g->in = tern__memory_new(g->device, bytes, "test", &g->err);
    g->out = tern__memory_new(g->device, bytes, "test", &g->err);
    g->host = malloc(bytes);
    g->expected = malloc(bytes);
    RANK_CHECK_OK(rank, g->err);
    return 0;
}

/* Closes the device before the group. */
static int close_rig(rig *g)
{
    tern__memory_free(g->in);
    tern__memory_free(g->out);
    tern_device_close(g->device);
    tern_group_close(g->group);
    free(g->host);
    free(g->expected);
    return 0;
}

/* ---- values ---- */

static int32_t value(int rank, size_t i)
{
    return (int32_t)((uint32_t)(rank + 1) * 1000003u + (uint32_t)i * 2654435761u);
}

/* The values of rank `rank` at [first, first + count). */
static void expect(int32_t *to, int rank, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = value(rank, first + i);
}

static void expect_sum(const rig *g, int32_t *to, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t sum = 0;
        for (int rank = 0; rank < g->world; rank++) sum += (uint32_t)value(rank, first + i);
        to[i] = (int32_t)sum;
    }
}

/* Copies this rank's values to the device. */
static void put(rig *g, int32_t *to, size_t count)
{
    expect(g->host, g->rank, 0, count);
    tern__memory_copy(to, g->host, count * sizeof(*to), &g->err);
}

/* Writes as a step would to memory that will be overwritten or not. */
static void clear(rig *g, int32_t *to, size_t count)
{
    tern__memory_zero(to, count * sizeof(*to), &g->err);
}

static bool is_expected(rig *g, const int32_t *from, size_t count)
{
    tern__memory_copy(g->host, from, count * sizeof(*from), &g->err);
    return !g->err.code && !memcmp(g->host, g->expected, count * sizeof(*from));
}

/* ---- reductions ---- */

static int check_all_reduce(rig *g, size_t count)
{
    int32_t *x = g->in + shift;
    put(g, x, count);
    tern_all_reduce(g->group, x, count, TERN_I32, TERN_SUM, &g->err);
    expect_sum(g, g->expected, 0, count);
    RANK_CHECK(g->rank, is_expected(g, x, count));
    return 0;
}

/* Only the root's result is written. */
static int check_reduce(rig *g, size_t count)
{
    int root = g->world - 1;
    put(g, g->in, count);
    tern_reduce(g->group, g->in, count, TERN_I32, TERN_SUM, root, &g->err);
    expect(g->expected, g->rank, 0, count);
    if (g->rank == root) expect_sum(g, g->expected, 0, count);
    RANK_CHECK(g->rank, is_expected(g, g->in, count));
    return 0;
}

/* Into other memory, then into the rank's own part of `in`. */
static int check_reduce_scatter(rig *g, size_t count)
{
    size_t first = (size_t)g->rank * count;
    int32_t *const outs[] = {g->out, g->in + first};
    for (int i = 0; i < 2; i++) {
        put(g, g->in, count * (size_t)g->world);
        tern_reduce_scatter(g->group, g->in, outs[i], count, TERN_I32, TERN_SUM, &g->err);
        expect_sum(g, g->expected, first, count);
        RANK_CHECK(g->rank, is_expected(g, outs[i], count));
    }
    return 0;
}

static int check_premul(rig *g, size_t count)
{
    float *host = (float *)g->host, *expected = (float *)g->expected;
    for (size_t i = 0; i < count; i++) {
        host[i] = (float)(g->rank + 1) * (float)(i % 1000);
        expected[i] = 0;
        for (int rank = 0; rank < g->world; rank++) expected[i] += (float)(2 * rank + 2) * (float)(i % 1000);
    }
    tern__memory_copy(g->in, host, count * sizeof(*host), &g->err);
    tern_all_reduce_premul(g->group, g->in, count, TERN_F32, 2, &g->err);
    RANK_CHECK(g->rank, is_expected(g, g->in, count));
    return 0;
}

/* ---- copies ---- */

static int check_broadcast(rig *g, size_t count)
{
    for (int root = 0; root < g->world; root++) {
        put(g, g->in, count);
        tern_broadcast(g->group, g->in, count, TERN_I32, root, &g->err);
        expect(g->expected, root, 0, count);
        RANK_CHECK(g->rank, is_expected(g, g->in, count));
    }
    return 0;
}

/* The parts of all ranks, each rank's first `count` values. */
static void expect_all(const rig *g, size_t count)
{
    for (int rank = 0; rank < g->world; rank++) expect(g->expected + (size_t)rank * count, rank, 0, count);
}

static int check_all_gather(rig *g, size_t count)
{
    int32_t *const ins[] = {g->in, g->out + (size_t)g->rank * count};
    size_t all = count * (size_t)g->world;
    for (int i = 0; i < 2; i++) {
        clear(g, g->out, all);
        put(g, ins[i], count);
        tern_all_gather(g->group, ins[i], g->out, count, TERN_I32, &g->err);
        expect_all(g, count);
        RANK_CHECK(g->rank, is_expected(g, g->out, all));
    }
    return 0;
}

static int check_gather(rig *g, size_t count)
{
    int root = g->world / 2;
    put(g, g->in, count);
    tern_gather(g->group, g->in, g->rank == root ? g->out : NULL, count, TERN_I32, root, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    expect_all(g, count);
    RANK_CHECK(g->rank, g->rank != root || is_expected(g, g->out, count * (size_t)g->world));
    return 0;
}

static int check_scatter(rig *g, size_t count)
{
    int root = g->world - 1;
    put(g, g->in, count * (size_t)g->world);
    tern_scatter(g->group, g->rank == root ? g->in : NULL, g->out, count, TERN_I32, root, &g->err);
    expect(g->expected, root, (size_t)g->rank * count, count);
    RANK_CHECK(g->rank, is_expected(g, g->out, count));
    return 0;
}

static int check_all_to_all(rig *g, size_t count)
{
    put(g, g->in, count * (size_t)g->world);
    tern_all_to_all(g->group, g->in, g->out, count, TERN_I32, &g->err);
    for (int rank = 0; rank < g->world; rank++)
        expect(g->expected + (size_t)rank * count, rank, (size_t)g->rank * count, count);
    RANK_CHECK(g->rank, is_expected(g, g->out, count * (size_t)g->world));
    return 0;
}

/* ---- lists ---- */

/* Rank r contributes (r + 1) parts of a count; the copy of the own part stays on this rank. */
static int check_all_gather_v(rig *g, size_t count)
{
    tern_span outs[RANKS_MAX];
    size_t each = count / 4, total = 0;
    for (int rank = 0; rank < g->world; rank++) {
        outs[rank] = (tern_span){g->out + total, each * (size_t)(rank + 1)};
        expect(g->expected + total, rank, 0, outs[rank].count);
        total += outs[rank].count;
    }
    put(g, g->in, outs[g->rank].count);
    tern_all_gather_v(g->group, g->in, outs[g->rank].count, outs, TERN_I32, &g->err);
    RANK_CHECK(g->rank, is_expected(g, g->out, total));
    return 0;
}

/* Rank r sends count / (1 + r + to) to rank `to`. */
static int check_all_to_all_v(rig *g, size_t count)
{
    size_t gives[RANKS_MAX], takes[RANKS_MAX], given = 0, taken = 0;
    for (int rank = 0; rank < g->world; rank++) {
        size_t from = 0;
        gives[rank] = takes[rank] = count / (size_t)(1 + g->rank + rank);
        for (int to = 0; to < g->rank; to++) from += count / (size_t)(1 + rank + to);
        expect(g->expected + taken, rank, from, takes[rank]);
        given += gives[rank];
        taken += takes[rank];
    }
    put(g, g->in, given);
    tern_all_to_all_v(g->group, g->in, gives, g->out, takes, TERN_I32, &g->err);
    RANK_CHECK(g->rank, is_expected(g, g->out, taken));
    return 0;
}

/* Two buffers, the second in host memory. */
static int check_coalesced(rig *g, size_t count)
{
    int32_t *own = malloc((2 * count + 1) * sizeof(*own));
    tern_span bufs[] = {{g->in, count}, {own, count}};
    put(g, g->in, count);
    expect(own, g->rank, count, count);
    tern_all_reduce_coalesced(g->group, bufs, 2, TERN_I32, TERN_SUM, &g->err);
    expect_sum(g, g->expected, 0, 2 * count);
    RANK_CHECK(g->rank, is_expected(g, g->in, count));
    RANK_CHECK(g->rank, !memcmp(own, g->expected + count, count * sizeof(*own)));

    put(g, g->in, count);
    tern_broadcast_coalesced(g->group, bufs, 1, TERN_I32, 0, &g->err);
    expect(g->expected, 0, 0, count);
    RANK_CHECK(g->rank, is_expected(g, g->in, count));
    free(own);
    return 0;
}

static int check_coalesced_parts(rig *g, size_t count)
{
    tern_span spans[] = {{g->in, count}, {g->in + count, count / 2}};
    void *outs[] = {g->out, g->out + count * (size_t)g->world};
    size_t all = (count + count / 2) * (size_t)g->world, half = count / 2;
    put(g, g->in, count + half);
    tern_all_gather_coalesced(g->group, spans, outs, 2, TERN_I32, &g->err);
    expect_all(g, count);
    for (int rank = 0; rank < g->world; rank++)
        expect(g->expected + count * (size_t)g->world + (size_t)rank * half, rank, count, half);
    RANK_CHECK(g->rank, is_expected(g, g->out, all));

    const void *ins[] = {g->out, g->out + count * (size_t)g->world};
    put(g, g->out, all);
    tern_reduce_scatter_coalesced(g->group, ins, spans, 2, TERN_I32, TERN_SUM, &g->err);
    expect_sum(g, g->expected, (size_t)g->rank * count, count);
    expect_sum(g, g->expected + count, count * (size_t)g->world + (size_t)g->rank * half, half);
    RANK_CHECK(g->rank, is_expected(g, g->in, count + half));
    return 0;
}

/* Sends from device memory and receives in host memory. */
static int check_bytes(rig *g, size_t count)
{
    tern_bytes outs[RANKS_MAX] = {{0}}, own = {g->in, (size_t)(g->rank + 1) * sizeof(int32_t)};
    tern_bytes message = g->rank == 0 ? (tern_bytes){g->in, count * sizeof(int32_t)} : (tern_bytes){0};
    put(g, g->in, count + 8);
    tern_all_gather_bytes(g->group, own.data, own.count, outs, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    for (int rank = 0; rank < g->world; rank++) {
        expect(g->expected, rank, 0, (size_t)rank + 1);
        RANK_CHECK(g->rank, outs[rank].count == ((size_t)rank + 1) * sizeof(int32_t));
        RANK_CHECK(g->rank, !memcmp(outs[rank].data, g->expected, outs[rank].count));
        tern_bytes_free(outs[rank].data);
    }
    tern_broadcast_bytes(g->group, &message, 0, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    expect(g->expected, 0, 0, count);
    if (g->rank) RANK_CHECK(g->rank, !memcmp(message.data, g->expected, count * sizeof(int32_t)));
    if (g->rank) tern_bytes_free(message.data);
    return 0;
}

/* ---- messages ---- */

/* Around the ring of ranks: to the next, from the previous one; the receive is posted first. */
static int check_messages(rig *g, size_t count)
{
    int next = (g->rank + 1) % g->world, before = (g->rank + g->world - 1) % g->world, source = -1;
    tern_work *works[2];
    if (g->world == 1) return 0;
    put(g, g->in, count);
    clear(g, g->out, count);
    tern_p2p ops[] = {{TERN_RECV, g->out, count, TERN_I32, before, 5},
                      {TERN_SEND, g->in, count, TERN_I32, next, 5}};
    tern_batch_isend_irecv(g->group, ops, 2, works, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    if (g->device->backend) clear(g, g->in, count); /* the send has a copy */
    while (tern_work_test(works[0], &g->err) == TERN_PENDING) continue;
    for (int i = 0; i < 2; i++) tern_work_wait(works[i], &g->err);
    expect(g->expected, before, 0, count);
    RANK_CHECK(g->rank, is_expected(g, g->out, count));

    if (g->rank == 0) tern_send(g->group, g->out, count, TERN_I32, 1, 0, &g->err);
    if (g->rank == 1) tern_recv(g->group, g->out, count, TERN_I32, TERN_ANY_SOURCE, 0, &source, &g->err);
    if (g->rank == 1) expect(g->expected, g->world - 1, 0, count);
    RANK_CHECK(g->rank, is_expected(g, g->out, count));
    RANK_CHECK(g->rank, g->rank != 1 || source == 0);
    return 0;
}

static int check_strings(rig *g, size_t count)
{
    tern_bytes came = {0};
    put(g, g->in, count);
    if (g->world == 1 || g->rank > 1) return 0;
    if (g->rank == 1)
        tern_send_bytes(g->group, g->in, count * sizeof(int32_t), 0, 1, &g->err);
    else
        tern_recv_bytes(g->group, &came, 1, 1, NULL, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    expect(g->expected, 1, 0, count);
    RANK_CHECK(g->rank, g->rank || !memcmp(came.data, g->expected, count * sizeof(int32_t)));
    tern_bytes_free(came.data);
    return 0;
}

/* ---- works, with steps between ---- */

/* Three at once, awaited in another order, while the step writes first elsewhere and then to the same
 * buffers. */
static int check_works(rig *g, size_t count)
{
    size_t third = count / 3;
    int32_t *x = g->in, *y = g->in + third, *z = g->out + most;
    put(g, g->in, 2 * third);
    tern_work *first = tern_all_reduce_post(g->group, x, third, TERN_I32, TERN_SUM, &g->err);
    tern_work *second = tern_all_reduce_post(g->group, y, third, TERN_I32, TERN_SUM, &g->err);
    clear(g, g->out, most);
    put(g, z, third);
    tern_work *last = tern_broadcast_post(g->group, z, third, TERN_I32, 0, &g->err);
    RANK_CHECK_OK(g->rank, g->err);
    tern_work_wait(last, &g->err);
    expect(g->expected, 0, 0, third);
    RANK_CHECK(g->rank, is_expected(g, z, third));
    while (tern_work_test(second, &g->err) == TERN_PENDING) continue;
    tern_work_wait(second, &g->err);
    tern_work_wait(first, &g->err);
    tern__memory_copy(g->out, x, 2 * third * sizeof(*x), &g->err);
    clear(g, g->in, 2 * third);
    expect_sum(g, g->expected, 0, 2 * third);
    RANK_CHECK(g->rank, is_expected(g, g->out, 2 * third));
    return 0;
}

/* ---- all of it ---- */

typedef int (*check_fn)(rig *g, size_t count);
static const check_fn checks[] = {
    check_all_reduce,   check_reduce,    check_reduce_scatter,  check_premul,     check_broadcast,
    check_all_gather,   check_gather,    check_scatter,         check_all_to_all, check_all_gather_v,
    check_all_to_all_v, check_coalesced, check_coalesced_parts, check_bytes,      check_messages,
    check_strings,      check_works};

/* With an arena, calls are one piece: what does not fit the ring crosses the arena. */
static int body(int rank, const tern__bootstrap *boot, void *arg)
{
    const bool *has_arena = arg;
    rig g;
    if (open_rig(&g, rank, boot)) return 1;
    if (*has_arena) tern_group_mem_alloc(g.group, 1, &g.err);
    for (size_t c = 0; c < TERN__COUNT(counts); c++)
        for (size_t i = 0; i < TERN__COUNT(checks); i++) {
            size_t count = checks[i] == check_coalesced_parts ? counts[c] / 2 : counts[c];
            if (checks[i](&g, count) || g.err.code) {
                fprintf(stderr, "rank %d of %d: check %zu of %zu elements: %s\n", rank, boot->world, i, count,
                        g.err.text);
                return 1;
            }
        }
    RANK_CHECK(rank, pins.bytes <= PINNED);
    return close_rig(&g);
}

static void all_of_them(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, body, &(bool){false}));
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, body, &(bool){true}));
}

/* A window on one side only: the memory that peers read is elsewhere on this rank. */
static int refused_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    rig g;
    tern_error why = {0};
    if (open_rig(&g, rank, boot)) return 1;
    int32_t *window = tern_group_mem_alloc(g.group, 4096, &g.err);
    RANK_CHECK_OK(rank, g.err);
    tern_all_to_all(g.group, window, g.out, 4, TERN_I32, &why);
    RANK_CHECK(rank, strstr(why.text, "tern_group_mem_alloc") != NULL);
    return close_rig(&g);
}

static void a_window_beside_a_device(void **state)
{
    (void)state;
    if (!getenv("TERN_TEST_HOSTS")) assert_ranks_ok(ranks_run(2, refused_body, NULL));
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_them),
        cmocka_unit_test(a_window_beside_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
