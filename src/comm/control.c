#include "comm/control_inner.h"
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
    if (!status) status = pthread_mutex_init(&control->wake_lock, NULL);
    if (!status) status = pthread_cond_init(&control->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (!status) return TERN_OK;
    errno = status;
    return tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM, "cannot make a lock");
}

static tern__control *control_new(const tern__bootstrap *boot, tern_error *err)
{
    size_t world = (size_t)boot->world;
    tern__control *control = tern__alloc(sizeof(*control), "tern_group_open", err);
    if (!control) return NULL;
    *control = (tern__control){
        .rank = boot->rank, .world = boot->world, .pid = getpid(), .listen_fd = -1, .bell = -1};
    memcpy(control->secret, boot->secret, sizeof(control->secret));
    int status = init_locks(control, err);
    control->peers = tern__alloc(world * sizeof(*control->peers), "tern_group_open", err);
    for (int rank = 0; control->peers && rank < boot->world; rank++)
        control->peers[rank] = (tern__peer){.rank = rank, .fd = -1, .pidfd = -1};
    control->polls = tern__alloc((1 + 2 * world) * sizeof(*control->polls), "tern_group_open", err);
    if (!status && control->peers && control->polls) return control;
    tern__control_close(control);
    return NULL;
}

/* Peers that have already met this rank learn why it will not stay. */
static void fail_open(tern__control *control, const tern_error *why, tern_error *err)
{
    tern__control_abort(control, why->code, why->text);
    tern__control_close(control);
    tern__error_set(err, why->func, why->code, "%s", why->text);
    if (err && err->code == why->code) err->native = why->native;
}

tern__control *tern__control_open(const tern__bootstrap *boot, tern__store *store, double timeout_s,
                                  tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err) || tern__hello_init(err)) return NULL;
    tern__control *control = control_new(boot, err);
    if (!control) return NULL;
    int status = tern__control_meet(control, store, tern__deadline(timeout_s), &why);
    sodium_memzero(control->secret, sizeof(control->secret));
    if (!status && (control->bell = tern__bell_open(&why)) < 0) status = control->bell;
    if (!status)
        status = tern__thread_start(&control->thread, tern__control_watch, control, "tern-control", &why);
    if (!status) {
        control->running = true;
        return control;
    }
    fail_open(control, &why, err);
    return NULL;
}

static void send_to_all(const tern__control *control, const tern__message *message)
{
    size_t bytes = TERN__MESSAGE_HEAD + strlen(message->text) + 1;
    for (int rank = 0; rank < control->world; rank++) {
        const tern__peer *peer = &control->peers[rank];
        if (peer->fd < 0) continue;
        ssize_t sent = send(peer->fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EPIPE && errno != ECONNRESET)
            tern__log(TERN_LOG_WARN, "control: rank %d cannot be told: %s", rank, strerror(errno));
    }
}

static void release(tern__control *control)
{
    for (int rank = 0; control->peers && rank < control->world; rank++) {
        tern__close(&control->peers[rank].fd);
        tern__close(&control->peers[rank].pidfd);
    }
    while (control->parcels) {
        tern__parcel *dead = control->parcels;
        control->parcels = dead->next;
        tern__close(&dead->fd);
        tern__free(dead);
    }
    tern__close(&control->listen_fd);
    tern__close(&control->bell);
    pthread_cond_destroy(&control->changed);
    pthread_mutex_destroy(&control->wake_lock);
    pthread_mutex_destroy(&control->lock);
    tern__free(control->polls);
    tern__free(control->peers);
    tern__free(control);
}

/* A forked child has the sockets, but neither the thread nor the right to speak for the rank. */
void tern__control_close(tern__control *control)
{
    if (!control) return;
    if (control->running && control->pid == getpid()) {
        const tern__message goodbye = {.kind = TERN__MESSAGE_GOODBYE};
        if (!control->told) send_to_all(control, &goodbye);
        atomic_store(&control->stop, true);
        tern__bell_ring(control->bell);
        pthread_join(control->thread, NULL);
    }
    release(control);
}

/* ---- events ---- */

void tern__control_wake_set(tern__control *control, void (*wake)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&control->wake_lock);
    control->wake = wake;
    control->wake_ctx = ctx;
    pthread_mutex_unlock(&control->wake_lock);
}

bool tern__control_is_healthy(const tern__control *control)
{
    return !atomic_load_explicit(&control->failed, memory_order_relaxed);
}

int tern__control_check(const tern__control *control, const char *func, tern_error *err)
{
    if (!atomic_load_explicit(&control->failed, memory_order_acquire)) return TERN_OK;
    const tern_error *event = &control->event;
    bool fresh = err && !err->code;
    tern__error_set(err, func, event->code, "%s", event->text);
    if (fresh) err->native = event->native;
    return event->code;
}

bool tern__control_has_left(const tern__control *control, int peer)
{
    return atomic_load(&control->peers[peer].left);
}

bool tern__control_is_same_process(const tern__control *control, int peer)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);
    if (peer == control->rank) return true;
    if (getsockopt(control->peers[peer].fd, SOL_SOCKET, SO_PEERCRED, &cred, &size)) return false;
    return cred.pid == getpid();
}

void tern__control_describe(const tern__control *control, int peer, char *text, size_t size)
{
    tern__card_describe(&control->peers[peer].card, peer, text, size);
}

/* A rank that stops because of a peer passes on what it heard, so that every rank names the rank that failed
 * first. */
