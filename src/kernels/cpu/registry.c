#include "kernels/cpu/cpu.h"

const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT] = {
    [TERN__LINEAR] = tern__cpu_linear,
    [TERN__LINEAR_DATA_GRAD] = tern__cpu_linear_data_grad,
    [TERN__LINEAR_WEIGHT_GRAD] = tern__cpu_linear_weight_grad,
    [TERN__RELU] = tern__cpu_relu,
    [TERN__RELU_GRAD] = tern__cpu_relu_grad,
    [TERN__ADD] = tern__cpu_add,
    [TERN__CONV2D] = tern__cpu_conv2d,
    [TERN__CONV2D_DATA_GRAD] = tern__cpu_conv2d_data_grad,
    [TERN__CONV2D_WEIGHT_GRAD] = tern__cpu_conv2d_weight_grad,
    [TERN__REORDER] = tern__cpu_reorder,
    [TERN__BATCH_NORM_STATS] = tern__cpu_batch_norm_stats,
    [TERN__BATCH_NORM_APPLY] = tern__cpu_batch_norm_apply,
    [TERN__BATCH_NORM_SUMS] = tern__cpu_batch_norm_sums,
    [TERN__BATCH_NORM_DATA_GRAD] = tern__cpu_batch_norm_data_grad,
    [TERN__GLOBAL_AVG_POOL] = tern__cpu_global_avg_pool,
    [TERN__GLOBAL_AVG_POOL_GRAD] = tern__cpu_global_avg_pool_grad,
    [TERN__SGD] = tern__cpu_sgd,
};
