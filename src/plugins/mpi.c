/* mpi.c - the MPI plug-ins: the same source, built once with Open MPI and once with MPICH.
 *
 * A transport duplicates a communicator and sends bytes on the duplicate, with MPI_Isend, MPI_Irecv and
 * MPI_Test. MPI's reductions are not used: their order of operands depends on the library, the count and the
 * machine, and neither library knows bf16.
 *
 * Messages in flight are linked through the callers' tern_transport_message, so that closing after a failure
 * can cancel the receives. Otherwise MPI would write into memory that the group has freed, as soon as
 * anything in the process calls MPI. */
#include <tern/backend/mpi.h>

#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* After an error MPICH's launcher waits for ranks of a host that is cut off until one of the others aborts
 * the job. Open MPI's ends it by itself if its daemons probe their connections, but not once it has been
 * asked to abort. */
#ifdef OPEN_MPI
#define NAME "Open MPI"
enum { ABORTS_ON_ERROR = 0 };
#else
#define NAME "MPICH"
enum { ABORTS_ON_ERROR = 1 };
#endif

/* Open MPI sends messages of up to this size through its fast boxes: a quarter of a box. */
enum { SHORT_BYTES = 768 };

/* ---- errors ---- */

static int mpi_fail(int status, const char *text, char *why, size_t why_size)
{
    snprintf(why, why_size, "%s", text);
    return status;
}

static int fail_mpi(int status, const char *call, int code, char *why, size_t why_size)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    snprintf(why, why_size, "%s: %s", call, text);
    return status;
}

/* The program's error handlers, replaced for the duration of a call: by default MPI ends the program when a
 * call fails. Errors go to the communicator's handler, and errors about an invalid handle to that of
 * MPI_COMM_WORLD or MPI_COMM_SELF. All of them belong to the program and are restored afterwards. */
typedef struct quiet {
    MPI_Comm comms[3];
    MPI_Errhandler handlers[3];
    int count;
} quiet;

static void be_quiet_on(quiet *q, MPI_Comm comm)
{
    MPI_Errhandler handler;
    if (MPI_Comm_get_errhandler(comm, &handler)) return;
    q->comms[q->count] = comm;
    q->handlers[q->count++] = handler;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

static quiet be_quiet(MPI_Comm comm)
{
    quiet q = {.count = 0};
    be_quiet_on(&q, MPI_COMM_WORLD);
    be_quiet_on(&q, MPI_COMM_SELF);
    if (comm != MPI_COMM_NULL && comm != MPI_COMM_WORLD && comm != MPI_COMM_SELF) be_quiet_on(&q, comm);
    return q;
}

static void be_loud(quiet *q)
{
    while (q->count) {
        q->count--;
        MPI_Comm_set_errhandler(q->comms[q->count], q->handlers[q->count]);
        MPI_Errhandler_free(&q->handlers[q->count]);
    }
}

/* ---- MPI's life ---- */

/* A process can initialise MPI only once. */
static struct {
    pthread_mutex_t lock;
    pid_t owner; /* the process in which this file initialised MPI; 0: none */
    int users;   /* calls of start without their finish                     */
    bool failed;
    bool exits; /* the process is exiting */
    int exit_code;
} life = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_running(void)
{
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

/* Finalizes MPI when the process exits, unless a group is open or has failed: MPI_Finalize could wait for
 * ever, for ranks that are lost or wait for this one. Does nothing in a forked child, which is not the rank.
 */
static void finalize(void)
{
    if (!life.exits || life.exit_code || life.owner != getpid() || life.users || life.failed) return;
    if (is_running()) MPI_Finalize();
}

/* Only an on_exit handler gets the exit code. And it runs before the one that MPICH registered in MPI_Init:
 * since 4.2 that one takes leave of the launcher, which kills the other ranks when one exits without it. */
static void begin_exit(int code, void *unused)
{
    (void)unused;
    life.exits = true;
    life.exit_code = code;
    finalize();
}

enum { ABORT_SECONDS = 5 };

static void exit_late(int number)
{
    (void)number;
    _exit(life.exit_code ? life.exit_code : 1);
}

/* MPI_Abort asks the launcher, which does not answer on a host that is cut off: then this process just ends.
 */
static void abort_job(void)
{
    sigset_t alarms;
    struct sigaction late = {.sa_handler = exit_late};
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigaction(SIGALRM, &late, NULL);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    alarm(ABORT_SECONDS);
    MPI_Abort(MPI_COMM_WORLD, life.exit_code ? life.exit_code : 1);
}

/* A static object of the program may own a group, and is destroyed after the handlers that were registered
 * later. A destructor of this library runs after that, and before those of MPI's library, which it depends
 * on.
 *
 * Exiting with 0 without MPI_Finalize would make MPICH's launcher report success, whatever the other ranks
 * say. So this rank aborts the job, as MPI's own default for errors does, and on MPICH also if it exits with
 * an error. */
__attribute__((destructor)) static void end(void)
{
    finalize();
    bool is_in_step = !life.users && !life.failed, has_error = life.exit_code != 0;
    if (!life.exits || life.owner != getpid() || !is_running()) return;
    if (has_error && (is_in_step || !ABORTS_ON_ERROR)) return;
    fflush(NULL);
    if (!has_error)
        fprintf(stderr, "tern: this rank aborts the job: it exits with code 0, but has a group that %s\n",
                life.failed ? "has failed" : "is not closed");
    abort_job();
}

/* Open MPI's components look for the library's symbols in the global scope. This adds the library to it. */
static void show_library(void)
{
    Dl_info info;
    if (dladdr((const void *)MPI_Init_thread, &info) && info.dli_fname)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* ---- waits of which MPI tells nothing ---- */

/* The ranks of a host have the same parent, MPI's launcher, unless each has a shell in between. The first
 * that waits for long takes a name in the kernel, keeps it, and warns. */
static void warn_of_wait(const char *wait, double seconds)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int used = snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "tern/mpi/%d/%s", (int)getppid(), wait);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, size)) {
        close(fd);
        return;
    }
    fprintf(
        stderr,
        "tern: this rank (pid %d) has waited %.0f s in %s for the other ranks: has one not come, or is it "
        "stopped?\n",
        (int)getpid(), seconds, wait);
}

