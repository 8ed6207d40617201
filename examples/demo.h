/* demo.h - how the demos start: as ranks of a launcher (tern run, torchrun, srun, mpirun), or alone, when
 * they spawn their ranks themselves. */
#ifndef TERN_EXAMPLES_DEMO_H
#define TERN_EXAMPLES_DEMO_H

#include <stdio.h>
#include <stdlib.h>

#include <tern.h>

/* The first argument, or 2; ends the program if it is no number of ranks. */
static inline int demo_ranks(int argc, char **argv)
{
    if (argc < 2) return 2;
    char *end;
    long ranks = strtol(argv[1], &end, 10);
    if (end != argv[1] && !*end && ranks >= 1 && ranks <= 4096) return (int)ranks;
    fprintf(stderr, "%s: expected a number of ranks from 1 to 4096, got \"%s\"\n", argv[0], argv[1]);
    exit(2);
}

/* `demo` as the rank that this process is, or else in as many new processes as the first argument says (2
 * without one). The exit code. */
static inline int run_demo(int (*demo)(int rank, void *arg), int argc, char **argv)
{
    tern_error err = {0};
    int rank = tern_launched_rank();
    if (rank >= 0) return demo(rank, NULL);
    tern_spawn(demo, demo_ranks(argc, argv), NULL, NULL, &err);
    return tern_error_print(&err);
}

#endif
