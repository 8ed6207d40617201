/* values.h - statistics of a tensor's values, and the distance between two tensors. */
#ifndef TERN_CLI_INSPECT_VALUES_H
#define TERN_CLI_INSPECT_VALUES_H

#include "tensor/tensor.h"

/* min, mean, max and std are of the finite values, and NaN if there are none (std: fewer than two). std
 * divides by count - 1, as torch.std. */
typedef struct tern__values {
    int64_t count, nan, inf;
    double min, mean, max, std;
    uint64_t checksum; /* XXH3 of the bytes in row-major order */
} tern__values;

int tern__values_measure(tern__values *out, const tern_tensor *tensor, tern_error *err);

/* The distance between two tensors of the same shape. It is 0 between two NaNs, and infinite between a NaN
 * and a number. */
typedef struct tern__distance {
    int64_t count, equal; /* equal: the same bits and dtype */
    double absolute;      /* the largest |a - b|                  */
    double relative;      /* the largest |a - b| / max(|a|, |b|)  */
} tern__distance;

int tern__values_compare(tern__distance *out, const tern_tensor *a, const tern_tensor *b, tern_error *err);
/* Counts the equal elements of out->count by their bytes: u8 tensors with as many bytes. An element of a part
 * of a byte is equal if its bytes are. */
int tern__bytes_compare(tern__distance *out, const tern_tensor *a, const tern_tensor *b, tern_error *err);

#endif
