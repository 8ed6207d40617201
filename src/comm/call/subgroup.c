/* subgroup.c - groups made from groups.
 *
 * All ranks of the parent exchange their wishes in one all_gather over the parent, so each rank knows the
 * members of its own group. They need not meet again: the root's control plane connects them already.
 *
 * A group's id tells its descriptors from those of other groups. Each rank proposes the lowest id that it has
 * not used yet, and all take the largest proposal, which no rank of the parent has used. The groups made by
 * one call share the id, since they have no rank in common. */
#include "base/hash.h"
#include "base/opts.h"
#include "comm/call/request.h"

#include <stdlib.h>

/* What a rank of the parent asks for. `list`: a digest of the ranks given to tern_group_new; 0 in
 * tern_group_split. */
typedef struct wish {
    int32_t color, key;
    uint32_t next_id, list;
} wish;

/* A member of the new group. */
typedef struct place {
    int key, rank; /* in the parent */
} place;

/* ---- the members ---- */

static int compare_keys(const void *one, const void *other)
{
    const place *a = one, *b = other;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

/* Finds the ranks that asked for `color`, sorted by key, then by rank. Returns their number. */
static int find_members(const wish *wishes, int world, int color, place *places)
{
    int count = 0;
    for (int rank = 0; rank < world; rank++)
        if (wishes[rank].color == color) places[count++] = (place){wishes[rank].key, rank};
    qsort(places, (size_t)count, sizeof(*places), compare_keys);
    return count;
}

static const char *call_text(const wish *of)
{
    return of->list ? "tern_group_new" : "tern_group_split";
}

static int check_lists(const tern_group *parent, const wish *wishes, const char *func, tern_error *err)
{
    for (int rank = 1; rank < parent->boot.world; rank++) {
        const wish *first = &wishes[0], *other = &wishes[rank];
        int one = tern_group_world_rank(parent, 0), two = tern_group_world_rank(parent, rank);
        if (first->list == other->list) continue;
        if (!first->list || !other->list)
            return tern__error_set(err, func, TERN_E_MISMATCH, "rank %d calls %s, but rank %d %s", one,
                                   call_text(first), two, call_text(other));
        return tern__error_set(err, func, TERN_E_MISMATCH,
                               "rank %d lists other ranks for the new group than rank %d", two, one);
    }
    return TERN_OK;
}

/* ---- making the group ---- */

static int read_group_opts(tern_group_opts *opts, const tern_group *parent, const tern_group_opts *user,
                           const char *func, tern_error *err)
{
    *opts = parent->opts;
    int status = tern__opts_read(opts, sizeof(*opts), user, func, err);
    if (!status) status = tern__group_opts_check(opts, func, err);
    opts->backend = NULL; /* a group made from another takes its choice */
    return status;
}

static tern_group *subgroup_new(tern_group *parent, const tern_group_opts *opts, const place *places,
                                int count, const char *func, tern_error *err)
{
    tern_group *root = parent->root, *group = tern__alloc(sizeof(*group), func, err);
    if (!group) return NULL;
    *group = (tern_group){.boot = parent->boot,
                          .opts = *opts,
                          .root = root,
                          .next = root->subgroups,
                          .control = root->control,
                          .trace = root->trace,
                          .id = root->next_id - 1};
    group->boot.world = count;
    root->subgroups = group;
    root->users++;
    group->ranks = tern__alloc((size_t)count * sizeof(*group->ranks), func, err);
    for (int i = 0; group->ranks && i < count; i++) {
        if (places[i].rank == parent->boot.rank) group->boot.rank = i;
        group->ranks[i] = tern_group_world_rank(parent, places[i].rank);
    }
    if (group->ranks && !tern__group_build(group, err)) return group;
    tern_group_close(group);
    return NULL;
}

static void agree_on_id(tern_group *root, const wish *wishes, int world)
{
    for (int rank = 0; rank < world; rank++) root->next_id = TERN__MAX(root->next_id, wishes[rank].next_id);
    root->next_id++;
}

/* Memory for all ranks' wishes and members. */
typedef struct ballot {
    wish *wishes;
    place *places;
} ballot;

static tern_group *vote_members(tern_group *parent, wish own, const ballot *b, const tern_group_opts *user,
                                const char *func, tern_error *err)
{
    tern_group_opts opts;
    int world = parent->boot.world;
    tern__request wishes = {.func = func,
                            .kind = TERN__ALL_GATHER,
                            .in = &own,
                            .out = b->wishes,
                            .count = sizeof(own),
                            .dtype = TERN_U8,
                            .is_vote = true};
    if (read_group_opts(&opts, parent, user, func, err) || tern__request_run(parent, &wishes, err) ||
        check_lists(parent, b->wishes, func, err))
        return NULL;
    agree_on_id(parent->root, b->wishes, world);
    if (own.color < 0) return NULL;
    int count = find_members(b->wishes, world, own.color, b->places);
    return subgroup_new(parent, &opts, b->places, count, func, err);
}

/* An error on this rank fails the whole family, since the other ranks wait for it. */
static tern_group *subgroup_make(tern_group *parent, wish own, const tern_group_opts *opts, const char *func,
                                 tern_error *err)
{
    tern_error why = {0};
    size_t world = (size_t)parent->boot.world;
    own.next_id = parent->root->next_id;
    ballot b = {.wishes = tern__alloc(world * sizeof(*b.wishes), func, &why),
                .places = tern__alloc(world * sizeof(*b.places), func, &why)};
    tern_group *group = b.wishes && b.places ? vote_members(parent, own, &b, opts, func, &why) : NULL;
    tern__free(b.wishes);
    tern__free(b.places);
    if (!why.code) return group;
    why.func = func;
    tern__group_fail(parent, &why);
    if (err) *err = why;
    return NULL;
}

/* ---- public ---- */

static bool is_given(tern_group *parent, const char *func, tern_error *err)
{
    if (!parent) {
        tern__error_set(err, func, TERN_E_INVALID, "parent is NULL");
        return false;
    }
    if (!tern__is_set(err)) return tern__group_check(parent, func, err) == TERN_OK;
    tern__group_fail(parent, err);
    return false;
}

tern_group *tern_group_split(tern_group *parent, int color, int key, const tern_group_opts *opts,
                             tern_error *err)
{
    if (!is_given(parent, __func__, err)) return NULL;
    return subgroup_make(parent, (wish){.color = TERN__MAX(color, -1), .key = key}, opts, __func__, err);
}

/* Returns a digest of a set of ranks, independent of their order. Never 0. */
static uint32_t members_digest(const bool *is_in, int world)
{
    return tern__fnv_fold(tern__fnv(TERN__FNV, is_in, (size_t)world * sizeof(*is_in))) | 1;
}

static int read_list(const tern_group *parent, const int *ranks, int count, bool *is_in, tern_error *err)
{
    const char *func = "tern_group_new";
    int world = parent->boot.world;
    if (!ranks || count < 1)
        return tern__error_set(err, func, TERN_E_INVALID, "%d ranks, expected at least 1", ranks ? count : 0);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= world)
            return tern__error_set(err, func, TERN_E_INVALID, "ranks[%d] is %d, expected 0 to %d", i,
                                   ranks[i], world - 1);
        if (is_in[ranks[i]])
            return tern__error_set(err, func, TERN_E_INVALID, "ranks[%d] is %d, which is listed already", i,
                                   ranks[i]);
        is_in[ranks[i]] = true;
    }
    return TERN_OK;
}

tern_group *tern_group_new(tern_group *parent, const int *ranks, int count, const tern_group_opts *opts,
                           tern_error *err)
{
    tern_error why = {0};
    if (!is_given(parent, __func__, err)) return NULL;
    bool *is_in = tern__alloc((size_t)parent->boot.world * sizeof(*is_in), __func__, &why);
    wish own = {.color = -1};
    if (is_in && !read_list(parent, ranks, count, is_in, &why)) {
        own.list = members_digest(is_in, parent->boot.world);
        own.color = is_in[parent->boot.rank] ? 0 : -1;
    }
    tern__free(is_in);
    if (!why.code) return subgroup_make(parent, own, opts, __func__, err);
    tern__group_fail(parent, &why);
    if (err) *err = why;
    return NULL;
}
