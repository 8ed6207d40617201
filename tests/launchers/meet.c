/* meet.c - a rank that any launcher can start. It meets the other ranks and sums their numbers, counted
 * from 1.
 *
 *     meet [INIT_METHOD [RANK WORLD]]
 *
 * It prints "rank 1 of 2 (1 here): 3", where 3 is the sum of 1 and 2. On an error it prints the error and
 * exits with 1. The rank that the variable LEAVER names then exits with 0 and leaves its group open, while
 * the others wait for it. */
#include <stdio.h>
#include <stdlib.h>

#include <tern.h>

int main(int argc, char **argv)
{
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.connect_timeout_s = 20;
    if (argc > 1) opts.init_method = argv[1];
    if (argc > 3) {
        opts.rank = atoi(argv[2]);
        opts.world = atoi(argv[3]);
    }
    tern_group *world = tern_group_open(&opts, &err);
    int64_t sum = tern_group_rank(world) + 1;
    tern_all_reduce(world, &sum, 1, TERN_I64, TERN_SUM, &err);
    if (!err.code)
        printf("rank %d of %d (%d here): %d\n", tern_group_rank(world), tern_group_size(world),
               tern_group_local_rank(world), (int)sum);
    const char *leaver = getenv("LEAVER");
    if (leaver && atoi(leaver) == tern_group_rank(world)) exit(0);
    if (leaver) tern_barrier(world, &err);
    tern_group_close(world);
    return tern_error_print(&err);
}
