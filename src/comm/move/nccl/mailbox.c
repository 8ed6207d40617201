/* mailbox.c - messages between two ranks that both have the data on a GPU.
 *
 * NCCL has no tags and no TERN_ANY_SOURCE. It matches the calls of two ranks in the order in which they are
 * made. So messages are matched by the back end behind, by source and tag and with the same errors as those
 * of host memory. If both sides have their memory on a GPU, and not on the same one, a token is transferred
 * there instead of the data, and with it each side makes its call to NCCL. The token holds the NCCL id by
 * which the two find each other.
 *
 * There is no deadlock, whatever the order of messages among themselves and with collectives. Tokens from one
 * rank to another arrive in one order, that in which the receiver matches them. Each direction between two
 * ranks has a communicator of its own, so its calls follow that order. It also has a stream of its own, and
 * its kernel fits on the device together with the others (comm.c), so it waits for nothing else.
 *
 * A message is done when the device has moved it. The back end behind carries short messages, which are done
 * without a receive, messages to or from host memory, and those of any device but the first that sent or
 * received one. */
#include "base/hash.h"
#include "comm/move/match.h"
#include "comm/move/nccl/nccl.h"
#include "device/device.h"

#include <stdio.h>
#include <string.h>

enum { short_bytes = 16 << 10 };

typedef struct message {
    tern__transfer own; /* first: given to the mailbox behind */
    tern__transfer *of; /* the caller's                       */
    struct message *next;
    struct tern__nccl_mailbox *box;
    char token[TERN__TOKEN];
    tern__nccl_call call;
    tern__nccl_work work; /* its comm is NULL until the ranks have met */
} message;

typedef struct tern__nccl_mailbox {
    tern__nccl *nccl;
    message *pending, *spare;
    uint32_t place; /* hash of the GPU's UUID; 0: not known yet */
} mailbox;

_Static_assert(TERN__TOKEN == TERN__NCCL_ID, "a token holds an id");

/* ---- messages ---- */

static message *message_new(mailbox *box, tern_error *err)
{
    message *m = box->spare;
    if (m) box->spare = m->next;
    return m ? m : tern__alloc(sizeof(*m), "tern_send", err);
}

static void message_release(mailbox *box, message *m)
{
    message **at = &box->pending;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    tern__nccl_work_drop(&m->work);
    m->next = box->spare;
    box->spare = m;
}

static void message_finish(mailbox *box, message *m, int status)
{
    m->of->source = m->own.source;
    m->of->is_apart = m->own.is_apart;
    m->of->status = status;
    message_release(box, m);
}

static message *message_find(const mailbox *box, const tern__transfer *transfer)
{
    message *m = box->pending;
    while (m && m->of != transfer) m = m->next;
    return m;
}

/* ---- communicators ---- */

static tern__nccl_comm *comm_of(tern__nccl_device *gpu, int peer, bool is_recv, tern_error *err)
{
    char id[TERN__NCCL_ID] = {0};
    tern__nccl_comm *comm = gpu->comms;
    while (comm && (comm->peer != peer || comm->is_recv != is_recv)) comm = comm->next;
    if (comm || (!is_recv && gpu->nccl->plugin->id(id, err))) return comm;
    if (!(comm = tern__nccl_comm_new(gpu, err))) return NULL;
    comm->peer = peer;
    comm->is_recv = is_recv;
    memcpy(comm->id, id, sizeof(id));
    return comm;
}

/* ---- the device's part ---- */

/* The communicator has two ranks: the sender is 0, the receiver 1. */
static tern__nccl_call call_of(const tern__transfer *t)
{
    return (tern__nccl_call){.kind = t->is_recv ? TERN__NCCL_RECV : TERN__NCCL_SEND,
                             .from = t->is_recv ? NULL : t->home,
                             .to = t->is_recv ? t->home : NULL,
                             .count = t->count,
                             .dtype = t->dtype,
                             .peer = !t->is_recv};
}

