/* bench.c - `tern bench`: every rank of any launcher runs it; rank 0 prints. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    const char *name, *help;
    tern__cli_fn *run;
} bench;

static const bench benches[] = {
    {"board", "what the calls of a board cost a training loop", tern__bench_board},
    {"collectives", "all of them, by size; or one:", tern__bench_collective},
    {"all_reduce", "a sum over all ranks, to all", tern__bench_collective},
    {"reduce", "a sum over all ranks, to rank 0", tern__bench_collective},
    {"broadcast", "what rank 0 has, to all", tern__bench_collective},
    {"all_gather", "a part of each rank, to all", tern__bench_collective},
    {"reduce_scatter", "a sum over all ranks, a part to each", tern__bench_collective},
    {"gather", "a part of each rank, to rank 0", tern__bench_collective},
    {"scatter", "what rank 0 has, a part to each", tern__bench_collective},
    {"all_to_all", "a part of each rank for each", tern__bench_collective},
    {"barrier", "all ranks meet", tern__bench_collective},
    {"sendrecv", "a message from rank 0 to rank 1", tern__bench_collective},
    {"conv", "convolutions by each algorithm: how fast, how exact", tern__bench_conv},
    {"optimizer", "the updates of SGD and Adam beside a copy", tern__bench_optimizer},
    {"step", "a training step of an MLP or a convolutional net", tern__bench_step},
    {"store", "keys of a TCP store, set and got, of one client and of many", tern__bench_store},
};

static void print_usage(FILE *out)
{
    fprintf(out, "usage: tern bench BENCH [OPTIONS] ...\n\nbenches:\n");
    for (size_t i = 0; i < TERN__COUNT(benches); i++)
        fprintf(out, "  %-15s %s\n", benches[i].name, benches[i].help);
    fprintf(out, "\n`tern bench BENCH --help` says more. Several ranks: tern run -n 2 tern bench ...\n");
}

int tern__cli_bench(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_usage(stdout);
        return tern__cli_flush("tern bench");
    }
    for (size_t i = 0; i < TERN__COUNT(benches); i++)
        if (!strcmp(name, benches[i].name)) return benches[i].run(argc - 1, argv + 1);
    fprintf(stderr, *name ? "tern bench: expected a bench, got \"%s\"\n" : "tern bench: expected a bench\n",
            name);
    print_usage(stderr);
    return TERN__EXIT_USAGE;
}
