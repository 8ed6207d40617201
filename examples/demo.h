/* demo.h - starts a demo as a rank of a launcher (tern run, torchrun, srun, mpirun), or spawns the ranks if
 * there is no launcher. */
#ifndef TERN_EXAMPLES_DEMO_H
#define TERN_EXAMPLES_DEMO_H

#include <stdio.h>
#include <stdlib.h>

#include <tern.h>

#include "usage.h"

/* Returns the number of ranks from the first argument, 2 without one; exits if the argument is wrong. */
static inline int demo_ranks(int argc, char **argv)
{
    if (argc < 2) return 2;
    char *end;
    long ranks = strtol(argv[1], &end, 10);
    if (end != argv[1] && !*end && ranks >= 1 && ranks <= 4096) return (int)ranks;
    fprintf(stderr, "%s: expected a number of ranks from 1 to 4096, got \"%s\"\n", argv[0], argv[1]);
    exit(2);
}

/* Runs `demo` as the rank that a launcher has made of this process, or else in as many new processes as the
 * first argument says (default 2). --help prints `about`. Returns the exit code. */
static inline int run_demo(int (*demo)(int rank, void *arg), int argc, char **argv, const char *about)
{
    tern_error err = {0};
    usage_read(argc, argv, "[ranks]", about);
    int rank = tern_launched_rank();
    if (rank >= 0) return demo(rank, NULL);
    tern_spawn(demo, demo_ranks(argc, argv), NULL, NULL, &err);
    return tern_error_print(&err);
}

#endif
