/* test_bootstrap_hosts.c - ranks on three hosts, which are network namespaces, meet over a shared file. */
#include "network.h"

#include "comm/store/store.h"

typedef struct scene {
    network net;
    int host_of[NETWORK_HOSTS]; /* each rank's host */
    const char *interface;      /* TERN_SOCKET_IFNAME, or NULL           */
    const char *address;        /* the address that rank 0 takes, or NULL */
    const char *error;          /* the error with which rank 0 fails, or NULL */
    char method[64];
} scene;

static scene play;

static int read_method(int rank, int world, tern__bootstrap *own, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.init_method = play.method;
    opts.rank = rank;
    opts.world = world;
    opts.connect_timeout_s = 20;
    return tern__bootstrap_read(own, &opts, err);
}

/* Each rank writes to rank 0's store that it has arrived. */
static int visit_store(int rank, const tern__bootstrap *own)
{
    tern_error err = {0};
    int64_t sum;
    const char *key = "all";
    tern_store *store = tern__store_open(own, 20, &err);
    RANK_CHECK_OK(rank, err);
    tern_store_add(store, "here", 1, &sum, &err);
    if (!err.code && sum == own->world) tern_store_set(store, key, "", 0, &err);
    tern_store_wait(store, &key, 1, 20, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) tern_store_wait(store, (const char *const[]){"left"}, 1, 20, &err);
    if (rank != 0) tern_store_add(store, "gone", 1, &sum, &err);
    if (rank != 0 && sum == own->world - 1) tern_store_set(store, "left", "", 0, &err);
    RANK_CHECK_OK(rank, err);
    tern_store_close(store);
    return 0;
}

static int meet(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern__bootstrap own;
    RANK_CHECK(rank, network_enter(&play.net, play.host_of[rank]));
    if (play.interface) setenv("TERN_SOCKET_IFNAME", play.interface, 1);
    int status = read_method(rank, boot->world, &own, &err);
    if (play.error) {
        RANK_CHECK(rank, status == (rank ? TERN_E_PEER : TERN_E_ENV));
        RANK_CHECK(rank, strstr(err.text, play.error) && (rank != 0) == !strncmp(err.text, "rank 0: ", 8));
        return 0;
    }
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(own.addr, play.address) && own.port > 0);
    return visit_store(rank, &own);
}

static void run(int world)
{
    assert_true(world <= NETWORK_HOSTS);
    snprintf(play.method, sizeof(play.method), "file:///tmp/tern-hosts-%d", (int)getpid());
    assert_ranks_ok(ranks_run(world, meet, NULL));
    unlink(play.method + strlen("file://"));
}

static void rank_0_is_reached_from_every_host(void **state)
{
    (void)state;
    play = (scene){.net = play.net, .host_of = {2, 1, 0}, .address = "10.99.2.2"};
    run(3);
    play = (scene){.net = play.net, .host_of = {1, 2, 1}, .address = "10.99.1.2"};
    run(3);
}

static void the_interface_can_be_chosen(void **state)
{
    (void)state;
    play = (scene){.net = play.net, .host_of = {0, 1, 2}, .interface = "eth1", .address = "10.99.1.1"};
    run(2);
    play = (scene){.net = play.net, .host_of = {0, 2}, .interface = "eth2", .address = "10.99.2.1"};
    run(2);
}

/* The error arrives long before the timeout. */
static void what_rank_0_fails_with_is_passed_on(void **state)
{
    (void)state;
    int64_t start = tern__now_ns();
    play = (scene){.net = play.net,
                   .host_of = {0, 1, 2},
                   .interface = "none",
                   .error = "TERN_SOCKET_IFNAME=\"none\" is not an interface"};
    run(3);
    assert_in_range(tern__now_ns() - start, 0, RANKS_SOON_S * INT64_C(1000000000));
}

/* They meet on the loopback, which no other host can reach. */
static void ranks_of_one_host_stay_inside_of_it(void **state)
{
    (void)state;
    play = (scene){.net = play.net, .host_of = {1, 1, 1}, .address = "127.0.0.1"};
    run(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_0_is_reached_from_every_host),
        cmocka_unit_test(the_interface_can_be_chosen),
        cmocka_unit_test(what_rank_0_fails_with_is_passed_on),
        cmocka_unit_test(ranks_of_one_host_stay_inside_of_it),
    };
    const char *missing = network_open(&play.net);
    if (missing) return skip_program(missing);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
