#include "kernels/cpu/cpu.h"

const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT] = {
    [TERN__MATMUL] = tern__cpu_matmul,
    [TERN__SUM] = tern__cpu_sum,
    [TERN__AMAX] = tern__cpu_amax,
    [TERN__AMIN] = tern__cpu_amin,
    [TERN__CROSS_ENTROPY] = tern__cpu_cross_entropy,
    [TERN__CROSS_ENTROPY_GRAD] = tern__cpu_cross_entropy_grad,
    [TERN__ARGMAX] = tern__cpu_argmax,
    [TERN__CONV2D] = tern__cpu_conv2d,
    [TERN__CONV2D_DATA_GRAD] = tern__cpu_conv2d_data_grad,
    [TERN__CONV2D_WEIGHT_GRAD] = tern__cpu_conv2d_weight_grad,
    [TERN__REORDER] = tern__cpu_reorder,
    [TERN__BATCH_NORM_STATS] = tern__cpu_batch_norm_stats,
    [TERN__BATCH_NORM_APPLY] = tern__cpu_batch_norm_apply,
    [TERN__BATCH_NORM_SUMS] = tern__cpu_batch_norm_sums,
    [TERN__BATCH_NORM_DATA_GRAD] = tern__cpu_batch_norm_data_grad,
    [TERN__GROUP_NORM] = tern__cpu_group_norm,
    [TERN__GROUP_NORM_GRAD] = tern__cpu_group_norm_grad,
    [TERN__GLOBAL_AVG_POOL] = tern__cpu_global_avg_pool,
    [TERN__GLOBAL_AVG_POOL_GRAD] = tern__cpu_global_avg_pool_grad,
    [TERN__MAX_POOL2D] = tern__cpu_max_pool2d,
    [TERN__MAX_POOL2D_GRAD] = tern__cpu_max_pool2d_grad,
    [TERN__AVG_POOL2D] = tern__cpu_avg_pool2d,
    [TERN__AVG_POOL2D_GRAD] = tern__cpu_avg_pool2d_grad,
    [TERN__ADAM] = tern__cpu_adam,
    [TERN__POWER_SUM] = tern__cpu_power_sum,
    [TERN__SGD] = tern__cpu_sgd,
#define P(id, name, inputs, dtypes, expression) [TERN__##id] = tern__cpu_pointwise,
#include "kernels/pointwise.def"
#undef P
};
