/* test_gloo.c - the gloo plug-in: messages between forked ranks, and its errors. */
#include "board.h"
#include "storm.h"

#include <arpa/inet.h>

static const tern_transport *gloo;
static char why[256];

static void *open_gloo(board *b, int rank, int world)
{
    tern_transport_place place = board_place(b, rank, world);
    int status = 0;
    void *state = gloo->open(&place, &status, why, sizeof(why));
    if (!state) fprintf(stderr, "rank %d: %s\n", rank, why);
    return state;
}

/* Waits until the message is done or has failed. */
static int finish(void *state, tern_transport_message *message)
{
    int status;
    while ((status = gloo->test(state, message, why, sizeof(why))) == TERN_PENDING)
        gloo->wait(state, message);
    return status;
}

static int send_one(void *state, int peer, const void *data, size_t bytes)
{
    tern_transport_message message;
    int status = gloo->send(state, peer, 1, data, bytes, &message, why, sizeof(why));
    return status ? status : finish(state, &message);
}

static int recv_one(void *state, int peer, void *data, size_t bytes)
{
    tern_transport_message message;
    int status = gloo->recv(state, peer, 1, data, bytes, &message, why, sizeof(why));
    return status ? status : finish(state, &message);
}

static ranks run_within(double timeout_s, int world, ranks_body body)
{
    board *b = board_new();
    b->timeout_s = timeout_s;
    ranks r = ranks_run(world, body, b);
    board_free(b);
    return r;
}

static ranks run(int world, ranks_body body)
{
    return run_within(20, world, body);
}

/* ---- messages ---- */

static int storm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    void *state = open_gloo(arg, rank, boot->world);
    RANK_CHECK(rank, state);
    int status = storm_run(gloo, state, rank, boot->world);
    gloo->close(state, status != 0);
    return status;
}

static void a_storm(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(run(world, storm_body));
}

/* The sender closes at once; its last bytes must arrive. */
static int last_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { BYTES = 3 << 20 };
    unsigned char *data = malloc(BYTES);
    void *state = open_gloo(arg, rank, boot->world);
    RANK_CHECK(rank, state);
    memset(data, rank ? 0 : 7, BYTES);
    RANK_CHECK(rank, (rank ? recv_one(state, 0, data, BYTES) : send_one(state, 1, data, BYTES)) == TERN_OK);
    RANK_CHECK(rank, data[0] == 7 && data[BYTES - 1] == 7);
    gloo->close(state, false);
    free(data);
    return 0;
}

static void the_last_message_arrives(void **state)
{
    (void)state;
    assert_ranks_ok(run(2, last_body));
}

/* Rank 0 still waits for a message from rank 1, which closes regularly. Another layer reports that as an
 * error. */
static int left_body(int rank, const tern__bootstrap *boot, void *arg)
{
    unsigned char data[4];
    tern_transport_message before, after;
    void *state = open_gloo(arg, rank, boot->world);
    size_t none = 0;
    RANK_CHECK(rank, state);
    if (!rank) RANK_CHECK(rank, !gloo->recv(state, 1, 1, data, 4, &before, why, sizeof(why)));
    if (rank == 1) {
        gloo->close(state, false);
        return board_set(arg, "closed", "", 0, why, sizeof(why));
    }
    RANK_CHECK(rank, !board_get(arg, "closed", NULL, 0, &none, why, sizeof(why)));
    RANK_CHECK(rank, rank || !gloo->recv(state, 1, 1, data, 4, &after, why, sizeof(why)));
    for (int times = 0; times < 2000 && !rank; times++) {
        RANK_CHECK(rank, gloo->test(state, &before, why, sizeof(why)) == TERN_PENDING);
        RANK_CHECK(rank, gloo->test(state, &after, why, sizeof(why)) == TERN_PENDING);
    }
    RANK_CHECK(rank, (rank ? recv_one(state, 0, data, 4) : send_one(state, 2, data, 4)) == TERN_OK);
    gloo->close(state, !rank);
    return 0;
}

static void a_peer_that_has_left(void **state)
{
    (void)state;
    assert_ranks_ok(run(3, left_body));
}

