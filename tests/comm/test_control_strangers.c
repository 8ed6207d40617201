/* test_control_strangers.c - strangers connect to the port that a job of several hosts opens while its ranks
 * meet. They are refused or ignored, and the ranks still meet. */
#include "comm/control_fixture.h"

#include "comm/store/reception.h"

#include <sys/resource.h>

/* Rank 0's listening port, as rank 1 knows it. */
typedef struct door {
    tern_store *store;
    tern__rank_info info;
    struct sockaddr_storage at;
    uint8_t secret[TERN__SECRET_BYTES], key[TERN__SECRET_BYTES]; /* the job's, and this meeting's */
} door;

/* Rank 0 opens its port once every rank's info is there. */
static int find_door(const tern__bootstrap *boot, door *d)
{
    tern_error err = {0};
    tern__rank_info own;
    d->store = tern__store_open(boot, 10, &err);
    tern__rank_info_make(&own, boot, &err);
    tern__rank_info_publish(&own, "control/", boot->rank, d->store, &err);
    tern__rank_info_get(&d->info, "control/", 0, d->store, 10, &err);
    tern__tcp_get(&d->at, 0, d->store, 10, &err);
    RANK_CHECK_OK(boot->rank, err);
    memcpy(d->secret, boot->secret, sizeof(d->secret));
    crypto_auth_hmacsha256(d->key, d->info.epoch, sizeof(d->info.epoch), boot->secret);
    return 0;
}

static int knock(const door *d)
{
    return tern__tcp_connect(&d->at, tern__deadline(5));
}

static bool is_hung_up_on(int fd, double seconds)
{
    char byte;
    int status = tern__recv_all(fd, &byte, 1, tern__deadline(seconds));
    close(fd);
    return status == -ECONNRESET;
}

static bool is_refused(const door *d, const void *bytes, size_t count)
{
    int fd = knock(d);
    return fd >= 0 && tern__send_all(fd, bytes, count, tern__deadline(4)) == 0 && is_hung_up_on(fd, 4);
}

static int knock_with_garbage(const door *d, int rank)
{
    char noise[4096];
    static const char *const greetings[] = {
        "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: a browser that knocks at every door it sees\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1 and some more, as a hello has sixty-four bytes",
        "TernHi\r\n and then what is no hello, of more than sixty-four bytes .........",
    };
    randombytes_buf(noise, sizeof(noise));
    RANK_CHECK(rank, is_refused(d, noise, sizeof(noise)));
    for (size_t i = 0; i < TERN__COUNT(greetings); i++)
        RANK_CHECK(rank, is_refused(d, greetings[i], strlen(greetings[i])));
    for (int i = 0; i < 20; i++) close(knock(d));
    return 0;
}

static int knock_with_wrong_hellos(const door *d, int rank)
{
    tern__hello good, bad[8];
    tern__hello_make(&good, TERN__PURPOSE_CONTROL, 1, 0, 2);
    for (size_t i = 0; i < TERN__COUNT(bad); i++) bad[i] = good;
    bad[0].purpose = TERN__PURPOSE_STORE;
    bad[1].from = 0;
    bad[2].from = UINT32_MAX;
    bad[3].to = 1;
    bad[4].world = 3;
    bad[5].magic[0] = 'X';
    bad[6].version++;
    bad[7].zero = 1;
    for (size_t i = 0; i < TERN__COUNT(bad); i++) RANK_CHECK(rank, is_refused(d, &bad[i], sizeof(bad[i])));
    return 0;
}

/* Connects and receives the challenge. */
static int begin_handshake(const door *d, tern__hello *hello, tern__challenge *challenge)
{
    int fd = knock(d);
    tern__hello_make(hello, TERN__PURPOSE_CONTROL, 1, 0, 2);
    int status = tern__send_all(fd, hello, sizeof(*hello), tern__deadline(4));
    if (!status) status = tern__recv_all(fd, challenge, sizeof(*challenge), tern__deadline(4));
    return status ? -1 : fd;
}

static bool is_proof_refused(int fd, const tern__proof *proof)
{
    return fd >= 0 && !tern__send_all(fd, proof, sizeof(*proof), tern__deadline(4)) && is_hung_up_on(fd, 4);
}

static int knock_with_wrong_proofs(const door *d, int rank)
{
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof, replayed;
    int fd = begin_handshake(d, &hello, &challenge);
    memcpy(proof.mac, challenge.mac, sizeof(proof.mac));
    RANK_CHECK(rank, is_proof_refused(fd, &proof)); /* the server's own proof */

    fd = begin_handshake(d, &hello, &challenge);
    RANK_CHECK(rank, !tern__hello_answer(&hello, &challenge, d->secret, &proof)); /* for another meeting */
    RANK_CHECK(rank, tern__hello_answer(&hello, &challenge, d->key, &replayed));
    proof = replayed;
    proof.mac[31] ^= 1;
    RANK_CHECK(rank, is_proof_refused(fd, &proof)); /* one bit is wrong */

    fd = begin_handshake(d, &hello, &challenge);
    RANK_CHECK(rank, is_proof_refused(fd, &replayed)); /* from another connection */

    fd = begin_handshake(d, &hello, &challenge);
    crypto_auth_hmacsha256(proof.mac, (const uint8_t *)&hello, sizeof(hello), d->secret);
    RANK_CHECK(rank,
               is_proof_refused(fd, &proof)); /* for a stale rank of another meeting, which has this secret */
    return 0;
}

