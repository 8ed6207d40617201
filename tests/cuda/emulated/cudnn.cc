/* cudnn.cc - the reference kernels in the place of cuDNN. */
#include "cuda/cudnn.h"
#include "memory.h"

extern "C" {
#include "kernels/reference/reference.h"
}

int tern__cudnn_conv_run(const tern__call *call, const tern__cudnn_conv *conv)
{
    const tern__view *x = &conv->operand[TERN__CONV_X], *w = &conv->operand[TERN__CONV_W];
    const tern__view *y = &conv->operand[TERN__CONV_Y];
    tern__call inner = {};
    inner.device = call->device;
    inner.kernel = conv->kernel;
    inner.in[0] = conv->kernel == TERN__CONV ? x : y;
    inner.in[1] = conv->kernel == TERN__CONV_WEIGHT_GRAD ? x : w;
    inner.out[0] = &conv->operand[conv->result];
    inner.add[0] = conv->add;
    inner.attr = conv->attr;
    inner.err = call->err;
    emulated_memory_open();
    int status = conv->kernel == TERN__CONV             ? tern__reference_conv(&inner)
                 : conv->kernel == TERN__CONV_DATA_GRAD ? tern__reference_conv_data_grad(&inner)
                                                        : tern__reference_conv_weight_grad(&inner);
    emulated_memory_close();
    return status;
}

void tern__cudnn_version(char *text, size_t size)
{
    if (size) *text = 0;
}