/* gloo itself aborts the process if a message is longer than the receive buffer. Neither rank closes before
 * both have checked. */
static int sizes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    unsigned char data[200] = {0}, bytes[4] = {1, 2, 3, 4};
    size_t none = 0;
    tern_transport_message long_one, short_one;
    void *state = open_gloo(arg, rank, boot->world);
    RANK_CHECK(rank, state);
    int status = rank ? gloo->send(state, 0, 1, data, 200, &long_one, why, sizeof(why))
                      : gloo->recv(state, 1, 1, data, 100, &long_one, why, sizeof(why));
    status |= rank ? gloo->send(state, 0, 2, data, 50, &short_one, why, sizeof(why))
                   : gloo->recv(state, 1, 2, data, 100, &short_one, why, sizeof(why));
    RANK_CHECK(rank, status == TERN_OK);
    RANK_CHECK(rank, (rank ? recv_one(state, 0, data, 4) : send_one(state, 1, bytes, 4)) == TERN_OK);
    RANK_CHECK(rank, (rank ? send_one(state, 0, bytes, 4) : recv_one(state, 1, data, 4)) == TERN_OK);
    RANK_CHECK(rank, gloo->test(state, &long_one, why, sizeof(why)) == TERN_PENDING);
    RANK_CHECK(rank, gloo->test(state, &short_one, why, sizeof(why)) == TERN_PENDING);
    RANK_CHECK(rank, !board_set(arg, rank ? "one" : "zero", "", 0, why, sizeof(why)));
    RANK_CHECK(rank, !board_get(arg, rank ? "zero" : "one", NULL, 0, &none, why, sizeof(why)));
    gloo->close(state, true);
    return 0;
}

static void other_sizes_do_not_meet(void **state)
{
    (void)state;
    assert_ranks_ok(run(2, sizes_body));
}

/* Rank 0 gives up and closes while rank 1 sends as much as it can. */
static int given_up_body(int rank, const tern__bootstrap *boot, void *arg)
{
    unsigned char data[64] = {0};
    size_t none = 0;
    int status = TERN_OK;
    tern_transport_message message;
    void *state = open_gloo(arg, rank, boot->world);
    RANK_CHECK(rank, state);
    if (rank) {
        while (!status) status = gloo->send(state, 0, 1, data, 64, &message, why, sizeof(why));
        RANK_CHECK(rank, status == TERN_E_PEER && strstr(why, "sending to rank 0: ") == why);
        gloo->close(state, true);
        return board_set(arg, "told", "", 0, why, sizeof(why));
    }
    RANK_CHECK(rank, !gloo->recv(state, 1, 1, data, 64, &message, why, sizeof(why)));
    gloo->close(state, true);
    memset(data, 5, sizeof(data));
    RANK_CHECK(rank, !board_get(arg, "told", NULL, 0, &none, why, sizeof(why)));
    for (size_t i = 0; i < sizeof(data); i++) RANK_CHECK(rank, data[i] == 5);
    return 0;
}

static void given_up(void **state)
{
    (void)state;
    assert_ranks_ok(run(2, given_up_body));
}

/* ---- peers that fail ---- */

/* Rank 1 dies in the middle of a send to rank 0, after some bytes have arrived. */
static int death_body(int rank, const tern__bootstrap *boot, void *arg)
{
    enum { BYTES = 256 << 20 };
    unsigned char *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *state = open_gloo(arg, rank, boot->world);
    tern_transport_message message;
    RANK_CHECK(rank, state);
    if (rank == 1) {
        memset(data, 1, BYTES);
        RANK_CHECK(rank, !gloo->send(state, 0, 1, data, BYTES, &message, why, sizeof(why)));
        for (;;) gloo->test(state, &message, why, sizeof(why));
    }
    if (rank == 0) {
        RANK_CHECK(rank, !gloo->recv(state, 1, 1, data, BYTES, &message, why, sizeof(why)));
        while (!__atomic_load_n(data, __ATOMIC_RELAXED))
            RANK_CHECK(rank, gloo->test(state, &message, why, sizeof(why)) == TERN_PENDING);
        RANK_CHECK(rank, !board_set(arg, "begun", "", 0, why, sizeof(why)));
        RANK_CHECK(rank, finish(state, &message) == TERN_E_PEER && !data[BYTES - 1]);
    }
    if (rank == 2) RANK_CHECK(rank, recv_one(state, 1, data, 1) == TERN_E_PEER);
    RANK_CHECK(rank, strstr(why, "receiving from rank 1: ") == why && !strstr(why, ".cc"));
    RANK_CHECK(rank, !board_set(arg, "told", "", 0, why, sizeof(why)));
    /* Messages of the other ranks continue. */
    int other = 2 - rank;
    RANK_CHECK(rank, (rank ? recv_one(state, other, data, 9) : send_one(state, other, data, 9)) == TERN_OK);
    gloo->close(state, true);
    return 0;
}

