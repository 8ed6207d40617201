/* test_wrap.c - counters that begin shortly before they no longer fit into 24, 32, 40 or 64 bits. The results
 * stay exact, and nobody waits for a number that has gone by.
 *
 * A rank's counters are set by the rank itself while all are idle. Numbers of works stay below 2^63: at a
 * thousand million works a second that takes 292 years. The bytes of a pair's rings may wrap completely. */
#include "elements.h"
#include "group_fixture.h"
#include "message.h"

#include "comm/move/transport/mailbox.h"
#include "comm/move/window/mailbox.h"
#include "comm/call/piece.h"

#include <sys/mman.h>

enum { COUNT = 3000, WORLD = 3 };

typedef struct door {
    atomic_int come[64];
} door;

/* Waits for the other ranks without using the group. */
static void door_pass(door *d, int which, int world)
{
    atomic_fetch_add(&d->come[which], 1);
    while (atomic_load(&d->come[which]) < world) usleep(100);
}

/* ---- works ---- */

static void meeting_wind(tern__meeting *meeting, uint64_t number)
{
    int rank = meeting->of->rank;
    meeting->own_posted = meeting->own_retired = meeting->met = number;
    meeting->all_posted = meeting->all_retired = number;
    atomic_store(&meeting->posted[rank].value, number);
    atomic_store(&meeting->retired[rank].value, number);
}

static void exchange_wind(tern__exchange *exchange, uint64_t number)
{
    exchange->headers_sent = exchange->headers_received = exchange->fed = number;
    exchange->begun = exchange->joined = exchange->ended = number;
}

static void crossings_wind(tern__hosts_channel *channel, uint64_t number)
{
    channel->posted = channel->arrived = channel->crossed = channel->done = number;
    exchange_wind(&channel->exchange, number);
    meeting_wind(channel->arrive, number);
    meeting_wind(channel->leave, number);
    meeting_wind(channel->part, number);
}

static void group_wind(tern_group *group, uint64_t number)
{
    tern__staging *staging = group->staging;
    staging->loaded = staging->started = staging->landed = staging->calls = number;
    if (group->backend == &tern__comm_native)
        meeting_wind(((tern__channel *)group->channel)->meeting, number);
    else
        crossings_wind(group->channel, number);
}

/* Every kind of work, from ordinary memory, several at a time and with different numbers of pieces. */
static int calls_are_exact(fixture *f)
{
    tern_group *g = f->group;
    for (int i = 0; i < 12; i++) {
        tern_dtype dtype = i % 2 ? TERN_F32 : TERN_I64;
        size_t size = tern_dtype_bytes(dtype), count = i % 3 ? COUNT : 5;
        char *x = i % 4 || !f->window ? f->plain : f->window;
        elements_put(dtype, x, f->rank, 0, count);
        elements_reduced(dtype, TERN_SUM, f->expected, f->world, 0, count);
        int32_t mine = f->rank + i, all[WORLD];
        tern_work *works[] = {tern_all_reduce_post(g, x, count, dtype, TERN_SUM, &f->err),
                              tern_all_gather_post(g, &mine, all, 1, TERN_I32, &f->err),
                              tern_barrier_post(g, &f->err)};
        for (size_t w = 0; w < TERN__COUNT(works); w++) tern_work_wait(works[w], &f->err);
        RANK_CHECK_OK(f->rank, f->err);
        RANK_CHECK(f->rank, elements_match(dtype, x, f->expected, count));
        for (int rank = 0; rank < f->world; rank++) RANK_CHECK(f->rank, all[rank] == rank + i);
        char *out = f->expected + (size_t)COUNT * 8 * WORLD;
        elements_put(dtype, x, f->rank, 0, count * (size_t)f->world);
        tern_all_to_all(g, x, out, count, dtype, &f->err);
        RANK_CHECK_OK(f->rank, f->err);
        for (int rank = 0; rank < f->world; rank++) {
            elements_put(dtype, f->expected, rank, 0, count * (size_t)f->world);
            RANK_CHECK(f->rank, !memcmp(out + (size_t)rank * count * size,
                                        f->expected + (size_t)f->rank * count * size, count * size));
        }
    }
    return 0;
}

