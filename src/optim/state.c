/* state.c - an optimizer's state: allocated by the first step, when the groups and this rank's slice are
 * final; gathered as a whole, and loaded again. */
#include "comm/group.h"
#include "optim/optim.h"
#include "tensor/host.h"

#include <math.h>
#include <string.h>

/* ---- memory ---- */

/* Whether any group wants the state. */
static bool wants_state(const tern_optim *optim, int s)
{
    unsigned states = 0;
    for (int g = 0; g < optim->group_count; g++) states |= optim->groups[g].states;
    return states & 1u << s;
}

/* A range of frozen parameters has state once one of them has a gradient, has made steps or is `given`. */
static bool is_range_used(const tern_optim *optim, int r, const unsigned *given)
{
    const tern__seal *seal = optim->seal;
    bool is_used = !seal->ranges[r].is_frozen;
    for (int k = 0; k < seal->leaf_count && !is_used; k++)
        is_used = seal->range_of[k] == r &&
                  (tern__optim_is_due(optim, k) || optim->steps[k] > 0 || (given && given[k]));
    return is_used;
}

static bool wants_block(const tern_optim *optim, int s, int r, const unsigned *given)
{
    if (!is_range_used(optim, r, given)) return false;
    return s == TERN__OPTIM_MASTER ? tern__optim_has_master(optim, r) : wants_state(optim, s);
}

/* Returns the bytes of state for these parameters. */
static size_t optim_state_bytes_of(const tern_optim *optim, int r, tern__slice slice)
{
    return tern__optim_scaled(optim, r, tern__slice_bytes(slice));
}

static char *optim_state_new_block(tern_device *device, size_t bytes, const char *func, tern_error *err)
{
    char *block = tern__memory_new(device, bytes, func, err);
    if (block && device && tern__memory_zero(block, bytes, err)) {
        tern__memory_free(block);
        return NULL;
    }
    return block;
}

/* Allocates one zeroed block per state and range, where there is none yet, parallel to these slices: in the
 * range's memory, or the host's. */
static int alloc_blocks(const tern_optim *optim, const tern__slice *slices, bool on_host,
                        const unsigned *given, char *blocks[TERN__OPTIM_STATES][TERN__RANGES],
                        const char *func, tern_error *err)
{
    for (int s = 0; s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < optim->seal->range_count; r++) {
            if (blocks[s][r] || !wants_block(optim, s, r, given)) continue;
            size_t bytes = optim_state_bytes_of(optim, r, slices[r]);
            tern_device *device = on_host ? NULL : optim->seal->ranges[r].device;
            if (bytes && !(blocks[s][r] = optim_state_new_block(device, bytes, func, err)))
                return TERN_E_MEMORY;
        }
    return TERN_OK;
}

static void free_blocks(char *blocks[TERN__OPTIM_STATES][TERN__RANGES])
{
    for (int s = 0; s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < TERN__RANGES; r++) {
            tern__memory_free(blocks[s][r]);
            blocks[s][r] = NULL;
        }
}

int tern__optim_state_open(tern_optim *optim, const unsigned *given, const char *func, tern_error *err)
{
    int status = alloc_blocks(optim, optim->own, false, given, optim->state, func, err);
    if (optim->begun) return status;
    if (status) tern__optim_state_drop(optim);
    tern__masters_forget(optim);
    optim->begun = !status;
    return status;
}

void tern__optim_state_drop(tern_optim *optim)
{
    free_blocks(optim->state);
}

size_t tern_optim_state_bytes(const tern_optim *optim)
{
    size_t bytes = 0;
    for (int s = 0; optim && s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < optim->seal->range_count; r++)
            bytes += optim->state[s][r] ? optim_state_bytes_of(optim, r, optim->own[r]) : 0;
    return bytes;
}

/* ---- gathering ----
 *
 * The slices are gathered into blocks in the host's memory that are parallel to all of the optimizer's
 * parameters, as the state itself is without a shard; an entry's tensor is a view of them. They are sent in
 * pieces, so that a rank that does not keep them needs little memory. */

enum { piece_bytes = 1 << 20 };

struct tern_optim_state {
    char *blocks[TERN__OPTIM_STATES][TERN__RANGES];
    int64_t *steps; /* [leaf_count] */
    tern_optim_entry *entries;
    tern_tensor *tensors; /* [count], the entries' */
    int count;
};

void tern_optim_state_free(tern_optim_state *state)
{
    if (!state) return;
    free_blocks(state->blocks);
    tern__free(state->steps);
    tern__free(state->entries);
    tern__free(state->tensors);
    tern__free(state);
}

int tern_optim_state_count(const tern_optim_state *state)
{
    return state ? state->count : 0;
}

