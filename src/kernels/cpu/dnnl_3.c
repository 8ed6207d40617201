/* dnnl_3.c - oneDNN 3.x: a description of memory is a handle, and an operation is a list of arguments. */
#include "kernels/cpu/dnnl_api.h"

#include <stdatomic.h>
#include <string.h>

dnnl_status_t tern__dnnl_api_describe(const tern__dnnl_desc *desc, void **own)
{
    dnnl_memory_desc_t md = NULL;
    dnnl_status_t status =
        desc->tag == dnnl_format_tag_undef
            ? dnnl_memory_desc_create_with_strides(&md, desc->ndim, desc->shape, (dnnl_data_type_t)desc->type,
                                                   desc->stride)
            : dnnl_memory_desc_create_with_tag(&md, desc->ndim, desc->shape, (dnnl_data_type_t)desc->type,
                                               (dnnl_format_tag_t)desc->tag);
    *own = md;
    return status;
}

void tern__dnnl_api_free(void *own)
{
    if (own) dnnl_memory_desc_destroy(own);
}

/* Hashes what can be queried about blocks; if it cannot be (no blocked format), returns a unique number. */
uint64_t tern__dnnl_api_signature(const void *own)
{
    static _Atomic uint64_t unlike;
    static const dnnl_query_t lists[] = {dnnl_query_dims, dnnl_query_padded_dims, dnnl_query_strides,
                                         dnnl_query_inner_blks, dnnl_query_inner_idxs};
    struct {
        int32_t ndim, type, kind, blocks;
        dnnl_dims_t list[5];
    } said;
    memset(&said, 0, sizeof(said));
    dnnl_memory_desc_query(own, dnnl_query_ndims_s32, &said.ndim);
    dnnl_memory_desc_query(own, dnnl_query_data_type, &said.type);
    dnnl_memory_desc_query(own, dnnl_query_format_kind, &said.kind);
    if (said.kind != dnnl_blocked) return ++unlike;
    dnnl_memory_desc_query(own, dnnl_query_inner_nblks_s32, &said.blocks);
    for (int i = 0; i < 5; i++) {
        const dnnl_dims_t *list = NULL;
        int count = i < 3 ? said.ndim : said.blocks;
        if (count && dnnl_memory_desc_query(own, lists[i], &list) == dnnl_success)
            memcpy(said.list[i], *list, (size_t)count * sizeof(**list));
    }
    return tern__dnnl_hash(&said, sizeof(said));
}

dnnl_status_t tern__dnnl_api_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

/* bf16 weight gradients of padded volumes that are flatter than the kernel: oneDNN's AVX-512 code reads
 * beyond the sheets (3.2 to 3.13). */
static bool reads_beside(const tern__dnnl_conv *c)
{
    int64_t taps = c->w->shape[c->w->ndim - 3], reach = (taps - 1) * (c->dilation[0] + 1) + 1;
    return c->kind == dnnl_backward_weights && c->x->ndim == 5 && c->x->type == dnnl_bf16 &&
           c->before[0] > 0 && c->x->shape[2] < reach;
}

dnnl_status_t tern__dnnl_api_plan_conv(dnnl_engine_t engine, const tern__dnnl_conv *c,
                                       const void *const own[TERN__DNNL_OPERANDS], dnnl_primitive_attr_t attr,
                                       dnnl_primitive_desc_t *plan)
{
    const_dnnl_memory_desc_t x = own[TERN__DNNL_X], w = own[TERN__DNNL_W], y = own[TERN__DNNL_Y],
                             b = own[TERN__DNNL_B];
    if (reads_beside(c)) return dnnl_unimplemented;
    if (c->kind == dnnl_backward_data)
        return dnnl_convolution_backward_data_primitive_desc_create(plan, engine, dnnl_convolution_direct, x,
                                                                    w, y, c->stride, c->dilation, c->before,
                                                                    c->after, NULL, attr);
    if (c->kind == dnnl_backward_weights)
        return dnnl_convolution_backward_weights_primitive_desc_create(plan, engine, dnnl_convolution_direct,
                                                                       x, w, b, y, c->stride, c->dilation,
                                                                       c->before, c->after, NULL, attr);
    return dnnl_convolution_forward_primitive_desc_create(plan, engine, c->kind, dnnl_convolution_direct, x,
                                                          w, b, y, c->stride, c->dilation, c->before,
                                                          c->after, attr);
}

/* The AVX-512 code treats some operands as denser than they are (so in 3.6): batches of more than one
 * dimension, a single row whose elements are not adjacent, and sums of a single product. */
static bool is_misread(const tern__dnnl_desc *a)
{
    int column = a->ndim - 1;
    bool apart = a->shape[column - 1] == 1 && a->stride[column] != 1;
    return a->ndim > 3 || a->shape[column] == 1 || apart;
}

dnnl_status_t tern__dnnl_api_plan_matmul(dnnl_engine_t engine, const tern__dnnl_matmul *m,
                                         const void *const own[TERN__DNNL_OPERANDS],
                                         dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *plan)
{
    if (is_misread(m->a)) return dnnl_unimplemented;
    return dnnl_matmul_primitive_desc_create(plan, engine, own[TERN__DNNL_X], own[TERN__DNNL_W],
                                             own[TERN__DNNL_B], own[TERN__DNNL_Y], attr);
}
