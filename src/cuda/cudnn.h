/* cudnn.h - what the plug-in asks of cuDNN. */
#ifndef TERN_SRC_CUDA_CUDNN_H
#define TERN_SRC_CUDA_CUDNN_H

#include "cuda/runtime.h"

extern "C" {
#include "kernels/conv.h"
}

enum { TERN__CONV_X, TERN__CONV_W, TERN__CONV_Y, TERN__CONV_OPERANDS };

/* y, x or w, as the kernel says, made of the other two: all of one layout and without gaps, the inputs of one
 * dtype. Sums are made in f32, of f64 in f64. */
typedef struct tern__cudnn_conv {
    tern__kernel kernel; /* CONV, CONV_DATA_GRAD or CONV_WEIGHT_GRAD */
    tern__view operand[TERN__CONV_OPERANDS];
    int result; /* which of them */
    const tern__conv_attr *attr;
    bool add;
} tern__cudnn_conv;

/* E_UNSUPPORTED, with nothing computed: cuDNN has none by the device's rules. */
int tern__cudnn_conv_run(const tern__call *call, const tern__cudnn_conv *conv);

/* "cuDNN 9.14.0". */
void tern__cudnn_version(char *text, size_t size);

#endif
