/* meet.c - the meeting of all ranks. Every rank opens a socket and publishes its name in its rank info.
 * When a rank has every other's info, it connects to all lower ranks and then accepts all higher ones. Rank
 * 0 only accepts, rank 1 connects to rank 0 and then accepts, and so on, so no ranks wait for each other in
 * a circle. A rank whose meeting fails leaves a note for the others (note.c). */
#include "comm/meet/control/inner.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";
static const char info_name[] = "control/"; /* and the rank: an info's key */
static const double redial_pause_s = 0.02;

/* ---- rank infos ---- */

/* `first` is the info of the process that has the rank already, or NULL if that is none of tern's. */
static int fail_twice(int rank, const tern__rank_info *first, const tern__rank_info *own, tern_error *err)
{
    char one[128] = "another process", other[128];
    if (first) tern__rank_info_describe(first, rank, one, sizeof(one));
    tern__rank_info_describe(own, rank, other, sizeof(other));
    return tern__error_set(err, func, TERN_E_ENV, "RANK=%d is taken twice: by %s and by %s", rank, one,
                           other);
}

/* Claims the rank with its whole info, so that a process which claimed it in an earlier try and did not get
 * further knows itself. Returns 1: the rank is ours; 0: this is an earlier meeting's store, try again at
 * the next one; or a negative status. A store that closes the connection now (E_PEER) is an earlier
 * meeting's, too. If it is this one's, and only the answer was lost, the next try finds the rank claimed by
 * this very info. */
static int try_claim(int rank, const tern__rank_info *own, tern_store *store, tern_error *err)
{
    char key[32];
    tern__rank_info first;
    tern_error why = {0};
    const tern_store_value nobody = {"", 0}, mine = {own, sizeof(*own)};
    tern_store_value owner = nobody;
    snprintf(key, sizeof(key), "join/%d", rank);
    int status = tern_store_compare_set(store, key, nobody, mine, &owner, &why);
    if (status == TERN_E_PEER) return 0;
    if (status) return tern__error_set(err, func, status, "%s", why.text);
    if (owner.bytes == mine.bytes && !memcmp(owner.data, mine.data, mine.bytes)) return 1;
    bool is_known = tern__rank_info_read(&first, owner.data, owner.bytes);
    if (is_known && tern__rank_info_is_same_process(&first, own)) return 0;
    return fail_twice(rank, is_known ? &first : NULL, own, err);
}

/* A process that finds its own info in the store has given up a meeting that rank 0 has not left yet. It
 * dials the store again until rank 0 starts the next meeting. */
static int claim_rank(int rank, const tern__rank_info *own, tern_store *store, int64_t deadline,
                      tern_error *err)
{
    for (;;) {
        int claimed = try_claim(rank, own, store, err);
        if (claimed) return claimed < 0 ? claimed : TERN_OK;
        if (tern__now_ns() >= deadline)
            return tern__error_set(
                err, func, TERN_E_TIMEOUT,
                "%s still belongs to an earlier meeting, which this process, rank %d, has left", store->where,
                rank);
        tern__poll(NULL, 0, tern__deadline(redial_pause_s));
        int status = tern__store_redial(store, deadline, err);
        if (status) return status;
    }
}

static int fail_unmet(int first, int world, tern_store *store, tern_error *err)
{
    int status = tern__store_fail_missing(store, info_name, first, world, err);
    if (status) return status;
    return tern__error_set(err, func, TERN_E_TIMEOUT,
                           "all %d ranks came, but the last one only when the time was up", world);
}

static int check_info(tern__peer *peer, const tern__rank_info *own, int own_rank, tern_error *err)
{
    char one[128], other[128];
    const tern__rank_info *info = &peer->info;
    tern__rank_info_describe(own, own_rank, one, sizeof(one));
    tern__rank_info_describe(info, peer->rank, other, sizeof(other));
    if (info->world != own->world)
        return tern__error_set(err, func, TERN_E_ENV, "WORLD_SIZE=%d on %s, but %d on %s", own->world, one,
                               info->world, other);
    if (!strcmp(info->host_key, own->host_key) && info->pid_space == own->pid_space &&
        tern__peer_watch_pid(peer, info->pid) == ESRCH)
        return tern__peer_fail_lost(peer, err);
    return TERN_OK;
}

/* Reads what `rank` publishes: its info, or its address. */
typedef int (*getter)(void *into, int rank, tern_store *store, double timeout_s, tern_error *err);

static int get_info(void *into, int rank, tern_store *store, double timeout_s, tern_error *err)
{
    return tern__rank_info_get(into, info_name, rank, store, timeout_s, err);
}