const tern_optim_entry *tern_optim_state_entries(const tern_optim_state *state)
{
    return state ? state->entries : NULL;
}

static bool has_state(const tern_optim *optim, int k)
{
    return optim->group_of[k] >= 0 && optim->steps[k] > 0;
}

bool tern__optim_keeps(const tern_optim *optim, int k, int s)
{
    if (s == TERN__OPTIM_MASTER) return tern__optim_has_master(optim, optim->seal->range_of[k]);
    return optim->groups[optim->group_of[k]].states & 1u << s;
}

const char *tern__optim_state_name(const tern_optim *optim, int s)
{
    return s == TERN__OPTIM_MASTER ? "master" : optim->rule->states[s];
}

tern__view tern__optim_state_view(const tern_optim *optim, int k)
{
    const tern__view *p = &optim->seal->leaves[k]->parameter->view;
    return tern__view_make(tern__optim_dtype(optim, optim->seal->range_of[k]), TERN__PLAIN, p->ndim,
                           p->shape);
}

static int count_entries(const tern_optim *optim)
{
    int count = 0;
    for (int k = 0; k < optim->seal->leaf_count; k++) {
        if (!has_state(optim, k)) continue;
        count++;
        for (int s = 0; s < TERN__OPTIM_STATES; s++) count += tern__optim_keeps(optim, k, s);
    }
    return count;
}

static void optim_state_add_entry(tern_optim_state *state, const tern__leaf *leaf, const char *name,
                                  tern__view view, void *data)
{
    tern_tensor *tensor = &state->tensors[state->count];
    tensor->view = view;
    tensor->view.data = data;
    tensor->view.packs = NULL;
    state->entries[state->count++] = (tern_optim_entry){leaf->name, name, tensor};
}

/* Lists them in registration order, which is the reverse of the leaves' order. */
static void list_entries(const tern_optim *optim, tern_optim_state *state)
{
    const tern__seal *seal = optim->seal;
    for (int k = seal->leaf_count - 1; k >= 0; k--) {
        if (!has_state(optim, k)) continue;
        const tern__leaf *leaf = seal->leaves[k];
        int r = seal->range_of[k];
        optim_state_add_entry(state, leaf, "step", tern__view_make(TERN_I64, TERN__PLAIN, 0, NULL),
                              &state->steps[k]);
        for (int s = 0; s < TERN__OPTIM_STATES; s++)
            if (tern__optim_keeps(optim, k, s))
                optim_state_add_entry(
                    state, leaf, tern__optim_state_name(optim, s), tern__optim_state_view(optim, k),
                    state->blocks[s][r] +
                        tern__optim_scaled(optim, r, seal->offset[k] - optim->all[r].begin));
    }
}

static tern_optim_state *new_state(const tern_optim *optim, const char *func, tern_error *err)
{
    size_t leaves = (size_t)optim->seal->leaf_count, count = (size_t)count_entries(optim);
    tern_optim_state *state = tern__alloc(sizeof(*state), func, err);
    if (!state) return NULL;
    state->steps = tern__alloc(leaves * sizeof(*state->steps), func, err);
    state->entries = tern__alloc(count * sizeof(*state->entries), func, err);
    state->tensors = tern__alloc(count * sizeof(*state->tensors), func, err);
    bool fine = state->steps && state->entries && state->tensors;
    if (fine && (!optim->begun || !alloc_blocks(optim, optim->all, true, NULL, state->blocks, func, err))) {
        memcpy(state->steps, optim->steps, leaves * sizeof(*state->steps));
        list_entries(optim, state);
        return state;
    }
    tern_optim_state_free(state);
    return NULL;
}

/* Sends rank `rank`'s slice of one state and range to the others; it is written to `to` if that is not NULL.
 */
static int gather_slice(const tern_optim *optim, int s, int r, int rank, char *to, char *scratch,
                        tern_error *err)
{
    tern_group *group = optim->shard ? tern__shard_group(optim) : NULL;
    tern__slice slice = tern__shard_slice(optim, r, rank);
    size_t begin = tern__optim_scaled(optim, r, slice.begin - optim->all[r].begin);
    size_t total = optim_state_bytes_of(optim, r, slice);
    char *own = !group || rank == tern_group_rank(group) ? optim->state[s][r] : NULL;
    for (size_t at = 0; at < total; at += piece_bytes) {
        size_t bytes = TERN__MIN((size_t)piece_bytes, total - at);
        char *place = to ? to + begin + at : scratch;
        int status = own ? tern__memory_copy(place, own + at, bytes, err) : TERN_OK;
        if (!status && group) status = tern_broadcast(group, place, bytes, TERN_U8, rank, err);
        if (status) return status;
    }
    return TERN_OK;
}

