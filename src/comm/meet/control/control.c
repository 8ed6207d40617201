/* control.c - opens and closes the control plane, and aborts. */
#include "comm/meet/control/inner.h"
#include "comm/store/hello.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- open and close ---- */

static int init_locks(tern__control *control, tern_error *err)
{
    pthread_condattr_t clock;
    int status = pthread_condattr_init(&clock);
    if (!status) status = pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    if (!status) status = pthread_mutex_init(&control->lock, NULL);
    if (!status) status = pthread_mutex_init(&control->send_lock, NULL);
    if (!status) status = pthread_mutex_init(&control->wake_lock, NULL);
    if (!status) status = pthread_cond_init(&control->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (!status) return TERN_OK;
    errno = status;
    return tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM, "cannot create a lock");
}

static tern__control *control_new(const tern__bootstrap *boot, double host_timeout_s, tern_error *err)
{
    size_t world = (size_t)boot->world;
    tern__control *control = tern__alloc(sizeof(*control), "tern_group_open", err);
    if (!control) return NULL;
    *control = (tern__control){.rank = boot->rank,
                               .world = boot->world,
                               .pid = getpid(),
                               .host_timeout_s = host_timeout_s,
                               .is_loud = boot->mpi != NULL, /* mpirun kills the other ranks at once */
                               .listen_fd = -1,
                               .listen_tcp = -1,
                               .late.mark = -1,
                               .wake_fd = -1};
    int status = init_locks(control, err);
    control->peers = tern__alloc(world * sizeof(*control->peers), "tern_group_open", err);
    for (int rank = 0; control->peers && rank < boot->world; rank++)
        control->peers[rank] = (tern__peer){.rank = rank, .fd = -1, .pidfd = -1};
    control->polls = tern__alloc((1 + 2 * world) * sizeof(*control->polls), "tern_group_open", err);
    if (!status && control->peers && control->polls && !tern__control_fork_begin(control, err))
        return control;
    tern__control_close(control);
    return NULL;
}

/* Tells the peers that are already connected why this rank gives up. */
static void fail_open(tern__control *control, const tern_error *why, tern_error *err)
{
    tern__control_abort(control, why->code, why->text);
    tern__control_close(control);
    tern__error_set(err, why->func, why->code, "%s", why->text);
    if (err && err->code == why->code) err->native = why->native;
}

tern__control *tern__control_open(const tern__bootstrap *boot, tern_store *store, double timeout_s,
                                  double host_timeout_s, tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err) || tern__hello_init(err)) return NULL;
    tern__control *control = control_new(boot, host_timeout_s, err);
    if (!control) return NULL;
    int status = tern__control_meet(control, boot, store, tern__deadline(timeout_s), &why);
    sodium_memzero(control->secret, sizeof(control->secret));
    if (!status && (control->wake_fd = tern__wake_fd_open(&why)) < 0) status = control->wake_fd;
    if (!status)
        status = tern__thread_start(&control->thread, tern__control_watch, control, "tern-control",
                                    "tern_group_open", &why);
    if (!status) {
        control->running = true;
        return control;
    }
    fail_open(control, &why, err);
    return NULL;
}

static void send_to_all(tern__control *control, tern__message *message)
{
    message->bytes = (uint32_t)strlen(message->text) + 1;
    for (int rank = 0; rank < control->world; rank++) {
        tern__peer *peer = &control->peers[rank];
        int native = peer->fd < 0 ? 0 : tern__line_send(control, peer, message);
        if (native && native != EPIPE && native != ECONNRESET)
            tern__log(TERN_LOG_WARN, "control: cannot send a message to rank %d: %s", rank, strerror(native));
    }
}

static void control_release(tern__control *control)
{
    tern__control_fork_end(control);
    tern__late_close(control);
    for (int rank = 0; control->peers && rank < control->world; rank++) {
        tern__close(&control->peers[rank].fd);
        tern__close(&control->peers[rank].pidfd);
        tern__free(control->peers[rank].stream);
    }
    while (control->parcels) {
        tern__parcel *dead = control->parcels;
        control->parcels = dead->next;
        tern__close(&dead->fd);
        tern__free(dead);
    }
    tern__close(&control->listen_fd);
    tern__close(&control->listen_tcp);
    tern__close(&control->wake_fd);
    pthread_cond_destroy(&control->changed);
    pthread_mutex_destroy(&control->wake_lock);
    pthread_mutex_destroy(&control->send_lock);
    pthread_mutex_destroy(&control->lock);
    tern__free(control->polls);
    tern__free(control->peers);
    tern__free(control);
}

