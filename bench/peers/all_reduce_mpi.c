/* all_reduce_mpi.c - the all_reduce of `tern bench all_reduce` with MPI_Allreduce in place.
 *
 *     mpicc -O2 -o all_reduce_mpi bench/peers/all_reduce_mpi.c && mpirun -n 2 ./all_reduce_mpi 4 1048576
 *
 * The arguments are sizes in bytes per rank. Prints one JSON object per size, with the keys of the command's
 * --json.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SMALL_BYTES = 64 << 10, SMALL_CALLS = 200, WARM_UP = 3, SAMPLES_MIN = 5, SAMPLES_MAX = 101 };
#define BUDGET_NS 1e9 /* per size */

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns the time from the first rank's start to the last rank's end. */
static double span_ns(float *data, int count, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    long long span[2] = {-now_ns()};
    for (int i = 0; i < calls; i++)
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    span[1] = now_ns();
    MPI_Allreduce(MPI_IN_PLACE, span, 2, MPI_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
    return (double)(span[0] + span[1]);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ns(float *data, int count, int calls)
{
    double trial = 0, sample[SAMPLES_MAX];
    for (int i = 0; i < WARM_UP; i++) trial = span_ns(data, count, calls);
    double fit = BUDGET_NS / trial;
    int samples = fit > SAMPLES_MAX ? SAMPLES_MAX : fit < SAMPLES_MIN ? SAMPLES_MIN : (int)fit;
    for (int i = 0; i < samples; i++) sample[i] = span_ns(data, count, calls);
    qsort(sample, (size_t)samples, sizeof(*sample), by_value);
    return (sample[(samples - 1) / 2] + sample[samples / 2]) / 2 / calls;
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        int bytes = atoi(argv[i]);
        float *data = calloc((size_t)bytes / sizeof(*data), sizeof(*data));
        if (!data) MPI_Abort(MPI_COMM_WORLD, 1);
        double ns = median_ns(data, bytes / (int)sizeof(*data), bytes < SMALL_BYTES ? SMALL_CALLS : 1);
        if (rank == 0)
            printf("{\"op\": \"all_reduce\", \"backend\": \"mpi\", \"memory\": \"plain\", \"ranks\": %d, "
                   "\"bytes\": %d, \"median_us\": %.4f}\n",
                   ranks, bytes, ns * 1e-3);
        free(data);
    }
    return MPI_Finalize();
}