/* Gathers all slices of all ranks; `to` NULL: only other ranks keep them. */
static int gather_all(const tern_optim *optim, tern_optim_state *to, char *scratch, tern_error *err)
{
    int world = optim->shard ? tern_group_size(tern__shard_group(optim)) : 1, status = TERN_OK;
    for (int s = 0; s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < optim->seal->range_count; r++)
            for (int rank = 0; wants_block(optim, s, r, NULL) && rank < world && !status; rank++)
                status = gather_slice(optim, s, r, rank, to ? to->blocks[s][r] : NULL, scratch, err);
    return status;
}

static tern_optim_state *optim_state_gather(const tern_optim *optim, int root, tern_error *err)
{
    bool keeps = !optim->shard || root < 0 || root == tern_group_rank(tern__shard_group(optim));
    tern_optim_state *state = keeps ? new_state(optim, "tern_optim_state_gather", err) : NULL;
    char *scratch = keeps ? NULL : tern__alloc(piece_bytes, "tern_optim_state_gather", err);
    int status = state || scratch ? TERN_OK : TERN_E_MEMORY;
    if (!status && optim->begun) status = gather_all(optim, state, scratch, err);
    tern__free(scratch);
    if (!status) return state;
    tern_optim_state_free(state);
    return NULL;
}

tern_optim_state *tern_optim_state_gather(tern_optim *optim, int root, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_optim_state *state = NULL;
    if (!optim) {
        tern__error_set(e, __func__, TERN_E_INVALID, "the optimizer is NULL");
        return NULL;
    }
    tern_group *group = optim->shard ? tern__shard_group(optim) : NULL;
    if (!tern__is_set(e) && group && (root < -1 || root >= tern_group_size(group)))
        tern__error_set(e, __func__, TERN_E_RANGE, "root is %d, expected -1 or a rank below %d", root,
                        tern_group_size(group));
    if (!tern__is_set(e) && tern__skips_settle(optim, e) == TERN_OK)
        state = optim_state_gather(optim, root, e);
    if (group && tern__is_set(e)) tern__group_fail(group, e);
    return state;
}

/* ---- loading ---- */

static const char load[] = "tern_optim_state_load";

enum { STEP = 0 }; /* the bit of "step" among a parameter's given entries; state s has bit 1 + s */

static int find_leaf(const tern_optim *optim, const char *name)
{
    for (int k = 0; name && k < optim->seal->leaf_count; k++)
        if (optim->group_of[k] >= 0 && !strcmp(optim->seal->leaves[k]->name, name)) return k;
    return -1;
}

/* Returns the bit of a state that parameter k has, or -1. */
static int find_bit(const tern_optim *optim, int k, const char *name)
{
    if (name && !strcmp(name, "step")) return STEP;
    for (int s = 0; name && s < TERN__OPTIM_STATES; s++)
        if (tern__optim_keeps(optim, k, s) && !strcmp(name, tern__optim_state_name(optim, s))) return 1 + s;
    return -1;
}

static int check_step(const tern_optim_entry *entry, tern_error *err)
{
    double step = tern_item(entry->tensor);
    if (step >= 1 && step <= 0x1p53 && step == floor(step)) return TERN_OK;
    return tern__error_set(err, load, TERN_E_RANGE,
                           "\"step\" of \"%s\" is %g, expected one element, a whole number from 1",
                           entry->parameter, step);
}

/* `own` is the view in which the state is kept. */
static int check_tensor(const tern_optim_entry *entry, const tern__view *own, tern_error *err)
{
    const tern__view *view = &entry->tensor->view;
    char got[TERN__SHAPE_TEXT], expected[TERN__SHAPE_TEXT];
    if (view->dtype != own->dtype)
        return tern__error_set(err, load, TERN_E_DTYPE, "\"%s\" of \"%s\" is %s, expected %s", entry->name,
                               entry->parameter, tern_dtype_name(view->dtype), tern_dtype_name(own->dtype));
    if (!tern__view_same_shape(view, own))
        return tern__error_set(err, load, TERN_E_SHAPE, "\"%s\" of \"%s\" is %s, expected %s", entry->name,
                               entry->parameter, tern__shape_text(view, got),
                               tern__shape_text(own, expected));
    if (!tern__view_is_contiguous(view))
        return tern__error_set(err, load, TERN_E_UNSUPPORTED,
                               "\"%s\" of \"%s\" is not row-major; tern_keep gives a copy that is",
                               entry->name, entry->parameter);
    return TERN_OK;
}

