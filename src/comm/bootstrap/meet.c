/* meet.c - finds rank 0 through a store.
 *
 * If it is not known beforehand where rank 0 will listen, rank 0 publishes its address in a store that all
 * ranks know: that of torchrun's agent, a file, or the caller's own. Each rank claims its number
 * ("claim/R") and publishes its info under "rank/R". Rank 0 reads every rank's info, which tell it whether
 * the job needs a port that other hosts can reach. It listens on a free port and publishes an invitation
 * under "word". A rank that has read the invitation adds 1 to "read", and the last one deletes all these
 * keys. So a later meeting in the same store finds none of them, unless this one has failed. A file of a
 * failed meeting is removed by the last rank that leaves it, but ranks that are killed leave their keys. A
 * later rank recognises them by the dead process of a info, or because there is an invitation before it has
 * come itself.
 *
 * If the user has set no secret, the invitation contains one. A process that can read the store belongs to
 * the job; one that merely knows the port does not. */
#include "comm/bootstrap/inner.h"
#include "comm/bootstrap/rank_info.h"
#include "comm/bootstrap/tcp.h"
#include "comm/store/hello.h"
#include "comm/store/listen.h"
#include "comm/store/store.h"

#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

/* Rank 0's invitation, under "word". */
typedef struct word {
    char magic[8];
    int32_t port;
    char addr[64];
    uint8_t secret[TERN__SECRET_BYTES];
    char failure[TERN_ERROR_TEXT]; /* if not "", why rank 0 has given up */
} word;

static const char word_magic[8] = "ternword";

/* Followed by the rank: the keys of its claim and of its info. */
static const char claim_name[] = "claim/", info_name[] = "rank/";

static const double agent_timeout_s = 30;

typedef struct meeting {
    tern__bootstrap *boot;
    tern_store *store;
    int64_t deadline;
    tern__warn_time warn; /* of the ranks that have not come */
    tern__rank_info own;
    bool is_one_machine;
    bool is_word_early; /* there was an invitation before this rank had published its info */
} meeting;

static void rank_key(const char *name, int rank, char key[32])
{
    snprintf(key, 32, "%s%d", name, rank);
}

/* ---- rank 0's word ---- */

/* Publishes a failure, too, so that the other ranks need not wait until they time out. */
static int leave_word(const meeting *m, const tern_error *why, tern_error *err)
{
    const tern__bootstrap *boot = m->boot;
    word w = {.port = boot->port};
    memcpy(w.magic, word_magic, sizeof(w.magic));
    snprintf(w.addr, sizeof(w.addr), "%.63s", boot->addr); /* always numeric */
    if (!boot->has_secret) memcpy(w.secret, boot->secret, sizeof(w.secret));
    if (why->code) snprintf(w.failure, sizeof(w.failure), "%s", why->text);
    int status = tern_store_set(m->store, "word", &w, sizeof(w), err);
    sodium_memzero(&w, sizeof(w));
    return status;
}

/* ---- rank infos ---- */

/* A rank whose info is there but whose process has ended belongs to an earlier job, or has died in this
 * one. The meeting cannot succeed either way. */
static int check_alive(const meeting *m, const tern__rank_info *info, int rank, tern_error *err)
{
    char name[128];
    if (!tern__rank_info_is_gone(info, &m->own)) return TERN_OK;
    tern__rank_info_describe(info, rank, name, sizeof(name));
    return tern__error_set(err, tern__boot_func, TERN_E_PEER, "%s is gone and has left its keys in %s%s",
                           name, m->store->root->where,
                           m->boot->file ? ": if it belongs to an earlier job, remove this file" : "");
}

static int fail_twice(const meeting *m, tern_error *err)
{
    char one[128] = "something that is not one of tern's ranks", other[128];
    int rank = m->boot->rank;
    tern__rank_info info;
    if (!tern__rank_info_get(&info, info_name, rank, m->store, 1.0, NULL)) {
        int status = check_alive(m, &info, rank, err);
        if (status && !rank) leave_word(m, err, NULL); /* the other ranks wait for it */
        if (status) return status;
        tern__rank_info_describe(&info, rank, one, sizeof(one));
    }
    tern__rank_info_describe(&m->own, rank, other, sizeof(other));
    return tern__error_set(err, tern__boot_func, TERN_E_ENV,
                           "rank %d is taken twice: by %s and by %s; or an earlier job that failed has left "
                           "its keys in %s",
                           rank, one, other, m->store->root->where);
}

