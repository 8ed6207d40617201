/* plugin.c - what the library finds in this plug-in. */
#include "cuda/device.h"
#include "cuda/kernels.h"

static const tern__kernel_fn kernels[TERN__KERNEL_COUNT] = {
    [TERN__MATMUL] = tern__cuda_matmul,
    [TERN__CONV] = tern__cuda_conv,
    [TERN__CONV_DATA_GRAD] = tern__cuda_conv_data_grad,
    [TERN__CONV_WEIGHT_GRAD] = tern__cuda_conv_weight_grad,
    [TERN__REORDER] = tern__cuda_reorder,
    [TERN__BATCH_NORM_STATS] = tern__cuda_batch_norm_stats,
    [TERN__BATCH_NORM_APPLY] = tern__cuda_batch_norm_apply,
    [TERN__BATCH_NORM_SUMS] = tern__cuda_batch_norm_sums,
    [TERN__BATCH_NORM_DATA_GRAD] = tern__cuda_batch_norm_data_grad,
    [TERN__BATCH_NORM] = tern__cuda_batch_norm,
    [TERN__BATCH_NORM_GRAD] = tern__cuda_batch_norm_grad,
    [TERN__GROUP_NORM] = tern__cuda_group_norm,
    [TERN__GROUP_NORM_GRAD] = tern__cuda_group_norm_grad,
    [TERN__GLOBAL_AVG_POOL] = tern__cuda_global_avg_pool,
    [TERN__GLOBAL_AVG_POOL_GRAD] = tern__cuda_global_avg_pool_grad,
    [TERN__MAX_POOL] = tern__cuda_max_pool,
    [TERN__MAX_POOL_GRAD] = tern__cuda_max_pool_grad,
    [TERN__AVG_POOL] = tern__cuda_avg_pool,
    [TERN__AVG_POOL_GRAD] = tern__cuda_avg_pool_grad,
    [TERN__INTERPOLATE] = tern__cuda_interpolate,
    [TERN__INTERPOLATE_GRAD] = tern__cuda_interpolate_grad,
    [TERN__ADAGRAD] = tern__cuda_adagrad,
    [TERN__ADAM] = tern__cuda_adam,
    [TERN__LAMB] = tern__cuda_lamb,
    [TERN__LAMB_MOMENTS] = tern__cuda_lamb_moments,
    [TERN__RMSPROP] = tern__cuda_rmsprop,
    [TERN__SGD] = tern__cuda_sgd,
#define P(ID, name, inputs, dtypes, expression) [TERN__##ID] = tern__cuda_pointwise,
#include "kernels/pointwise.def"
#undef P
};

TERN_API const tern__device_backend tern__device_plugin = {
    .version = TERN_VERSION,
    .device_size = sizeof(tern_device),
    .name = "cuda",
    .count = tern__cuda_count,
    .describe = tern__cuda_describe,
    .libraries = tern__cuda_libraries,
    .open = tern__cuda_open,
    .close = tern__cuda_close,
    .alloc = tern__cuda_alloc,
    .free = tern__cuda_free,
    .bytes = tern__cuda_bytes,
    .copy = tern__cuda_copy,
    .copy_from = tern__cuda_copy_from,
    .zero = tern__cuda_zero,
    .wait = tern__cuda_wait,
    .kernels = kernels,
};
