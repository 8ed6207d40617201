/* loss.c - the mean of the ranks' losses.
 *
 * It is the mean over the ranks that count: the quotient of two side values. If the back end reaches the
 * gradients' device, the loss is reduced and divided there: the host knows the divisor, and reads the loss
 * when it is asked for. A single rank stores its loss as the mean. If the back end does not reach the device,
 * the loss is copied to the host during backward, and written to the side values when their bucket is posted.
 * The losses of microbatches are added up on the host. */
#include "parallel/ddp.h"

#include "kernels/kernel.h"
#include "kernels/pointwise.h"
#include "tensor/host.h"

#include <math.h>

struct tern__ddp_loss {
    double mean;               /* of the last backward, unless it is in the block */
    tern_device *device;       /* of the gradients; NULL: the host reads the loss at once */
    bool is_reached;           /* the back end reaches the device: the loss is reduced there */
    float *block;              /* [2] this rank's loss, after the work the sum; and the mean */
    bool is_known;             /* the block has a mean */
    tern__extent extent;       /* of the sum, if the back end reaches the device */
    float *pinned;             /* otherwise the loss is copied here, before its bucket's gradients */
    tern__device_event *there; /* recorded after that copy */
    bool is_sent;              /* copied in this backward, but not written to the side values yet */
};
typedef struct tern__ddp_loss ddp_loss;

enum { SUM, MEAN }; /* in the block; the sum is this rank's own loss at first */

/* ---- life ---- */

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

static int open_copy(ddp_loss *self, tern_error *err)
{
    self->there = self->device->backend->event_new(self->device, err);
    if (!self->there) return err->code;
    self->pinned = self->device->backend->pinned_new(self->device, sizeof(*self->pinned));
    if (self->pinned) return TERN_OK;
    return tern__error_set(err, "tern_ddp_new", TERN_E_MEMORY, "cannot pin memory for %s",
                           self->device->name);
}

static int loss_open(tern_ddp *ddp, tern_error *err)
{
    bool is_reached;
    size_t bytes = 2 * sizeof(float);
    ddp_loss *self = ddp->loss;
    self->mean = NAN;
    self->device = ddp->opts.microbatches > 1 ? NULL : find_device(ddp, &is_reached);
    if (!self->device) return TERN_OK;
    self->is_reached = is_reached;
    self->block = tern__ddp_alloc(ddp, self->device, bytes, err);
    if (!self->block) return TERN_E_MEMORY;
    self->extent.count = 1;
    return self->is_reached ? tern__ddp_window_open(ddp, self->block, bytes, &self->extent.window, err)
                            : open_copy(self, err);
}

static int loss_close(tern_ddp *ddp, tern_error *err)
{
    (void)err;
    const ddp_loss *self = ddp->loss;
    const tern__device_backend *backend = self->device ? self->device->backend : NULL;
    if (backend && self->there) backend->event_wait(self->device, self->there, NULL);
    if (backend && self->pinned) backend->pinned_free(self->device, self->pinned);
    if (backend && self->there) backend->event_free(self->device, self->there);
    return TERN_OK;
}

/* ---- on a device ---- */

static tern__view number_at(tern_dtype dtype, void *data)
{
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 0, NULL);
    view.data = data;
    return view;
}

/* block[to] = factor * x, or block[to] / x */
static int block_set(const ddp_loss *self, int to, tern__kernel kernel, const tern__view *x, double factor,
                     tern_error *err)
{
    tern__view out = number_at(TERN_F32, self->block + to), seen = number_at(x->dtype, x->data);
    const tern__pointwise_attr attr = {.k = {factor}};
    const tern__call call = {.device = self->device,
                             .kernel = kernel,
                             .in = {kernel == TERN__DIV ? &out : &seen, kernel == TERN__DIV ? &seen : NULL},
                             .out = {&out},
                             .attr = &attr,
                             .err = err};
    return tern__kernel_run(&call);
}

/* The scale that the loss was multiplied by may be a number that only the device knows. */
static int block_set_loss(const tern_ddp *ddp, int to, tern_error *err)
{
    const tern_tensor *loss = ddp->round.loss;
    const tern__view *scale_at = loss->node->scale_at;
    double factor = scale_at ? 1 : 1 / loss->node->scale;
    int status = block_set(ddp->loss, to, TERN__SCALE, &loss->view, factor, err);
    return status || !scale_at ? status : block_set(ddp->loss, to, TERN__DIV, scale_at, 0, err);
}

