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
    [TERN__SGD] = tern__cpu_sgd,
};
