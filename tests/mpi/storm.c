/* storm.c - tests of the MPI plug-ins' transport, run by each rank under mpirun. The first argument chooses
 * the test. All ranks exit with 0 if it passes. A rank that passes also creates a file named after its number
 * in the folder of the second argument, because launchers may lose the output of a job that fails. */
#include "comm/storm.h"

#include "comm/bootstrap/mpi.h"
#include "comm/move/transport/transport.h"

#include <sys/mman.h>
#include <sys/resource.h>

static const tern_mpi *mpi;
static const tern_transport *transport;
static int rank, world;
static char why[256];

static void *open_as(int as_rank, int as_world, int64_t native, double timeout_s, int *status)
{
    const tern_transport_place place = {.size = sizeof(place),
                                        .rank = as_rank,
                                        .world = as_world,
                                        .timeout_s = timeout_s,
                                        .address = "127.0.0.1",
                                        .native = native};
    return transport->open(&place, status, why, sizeof(why));
}

static void *open_world(void)
{
    int status = TERN_OK;
    void *state = open_as(rank, world, mpi->world(), 20, &status);
    if (!state) fprintf(stderr, "rank %d: %s\n", rank, why);
    return state;
}

/* Waits until the message is complete or has failed. The peer may need the core: it copies a long message. */
static int finish(void *state, tern_transport_message *message)
{
    int64_t deadline = tern__now_ns() + RANKS_DEADLINE_S * INT64_C(1000000000);
    int status = TERN_PENDING;
    for (int tries = 0; status == TERN_PENDING && tern__now_ns() < deadline; tries++) {
        status = transport->test(state, message, why, sizeof(why));
        if (status == TERN_PENDING && tries > 100) tern__poll(NULL, 0, tern__deadline(0.00005));
    }
    return status;
}

static int send_one(void *state, int peer, int tag, const void *data, size_t bytes)
{
    tern_transport_message message;
    int status = transport->send(state, peer, tag, data, bytes, &message, why, sizeof(why));
    return status ? status : finish(state, &message);
}

static int recv_one(void *state, int peer, int tag, void *data, size_t bytes)
{
    tern_transport_message message;
    int status = transport->recv(state, peer, tag, data, bytes, &message, why, sizeof(why));
    return status ? status : finish(state, &message);
}

/* ---- messages ---- */

/* Two transports over the same ranks do not see each other's messages. */
static int two_storms(void)
{
    void *one = open_world(), *other = open_world();
    unsigned char x = 0;
    tern_transport_message early;
    RANK_CHECK(rank, one && other);
    int peer = (rank + 1) % world, before = (rank + world - 1) % world;
    if (world > 1) RANK_CHECK(rank, !transport->recv(one, before, 7, &x, 1, &early, why, sizeof(why)));
    RANK_CHECK(rank, !storm_run(transport, other, rank, world));
    if (world > 1) RANK_CHECK(rank, !send_one(one, peer, 7, "z", 1));
    if (world > 1) RANK_CHECK(rank, !finish(one, &early) && x == 'z');
    transport->close(one, false);
    RANK_CHECK(rank, !storm_run(transport, other, rank, world));
    transport->close(other, false);
    return 0;
}

