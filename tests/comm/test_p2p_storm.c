/* test_p2p_storm.c - storms of messages of every size, tag, order and source among 2 to 8 ranks, which are
 * processes, groups or threads. Every rank knows all messages, and receives its own in its own order. */
#include "message.h"

#include "comm/move/window/window.h"

#include <tern.h>

enum { tags = 5, any_tag = 4, any_bytes = 40, guard = 16, storm_max = 160 };

typedef struct message {
    int src, dst, tag;
    size_t bytes;
    uint64_t seed;
    bool taken; /* by a receive from any rank */
    char *received;
    tern_work *send, *recv;
} message;

typedef struct storm {
    message all[storm_max];
    int count, first_tag, number; /* the storm's number: a fast rank may be in the next one */
    char *memory, *free;
} storm;

/* Returns 0 to `most`, small sizes as often as large ones. */
static size_t random_bytes(uint64_t *state, size_t most)
{
    size_t bytes = (size_t)below(state, UINT64_C(1) << below(state, 24));
    return TERN__MIN(bytes, most);
}

static void storm_make(storm *s, int world, uint64_t seed, size_t most)
{
    uint64_t state = seed;
    size_t left = 3 * most;
    s->count = 20 + (int)below(&state, storm_max - 20);
    for (int i = 0; i < s->count; i++) {
        message *m = &s->all[i];
        *m = (message){.src = (int)below(&state, (uint64_t)world), .tag = (int)below(&state, tags)};
        m->dst = (m->src + 1 + (int)below(&state, (uint64_t)world - 1)) % world;
        m->bytes = m->tag == any_tag ? any_bytes : random_bytes(&state, left);
        left -= m->tag == any_tag ? 0 : m->bytes;
        m->seed = next_random(&state);
    }
    s->first_tag = (int)below(&state, tags);
    s->memory = s->free = malloc(2 * (3 * most + storm_max * (any_bytes + 2 * guard + 64)));
}

/* Allocates at any alignment, with a guard on both sides. */
static char *take_memory(storm *s, size_t bytes, uint64_t seed)
{
    char *at = s->free + seed % 64;
    s->free = at + guard + bytes + guard;
    memset(at, 0x55, guard);
    memset(at + guard + bytes, 0x55, guard);
    return at + guard;
}

static bool is_guarded(const char *buf, size_t bytes)
{
    for (int i = 0; i < guard; i++)
        if (buf[-guard + i] != 0x55 || buf[bytes + (size_t)i] != 0x55) return false;
    return true;
}

static void send_one(fixture *f, storm *s, message *m)
{
    char *buf = take_memory(s, m->bytes, m->seed);
    message_put(buf, m->bytes, m->seed);
    m->send = tern_isend(f->group, buf, m->bytes, TERN_U8, m->dst, s->number * tags + m->tag, &f->err);
}

static void receive_one(fixture *f, storm *s, message *m)
{
    int src = m->tag == any_tag ? TERN_ANY_SOURCE : m->src;
    m->received = take_memory(s, m->bytes, m->seed >> 8);
    m->recv = tern_irecv(f->group, m->received, m->bytes, TERN_U8, src, s->number * tags + m->tag, &f->err);
}

/* Starts sends in the storm's order and receives tag by tag, alternating. */
static void storm_start(fixture *f, storm *s, uint64_t *state)
{
    int sent = 0, asked = 0, all = s->count * tags;
    while ((sent < s->count || asked < all) && !f->err.code) {
        if (sent < s->count && (asked == all || below(state, tags + 1) == 0)) {
            message *m = &s->all[sent++];
            if (m->src == f->rank) send_one(f, s, m);
        } else if (asked < all) {
            message *m = &s->all[asked % s->count];
            int tag = (s->first_tag + f->rank + asked++ / s->count) % tags;
            if (m->dst == f->rank && m->tag == tag) receive_one(f, s, m);
        }
    }
}

/* Checks that the receive that was started first got the first message of its source. */
static int check_any(fixture *f, storm *s, message *m)
{
    int source = tern_work_source(m->recv, &f->err), i = 0;
    RANK_CHECK_OK(f->rank, f->err);
    while (i < s->count && (s->all[i].tag != any_tag || s->all[i].src != source || s->all[i].dst != f->rank ||
                            s->all[i].taken))
        i++;
    RANK_CHECK(f->rank, i < s->count);
    s->all[i].taken = true;
    RANK_CHECK(f->rank, message_is(m->received, any_bytes, s->all[i].seed));
    return 0;
}