static int check_works(int rank, const tern__bootstrap *boot, door *d, bool has_window)
{
    static const int bits[] = {24, 31, 32, 40, 53, 62};
    fixture f;
    if (fixture_open(&f, rank, boot, (size_t)COUNT * 8 * (WORLD + 2) * WORLD)) return 1;
    elements_note_hosts(f.group);
    if ((has_window && fixture_map(&f)) || calls_are_exact(&f)) return 1;
    for (size_t i = 0; i < TERN__COUNT(bits); i++) {
        door_pass(d, 2 * (int)i, f.world);
        group_wind(f.group, (UINT64_C(1) << bits[i]) - 4 * TERN__FLIGHT_SLOTS);
        door_pass(d, 2 * (int)i + 1, f.world);
        if (!calls_are_exact(&f)) continue;
        fprintf(stderr, "rank %d: near 2^%d\n", rank, bits[i]);
        return 1;
    }
    return fixture_close(&f);
}

static int works_body(int rank, const tern__bootstrap *boot, void *arg)
{
    return check_works(rank, boot, arg, false);
}

static int placed_works_body(int rank, const tern__bootstrap *boot, void *arg)
{
    return check_works(rank, boot, arg, true);
}

static void numbers_of_works(void **state)
{
    (void)state;
    for (int world = 2; world <= WORLD; world++)
        for (int is_placed = 0; is_placed < 2; is_placed++) {
            door *d = share_memory(sizeof(door));
            assert_ranks_ok(ranks_run(world, is_placed ? placed_works_body : works_body, d));
            munmap(d, sizeof(*d));
        }
}

/* ---- wake-ups ---- */

/* Ranks sleep, because the others are late, and every wake-up counts. */
static int wakes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    const tern__shm *shm = f.group->root->shm;
    door_pass(arg, 0, f.world);
    if (shm) atomic_store(&shm->state->wakes, UINT32_MAX - 1);
    door_pass(arg, 1, f.world);
    for (int i = 0; i < 8; i++) {
        if (i % f.world == rank) usleep(70000); /* longer than a rank yields */
        tern_barrier(f.group, &f.err);
        RANK_CHECK_OK(rank, f.err);
    }
    RANK_CHECK(rank, !shm || atomic_load(&shm->state->wakes) < UINT32_MAX - 1);
    return fixture_close(&f);
}

static void wake_ups(void **state)
{
    (void)state;
    door *d = share_memory(sizeof(door));
    assert_ranks_ok(ranks_run(2, wakes_body, d));
    munmap(d, sizeof(*d));
}

/* ---- messages ---- */

static void pair_wind(tern__mailbox *mailbox, int to, int from, uint64_t serial, uint64_t bytes)
{
    tern__outbox *out = &mailbox->out[to];
    tern__inbox *in = &mailbox->in[from];
    mailbox->matcher.peers[to].serial = serial;
    out->written = out->read = bytes + out->written % TERN__PAIR_ENVELOPES;
    out->filled = out->emptied = bytes + out->filled % TERN__PAIR_BODY;
    in->read = bytes + in->read % TERN__PAIR_ENVELOPES;
    in->emptied = bytes + in->emptied % TERN__PAIR_BODY;
    atomic_store(&out->pair->written.value, out->written);
    atomic_store(&out->pair->filled.value, out->filled);
    atomic_store(&in->pair->read.value, in->read);
    atomic_store(&in->pair->emptied.value, in->emptied);
}