/* True if this is the only rank. Its loss is the mean, which saves a launch per step. */
static bool is_alone(const tern_ddp *ddp)
{
    return tern_group_size(ddp->group) == 1;
}

static int reached_start(const tern_ddp *ddp, bool counts, tern_error *err)
{
    bool alone = is_alone(ddp);
    if (counts) return block_set_loss(ddp, alone ? MEAN : SUM, err);
    return alone ? TERN_OK : tern__memory_zero(ddp->loss->block, sizeof(float), err);
}

/* Starts a copy of the loss to the host that runs in parallel with backward. */
static int copy_start(tern_ddp *ddp, tern_error *err)
{
    ddp_loss *self = ddp->loss;
    const tern__device_backend *backend = self->device->backend;
    int status = block_set_loss(ddp, SUM, err);
    if (!status) status = backend->event_record(self->device, TERN__STREAM_STEP, self->there, err);
    if (!status) status = backend->stream_wait(self->device, TERN__STREAM_COMM, self->there, err);
    if (!status)
        status = backend->stream_copy(self->device, TERN__STREAM_COMM, self->pinned, self->block,
                                      sizeof(*self->pinned), err);
    if (!status) status = backend->event_record(self->device, TERN__STREAM_COMM, self->there, err);
    self->is_sent = !status;
    return status;
}

/* ---- a backward ---- */

/* Returns the scale that the loss was multiplied by. */
static double scale_of(const tern__node *node)
{
    double value;
    if (!node->scale_at) return node->scale;
    return tern__host_item(node->scale_at, &value, NULL) ? NAN : value;
}

double tern__ddp_loss_item(const tern_ddp *ddp)
{
    return tern_item(ddp->round.loss) / scale_of(ddp->round.loss->node);
}

static int loss_start(tern_ddp *ddp, tern_error *err)
{
    ddp_loss *self = ddp->loss;
    const tern_tensor *loss = ddp->round.loss;
    bool counts = tern__side_get(ddp, TERN__SIDE_COUNTS) > 0;
    bool is_there = loss && self->device && tern__memory_device(loss->view.data) == self->device;
    bool is_here = counts && !self->is_reached && !is_there;
    tern__side_set(ddp, TERN__SIDE_LOSS,
                   is_here ? tern__microbatches_loss(ddp, tern__ddp_loss_item(ddp)) : 0);
    self->is_sent = false;
    if (self->is_reached) return reached_start(ddp, counts, err);
    return counts && is_there ? copy_start(ddp, err) : TERN_OK;
}

/* The loss was copied before the gradients, whose copies have completed, so this does not wait long. */
static int loss_arrive(tern_ddp *ddp, tern_error *err)
{
    ddp_loss *self = ddp->loss;
    if (!self->is_sent) return TERN_OK;
    self->is_sent = false;
    int status = self->device->backend->event_wait(self->device, self->there, err);
    if (!status) tern__side_set(ddp, TERN__SIDE_LOSS, *self->pinned);
    return status;
}

static int loss_take(tern_ddp *ddp, tern_error *err)
{
    ddp_loss *self = ddp->loss;
    double counts = tern__side_get(ddp, TERN__SIDE_COUNTS);
    if (ddp->round.is_idle || !(counts > 0)) return TERN_OK;
    if (!self->is_reached) self->mean = tern__side_get(ddp, TERN__SIDE_LOSS) / counts;
    self->is_known = self->is_reached;
    if (!self->is_reached || is_alone(ddp)) return TERN_OK;
    tern__view sum = number_at(TERN_F32, self->block + SUM);
    return block_set(self, MEAN, TERN__SCALE, &sum, 1 / counts, err);
}

double tern_ddp_loss_mean(const tern_ddp *ddp)
{
    float mean;
    if (!ddp) return NAN;
    if (!ddp->loss->is_known) return ddp->loss->mean;
    return tern__memory_copy(&mean, ddp->loss->block + MEAN, sizeof(mean), NULL) ? NAN : mean;
}

const tern__extent *tern__ddp_loss_extent(const tern_ddp *ddp)
{
    return ddp->loss->is_reached ? &ddp->loss->extent : NULL;
}

const tern__ddp_part tern__loss_part = {TERN__DDP_STATE(loss), .at = {[TERN__DDP_OPEN] = loss_open,
                                                                      [TERN__DDP_START] = loss_start,
                                                                      [TERN__DDP_ARRIVE] = loss_arrive,
                                                                      [TERN__DDP_TAKE] = loss_take,
                                                                      [TERN__DDP_CLOSE] = loss_close}};
