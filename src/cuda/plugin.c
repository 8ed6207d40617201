/* plugin.c - what the library finds in this plug-in. */
#include "cuda/device.h"
#include "cuda/kernels.h"

static const tern__kernel_fn kernels[TERN__KERNEL_COUNT] = {
    [TERN__MATMUL] = tern__cuda_matmul,
    [TERN__CONV] = tern__cuda_conv,
    [TERN__CONV_DATA_GRAD] = tern__cuda_conv_data_grad,
    [TERN__CONV_WEIGHT_GRAD] = tern__cuda_conv_weight_grad,
    [TERN__REORDER] = tern__cuda_reorder,
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
