#include "kernels/kernel.h"

static const char *const names[] = {
#define X(id, name, inputs, outputs) name,
#include "kernels/kernels.def"
#undef X
};

const char *tern__kernel_name(tern__kernel kernel)
{
    return (unsigned)kernel < TERN__KERNEL_COUNT ? names[kernel] : "?";
}

int tern__kernel_run(const tern__call *call)
{
    tern__kernel_fn fast = call->device->reference ? NULL : tern__cpu_kernels[call->kernel];
    if (fast) {
        int status = fast(call);
        if (status != TERN_E_UNSUPPORTED) return status;
    }
    return tern__reference_kernels[call->kernel](call);
}
