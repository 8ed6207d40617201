/* split.c - a program that initialises MPI itself and makes groups from its communicators. Built with each
 * MPI and started by its mpirun with 5 ranks. Arguments: the test, and the thread level at which it
 * initialises MPI, or "never". Exits with 0 on all ranks if the test passes. */
#include <tern.h>

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static int rank, world;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition);                   \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

#define CHECK_OK(err)                                                                                        \
    do {                                                                                                     \
        if ((err).code) fprintf(stderr, "rank %d: %s: %s\n", rank, (err).func, (err).text);                  \
        CHECK(!(err).code);                                                                                  \
    } while (0)

static tern_group *open_on(MPI_Comm comm, tern_error *err)
{
    return tern_group_from_mpi((int)MPI_Comm_c2f(comm), NULL, err);
}

/* Checks the sum over the group of a value that differs between its ranks. */
static int check_sum(tern_group *group)
{
    tern_error err = {0};
    float x[1000], size = (float)tern_group_size(group);
    for (int i = 0; i < 1000; i++) x[i] = (float)(tern_group_rank(group) + 1 + i);
    tern_all_reduce(group, x, 1000, TERN_F32, TERN_SUM, &err);
    CHECK_OK(err);
    for (int i = 0; i < 1000; i++) CHECK(x[i] == size * (size + 1) / 2 + size * (float)i);
    return 0;
}

static int check_mpi(MPI_Comm comm)
{
    int x = 1, sum = 0, size;
    MPI_Comm_size(comm, &size);
    CHECK(!MPI_Allreduce(&x, &sum, 1, MPI_INT, MPI_SUM, comm) && sum == size);
    return 0;
}

/* Ranks 4, 2 and 0, in this order, form a group; 1 and 3 do something else. The group does not touch the
 * program's own messages on the communicator. */
static int in_part(MPI_Comm part)
{
    tern_error err = {0};
    int place, size, word = 0;
    MPI_Request request;
    MPI_Comm_rank(part, &place);
    MPI_Comm_size(part, &size);
    MPI_Irecv(&word, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, part, &request);
    tern_group *group = open_on(part, &err);
    CHECK_OK(err);
    CHECK(tern_group_rank(group) == place && tern_group_size(group) == size && size == 3);
    CHECK(place == (4 - rank) / 2 && tern_group_local_rank(group) == place);
    CHECK(!strcmp(tern_group_backend(group), "native") && !check_sum(group));
    MPI_Send(&rank, 1, MPI_INT, (place + 1) % size, 5, part);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(word == 4 - 2 * ((place + 2) % size));
    CHECK(!check_mpi(part) && !check_sum(group));
    tern_group_close(group);
    return check_mpi(part);
}

static int split(void)
{
    MPI_Comm part;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    CHECK(!(rank % 2 ? check_mpi(part) : in_part(part)));
    MPI_Comm_free(&part);
    return check_mpi(MPI_COMM_WORLD);
}

/* Two groups at the same time. Every other time all ranks open the larger one with tern_group_open, as a
 * program without MPI would. */
static int many(void)
{
    tern_error err = {0};
    MPI_Comm part;
    MPI_Comm_split(MPI_COMM_WORLD, rank > 1, 0, &part);
    for (int times = 0; times < 3; times++) {
        tern_group *all = times % 2 ? tern_group_open(NULL, &err) : open_on(MPI_COMM_WORLD, &err);
        tern_group *some = open_on(part, &err);
        CHECK_OK(err);
        CHECK(tern_group_rank(all) == rank && tern_group_size(some) == (rank > 1 ? world - 2 : 2));
        CHECK(!check_sum(some) && !check_sum(all) && !check_mpi(part) && !check_sum(some));
        if (times == 2) MPI_Comm_free(&part); /* while the group is open */
        tern_group_close(all);
        CHECK(!check_sum(some));
        tern_group_close(some);
    }
    tern_group *alone = open_on(MPI_COMM_SELF, &err);
    CHECK_OK(err);
    CHECK(tern_group_size(alone) == 1 && !check_sum(alone));
    tern_group_close(alone);
    return check_mpi(MPI_COMM_WORLD);
}

/* Opens the group as a program does that may also be started without mpirun. */
static int open_world(void)
{
    tern_error err = {0};
    tern_group *group = tern_group_open(NULL, &err);
    CHECK_OK(err);
    CHECK(tern_group_size(group) == world && !check_sum(group));
    tern_group_close(group);
    return 0;
}

/* A failure ends the group, but not the program. The group's ranks are those of the communicator. */
static int fails(void)
{
    tern_error err = {0};
    float x[10] = {0};
    MPI_Comm back;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &back);
    tern_group *group = open_on(back, &err);
    CHECK_OK(err);
    CHECK(tern_group_rank(group) == world - 1 - rank && !check_mpi(back)); /* all have opened it */
    tern_all_reduce(group, x, rank == 0 ? 9 : 10, TERN_F32, TERN_SUM, &err);
    CHECK(err.code == TERN_E_MISMATCH && strstr(err.text, "rank 4: all_reduce of 9 f32"));
    tern_group_close(group);
    err = (tern_error){0};
    CHECK(!check_mpi(back));
    group = open_on(back, &err);
    CHECK_OK(err);
    CHECK(!check_sum(group));
    tern_group_close(group);
    MPI_Comm_free(&back);
    return 0;
}