static unsigned char *large(size_t bytes)
{
    unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

/* A message of the largest size, from rank 0 to 1, among smaller ones in both directions. */
static int largest(void)
{
    const size_t bytes = TERN_TRANSPORT_BYTES_MAX, step = 4093, some = 8 << 20;
    unsigned char *data = large(bytes), *mine = large(some), *theirs = large(some);
    void *state = open_world();
    tern_transport_message all, out, in;
    RANK_CHECK(rank, state && data && mine && theirs);
    for (size_t at = 0; !rank && at < bytes; at += step) data[at] = (unsigned char)(at % 251);
    memset(mine, rank + 1, some);
    int status = rank ? transport->recv(state, 0, 1, data, bytes, &all, why, sizeof(why))
                      : transport->send(state, 1, 1, data, bytes, &all, why, sizeof(why));
    status |= transport->send(state, !rank, 1, mine, some - 1, &out, why, sizeof(why));
    status |= transport->recv(state, !rank, 1, theirs, some - 1, &in, why, sizeof(why));
    RANK_CHECK(rank, !status && !finish(state, &in) && !finish(state, &all) && !finish(state, &out));
    RANK_CHECK(rank, theirs[0] == !rank + 1 && theirs[some - 2] == !rank + 1 && !theirs[some - 1]);
    for (size_t at = 0; at < bytes; at += step) RANK_CHECK(rank, data[at] == (unsigned char)(at % 251));
    transport->close(state, false);
    return 0;
}

/* Messages that are longer than expected, and shorter. */
static int other_sizes(void)
{
    unsigned char data[200] = {0};
    void *state = open_world();
    RANK_CHECK(rank, state);
    if (rank == 1) {
        RANK_CHECK(rank, !send_one(state, 0, 1, data, 50));
        RANK_CHECK(rank, !send_one(state, 0, 2, data, 200));
    } else {
        RANK_CHECK(rank, recv_one(state, 1, 1, data, 100) == TERN_E_PEER);
        RANK_CHECK(rank, !strcmp(why, "rank 1 sent 50 bytes, expected 100"));
        RANK_CHECK(rank, recv_one(state, 1, 2, data, 100) == TERN_E_PEER);
        RANK_CHECK(rank, strstr(why, "a message of 100 bytes from rank 1: ") == why);
    }
    transport->close(state, false);
    return 0;
}

/* Rank 0 gives up and closes while rank 1's messages are in flight, some of which need rank 0 to make
 * progress. Nothing writes to their buffers any more, whatever other MPI calls follow. */
static int given_up(void)
{
    enum { EACH = 1 << 20, COUNT = 4 };
    static unsigned char data[COUNT][EACH];
    tern_transport_message messages[COUNT];
    void *state = open_world(), *other = open_world();
    unsigned char x = 0;
    RANK_CHECK(rank, state && other);
    for (int i = 0; !rank && i < COUNT; i++)
        RANK_CHECK(rank, !transport->recv(state, 1, i, data[i], EACH, &messages[i], why, sizeof(why)));
    if (!rank) transport->close(state, true);
    memset(data, rank ? 9 : 5, sizeof(data));
    RANK_CHECK(rank, rank ? !recv_one(other, 0, 1, &x, 1) : !send_one(other, 1, 1, &x, 1));
    for (int i = 0; rank && i < COUNT; i++)
        RANK_CHECK(rank,
                   !transport->send(state, 0, i, data[i], i % 2 ? EACH : 9, &messages[i], why, sizeof(why)));
    int64_t begin = tern__now_ns();
    if (rank) transport->close(state, true);
    RANK_CHECK(rank, tern__now_ns() - begin < RANKS_SOON_S * INT64_C(1000000000));
    RANK_CHECK(rank, rank ? !send_one(other, 0, 1, &x, 1) : !recv_one(other, 1, 1, &x, 1));
    for (int i = 0; !rank && i < COUNT; i++) RANK_CHECK(rank, data[i][0] == 5 && data[i][EACH - 1] == 5);
    transport->close(other, true);
    return 0;
}

/* ---- opening ---- */

static int refused(int as_rank, int as_world, int64_t native, int expected, const char *text)
{
    int status = TERN_OK;
    RANK_CHECK(rank, !open_as(as_rank, as_world, native, 1, &status));
    if (status != expected || !strstr(why, text)) fprintf(stderr, "%s: %s\n", tern_status_name(status), why);
    RANK_CHECK(rank, status == expected && strstr(why, text));
    return 0;
}

static int places(void)
{
    int r, w;
    RANK_CHECK(rank, !refused(rank, world, -1, TERN_E_UNSUPPORTED, "the job was not started by MPI"));
    RANK_CHECK(rank, !refused(rank, world + 1, mpi->world(), TERN_E_INVALID, "in the communicator"));
    RANK_CHECK(rank, !refused(world, world, mpi->world(), TERN_E_INVALID, "in the communicator"));
    RANK_CHECK(rank, !refused(rank, world, 123456, TERN_E_INVALID, "not a handle of a communicator"));
    RANK_CHECK(rank, mpi->place(123456, &r, &w, why, sizeof(why)) == TERN_E_INVALID);
    RANK_CHECK(rank, !mpi->place(mpi->world(), &r, &w, why, sizeof(why)) && r == rank && w == world);
    char text[64];
    transport->version(text, sizeof(text));
    RANK_CHECK(rank, strstr(text, mpi->name) == text && text[strlen(mpi->name) + 1] >= '1');
    RANK_CHECK(rank, !strcmp(transport->name, "mpi") && strcspn(text, "\n") == strlen(text));
    return 0;
}

/* Rank 1 does not join before rank 0 has given up. The job cannot end normally after that. */
static int late(void)
{
    int status = TERN_OK;
    unsigned char x = 0;
    void *good = open_world();
    RANK_CHECK(rank, good);
    int64_t begin = tern__now_ns();
    if (!rank)
        RANK_CHECK(rank, !open_as(rank, world, mpi->world(), 0.3, &status) && status == TERN_E_TIMEOUT);
    double took = (double)(tern__now_ns() - begin) * 1e-9;
    RANK_CHECK(rank, rank || (took >= 0.29 && took < RANKS_SOON_S &&
                              strstr(why, "within 0.3 s, MPI does not say which")));
    RANK_CHECK(rank, rank ? !recv_one(good, 0, 0, &x, 1) : !send_one(good, 1, 0, &x, 1));
    transport->close(good, true);
    return 0;
}

/* ---- meeting ---- */

/* Two ranks per host, by the host's name. The others get rank 0's address and secret, new ones for each
 * meeting. */
static int meeting(void)
{
    tern_error err = {0};
    tern__bootstrap boot[2], zero;
    char host[16];
    void *state = open_world();
    snprintf(host, sizeof(host), "%d", rank / 2);
    setenv("TERN_HOST_ID", host, 1);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(rank, !tern__bootstrap_from_env(&boot[i], &err) && boot[i].by_mpi);
        tern__mpi_meet_world(&boot[i], 20, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, boot[i].rank == rank && boot[i].world == world && boot[i].mpi == mpi);
        RANK_CHECK(rank, boot[i].local_rank == rank % 2);
        RANK_CHECK(rank, boot[i].local_world == (rank / 2 == world / 2 ? 1 : 2));
        RANK_CHECK(rank, !strcmp(boot[i].addr, "127.0.0.1") && boot[i].has_secret && boot[i].port > 0);
        RANK_CHECK(rank, (boot[i].listen_fd >= 0) == (rank == 0));
        for (int r = 1; !rank && r < world; r++)
            RANK_CHECK(rank, !send_one(state, r, 0, &boot[i], sizeof(zero)));
        if (rank) RANK_CHECK(rank, !recv_one(state, 0, 0, &zero, sizeof(zero)));
        if (rank) RANK_CHECK(rank, !memcmp(zero.secret, boot[i].secret, sizeof(zero.secret)));
        if (rank) RANK_CHECK(rank, zero.port == boot[i].port);
        tern__mpi_finish(&boot[i], false);
    }
    RANK_CHECK(rank, memcmp(boot[0].secret, boot[1].secret, sizeof(zero.secret)) != 0);
    transport->close(state, false);
    return 0;
}

