/* values.h - the values of a tensor in a few numbers, and how far those of two are apart. */
#ifndef TERN_CLI_INSPECT_VALUES_H
#define TERN_CLI_INSPECT_VALUES_H

#include "tensor/tensor.h"

/* Of the finite values; where there is none (std: fewer than two) NaN. std is that of torch.std, by count
 * - 1. */
typedef struct tern__values {
    int64_t count, nan, inf;
    double min, mean, max, std;
    uint64_t checksum; /* XXH3 of the bytes, row-major */
} tern__values;

int tern__values_measure(tern__values *out, const tern_tensor *tensor, tern_error *err);

/* Of two tensors of one shape. Two NaNs are not apart, a NaN and a number infinitely. */
typedef struct tern__distance {
    int64_t count, equal; /* equal: by bits, so only in one dtype */
    double absolute;      /* the largest |a - b|                  */
    double relative;      /* the largest |a - b| / max(|a|, |b|)  */
} tern__distance;

int tern__values_compare(tern__distance *out, const tern_tensor *a, const tern_tensor *b, tern_error *err);

#endif
