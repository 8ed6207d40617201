/* parts.h - the benches of `bench_parts`, one file each. They share the command's tables of options and the
 * clocks and medians of `tern bench`. A bench gets its own name as argv[0] and returns the exit code. */
#ifndef TERN_BENCH_PARTS_H
#define TERN_BENCH_PARTS_H

#include "bench/bench.h"

tern__cli_fn bench_board, bench_conv, bench_generate, bench_matmul, bench_optimizer;
extern const tern__cli_page board_page, conv_page, generate_page, matmul_page, optimizer_page;

#endif
