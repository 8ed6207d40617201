/* late.c - what a rank does while it waits in the meeting. It serves the peers that are connected already,
 * and warns of a rank that is stopped (after 10 s) and of one that has not come any further (after 30 s), or
 * after half of a shorter wait.
 *
 * All ranks open the group together, so a stopped one holds up every other one, whichever of them waits for
 * it. One that has not come may be held up itself; if it is a rank of this host, its mark says so. Of the
 * ranks of a host the first that finds a culprit claims it, and warns (store/missing.c has marks and claims).
 */
#include "comm/meet/control/inner.h"

#include "base/text.h"

#include <errno.h>

void tern__control_warn_stopped(const tern__control *control, int rank, const char *what, bool is_seen,
                                double timeout_s)
{
    char who[128];
    tern__control_describe(control, rank, who, sizeof(who));
    if (is_seen)
        tern__log(TERN_LOG_WARN,
                  "%s is stopped (by SIGSTOP or a debugger) while rank %d waits for it in %s; SIGCONT "
                  "continues it, and the wait fails after %g s",
                  who, control->rank, what, timeout_s);
    else
        tern__log(
            TERN_LOG_WARN,
            "%s does not answer while rank %d waits for it in %s, although its host does: it is stopped "
            "(by SIGSTOP, a debugger or a frozen control group); SIGCONT continues it, and the wait "
            "fails after %g s",
            who, control->rank, what, timeout_s);
}

void tern__control_warn_absent(const tern__control *control, const bool *ranks, const char *what)
{
    enum { named_max = 4 };
    char who[128], names[640] = "";
    int count = 0;
    for (int rank = 0; rank < control->world; rank++) {
        if (!ranks[rank] || ++count > named_max) continue;
        tern__control_describe(control, rank, who, sizeof(who));
        tern__text_append(names, sizeof(names), "%s%s", count > 1 ? ", " : "", who);
    }
    if (count > named_max) tern__text_append(names, sizeof(names), " and %d more", count - named_max);
    tern__log(TERN_LOG_WARN, "rank %d still waits in %s for %s: %s not come any further; %s", control->rank,
              what, names, count > 1 ? "these have" : "it has",
              count > 1 ? "do they hang?" : "does it hang?");
}

/* ---- claims: until the group is open ---- */

bool tern__control_claim(tern__control *control, const tern__bootstrap *boot, int rank)
{
    tern__late *late = &control->late;
    int fd = tern__mark_claim(boot, rank);
    if (fd < 0) return errno != EADDRINUSE;
    if (late->claim_count < TERN__CLAIMS)
        late->claims[late->claim_count++] = fd;
    else
        tern__close(&fd);
    return true;
}

void tern__control_unclaim(tern__control *control)
{
    tern__late *late = &control->late;
    while (late->claim_count) tern__close(&late->claims[--late->claim_count]);
}

/* ---- the meeting ---- */

static bool is_awaited(const tern__control *control, int rank)
{
    const tern__late *late = &control->late;
    if (rank == control->rank) return false;
    if (rank == 0 && late->is_store_silent) return true;
    return late->accepts ? rank > control->rank && control->peers[rank].fd < 0 : rank == late->awaited;
}

static void warn_of_stopped(tern__control *control)
{
    for (int rank = 0; rank < control->world; rank++)
        if (tern__control_is_stopped(control, rank) && tern__control_claim(control, control->late.boot, rank))
            tern__control_warn_stopped(control, rank, "tern_group_open", true, control->late.timeout_s);
}

/* A rank of this host that waits itself is held up, too, by one of which it warns. */
static bool is_held_up(const tern__control *control, int rank)
{
    return tern__mark_is_made(control->late.boot, rank) && !tern__control_is_stopped(control, rank);
}