/* After 30 s, or half of a shorter time. */
static double warn_seconds(double timeout_s)
{
    return timeout_s < 60 ? timeout_s / 2 : 30;
}

/* MPI_Init waits for all ranks without a limit: for ever, if a process of the job ended before its own
 * MPI_Init and the launcher did not react. The call cannot be cancelled, so after `timeout_s` this thread
 * ends the process, to which launchers do react. */
typedef struct patience {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double timeout_s;
    bool is_over; /* MPI_Init has returned */
} patience;

/* Returns false if it is not over after `seconds`, or up to one more. */
static bool await_over(patience *p, double seconds)
{
    struct timespec until;
    int late = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 1;
    while (!p->is_over && !late)
        late = pthread_cond_clockwait(&p->changed, &p->lock, CLOCK_MONOTONIC, &until);
    return p->is_over;
}

static void *lose_patience(void *arg)
{
    patience *p = arg;
    double seconds = p->timeout_s < 1e9 ? p->timeout_s : 1e9, warn_s = warn_seconds(seconds);
    pthread_mutex_lock(&p->lock);
    if (!await_over(p, warn_s)) warn_of_wait("MPI_Init", warn_s);
    if (!await_over(p, seconds - warn_s)) {
        fprintf(stderr, "tern: not all ranks called MPI_Init within %g s: this rank exits\n", p->timeout_s);
        _exit(1);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* The thread blocks signals, which are for the program's own threads, but not those of faults. */
static bool start_patience(patience *p)
{
    sigset_t all, before;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&p->thread, NULL, lose_patience, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void end_patience(patience *p)
{
    pthread_mutex_lock(&p->lock);
    p->is_over = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

/* MPICH reports some errors of messages on other communicators to MPI_COMM_WORLD's handler, so it must not
 * end the program. If the program initialised MPI itself its handler stays, and a lost peer may end the job.
 */
static void take_over(void)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    life.owner = getpid();
}

static int initialize(double timeout_s, char *why, size_t why_size)
{
    int provided = MPI_THREAD_SINGLE;
    patience p = {.timeout_s = timeout_s};
    show_library();
    if (!start_patience(&p)) return mpi_fail(TERN_E_SYSTEM, "cannot start a thread", why, why_size);
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    end_patience(&p);
    if (code) return fail_mpi(TERN_E_SYSTEM, "MPI_Init_thread", code, why, why_size);
    take_over();
    if (on_exit(begin_exit, NULL)) return mpi_fail(TERN_E_MEMORY, "on_exit: no memory", why, why_size);
    return TERN_OK;
}

/* Only the group's thread calls MPI, so MPI_THREAD_FUNNELED is enough if that is MPI's main thread. A plain
 * MPI_Init gives MPI_THREAD_SINGLE, which promises that there are no other threads. tern has some, but they
 * never call MPI, and neither library treats that case differently. */
static int check_thread(char *why, size_t why_size)
{
    int level, is_main;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (level >= MPI_THREAD_SERIALIZED || is_main) return TERN_OK;
    return mpi_fail(
        TERN_E_STATE,
        "the program initialised MPI with MPI_THREAD_FUNNELED or below, so only the thread that did so may "
        "call MPI, and this is another thread: ask MPI_Init_thread for MPI_THREAD_SERIALIZED or "
        "MPI_THREAD_MULTIPLE",
        why, why_size);
}

static int mpi_begin(double timeout_s, char *why, size_t why_size)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        return mpi_fail(TERN_E_STATE, "MPI was finalised, and cannot be initialised again", why, why_size);
    return is_running() ? check_thread(why, why_size) : initialize(timeout_s, why, why_size);
}

static int mpi_start(double timeout_s, char *why, size_t why_size)
{
    pthread_mutex_lock(&life.lock);
    int status = mpi_begin(timeout_s, why, why_size);
    if (!status) life.users++;
    pthread_mutex_unlock(&life.lock);
    return status;
}

static void mpi_finish(bool failed)
{
    pthread_mutex_lock(&life.lock);
    life.users--;
    life.failed |= failed;
    pthread_mutex_unlock(&life.lock);
}

/* ---- ranks and communicators ---- */

static int world_handle(void)
{
    return (int)MPI_Comm_c2f(MPI_COMM_WORLD);
}

static int ask_place(MPI_Comm comm, int *rank, int *world, char *why, size_t why_size)
{
    int is_inter = 0, code = comm == MPI_COMM_NULL ? MPI_ERR_COMM : MPI_Comm_test_inter(comm, &is_inter);
    if (!code) code = MPI_Comm_rank(comm, rank);
    if (!code) code = MPI_Comm_size(comm, world);
    if (code) return fail_mpi(TERN_E_INVALID, "not a handle of a communicator", code, why, why_size);
    if (!is_inter) return TERN_OK;
    return mpi_fail(TERN_E_INVALID,
                    "expected an intracommunicator, got an intercommunicator (MPI_Intercomm_create)", why,
                    why_size);
}

static int mpi_place_in(int handle, int *rank, int *world, char *why, size_t why_size)
{
    MPI_Comm comm = MPI_Comm_f2c((MPI_Fint)handle);
    quiet q = be_quiet(comm);
    int status = ask_place(comm, rank, world, why, why_size);
    be_loud(&q);
    return status;
}

/* ---- messages ---- */

/* The contents of a tern_transport_message. */
typedef struct __attribute__((may_alias)) letter {
    MPI_Request request;
    uint32_t bytes;
    int peer; /* ~peer for a receive */
    struct letter *next, *prev;
} letter;

_Static_assert(sizeof(letter) <= sizeof(tern_transport_message), "a letter fits the message");

typedef struct transport {
    MPI_Comm comm;
    letter *letters; /* in flight */
} transport;

static void letter_add(transport *t, letter *l, size_t bytes, int peer)
{
    l->bytes = (uint32_t)bytes;
    l->peer = peer;
    l->prev = NULL;
    l->next = t->letters;
    if (l->next) l->next->prev = l;
    t->letters = l;
}

static void letter_remove(transport *t, const letter *l)
{
    if (l->next) l->next->prev = l->prev;
    if (l->prev) l->prev->next = l->next;
    if (!l->prev) t->letters = l->next;
}

/* The program may have finalized MPI itself. Another MPI call would then end the process. */
static int check_finalized(char *why, size_t why_size)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) return TERN_OK;
    return mpi_fail(TERN_E_STATE,
                    "MPI_Finalize was called while a group that uses MPI is open: close the group before",
                    why, why_size);
}