/* On two hosts of their own, whose addresses are in hosts.py. */
static int two_hosts(void)
{
    tern_error err = {0};
    tern__bootstrap boot;
    RANK_CHECK(rank, !tern__bootstrap_from_env(&boot, &err) && boot.by_mpi && world == 4);
    tern__mpi_meet_world(&boot, 20, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(boot.addr, "10.98.1.1") && boot.local_rank == rank % 2 && boot.local_world == 2);
    tern__mpi_finish(&boot, false);
    return two_storms();
}

/* A rank without descriptors reports that to the others. */
static int meeting_fails(void)
{
    for (int poor = 0; poor < 2; poor++) {
        tern_error err = {0};
        tern__bootstrap boot = {0};
        char text[64];
        struct rlimit all, none;
        RANK_CHECK(rank, !getrlimit(RLIMIT_NOFILE, &all) && !tern__bootstrap_from_env(&boot, &err));
        none = (struct rlimit){.rlim_cur = 0, .rlim_max = all.rlim_max};
        if (rank == poor) RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &none));
        int status = tern__mpi_meet_world(&boot, 20, &err);
        if (rank == poor) RANK_CHECK(rank, !setrlimit(RLIMIT_NOFILE, &all));
        snprintf(text, sizeof(text), "rank %d: cannot open /proc/", poor);
        if (strncmp(err.text, text, strlen(text)) != 0) fprintf(stderr, "%s\n", err.text);
        RANK_CHECK(rank, status == TERN_E_SYSTEM && !strncmp(err.text, text, strlen(text)));
    }
    return 0;
}

static const struct {
    const char *name;
    int (*body)(void);
    bool fails;
} bodies[] = {
    {"storm", two_storms, false}, {"largest", largest, false}, {"sizes", other_sizes, false},
    {"given_up", given_up, true}, {"places", places, false},   {"late", late, true},
    {"meeting", meeting, false},  {"hosts", two_hosts, false}, {"meeting_fails", meeting_fails, true}};

/* Creates this rank's file, and waits for the others': the first rank to exit may end the whole job. */
static int say_so(const char *folder)
{
    char path[512];
    int64_t deadline = tern__now_ns() + RANKS_DEADLINE_S * INT64_C(1000000000);
    snprintf(path, sizeof(path), "%s/%d", folder, rank);
    FILE *file = fopen(path, "w");
    RANK_CHECK(rank, file && !fclose(file));
    for (int r = 0; r < world; r++) {
        snprintf(path, sizeof(path), "%s/%d", folder, r);
        for (; access(path, F_OK); tern__poll(NULL, 0, tern__deadline(0.001)))
            RANK_CHECK(rank, tern__now_ns() < deadline);
    }
    return 0;
}

static int run(const char *name, const char *folder)
{
    int status = 2;
    for (size_t i = 0; i < TERN__COUNT(bodies); i++)
        if (!strcmp(name, bodies[i].name)) {
            status = bodies[i].body();
            if (!status) status = say_so(folder);
            mpi->finish(status || bodies[i].fails);
        }
    return status;
}

int main(int argc, char **argv)
{
    tern_error err = {0};
    mpi = tern__mpi_find(&err);
    transport = tern__transport_find("mpi", &err);
    if (err.code || mpi->start(30, why, sizeof(why)) ||
        mpi->place(mpi->world(), &rank, &world, why, sizeof(why))) {
        fprintf(stderr, "%s %s\n", err.text, why);
        return 1;
    }
    return argc > 2 ? run(argv[1], argv[2]) : 2;
}