static void warn_of_absent(tern__control *control)
{
    tern__late *late = &control->late;
    bool finds = false;
    for (int rank = 0; rank < control->world; rank++) {
        late->ranks[rank] = is_awaited(control, rank) && !is_held_up(control, rank) &&
                            tern__control_claim(control, late->boot, rank);
        finds |= late->ranks[rank];
    }
    if (!finds) return;
    late->absent.at = INT64_MAX;
    if (late->is_store_silent && late->ranks[0])
        tern__log(TERN_LOG_WARN,
                  "rank %d still waits in tern_group_open for %s, which does not answer: is rank 0 stopped?",
                  control->rank, late->store->where);
    else
        tern__control_warn_absent(control, late->ranks, "tern_group_open");
}

/* Before the control thread runs, its `polls` are free. */
static void serve_peers(tern__control *control)
{
    struct pollfd *polls = control->polls + 1;
    tern__control_prepare(control, polls);
    for (int rank = 0; rank < control->world; rank++) polls[2 * rank + 1].fd = -1;
    if (tern__poll(polls, (nfds_t)(2 * control->world), tern__now_ns()) <= 0) return;
    for (int rank = 0; rank < control->world; rank++)
        if (polls[2 * rank].fd >= 0)
            tern__control_serve_peer(control, &control->peers[rank], polls[2 * rank].revents, 0);
}

/* While rank infos are missing, rank 0 warns of those (meet.c), and only its store can hold a rank up. */
void tern__late_look(tern__control *control)
{
    tern__late *late = &control->late;
    int64_t now = tern__now_ns();
    serve_peers(control);
    if (now < late->look_at || !(control->hosts || late->is_store_silent)) return;
    late->look_at = now + late->look_ns;
    if (now >= late->say_at && late->mark < 0) late->mark = tern__mark_make(late->boot);
    if (now >= late->say_at) tern__control_wait_set(control, "tern_group_open", late->awaited);
    if (tern__warn_is_due(&late->stopped)) warn_of_stopped(control);
    if (tern__warn_is_due(&late->absent)) warn_of_absent(control);
}

/* Rank 0's store answers at once, or at the end of a slice of NOTE_INTERVAL_S, or soon after on a busy
 * machine. When the control thread runs, it serves the peers. A failure elsewhere ends the wait. */
static int look_from_store(void *ctx, int64_t since)
{
    tern__control *control = ctx;
    if (!control->running) {
        control->late.is_store_silent = tern__now_ns() - since > control->late.silent_ns;
        tern__late_look(control);
        control->late.is_store_silent = false;
    }
    return tern__control_is_healthy(control) ? 0 : -ECANCELED;
}

int tern__late_begin(tern__control *control, const tern__bootstrap *boot, tern_store *store, int64_t deadline,
                     tern_error *err)
{
    tern__late *late = &control->late;
    late->ranks = tern__alloc((size_t)control->world * sizeof(*late->ranks), "tern_group_open", err);
    if (!late->ranks) return TERN_E_MEMORY;
    late->boot = boot;
    late->store = store;
    late->timeout_s = (double)(deadline - tern__now_ns()) * 1e-9;
    store->look = look_from_store;
    store->look_ctx = control;
    tern__late_stage(control, -1, false);
    return TERN_OK;
}

void tern__late_stage(tern__control *control, int awaited, bool accepts)
{
    const double warn_s = 10;
    tern__late *late = &control->late;
    double seconds = TERN__MIN(warn_s, late->timeout_s / 2);
    late->awaited = awaited;
    late->accepts = accepts;
    late->look_ns = (int64_t)(seconds * 1e8);
    late->silent_ns = TERN__MAX(5 * late->look_ns, (int64_t)(2e9 * TERN__NOTE_INTERVAL_S));
    late->look_at = 0;
    late->say_at = tern__deadline(seconds / 2);
    late->stopped = (tern__warn_time){.at = tern__deadline(seconds)};
    late->absent = tern__warn_at(tern__deadline(late->timeout_s));
    tern__close(&late->mark);
    tern__control_wait_end(control, 0);
}

void tern__late_end(tern__control *control)
{
    tern__late *late = &control->late;
    late->boot = NULL;
    tern__close(&late->mark);
}

void tern__late_close(tern__control *control)
{
    tern__late_end(control);
    if (control->late.store) control->late.store->look = NULL;
    tern__control_unclaim(control);
    tern__free(control->late.ranks);
}
