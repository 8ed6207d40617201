/* side.c - the side values, which are reduced with the last bucket: a rank's loss, whether it counts, whether
 * its optimizers ask all ranks before a step (join.c needs that), whether it has new choices (choices.c), and
 * a flag for each leaf that it has used.
 *
 * The mean of a flag is above 0 if any rank has set it. The mean loss of the ranks that count is the quotient
 * of two means. If the back end reaches the gradients' device, the loss is reduced and divided there: the
 * host knows the divisor, and reads the loss when it is asked for. A single rank stores its loss as the mean.
 * If the back end does not reach the device, the loss is copied to the host during backward, and written to
 * the side values when their bucket is posted. */
#include "parallel/ddp.h"

#include "device/backend.h"

#include "kernels/kernel.h"
#include "kernels/pointwise.h"
#include "tensor/host.h"

#include <math.h>

enum { LOSS, COUNTS, ASKED, NEWS, FLAGS };
enum { SUM, MEAN }; /* in the block; the sum is this rank's own loss at first */

/* ---- the loss on a device ---- */

/* Returns the device of the first gradients, if all gradients are in devices' memory and the back end reaches
 * all of these devices or none. */
static tern_device *find_device(const tern_ddp *ddp, bool *is_reached)
{
    tern_device *device = ddp->seal->ranges[0].device;
    *is_reached = tern__ddp_reaches(ddp, device);
    for (int r = 0; r < ddp->seal->range_count; r++) {
        tern_device *other = ddp->seal->ranges[r].device;
        if (!other || tern__ddp_reaches(ddp, other) != *is_reached) return NULL;
    }
    return device;
}

static int open_window(tern_ddp *ddp, tern_error *err)
{
    tern__ddp_loss *self = &ddp->loss;
    int status = tern__ddp_window_open(ddp, self->block, 2 * sizeof(*self->block), &self->window, err);
    self->extent = (tern__extent){self->window, 0, 1};
    return status;
}

static int open_copy(tern__ddp_loss *self, tern_error *err)
{
    self->there = self->device->backend->event_new(self->device, err);
    if (!self->there) return err->code;
    self->pinned = self->device->backend->pinned_new(self->device, sizeof(*self->pinned));
    if (self->pinned) return TERN_OK;
    return tern__error_set(err, "tern_ddp_new", TERN_E_MEMORY, "cannot pin memory for %s",
                           self->device->name);
}

int tern__side_open(tern_ddp *ddp, tern_error *err)
{
    tern__ddp_loss *self = &ddp->loss;
    bool is_reached;
    self->device = find_device(ddp, &is_reached);
    if (!self->device) return TERN_OK;
    self->is_reached = is_reached;
    self->block = tern__memory_new(self->device, 2 * sizeof(*self->block), "tern_ddp_new", err);
    if (!self->block) return TERN_E_MEMORY;
    return self->is_reached ? open_window(ddp, err) : open_copy(self, err);
}

void tern__side_close(tern_ddp *ddp)
{
    tern__ddp_loss *self = &ddp->loss;
    if (self->there) self->device->backend->event_wait(self->device, self->there, NULL);
    if (self->pinned) self->device->backend->pinned_free(self->device, self->pinned);
    if (self->there) self->device->backend->event_free(self->device, self->there);
    if (self->block) tern__memory_free(self->block);
}

/* Returns number i of the block as a view. */
static tern__view number_of(const tern__ddp_loss *self, int i)
{
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, 0, NULL);
    view.data = self->block + i;
    return view;
}

/* block[to] = factor * from */
static int put(const tern__ddp_loss *self, int to, const tern__view *from, double factor, tern_error *err)
{
    tern__view view = number_of(self, to), seen = number_of(self, SUM);
    const tern__pointwise_attr attr = {.k = {factor}};
    seen.dtype = from->dtype;
    seen.data = from->data;
    const tern__call call = {.device = self->device,
                             .kernel = TERN__SCALE,
                             .in = {&seen},
                             .out = {&view},
                             .attr = &attr,
                             .err = err};
    return tern__kernel_run(&call);
}

/* block[at] /= scale, which only the device knows */
static int divide(const tern__ddp_loss *self, int at, const tern__view *scale, tern_error *err)
{
    tern__view view = number_of(self, at), by = number_of(self, SUM);
    by.dtype = scale->dtype;
    by.data = scale->data;
    const tern__pointwise_attr attr = {0};
    const tern__call call = {.device = self->device,
                             .kernel = TERN__DIV,
                             .in = {&view, &by},
                             .out = {&view},
                             .attr = &attr,
                             .err = err};
    return tern__kernel_run(&call);
}

static int put_loss(const tern_ddp *ddp, int at, const tern_tensor *loss, tern_error *err)
{
    const tern__view *scale_at = loss->node->scale_at;
    int status = put(&ddp->loss, at, &loss->view, scale_at ? 1 : 1 / loss->node->scale, err);
    return status || !scale_at ? status : divide(&ddp->loss, at, scale_at, err);
}

