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

static bool parse_size(const char *text, size_t step, size_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    if (*text < '0' || *text > '9') return false;
    unsigned long long number = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (end[unit != NULL] || !number || number > (UINT64_C(1) << 40) >> shift) return false;
    *bytes = (size_t)(number << shift);
    return *bytes % step == 0;
}

bool tern__bench_sizes(const char *who, char *text, size_t step, size_t *sizes, int most, int *count)
{
    *count = 0;
    for (char *one; (one = strsep(&text, ",")); ++*count) {
        if (*count == most) {
            fprintf(stderr, "%s: --sizes: at most %d\n", who, most);
            return false;
        }
        if (parse_size(one, step, &sizes[*count])) continue;
        fprintf(stderr, "%s: --sizes: expected bytes in steps of %zu, as in 4,64K,25M, got \"%s\"\n", who,
                step, one);
        return false;
    }
    return true;
}

bool tern__bench_number(const char *who, const char *option, const char *text, long most, long *value)
{
    char *end;
    *value = strtol(text, &end, 10);
    if (end != text && !*end && *value > 0 && *value <= most) return true;
    fprintf(stderr, "%s: %s: expected a number from 1 to %ld, got \"%s\"\n", who, option, most, text);
    return false;
}

bool tern__bench_word(const char *who, const char *option, const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(text, words[i])) return true;
    fprintf(stderr, "%s: %s: expected ", who, option);
    for (int i = 0; words[i]; i++) fprintf(stderr, "%s%s", i ? " or " : "", words[i]);
    fprintf(stderr, ", got \"%s\"\n", text);
    return false;
}

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