/* Short and long messages in a ring, of several tags at once. */
static int messages_are_exact(fixture *f)
{
    static const size_t sizes[] = {0, 1, 100, 9000, 20000, 300001};
    int to = (f->rank + 1) % f->world, from = (f->rank + f->world - 1) % f->world;
    char *in = f->plain, *out = f->expected;
    for (size_t i = 0; i < 4 * TERN__COUNT(sizes); i++) {
        size_t bytes = sizes[i % TERN__COUNT(sizes)];
        message_put(out, bytes, i * 100 + (size_t)f->rank);
        tern_work *works[] = {tern_isend(f->group, out, bytes, TERN_U8, to, (int)i, &f->err),
                              tern_irecv(f->group, in, bytes, TERN_U8, from, (int)i, &f->err)};
        for (size_t w = 0; w < TERN__COUNT(works); w++) tern_work_wait(works[w], &f->err);
        RANK_CHECK_OK(f->rank, f->err);
        RANK_CHECK(f->rank, message_is(in, bytes, i * 100 + (size_t)from));
    }
    return 0;
}

static int messages_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static const uint64_t serials[] = {UINT32_MAX - 5, (UINT64_C(1) << 40) - 5};
    static const uint64_t bytes[] = {(UINT64_C(1) << 32) - TERN__PAIR_BODY, -(uint64_t)TERN__PAIR_BODY};
    fixture f;
    if (fixture_open(&f, rank, boot, 300001)) return 1;
    if (messages_are_exact(&f)) return 1;
    for (int i = 0; i < 2; i++) {
        door_pass(arg, 2 * i, f.world);
        if (f.group->backend == &tern__comm_native)
            pair_wind(((tern__window_state *)f.group->state)->mailbox, (rank + 1) % f.world,
                      (rank + f.world - 1) % f.world, serials[i], bytes[i]);
        else
            ((tern__hosts *)f.group->state)->mailbox->matcher.peers[(rank + 1) % f.world].serial = serials[i];
        door_pass(arg, 2 * i + 1, f.world);
        if (messages_are_exact(&f)) return 1;
    }
    return fixture_close(&f);
}

static void serials_and_bytes_of_messages(void **state)
{
    (void)state;
    door *d = share_memory(sizeof(door));
    assert_ranks_ok(ranks_run(WORLD, messages_body, d));
    munmap(d, sizeof(*d));
}

/* ---- descriptors ---- */

/* Memory is shared while a message waits whose pair has been passed, but not fetched. */
static int serials_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int64_t sent = 100 + rank, got = 0;
    fixture f;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    int to = (rank + 1) % f.world, from = (rank + f.world - 1) % f.world;
    tern__shm_group *here =
        f.group->backend == &tern__comm_native ? tern__windows_ranks(f.group->state) : NULL;
    tern_work *send = tern_isend(f.group, &sent, 1, TERN_I64, to, 0, &f.err);
    door_pass(arg, 0, f.world);
    if (here) here->serial = UINT32_MAX - 2;
    for (int i = 0; i < 6; i++) {
        uint32_t window;
        f.group->backend->window_open(f.group->state, &(tern__window_opts){.bytes = sizeof(int64_t)}, &window,
                                      &f.err);
        RANK_CHECK_OK(rank, f.err);
        int64_t *x = (int64_t *)tern__window_own(f.group, window);
        *x = i + rank;
        tern_all_reduce(f.group, x, 1, TERN_I64, TERN_MAX, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, *x == i + f.world - 1);
    }
    tern_recv(f.group, &got, 1, TERN_I64, from, 0, NULL, &f.err);
    tern_work_wait(send, &f.err);
    RANK_CHECK_OK(rank, f.err);
    RANK_CHECK(rank, got == 100 + from);
    return fixture_close(&f);
}

static void serials_of_descriptors(void **state)
{
    (void)state;
    door *d = share_memory(sizeof(door));
    assert_ranks_ok(ranks_run(WORLD, serials_body, d));
    munmap(d, sizeof(*d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_works),
        cmocka_unit_test(wake_ups),
        cmocka_unit_test(serials_and_bytes_of_messages),
        cmocka_unit_test(serials_of_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