static void a_rank_dies(void **state)
{
    (void)state;
    board *b = board_new();
    ranks r = ranks_start(3, death_body, b);
    size_t none = 0;
    assert_int_equal(board_get(b, "begun", NULL, 0, &none, why, sizeof(why)), TERN_OK);
    kill(r.pids[1], SIGKILL);
    ranks_wait(&r);
    assert_int_equal(r.status[1], 128 + SIGKILL);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[2], 0);
    board_free(b);
}

/* ---- opening ---- */

typedef int (*get_fn)(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                      size_t size);

/* Whether the key is one of the first try between ranks 0 and 1. */
static bool is_first(const char *key)
{
    return strlen(key) == strlen("gloo/0/1");
}

/* Opens with another function for the store's `get`, and returns the status. */
static int open_with(board *b, int rank, int world, get_fn get)
{
    tern_transport_place place = board_place(b, rank, world);
    int status = TERN_OK;
    place.get = get;
    place.timeout_s = rank ? 9 : 0.3;
    void *state = gloo->open(&place, &status, why, sizeof(why));
    if (state) gloo->close(state, true);
    return status;
}

/* Waits for a key of the first try, and not for long for another one. */
static int get_first(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                     size_t size)
{
    int status = TERN_E_TIMEOUT;
    while (status == TERN_E_TIMEOUT) {
        status = board_get(store, key, value, cap, bytes, text, size);
        if (!is_first(key)) break;
    }
    return status;
}

static int get_other_token(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                           size_t size)
{
    int status = get_first(store, key, value, cap, bytes, text, size);
    if (!status) ((unsigned char *)value)[*bytes - 1] ^= 1;
    return status;
}

static int get_nothing(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                       size_t size)
{
    (void)store;
    (void)value;
    (void)cap;
    (void)bytes;
    snprintf(text, size, "no %s here", key);
    return TERN_E_TIMEOUT;
}

/* Returns after rank 0 has given up. */
static int get_late(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                    size_t size)
{
    size_t none = 0;
    while (board_get(store, "given up", NULL, 0, &none, text, size) == TERN_E_TIMEOUT) continue;
    return board_get(store, key, value, cap, bytes, text, size);
}

static int stranger_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int status = open_with(arg, rank, boot->world, rank ? get_first : get_other_token);
    RANK_CHECK(rank, rank || status == TERN_E_TIMEOUT);
    RANK_CHECK(rank, rank || !strcmp(why, "a stranger has connected in the place of rank 1"));
    return 0;
}

/* The internet address at the beginning of what a rank publishes. */
static struct sockaddr_in address_in(const unsigned char *info)
{
    struct sockaddr_in at;
    memcpy(&at, info + sizeof(uint32_t), sizeof(at));
    return at;
}

static bool one_port; /* of all pairs of a rank; see find_ports */

static int opening_body(int rank, const tern__bootstrap *boot, void *arg)
{
    void *state = open_gloo(arg, rank, boot->world);
    RANK_CHECK(rank, state);
    gloo->close(state, false);
    return 0;
}

/* Debian 12's gloo has a port for each pair, which it closes after the first connection. Debian 13's has one
 * for all of them, where it listens on, and so waits for the peer whoever else connects. */
