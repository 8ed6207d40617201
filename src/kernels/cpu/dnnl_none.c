/* dnnl_none.c - a build without oneDNN, in place of all files that call it: products in f32 are
 * f32_matmul.c's, convolutions are Winograd's, sums over taps or f64's products of windows, and layouts are
 * changed element by element. */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/widths.h"

#include <stdio.h>

bool tern__dnnl_is_there(void)
{
    return false;
}

bool tern__dnnl_has_bf16(void)
{
    return false;
}

bool tern__dnnl_has_convolutions(void)
{
    return false;
}

void tern__kernel_choices(char *text, size_t size)
{
    snprintf(text, size, "no oneDNN%s%s", tern__is_wide() ? ", AVX-512" : "", tern__amx_has() ? ", AMX" : "");
}

const char *tern__kernel_lacks(tern_dtype dtype)
{
    if (dtype == TERN_BF16 && !tern__amx_has()) return "AMX, or a build with oneDNN";
    return dtype == TERN_F16 ? "a oneDNN with kernels for f16" : NULL;
}

int tern__prims_count(const tern_device *device)
{
    (void)device;
    return 0;
}

int tern__dnnl_multiply(const tern__call *call, const tern__product *p, char *const at[], bool add)
{
    (void)call, (void)p, (void)at, (void)add;
    return TERN_E_UNSUPPORTED;
}

int tern__cpu_reorder(const tern__call *call)
{
    return tern__cpu_copy(call);
}

static bool direct_takes_nothing(const tern__conv *c)
{
    (void)c;
    return false;
}

static int direct_is_absent(tern__conv *c)
{
    (void)c;
    return TERN_E_UNSUPPORTED;
}

const tern__conv_algorithm tern__conv_direct = {
    .name = "direct", .takes = direct_takes_nothing, .run = direct_is_absent};