static int get_address(void *into, int rank, tern_store *store, double timeout_s, tern_error *err)
{
    return tern__tcp_get(into, rank, store, timeout_s, err);
}

/* Rank 0 reports, once, which ranks have not come. */
static void warn_missing(tern__control *control, int rank, tern_store *store)
{
    tern_error missing = {0};
    if (control->rank != 0 || !tern__warn_is_due(&control->warn)) return;
    control->warn.at = INT64_MAX;
    if (tern__store_fail_missing(store, info_name, rank, control->world, &missing) == TERN_E_TIMEOUT)
        tern__log(TERN_LOG_WARN, "rank 0 still waits in tern_group_open: %s", missing.text);
}

/* Waits for what `rank` publishes, and checks for a note in between: it may say why nothing comes. */
static int await_published(tern__control *control, getter get, void *into, int rank, tern_store *store,
                           int64_t deadline, tern_error *err)
{
    for (;;) {
        tern_error why = {0};
        double left = tern__deadline_ms(deadline) * 1e-3;
        double slice = TERN__MIN(left, TERN__NOTE_INTERVAL_S);
        int status = get(into, rank, store, slice, &why);
        if (status == TERN_E_TIMEOUT) warn_missing(control, rank, store);
        if (status == TERN_E_TIMEOUT && left > slice)
            status = tern__note_check(store, &why);
        else if (status == TERN_OK || status == TERN_E_TIMEOUT)
            return status;
        if (status) return tern__error_set(err, func, status, "%s", why.text);
    }
}

static int gather_infos(tern__control *control, const tern__rank_info *own, tern_store *store,
                        int64_t deadline, tern_error *err)
{
    for (int rank = 0; rank < control->world; rank++) {
        tern__peer *peer = &control->peers[rank];
        if (rank == control->rank) continue;
        int status = await_published(control, get_info, &peer->info, rank, store, deadline, err);
        if (status == TERN_E_TIMEOUT) return fail_unmet(rank, control->world, store, err);
        if (!status) status = check_info(peer, own, control->rank, err);
        if (status) return status;
    }
    return TERN_OK;
}

/* ---- who is to blame ---- */

/* Another rank is the cause. If there is a note, it has the better reason: make it the event, so that its
 * own words are passed on. */
static void blame_others(tern__control *control, tern_store *store, tern_error *why)
{
    tern_error known = {0};
    if (tern__note_check(store, &known)) *why = known;
    tern__control_fail(control, why);
    if (why->code == TERN_E_PEER) tern__note_leave(store, why->code, why->text);
}

static void blame_oneself(const tern__control *control, tern_store *store, const tern_error *why)
{
    char who[128];
    tern_error full = {0};
    tern__control_describe(control, control->rank, who, sizeof(who));
    tern__error_set(&full, func, why->code, "%s failed: %s", who, why->text);
    tern__note_leave(store, full.code, full.text);
}

/* ---- hosts ---- */

/* Gives each rank the host number of the first rank with the same host key, so all ranks number the hosts
 * alike. */
static void number_hosts(tern__control *control)
{
    for (int rank = 0; rank < control->world; rank++) {
        tern__peer *peer = &control->peers[rank];
        int first = 0;
        while (strcmp(control->peers[first].info.host_key, peer->info.host_key)) first++;
        peer->host = first == rank ? control->hosts++ : control->peers[first].host;
    }
}

/* All ranks find the same mismatch, each by itself. No rank may leave before all have read all rank infos,
 * because rank 0's store ends with rank 0. */
static void await_readers(const tern__control *control, tern_store *store)
{
    int64_t deadline = tern__deadline(TERN__NOTE_SECONDS), readers = 0;
    int status = tern_store_add(store, "control/readers", 1, &readers, NULL);
    while (!status && readers < control->world && tern__now_ns() < deadline) {
        tern__poll(NULL, 0, tern__deadline(0.001));
        status = tern_store_add(store, "control/readers", 0, &readers, NULL);
    }
}

static const char *choice_of(const tern__control *control, int rank)
{
    return tern__comm_choice_name(&control->peers[rank].info.choice, control->hosts == 1);
}

static int fail_choice(const tern__control *control, int rank, tern_error *err)
{
    char one[128], other[128];
    tern__control_describe(control, 0, one, sizeof(one));
    tern__control_describe(control, rank, other, sizeof(other));
    return tern__error_set(err, func, TERN_E_MISMATCH,
                           "%s has the back end \"%s\", but %s has \"%s\": set TERN_BACKEND, or "
                           "tern_group_opts.backend, to the same on all ranks",
                           one, choice_of(control, 0), other, choice_of(control, rank));
}

