/* p2p.c - messages between two ranks: send, receive, batches, and strings of bytes. */
#include "comm/call/p2p.h"

#include "comm/move/match.h"
#include "comm/call/request.h"
#include "comm/meet/failure.h"
#include "comm/meet/shm.h"
#include "device/device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- checks ---- */

/* A rank may not send to itself, as in PyTorch: it would wait for its own receive. */
static int check_peer(const tern_group *group, const char *func, const tern__transfer *t, tern_error *err)
{
    const char *what = t->is_recv ? "source" : "destination";
    int world = group->boot.world;
    if (t->is_recv && t->peer == TERN_ANY_SOURCE) {
        if (world > 1) return TERN_OK;
        return tern__error_set(err, func, TERN_E_INVALID, "source: the group has no other rank");
    }
    if (t->peer < 0 || t->peer >= world)
        return tern__error_set(err, func, TERN_E_RANGE, "%s is %d, expected 0 to %d", what, t->peer,
                               world - 1);
    if (t->peer != group->boot.rank) return TERN_OK;
    return tern__error_set(err, func, TERN_E_INVALID,
                           "%s is %d, this rank itself: the %s rank should not be the rank of the caller",
                           what, t->peer, what);
}

static int check_transfer(const tern_group *group, const char *func, const tern__transfer *t, tern_error *err)
{
    size_t bytes;
    if (t->tag < 0) return tern__error_set(err, func, TERN_E_RANGE, "tag is %d, expected at least 0", t->tag);
    if ((unsigned)t->dtype >= TERN_DTYPE_COUNT)
        return tern__error_set(err, func, TERN_E_DTYPE, "dtype %d is not one of tern's", (int)t->dtype);
    if (__builtin_mul_overflow(t->count, tern_dtype_bytes(t->dtype), &bytes) || bytes > (size_t)PTRDIFF_MAX)
        return tern__error_set(err, func, TERN_E_RANGE, "%zu %s are more than memory holds", t->count,
                               tern_dtype_name(t->dtype));
    if (t->count && !t->buf) return tern__call_fail_null(func, t->count, t->dtype, err);
    return check_peer(group, func, t, err);
}

/* ---- memory of devices: copied through the host, unless a back end for devices moves it ---- */

/* Gives a message in a device's memory a buffer on the host. The copy waits for the data to be computed,
 * unless the back end will fetch it. */
static int leave_home(const tern_group *group, tern__transfer *t, const char *func, tern_error *err)
{
    size_t bytes = tern__transfer_bytes(t);
    if (!bytes || !tern__memory_device(t->buf)) return TERN_OK;
    char *copy = tern__alloc_raw(bytes, TERN__LINE);
    if (!copy) return tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", bytes);
    t->home = t->buf;
    t->buf = copy;
    return group->backend->reaches_devices ? TERN_OK : tern__transfer_fetch(t, err);
}

/* Copies the received data to the device's memory, and frees the buffer. */
static int come_home(tern__transfer *t, tern_error *err)
{
    int status = TERN_OK;
    if (!t->home) return TERN_OK;
    if (t->is_recv && !t->status && !t->is_apart)
        status = tern__memory_copy(t->home, t->buf, tern__transfer_bytes(t), err);
    tern__free(t->buf);
    t->buf = t->home;
    t->home = NULL;
    return status;
}

/* ---- starting ---- */

static int transfer_start(tern_group *group, const char *func, tern__transfer *t, tern_error *err)
{
    t->status = TERN_PENDING;
    int status = tern__group_check(group, func, err);
    if (!status) status = leave_home(group, t, func, err);
    if (!status && (status = group->backend->transfer_start(group->state, t, err)))
        group->backend->transfer_drop(group->state, t, false);
    if (status) come_home(t, NULL);
    return status;
}

static int transfer_finish(tern_group *group, tern__transfer *t, tern_error *err)
{
    int status = t->status ? group->backend->transfer_wait(group->state, t, err) : TERN_OK;
    if (status) group->backend->transfer_drop(group->state, t, false);
    int returned = come_home(t, err);
    return status ? status : returned;
}

