/* ddp.c - makes and frees a tern_ddp. */
#include "parallel/ddp.h"

#include "base/opts.h"

#include <math.h>

tern_ddp_opts tern_ddp_defaults(void)
{
    return (tern_ddp_opts){.size = sizeof(tern_ddp_opts),
                           .first_bucket_bytes = (size_t)1 << 20,
                           .broadcast_buffers = true,
                           .gradient_predivide_factor = 1,
                           .divide_by_initial_world_size = true,
                           .straggler_warn = true};
}

/* ---- making ---- */

static int check_opts(const tern_ddp_opts *opts, tern_error *err)
{
    const char *func = "tern_ddp_new";
    if (!opts->first_bucket_bytes)
        return tern__error_set(err, func, TERN_E_RANGE, "ddp: expected a first bucket of at least 1 byte");
    if (!(opts->gradient_predivide_factor > 0 && isfinite(opts->gradient_predivide_factor)))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "ddp: expected a gradient_predivide_factor > 0, got %g",
                               opts->gradient_predivide_factor);
    if ((unsigned)opts->normaliser > TERN_NORMALISER_LOSS)
        return tern__error_set(err, func, TERN_E_INVALID, "ddp: normaliser %d does not exist",
                               (int)opts->normaliser);
    if (opts->checksum_every < 0)
        return tern__error_set(err, func, TERN_E_RANGE, "ddp: expected checksum_every >= 0, got %d",
                               opts->checksum_every);
    if (opts->reduce_dtype != TERN_F32 && opts->reduce_dtype != TERN_BF16 && opts->reduce_dtype != TERN_F16)
        return tern__error_set(err, func, TERN_E_DTYPE,
                               "ddp: expected a reduce_dtype of f32, bf16 or f16, got %s",
                               tern_dtype_name(opts->reduce_dtype));
    if (opts->microbatches < 0 || opts->microbatches & (opts->microbatches - 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "ddp: expected 0 or a power of two of microbatches, got %d",
                               opts->microbatches);
    if (opts->ignore_count < 0 || (opts->ignore_count && !opts->ignore))
        return tern__error_set(err, func, TERN_E_INVALID, "ddp: ignore has %d names%s", opts->ignore_count,
                               opts->ignore ? "" : " and is NULL");
    return TERN_OK;
}

static int ddp_check(tern_module *module, const tern_ddp_opts *opts, tern_error *err)
{
    tern__seal *seal = tern__module_root(module)->tree->seal;
    if (tern__module_root(module) != module)
        return tern__error_set(err, "tern_ddp_new", TERN_E_STATE,
                               "%s is part of another module: attach to the whole", module->kind);
    if (seal && seal->attached)
        return tern__error_set(err, "tern_ddp_new", TERN_E_STATE, "%s already has a ddp", module->kind);
    if (tern_module_parameter_count(module) == 0)
        return tern__error_set(err, "tern_ddp_new", TERN_E_INVALID, "%s has no parameters to synchronise",
                               module->kind);
    return check_opts(opts, err);
}

/* ---- what a ddp owns ---- */

struct tern__ddp_owned {
    struct tern__ddp_owned *next;
    void *memory;    /* or NULL */
    uint32_t window; /* if it is one */
    bool is_window;
};

/* Adds an entry for what is made next; it stays empty if that fails. */
static struct tern__ddp_owned *owned_add(tern_ddp *ddp, tern_error *err)
{
    struct tern__ddp_owned *entry = tern__alloc(sizeof(*entry), "tern_ddp_new", err);
    if (!entry) return NULL;
    entry->next = ddp->owned;
    return ddp->owned = entry;
}

static void owned_free(tern_ddp *ddp)
{
    for (struct tern__ddp_owned *entry; (entry = ddp->owned); tern__free(entry)) {
        ddp->owned = entry->next;
        if (entry->is_window) ddp->group->backend->window_close(ddp->group->state, entry->window);
        tern__memory_free(entry->memory);
    }
}

void *tern__ddp_alloc(tern_ddp *ddp, tern_device *device, size_t bytes, tern_error *err)
{
    struct tern__ddp_owned *entry = owned_add(ddp, err);
    return entry ? entry->memory = tern__memory_new(device, bytes, "tern_ddp_new", err) : NULL;
}

int tern__ddp_window_open(tern_ddp *ddp, void *base, size_t bytes, uint32_t *window, tern_error *err)
{
    struct tern__ddp_owned *entry = owned_add(ddp, err);
    if (!entry) return TERN_E_MEMORY;
    tern__window_opts opts = {.base = base, .bytes = bytes};
    int status = ddp->group->backend->window_open(ddp->group->state, &opts, &entry->window, err);
    entry->is_window = !status;
    *window = entry->window;
    return status;
}