/* True if this is the only rank. Its loss is the mean, which saves a launch per step. */
static bool is_alone(const tern_ddp *ddp)
{
    return tern_group_size(ddp->group) == 1;
}

static int give_loss(const tern_ddp *ddp, const tern_tensor *loss, bool counts, tern_error *err)
{
    bool alone = is_alone(ddp);
    if (counts) return put_loss(ddp, alone ? MEAN : SUM, loss, err);
    return alone ? TERN_OK : tern__memory_zero(ddp->loss.block, sizeof(float), err);
}

static int take_loss(tern_ddp *ddp, double counts, tern_error *err)
{
    tern__view sum = number_of(&ddp->loss, SUM);
    ddp->loss.is_known = true;
    return is_alone(ddp) ? TERN_OK : put(&ddp->loss, MEAN, &sum, 1 / counts, err);
}

/* Starts a copy of the loss to the host that runs in parallel with backward. */
static int send_loss(tern_ddp *ddp, const tern_tensor *loss, tern_error *err)
{
    tern__ddp_loss *self = &ddp->loss;
    const tern__device_backend *backend = self->device->backend;
    int status = put_loss(ddp, SUM, loss, err);
    if (!status) status = backend->event_record(self->device, TERN__STREAM_STEP, self->there, err);
    if (!status) status = backend->stream_wait(self->device, TERN__STREAM_COMM, self->there, err);
    if (!status)
        status = backend->stream_copy(self->device, TERN__STREAM_COMM, self->pinned, self->block,
                                      sizeof(*self->pinned), err);
    if (!status) status = backend->event_record(self->device, TERN__STREAM_COMM, self->there, err);
    self->is_sent = !status;
    return status;
}

/* ---- all side values ---- */

static void set(const tern_ddp *ddp, int i, double value)
{
    void *side = tern__ddp_window_base(ddp, ddp->side_window);
    if (ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64)
        ((double *)side)[i] = value;
    else
        ((float *)side)[i] = (float)value;
}

static double get(const tern_ddp *ddp, int i)
{
    const void *side = tern__ddp_window_base(ddp, ddp->side_window);
    return ddp->buckets[ddp->bucket_count - 1].dtype == TERN_F64 ? ((const double *)side)[i]
                                                                 : ((const float *)side)[i];
}

/* Returns the scale that the loss was multiplied by. */
static double scale_of(const tern__node *node)
{
    double value;
    if (!node->scale_at) return node->scale;
    return tern__host_item(node->scale_at, &value, NULL) ? NAN : value;
}

int tern__side_write(tern_ddp *ddp, const tern_tensor *loss, tern_error *err)
{
    bool counts = loss && ddp->round.used && ddp->round.has_samples, is_reached = ddp->loss.is_reached;
    bool is_away = loss && ddp->loss.device && tern__memory_device(loss->view.data) == ddp->loss.device;
    set(ddp, LOSS, counts && !is_reached && !is_away ? tern_item(loss) / scale_of(loss->node) : 0);
    set(ddp, COUNTS, counts);
    set(ddp, ASKED, ddp->seal->is_asked);
    for (int k = 0; k < ddp->seal->leaf_count; k++) {
        const tern__leaf *leaf = ddp->seal->leaves[k];
        set(ddp, FLAGS + k, loss && (leaf->fresh || leaf->pending > 0));
    }
    ddp->loss.is_sent = false;
    if (is_reached) return give_loss(ddp, loss, counts, err);
    return counts && is_away ? send_loss(ddp, loss, err) : TERN_OK;
}

/* The loss was copied before the gradients, whose copies have completed, so this does not wait long. */
int tern__side_arrive(tern_ddp *ddp, tern_error *err)
{
    tern__ddp_loss *self = &ddp->loss;
    set(ddp, NEWS, tern__ddp_choices_has_news(ddp));
    if (!self->is_sent) return TERN_OK;
    self->is_sent = false;
    int status = self->device->backend->event_wait(self->device, self->there, err);
    if (!status) set(ddp, LOSS, *self->pinned);
    return status;
}

/* If no rank has samples, nothing was reduced and the flags are this rank's own, so they do not count. If no
 * rank's backward has reached the model, all ranks keep the values of the last one that did. */
int tern__side_take(tern_ddp *ddp, tern_error *err)
{
    const tern__tally *tally = ddp->group->backend->tally(ddp->channel, ddp->round.side_seq);
    ddp->choices.is_due = false;
    if (tally->idle) return TERN_OK;
    double counts = get(ddp, COUNTS);
    ddp->seal->is_asked |= get(ddp, ASKED) > 0;
    ddp->choices.is_due = counts > 0 && get(ddp, NEWS) > 0;
    for (int i = 0; i < ddp->leaf_count; i++) {
        int k = ddp->order[i];
        ddp->seal->leaves[k]->fresh = tally->shares > 0 && get(ddp, FLAGS + k) > 0;
    }
    if (!(counts > 0)) return TERN_OK;
    if (ddp->loss.is_reached) return take_loss(ddp, counts, err);
    ddp->loss_mean = get(ddp, LOSS) / counts;
    return TERN_OK;
}
