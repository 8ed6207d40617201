/* autocast.h - which op computes in which dtype, by two lists. */
#ifndef TERN_SRC_AMP_AUTOCAST_H
#define TERN_SRC_AMP_AUTOCAST_H

#include "autograd/autograd.h"

typedef enum tern__autocast_list {
    TERN__AUTOCAST_TORCH, /* torch.autocast's for the device of the op, PyTorch 2: 1.13 lacks a few rows */
    TERN__AUTOCAST_APEX   /* apex's patched functions: opt level O1 */
} tern__autocast_list;

/* For tern__policy_set; `dtype` is BF16 or F16. */
const tern__policy *tern__autocast_policy(tern__autocast_list list, tern_dtype dtype);

#endif
