/* parts.h - the parts of a ddp: each is what one feature adds to a bucket's path through the core (ddp.h).
 *
 * A part is one const struct, listed in parts.c, and a state of its own that only its file reads. At each
 * moment below the core calls the functions of all parts that are on, in the order of the list; at TAKE and
 * CLOSE in the opposite order, so that a part gets back what it has handed to the next ones. So all ranks
 * post the works of START, POST and TAKE in one order. A function returns TERN_OK, or a negative status with
 * *err set, after which no further part is called. */
#ifndef TERN_SRC_PARALLEL_PARTS_H
#define TERN_SRC_PARALLEL_PARTS_H

#include "comm/meet/work.h"
#include "device/backend.h"

#include <tern/parallel.h>

typedef enum tern__ddp_moment {
    TERN__DDP_OPEN,   /* tern_ddp_new: gradients have their windows; channel and buckets are to come */
    TERN__DDP_BEGIN,  /* any backward of this rank begins, with round.loss */
    TERN__DDP_START,  /* a synchronised one, before its first bucket; as a shadow without a loss */
    TERN__DDP_PUT,    /* the gradients of bucket round.next_put are complete */
    TERN__DDP_TEST,   /* bucket round.next_bucket is to be posted; TERN_PENDING: not yet. Must not wait */
    TERN__DDP_ARRIVE, /* a bucket with side values is to be posted */
    TERN__DDP_POST,   /* all buckets are posted */
    TERN__DDP_TAKE,   /* all works are done, and every leaf's `fresh` is set */
    TERN__DDP_CLOSE,  /* tern_ddp_free, also after a failed OPEN: the windows are still open */
    TERN__DDP_MOMENTS
} tern__ddp_moment;

typedef int (*tern__ddp_hook)(tern_ddp *ddp, tern_error *err);

typedef struct tern__ddp_part {
    size_t state, bytes; /* the offset of its pointer in tern_ddp, and what that points to; 0: no state */
    /* NULL: it always is. The same on all ranks if the part opens windows or posts works. */
    bool (*is_on)(const tern_ddp *ddp);
    tern__ddp_hook at[TERN__DDP_MOMENTS]; /* NULL: nothing to do */
} tern__ddp_part;
#define TERN__DDP_STATE(field) .state = offsetof(tern_ddp, field), .bytes = sizeof(*((tern_ddp *)0)->field)

extern const tern__ddp_part tern__choices_part;
extern const tern__ddp_part tern__checksum_part;
extern const tern__ddp_part tern__buffers_part;
extern const tern__ddp_part tern__compress_part;
extern const tern__ddp_part tern__staging_part;
extern const tern__ddp_part tern__loss_part;
extern const tern__ddp_part tern__straggler_part;
extern const tern__ddp_part tern__stats_part;
extern const tern__ddp_part tern__static_graph_part;
extern const tern__ddp_part tern__normaliser_part;
extern const tern__ddp_part tern__microbatches_part;
enum { TERN__DDP_PARTS = 11 };

/* Makes the states of the parts that are on, zeroed, lists their functions in ddp->hooks, and opens them. */
int tern__parts_open(tern_ddp *ddp, tern_error *err);
int tern__parts_call(tern_ddp *ddp, tern__ddp_moment moment, tern_error *err);

/* ---- choices.c: rank 0's choices of convolution algorithms, sent to all ranks ---- */

/* Makes rank 0 send its choices again: some ranks have missed them. */
void tern__ddp_choices_resend(tern_ddp *ddp);

/* ---- staging.c: gradients in the memory of devices that the back end does not reach ---- */

/* Returns the first such device; NULL: there is none. */
tern_device *tern__ddp_staging_device(const tern_ddp *ddp);
/* Makes these devices' streams `second` wait for all work that is on their streams `first` now. */
int tern__ddp_staging_follow(const tern_ddp *ddp, tern__device_stream first, tern__device_stream second,
                             tern_error *err);
/* Enqueues another copy to or from these devices; the host's memory must be pinned. */
int tern__ddp_staging_copy(const tern_ddp *ddp, void *to, const void *from, size_t bytes, tern_error *err);
/* Returns TERN_OK once the copies are done that the steps' streams follow, else TERN_PENDING or an error. */
int tern__ddp_staging_test(tern_ddp *ddp, tern_error *err);

/* ---- loss.c: the mean of the ranks' losses ---- */

/* Waits for the running backward's loss and returns it, without a scale. */
double tern__ddp_loss_item(const tern_ddp *ddp);
/* Returns where the loss is reduced if it has a bucket of its own; NULL: it is one of the side values. */
const tern__extent *tern__ddp_loss_extent(const tern_ddp *ddp);

/* ---- straggler.c: the rank that the others wait for ---- */

/* Returns that of the last window and the share of the time that they waited; -1: none yet. */
int tern__straggler_rank(const tern_ddp *ddp, double *share);

/* ---- normaliser.c: the ranks' gradients weighed by their numbers of samples ---- */

/* Returns the weight of the running backward's loss in synchronised batch norms. */
double tern__normaliser_loss_weight(const tern_ddp *ddp);

/* ---- microbatches.c: a round's gradients, summed as those of so many ranks ---- */

/* Returns the sum of the losses so far, `loss` being the running backward's; `loss` if the part is off. */
double tern__microbatches_loss(const tern_ddp *ddp, double loss);

#endif
