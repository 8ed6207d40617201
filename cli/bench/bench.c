/* bench.c - `tern bench`: finds the bench and runs it. With any launcher, every rank runs it and rank 0
 * prints. */
#include "bench/bench.h"

static const tern__cli_command benches[] = {
    {"collectives", "all of the following collectives, by size", tern__bench_collective,
     &tern__collective_page, NULL},
    {"all_reduce", "sum over all ranks, to all", tern__bench_collective, &tern__collective_page, NULL},
    {"reduce", "sum over all ranks, to rank 0", tern__bench_collective, &tern__collective_page, NULL},
    {"broadcast", "rank 0's buffer, to all", tern__bench_collective, &tern__collective_page, NULL},
    {"all_gather", "one part from each rank, to all", tern__bench_collective, &tern__collective_page, NULL},
    {"reduce_scatter", "sum over all ranks, one part to each", tern__bench_collective, &tern__collective_page,
     NULL},
    {"gather", "one part from each rank, to rank 0", tern__bench_collective, &tern__collective_page, NULL},
    {"scatter", "rank 0's buffer, one part to each", tern__bench_collective, &tern__collective_page, NULL},
    {"all_to_all", "one part from each rank to each", tern__bench_collective, &tern__collective_page, NULL},
    {"barrier", "all ranks wait for each other", tern__bench_collective, &tern__barrier_page, NULL},
    {"sendrecv", "a message from rank 0 to rank 1", tern__bench_collective, &tern__collective_page, NULL},
    {"step", "a training step of an MLP or a convolutional network", tern__bench_step, &tern__step_page,
     NULL},
    {"store", "set and get on a TCP store, from one client and from many", tern__bench_store,
     &tern__store_page, NULL},
    {0},
};

const tern__cli_menu tern__bench_menu = {
    "tern bench",
    "bench",
    "tern bench BENCH [OPTIONS] ...",
    "Run `tern bench BENCH --help` for its options. For several ranks: tern run -n 2 tern bench ...",
    benches,
    15};

int tern__cli_bench(int argc, char **argv)
{
    int code = tern__cli_dispatch(&tern__bench_menu, argc, argv);
    return code ? code : tern__cli_flush("tern bench"); /* a full disk must not pass for a result */
}
