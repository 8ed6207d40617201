/* bench.c - `tern bench`: every rank of any launcher runs it; rank 0 prints. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    const char *name, *help;
    tern__cli_fn *run;
} bench;

static const bench benches[] = {
    {"all_reduce", "a sum over all ranks, by size", tern__bench_all_reduce},
    {"board", "what the calls of a board cost a training loop", tern__bench_board},
    {"optimizer", "the updates of SGD and Adam beside a copy", tern__bench_optimizer},
    {"step", "a training step of an MLP or a ResNet-18", tern__bench_step},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tern__bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static void print_usage(FILE *out)
{
    fprintf(out, "usage: tern bench BENCH [OPTIONS] ...\n\nbenches:\n");
    for (size_t i = 0; i < TERN__COUNT(benches); i++)
        fprintf(out, "  %-12s %s\n", benches[i].name, benches[i].help);
    fprintf(out, "\n`tern bench BENCH --help` says more. Several ranks: tern run -n 2 tern bench ...\n");
}

int tern__cli_bench(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
        print_usage(stdout);
        return TERN__EXIT_OK;
    }
    for (size_t i = 0; i < TERN__COUNT(benches); i++)
        if (!strcmp(name, benches[i].name)) return benches[i].run(argc - 1, argv + 1);
    fprintf(stderr, *name ? "tern bench: expected a bench, got \"%s\"\n" : "tern bench: expected a bench\n",
            name);
    print_usage(stderr);
    return TERN__EXIT_USAGE;
}
