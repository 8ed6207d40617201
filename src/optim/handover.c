#include "optim/handover.h"

#include "base/hash.h"

/* ---- life ---- */

/* Each rank's line is an extent too, and each device has one that is empty. */
int tern__handover_open(tern__handover *x, tern_group *group, size_t extents, size_t panes, tern_error *err)
{
    static const char func[] = "tern_optim_shard";
    size_t world = (size_t)tern_group_size(group), most = extents + world + panes;
    *x = (tern__handover){.group = group};
    x->extents = tern__alloc(most * sizeof(*x->extents), func, err);
    x->roots = tern__alloc(most * sizeof(*x->roots), func, err);
    if (!x->extents || !x->roots) return TERN_E_MEMORY;
    int status = tern__pane_open(&x->lines, group, NULL, world * TERN__LINE, err);
    if (status) return status;
    x->channel = group->backend->channel_open(group->state, (int)(world + panes) + 1, err);
    return x->channel ? TERN_OK : err->code;
}

void tern__handover_close(tern__handover *x)
{
    if (x->channel) x->group->backend->channel_close(x->channel);
    tern__pane_close(&x->lines, x->group);
    tern__free(x->extents);
    tern__free(x->roots);
}

/* ---- works ---- */

static bool has_home(const tern__pane *panes, int count, const tern_device *home)
{
    bool has = false;
    for (int i = 0; i < count; i++) has |= tern__pane_home(&panes[i]) == home;
    return has;
}

static tern__extent *next_extents(const tern__handover *x)
{
    return x->extents + x->extent_count;
}

/* Of the next `count` extents. */
static int post(tern__handover *x, tern__post work, int count, tern_error *err)
{
    work.extents = next_extents(x);
    work.extent_count = count;
    x->extent_count += count;
    return x->group->backend->post(x->channel, &work, &x->last, err);
}

/* The line is there even if nothing else is, so that nobody posts nothing. */
static int post_on_host(tern__handover *x, const tern_optim *optim, const tern__lot *what, tern_error *err)
{
    tern__post work = x->says;
    int status = TERN_OK;
    for (work.root = 0; work.root < tern_group_size(x->group) && !status; work.root++) {
        int count = what->fill(optim, work.root, NULL, next_extents(x));
        next_extents(x)[count++] =
            (tern__extent){x->lines.window, (uint64_t)work.root * TERN__LINE, TERN__LINE};
        status = post(x, work, count, err);
    }
    return status;
}

static uint32_t digest(const tern__extent *extents, int count)
{
    uint64_t hash = TERN__FNV;
    for (int i = 0; i < count; i++)
        hash = tern__fnv_word(tern__fnv_word(hash, extents[i].offset), extents[i].count);
    return tern__fnv_fold(hash);
}

/* Extents in devices' memory are not compared: a digest of them is. The empty one says which device it is,
 * even if nothing else is there. */
static int post_on_device(tern__handover *x, const tern_optim *optim, const tern__lot *what,
                          const tern__pane *pane, tern_error *err)
{
    tern__post work = x->says;
    tern__extent *extents = next_extents(x);
    int *roots = x->roots + x->extent_count, count = 1;
    extents[0] = (tern__extent){.window = pane->window};
    roots[0] = 0;
    for (int rank = 0; rank < tern_group_size(x->group); rank++)
        for (int more = what->fill(optim, rank, pane->device, extents + count); more > 0; more--)
            roots[count++] = rank;
    work.roots = roots;
    work.folded = digest(extents, count);
    return post(x, work, count, err);
}

static int post_lines(tern__handover *x, tern_error *err)
{
    tern__post work = x->says;
    work.kind = TERN__ALL_GATHER;
    *next_extents(x) = (tern__extent){x->lines.window, 0, (uint64_t)tern_group_size(x->group) * TERN__LINE};
    return post(x, work, 1, err);
}

static int post_all(tern__handover *x, const tern_optim *optim, const tern__lot *what, tern_error *err)
{
    int status = TERN_OK;
    x->extent_count = 0;
    for (int i = 0; i < what->count && !status; i++) {
        const tern_device *home = tern__pane_home(&what->panes[i]);
        if (home && !has_home(what->panes, i, home))
            status = post_on_device(x, optim, what, &what->panes[i], err);
    }
    if (status) return status;
    if (has_home(what->panes, what->count, NULL)) return post_on_host(x, optim, what, err);
    return what->has_lines ? post_lines(x, err) : TERN_OK;
}

/* ---- by way of the host ---- */

typedef int (*cross_fn)(const tern__pane *pane, uint64_t offset, uint64_t bytes, tern_error *err);

/* Rank `rank`'s pieces. */
static int cross(tern__handover *x, const tern_optim *optim, const tern__lot *what, int rank, cross_fn go,
                 tern_error *err)
{
    int count = what->fill(optim, rank, NULL, x->extents), status = TERN_OK;
    for (int i = 0; i < count; i++)
        for (int p = 0; p < what->count && !status; p++)
            if (what->panes[p].window == x->extents[i].window)
                status = go(&what->panes[p], x->extents[i].offset, x->extents[i].count, err);
    return status;
}

static bool has_stage(const tern__handover *x, const tern__lot *what)
{
    bool has = false;
    for (int p = 0; p < what->count; p++) has |= what->panes[p].stage != NULL;
    return has && tern_group_size(x->group) > 1;
}

static int put(tern__handover *x, const tern_optim *optim, const tern__lot *what, tern_error *err)
{
    int status = TERN_OK;
    if (!has_stage(x, what)) return TERN_OK;
    for (int p = 0; p < what->count && !status; p++) status = tern__pane_depart(&what->panes[p], err);
    if (!status) status = cross(x, optim, what, tern_group_rank(x->group), tern__pane_put, err);
    for (int p = 0; p < what->count && !status; p++) status = tern__pane_settle(&what->panes[p], err);
    return status;
}

static int take(tern__handover *x, const tern_optim *optim, const tern__lot *what, tern_error *err)
{
    int status = TERN_OK, own = tern_group_rank(x->group);
    if (!has_stage(x, what)) return TERN_OK;
    for (int rank = 0; rank < tern_group_size(x->group) && !status; rank++)
        if (rank != own) status = cross(x, optim, what, rank, tern__pane_take, err);
    for (int p = 0; p < what->count && !status; p++) status = tern__pane_return(&what->panes[p], err);
    return status;
}

int tern__handover_run(tern__handover *x, const tern_optim *optim, const tern__lot *what, uint32_t number,
                       uint64_t step, tern_error *err)
{
    x->says = (tern__post){.kind = TERN__BROADCAST,
                           .dtype = TERN_U8,
                           .owner = number,
                           .bucket = TERN__SLICE_BUCKET,
                           .backward = step};
    int status = put(x, optim, what, err);
    if (!status) status = post_all(x, optim, what, err);
    if (!status) status = x->group->backend->wait(x->channel, x->last, err);
    return status ? status : take(x, optim, what, err);
}
