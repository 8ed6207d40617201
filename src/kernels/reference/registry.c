#include "kernels/reference/reference.h"

const tern__kernel_fn tern__reference_kernels[TERN__KERNEL_COUNT] = {
    [TERN__MATMUL] = tern__reference_matmul,
    [TERN__CROSS_ENTROPY] = tern__reference_cross_entropy,
    [TERN__CROSS_ENTROPY_GRAD] = tern__reference_cross_entropy_grad,
    [TERN__ARGMAX] = tern__reference_argmax,
    [TERN__SUM] = tern__reference_sum,
    [TERN__AMAX] = tern__reference_amax,
    [TERN__AMIN] = tern__reference_amin,
    [TERN__CONV2D] = tern__reference_conv2d,
    [TERN__CONV2D_DATA_GRAD] = tern__reference_conv2d_data_grad,
    [TERN__CONV2D_WEIGHT_GRAD] = tern__reference_conv2d_weight_grad,
    [TERN__REORDER] = tern__reference_reorder,
    [TERN__BATCH_NORM_STATS] = tern__reference_batch_norm_stats,
    [TERN__BATCH_NORM_APPLY] = tern__reference_batch_norm_apply,
    [TERN__BATCH_NORM_SUMS] = tern__reference_batch_norm_sums,
    [TERN__BATCH_NORM_DATA_GRAD] = tern__reference_batch_norm_data_grad,
    [TERN__GROUP_NORM] = tern__reference_group_norm,
    [TERN__GROUP_NORM_GRAD] = tern__reference_group_norm_grad,
    [TERN__GLOBAL_AVG_POOL] = tern__reference_global_avg_pool,
    [TERN__GLOBAL_AVG_POOL_GRAD] = tern__reference_global_avg_pool_grad,
    [TERN__MAX_POOL2D] = tern__reference_max_pool2d,
    [TERN__MAX_POOL2D_GRAD] = tern__reference_max_pool2d_grad,
    [TERN__AVG_POOL2D] = tern__reference_avg_pool2d,
    [TERN__AVG_POOL2D_GRAD] = tern__reference_avg_pool2d_grad,
    [TERN__ADAM] = tern__reference_adam,
    [TERN__POWER_SUM] = tern__reference_power_sum,
    [TERN__SGD] = tern__reference_sgd,
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__reference_pointwise,
#include "kernels/pointwise.def"
#undef P
};