static tern__bootstrap on_host(const tern__bootstrap *boot)
{
    tern__bootstrap own = *boot;
    own.host_id = boot->rank ? "attic" : "cellar";
    return own;
}

static int meet(const tern__bootstrap *own, board *b)
{
    tern_error err = {0};
    tern_store *store = tern__store_open(own, 10, &err);
    tern__control *control = tern__control_open(own, store, 10, 15, &err);
    RANK_CHECK_OK(own->rank, err);
    RANK_CHECK(own->rank, tern__control_hosts(control) == 2 && tern__control_is_healthy(control));
    RANK_CHECK(own->rank, all_are_here(b, 2));
    tern__control_close(control);
    tern_store_close(store);
    return 0;
}

/* ---- strangers ---- */

static int knock_and_meet(int rank, const tern__bootstrap *boot, void *arg)
{
    tern__bootstrap own = on_host(boot);
    door d;
    if (rank == 0) return meet(&own, arg);
    RANK_CHECK(rank, !find_door(&own, &d));
    int64_t start = tern__now_ns();
    int silent = knock(&d), half = knock(&d);
    RANK_CHECK(rank, send(half, "TernHi\r\n", 8, MSG_NOSIGNAL) == 8);
    RANK_CHECK(rank, !knock_with_garbage(&d, rank) && !knock_with_wrong_hellos(&d, rank));
    RANK_CHECK(rank, !knock_with_wrong_proofs(&d, rank));
    RANK_CHECK(rank, is_hung_up_on(half, 5 + RANKS_SOON_S) && is_hung_up_on(silent, 4));
    double seconds = (double)(tern__now_ns() - start) * 1e-9;
    RANK_CHECK(rank, seconds > 4.9 && seconds < 5 + RANKS_SOON_S);
    tern_store_close(d.store);
    return meet(&own, arg);
}

static void strangers_are_turned_away(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, knock_and_meet, b));
    board_free(b);
}

/* An honest rank's handshake over a network that delivers single bytes. */
static int come_in_slowly(int rank, const tern__bootstrap *boot, void *arg)
{
    tern__bootstrap own = on_host(boot);
    door d;
    tern__hello hello;
    tern__challenge challenge;
    tern__proof proof;
    tern__welcome welcome;
    if (rank == 0) return meet(&own, arg);
    RANK_CHECK(rank, !find_door(&own, &d));
    int fd = knock(&d);
    tern__hello_make(&hello, TERN__PURPOSE_CONTROL, 1, 0, 2);
    for (size_t i = 0; i < sizeof(hello); i++) {
        RANK_CHECK(rank, send(fd, (char *)&hello + i, 1, MSG_NOSIGNAL) == 1);
        tern__poll(NULL, 0, tern__deadline(0.001));
    }
    RANK_CHECK(rank, !tern__recv_all(fd, &challenge, sizeof(challenge), tern__deadline(4)));
    RANK_CHECK(rank, tern__hello_answer(&hello, &challenge, d.key, &proof));
    /* The end of the handshake and the message after it arrive together. */
    tern__message goodbye = {.kind = TERN__MESSAGE_GOODBYE, .bytes = 1};
    char last[sizeof(proof) + TERN__MESSAGE_HEAD + 1];
    memcpy(last, &proof, sizeof(proof));
    memcpy(last + sizeof(proof), &goodbye, TERN__MESSAGE_HEAD + 1);
    RANK_CHECK(rank, !tern__send_all(fd, last, sizeof(last), tern__deadline(4)));
    RANK_CHECK(rank, !tern__recv_all(fd, &welcome, sizeof(welcome), tern__deadline(4)));
    RANK_CHECK(rank, tern__hello_is_welcome(&welcome));
    RANK_CHECK(rank, all_are_here(arg, 2));
    close(fd);
    tern_store_close(d.store);
    return 0;
}

static void a_handshake_may_come_byte_by_byte(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, come_in_slowly, b));
    board_free(b);
}

/* ---- crowds ---- */

enum { CROWD = 150 };

/* Silent strangers use up all places, or all of rank 0's descriptors. The rank gets in before they are
 * dropped for their silence. */