static int transfer_run(tern_group *group, const char *func, tern__transfer *t, tern_error *err)
{
    tern_error why = {0};
    int status = tern__call_given(group, func, err);
    if (status) return status;
    status = check_transfer(group, func, t, &why);
    if (!status) status = transfer_start(group, func, t, &why);
    if (!status) status = transfer_finish(group, t, &why);
    return status ? tern__call_fail(group, func, &why, err) : TERN_OK;
}

/* ---- works ---- */

static void message_free(tern_work *work)
{
    if (work->transfer.status == TERN_PENDING)
        work->group->backend->transfer_drop(work->group->state, &work->transfer, false);
    come_home(&work->transfer, NULL);
    tern__work_free(work);
}

static tern_work *message_post(tern_group *group, const char *func, const tern__transfer *t, tern_error *why)
{
    tern_work *work = tern__work_new(group->staging, func, why);
    if (!work) return NULL;
    *work = (tern_work){.group = group, .func = func, .is_transfer = true, .transfer = *t};
    if (!transfer_start(group, func, &work->transfer, why)) return work;
    tern__work_free(work);
    return NULL;
}

static tern_work *run_post(tern_group *group, const char *func, const tern__transfer *t, tern_error *err)
{
    tern_error why = {0};
    if (tern__call_given(group, func, err)) return NULL;
    tern_work *work = check_transfer(group, func, t, &why) ? NULL : message_post(group, func, t, &why);
    if (!work) tern__call_fail(group, func, &why, err);
    return work;
}

static int fail_message_closed(const tern_work *work, tern_error *err)
{
    return tern__error_set(err, work->func, TERN_E_STATE, "the work was not done when its group was closed");
}

/* Finishes a message that is done: TERN_OK, or its error. */
static int message_settle(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    if (work->transfer.status) return fail_message_closed(work, err);
    int status = come_home(&work->transfer, &why);
    return status ? tern__call_fail(work->group, work->func, &why, err) : TERN_OK;
}

int tern__p2p_test(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    tern__transfer *t = &work->transfer;
    if (t->status != TERN_PENDING) return message_settle(work, err);
    tern_group *group = work->group;
    int status = tern__group_check(group, work->func, &why);
    if (!status) status = group->root->progress(group, &why);
    if (status) return tern__call_fail(group, work->func, &why, err);
    return t->status == TERN_PENDING ? TERN_PENDING : message_settle(work, err);
}

int tern__p2p_wait_for(tern_work *work, tern_error *err)
{
    tern_error why = {0};
    tern__transfer *t = &work->transfer;
    if (t->status != TERN_PENDING) return message_settle(work, err);
    tern_group *group = work->group;
    int status = tern__group_check(group, work->func, &why);
    if (!status) status = group->backend->transfer_wait(group->state, t, &why);
    if (status == TERN_PENDING) return status;
    return status ? tern__call_fail(group, work->func, &why, err) : message_settle(work, err);
}

int tern__p2p_wait(tern_work *work, tern_error *err)
{
    int status = tern__p2p_wait_for(work, err);
    message_free(work);
    return status;
}

/* ---- closing ---- */

/* All ranks fail: the peer would wait for a message that nobody finishes. */
static void fail_unfinished(tern_group *group, const tern__transfer *t)
{
    char what[TERN__WORK_TEXT], text[TERN_ERROR_TEXT];
    tern_error why = {0};
    tern__transfer_text(group, t, what, sizeof(what));
    snprintf(text, sizeof(text), "rank %d has closed its group before its %s was done",
             tern_group_world_rank(group, group->boot.rank), what);
    tern__failure_set_in(group, TERN_E_PEER, text, &why);
    tern__group_fail(group, &why);
}

/* Returns the oldest message of the group that is not done, or NULL. */
static tern__transfer *oldest_pending(const tern_group *group)
{
    tern__transfer *oldest = NULL;
    for (tern_work *work = NULL; group->staging && (work = tern__staging_held(group->staging, work));)
        if (work->is_transfer && work->transfer.status == TERN_PENDING) oldest = &work->transfer;
    return oldest;
}