static int check_choices(const tern__control *control, tern_store *store, tern_error *err)
{
    int rank = 1;
    while (rank < control->world && !strcmp(choice_of(control, 0), choice_of(control, rank))) rank++;
    if (rank >= control->world) return TERN_OK;
    await_readers(control, store);
    return fail_choice(control, rank, err);
}

static int make_streams(tern__control *control, tern_error *err)
{
    for (int rank = 0; rank < control->world; rank++) {
        if (tern__control_is_same_host(control, rank)) continue;
        control->peers[rank].stream = tern__alloc(sizeof(*control->peers[rank].stream), func, err);
        if (!control->peers[rank].stream) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

/* Opens the port for the other hosts; a job of one host opens none. */
static int open_port(tern__control *control, const tern__bootstrap *boot, tern_store *store, tern_error *err)
{
    if (control->hosts == 1) return TERN_OK;
    bool is_one_machine = true;
    for (int rank = 0; rank < control->world; rank++)
        is_one_machine &=
            tern__rank_info_is_same_machine(&control->peers[0].info, &control->peers[rank].info);
    int fd = tern__tcp_listen(boot, is_one_machine, &control->at, err);
    if (fd < 0) return fd;
    control->listen_tcp = fd;
    return tern__tcp_publish(&control->at, control->rank, store, err);
}

/* Derives the key of the handshakes from the job's secret and the meeting's random number. A connection
 * thus proves that both sides belong to this meeting, and even without a secret a rank of an earlier
 * attempt is refused. */
static void make_secret(tern__control *control, const uint8_t *secret)
{
    const tern__rank_info *zero = &control->peers[0].info;
    crypto_auth_hmacsha256(control->secret, zero->epoch, sizeof(zero->epoch), secret);
}

/* Gathers all addresses before the first connection: rank 0 may leave, and its store with it, once all
 * ranks have connected to it. */
static int gather_addresses(tern__control *control, tern_store *store, int64_t deadline, tern_error *err)
{
    int status = TERN_OK;
    for (int rank = 0; rank < control->rank && !status; rank++) {
        const tern__peer *peer = &control->peers[rank];
        if (!peer->stream) continue;
        tern__late_stage(control, rank, false);
        status = await_published(control, get_address, &peer->stream->at, rank, store, deadline, err);
        if (status == TERN_E_TIMEOUT) return tern__peer_fail_late(peer, "open its port", err);
    }
    return status;
}

static int control_meet(tern__control *control, const tern__bootstrap *boot, tern_store *store,
                        int64_t deadline, tern_error *err)
{
    tern__rank_info *own = &control->peers[control->rank].info;
    int status = tern__rank_info_make(own, boot, err);
    if (!status) status = tern__control_listen(control, own, err);
    if (!status) status = claim_rank(control->rank, own, store, deadline, err);
    if (!status) status = tern__rank_info_publish(own, info_name, control->rank, store, err);
    if (!status) status = gather_infos(control, own, store, deadline, err);
    if (status) return status;
    make_secret(control, boot->secret);
    number_hosts(control);
    status = check_choices(control, store, err);
    if (!status) status = make_streams(control, err);
    if (!status) status = open_port(control, boot, store, err);
    if (!status) status = gather_addresses(control, store, deadline, err);
    for (int rank = 0; rank < control->rank && !status; rank++) {
        tern__late_stage(control, rank, false);
        status = tern__control_connect(control, &control->peers[rank], deadline, err);
    }
    if (!status) status = tern__control_accept(control, store, deadline, err);
    if (!status) tern__control_wait_end(control, 0);
    return status;
}

int tern__control_meet(tern__control *control, const tern__bootstrap *boot, tern_store *store,
                       int64_t deadline, tern_error *err)
{
    control->warn = tern__warn_at(deadline);
    int status = tern__late_begin(control, boot, store, deadline, err);
    if (!status) status = control_meet(control, boot, store, deadline, err);
    tern__late_end(control);
    if (status && !tern__control_is_healthy(control)) {
        *err = (tern_error){0};
        status = tern__control_check(control, func, err);
    }
    if (status == TERN_E_PEER || status == TERN_E_TIMEOUT)
        blame_others(control, store, err);
    else if (status)
        blame_oneself(control, store, err);
    tern__close(&control->listen_fd);
    tern__close(&control->listen_tcp);
    return err->code;
}
