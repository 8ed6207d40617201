/* file.c - a store in a file. All users append records to the file, under its lock, and each keeps a copy of
 * it as a table. A query first reads the records that were appended since the last one, then runs on the
 * table as in the server, and appends its changes as records. A query that must wait is run again every 10
 * ms.
 *
 * A file that has no valid records, ends in the middle of one or has become shorter is an error at once;
 * PyTorch's readers wait for the rest for ever. */
#include "base/file.h"
#include "comm/store/query.h"
#include "comm/store/record.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const double look_interval_s = 0.01;
static const double remove_s = 1; /* to wait for the lock, to remove the file */
static const char users_key[] = "refcount/", done_key[] = "cleanup/";

typedef struct file_store {
    tern_store base;
    char *path;
    int world; /* the last of this many users removes the file; below 0: it is kept */
    tern__table *table;
    bool is_private;    /* only this user may read the file                                */
    bool is_abandoned;  /* the last user removes it, although not all of the world came    */
    bool is_user;       /* this process is counted in the file                             */
    int fd;             /* stays open, so that a file that replaces this one gets another inode */
    off_t at;           /* bytes of the file that are in the table                         */
    tern__buffer bytes; /* records, read or to be written                                  */
} file_store;

static const tern__store_ops ops;

/* One query while the file is open and locked. */
typedef struct visit {
    file_store *store;
    int64_t deadline;
    const char *func;
    tern_error *err;
} visit;

static int file_fail(const visit *v, const char *what)
{
    return tern__error_errno(v->err, v->func, TERN_E_IO, "%s: cannot %s", v->store->base.where, what);
}

static int file_spoiled(const visit *v, const char *how)
{
    return tern__error_set(v->err, v->func, TERN_E_FORMAT, "%s: byte %lld: %s", v->store->base.where,
                           (long long)v->store->at, how);
}

/* ---- opening and locking ---- */

/* Polls for the lock until the deadline, because a stopped process may hold it. */
static int file_lock(const visit *v, bool writes)
{
    while (flock(v->store->fd, (writes ? LOCK_EX : LOCK_SH) | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) return file_fail(v, "lock it");
        if (tern__now_ns() >= v->deadline)
            return tern__error_set(v->err, v->func, TERN_E_TIMEOUT, "%s: another process holds its lock",
                                   v->store->base.where);
        tern__poll(NULL, 0, tern__deadline(1e-3));
    }
    return TERN_OK;
}

static int file_refuse(const visit *v, const char *why)
{
    tern__close(&v->store->fd);
    return tern__error_set(v->err, v->func, TERN_E_IO, "%s: %s", v->store->base.where, why);
}

/* A private file is not opened through a symbolic link, with which another user could choose the place of the
 * file that this user creates. The checks are made on the descriptor that stays in use, since the path may
 * lead to another file a moment later. */
static int open_path(const visit *v)
{
    file_store *s = v->store;
    struct stat about;
    tern_error why = {0};
    int flags = O_RDWR | O_CREAT | O_APPEND | (s->is_private ? O_NOFOLLOW : 0);
    s->fd = tern__file_open(s->path, flags, s->is_private ? 0600 : 0644, &about, v->func, &why);
    if (s->fd < 0 && s->is_private && why.native == ELOOP) return file_refuse(v, "it is a symbolic link");
    if (s->fd < 0) {
        errno = why.native;
        return why.native ? file_fail(v, "open it")
                          : tern__error_set(v->err, v->func, why.code, "%s", why.text);
    }
    if (s->is_private && about.st_uid != geteuid()) return file_refuse(v, "it belongs to another user");
    if (s->is_private && about.st_mode & 077)
        return file_refuse(v,
                           "other users may open it, and it will contain a secret: set its mode to 600, or "
                           "remove it");
    return TERN_OK;
}

/* Opens and locks the file. A file that is removed before it is locked is opened again. */
static int open_locked(const visit *v, bool writes, struct stat *now)
{
    file_store *s = v->store;
    for (;;) {
        int status = s->fd < 0 ? open_path(v) : TERN_OK;
        if (!status) status = file_lock(v, writes);
        if (status) return status;
        if (fstat(s->fd, now)) return file_fail(v, "look at it");
        if (now->st_nlink || s->at) return TERN_OK;
        tern__close(&s->fd);
    }
}

static int file_enter(const visit *v, bool writes)
{
    struct stat now;
    int status = open_locked(v, writes, &now);
    if (status) return status;
    if (!now.st_nlink) return file_spoiled(v, "it was removed, or another file has taken its place");
    return now.st_size < v->store->at ? file_spoiled(v, "it is shorter than when it was read before")
                                      : TERN_OK;
}

/* ---- reading ---- */

