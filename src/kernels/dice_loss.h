/* dice_loss.h - what the kernels of Dice and of cross entropy with Dice share: everything but the passes over
 * memory.
 *
 * Forward makes five sums for each channel of each sample; from them come the loss and, in backward, the
 * slope of every element. With a mask target T and the probability P = sigmoid(x) of each element these are
 * sum P T, sum P (or P^2), sum T (or T^2), the cross entropy and the number of elements. With a map of
 * classes T is 1 where the label is the channel, P is the softmax, and a position's cross entropy counts for
 * its label's channel. Ignored elements are in none of them. A region's loss is 1 - (2 both + smooth) / (x +
 * target + smooth). */
#ifndef TERN_SRC_KERNELS_DICE_LOSS_H
#define TERN_SRC_KERNELS_DICE_LOSS_H

#include "base/host_device.h"
#include "kernels/kernel.h"
#include "kernels/labels.h"

typedef struct tern__dice_attr {
    const char *func, *op; /* for errors */
    int64_t classes, probabilities, squared, over_batch, ignored;
    int64_t mean, each;           /* divide by the number of regions; do not add up */
    double smooth, entropy, dice; /* the last two: what each loss counts  */
} tern__dice_attr;

/* A channel's sums, a row of the kernel's second output. */
typedef struct tern__overlap {
    double both, x, target, entropy, count;
} tern__overlap;
#define TERN__OVERLAP 5

/* x seen as (samples, channels, inner). */
typedef struct tern__channels {
    int64_t samples, channels, inner;
} tern__channels;
tern__channels tern__channels_of(const tern__view *x);

TERN__ANYWHERE void tern__overlap_add(tern__overlap *sum, const tern__overlap *part)
{
    sum->both += part->both;
    sum->x += part->x;
    sum->target += part->target;
    sum->entropy += part->entropy;
    sum->count += part->count;
}

/* What stands in errors about the target's labels. */
static inline tern__labels tern__dice_labels(const tern__dice_attr *attr, const tern__channels *c)
{
    int64_t classes = attr->classes ? c->channels : 2;
    return (tern__labels){attr->func, attr->op, NULL, classes, c->inner * (attr->classes ? 1 : c->channels)};
}

/* ---- formulas ---- */

TERN__ANYWHERE int64_t tern__dice_regions(const tern__dice_attr *attr, const tern__channels *c)
{
    return c->channels * (attr->over_batch ? 1 : c->samples);
}

/* The sums of the region that a channel of a sample is part of. */
TERN__ANYWHERE tern__overlap tern__dice_region(const tern__dice_attr *attr, const tern__channels *c,
                                               const tern__overlap *sums, int64_t sample, int64_t channel)
{
    if (!attr->over_batch) return sums[sample * c->channels + channel];
    tern__overlap all = {0, 0, 0, 0, 0};
    for (int64_t n = 0; n < c->samples; n++) tern__overlap_add(&all, &sums[n * c->channels + channel]);
    return all;
}

TERN__ANYWHERE double tern__dice_of(const tern__dice_attr *attr, const tern__overlap *o)
{
    return 1 - (2 * o->both + attr->smooth) / (o->x + o->target + attr->smooth);
}

/* E_RANGE that names the element of the target, by its number in it, and what it is. */
int tern__dice_label_error(const tern__call *call, const tern__channels *c, int64_t element, int64_t label);

/* The loss of the sums [samples, channels], into the call's first output. */
void tern__dice_close(const tern__call *call, const tern__channels *c, const tern__overlap *sums);

/* By a probability p with target t the loss changes by of_target t + of_x (1, or 2 p with squares); by the
 * logit of a sigmoid or a softmax by entropy (p - t) besides. */
typedef struct tern__dice_slope {
    double of_target, of_x, entropy;
} tern__dice_slope;
/* What is sent back into the gradient's call, and the slopes of channel `i` of all samples' made of it. */
typedef struct tern__dice_back {
    const tern__call *call;
    tern__channels c;
    double entropy;
} tern__dice_back;
tern__dice_back tern__dice_back_of(const tern__call *call);
tern__dice_slope tern__dice_slope_of(const tern__dice_back *back, int64_t i);

/* The slopes of a region's elements, with what is sent back to its loss. */
TERN__ANYWHERE tern__dice_slope tern__dice_slope_by(const tern__dice_attr *attr, const tern__channels *c,
                                                    const tern__overlap *o, double sent, double entropy)
{
    double dice = sent * attr->dice / (attr->mean ? (double)tern__dice_regions(attr, c) : 1);
    double size = o->x + o->target + attr->smooth;
    tern__dice_slope slope = {-2 * dice / size, dice * (2 * o->both + attr->smooth) / (size * size), entropy};
    return slope;
}

#endif
