/* bucket.c - cuts the leaves into buckets, in the order in which their gradients are expected. */
#include "parallel/ddp.h"

#include <string.h>

static tern__leaf *leaf_at(const tern_ddp *ddp, int place)
{
    return ddp->seal->leaves[ddp->order[place]];
}

/* Returns the dtype in which the leaf's gradient is reduced. */
static tern_dtype leaf_dtype(const tern_ddp *ddp, int place)
{
    return ddp->ranges[ddp->seal->range_of[ddp->order[place]]].dtype;
}

static size_t leaf_bytes(const tern_ddp *ddp, int place)
{
    return (size_t)tern__view_count(&leaf_at(ddp, place)->parameter->view) *
           tern_dtype_bytes(leaf_dtype(ddp, place));
}

static const tern_device *leaf_home(const tern_ddp *ddp, int place)
{
    return tern__ddp_home(ddp, ddp->seal->range_of[ddp->order[place]]);
}

static bool is_frozen(const tern_ddp *ddp, int place)
{
    return ddp->seal->ranges[ddp->seal->range_of[ddp->order[place]]].is_frozen;
}

static bool are_alike(const tern_ddp *ddp, int place, int other)
{
    return leaf_dtype(ddp, place) == leaf_dtype(ddp, other) &&
           leaf_home(ddp, place) == leaf_home(ddp, other) && is_frozen(ddp, place) == is_frozen(ddp, other);
}

/* Returns the bucket that starts at `first`. Frozen parameters have one, which is reduced only if one of them
 * has got a gradient after all. */
static tern__bucket bucket_cut(const tern_ddp *ddp, int first, size_t cap)
{
    if (is_frozen(ddp, first)) cap = SIZE_MAX;
    tern__bucket bucket = {.first = first, .dtype = leaf_dtype(ddp, first)};
    int total = ddp->leaf_count;
    while (first + bucket.count < total && bucket.bytes < cap && are_alike(ddp, first, first + bucket.count))
        bucket.bytes += leaf_bytes(ddp, first + bucket.count++);
    return bucket;
}

/* Fills in one extent per leaf and returns how many there are. An extent is merged with the one before it if
 * there is only padding between them: padding is zero on every rank, and so is its mean. A parameter starts
 * on a cache line, and its gradient at the same element of the gradient range. */
static int fill_extents(const tern_ddp *ddp, tern__bucket *bucket, tern__extent *extents)
{
    int count = 0;
    size_t size = tern_dtype_bytes(bucket->dtype);
    for (int place = bucket->first; place < bucket->first + bucket->count; place++) {
        int k = ddp->order[place], r = ddp->seal->range_of[k];
        size_t own = tern_dtype_bytes(ddp->seal->ranges[r].dtype), line = TERN__LINE / own * size;
        uint64_t offset = ddp->seal->offset[k] / own * size, bytes = leaf_bytes(ddp, place);
        uint32_t window = ddp->ranges[r].window;
        tern__extent *last = count ? &extents[count - 1] : NULL;
        if (last && last->window == window &&
            tern__align_up(last->offset + last->count * size, line) == offset)
            last->count = (offset + bytes - last->offset) / size;
        else
            extents[count++] = (tern__extent){window, offset, bytes / size};
    }
    return count;
}

/* Adds a bucket without gradients. */
static tern__bucket *add_bucket(tern_ddp *ddp, tern__extent *next)
{
    tern__bucket *bucket = &ddp->buckets[ddp->bucket_count++];
    *bucket = (tern__bucket){.first = ddp->leaf_count, .dtype = TERN_F32, .extents = next};
    return bucket;
}

/* The side values are reduced with the last bucket if its dtype is precise enough and it is in the host's
 * memory. A loss on a device is a bucket of its own. */
static void add_side(tern_ddp *ddp, tern__extent *next)
{
    tern__bucket *last = &ddp->buckets[ddp->bucket_count - 1];
    ddp->side_bucket = ddp->bucket_count - 1;
    const tern__extent *loss = tern__ddp_loss_extent(ddp);
    if (loss) {
        ddp->side_bucket = ddp->bucket_count;
        last = add_bucket(ddp, next);
        last->extents[last->extent_count++] = *loss;
        last = add_bucket(ddp, next + 1);
    } else if ((last->dtype != TERN_F32 && last->dtype != TERN_F64) || leaf_home(ddp, last->first)) {
        ddp->side_bucket = ddp->bucket_count;
        last = add_bucket(ddp, next);
    }
    last->extents[last->extent_count++] =
        (tern__extent){ddp->side_window, 0, (uint64_t)tern__side_count(ddp)};
}

void tern__bucket_plan(tern_ddp *ddp)
{
    tern__extent *next = ddp->extents;
    ddp->bucket_count = 0;
    for (int first = 0; first < ddp->leaf_count;) {
        bool is_first = first == 0 || (ddp->bucket_count == 1 && is_frozen(ddp, 0));
        size_t cap = is_first ? ddp->opts.first_bucket_bytes : ddp->opts.bucket_bytes;
        tern__bucket *bucket = &ddp->buckets[ddp->bucket_count];
        *bucket = bucket_cut(ddp, first, cap);
        bucket->extents = next;
        bucket->extent_count = fill_extents(ddp, bucket, next);
        next += bucket->extent_count;
        for (int i = 0; i < bucket->count; i++) ddp->bucket_of[ddp->order[first + i]] = ddp->bucket_count;
        first += bucket->count;
        ddp->bucket_count++;
    }
    add_side(ddp, next);
}

/* Writes, behind `count` others, the leaves that were not ready, frozen ones or not, in their old order.
 * Returns how many there are now. */
static int write_absent(const tern_ddp *ddp, bool frozen, int *order, int count)
{
    for (int place = 0; place < ddp->leaf_count; place++) {
        bool seen = is_frozen(ddp, place) != frozen;
        for (int i = 0; i < ddp->round.ready_count; i++) seen |= ddp->ready[i] == ddp->order[place];
        if (!seen) order[count++] = ddp->order[place];
    }
    return count;
}

/* Writes the leaves in the order in which they were ready, behind the frozen ones; the others follow. */
static void write_order(const tern_ddp *ddp, int *order)
{
    int count = write_absent(ddp, true, order, 0), ready = ddp->round.ready_count;
    memcpy(order + count, ddp->ready, (size_t)ready * sizeof(*order));
    write_absent(ddp, false, order, count + ready);
}

int tern__bucket_rebuild(tern_ddp *ddp, tern_error *err)
{
    char *side = tern__ddp_window_base(ddp, ddp->side_window);
    int *order = (int *)(side + ddp->order_extent.offset);
    write_order(ddp, order);
    int status = tern__ddp_post_all(ddp, TERN__BROADCAST, TERN_U8, &ddp->order_extent, 1, err);
    if (!status) status = tern__ddp_wait(ddp, err);
    if (status) return status;
    memcpy(ddp->order, order, (size_t)ddp->leaf_count * sizeof(*order));
    ddp->rebuilt = true;
    tern__bucket_plan(ddp);
    return TERN_OK;
}

bool tern__bucket_has_mean(const tern_ddp *ddp, const tern__bucket *bucket)
{
    bool fresh = false;
    for (int i = 0; i < bucket->count; i++) fresh |= leaf_at(ddp, bucket->first + i)->fresh;
    return fresh;
}