int tern__ddp_extent_open(tern_ddp *ddp, tern_dtype dtype, uint64_t count, tern__extent *extent,
                          tern_error *err)
{
    extent->count = count;
    return tern__ddp_window_open(ddp, NULL, count * tern_dtype_bytes(dtype), &extent->window, err);
}

static int make_arrays(tern_ddp *ddp, tern_error *err)
{
    size_t leaves = (size_t)ddp->seal->leaf_count, buckets = leaves + 2;
    ddp->ignored = tern__ddp_alloc(ddp, NULL, (size_t)tern__entry_count(ddp->module) * sizeof(bool), err);
    ddp->order = tern__ddp_alloc(ddp, NULL, leaves * sizeof(int), err);
    ddp->ready = tern__ddp_alloc(ddp, NULL, leaves * sizeof(int), err);
    ddp->bucket_of = tern__ddp_alloc(ddp, NULL, leaves * sizeof(int), err);
    ddp->buckets = tern__ddp_alloc(ddp, NULL, buckets * sizeof(*ddp->buckets), err);
    ddp->extents = tern__ddp_alloc(ddp, NULL, buckets * sizeof(*ddp->extents), err);
    bool made = ddp->ignored && ddp->order && ddp->ready && ddp->bucket_of && ddp->buckets && ddp->extents;
    return made ? TERN_OK : TERN_E_MEMORY;
}

/* Makes the pages of the gradients accessible to the peers; their addresses stay the same. */
static int open_windows(tern_ddp *ddp, tern_error *err)
{
    const tern__seal *seal = ddp->seal;
    for (int r = 0; r < seal->range_count; r++) {
        const tern__range *range = &seal->ranges[r];
        bool is_apart = range->device && !tern__ddp_reaches(ddp, range->device);
        void *base = is_apart ? NULL : range->grads;
        ddp->ranges[r] = (tern__ddp_range){.dtype = range->grad_dtype, .grads = range->grads};
        int status = tern__ddp_window_open(ddp, base, range->grad_bytes, &ddp->ranges[r].window, err);
        if (status) return status;
    }
    size_t values = tern__align_up((size_t)tern__side_count(ddp) * sizeof(double), TERN__LINE);
    size_t order = (size_t)ddp->leaf_count * sizeof(*ddp->order);
    int status = tern__ddp_window_open(ddp, NULL, values + order, &ddp->side_window, err);
    ddp->order_extent = (tern__extent){ddp->side_window, values, order};
    return status;
}

/* The channel has more slots than a backward has works: buckets, buffers, the ready order and small exchanges
 * between the ranks. Its works are ordered among themselves, apart from the group's other works, which may
 * fall between them in different places on different ranks: those of synchronised batch norms and of the
 * program if the ranks use different parameters, and those of another ddp if a rank has run out of inputs. */
static int open_channel(tern_ddp *ddp, tern_error *err)
{
    uint32_t windows[TERN__RANGES]; /* in which gradients are reduced */
    tern__channel_opts opts = {.slots = 2 * ddp->seal->leaf_count + 4,
                               .is_separate = true,
                               .windows = windows,
                               .window_count = ddp->seal->range_count};
    for (int r = 0; r < opts.window_count; r++) windows[r] = ddp->ranges[r].window;
    tern__label_kind_add(&tern__ddp_label);
    ddp->channel = ddp->group->backend->channel_open(ddp->group->state, &opts, err);
    return ddp->channel ? TERN_OK : err->code;
}

static void listen_to_backward(tern_ddp *ddp)
{
    ddp->listener.group = ddp->group;
    for (int i = 0; i < ddp->leaf_count; i++) {
        tern__leaf *leaf = ddp->seal->leaves[ddp->order[i]];
        leaf->listener = &ddp->listener;
        ddp->round.reached |= leaf->fresh; /* an earlier backward has left gradients */
    }
    tern__listener **link = &tern__group_root(ddp->group)->listeners;
    while (*link) link = &(*link)->next;
    *link = &ddp->listener;
    ddp->seal->attached = &ddp->listener;
    ddp->seal->group = ddp->group;
}

/* Through windows a bucket costs 2 us, so buckets may be small. Between GPUs, starting a work costs the host
 * 50 us, and also takes time on the device, so PyTorch's 25 MiB is right there. */