/* ---- handles and thread levels ---- */

static int refused(int comm, int code, const char *text)
{
    tern_error err = {0};
    tern_group *group = tern_group_from_mpi(comm, NULL, &err);
    if (err.code != code || !strstr(err.text, text)) fprintf(stderr, "%d: %s\n", err.code, err.text);
    CHECK(!group && err.code == code && strstr(err.text, text) && !strcmp(err.func, "tern_group_from_mpi"));
    return 0;
}

static int handles(void)
{
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank > 1, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank > 1 ? 0 : 2, 1, &both);
    CHECK(!refused(123456, TERN_E_INVALID, "not a handle of a communicator"));
    CHECK(!refused((int)MPI_Comm_c2f(MPI_COMM_NULL), TERN_E_INVALID, "not a handle of a communicator"));
    CHECK(!refused((int)MPI_Comm_c2f(both), TERN_E_INVALID, "got an intercommunicator"));
    tern_error err = {0};
    tern_group_opts opts = tern_group_defaults();
    opts.timeout_s = 0;
    CHECK(!tern_group_from_mpi((int)MPI_Comm_c2f(MPI_COMM_WORLD), &opts, &err) && err.code == TERN_E_RANGE);
    CHECK(!tern_group_from_mpi((int)MPI_Comm_c2f(MPI_COMM_WORLD), NULL, &err) && err.code == TERN_E_RANGE);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
    return check_mpi(MPI_COMM_WORLD);
}

static void *open_elsewhere(void *code)
{
    tern_error err = {0};
    tern_group *group = open_on(MPI_COMM_WORLD, &err);
    int status = group ? check_sum(group) : err.code;
    if (err.code == TERN_E_STATE && !strstr(err.text, "MPI_THREAD_SERIALIZED")) status = 1;
    tern_group_close(group);
    *(int *)code = status;
    return NULL;
}

/* Opens a group in another thread than the one that initialised MPI. */
static int thread(void)
{
    pthread_t id;
    int level, code = 1;
    MPI_Query_thread(&level);
    CHECK(!pthread_create(&id, NULL, open_elsewhere, &code) && !pthread_join(id, NULL));
    CHECK(code == (level < MPI_THREAD_SERIALIZED ? TERN_E_STATE : 0));
    return check_mpi(MPI_COMM_WORLD);
}

/* ---- running a test ---- */

/* Prints how many ranks MPI knows. */
static int size(void)
{
    return printf("%d\n", world) < 0;
}

static const struct {
    const char *name;
    int (*body)(void);
} bodies[] = {{"split", split},     {"many", many},     {"world", open_world}, {"fails", fails},
              {"handles", handles}, {"thread", thread}, {"size", size}};

static int run(const char *name)
{
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
        if (!strcmp(name, bodies[i].name)) return bodies[i].body();
    return 2;
}

/* The program does not initialise MPI, so tern does, also for the communicators that are used afterwards. */
static int never(void)
{
    tern_error err = {0};
    tern_group *group = tern_group_open(NULL, &err), *same;
    CHECK_OK(err);
    rank = tern_group_rank(group);
    same = open_on(MPI_COMM_WORLD, &err);
    CHECK_OK(err);
    CHECK(!check_sum(group) && !check_sum(same) && !check_mpi(MPI_COMM_WORLD));
    tern_group_close(group);
    tern_group_close(same);
    return 0;
}

/* MPI is finalised while the group is open. Only a group that sends messages over MPI notices it. */
static int early(void)
{
    tern_error err = {0};
    float x = 1;
    tern_group *group = open_on(MPI_COMM_WORLD, &err);
    CHECK_OK(err);
    CHECK(!check_sum(group));
    MPI_Finalize();
    CHECK(tern_all_reduce(group, &x, 1, TERN_F32, TERN_SUM, &err) < 0);
    if (!strstr(err.text, "MPI_Finalize was called")) fprintf(stderr, "%s\n", err.text);
    CHECK(strstr(err.text, "MPI_Finalize was called"));
    tern_group_close(group);
    return 0;
}

static void initialize(const char *level)
{
    static const char *const names[] = {"funneled", "serialized", "multiple"};
    static const int levels[] = {MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    int provided, wanted = -1;
    for (int i = 0; i < 3; i++)
        if (!strcmp(level, names[i])) wanted = levels[i];
    if (wanted < 0)
        MPI_Init(NULL, NULL);
    else
        MPI_Init_thread(NULL, NULL, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
}

int main(int argc, char **argv)
{
    if (argc != 3) return 2;
    CHECK(!refused(0, TERN_E_STATE, "is not running"));
    if (!strcmp(argv[2], "never")) return never();
    initialize(argv[2]);
    if (!strcmp(argv[1], "early")) return early();
    int status = run(argv[1]), finalized;
    MPI_Finalized(&finalized);
    CHECK(!finalized);
    if (status) MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    CHECK(!refused(0, TERN_E_STATE, "is not running"));
    tern_error err = {0};
    if (world == 1) return 0; /* probably not started by this MPI's mpirun */
    CHECK(!tern_group_open(NULL, &err) && err.code == TERN_E_STATE && strstr(err.text, "MPI was finalised"));
    return 0;
}
