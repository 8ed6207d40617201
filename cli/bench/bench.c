/* bench.c - `tern bench`: finds the bench and runs it. With any launcher, every rank runs it and rank 0
 * prints. */
#include "bench/bench.h"

static const tern__cli_command benches[] = {
    {"board", "the cost of a board's calls in a training loop", tern__bench_board},
    {"collectives", "all of the following collectives, by size", tern__bench_collective},
    {"all_reduce", "sum over all ranks, to all", tern__bench_collective},
    {"reduce", "sum over all ranks, to rank 0", tern__bench_collective},
    {"broadcast", "rank 0's buffer, to all", tern__bench_collective},
    {"all_gather", "one part from each rank, to all", tern__bench_collective},
    {"reduce_scatter", "sum over all ranks, one part to each", tern__bench_collective},
    {"gather", "one part from each rank, to rank 0", tern__bench_collective},
    {"scatter", "rank 0's buffer, one part to each", tern__bench_collective},
    {"all_to_all", "one part from each rank to each", tern__bench_collective},
    {"barrier", "all ranks wait for each other", tern__bench_collective},
    {"sendrecv", "a message from rank 0 to rank 1", tern__bench_collective},
    {"conv", "speed and accuracy of each convolution algorithm", tern__bench_conv},
    {"optimizer", "SGD and Adam updates compared with a copy", tern__bench_optimizer},
    {"step", "a training step of an MLP or a convolutional network", tern__bench_step},
    {"store", "set and get on a TCP store, from one client and from many", tern__bench_store},
    {0},
};

static const char head[] = "usage: tern bench BENCH [OPTIONS] ...\n\nbenches:\n";
static const char tail[] =
    "\nRun `tern bench BENCH --help` for its options. For several ranks: tern run -n 2 tern bench ...\n";

int tern__cli_bench(int argc, char **argv)
{
    const tern__cli_menu menu = {"tern bench", "bench", head, tail, benches, 15};
    int code = tern__cli_dispatch(&menu, argc, argv);
    return code ? code : tern__cli_flush("tern bench"); /* a full disk must not pass for a result */
}