static int file_read_some(const visit *v)
{
    enum { piece = 64 << 10 };
    tern__buffer *bytes = &v->store->bytes;
    if (!tern__buffer_reserve(bytes, piece))
        return tern__error_set(v->err, v->func, TERN_E_MEMORY, "out of memory for %s", v->store->base.where);
    ssize_t got;
    do got = pread(v->store->fd, bytes->data + bytes->bytes, piece, v->store->at + (off_t)bytes->bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) return file_fail(v, "read it");
    bytes->bytes += (size_t)got;
    return got > 0 ? TERN_PENDING : TERN_OK;
}

/* Applies the records that are complete. */
static int apply_records(const visit *v)
{
    file_store *s = v->store;
    size_t done = 0, used;
    tern__record_state state = TERN__RECORD_CUT;
    while (done < s->bytes.bytes) {
        tern__bytes rest = {s->bytes.data + done, s->bytes.bytes - done};
        state = tern__record_apply(s->table, rest, &used);
        if (state != TERN__RECORD_DONE) break;
        done += used;
        s->at += (off_t)used;
    }
    if (done) tern__buffer_consume(&s->bytes, done);
    return state == TERN__RECORD_BAD ? file_spoiled(v, "not a record of a file store, or one over a limit")
                                     : TERN_OK;
}

static int read_news(const visit *v)
{
    file_store *s = v->store;
    int status = TERN_PENDING;
    s->bytes.bytes = 0;
    while (status == TERN_PENDING) {
        status = file_read_some(v);
        int failed = status < 0 ? status : apply_records(v);
        if (failed) return failed;
    }
    return s->bytes.bytes ? file_spoiled(v, "the file ends in the middle of a record") : TERN_OK;
}

/* ---- writing ---- */

/* After a failed write the table has changes that the file lacks. Clears the table, so that the next query
 * reads the file from the start. */
static int file_forget(const visit *v, off_t size, const char *what)
{
    int saved = errno;
    bool cut = ftruncate(v->store->fd, size) == 0;
    tern__table_clear(v->store->table);
    v->store->at = 0;
    errno = saved;
    return file_fail(v, cut ? what : "write to it, nor remove the incomplete record");
}

static int write_records(const visit *v)
{
    file_store *s = v->store;
    for (size_t done = 0; done < s->bytes.bytes;) {
        ssize_t written = write(s->fd, s->bytes.data + done, s->bytes.bytes - done);
        if (written < 0 && errno != EINTR) return file_forget(v, s->at, "write to it");
        if (written > 0) done += (size_t)written;
    }
    s->at += (off_t)s->bytes.bytes;
    return TERN_OK;
}

/* Makes records of the current values of the query's keys. */
static bool make_records(file_store *s, tern__bytes query)
{
    bool is_multi = query.data[0] == TERN__QUERY_MULTI_SET, fine = true;
    tern__frame_cursor in = {query.data + 1};
    uint64_t keys = is_multi ? tern__take_number(&in) : 1;
    for (; keys && fine; keys--) {
        fine = tern__record_append(&s->bytes, s->table, tern__take_string(&in));
        if (is_multi) tern__take_string(&in);
    }
    return fine;
}

/* Returns true if a COMPARE_SET has set its key: then its answer is the desired value. */
static bool has_set(tern__bytes query, const tern__buffer *answer, size_t before)
{
    tern__frame_cursor in = {query.data + 1}, out = {answer->data + before};
    tern__take_string(&in);
    tern__take_string(&in);
    tern__bytes desired = tern__take_string(&in), now = tern__take_string(&out);
    return desired.bytes == now.bytes && !memcmp(desired.data, now.data, now.bytes);
}

static int file_publish(const visit *v, tern__bytes query, const tern__buffer *answer, size_t before)
{
    file_store *s = v->store;
    if (query.data[0] == TERN__QUERY_COMPARE_SET && !has_set(query, answer, before)) return TERN_OK;
    s->bytes.bytes = 0;
    if (make_records(s, query)) return write_records(v);
    errno = ENOMEM;
    return file_forget(v, s->at, "write to it");
}

/* ---- queries ---- */

/* Returns TERN_PENDING if the query must wait. */
static int file_run(const visit *v, tern__bytes query, tern__buffer *answer)
{
    file_store *s = v->store;
    tern__key_waiter waiter = {0};
    size_t before = answer->bytes;
    tern__query_result result = tern__query_run(s->table, query.data, &waiter, answer);
    while (tern__table_woken(s->table)) continue;
    tern__table_leave(s->table, &waiter);
    if (result == TERN__QUERY_BLOCKS) return TERN_PENDING;
    if (result == TERN__QUERY_DONE)
        return tern__query_writes(query.data[0]) ? file_publish(v, query, answer, before) : TERN_OK;
    tern__table_clear(s->table); /* a query of several keys may have set some */
    s->at = 0;
    return tern__error_set(v->err, v->func, TERN_E_INVALID,
                           "%s cannot run this query: it is full, or the value is not an integer in range",
                           s->base.where);
}