static size_t choose_bucket_bytes(const tern_ddp *ddp)
{
    bool is_away = ddp->seal->range_count > 0;
    for (int r = 0; r < ddp->seal->range_count; r++) is_away &= tern__ddp_home(ddp, r) != NULL;
    return (size_t)(is_away ? 25 : 2) << 20;
}

/* The last step waits for all ranks, so that none returns a ddp that another one has failed to make. */
static int ddp_build(tern_ddp *ddp, tern_error *err)
{
    if (!ddp->opts.bucket_bytes) ddp->opts.bucket_bytes = choose_bucket_bytes(ddp);
    int status = make_arrays(ddp, err);
    if (!status) status = tern__state_plan(ddp, err);
    if (!status) status = tern__signature_check(ddp, err);
    if (!status) status = open_windows(ddp, err);
    if (!status) status = tern__parts_open(ddp, err);
    if (!status) status = open_channel(ddp, err);
    if (!status) tern__bucket_plan(ddp);
    if (!status) status = tern__state_copy(ddp, 0, err);
    if (!status) listen_to_backward(ddp);
    return status;
}

static tern_ddp *new_ddp(tern_module *module, tern_group *group, const tern_ddp_opts *user, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    if (tern__opts_read(&opts, sizeof(opts), user, "tern_ddp_new", err) || ddp_check(module, &opts, err))
        return NULL;
    tern__seal *seal = tern__module_seal(module, err);
    tern_ddp *ddp = seal ? tern__alloc(sizeof(*ddp), "tern_ddp_new", err) : NULL;
    if (!ddp) return NULL;
    *ddp = (tern_ddp){.listener = tern__reducer,
                      .module = module,
                      .group = group,
                      .seal = seal,
                      .opts = opts,
                      .number = ++group->next_owner,
                      .sync = true};
    if (ddp_build(ddp, err) == TERN_OK) return ddp;
    tern_ddp_free(ddp);
    return NULL;
}

tern_ddp *tern_ddp_new(tern_module *module, tern_group *group, const tern_ddp_opts *opts, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    tern_ddp *ddp = NULL;
    if (!tern__is_set(e) && (!group || !module))
        tern__error_set(e, __func__, TERN_E_INVALID, "the %s is NULL", group ? "module" : "group");
    if (!group) return NULL;
    if (!tern__is_set(e) && tern__group_check(group, __func__, e) == TERN_OK)
        ddp = new_ddp(module, group, opts, e);
    /* All ranks find a mismatch together, so no rank waits for this one. */
    if (!ddp && tern__is_set(e) && e->code != TERN_E_MISMATCH) tern__group_fail(group, e);
    return ddp;
}

/* ---- life ---- */

static void stop_listening(tern_ddp *ddp)
{
    for (int k = 0; k < ddp->seal->leaf_count; k++)
        if (ddp->seal->leaves[k]->listener == &ddp->listener) ddp->seal->leaves[k]->listener = NULL;
    for (tern__listener **link = &tern__group_root(ddp->group)->listeners; *link; link = &(*link)->next) {
        if (*link != &ddp->listener) continue;
        *link = ddp->listener.next;
        break;
    }
    if (ddp->seal->attached == &ddp->listener) ddp->seal->attached = NULL;
}

void tern_ddp_free(tern_ddp *ddp)
{
    if (!ddp) return;
    stop_listening(ddp);
    if (ddp->channel) ddp->group->backend->channel_close(ddp->channel);
    tern__parts_call(ddp, TERN__DDP_CLOSE, NULL);
    owned_free(ddp);
    tern__free(ddp);
}

/* ---- the family's ddps ---- */

static tern_ddp *ddp_at(tern__listener *listener)
{
    while (listener && listener->begin != tern__reducer.begin) listener = listener->next;
    return (tern_ddp *)listener;
}

tern_ddp *tern__ddp_first(const tern_group *group)
{
    return ddp_at(tern__group_root(group)->listeners);
}

tern_ddp *tern__ddp_next(const tern_ddp *ddp)
{
    return ddp_at(ddp->listener.next);
}

/* ---- use ---- */

bool tern_ddp_sync_set(tern_ddp *ddp, bool sync)
{
    bool before = !ddp || ddp->sync;
    if (ddp) ddp->sync = sync;
    return before;
}

int tern_ddp_bucket_count(const tern_ddp *ddp)
{
    return ddp ? ddp->bucket_count : 0;
}

size_t tern_ddp_bucket_bytes(const tern_ddp *ddp, int bucket)
{
    return ddp && bucket >= 0 && bucket < ddp->bucket_count ? ddp->buckets[bucket].bytes : 0;
}