/* Publishes the info with SET, not with COMPARE_SET, after which PyTorch 1's server does not wake the
 * clients that wait for the key. */
static int claim_rank(meeting *m, tern_error *err)
{
    char key[32];
    int64_t claims;
    rank_key(claim_name, m->boot->rank, key);
    int status = tern__rank_info_make(&m->own, m->boot, err);
    if (!status) status = tern_store_add(m->store, key, 1, &claims, err);
    if (status) return status;
    if (claims != 1) return fail_twice(m, err);
    int has = tern__store_has(m->store, "word", err);
    if (has < 0) return has;
    m->is_word_early = has > 0;
    return tern__rank_info_publish(&m->own, info_name, m->boot->rank, m->store, err);
}

static int fail_absent(const meeting *m, tern_error *err)
{
    tern_error why = {0};
    tern__rank_info info;
    int status = tern__store_fail_missing(m->store, info_name, 0, m->boot->world, &why);
    if (!status && !tern__rank_info_get(&info, info_name, 0, m->store, 0, NULL) &&
        check_alive(m, &info, 0, err))
        return TERN_E_PEER;
    if (!status)
        return tern__error_set(err, tern__boot_func, TERN_E_TIMEOUT,
                               "rank 0 did not publish its address in time");
    return tern__error_set(err, tern__boot_func, why.code, "%s", why.text);
}

/* Returns how long to wait before the next warning or the deadline. */
static double seconds_of_wait(const meeting *m)
{
    return tern__deadline_ms(TERN__MIN(m->warn.at, m->deadline)) * 1e-3;
}

/* The first rank that has come reports, once, which ones have not. If all have, rank 0 should have
 * published its address: rank 1 reports that. True: the wait goes on. */
static bool warn_missing(meeting *m)
{
    tern_error missing = {0};
    char key[32];
    int own = m->boot->rank, first = 0;
    if (tern__now_ns() < m->warn.at || tern__now_ns() >= m->deadline) return false;
    if (!tern__warn_is_due(&m->warn)) return true;
    m->warn.at = INT64_MAX;
    for (bool has = false; first < own && !has; first += !has) {
        rank_key(info_name, first, key);
        has = tern__store_has(m->store, key, NULL) == 1;
    }
    bool is_short =
        tern__store_fail_missing(m->store, info_name, 0, m->boot->world, &missing) == TERN_E_TIMEOUT;
    if (is_short && first == own)
        tern__log(TERN_LOG_WARN, "rank %d still waits in tern_group_open: %s", own, missing.text);
    else if (!is_short && own == 1)
        tern__log(TERN_LOG_WARN,
                  "rank 1 still waits in tern_group_open for rank 0's address: is it stopped?");
    return true;
}

/* `why`: the error of what this rank waited for. */
static int fail_await(const meeting *m, const tern_error *why, tern_error *err)
{
    if (why->code == TERN_E_TIMEOUT) return fail_absent(m, err);
    return tern__error_set(err, tern__boot_func, why->code, "%s", why->text);
}

static int look_at_machines(meeting *m, tern_error *err)
{
    tern_error why = {0};
    m->is_one_machine = true;
    for (int rank = 1; rank < m->boot->world; rank++) {
        tern__rank_info info;
        while (tern__rank_info_get(&info, info_name, rank, m->store, seconds_of_wait(m), &why)) {
            if (why.code != TERN_E_TIMEOUT || !warn_missing(m)) return fail_await(m, &why, err);
            why = (tern_error){0};
        }
        int status = check_alive(m, &info, rank, err);
        if (status) return status;
        m->is_one_machine &= tern__rank_info_is_same_machine(&info, &m->own);
    }
    return TERN_OK;
}

