/* main.c - `bench_parts`: measures parts of the library, for those who change them. It is built with the
 * tests and not installed. With any launcher, every rank runs the bench and rank 0 prints. */
#include "parts.h"

static const tern__cli_command benches[] = {
    {"board", "the cost of a board's calls in a training loop", bench_board, &board_page, NULL},
    {"conv", "speed and accuracy of each convolution algorithm", bench_conv, &conv_page, NULL},
    {"generate", "a token of generation compared with reading the weights", bench_generate, &generate_page,
     NULL},
    {"matmul", "f32 matrix products of nets compared with the core's multiply-adds", bench_matmul,
     &matmul_page, NULL},
    {"optimizer", "SGD and Adam updates compared with a copy", bench_optimizer, &optimizer_page, NULL},
    {0},
};

static const tern__cli_menu menu = {"bench_parts",
                                    "bench",
                                    "bench_parts BENCH [OPTIONS] ...",
                                    "Run `bench_parts BENCH --help` for its options.",
                                    benches,
                                    9};

int main(int argc, char **argv)
{
    int code = tern__cli_dispatch(&menu, argc, argv);
    return code ? code : tern__cli_flush("bench_parts"); /* a full disk must not pass for a result */
}
