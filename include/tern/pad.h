/* pad.h - adding elements around a tensor, as torch.nn.functional.pad.
 *
 * `padding` is a list of `count` numbers, two for each dimension: padding[0] elements before and padding[1]
 * after the last dimension, the next two for the dimension before it, and so on.
 *
 * Threads: as the scope. */
#ifndef TERN_PAD_H
#define TERN_PAD_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which elements are added. 1 2 3 padded by two becomes 0 0 1 2 3 0 0, or 3 2 1 2 3 2 1, or 1 1 1 2 3 3 3, or
 * 2 3 1 2 3 1 2, in the order of these constants. */
typedef enum tern_padding_mode {
    TERN_PADDING_MODE_ZEROS,
    TERN_PADDING_MODE_REFLECT,
    TERN_PADDING_MODE_REPLICATE,
    TERN_PADDING_MODE_CIRCULAR
} tern_padding_mode;

/* Adds elements `value` around x. Negative numbers remove elements; E_RANGE: more than there are.
 * torch.nn.functional.pad with mode="constant". */
TERN_API tern_tensor *tern_pad(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding,
                               double value);

/* Adds copies of x's own elements around it, in any dimensions. E_SHAPE: a reflected padding that is not
 * smaller than the dimension, a circular one that is larger, a replicated one of an empty dimension;
 * E_INVALID: another mode. torch.nn.functional.pad with a mode. */
TERN_API tern_tensor *tern_pad_mode(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding,
                                    tern_padding_mode mode);

#ifdef __cplusplus
}
#endif
#endif
