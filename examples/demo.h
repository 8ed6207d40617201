/* demo.h - starts a demo as a rank of a launcher (tern run, torchrun, srun, mpirun), or spawns the ranks if
 * there is no launcher. */
#ifndef TERN_EXAMPLES_DEMO_H
#define TERN_EXAMPLES_DEMO_H

#include <tern.h>

#include "usage.h"

/* Runs `demo` as the rank that a launcher has made of this process, or else in as many new processes as the
 * first argument says (default 2). --help prints `about`. Returns the exit code. */
static inline int run_demo(int (*demo)(int rank, void *arg), int argc, char **argv, const char *about)
{
    tern_error err = {0};
    usage_read(argc, argv, "[ranks]", about);
    int rank = tern_launched_rank();
    if (rank >= 0) return demo(rank, NULL);
    tern_spawn(demo, usage_number(argc, argv, 1, "ranks", 4096, 2), NULL, NULL, &err);
    return tern_error_print(&err);
}

#endif