static void find_ports(void)
{
    board *b = board_new();
    assert_ranks_ok(ranks_run(3, opening_body, b));
    const board_note *first = board_find(b, "gloo/0/1"), *second = board_find(b, "gloo/0/2");
    assert_true(first && second);
    one_port = address_in(first->value).sin_port == address_in(second->value).sin_port;
    board_free(b);
}

/* Connects as a port scanner does, until the rank has let in the first connection and listens no more, or
 * once where it listens on. A `silent` one then stays, and another closes and waits until the rank has closed
 * its end. */
static void scan(struct sockaddr_in at, bool silent)
{
    char none;
    int first = socket(AF_INET, SOCK_STREAM, 0), next = first;
    while (!connect(next, (struct sockaddr *)&at, sizeof(at)) && !one_port) {
        if (next != first) close(next);
        next = socket(AF_INET, SOCK_STREAM, 0);
    }
    if (next != first) close(next);
    if (silent) return;
    shutdown(first, SHUT_WR);
    while (recv(first, &none, 1, 0) > 0) continue;
    close(first);
}

enum { SCANS_PEER, SCANS_OWN, SCANS_PEER_SILENTLY };

static int scans;  /* the port that is scanned */
static bool calls; /* this rank connects, and its peer listens */

/* Something else connects at the peer's port, or at this rank's own. gloo lets the rank with the higher port
 * connect, comparing ports in network byte order. */
static int get_behind_a_stranger(void *store, const char *key, void *value, size_t cap, size_t *bytes,
                                 char *text, size_t size)
{
    unsigned char own[512];
    size_t own_bytes;
    const char *own_key = strcmp(key, "gloo/0/1") ? "gloo/0/1" : "gloo/1/0";
    int status = board_get(store, key, value, cap, bytes, text, size);
    if (status || !is_first(key)) return status;
    status = board_get(store, own_key, own, sizeof(own), &own_bytes, text, size);
    if (status) return status;
    struct sockaddr_in at = address_in(value), mine = address_in(own);
    calls = at.sin_port < mine.sin_port;
    if (calls) scan(scans == SCANS_OWN ? mine : at, scans == SCANS_PEER_SILENTLY);
    return TERN_OK;
}

/* Opens with another function for the store's `get`, and sends a byte. */
static int byte_with(board *b, int rank, int world, get_fn get)
{
    unsigned char byte = (unsigned char)(rank ? 0 : 7);
    tern_transport_place place = board_place(b, rank, world);
    int status = TERN_OK;
    place.get = get;
    void *state = gloo->open(&place, &status, why, sizeof(why));
    if (!state) fprintf(stderr, "rank %d: %s\n", rank, why);
    RANK_CHECK(rank, state);
    RANK_CHECK(rank, (rank ? recv_one(state, 0, &byte, 1) : send_one(state, 1, &byte, 1)) == TERN_OK);
    RANK_CHECK(rank, byte == 7);
    gloo->close(state, false);
    return 0;
}

static int scanned_body(int rank, const tern__bootstrap *boot, void *arg)
{
    return byte_with(arg, rank, boot->world, get_behind_a_stranger);
}

static void a_stranger_that_goes_costs_another_try(void **state)
{
    (void)state;
    find_ports();
    scans = SCANS_PEER;
    assert_ranks_ok(run(2, scanned_body));
    scans = SCANS_OWN;
    assert_ranks_ok(run_within(3, 2, scanned_body));
}

static int silence_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int status = open_with(arg, rank, boot->world, get_behind_a_stranger);
    char text[64];
    snprintf(text, sizeof(text), "something else has called at rank %d's port", 1 - rank);
    RANK_CHECK(rank, (status == TERN_OK) == one_port);
    if (!status || !calls) return 0;
    RANK_CHECK(rank, status == TERN_E_PEER || status == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(why, "Connection refused") && strstr(why, text));
    return 0;
}

static void a_stranger_that_stays_is_suspected(void **state)
{
    (void)state;
    find_ports();
    scans = SCANS_PEER_SILENTLY;
    assert_ranks_ok(run_within(1, 2, silence_body));
}