static int message_send(void *state, int peer, int tag, const void *data, size_t bytes,
                        tern_transport_message *message, char *why, size_t why_size)
{
    transport *t = state;
    letter *l = (letter *)message;
    if (check_finalized(why, why_size)) return TERN_E_STATE;
    int code = MPI_Isend(data, (int)bytes, MPI_BYTE, peer, tag, t->comm, &l->request);
    if (code) return fail_mpi(TERN_E_PEER, "MPI_Isend", code, why, why_size);
    letter_add(t, l, bytes, peer);
    return TERN_OK;
}

static int message_recv(void *state, int peer, int tag, void *data, size_t bytes,
                        tern_transport_message *message, char *why, size_t why_size)
{
    transport *t = state;
    letter *l = (letter *)message;
    if (check_finalized(why, why_size)) return TERN_E_STATE;
    int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, tag, t->comm, &l->request);
    if (code) return fail_mpi(TERN_E_PEER, "MPI_Irecv", code, why, why_size);
    letter_add(t, l, bytes, ~peer);
    return TERN_OK;
}

static int fail_letter(const letter *l, int code, char *why, size_t why_size)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length, is_recv = l->peer < 0;
    MPI_Error_string(code, text, &length);
    snprintf(why, why_size, "a message of %u bytes %s rank %d: %s", (unsigned)l->bytes,
             is_recv ? "from" : "to", is_recv ? ~l->peer : l->peer, text);
    return TERN_E_PEER;
}