static int finish_recv(fixture *f, storm *s, message *m, uint64_t *state)
{
    while (below(state, 4)) RANK_CHECK(f->rank, tern_work_test(m->recv, &f->err) >= 0);
    if (m->tag == any_tag && check_any(f, s, m)) return 1;
    tern_work_wait(m->recv, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    RANK_CHECK(f->rank, m->tag == any_tag || message_is(m->received, m->bytes, m->seed));
    RANK_CHECK(f->rank, is_guarded(m->received, m->bytes));
    return 0;
}

static int storm_run(fixture *f, int number, size_t most)
{
    static _Thread_local storm s;
    uint64_t seed = (uint64_t)(f->world * 1000 + number), state = seed * 31 + (uint64_t)f->rank;
    storm_make(&s, f->world, seed, most);
    s.number = number;
    storm_start(f, &s, &state);
    RANK_CHECK_OK(f->rank, f->err);
    for (int i = 0; i < s.count; i++)
        if (s.all[i].recv && finish_recv(f, &s, &s.all[i], &state)) return 1;
    for (int i = s.count - 1; i >= 0; i--)
        if (s.all[i].send) tern_work_wait(s.all[i].send, &f->err);
    RANK_CHECK_OK(f->rank, f->err);
    free(s.memory);
    return 0;
}

enum { in_world, in_groups, with_looks };

static int storms_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f;
    const int *how = arg;
    size_t most = boot->world == 2 ? 8 << 20 : 1 << 20;
    if (*how == in_groups ? fixture_split(&f, rank, boot, 64) : fixture_open(&f, rank, boot, 64)) return 1;
    if (*how == with_looks && f.group->root->shm) f.group->root->shm->late_s = 0;
    int storms = takes_turns() ? 4 : THOUSANDS(1) / 100; /* others in each world */
    for (int i = 0; i < storms && f.world > 1; i++)
        if (storm_run(&f, i, most)) {
            fprintf(stderr, "rank %d of %d: storm %d\n", rank, f.world, i);
            return 1;
        }
    tern_barrier(f.group, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_storms_of_processes(void **state)
{
    (void)state;
    int how = in_world;
    for (size_t i = 1; i < TERN__COUNT(worlds); i++)
        if (has_world(worlds[i])) assert_ranks_ok(ranks_run(worlds[i], storms_body, &how));
}

static void test_storms_of_threads(void **state)
{
    (void)state;
    int how = in_world;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run_threads(world, storms_body, &how));
}

static void test_storms_in_groups(void **state)
{
    (void)state;
    int how = in_groups;
    assert_ranks_ok(ranks_run(5, storms_body, &how));
    assert_ranks_ok(ranks_run_threads(4, storms_body, &how));
}

/* Every rank checks for a deadlock before every sleep, and none is reported. */
static void test_storms_with_looks(void **state)
{
    (void)state;
    int how = with_looks;
    assert_ranks_ok(ranks_run(2, storms_body, &how));
    assert_ranks_ok(ranks_run(5, storms_body, &how));
    assert_ranks_ok(ranks_run_threads(3, storms_body, &how));
}

/* Ranks with nothing left to send close their groups while the others go on. */
static int leavers_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    int64_t number = rank;
    if (fixture_open(&f, rank, boot, 64)) return 1;
    for (int i = 1; i < f.world && rank == 0; i++) {
        int source;
        tern_recv(f.group, &number, 1, TERN_I64, TERN_ANY_SOURCE, 0, &source, &f.err);
        RANK_CHECK_OK(rank, f.err);
        RANK_CHECK(rank, source == number);
    }
    if (rank != 0 && rank == f.world - 1)
        for (int i = 1; i < rank; i++)
            while (!tern__group_has_left(f.group, i)) usleep(1000);
    if (rank == f.world - 1) usleep(1200000); /* longer than a goodbye may stay unexplained */
    if (rank != 0) tern_send(f.group, &number, 1, TERN_I64, 0, 0, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_others_may_leave(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, leavers_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storms_of_processes), cmocka_unit_test(test_storms_of_threads),
        cmocka_unit_test(test_storms_in_groups),    cmocka_unit_test(test_storms_with_looks),
        cmocka_unit_test(test_others_may_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
