/* demo.h - how the demos start: as ranks of a launcher (tern run, torchrun, srun, mpirun), or alone, when
 * they spawn their ranks themselves. */
#ifndef TERN_EXAMPLES_DEMO_H
#define TERN_EXAMPLES_DEMO_H

#include <stdio.h>
#include <stdlib.h>

#include <tern.h>

/* `demo` as the rank that this process is, or else in as many new processes as the first argument says (2
 * without one). The exit code. */
static inline int run_demo(int (*demo)(int rank, void *arg), int argc, char **argv)
{
    tern_error err = {0};
    int ranks = argc > 1 ? atoi(argv[1]) : 2, rank = tern_launched_rank();
    if (rank >= 0) return demo(rank, NULL);
    tern_spawn(demo, ranks, NULL, NULL, &err);
    return tern_error_print(&err);
}

#endif