/* Rank 1 has published its address, and then neither connects nor answers. */
static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    int64_t start = tern__now_ns();
    int status = open_with(arg, rank, boot->world, rank ? get_late : get_first);
    double took = (double)(tern__now_ns() - start) * 1e-9;
    if (rank) return status != TERN_E_TIMEOUT;
    RANK_CHECK(rank, status == TERN_E_TIMEOUT && strstr(why, "rank 1") && took >= 0.29);
    return board_set(arg, "given up", "", 0, why, sizeof(why));
}

/* Rank 1 has published its address, and connects when more than a third of the time is over. */
static int get_in_time(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *text,
                       size_t size)
{
    if (is_first(key)) usleep(800000);
    return board_get(store, key, value, cap, bytes, text, size);
}

static int in_time_body(int rank, const tern__bootstrap *boot, void *arg)
{
    return byte_with(arg, rank, boot->world, rank ? get_in_time : board_get);
}

static void strangers_and_latecomers(void **state)
{
    (void)state;
    assert_ranks_ok(run_within(0.3, 2, stranger_body));
    for (int times = 0; times < 4; times++) assert_ranks_ok(run_within(0.3, 2, late_body));
    for (int times = 0; times < 4; times++)
        assert_ranks_ok(run_within(2, 2, in_time_body)); /* either may listen */
}

static void a_store_that_fails(void **state)
{
    (void)state;
    board *b = board_new();
    assert_int_equal(open_with(b, 0, 2, get_nothing), TERN_E_TIMEOUT);
    assert_string_equal(why, "no gloo/1/0 here");
    char noise[300] = "";
    assert_int_equal(board_set(b, "gloo/1/0", noise, sizeof(noise), why, sizeof(why)), TERN_OK);
    assert_int_equal(open_with(b, 0, 2, board_get), TERN_E_FORMAT);
    assert_string_equal(why, "what is under gloo/1/0 in the store is no address of gloo's");
    b->count = 256;
    assert_int_equal(open_with(b, 0, 2, board_get), TERN_E_MEMORY);
    assert_string_equal(why, "the board has no room for gloo/0/1");
    board_free(b);
}

static void interfaces(void **state)
{
    (void)state;
    board *b = board_new();
    setenv("GLOO_SOCKET_IFNAME", "no_such,lo", 1);
    assert_int_equal(open_with(b, 0, 1, board_get), TERN_E_IO);
    assert_non_null(strstr(why, "opening gloo: "));
    assert_non_null(strstr(why, "no_such"));
    setenv("GLOO_SOCKET_IFNAME", "lo,no_such", 1);
    assert_int_equal(open_with(b, 0, 1, board_get), TERN_OK);
    assert_ranks_ok(run(2, last_body));
    unsetenv("GLOO_SOCKET_IFNAME");
    board_free(b);
}

static void version(void **state)
{
    (void)state;
    char text[64];
    gloo->version(text, sizeof(text));
    assert_int_equal(strncmp(text, "gloo 0.", 7), 0);
    assert_string_equal(gloo->name, "gloo");
    assert_int_equal(gloo->abi, TERN_TRANSPORT_ABI);
    assert_int_equal(gloo->size, sizeof(tern_transport));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm),
        cmocka_unit_test(the_last_message_arrives),
        cmocka_unit_test(a_peer_that_has_left),
        cmocka_unit_test(other_sizes_do_not_meet),
        cmocka_unit_test(given_up),
        cmocka_unit_test(a_rank_dies),
        cmocka_unit_test(strangers_and_latecomers),
        cmocka_unit_test(a_stranger_that_goes_costs_another_try),
        cmocka_unit_test(a_stranger_that_stays_is_suspected),
        cmocka_unit_test(a_store_that_fails),
        cmocka_unit_test(interfaces),
        cmocka_unit_test(version),
    };
#ifdef __SANITIZE_THREAD__
    return skip_program("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (!has_part("gloo")) return skip_program("this build has no gloo");
    gloo = board_plugin("tern_gloo.so");
    if (!gloo) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