/* ---- rank 0: the invitation ---- */

static int listen_inside(tern__bootstrap *boot, tern_error *err)
{
    snprintf(boot->addr, sizeof(boot->addr), "127.0.0.1");
    boot->port = 0;
    return tern__listen(boot, err);
}

static int listen_outside(tern__bootstrap *boot, tern_error *err)
{
    struct sockaddr_storage at;
    int fd = tern__tcp_listen(boot, false, &at, err);
    if (fd >= 0) tern__tcp_host(&at, boot->addr, sizeof(boot->addr));
    return fd;
}

/* A job on one machine must not be reachable from another one. */
int tern__boot_listen(tern__bootstrap *boot, bool is_one_machine, tern_error *err)
{
    boot->listen_fd = is_one_machine ? listen_inside(boot, err) : listen_outside(boot, err);
    if (boot->listen_fd < 0) return boot->listen_fd;
    boot->port = tern__port_of(boot->listen_fd);
    return TERN_OK;
}

static void make_secret(tern__bootstrap *boot)
{
    if (!boot->has_secret) randombytes_buf(boot->secret, sizeof(boot->secret));
}

static int invite_rank(meeting *m, tern_error *err)
{
    int status = look_at_machines(m, err);
    if (!status) status = tern__boot_listen(m->boot, m->is_one_machine, err);
    if (!status) make_secret(m->boot);
    int left = leave_word(m, err, status ? NULL : err);
    return status ? status : left;
}

/* ---- the other ranks: reading it ---- */

static int fail_word(size_t bytes, tern_error *err)
{
    return tern__error_set(err, tern__boot_func, TERN_E_PEER,
                           "rank 0 published a malformed invitation of %zu bytes, expected %zu", bytes,
                           sizeof(word));
}

/* Rank 0 invites only once it has this rank's info. An invitation that was there before is an earlier
 * job's; a failure may be this job's, too. */
static int fail_early_word(const meeting *m, const word *w, tern_error *err)
{
    const char *place = m->store->root->where, *file = m->boot->file ? ": remove this file" : "";
    if (*w->failure)
        return tern__error_set(err, tern__boot_func, TERN_E_PEER,
                               "rank 0: %.250s; or an earlier job that failed has left its keys in %s%s",
                               w->failure, place, file);
    return tern__error_set(err, tern__boot_func, TERN_E_PEER, "an earlier job has left its keys in %s%s",
                           place, file);
}

static int take_word(const meeting *m, const word *w, tern_error *err)
{
    tern__bootstrap *boot = m->boot;
    if (memcmp(w->magic, word_magic, sizeof(w->magic)) || !memchr(w->addr, 0, sizeof(w->addr)) ||
        !memchr(w->failure, 0, sizeof(w->failure)))
        return fail_word(sizeof(*w), err);
    if (*w->failure && !m->is_word_early)
        return tern__error_set(err, tern__boot_func, TERN_E_PEER, "rank 0: %s", w->failure);
    if (!*w->failure && (w->port < 1 || w->port > 65535)) return fail_word(sizeof(*w), err);
    if (m->is_word_early) return fail_early_word(m, w, err);
    memcpy(boot->addr, w->addr, sizeof(w->addr));
    boot->port = w->port;
    if (!boot->has_secret) memcpy(boot->secret, w->secret, sizeof(boot->secret));
    return TERN_OK;
}

static int read_word(meeting *m, tern_error *err)
{
    size_t bytes;
    word w;
    tern_error why = {0};
    while (tern__store_read(m->store, "word", &w, sizeof(w), &bytes, seconds_of_wait(m), &why)) {
        if (why.code != TERN_E_TIMEOUT || !warn_missing(m)) return fail_await(m, &why, err);
        why = (tern_error){0};
    }
    int status = bytes == sizeof(w) ? take_word(m, &w, err) : fail_word(bytes, err);
    sodium_memzero(&w, sizeof(w));
    return status;
}

/* ---- the end ---- */

