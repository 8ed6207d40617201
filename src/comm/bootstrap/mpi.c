/* mpi.c - ranks that MPI has started meet through MPI. Each rank tells rank 0 on which host it is. Rank 0
 * listens on a free port at an address that all can reach, and sends every rank this address and a fresh
 * secret. From then on the job is like any other.
 *
 * These messages, one each way for every rank, are the first use of the plug-in's transport. Failures are
 * sent in them, too, so that all ranks fail with the same error. */
#include "comm/bootstrap/inner.h"
#include "comm/bootstrap/rank_info.h"
#include "comm/bootstrap/tcp.h"
#include "comm/bootstrap/mpi.h"
#include "comm/store/hello.h"
#include "comm/sys.h"

#include <limits.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ADDRESS_BYTES 64

/* What a rank sends to rank 0. */
typedef struct visit {
    int status; /* TERN_OK, or its error with `text` */
    char text[TERN_ERROR_TEXT];
    tern__rank_info info;
    char address[ADDRESS_BYTES]; /* of its host, for the other hosts; "" if it has none */
} visit;

/* What rank 0 answers. */
typedef struct answer {
    int status; /* TERN_OK, or rank 0's error with `text` */
    int port, local_rank, local_world;
    char addr[ADDRESS_BYTES];
    uint8_t secret[TERN__SECRET_BYTES];
    char text[TERN_ERROR_TEXT];
} answer;

typedef struct meeting {
    const tern_transport *transport;
    void *state; /* the transport's */
    int64_t deadline;
    tern__bootstrap *boot;
    visit *visits;                    /* rank 0's: [world] */
    tern_transport_message *messages; /* also [world] */
} meeting;

static int mpi_fail(int status, const char *why, tern_error *err)
{
    return tern__error_set(err, tern__boot_func, status, "the ranks cannot meet through MPI: %s", why);
}

/* ---- rank 0's part ---- */

static int check_visits(const meeting *m, tern_error *err)
{
    int rank = 0;
    while (rank < m->boot->world && !m->visits[rank].status) rank++;
    if (rank == m->boot->world) return TERN_OK;
    return tern__error_set(err, tern__boot_func, m->visits[rank].status, "rank %d: %s", rank,
                           m->visits[rank].text);
}

/* Returns the first rank on another machine, or the world's size if there is none. */
static int find_stranger(const meeting *m)
{
    int rank = 1;
    while (rank < m->boot->world &&
           tern__rank_info_is_same_machine(&m->visits[rank].info, &m->visits[0].info))
        rank++;
    return rank;
}

static int listen_for(const meeting *m, tern__bootstrap *boot, tern_error *err)
{
    int rank = find_stranger(m);
    bool is_one_machine = rank == boot->world;
    if (!is_one_machine) snprintf(boot->addr, sizeof(boot->addr), "%s", m->visits[rank].address);
    return tern__boot_listen(boot, is_one_machine, err);
}

static int mpi_prepare(const meeting *m, answer *a, tern_error *err)
{
    tern__bootstrap *boot = m->boot;
    int status = check_visits(m, err);
    if (!status) status = tern__hello_init(err);
    if (!status) status = listen_for(m, boot, err);
    if (!status && !boot->has_secret) randombytes_buf(boot->secret, sizeof(boot->secret));
    memcpy(a->secret, boot->secret, sizeof(a->secret));
    snprintf(a->addr, sizeof(a->addr), "%.*s", ADDRESS_BYTES - 1, boot->addr);
    a->port = boot->port;
    return status;
}

static void count_local(const meeting *m, int rank, answer *a)
{
    a->local_rank = a->local_world = 0;
    for (int r = 0; r < m->boot->world; r++) {
        bool is_near = !strcmp(m->visits[r].info.host_key, m->visits[rank].info.host_key);
        a->local_world += is_near;
        a->local_rank += is_near && r < rank;
    }
}

/* ---- messages ---- */

/* MPI does not say who has come, and rank 0 answers when all have. So rank 0 warns, and rank 1 in case that
 * it is rank 0 that is stopped. */