void tern__control_abort(tern__control *control, int code, const char *text)
{
    if (control->pid != getpid()) return;
    tern_error why = {0};
    tern__error_set(&why, NULL, code < 0 ? code : TERN_E_PEER, "%s", text);
    bool own = tern__control_fail(control, &why);
    pthread_mutex_lock(&control->lock);
    bool told = control->told;
    control->told = true;
    pthread_mutex_unlock(&control->lock);
    if (told) return;
    tern__message message = {.kind = own ? TERN__MESSAGE_ABORT : TERN__MESSAGE_RELAY,
                             .code = own ? control->event.code : control->event.native};
    memcpy(message.text, control->event.text, sizeof(message.text));
    send_to_all(control, &message);
    if (control->bell >= 0) tern__bell_ring(control->bell);
}

/* ---- descriptors ---- */

static int check_peer(const tern__control *control, int peer, tern_error *err)
{
    if (peer >= 0 && peer < control->world && peer != control->rank) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID,
                           "rank %d of %d can pass no descriptor to or from rank %d", control->rank,
                           control->world, peer);
}

static int fail_left(const tern__control *control, int peer, tern_error *err)
{
    char who[128];
    tern__control_describe(control, peer, who, sizeof(who));
    return tern__error_set(err, "tern_group_open", TERN_E_PEER, "%s has left the group", who);
}

static int send_once(int socket_fd, uint64_t tag, int fd)
{
    tern__message message = {.kind = TERN__MESSAGE_FD, .tag = tag};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } room = {0};
    struct iovec body = {.iov_base = &message, .iov_len = TERN__MESSAGE_HEAD + 1};
    struct msghdr header = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof(room.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    return sendmsg(socket_fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

/* The peer's end is closed: its goodbye or its death is about to be known. */
static int explain_closed(tern__control *control, int peer, tern_error *err)
{
    int64_t deadline = tern__deadline(1.0);
    while (tern__control_is_healthy(control) && !tern__control_has_left(control, peer) &&
           tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__now_ns() + 1000000);
    int status = tern__control_check(control, "tern_group_open", err);
    return status ? status : fail_left(control, peer, err);
}

int tern__control_send_fd(tern__control *control, int peer, uint64_t tag, int fd, tern_error *err)
{
    int status = check_peer(control, peer, err);
    if (status) return status;
    for (;;) {
        status = tern__control_check(control, "tern_group_open", err);
        if (status) return status;
        int native = send_once(control->peers[peer].fd, tag, fd);
        control->peers[peer].sent += !native;
        if (!native) return TERN_OK;
        if (native == EPIPE || native == ECONNRESET) return explain_closed(control, peer, err);
        errno = native;
        if (native != EAGAIN && native != EINTR)
            return tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM,
                                     "cannot pass descriptor %d to rank %d", fd, peer);
        struct pollfd room = {.fd = control->peers[peer].fd, .events = POLLOUT};
        tern__poll(&room, 1, tern__now_ns() + 10000000); /* short: a failure elsewhere must be seen too */
    }
}

/* Under the lock: takes the parcel out of the list, or NULL. */
static tern__parcel *take_parcel(tern__control *control, int peer, uint64_t tag)
{
    tern__parcel **link = &control->parcels;
    while (*link && ((*link)->peer != peer || (*link)->tag != tag)) link = &(*link)->next;
    tern__parcel *found = *link;
    if (found) *link = found->next;
    return found;
}

uint64_t tern__control_sent(const tern__control *control, int peer)
{
    return control->peers[peer].sent;
}

bool tern__control_lacks_fd(tern__control *control, int peer, uint64_t tag, uint64_t sent)
{
    pthread_mutex_lock(&control->lock);
    bool lacks = control->peers[peer].came >= sent;
    for (const tern__parcel *parcel = control->parcels; parcel; parcel = parcel->next)
        lacks &= parcel->peer != peer || parcel->tag != tag;
    pthread_mutex_unlock(&control->lock);
    return lacks;
}

/* Waits for the parcel, a failure, the peer's goodbye or the deadline. */
static tern__parcel *await_parcel(tern__control *control, int peer, uint64_t tag, int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    tern__parcel *found;
    int status = 0;
    pthread_mutex_lock(&control->lock);
    while (!(found = take_parcel(control, peer, tag)) && !control->event.code &&
           !tern__control_has_left(control, peer) && !status)
        status = pthread_cond_timedwait(&control->changed, &control->lock, &until);
    pthread_mutex_unlock(&control->lock);
    return found;
}

int tern__control_recv_fd(tern__control *control, int peer, uint64_t tag, double timeout_s, int *fd,
                          tern_error *err)
{
    int status = check_peer(control, peer, err);
    if (status) return status;
    tern__parcel *parcel = await_parcel(control, peer, tag, tern__deadline(timeout_s));
    if (parcel) {
        *fd = parcel->fd;
        tern__free(parcel);
        if (*fd >= 0) return TERN_OK;
        return tern__error_set(
            err, "tern_group_open", TERN_E_SYSTEM,
            "cannot take a descriptor from rank %d: this process has too many open (ulimit -n)", peer);
    }
    status = tern__control_check(control, "tern_group_open", err);
    if (status) return status;
    if (tern__control_has_left(control, peer)) return fail_left(control, peer, err);
    char who[128];
    tern__control_describe(control, peer, who, sizeof(who));
    return tern__error_set(err, "tern_group_open", TERN_E_TIMEOUT, "%s passed no descriptor within %.3g s",
                           who, timeout_s);
}
