/* mail.c - messages between two ranks whose memory is on a GPU on both sides.
 *
 * NCCL knows no tags and no TERN_ANY_SOURCE, and matches what two ranks ask for in the order in which they
 * ask. So messages meet behind, as those of the host's memory do: by source and tag, with the same errors.
 * Where both sides have their memory on a GPU, and not on the same one, what goes over there is not the data
 * but a token, and with it each side asks NCCL for its part. Tokens from one rank to another come in
 * one order, that in which the receiver has found them; so NCCL's calls do, if each direction between two
 * ranks has a communicator of its own, and they wait for nothing else, if it has a stream of its own and fits
 * into the device beside them (line.c): no order of messages among themselves or beside collectives makes
 * devices wait for each other in a circle. The token says how the two find each other in NCCL.
 *
 * A message is done when the device has moved it. Short ones, which need no receive to be done, messages to
 * or from the host's memory, and those of any but the first device that has sent or received one go behind.
 */
#include "base/hash.h"
#include "comm/match.h"
#include "comm/nccl/nccl.h"
#include "comm/p2p.h"
#include "device/device.h"

#include <stdio.h>
#include <string.h>

enum { short_bytes = 16 << 10 };

typedef struct message {
    tern__transfer own; /* first: of the mailbox behind */
    tern__transfer *of; /* the caller's                 */
    struct message *next;
    struct tern__nccl_mailbox *box;
    char token[TERN__TOKEN];
    tern__nccl_call call;
    tern__nccl_work work; /* its line is NULL until the ranks have met */
} message;

typedef struct tern__nccl_mailbox {
    tern__nccl *nccl;
    void *behind;
    message *pending, *spare;
    uint32_t place; /* what tells the GPU from others; 0: not asked yet */
} mailbox;

_Static_assert(TERN__TOKEN == TERN__NCCL_ID, "a token is an id");

/* ---- messages ---- */

static message *take(mailbox *box, tern_error *err)
{
    message *m = box->spare;
    if (m) box->spare = m->next;
    return m ? m : tern__alloc(sizeof(*m), "tern_send", err);
}

static void give_back(mailbox *box, message *m)
{
    message **link = &box->pending;
    while (*link && *link != m) link = &(*link)->next;
    if (*link) *link = m->next;
    tern__nccl_work_drop(&m->work);
    m->next = box->spare;
    box->spare = m;
}

static void finish(mailbox *box, message *m, int status)
{
    m->of->source = m->own.source;
    m->of->is_apart = m->own.is_apart;
    m->of->status = status;
    give_back(box, m);
}

static message *find(const mailbox *box, const tern__transfer *transfer)
{
    message *m = box->pending;
    while (m && m->of != transfer) m = m->next;
    return m;
}

/* ---- lines ---- */

static tern__nccl_line *line_of(tern__nccl_link *link, int peer, bool is_recv, tern_error *err)
{
    char id[TERN__NCCL_ID] = {0};
    tern__nccl_line *line = link->lines;
    while (line && (line->peer != peer || line->is_recv != is_recv)) line = line->next;
    if (line || (!is_recv && link->nccl->plugin->id(id, err))) return line;
    if (!(line = tern__nccl_line_new(link, err))) return NULL;
    line->peer = peer;
    line->is_recv = is_recv;
    memcpy(line->id, id, sizeof(id));
    return line;
}

/* ---- the device's part ---- */

/* Of the two the sender is the first. */
static tern__nccl_call call_of(const tern__transfer *t)
{
    return (tern__nccl_call){.kind = t->is_recv ? TERN__NCCL_RECV : TERN__NCCL_SEND,
                             .from = t->is_recv ? NULL : t->home,
                             .to = t->is_recv ? t->home : NULL,
                             .count = t->count,
                             .dtype = t->dtype,
                             .peer = !t->is_recv};
}

static int ask(mailbox *box, message *m, tern_error *err)
{
    const tern__transfer *t = &m->own;
    int peer = t->is_recv ? t->source : t->peer;
    tern__nccl_link *link = box->nccl->mail;
    if (!link || link->ends) return tern__nccl_fail_ended(err);
    tern__nccl_line *line = line_of(link, peer, t->is_recv, err);
    if (!line) return err->code;
    int status = line->ready ? TERN_OK : tern__nccl_line_begin(line, t->is_recv, 2, m->token, err);
    if (status) return status;
    m->call = call_of(t);
    m->work = (tern__nccl_work){.line = line, .call = &m->call};
    return tern__nccl_work_launch(&m->work, err);
}

static int test(const message *m, tern_error *err)
{
    if (!m->work.launched) return TERN_PENDING;
    const tern__nccl_line *line = m->work.line;
    tern_device *device = line->link->device;
    int place = (int)((m->work.launched - 1) % TERN__NCCL_EVENTS);
    return device->backend->event_query(device, line->events[place], err);
}

/* ---- what becomes of messages ---- */

/* That have met and were not looked at, in the order in which they have. */
static message *next_met(const mailbox *box)
{
    message *next = NULL;
    for (message *m = box->pending; m; m = m->next) {
        bool is_new = m->own.status != TERN_PENDING && !m->work.line;
        if (is_new && (!next || m->own.ended < next->own.ended)) next = m;
    }
    return next;
}

/* A send waits in the device until its receiver's host has looked at the token, and that host may wait for
 * its own device first: CUDA loads a kernel when it is first launched. So whoever has asked for a send looks
 * once more what has come to it: of ranks whose sends wait in a circle one sees the token of another. */
static int settle(mailbox *box, message *m, tern_error *err)
{
    if (!m->own.is_apart || m->own.status) {
        finish(box, m, m->own.status);
        return TERN_OK;
    }
    int status = ask(box, m, err);
    return status || m->own.is_recv ? status : box->nccl->behind->carry(box->behind, err);
}