static void warn_late(const meeting *m, int peer, tern__warn_time *warn)
{
    if (!tern__warn_is_due(warn)) return;
    warn->at = INT64_MAX;
    if (m->boot->rank < 2)
        tern__log(
            TERN_LOG_WARN,
            "rank %d still waits in tern_group_open for a message from rank %d through MPI: is it, or a rank "
            "that it waits for, stopped?",
            m->boot->rank, peer);
}

static int mpi_await(const meeting *m, tern_transport_message *message, int peer, tern_error *err)
{
    tern__warn_time warn = tern__warn_at(m->deadline);
    char why[256] = "", text[64];
    int status;
    for (int tries = 0; (status = m->transport->test(m->state, message, why, sizeof(why))) == TERN_PENDING;
         tries++) {
        if (tern__now_ns() >= m->deadline) {
            snprintf(text, sizeof(text), "no message to or from rank %d", peer);
            return mpi_fail(TERN_E_TIMEOUT, text, err);
        }
        warn_late(m, peer, &warn);
        if (tries > 100) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return status ? mpi_fail(status, why, err) : TERN_OK;
}

static int start_send(const meeting *m, int peer, const void *data, size_t bytes,
                      tern_transport_message *message, tern_error *err)
{
    char why[256] = "";
    int status = m->transport->send(m->state, peer, 0, data, bytes, message, why, sizeof(why));
    return status ? mpi_fail(status, why, err) : TERN_OK;
}

static int start_recv(const meeting *m, int peer, void *data, size_t bytes, tern_transport_message *message,
                      tern_error *err)
{
    char why[256] = "";
    int status = m->transport->recv(m->state, peer, 0, data, bytes, message, why, sizeof(why));
    return status ? mpi_fail(status, why, err) : TERN_OK;
}

static int receive_visits(const meeting *m, tern_error *err)
{
    int status = TERN_OK, world = m->boot->world;
    for (int r = 1; r < world && !status; r++)
        status = start_recv(m, r, &m->visits[r], sizeof(visit), &m->messages[r], err);
    for (int r = 1; r < world && !status; r++) status = mpi_await(m, &m->messages[r], r, err);
    for (int r = 1; r < world; r++) {
        visit *v = &m->visits[r];
        v->address[sizeof(v->address) - 1] = v->text[sizeof(v->text) - 1] = '\0';
    }
    return status;
}

static int send_answers(const meeting *m, answer *a, tern_error *err)
{
    int status = TERN_OK;
    for (int r = 1; r < m->boot->world && !status; r++) {
        count_local(m, r, a);
        status = start_send(m, r, a, sizeof(*a), &m->messages[r], err);
        if (!status) status = mpi_await(m, &m->messages[r], r, err);
    }
    count_local(m, 0, a);
    return status;
}

static int host_meeting(meeting *m, const visit *own, answer *a, tern_error *err)
{
    tern_error why = {0};
    m->visits[0] = *own;
    int status = receive_visits(m, err);
    if (status) return status;
    a->status = mpi_prepare(m, a, &why);
    snprintf(a->text, sizeof(a->text), "%s", why.text);
    return send_answers(m, a, err);
}

static int visit_rank_0(const meeting *m, const visit *own, answer *a, tern_error *err)
{
    int status = start_recv(m, 0, a, sizeof(*a), &m->messages[0], err);
    if (!status) status = start_send(m, 0, own, sizeof(*own), &m->messages[1], err);
    if (!status) status = mpi_await(m, &m->messages[1], 0, err);
    return status ? status : mpi_await(m, &m->messages[0], 0, err);
}

/* ---- meeting ---- */

/* Finds this host's address by the route to an address that nobody has (RFC 5737), which is the default
 * route. */
static void describe_self(const tern__bootstrap *boot, visit *own)
{
    tern_error why = {0};
    tern__bootstrap abroad = *boot;
    struct sockaddr_storage at;
    own->status = tern__rank_info_make(&own->info, boot, &why);
    snprintf(own->text, sizeof(own->text), "%s", why.text);
    snprintf(abroad.addr, sizeof(abroad.addr), "198.51.100.1");
    if (!tern__tcp_own(&abroad, false, &at, NULL)) tern__tcp_host(&at, own->address, sizeof(own->address));
}

static int take_answer(const meeting *m, answer *a, tern_error *err)
{
    tern__bootstrap *boot = m->boot;
    a->addr[sizeof(a->addr) - 1] = a->text[sizeof(a->text) - 1] = '\0';
    if (a->status) return tern__error_set(err, tern__boot_func, a->status, "%s", a->text);
    snprintf(boot->addr, sizeof(boot->addr), "%s", a->addr);
    boot->port = a->port;
    boot->local_rank = a->local_rank;
    boot->local_world = a->local_world;
    memcpy(boot->secret, a->secret, sizeof(boot->secret));
    boot->has_secret = true;
    boot->source = "MPI";
    return TERN_OK;
}

static int mpi_exchange(meeting *m, answer *a, tern_error *err)
{
    visit own = {0};
    size_t count = (size_t)m->boot->world + 1;
    describe_self(m->boot, &own);
    m->visits = tern__alloc(count * sizeof(*m->visits), tern__boot_func, err);
    m->messages = m->visits ? tern__alloc(count * sizeof(*m->messages), tern__boot_func, err) : NULL;
    if (!m->messages) return err->code;
    return m->boot->rank ? visit_rank_0(m, &own, a, err) : host_meeting(m, &own, a, err);
}

static int open_transport(meeting *m, double timeout_s, tern_error *err)
{
    const tern__bootstrap *boot = m->boot;
    const tern_transport_place place = {.size = sizeof(place),
                                        .rank = boot->rank,
                                        .world = boot->world,
                                        .timeout_s = timeout_s,
                                        .native = boot->comm};
    char why[256] = "";
    int status = TERN_OK;
    m->state = m->transport->open(&place, &status, why, sizeof(why));
    return m->state ? TERN_OK : mpi_fail(status, why, err);
}

/* The transport is closed before the memory of its messages is freed. */
static int mpi_meet(tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    answer a = {0};
    meeting m = {.transport = boot->mpi->transport, .deadline = tern__deadline(timeout_s), .boot = boot};
    int status = open_transport(&m, timeout_s, err);
    if (status) return status;
    status = mpi_exchange(&m, &a, err);
    m.transport->close(m.state, status != TERN_OK);
    tern__free(m.messages);
    tern__free(m.visits);
    if (!status) status = take_answer(&m, &a, err);
    sodium_memzero(&a, sizeof(a));
    return status;
}

static int place_and_meet(tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    char why[256] = "";
    int status = boot->mpi->place(boot->comm, &boot->rank, &boot->world, why, sizeof(why));
    if (status) return tern__error_set(err, tern__boot_func, status, "%s", why);
    boot->local_rank = 0;
    boot->local_world = 1;
    boot->source = "MPI";
    return boot->world > 1 ? mpi_meet(boot, timeout_s, err) : TERN_OK;
}

int tern__mpi_start(const tern_mpi *mpi, double timeout_s, tern_error *err)
{
    char why[256] = "";
    int status = mpi->start(timeout_s, why, sizeof(why));
    return status ? tern__error_set(err, tern__boot_func, status, "%s: %s", mpi->name, why) : TERN_OK;
}

int tern__mpi_meet(const tern_mpi *mpi, int comm, double timeout_s, tern__bootstrap *out, tern_error *err)
{
    tern_error why = {0};
    out->mpi = mpi;
    out->comm = comm;
    int status = place_and_meet(out, timeout_s, &why);
    if (!status) return TERN_OK;
    tern__close(&out->listen_fd);
    mpi->finish(true);
    out->mpi = NULL;
    return tern__error_set(err, tern__boot_func, status, "%s", why.text);
}

/* ---- the world that mpirun has started ---- */

/* Says why an MPI knows only this process, though an mpirun has started several. Ubuntu 24.04 builds MPICH
 * without the protocol of its own mpirun (Launchpad's bug 2072338). */
static const char *mpirun_advice(const tern_mpi *mpi, const tern__mpi_flavour *launcher)
{
    bool is_its_own = launcher && !strcmp(launcher->name, mpi->name);
    if (!is_its_own || strcmp(mpi->name, "MPICH") != 0) return "is that the mpirun of another MPI?";
    return "is that the mpirun of another MPI? Ubuntu 24.04's MPICH does not understand even its own: "
           "use Open MPI or tern run there";
}

/* A program that was started by the mpirun of another MPI than its own sees itself as rank 0 of 1. */
static int check_place(const tern__bootstrap *boot, const tern_mpi *mpi, tern_error *err)
{
    char why[256] = "";
    int rank, world, status = mpi->place(mpi->world(), &rank, &world, why, sizeof(why));
    if (status) return tern__error_set(err, tern__boot_func, status, "%s", why);
    if (rank == boot->rank && world == boot->world) return TERN_OK;
    return tern__error_set(
        err, tern__boot_func, TERN_E_ENV,
        "by its environment this is rank %d of %d, but %s, which this program uses, says %d of %d: %s",
        boot->rank, boot->world, mpi->name, rank, world, mpirun_advice(mpi, tern__mpi_launcher()));
}

static const char *choose_advice(const tern_mpi *mpi, const char **variable)
{
    static const char *const others[][2] = {
        {"SLURM_STEP_NUM_TASKS", "start it with srun --mpi=pmix or --mpi=pmi2, whichever that MPI knows"},
        {"WORLD_SIZE", "start it with that MPI's mpirun"}};
    const tern__mpi_flavour *launcher = tern__mpi_launcher();
    *variable = launcher ? launcher->size : NULL;
    if (launcher) return mpirun_advice(mpi, launcher);
    for (size_t i = 0; i < TERN__COUNT(others) && !*variable; i++) {
        *variable = getenv(others[i][0]) ? others[i][0] : NULL;
        if (*variable) return others[i][1];
    }
    return NULL;
}

void tern__mpi_warn_alone(const tern_mpi *mpi)
{
    static atomic_bool was_said;
    char why[256];
    const char *variable, *advice = choose_advice(mpi, &variable);
    int rank, world, status = mpi->place(mpi->world(), &rank, &world, why, sizeof(why));
    if (status || world > 1 || !advice || atoi(getenv(variable)) < 2) return;
    if (atomic_exchange(&was_said, true)) return;
    tern__log(TERN_LOG_WARN,
              "%s=%s, but %s, which this program uses, knows only this process, which trains alone: %s",
              variable, getenv(variable), mpi->name, advice);
}

int tern__mpi_meet_world(tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    const tern_mpi *mpi = tern__mpi_find(err);
    if (!mpi || tern__mpi_start(mpi, timeout_s, err)) return err->code;
    int status = check_place(boot, mpi, err);
    if (!status) return tern__mpi_meet(mpi, mpi->world(), timeout_s, boot, err);
    mpi->finish(true);
    return status;
}

/* The program was not started by mpirun, but perhaps by srun with an MPI that it has initialised: asks that
 * MPI. */
static void ask_program(tern__bootstrap *out, bool *found)
{
    tern_error unsupported = {0};
    char why[256];
    int rank, world;
    const tern_mpi *mpi = tern__mpi_is_linked() ? tern__mpi_find(&unsupported) : NULL;
    *found =
        mpi && mpi->is_running() && !mpi->place(mpi->world(), &rank, &world, why, sizeof(why)) && world > 1;
    if (!*found) return;
    out->rank = rank;
    out->world = world;
}

int tern__bootstrap_from_mpi(tern__bootstrap *out, bool *found, tern_error *err)
{
    const tern__mpi_flavour *launcher = tern__mpi_launcher();
    *found = launcher != NULL;
    if (!launcher) ask_program(out, found);
    if (!*found) return TERN_OK;
    int status = launcher ? tern__env_filled_int(launcher->size, 1, INT_MAX, 1, &out->world, err) : TERN_OK;
    if (launcher && !status)
        status = tern__env_filled_int(launcher->rank, 0, out->world - 1, 0, &out->rank, err);
    out->by_mpi = out->world > 1;
    out->source = "MPI";
    return status;
}
