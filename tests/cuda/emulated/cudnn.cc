/* cudnn.cc - the reference kernels in the place of cuDNN. */
#include "cuda/cudnn.h"
#include "memory.h"

extern "C" {
#include "kernels/reference/reference.h"
}

static int compute(const tern__call *call, const tern__cudnn_conv *conv)
{
    const tern__view *x = &conv->operand[TERN__CONV_X], *w = &conv->operand[TERN__CONV_W];
    const tern__view *y = &conv->operand[TERN__CONV_Y];
    tern__call inner = *call;
    inner.kernel = conv->kernel;
    inner.in[0] = conv->kernel == TERN__CONV ? x : y;
    inner.in[1] = conv->kernel == TERN__CONV_WEIGHT_GRAD ? x : w;
    inner.out[0] = &conv->operand[conv->result];
    inner.add[0] = conv->add;
    inner.attr = conv->attr;
    emulated_memory_open();
    int status = conv->kernel == TERN__CONV             ? tern__reference_conv(&inner)
                 : conv->kernel == TERN__CONV_DATA_GRAD ? tern__reference_conv_data_grad(&inner)
                                                        : tern__reference_conv_weight_grad(&inner);
    emulated_memory_close();
    return status;
}

/* What a convolution's item says, without gaps. */
typedef struct execution {
    tern_device *device;
    tern__conv_attr attr;
    int64_t kernel, result, add;
    struct {
        void *data;
        int64_t dtype, layout, ndim, shape[TERN_NDIM_MAX], stride[TERN_NDIM_MAX];
    } operand[TERN__CONV_OPERANDS];
} execution;

static int run(tern__cuda *, const void *data, tern_error *err)
{
    const execution *e = (const execution *)data;
    tern__call call = {};
    tern__cudnn_conv conv = {};
    call.device = e->device;
    call.err = err;
    conv.kernel = (tern__kernel)e->kernel;
    conv.result = (int)e->result;
    conv.attr = &e->attr;
    conv.add = e->add;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        tern__view *view = &conv.operand[i];
        view->data = e->operand[i].data;
        view->dtype = (tern_dtype)e->operand[i].dtype;
        view->layout = (tern__layout)e->operand[i].layout;
        view->ndim = (int)e->operand[i].ndim;
        std::memcpy(view->shape, e->operand[i].shape, sizeof(view->shape));
        std::memcpy(view->stride, e->operand[i].stride, sizeof(view->stride));
    }
    return compute(&call, &conv);
}

int tern__cudnn_conv_run(const tern__call *call, const tern__cudnn_conv *conv)
{
    static const tern__cuda_kind kind = {sizeof(execution), run};
    alignas(16) execution e = {};
    e.device = call->device;
    e.attr = *conv->attr;
    e.kernel = conv->kernel;
    e.result = conv->result;
    e.add = conv->add;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        const tern__view *view = &conv->operand[i];
        e.operand[i].data = view->data;
        e.operand[i].dtype = view->dtype;
        e.operand[i].layout = view->layout;
        e.operand[i].ndim = view->ndim;
        for (int d = 0; d < view->ndim; d++) e.operand[i].shape[d] = view->shape[d];
        for (int d = 0; d < view->ndim; d++) e.operand[i].stride[d] = view->stride[d];
    }
    return tern__cuda_ask(call->device, &kind, &e, call->err);
}

void tern__cudnn_version(char *text, size_t size)
{
    if (size) *text = 0;
}
