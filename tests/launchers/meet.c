/* meet.c - a rank that any launcher can start. It meets the other ranks and sums their numbers, counted
 * from 1.
 *
 *     meet [INIT_METHOD [RANK WORLD]]
 *
 * It prints "rank 1 of 2 (1 here): 3", where 3 is the sum of 1 and 2. On an error it prints the error and
 * exits with 1. The rank that the variable LEAVER names then exits with 0 and leaves its group open, while
 * the others wait for it. FAILER="1 close 100" has rank 1 fail instead: it closes or aborts its group (close,
 * abort), or does nothing (exit), and exits with 7 after 100 ms, or it dies at once (crash, kill). With
 * STAYS_OPEN the others then exit with 0 and leave their groups open. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tern.h>

static void fail_own(tern_group *world, const char *failer)
{
    int rank;
    long ms;
    char way[16];
    if (sscanf(failer, "%d %15s %ld", &rank, way, &ms) != 3 || rank != tern_group_rank(world)) return;
    fprintf(stderr, "rank %d fails by itself\n", rank);
    if (!strcmp(way, "crash")) abort();
    if (!strcmp(way, "kill")) raise(SIGKILL);
    if (!strcmp(way, "abort")) tern_group_abort(world, TERN_E_IO, "no such file");
    if (!strcmp(way, "close")) tern_group_close(world);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
    exit(7);
}

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
    const char *leaver = getenv("LEAVER"), *failer = getenv("FAILER");
    if (leaver && atoi(leaver) == tern_group_rank(world)) exit(0);
    if (failer) fail_own(world, failer);
    if (leaver || failer) tern_barrier(world, &err);
    if (getenv("STAYS_OPEN")) exit(0);
    tern_group_close(world);
    return tern_error_print(&err);
}