int tern__nccl_mailbox_advance(mailbox *box, tern_error *err)
{
    int status = TERN_OK;
    for (message *m; box && !status && (m = next_met(box));) status = settle(box, m, err);
    for (message *m = box ? box->pending : NULL, *next; m && !status; m = next) {
        next = m->next;
        status = test(m, err);
        if (!status) finish(box, m, TERN_OK);
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

/* NULL: it goes behind. The debug back end watches the host's memory, in which nothing would come. */
static tern__nccl_link *link_of(mailbox *box, const tern__transfer *t)
{
    bool is_watched = box->nccl->behind == &tern__comm_debug;
    if (!t->home || tern__transfer_bytes(t) <= short_bytes || is_watched) return NULL;
    tern__nccl_link *link = tern__nccl_mail_of(box->nccl, tern__memory_device(t->home));
    if (link && !box->place) box->place = place_of(link->device, box->nccl->plugin);
    return box->place ? link : NULL;
}

/* Its receiver is not on a GPU, or not on another one. */
static void fetch(tern__transfer *own)
{
    const message *m = (const message *)own;
    tern_error err = {0};
    if (tern__p2p_fetch(own, &err)) tern__group_fail(m->box->nccl->group, &err);
}

static int start(mailbox *box, tern__nccl_link *link, tern__transfer *t, tern_error *err)
{
    const tern__nccl_line *line = t->is_recv ? NULL : line_of(link, t->peer, false, err);
    message *m = t->is_recv || line ? take(box, err) : NULL;
    if (!m) return err->code;
    *m = (message){.own = *t, .of = t, .box = box, .next = box->pending};
    box->pending = m;
    m->own.place = box->place;
    m->own.token = m->token;
    m->own.fetch = fetch;
    if (line) memcpy(m->token, line->id, sizeof(m->token));
    int status = box->nccl->behind->start(box->behind, &m->own, err);
    return status ? status : tern__nccl_mailbox_advance(box, err);
}

int tern__nccl_mailbox_start(void *of, tern__transfer *transfer, tern_error *err)
{
    mailbox *box = of;
    tern__nccl_link *link = link_of(box, transfer);
    if (link) return start(box, link, transfer, err);
    int status = tern__p2p_fetch(transfer, err);
    return status ? status : box->nccl->behind->start(box->behind, transfer, err);
}

int tern__nccl_mailbox_carry(void *of, tern_error *err)
{
    mailbox *box = of;
    int status = box->nccl->behind->carry(box->behind, err);
    return status ? status : tern__nccl_advance(box->nccl, err);
}

/* ---- waiting ---- */

typedef struct goal {
    mailbox *box;
    const tern__transfer *transfer;
} goal;

static int is_over(void *of, tern_error *err)
{
    const goal *g = of;
    int status = tern__nccl_mailbox_advance(g->box, err);
    return !status && g->transfer->status == TERN_PENDING ? TERN_PENDING : status;
}

int tern__nccl_mailbox_await(void *of, const tern__transfer *transfer, tern_error *err)
{
    mailbox *box = of;
    const message *m = find(box, transfer);
    char text[256], what[288];
    int status = box->nccl->behind->await(box->behind, m ? &m->own : transfer, err);
    if (status || transfer->status != TERN_PENDING) return status;
    goal g = {box, transfer};
    tern__transfer_text(box->nccl->group, transfer, text, sizeof(text));
    snprintf(what, sizeof(what), "to be done with %s", text);
    return tern__nccl_await(box->nccl, is_over, &g, what, err);
}

/* ---- life ---- */

void *tern__nccl_mailbox_open(void *state, tern_error *err)
{
    tern__nccl *nccl = state;
    mailbox *box = tern__alloc(sizeof(*box), "tern_send", err);
    if (!box) return NULL;
    *box = (mailbox){.nccl = nccl, .behind = nccl->behind->mailbox_open(nccl->state, err)};
    if (box->behind) return nccl->mailbox = box;
    tern__free(box);
    return NULL;
}

void tern__nccl_mailbox_drop(void *of, tern__transfer *transfer)
{
    mailbox *box = of;
    message *m = find(box, transfer);
    box->nccl->behind->drop(box->behind, m ? &m->own : transfer);
    if (m) give_back(box, m);
}

void tern__nccl_mailbox_leave(mailbox *box)
{
    tern__nccl_mailbox_advance(box, NULL);
    for (message *m = box ? box->pending : NULL, *next; m; m = next) {
        next = m->next;
        if (m->work.line) finish(box, m, TERN_E_STATE);
    }
    if (box) box->place = 0;
}

/* One whose ranks have met, and that is not done: its other side waits for a device. */
static void fail_unfinished(const mailbox *box, const message *m)
{
    const tern_group *group = box->nccl->group;
    char what[256], text[TERN_ERROR_TEXT];
    if (m->own.status || !group->control || group->root->error.code) return;
    tern__transfer_text(group, &m->own, what, sizeof(what));
    snprintf(text, sizeof(text), "rank %d has closed its group before its %s was done",
             tern_group_world_rank(group, group->boot.rank), what);
    tern__control_abort(group->control, TERN_E_PEER, text);
}

void tern__nccl_mailbox_close(void *of)
{
    mailbox *box = of;
    tern__nccl_mailbox_advance(box, NULL);
    box->nccl->behind->mailbox_close(box->behind);
    for (message *m; (m = box->pending);) {
        fail_unfinished(box, m);
        finish(box, m, TERN_E_STATE);
    }
    for (message *m; (m = box->spare);) {
        box->spare = m->next;
        tern__free(m);
    }
    box->nccl->mailbox = NULL;
    tern__free(box);
}