void tern__p2p_close(tern_group *group)
{
    const tern_error *error = &group->root->error; /* after a failure the control plane tells the peers */
    bool tells = group->root->pid == getpid() && !error->code;
    tern__transfer *t = oldest_pending(group);
    tern_error why = {0};
    int status = t && tells ? group->root->progress(group, &why) : TERN_OK;
    t = oldest_pending(group); /* some are done by now */
    if (t && tells && !error->code)
        fail_unfinished(group, t);
    else if (status)
        tern__group_fail(group, &why);
    for (; t; t = oldest_pending(group)) {
        t->status = TERN_E_STATE;
        group->backend->transfer_drop(group->state, t, false);
    }
}

/* ---- public ---- */

static tern__transfer send_of(const void *buf, size_t count, tern_dtype dtype, int dst, int tag)
{
    return (tern__transfer){.peer = dst, .tag = tag, .dtype = dtype, .count = count, .buf = (char *)buf};
}

static tern__transfer recv_of(void *buf, size_t count, tern_dtype dtype, int src, int tag)
{
    return (tern__transfer){
        .is_recv = true, .peer = src, .tag = tag, .dtype = dtype, .count = count, .buf = buf};
}

int tern_send(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst, int tag,
              tern_error *err)
{
    tern__transfer t = send_of(buf, count, dtype, dst, tag);
    return transfer_run(group, __func__, &t, err);
}

int tern_recv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag, int *source,
              tern_error *err)
{
    tern__transfer t = recv_of(buf, count, dtype, src, tag);
    int status = transfer_run(group, __func__, &t, err);
    if (!status && source) *source = t.source;
    return status;
}

tern_work *tern_isend(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst, int tag,
                      tern_error *err)
{
    tern__transfer t = send_of(buf, count, dtype, dst, tag);
    return run_post(group, __func__, &t, err);
}

tern_work *tern_irecv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag,
                      tern_error *err)
{
    tern__transfer t = recv_of(buf, count, dtype, src, tag);
    return run_post(group, __func__, &t, err);
}

int tern_work_source(tern_work *work, tern_error *err)
{
    if (!work || !work->is_transfer || !work->transfer.is_recv)
        return tern__error_set(err, __func__, TERN_E_INVALID, "work is %s, expected one of tern_irecv",
                               work ? work->func : "NULL");
    int status = tern__p2p_wait_for(work, err);
    return status ? status : work->transfer.source;
}

bool tern_work_cancel(tern_work *work)
{
    bool is_receive = work && work->is_transfer && work->transfer.is_recv;
    if (!is_receive || work->transfer.status != TERN_PENDING) return false;
    tern_group *group = work->group;
    if (tern__group_check(group, __func__, NULL)) return false;
    if (!group->backend->transfer_drop(group->state, &work->transfer, true)) return false;
    come_home(&work->transfer, NULL);
    tern__work_free(work);
    return true;
}

/* ---- batches ---- */

static int read_op(const tern_group *group, const tern_p2p *op, int i, const char *func, tern__transfer *t,
                   tern_error *err)
{
    bool receives = op->direction == TERN_RECV;
    tern_error why = {0};
    *t = receives ? recv_of(op->buf, op->count, op->dtype, op->peer, op->tag)
                  : send_of(op->buf, op->count, op->dtype, op->peer, op->tag);
    if (!receives && op->direction != TERN_SEND)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "ops[%d]: direction is %d, expected TERN_SEND or TERN_RECV", i,
                               (int)op->direction);
    int status = check_transfer(group, func, t, &why);
    return status ? tern__error_set(err, func, status, "ops[%d]: %s", i, why.text) : TERN_OK;
}

