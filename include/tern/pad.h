/* pad.h - elements around a tensor: what torch.nn.functional.pad puts there.
 *
 * Threads: as the scope. */
#ifndef TERN_PAD_H
#define TERN_PAD_H

#include <tern/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Around 1 2 3, by two: 0 0 1 2 3 0 0, or 3 2 1 2 3 2 1, or 1 1 1 2 3 3 3, or 2 3 1 2 3 1 2. */
typedef enum tern_padding_mode {
    TERN_PADDING_ZEROS,
    TERN_PADDING_REFLECT,
    TERN_PADDING_REPLICATE,
    TERN_PADDING_CIRCULAR
} tern_padding_mode;

/* `value` around x: padding[0] before and padding[1] after the last dimension, the next two for the one
 * before it, and so on; count of them, two a dimension, as in torch's list. Negative ones take away, E_RANGE:
 * more than there is. torch.nn.functional.pad, constant. */
TERN_API tern_tensor *tern_pad(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding,
                               double value);

/* x's own elements around it, of any of its dimensions. E_SHAPE: a reflected padding that is not smaller than
 * the dimension, a circular one that is larger, a replicated one of nothing; E_INVALID: another mode.
 * torch.nn.functional.pad with a mode. */
TERN_API tern_tensor *tern_pad_mode(tern_scope *scope, tern_tensor *x, int count, const int64_t *padding,
                                    tern_padding_mode mode);

#ifdef __cplusplus
}
#endif
#endif