static int ask_once(const visit *v, tern__bytes query, tern__buffer *answer)
{
    int status = file_enter(v, tern__query_writes(query.data[0]));
    if (!status) status = read_news(v);
    if (!status) status = file_run(v, query, answer);
    if (v->store->fd >= 0) flock(v->store->fd, LOCK_UN);
    return status;
}

static int file_ask(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer,
                    const char *func, tern_error *err)
{
    const visit v = {(file_store *)root, deadline, func, err};
    if (query.data[0] == TERN__QUERY_QUEUE_PUSH || query.data[0] == TERN__QUERY_QUEUE_POP)
        return tern__error_set(err, func, TERN_E_UNSUPPORTED, "%s: a file store has no queues", root->where);
    for (;;) {
        int status = ask_once(&v, query, answer);
        if (status != TERN_PENDING) return status;
        if (tern__now_ns() >= deadline) return TERN_E_TIMEOUT;
        tern__poll(NULL, 0, TERN__MIN(deadline, tern__deadline(look_interval_s)));
    }
}

/* ---- opening and closing ---- */

/* Adds to a counter without the prefix, which no user's key can collide with. */
static int file_count(file_store *s, const char *key, int64_t delta, int64_t *sum, tern_error *err)
{
    s->base.prefix_bytes = 0;
    int status = tern_store_add(&s->base, key, delta, sum, err);
    s->base.prefix_bytes = strlen(s->base.prefix);
    return status;
}

/* Removes the file unless another user has come since this one has left. One that comes while it is removed
 * makes a new file. */
static void remove_unused(file_store *s)
{
    struct stat now;
    const visit v = {s, tern__deadline(remove_s), "tern_store_close", NULL};
    if (!file_enter(&v, true) && !fstat(s->fd, &now) && now.st_size == s->at) unlink(s->path);
    if (s->fd >= 0) flock(s->fd, LOCK_UN);
}

/* The last user removes the file, if `world` users have opened and closed it. */
static void file_leave(file_store *s)
{
    int64_t done, users;
    if (file_count(s, done_key, 1, &done, NULL) || file_count(s, users_key, -1, &users, NULL)) return;
    if (users <= 0 && s->world >= 0 && (done >= s->world || s->is_abandoned)) remove_unused(s);
}

static void file_release(file_store *s)
{
    tern__close(&s->fd);
    tern__table_free(s->table);
    tern__buffer_release(&s->bytes);
    tern__free(s->path);
    s->table = NULL;
    s->path = NULL;
}

static void file_store_close(tern_store *root)
{
    file_store *s = (file_store *)root;
    if (s->is_user) file_leave(s);
    file_release(s);
}

static tern_store *open_store(const char *path, int world, bool is_private, const char *func, tern_error *err)
{
    int64_t users;
    file_store *s = tern__alloc(sizeof(*s), func, err);
    if (!s) return NULL;
    int status = tern__store_init(&s->base, &ops, "/", func, err);
    s->world = world;
    s->is_private = is_private;
    s->fd = -1;
    snprintf(s->base.where, sizeof(s->base.where), "the store in \"%s\"", path);
    if (!status && !(s->path = tern__strdup(path, func, err))) status = TERN_E_MEMORY;
    if (!status && !(s->table = tern__table_new(TERN__STORE_KEYS_MAX, TERN__STORE_BYTES_MAX, func, err)))
        status = TERN_E_MEMORY;
    if (!status) status = file_count(s, users_key, 1, &users, err);
    s->is_user = !status;
    if (!status) return &s->base;
    tern_store_close(&s->base);
    return NULL;
}

tern_store *tern_store_file_open(const char *path, int world, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    if (path && *path) return open_store(path, world, false, __func__, err);
    tern__error_set(err, __func__, TERN_E_INVALID, "a file store needs a path");
    return NULL;
}

tern_store *tern__store_file_private(const char *path, int world, const char *func, tern_error *err)
{
    return open_store(path, world, true, func, err);
}

void tern__store_file_abandon(tern_store *store)
{
    ((file_store *)store)->is_abandoned = true;
}

static tern_store *file_store_clone(tern_store *root, tern_error *err)
{
    const file_store *s = (const file_store *)root;
    return open_store(s->path, s->world, s->is_private, "tern_store_clone", err);
}

static const tern__store_ops ops = {.ask = file_ask, .clone = file_store_clone, .close = file_store_close};