static int start_batch(tern_group *group, const tern_p2p *ops, int count, tern_work **works, const char *func,
                       tern_error *err)
{
    tern__transfer t;
    if (count < 0 || (count && (!ops || !works)))
        return tern__error_set(err, func, TERN_E_INVALID, "%d ops at %s", count,
                               ops && works ? "memory, expected at least 0" : "NULL");
    for (int i = 0; i < count; i++)
        if (read_op(group, &ops[i], i, func, &t, err)) return err->code;
    for (int i = 0; i < count; i++) {
        read_op(group, &ops[i], i, func, &t, err);
        works[i] = message_post(group, func, &t, err);
        if (works[i]) continue;
        while (i--) message_free(works[i]);
        return err->code;
    }
    return TERN_OK;
}

int tern_batch_isend_irecv(tern_group *group, const tern_p2p *ops, int count, tern_work **works,
                           tern_error *err)
{
    tern_error why = {0};
    int status = tern__call_given(group, __func__, err);
    if (!status) status = start_batch(group, ops, count, works, __func__, &why);
    if (!status) return TERN_OK;
    if (works && count > 0) memset(works, 0, (size_t)count * sizeof(*works));
    return why.code ? tern__call_fail(group, __func__, &why, err) : status;
}

/* ---- strings of bytes: the length, then the bytes, under one tag ---- */

static tern__transfer with_form(tern__transfer t, tern__form form)
{
    t.form = form;
    return t;
}

static int check_length(size_t count, const char *func, tern_error *err)
{
    if (count <= TERN_BYTES_MAX) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "a string of %zu bytes, expected at most %zu", count,
                           (size_t)TERN_BYTES_MAX);
}

int tern_send_bytes(tern_group *group, const void *bytes, size_t count, int dst, int tag, tern_error *err)
{
    int64_t length = (int64_t)count;
    tern__transfer first = with_form(send_of(&length, 1, TERN_I64, dst, tag), TERN__FORM_LENGTH);
    tern__transfer second = with_form(send_of(bytes, count, TERN_U8, dst, tag), TERN__FORM_BYTES);
    tern_error why = {0};
    int status = tern__call_given(group, __func__, err);
    if (status) return status;
    if (check_length(count, __func__, &why) || check_transfer(group, __func__, &second, &why))
        return tern__call_fail(group, __func__, &why, err);
    status = transfer_run(group, __func__, &first, err);
    return status ? status : transfer_run(group, __func__, &second, err);
}

static int make_string(tern_bytes *bytes, size_t count, const char *func, tern_error *err)
{
    if (check_length(count, func, err)) return err->code;
    *bytes = (tern_bytes){tern__alloc(count + 1, func, err), count};
    return err->code;
}

/* Receives the bytes for which *bytes has memory. */
static int recv_string(tern_group *group, tern_bytes *bytes, int src, int tag, const char *func,
                       tern_error *err)
{
    tern__transfer t = with_form(recv_of(bytes->data, bytes->count, TERN_U8, src, tag), TERN__FORM_BYTES);
    int status = transfer_run(group, func, &t, err);
    if (status) tern__free(bytes->data);
    return status;
}

int tern_recv_bytes(tern_group *group, tern_bytes *bytes, int src, int tag, int *source, tern_error *err)
{
    int64_t length = 0;
    tern_bytes came = {0};
    tern_error why = {0};
    tern__transfer t = with_form(recv_of(&length, 1, TERN_I64, src, tag), TERN__FORM_LENGTH);
    int status = tern__call_given(group, __func__, err);
    if (!status && !bytes) {
        tern__error_set(&why, __func__, TERN_E_INVALID, "bytes is NULL");
        return tern__call_fail(group, __func__, &why, err);
    }
    if (bytes) *bytes = came;
    if (!status) status = transfer_run(group, __func__, &t, err);
    if (status) return status;
    if (make_string(&came, (size_t)length, __func__, &why))
        return tern__call_fail(group, __func__, &why, err);
    status = recv_string(group, &came, t.source, tag, __func__, err);
    if (status) return status;
    *bytes = came;
    if (source) *source = t.source;
    return TERN_OK;
}

void tern_bytes_free(void *bytes)
{
    tern__free(bytes);
}
