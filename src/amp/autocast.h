/* autocast.h - the two lists that say in which dtype each op computes. */
#ifndef TERN_SRC_AMP_AUTOCAST_H
#define TERN_SRC_AMP_AUTOCAST_H

#include "autograd/autograd.h"

typedef enum tern__autocast_list {
    TERN__AUTOCAST_TORCH, /* torch.autocast's list for the op's device, as of PyTorch 2 (1.13 lacks some rows)
                           */
    TERN__AUTOCAST_APEX   /* the functions that apex patches at opt level O1 */
} tern__autocast_list;

/* For tern__policy_set; `dtype` is BF16 or F16. */
const tern__policy *tern__autocast_policy(tern__autocast_list list, tern_dtype dtype);

#endif