static int mpi_check_bytes(const letter *l, const MPI_Status *got, char *why, size_t why_size)
{
    int bytes = 0;
    MPI_Get_count(got, MPI_BYTE, &bytes);
    if (l->peer >= 0 || (uint32_t)bytes == l->bytes) return TERN_OK;
    snprintf(why, why_size, "rank %d sent %d bytes, expected %u", ~l->peer, bytes, (unsigned)l->bytes);
    return TERN_E_PEER;
}

static int message_test(void *state, tern_transport_message *message, char *why, size_t why_size)
{
    letter *l = (letter *)message;
    int done = 0;
    MPI_Status got;
    if (check_finalized(why, why_size)) return TERN_E_STATE;
    int code = MPI_Test(&l->request, &done, &got);
    if (!code && !done) return TERN_PENDING;
    letter_remove(state, l);
    return code ? fail_letter(l, code, why, why_size) : mpi_check_bytes(l, &got, why, why_size);
}

/* ---- opening and closing ---- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Finding out which ranks are missing would need messages on the program's own communicator. */
static int fail_duplicate(double timeout_s, char *why, size_t why_size)
{
    snprintf(why, why_size,
             "not all ranks of the communicator joined within %g s, MPI does not say which: does every "
             "process of the job open this group?",
             timeout_s);
    return TERN_E_TIMEOUT;
}

/* Duplicates the communicator. After a timeout the request stays pending for good, together with its
 * communicator: the job has failed anyway. */
static int duplicate(MPI_Comm comm, double timeout_s, MPI_Comm *copy, char *why, size_t why_size)
{
    MPI_Request request;
    double mpi_start = seconds(), deadline = mpi_start + timeout_s,
           warn_at = mpi_start + warn_seconds(timeout_s);
    int done = 0, code = MPI_Comm_idup(comm, copy, &request);
    for (int tries = 0; !code && !done; tries++) {
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (code || done) break;
        if (seconds() > deadline) return fail_duplicate(timeout_s, why, why_size);
        if (seconds() > warn_at) {
            warn_of_wait("MPI_Comm_idup", seconds() - mpi_start);
            warn_at = deadline;
        }
        if (tries > 100) pause_briefly();
    }
    if (code) return fail_mpi(TERN_E_SYSTEM, "MPI_Comm_idup", code, why, why_size);
    MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
    return TERN_OK;
}

