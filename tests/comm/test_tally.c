/* test_tally.c - shadows, ranks that take part only so that the others can go on: the checks that still
 * apply to them, the source of a broadcast, and the tally that reports them. */
#include "place.h"

enum { window_bytes = 64 << 10 };

/* ---- broadcasts ---- */

/* Bit r of `who`: rank r is a shadow. Returns the root if it is no shadow, else the highest rank that is
 * none, else -1. */
static int source_of(unsigned who, int root, int world)
{
    if (!(who >> root & 1)) return root;
    for (int r = world - 1; r >= 0; r--)
        if (!(who >> r & 1)) return r;
    return -1;
}

static int check_broadcast(place *p, unsigned who, int root, bool to_own)
{
    enum { count = 5000 };
    float out[count];
    tern__extent extent = {p->window, 64, count};
    tern__post post = {
        .kind = TERN__BROADCAST,
        .dtype = TERN_F32,
        .root = root,
        .label = {.kind = &tern__ddp_label, .user = 2, .number = (uint64_t)p->rank * (who >> p->rank & 1)},
        .extents = &extent,
        .extent_count = 1,
        .out = to_own ? out : NULL,
        .terms.shadow = who >> p->rank & 1};
    float *at = (float *)(p->base + extent.offset);
    for (int i = 0; i < count; i++) out[i] = at[i] = (float)(p->rank * count + i);
    uint64_t seq = place_run(p, &post);
    RANK_CHECK_OK(p->rank, p->err);
    int source = source_of(who, root, p->world);
    const float *result = to_own ? out : at;
    for (int i = 0; i < count; i++)
        RANK_CHECK(p->rank, result[i] == (float)((source < 0 ? p->rank : source) * count + i));
    RANK_CHECK(p->rank, p->backend->tally(p->channel[0], seq)->shadows == __builtin_popcount(who));
    return 0;
}

static int broadcast_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    place p;
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    unsigned all = 1U << p.world;
    for (unsigned who = 0; who < all; who = who == all - 2 ? who + 1 : who + 1 + who / 9)
        for (int root = 0; root < p.world; root += 2)
            for (int to_own = 0; to_own < 2; to_own++)
                if (check_broadcast(&p, TERN__MIN(who, all - 1), root, to_own)) return 1;
    place_close(&p);
    return 0;
}

static void test_broadcast_without_its_root(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(worlds); i++)
        assert_ranks_ok(ranks_run(worlds[i], broadcast_body, NULL));
}

/* ---- the tally ---- */

/* Rank 0 posts as many works as place_slots allows after the one whose tally rank 1 then reads. */
static int ahead_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    place p;
    uint64_t seq[place_slots + 1];
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    tern__post post = {.kind = TERN__BARRIER, .dtype = TERN_U8, .terms.shadow = rank == 1};
    seq[0] = place_run(&p, &post);
    post.terms.shadow = false;
    for (int i = 1; i <= place_slots && rank == 0; i++) p.backend->post(p.channel[0], &post, &seq[i], &p.err);
    tern_barrier(p.group, &p.err);
    RANK_CHECK_OK(rank, p.err);
    const tern__tally *tally = p.backend->tally(p.channel[0], seq[0]);
    RANK_CHECK(rank, rank == 0 || (tally->shadows == 1 && tally->shadow[1] && !tally->shadow[0]));
    for (int i = 1; i <= place_slots; i++) {
        if (rank) p.backend->post(p.channel[0], &post, &seq[i], &p.err);
        p.backend->wait(p.channel[0], seq[i], &p.err);
    }
    RANK_CHECK(rank, p.backend->tally(p.channel[0], seq[place_slots])->shadows == 0);
    RANK_CHECK_OK(rank, p.err);
    place_close(&p);
    return 0;
}

static void test_tally_stays_while_peers_go_on(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, ahead_body, NULL));
    assert_ranks_ok(ranks_run_threads(2, ahead_body, NULL));
}

/* ---- checks that still apply to shadows ---- */

/* Three ranks, of which rank 0 is a shadow: the ranks' different posts, and the rank that the error names. */
typedef struct dispute {
    const char *name;
    tern__post odd; /* rank 2's differences */
    int who;        /* the rank that differs from rank 2 */
    bool is_odd_shadow;
} dispute;

static const dispute disputes[] = {
    {"number", {.label.number = 1}, 1, false},
    {"detail", {.label.detail = 1}, 1, false},
    {"part", {.label.part = 1}, 1, false},
    {"part of a shadow", {.label.part = 1}, 1, true},
    {"user of a shadow", {.label.user = 1}, 1, true},
    {"kind of a shadow", {.kind = TERN__BARRIER}, 1, true},
};

static int dispute_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const dispute *d = arg;
    place p;
    char expected[64];
    if (place_open(&p, rank, boot, window_bytes)) return 1;
    tern__post post = {.kind = TERN__BROADCAST, .dtype = TERN_F32, .label = {&tern__ddp_label, 3, 0, 1, 4}};
    if (rank == 0) post.label.number = 1;
    post.terms.shadow = rank == 0 || (rank == 2 && d->is_odd_shadow);
    if (rank == 2) {
        post.label.number += d->odd.label.number;
        post.label.detail += d->odd.label.detail;
        post.label.part += d->odd.label.part;
        post.label.user += d->odd.label.user;
        if (d->odd.kind) post.kind = d->odd.kind;
    }
    place_run(&p, &post);
    RANK_CHECK(rank, p.err.code == TERN_E_MISMATCH);
    snprintf(expected, sizeof(expected), "rank %d: broadcast", d->who);
    RANK_CHECK(rank, strstr(p.err.text, expected));
    RANK_CHECK(rank, strstr(p.err.text, "rank 2: "));
    place_close(&p);
    return 0;
}

static void test_what_else_differs_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(disputes); i++) {
        dispute d = disputes[i];
        assert_ranks_ok(ranks_run(3, dispute_body, &d));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast_without_its_root),
        cmocka_unit_test(test_tally_stays_while_peers_go_on),
        cmocka_unit_test(test_what_else_differs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
