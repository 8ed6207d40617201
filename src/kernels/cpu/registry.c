#include "kernels/cpu/cpu.h"

const tern__kernel_fn tern__cpu_kernels[TERN__KERNEL_COUNT] = {
    [TERN__LINEAR] = tern__cpu_linear,
    [TERN__LINEAR_DATA_GRAD] = tern__cpu_linear_data_grad,
    [TERN__LINEAR_WEIGHT_GRAD] = tern__cpu_linear_weight_grad,
    [TERN__RELU] = tern__cpu_relu,
    [TERN__RELU_GRAD] = tern__cpu_relu_grad,
    [TERN__ADD] = tern__cpu_add,
    [TERN__SGD] = tern__cpu_sgd,
};
