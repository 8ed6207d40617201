/* reorder.c - changes layouts by oneDNN's reorders: activations between plain and blocked, and copies for
 * other kernels into a format of oneDNN's choice. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"

static int reorder_new(const tern__call *call, const tern__prim_key *key, const tern__dnnl_desc *from,
                       const tern__dnnl_desc *to, bool add, tern__prim **prim)
{
    dnnl_primitive_desc_t plan = NULL;
    int status = tern__dnnl_plan_reorder(call, from, to, add, &plan);
    if (status) return status;
    tern__prim_arg args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return tern__prim_new(call, key, plan, args, 2, prim);
}

int tern__dnnl_reorder(const tern__call *call, const tern__prim_key *key, const tern__dnnl_memory *from,
                       const tern__dnnl_memory *to, bool add)
{
    tern__prim *prim = tern__prim_find(call, key);
    int status = prim ? TERN_OK : reorder_new(call, key, from->desc, to->desc, add, &prim);
    return status ? status : tern__prim_run(call, prim, (void *[]){from->data, to->data});
}

static bool reorder_takes(const tern__view *view)
{
    return tern__dnnl_type(view->dtype) != dnnl_data_type_undef && tern__view_count(view) > 0 &&
           ((view->layout == TERN__BLOCKED16 && view->ndim <= 5) || tern__view_is_contiguous(view));
}

int tern__cpu_reorder(const tern__call *call)
{
    const tern__view *x = call->in[0], *y = call->out[0];
    if (!reorder_takes(x) || !reorder_takes(y)) return tern__cpu_copy(call);
    tern__dnnl_desc from = tern__dnnl_describe(x), to = tern__dnnl_describe(y);
    tern__prim_key key = tern__prim_key_make(call, 0);
    key.number[0] = x->layout;
    key.number[1] = y->layout;
    key.number[2] = call->add[0];
    key.number[3] = x->ndim;
    key.number[4] = x->dtype;
    for (int d = 0; d < x->ndim; d++) key.number[5 + d] = x->shape[d];
    return tern__dnnl_reorder(call, &key, &(tern__dnnl_memory){&from, x->data},
                              &(tern__dnnl_memory){&to, y->data}, call->add[0]);
}
