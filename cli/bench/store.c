/* store.c - `tern bench store`: how many keys per second a client of a TCP store can set and get, alone and
 * with many others at the same time. A client is a thread with its own connection; a pair is a set and a get
 * of the same key, whose value is checked. */
#include "bench/bench.h"

#include <tern.h>

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLIENTS_MAX = 1024, ROUNDS_MAX = 1000 };

typedef struct settings {
    long clients, pairs, rounds, port;
    const char *host;
    bool json;
} settings;

typedef struct client {
    tern_store *store;
    pthread_barrier_t *start;
    pthread_t thread;
    long pairs;
    double pairs_per_s;
    tern_error err;
} client;

/* Pairs per second over the clients of a round. */
typedef struct rates {
    double slowest, median, fastest;
} rates;

static settings chosen = {.clients = 64, .pairs = 2000, .rounds = 5, .host = "127.0.0.1"};

static const tern__cli_option options[] = {
    {"clients", .value = "C", .help = "clients at the same time (default 64)", .number = &chosen.clients,
     .most = CLIENTS_MAX},
    {"pairs", .value = "N", .help = "set-and-get pairs per client and round (default 2000)",
     .number = &chosen.pairs, .most = 100000000},
    {"rounds", .value = "K", .help = "rounds (default 5)", .number = &chosen.rounds, .most = ROUNDS_MAX},
    {"host", .value = "HOST", .help = "the host of a running store (default 127.0.0.1)",
     .text = &chosen.host},
    {"port", .value = "P",
     .help = "the port of a running store, such as PyTorch's; by default a store is started",
     .number = &chosen.port, .most = 65535},
    {"json", .help = "print a JSON object a line instead of text", .on = &chosen.json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__store_page = {
    NULL,
    "Sets and gets keys of a TCP store on this machine, or of a running one. Prints the set-and-get pairs "
    "per second and client, for one client and for C clients at the same time: the median of K rounds, and "
    "the slowest and fastest client of the median round.\n",
    options,
};

/* ---- measuring ---- */

static void set_and_get(client *c, int number)
{
    char key[32], value[32];
    size_t bytes;
    snprintf(key, sizeof(key), "%p/%d", (void *)c, number % 64);
    int length = snprintf(value, sizeof(value), "value %d", number);
    tern_store_set(c->store, key, value, (size_t)length, &c->err);
    const char *got = tern_store_get(c->store, key, &bytes, &c->err);
    if (got && strcmp(got, value))
        tern__error_set(&c->err, "tern bench store", TERN_E_MISMATCH, "set \"%s\", got \"%s\"", value, got);
}

static void *client_main(void *arg)
{
    client *c = arg;
    pthread_barrier_wait(c->start);
    int64_t began = tern__now_ns();
    for (int i = 0; i < c->pairs && !c->err.code; i++) set_and_get(c, i);
    c->pairs_per_s = (double)c->pairs * 1e9 / (double)(tern__now_ns() - began);
    return NULL;
}

static void run_at_once(client *clients, long count, long pairs, tern_error *err)
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)count);
    for (long i = 0; i < count; i++) {
        clients[i].start = &start;
        clients[i].pairs = pairs;
        if (pthread_create(&clients[i].thread, NULL, client_main, &clients[i])) abort();
    }
    for (long i = 0; i < count; i++) {
        pthread_join(clients[i].thread, NULL);
        if (clients[i].err.code && !err->code) *err = clients[i].err;
    }
    pthread_barrier_destroy(&start);
}

static rates rates_of(const client *clients, long count)
{
    double all[CLIENTS_MAX];
    for (long i = 0; i < count; i++) all[i] = clients[i].pairs_per_s;
    double median = tern__bench_median(all, (size_t)count); /* sorts them */
    return (rates){all[0], median, all[count - 1]};
}

static int by_median(const void *a, const void *b)
{
    double x = ((const rates *)a)->median, y = ((const rates *)b)->median;
    return (x > y) - (x < y);
}

/* Returns the round with the median of the rounds' medians. The first round is a warm-up. */
static rates measure_rounds(client *clients, long count, const settings *set, tern_error *err)
{
    rates rounds[ROUNDS_MAX + 1];
    for (long round = 0; round <= set->rounds && !err->code; round++) {
        run_at_once(clients, count, set->pairs, err);
        rounds[round] = rates_of(clients, count);
    }
    qsort(rounds + 1, (size_t)set->rounds, sizeof(*rounds), by_median);
    return rounds[1 + set->rounds / 2];
}

/* ---- printing ---- */

static void store_print_row(const settings *set, long count, rates r)
{
    if (!set->json) {
        printf("%8ld %12.0f %12.0f %12.0f %8.2f\n", count, r.slowest, r.median, r.fastest,
               r.median / r.slowest);
        return;
    }
    cJSON *line = cJSON_CreateObject();
    cJSON_AddNumberToObject(line, "clients", (double)count);
    cJSON_AddNumberToObject(line, "slowest_pairs_per_s", r.slowest);
    cJSON_AddNumberToObject(line, "median_pairs_per_s", r.median);
    cJSON_AddNumberToObject(line, "fastest_pairs_per_s", r.fastest);
    tern__bench_print(line);
}

static void print_title(const settings *set)
{
    if (!set->json)
        printf("%8s %12s %12s %12s %8s   pairs/s per client\n", "clients", "slowest", "median", "fastest",
               "spread");
}

/* ---- running ---- */

/* Opens a client of the given store; without --port it also starts a server. */
static tern_store *open_first(const settings *set, tern_error *err)
{
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.is_server = !set->port;
    opts.timeout_s = 30;
    return tern_store_tcp_open(set->host, (int)set->port, &opts, err);
}

static void run_clients(const settings *set, tern_error *err)
{
    client *clients = tern__alloc((size_t)set->clients * sizeof(*clients), "tern bench store", err);
    tern_store *first = open_first(set, err);
    for (long i = 0; i < set->clients && !err->code; i++) clients[i].store = tern_store_clone(first, err);
    if (!err->code) print_title(set);
    for (long count = 1; !err->code; count = set->clients) {
        rates r = measure_rounds(clients, count, set, err);
        if (!err->code) store_print_row(set, count, r);
        if (count == set->clients) break;
    }
    for (long i = 0; clients && i < set->clients; i++) tern_store_close(clients[i].store);
    tern_store_close(first);
    tern__free(clients);
}

int tern__bench_store(int argc, char **argv)
{
    int status = tern__flags_read_all(&tern__store_page, "tern bench store", argc, argv);
    if (status) return status < 0 ? tern__cli_flush(argv[0]) : status;
    tern_error err = {0};
    run_clients(&chosen, &err);
    tern_error_print(&err);
    return err.code ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