static int push_through(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern__bootstrap own = on_host(boot);
    door d;
    int crowd[CROWD];
    if (rank == 0) return meet(&own, b);
    RANK_CHECK(rank, !find_door(&own, &d));
    if (b->mode) { /* limits the descriptors that rank 0 may open */
        int top = dup(0);
        close(top);
        const struct rlimit limit = {(rlim_t)b->mode, (rlim_t)b->mode};
        RANK_CHECK(rank, !prlimit(d.info.pid, RLIMIT_NOFILE, &limit, NULL));
    }
    for (int i = 0; i < CROWD; i++) RANK_CHECK(rank, (crowd[i] = knock(&d)) >= 0);
    tern_store_close(d.store);
    int64_t start = tern__now_ns();
    int status = meet(&own, b);
    atomic_store(&b->events, tern__now_ns() - start < 4000000000);
    for (int i = 0; i < CROWD; i++) close(crowd[i]);
    return status;
}

/* A busy machine may delay one try, but a rank that waits until the crowd is dropped is always slow. */
static bool is_ever_quick(ranks_body body, int mode)
{
    bool is_quick = false;
    for (int times = 0; times < 6 && !is_quick; times++) {
        board *b = board_new();
        b->mode = mode;
        assert_ranks_ok(ranks_run(2, body, b));
        is_quick = atomic_load(&b->events);
        board_free(b);
    }
    return is_quick;
}

static void a_crowd_keeps_no_rank_out(void **state)
{
    (void)state;
    assert_true(is_ever_quick(push_through, 0));
}

static void nor_does_one_that_takes_all_descriptors(void **state)
{
    (void)state;
    assert_true(is_ever_quick(push_through, 24));
}

/* Connects as rank 1 and sends its hello. */
static int call(const door *d, tern__hello *hello)
{
    int fd = knock(d);
    tern__hello_make(hello, TERN__PURPOSE_CONTROL, 1, 0, 2);
    return fd >= 0 && !tern__send_all(fd, hello, sizeof(*hello), tern__deadline(4)) ? fd : -1;
}

static bool is_challenged(int fd)
{
    tern__challenge challenge;
    return !tern__recv_all(fd, &challenge, sizeof(challenge), tern__deadline(4));
}

/* Strangers take all of rank 0's places, and one more caller waits. Rank 0 answers hellos after it has seen
 * who waits outside: after the second answer it has seen the caller and shut its doors. Then one stranger
 * leaves, and the caller has an answer before any stranger's grace is over. */
static int follow_one_out(int rank, const tern__bootstrap *boot, void *arg)
{
    board *b = arg;
    tern__bootstrap own = on_host(boot);
    door d;
    tern__hello hello;
    int crowd[TERN__STRANGERS_MAX];
    if (rank == 0) return meet(&own, b);
    RANK_CHECK(rank, !find_door(&own, &d));
    tern_store_close(d.store);
    int64_t start = tern__now_ns();
    for (int i = 0; i < TERN__STRANGERS_MAX; i++) RANK_CHECK(rank, (crowd[i] = knock(&d)) >= 0);
    int caller = call(&d, &hello);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(rank, !tern__send_all(crowd[i], &hello, sizeof(hello), tern__deadline(4)));
        RANK_CHECK(rank, is_challenged(crowd[i]));
    }
    close(crowd[TERN__STRANGERS_MAX - 1]);
    RANK_CHECK(rank, is_challenged(caller));
    atomic_store(&b->events, tern__now_ns() - start < TERN__HELLO_GRACE_NS);
    close(caller);
    for (int i = 0; i < TERN__STRANGERS_MAX - 1; i++) close(crowd[i]);
    return meet(&own, b);
}

static void a_place_that_is_left_is_taken_at_once(void **state)
{
    (void)state;
    assert_true(is_ever_quick(follow_one_out, 0));
}

/* ---- after the meeting ---- */

static int knock_too_late(int rank, const tern__bootstrap *boot, void *arg)
{
    tern_error err = {0};
    seat s = sit_down(boot, 10, &err);
    RANK_CHECK_OK(rank, err);
    struct sockaddr_storage at;
    RANK_CHECK(rank, all_are_here(arg, 2));
    for (int peer = 0; peer < 2; peer++) {
        RANK_CHECK(rank, tern__tcp_get(&at, peer, s.store, 5, &err) == TERN_OK);
        RANK_CHECK(rank, tern__tcp_connect(&at, tern__deadline(5)) == -ECONNREFUSED);
    }
    RANK_CHECK(rank, all_are_here(arg, 4));
    get_up(&s);
    return 0;
}

static void no_port_is_open_after_the_meeting(void **state)
{
    (void)state;
    board *b = board_new();
    assert_ranks_ok(ranks_run(2, knock_too_late, b));
    board_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(a_handshake_may_come_byte_by_byte),
        cmocka_unit_test(a_crowd_keeps_no_rank_out),
        cmocka_unit_test(nor_does_one_that_takes_all_descriptors),
        cmocka_unit_test(a_place_that_is_left_is_taken_at_once),
        cmocka_unit_test_setup(no_port_is_open_after_the_meeting, two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