static int message_launch(mailbox *box, message *m, tern_error *err)
{
    const tern__transfer *t = &m->own;
    int peer = t->is_recv ? t->source : t->peer;
    tern__nccl_device *gpu = box->nccl->mail_device;
    if (!gpu || gpu->ends) return tern__nccl_fail_ended(err);
    tern__nccl_comm *comm = comm_of(gpu, peer, t->is_recv, err);
    if (!comm) return err->code;
    int status = comm->ready ? TERN_OK : tern__nccl_comm_begin(comm, t->is_recv, 2, m->token, err);
    if (status) return status;
    m->call = call_of(t);
    m->work = (tern__nccl_work){.comm = comm, .call = &m->call};
    return tern__nccl_work_launch(&m->work, err);
}

/* The device also goes past a message that was aborted. That one stays pending: the group knows why, or
 * learns it soon. */
static int message_test(const message *m, tern_error *err)
{
    if (!m->work.launched) return TERN_PENDING;
    const tern__nccl_comm *comm = m->work.comm;
    tern_device *device = comm->gpu->device;
    int place = (int)((m->work.launched - 1) % TERN__NCCL_EVENTS);
    int status = device->backend->event_query(device, comm->events[place], err);
    return status || tern__nccl_comm_is_open(comm) ? status : TERN_PENDING;
}

/* ---- progress ---- */

/* Returns the message that was matched first among those that were not yet given to NCCL. */
static message *next_met(const mailbox *box)
{
    message *next = NULL;
    for (message *m = box->pending; m; m = m->next) {
        bool is_new = m->own.status != TERN_PENDING && !m->work.comm;
        if (is_new && (!next || m->own.ended < next->own.ended)) next = m;
    }
    return next;
}

/* A send waits on the device until the receiver's host has seen the token. That host may wait for its own
 * device first, since CUDA loads a kernel at its first launch. So after launching a send, look once more for
 * arrivals: if sends wait in a circle, one of the ranks then sees the token of another. */
static int message_settle(mailbox *box, message *m, tern_error *err)
{
    if (!m->own.is_apart || m->own.status) {
        message_finish(box, m, m->own.status);
        return TERN_OK;
    }
    int status = message_launch(box, m, err);
    return status || m->own.is_recv ? status : box->nccl->group->root->progress(box->nccl->group, err);
}

int tern__nccl_mailbox_advance(mailbox *box, tern_error *err)
{
    int status = TERN_OK;
    for (message *m; box && !status && (m = next_met(box));) status = message_settle(box, m, err);
    for (message *m = box ? box->pending : NULL, *next; m && !status; m = next) {
        next = m->next;
        status = message_test(m, err);
        if (!status) message_finish(box, m, TERN_OK);
        if (status == TERN_PENDING) status = TERN_OK;
    }
    return status;
}

/* ---- starting ---- */

static uint32_t place_of(const tern_device *device, const tern__nccl_plugin *plugin)
{
    unsigned char gpu[TERN__NCCL_GPU];
    if (plugin->gpu(device->index, gpu, NULL)) return 0;
    return tern__fnv_fold(tern__fnv(TERN__FNV, gpu, sizeof(gpu))) | 1;
}

/* Returns the device that carries the message; NULL: the back end behind carries it. The debug back end
 * checks host memory, which would stay untouched, so with it NCCL carries none. */
static tern__nccl_device *device_of(mailbox *box, const tern__transfer *t)
{
    bool is_watched = box->nccl->behind == &tern__comm_debug;
    if (!t->home || tern__transfer_bytes(t) <= short_bytes || is_watched) return NULL;
    tern__nccl_device *gpu = tern__nccl_mail_device_of(box->nccl, tern__memory_device(t->home));
    if (gpu && !box->place) box->place = place_of(gpu->device, box->nccl->plugin);
    return box->place ? gpu : NULL;
}

/* The receiver has its memory on the host or on the same GPU: the data go through the back end behind. */
static void message_fetch(tern__transfer *own)
{
    const message *m = (const message *)own;
    tern_error err = {0};
    if (tern__transfer_fetch(own, &err)) tern__group_fail(m->box->nccl->group, &err);
}