static int clean_up(const meeting *m, tern_error *err)
{
    int64_t readers;
    int status = tern_store_add(m->store, "read", 1, &readers, err);
    if (status || readers < m->boot->world) return status;
    for (int rank = 0; rank < m->boot->world && status >= 0; rank++) {
        char key[32];
        rank_key(info_name, rank, key);
        status = tern_store_delete(m->store, key, err);
        rank_key(claim_name, rank, key);
        if (status >= 0) status = tern_store_delete(m->store, key, err);
    }
    if (status >= 0) status = tern_store_delete(m->store, "word", err);
    if (status >= 0) status = tern_store_delete(m->store, "read", err);
    return status < 0 ? status : TERN_OK;
}

static int meet_in(tern__bootstrap *boot, tern_store *store, double timeout_s, tern_error *err)
{
    meeting m = {.boot = boot, .store = store, .deadline = tern__deadline(timeout_s)};
    m.warn = tern__warn_at(m.deadline);
    int status = tern__hello_init(err);
    if (!status) status = claim_rank(&m, err);
    if (!status) status = boot->rank == 0 ? invite_rank(&m, err) : read_word(&m, err);
    return status ? status : clean_up(&m, err);
}

/* ---- the store ---- */

/* An agent starts before its ranks, so there is no point in waiting long for one. */
static tern_store *open_agents(const tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    tern_error why = {0};
    tern_store_tcp_opts opts = tern_store_tcp_defaults();
    opts.timeout_s = TERN__MIN(timeout_s, agent_timeout_s);
    tern_store *store = tern_store_tcp_open(boot->addr, boot->port, &opts, &why);
    if (!store)
        tern__error_set(
            err, tern__boot_func, why.code,
            "TORCHELASTIC_USE_AGENT_STORE=True, but torchrun's agent serves no store at %s port %d: %s",
            boot->addr, boot->port, why.text);
    return store;
}

static tern_store *open_file(const tern__bootstrap *boot, tern_error *err)
{
    char path[PATH_MAX];
    if (boot->file_bytes >= sizeof(path)) {
        tern__error_set(err, tern__boot_func, TERN_E_INVALID,
                        "init_method's path has %zu characters, at most %zu fit", boot->file_bytes,
                        sizeof(path) - 1);
        return NULL;
    }
    memcpy(path, boot->file, boot->file_bytes);
    path[boot->file_bytes] = '\0';
    return tern__store_file_private(path, boot->world, tern__boot_func, err);
}

/* Opens this job's and this attempt's part of the store, so that a restarted rank does not read the keys of
 * the last attempt. */
static tern_store *open_part(tern_store *store, tern_error *err)
{
    char prefix[256];
    const char *run = tern__env("TORCHELASTIC_RUN_ID"), *attempt = tern__env("TORCHELASTIC_RESTART_COUNT");
    snprintf(prefix, sizeof(prefix), "tern/%.200s/%.20s", run ? run : "none", attempt ? attempt : "0");
    return tern_store_prefix_new(prefix, store, err);
}

static int meet_in_part(tern__bootstrap *boot, tern_store *store, double timeout_s, tern_error *err)
{
    tern_store *part = open_part(store, err);
    if (!part) return err->code;
    int status = meet_in(boot, part, timeout_s, err);
    tern_store_close(part);
    return status;
}

int tern__boot_meet(tern__bootstrap *boot, double timeout_s, tern_error *err)
{
    tern_error why = {0};
    tern_store *own = NULL;
    if (boot->world == 1 || !(boot->store || boot->file || boot->by_agent)) return TERN_OK;
    if (boot->file) own = open_file(boot, &why);
    if (boot->by_agent) own = open_agents(boot, timeout_s, &why);
    if (!why.code) meet_in_part(boot, own ? own : boot->store, timeout_s, &why);
    if (own && why.code && boot->file) tern__store_file_abandon(own);
    tern_store_close(own);
    boot->store = NULL;
    boot->file = NULL;
    if (!why.code) return TERN_OK;
    tern__close(&boot->listen_fd);
    return tern__error_set(err, tern__boot_func, why.code, "%s", why.text);
}