/* MPI writes the handle when the last rank has joined, possibly after the deadline. So the handle is in the
 * transport, which is not freed after a timeout. */
static int open_on(transport *t, const tern_transport_place *place, char *why, size_t why_size)
{
    int rank, world;
    MPI_Comm comm = MPI_Comm_f2c((MPI_Fint)place->native);
    int status = ask_place(comm, &rank, &world, why, why_size);
    if (!status && (rank != place->rank || world != place->world)) {
        snprintf(why, why_size, "rank %d of %d is rank %d of %d in the communicator", place->rank,
                 place->world, rank, world);
        status = TERN_E_INVALID;
    }
    return status ? status : duplicate(comm, place->timeout_s, &t->comm, why, why_size);
}

static void *transport_open(const tern_transport_place *place, int *status, char *why, size_t why_size)
{
    transport *t = calloc(1, sizeof(*t));
    *status = t ? TERN_OK : mpi_fail(TERN_E_MEMORY, "no memory", why, why_size);
    if (!t) return NULL;
    if (place->native == -1) {
        free(t);
        *status = mpi_fail(TERN_E_UNSUPPORTED, "the job was not started by MPI", why, why_size);
        return NULL;
    }
    quiet q = be_quiet(MPI_Comm_f2c((MPI_Fint)place->native));
    *status = open_on(t, place, why, why_size);
    be_loud(&q);
    if (!*status) return t;
    if (*status != TERN_E_TIMEOUT) free(t);
    return NULL;
}

static void cancel_all(const transport *t)
{
    for (letter *l = t->letters; l; l = l->next)
        if (l->peer < 0) MPI_Cancel(&l->request);
}

/* Completes the messages in flight, for half a second at most. A cancelled receive is complete at once. A
 * receive that has begun and a send complete if the peer is still there. What is left after that makes no
 * progress unless something calls MPI again. */
static void drain(transport *t)
{
    double deadline = seconds() + 0.5;
    while (t->letters && seconds() < deadline) {
        for (letter *l = t->letters, *next; l; l = next) {
            int done = 0;
            next = l->next;
            if (MPI_Test(&l->request, &done, MPI_STATUS_IGNORE) || done) letter_remove(t, l);
        }
        if (t->letters) pause_briefly();
    }
}

/* MPI_Comm_free is collective, so it is not called after a failure. */
static void transport_close(void *state, bool failed)
{
    transport *t = state;
    bool running = is_running();
    if (running && failed) {
        cancel_all(t);
        drain(t);
    }
    if (running && !failed) MPI_Comm_free(&t->comm);
    free(t);
}

static void version(char *text, size_t text_size)
{
    char full[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(full, &length);
#ifdef OPEN_MPI
    snprintf(text, text_size, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
             OMPI_RELEASE_VERSION);
    const char *number = strstr(full, "Open MPI v");
    if (number) snprintf(text, text_size, "Open MPI %.*s", (int)strcspn(number + 10, ", "), number + 10);
#else
    const char *number = strstr(full, "MPICH Version:");
    number = number ? number + 14 + strspn(number + 14, " \t") : MPICH_VERSION;
    snprintf(text, text_size, "MPICH %.*s", (int)strcspn(number, "\n"), number);
#endif
}

TERN_API extern const tern_transport tern_transport_plugin;
const tern_transport tern_transport_plugin = {.abi = TERN_TRANSPORT_ABI,
                                              .size = sizeof(tern_transport),
                                              .name = "mpi",
                                              .version = version,
                                              .open = transport_open,
                                              .close = transport_close,
                                              .send = message_send,
                                              .recv = message_recv,
                                              .test = message_test,
                                              .short_bytes = SHORT_BYTES};

TERN_API extern const tern_mpi tern_mpi_plugin;
const tern_mpi tern_mpi_plugin = {.abi = TERN_MPI_ABI,
                                  .size = sizeof(tern_mpi),
                                  .name = NAME,
                                  .transport = &tern_transport_plugin,
                                  .is_running = is_running,
                                  .start = mpi_start,
                                  .finish = mpi_finish,
                                  .world = world_handle,
                                  .place = mpi_place_in};