static int message_start(mailbox *box, tern__nccl_device *gpu, tern__transfer *t, tern_error *err)
{
    const tern__nccl_comm *comm = t->is_recv ? NULL : comm_of(gpu, t->peer, false, err);
    message *m = t->is_recv || comm ? message_new(box, err) : NULL;
    if (!m) return err->code;
    *m = (message){.own = *t, .of = t, .box = box, .next = box->pending};
    box->pending = m;
    m->own.place = box->place;
    m->own.token = m->token;
    m->own.fetch = message_fetch;
    if (comm) memcpy(m->token, comm->id, sizeof(m->token));
    int status = box->nccl->behind->transfer_start(box->nccl->state, &m->own, err);
    return status ? status : tern__nccl_mailbox_advance(box, err);
}

static mailbox *nccl_mailbox_open(tern__nccl *nccl, tern_error *err)
{
    mailbox *box = tern__alloc(sizeof(*box), "tern_send", err);
    if (box) *box = (mailbox){.nccl = nccl};
    return box;
}

int tern__nccl_transfer_start(void *state, tern__transfer *transfer, tern_error *err)
{
    tern__nccl *nccl = state;
    if (!nccl->mailbox) nccl->mailbox = nccl_mailbox_open(nccl, err);
    if (!nccl->mailbox) return err->code;
    tern__nccl_device *gpu = device_of(nccl->mailbox, transfer);
    if (gpu) return message_start(nccl->mailbox, gpu, transfer, err);
    int status = tern__transfer_fetch(transfer, err);
    return status ? status : nccl->behind->transfer_start(nccl->state, transfer, err);
}

/* ---- waiting ---- */

typedef struct wait {
    mailbox *box;
    const tern__transfer *transfer;
} wait;

static int message_is_over(void *of, tern_error *err)
{
    const wait *w = of;
    int status = tern__nccl_mailbox_advance(w->box, err);
    return !status && w->transfer->status == TERN_PENDING ? TERN_PENDING : status;
}

int tern__nccl_transfer_wait(void *state, const tern__transfer *transfer, tern_error *err)
{
    const tern__nccl *nccl = state;
    mailbox *box = nccl->mailbox;
    const message *m = message_find(box, transfer);
    char text[256], what[288];
    int status = nccl->behind->transfer_wait(nccl->state, m ? &m->own : transfer, err);
    if (status || transfer->status != TERN_PENDING) return status;
    tern__transfer_text(nccl->group, transfer, text, sizeof(text));
    snprintf(what, sizeof(what), "to be done with %s", text);
    int peer = m && m->own.is_recv ? m->own.source : transfer->peer;
    const tern__nccl_goal goal = {message_is_over, &(wait){box, transfer}, what, peer};
    return tern__nccl_await(nccl, &goal, err);
}

/* ---- life ---- */

bool tern__nccl_transfer_drop(void *state, tern__transfer *transfer, bool if_unmet)
{
    const tern__nccl *nccl = state;
    message *m = nccl->mailbox ? message_find(nccl->mailbox, transfer) : NULL;
    bool dropped = nccl->behind->transfer_drop(nccl->state, m ? &m->own : transfer, if_unmet);
    if (m && (dropped || !if_unmet)) message_release(nccl->mailbox, m);
    return dropped;
}

void tern__nccl_mailbox_leave(mailbox *box)
{
    tern_error why = {0};
    tern__nccl_mailbox_advance(box, &why);
    for (message *m = box ? box->pending : NULL, *next; m; m = next) {
        next = m->next;
        if (m->work.comm) message_finish(box, m, TERN_E_STATE);
    }
    if (box) box->place = 0;
}

void tern__nccl_mailbox_close(mailbox *box)
{
    for (message *m; box && (m = box->spare);) {
        box->spare = m->next;
        tern__free(m);
    }
    tern__free(box);
}
