/* meet.c - a rank of whatever started it: meets the others, adds up all ranks' numbers and says so.
 *
 *     meet [INIT_METHOD [RANK WORLD]]
 *
 * prints "rank 1 of 2 (1 here): 3", the sum of 1 and 2, or the error, and exits with 1 then. */
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
    tern_group_close(world);
    return tern_error_print(&err);
}