/* tern_amp's opt level decides whether a state has masters, so the error says that it was another level. */
static int fail_unknown(const tern_optim *optim, const char *parameter, const char *name, tern_error *err)
{
    bool is_master = !strcmp(name, "master");
    return tern__error_set(err, load, TERN_E_INVALID, "\"%s\" has no state \"%s\" in this %s%s", parameter,
                           name, optim->rule->name,
                           is_master ? ": it was saved under opt level O2, and this is another one" : "");
}

static int optim_state_check_entry(const tern_optim *optim, const tern_optim_entry *entry, unsigned *given,
                                   tern_error *err)
{
    int k = find_leaf(optim, entry->parameter), bit = k < 0 ? -1 : find_bit(optim, k, entry->name);
    const char *parameter = entry->parameter ? entry->parameter : "", *name = entry->name ? entry->name : "";
    if (k < 0)
        return tern__error_set(err, load, TERN_E_INVALID, "the optimizer has no parameter \"%s\"", parameter);
    if (bit < 0) return fail_unknown(optim, parameter, name, err);
    if (given[k] & 1u << bit)
        return tern__error_set(err, load, TERN_E_INVALID, "\"%s\" of \"%s\" is given twice", name, parameter);
    given[k] |= 1u << bit;
    int status = tern__tensor_check(entry->tensor, load, err);
    if (status) return status;
    const tern__view own = tern__optim_state_view(optim, k);
    return bit == STEP ? check_step(entry, err) : check_tensor(entry, &own, err);
}

/* A parameter with any entries must have all, except the master, which can be made from the parameter. */
static int check_whole(const tern_optim *optim, const unsigned *given, tern_error *err)
{
    for (int k = 0; k < optim->seal->leaf_count; k++) {
        if (!given[k]) continue;
        const char *missing = optim->rule->counts && !(given[k] & 1u << STEP) ? "step" : NULL;
        for (int s = TERN__OPTIM_MASTER - 1; s >= 0; s--)
            if (tern__optim_keeps(optim, k, s) && !(given[k] & 2u << s))
                missing = tern__optim_state_name(optim, s);
        if (missing)
            return tern__error_set(err, load, TERN_E_INVALID, "\"%s\" has no \"%s\"",
                                   optim->seal->leaves[k]->name, missing);
    }
    return TERN_OK;
}

/* Copies this rank's part of an entry. */
static int optim_state_take(tern_optim *optim, const tern_optim_entry *entry, tern_error *err)
{
    int k = find_leaf(optim, entry->parameter), bit = find_bit(optim, k, entry->name);
    int r = optim->seal->range_of[k];
    size_t offset = optim->seal->offset[k];
    tern__slice own = optim->own[r];
    size_t end = offset + tern__view_bytes(&optim->seal->leaves[k]->parameter->view);
    tern__slice part = tern__slice_cut((tern__slice){offset, end}, own);
    if (bit == STEP) optim->steps[k] = (int64_t)tern_item(entry->tensor);
    if (bit == STEP || !tern__slice_bytes(part)) return TERN_OK;
    char *to = optim->state[bit - 1][r] + tern__optim_scaled(optim, r, part.begin - own.begin);
    const char *from = entry->tensor->view.data;
    return tern__memory_copy(to, from + tern__optim_scaled(optim, r, part.begin - offset),
                             optim_state_bytes_of(optim, r, part), err);
}

static int optim_state_forget(tern_optim *optim, const unsigned *given, tern_error *err)
{
    int status = TERN_OK;
    for (int k = 0; k < optim->seal->leaf_count; k++) optim->steps[k] = given[k] != 0;
    tern__masters_forget(optim);
    for (int s = 0; s < TERN__OPTIM_STATES; s++)
        for (int r = 0; r < optim->seal->range_count; r++)
            if (optim->state[s][r] && !status)
                status =
                    tern__memory_zero(optim->state[s][r], optim_state_bytes_of(optim, r, optim->own[r]), err);
    return status;
}

int tern_optim_state_load(tern_optim *optim, const tern_optim_entry *entries, int count, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!optim || count < 0 || (count && !entries))
        return tern__error_set(err, load, TERN_E_INVALID, "the optimizer or the entries are NULL");
    unsigned *given = tern__alloc((size_t)optim->seal->leaf_count * sizeof(*given), load, err);
    int status = given ? TERN_OK : TERN_E_MEMORY;
    for (int i = 0; i < count && !status; i++)
        status = optim_state_check_entry(optim, &entries[i], given, err);
    if (!status) status = check_whole(optim, given, err);
    if (!status) status = tern__optim_state_open(optim, given, load, err);
    if (!status) status = tern__skips_settle(optim, err);
    if (!status) status = optim_state_forget(optim, given, err);
    for (int i = 0; i < count && !status; i++) status = optim_state_take(optim, &entries[i], err);
    tern__free(given);
    return status;
}
