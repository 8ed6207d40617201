/* dnnl_2.c - oneDNN 2.x: a description of memory is a struct, and so is one of an operation. */
#include "kernels/cpu/dnnl_api.h"

dnnl_status_t tern__dnnl_api_describe(const tern__dnnl_desc *desc, void **own)
{
    dnnl_memory_desc_t *md = *own = tern__alloc(sizeof(*md), __func__, NULL);
    if (!md) return dnnl_out_of_memory;
    dnnl_status_t status =
        desc->tag == dnnl_format_tag_undef
            ? dnnl_memory_desc_init_by_strides(md, desc->ndim, desc->shape, (dnnl_data_type_t)desc->type,
                                               desc->stride)
            : dnnl_memory_desc_init_by_tag(md, desc->ndim, desc->shape, (dnnl_data_type_t)desc->type,
                                           (dnnl_format_tag_t)desc->tag);
    if (status == dnnl_success) return dnnl_success;
    tern__free(md);
    *own = NULL;
    return status;
}

void tern__dnnl_api_free(void *own)
{
    tern__free(own);
}

/* Hashes all bytes: the library zeroes its structs first. */
uint64_t tern__dnnl_api_signature(const void *own)
{
    return tern__dnnl_hash(own, sizeof(dnnl_memory_desc_t));
}

dnnl_status_t tern__dnnl_api_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

static dnnl_status_t describe_conv(const tern__dnnl_conv *c, const void *const own[TERN__DNNL_OPERANDS],
                                   dnnl_convolution_desc_t *desc)
{
    const dnnl_memory_desc_t *x = own[TERN__DNNL_X], *w = own[TERN__DNNL_W], *y = own[TERN__DNNL_Y],
                             *b = own[TERN__DNNL_B];
    if (c->kind == dnnl_backward_data)
        return dnnl_dilated_convolution_backward_data_desc_init(desc, dnnl_convolution_direct, x, w, y,
                                                                c->stride, c->dilation, c->before, c->after);
    if (c->kind == dnnl_backward_weights)
        return dnnl_dilated_convolution_backward_weights_desc_init(
            desc, dnnl_convolution_direct, x, w, b, y, c->stride, c->dilation, c->before, c->after);
    return dnnl_dilated_convolution_forward_desc_init(desc, c->kind, dnnl_convolution_direct, x, w, b, y,
                                                      c->stride, c->dilation, c->before, c->after);
}

dnnl_status_t tern__dnnl_api_plan_conv(dnnl_engine_t engine, const tern__dnnl_conv *conv,
                                       const void *const own[TERN__DNNL_OPERANDS], dnnl_primitive_attr_t attr,
                                       dnnl_primitive_desc_t *plan)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = describe_conv(conv, own, &desc);
    return status == dnnl_success ? dnnl_primitive_desc_create(plan, &desc, attr, engine, NULL) : status;
}

dnnl_status_t tern__dnnl_api_plan_matmul(dnnl_engine_t engine, const tern__dnnl_matmul *m,
                                         const void *const own[TERN__DNNL_OPERANDS],
                                         dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *plan)
{
    (void)m;
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, own[TERN__DNNL_X], own[TERN__DNNL_W],
                                                 own[TERN__DNNL_B], own[TERN__DNNL_Y]);
    return status == dnnl_success ? dnnl_primitive_desc_create(plan, &desc, attr, engine, NULL) : status;
}
