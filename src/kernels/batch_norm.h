/* batch_norm.h - attributes of the batch norm kernels. Statistics are the mean and the biased variance of
 * each channel, whether they are the batch's own, those of all ranks or running ones. */
#ifndef TERN_SRC_KERNELS_BATCH_NORM_H
#define TERN_SRC_KERNELS_BATCH_NORM_H

#include <stdint.h>

typedef struct tern__batch_norm_attr {
    double eps;
    double momentum; /* STATS: share of the new statistics in the running ones            */
    int64_t relu;    /* APPLY: not 0 for max(., 0) at the end                             */
    int64_t count;   /* DATA_GRAD: values a channel's statistics and sums were taken over */
} tern__batch_norm_attr;

#endif
