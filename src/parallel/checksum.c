/* checksum.c - notices when the ranks' parameters have drifted apart.
 *
 * All ranks start from the same parameters and apply the same gradients, so their parameters stay equal bit
 * by bit, unless memory fails or the program writes to them on one rank only. Nothing repairs such a
 * difference. So every checksum_every synchronised backwards each rank hashes its parameters one by one
 * (XXH3), with the values that this backward has used. The hashes are gathered in a small work together with
 * the gradients', so no rank waits for it separately. The hashes that most ranks have are right; if several
 * are equally common, those of the lowest rank. A rank without inputs (tern_ddp_join) lags behind, so its
 * hashes are ignored. */
#include "parallel/ddp.h"
#include "tensor/host.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

struct tern__ddp_checksum {
    tern__extent hashes; /* [world][leaf_count] of the ranks' parameters */
    uint64_t rounds;     /* synchronised backwards so far, including those as a shadow */
    uint64_t seq;        /* the running one's work; 0: none */
};

static bool checksum_is_on(const tern_ddp *ddp)
{
    return ddp->opts.checksum_every && tern_group_size(ddp->group) > 1;
}

static int checksum_open(tern_ddp *ddp, tern_error *err)
{
    uint64_t count = (uint64_t)tern_group_size(ddp->group) * (uint64_t)ddp->seal->leaf_count;
    return tern__ddp_extent_open(ddp, TERN_I64, count, &ddp->checksum->hashes, err);
}

/* ---- a backward ---- */

static XXH64_hash_t *hashes_of(const tern_ddp *ddp, int rank)
{
    XXH64_hash_t *all = tern__ddp_window_base(ddp, ddp->checksum->hashes.window);
    return all + (size_t)rank * (size_t)ddp->seal->leaf_count;
}

/* Hashes this rank's parameters; ignored ones keep the hash 0. */
static int hash_parameters(const tern_ddp *ddp, tern_error *err)
{
    XXH64_hash_t *mine = hashes_of(ddp, tern_group_rank(ddp->group));
    for (int i = 0; i < ddp->leaf_count; i++) {
        const tern__view *view = &ddp->seal->leaves[ddp->order[i]]->parameter->view;
        tern__host host;
        int status = tern__host_open(&host, view, err);
        if (status) return status;
        mine[ddp->order[i]] = XXH3_64bits(host.view.data, tern__view_bytes(view));
        tern__host_close(&host, false, NULL);
    }
    return TERN_OK;
}

static int checksum_post(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_checksum *self = ddp->checksum;
    self->seq = 0;
    self->rounds++;
    if (self->rounds % (uint64_t)ddp->opts.checksum_every) return TERN_OK;
    int status = ddp->shadow ? TERN_OK : hash_parameters(ddp, err);
    if (!status) status = tern__ddp_post_all(ddp, TERN__ALL_GATHER, TERN_I64, &self->hashes, 1, err);
    if (!status) self->seq = ddp->round.last_seq;
    return status;
}

/* ---- the verdict ---- */

/* Returns the first parameter, in the order of the state dict, in which two ranks differ; -1: none. */
static int difference(const tern_ddp *ddp, int one, int other)
{
    const XXH64_hash_t *a = hashes_of(ddp, one), *b = hashes_of(ddp, other);
    for (int k = ddp->seal->leaf_count - 1; k >= 0; k--)
        if (a[k] != b[k]) return k;
    return -1;
}

/* Returns the rank that most ranks agree with; if there are several, the lowest. */
static int find_right(const tern_ddp *ddp, const tern__tally *tally)
{
    int right = -1, most = 0, world = tern_group_size(ddp->group);
    for (int rank = 0; rank < world; rank++) {
        int agree = 0;
        for (int other = 0; other < world && !tally->shadow[rank]; other++)
            agree += !tally->shadow[other] && difference(ddp, rank, other) < 0;
        if (agree <= most) continue;
        most = agree;
        right = rank;
    }
    return right;
}

/* Writes the ranks that differ from rank `right` as "1, 3" and returns how many they are; *leaf is the first
 * parameter in which the first of them differs. */
static int list_drifted(const tern_ddp *ddp, const tern__tally *tally, int right, int *leaf, char *text,
                        size_t size)
{
    int count = 0;
    size_t used = 0;
    for (int rank = 0; rank < tern_group_size(ddp->group); rank++) {
        int k = tally->shadow[rank] ? -1 : difference(ddp, rank, right);
        if (k < 0) continue;
        if (count++ == 0) *leaf = k;
        int wrote = snprintf(text + used, size - used, "%s%d", count > 1 ? ", " : "",
                             tern_group_world_rank(ddp->group, rank));
        used = TERN__MIN(used + (size_t)wrote, size - 1);
    }
    return count;
}

static int checksum_check(tern_ddp *ddp, tern_error *err)
{
    char who[128];
    int leaf = -1;
    if (!ddp->checksum->seq || ddp->over) return TERN_OK;
    const tern__tally *tally = tern__ddp_tally(ddp, ddp->checksum->seq);
    int right = find_right(ddp, tally);
    int count = list_drifted(ddp, tally, right, &leaf, who, sizeof(who));
    if (!count) return TERN_OK;
    return tern__error_set(
        err, "tern_backward", TERN_E_MISMATCH,
        "the parameters have drifted apart: in synchronised backward %llu %s %s %s from rank "
        "%d, first in \"%s\"",
        (unsigned long long)ddp->checksum->rounds, count == 1 ? "rank" : "ranks", who,
        count == 1 ? "differs" : "differ", tern_group_world_rank(ddp->group, right),
        ddp->seal->leaves[leaf]->name);
}

const tern__ddp_part tern__checksum_part = {TERN__DDP_STATE(checksum), .is_on = checksum_is_on,
                                            .at = {[TERN__DDP_OPEN] = checksum_open,
                                                   [TERN__DDP_START] = checksum_post,
                                                   [TERN__DDP_TAKE] = checksum_check}};