/* Sends what the kernel has not taken yet: a goodbye that stays here would be taken for a death, and so would
 * the text of a failure. A host that takes nothing is not waited for. */
static void send_rest(tern__control *control)
{
    const double patience_s = 1;
    int64_t deadline = tern__deadline(patience_s);
    for (bool is_waiting = true; is_waiting && tern__now_ns() < deadline;) {
        is_waiting = false;
        for (int rank = 0; rank < control->world; rank++) {
            tern__peer *peer = &control->peers[rank];
            if (peer->fd < 0 || peer->gone) continue;
            tern__line_flush(control, peer);
            is_waiting |= tern__line_is_waiting(control, peer);
        }
        if (is_waiting) tern__poll(NULL, 0, tern__deadline(0.001));
    }
}

/* Makes sure that the other hosts receive the goodbye even if packets are lost. The first loop starts closing
 * on all connections at once, so that the waits of the second overlap. */
static void part_from_hosts(tern__control *control)
{
    for (int rank = 0; rank < control->world; rank++)
        if (control->peers[rank].stream) shutdown(control->peers[rank].fd, SHUT_WR);
    for (int rank = 0; rank < control->world; rank++)
        if (control->peers[rank].stream) tern__tcp_close(&control->peers[rank].fd);
}

/* The peers are told once, of the end or of a failure. Returns true the first time. */
static bool control_tell_once(tern__control *control)
{
    pthread_mutex_lock(&control->lock);
    bool told = control->told;
    control->told = true;
    pthread_mutex_unlock(&control->lock);
    return !told;
}

/* A forked child inherits the sockets, but it has no control thread and must not speak for the rank. */
static bool control_is_own(const tern__control *control)
{
    return control && control->running && control->pid == getpid();
}

void tern__control_goodbye(tern__control *control)
{
    tern__message goodbye = {.kind = TERN__MESSAGE_GOODBYE};
    if (control_is_own(control) && control_tell_once(control)) send_to_all(control, &goodbye);
}

void tern__control_close(tern__control *control)
{
    if (!control) return;
    tern__control_goodbye(control);
    if (control_is_own(control)) {
        atomic_store(&control->stop, true);
        tern__wake_fd_signal(control->wake_fd);
        pthread_join(control->thread, NULL);
        send_rest(control);
        if (tern__control_is_healthy(control)) part_from_hosts(control);
    }
    control_release(control);
}

/* ---- events ---- */

void tern__control_wake_set(tern__control *control, void (*wake)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&control->wake_lock);
    control->wake = wake;
    control->wake_ctx = ctx;
    pthread_mutex_unlock(&control->wake_lock);
}

void tern__control_tick_set(tern__control *control, void (*tick)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&control->wake_lock);
    control->tick = tick;
    control->tick_ctx = ctx;
    pthread_mutex_unlock(&control->wake_lock);
    tern__wake_fd_signal(control->wake_fd);
}

/* A rank that stops because of a peer relays that peer's message, so that every rank names the rank that
 * failed first. */
void tern__control_abort(tern__control *control, int code, const char *text)
{
    if (control->pid != getpid()) return;
    tern_error why = {0};
    tern__error_set(&why, NULL, code < 0 ? code : TERN_E_PEER, "%s", text);
    bool own = tern__control_fail(control, &why);
    if (!control_tell_once(control)) return;
    tern__message message = {.kind = own ? TERN__MESSAGE_ABORT : TERN__MESSAGE_RELAY,
                             .code = own ? control->event.code : control->event.native};
    memcpy(message.text, control->event.text, sizeof(message.text));
    send_to_all(control, &message);
    if (control->wake_fd >= 0) tern__wake_fd_signal(control->wake_fd);
}
