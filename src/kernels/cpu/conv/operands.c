/* operands.c - brings a convolution's operands to the algorithm's format, and results back. */
#include "kernels/cpu/conv/conv.h"
#include "kernels/pack.h"

static void *conv_data_of(const tern__conv_operand *op)
{
    return (char *)op->view->data + op->offset * (int64_t)tern_dtype_bytes(op->view->dtype);
}

/* The key of operand i's reorder is the convolution's key plus the operand. */
static int reorder(const tern__call *call, tern__prim_key key, int i, const tern__dnnl_memory *from,
                   const tern__dnnl_memory *to, bool add)
{
    key.part = 1 + 2 * i + add;
    return tern__dnnl_reorder(call, &key, from, to, add);
}

/* The key of a kept copy also includes its source's format: a data gradient's tiles have the channels
 * swapped, which for a square weight has the same format. And it includes the kernel: if forward and data
 * gradient want the same format, a training step would count as two uses and keep a copy that the next
 * step discards. The address of oneDNN's description must not be part of it. */
static void *copy_of(const tern__conv *c, int i, bool *stale)
{
    const tern__conv_operand *op = &c->op[i];
    tern_device *device = c->call->device;
    tern__packs *packs = op->result ? NULL : op->view->packs;
    struct {
        tern__dnnl_desc have, to;
        int64_t offset, kernel;
    } format = {op->have, *op->to, op->offset, c->call->kernel};
    format.to.own = NULL;
    *stale = true;
    void *kept = packs ? tern__pack_get(packs, device, &format, sizeof(format), op->bytes, stale) : NULL;
    return kept ? kept : tern__device_scratch(device, TERN__SCRATCH_OPERAND + i, op->bytes);
}

int tern__conv_bring(tern__conv *c, const tern__prim_key *key, int i)
{
    tern__conv_operand *op = &c->op[i];
    op->data = conv_data_of(op);
    if (!op->add && tern__dnnl_same(&op->have, op->to)) return TERN_OK;
    bool stale;
    op->data = copy_of(c, i, &stale);
    if (!op->data) return tern__dnnl_fail(c->call, dnnl_out_of_memory, "copy of an operand");
    if (op->result || !stale) return TERN_OK;
    return reorder(c->call, *key, i, &(tern__dnnl_memory){&op->have, conv_data_of(op)},
                   &(tern__dnnl_memory){op->to, op->data}, false);
}

/* The same format on both sides: a plain sum. oneDNN's reorder would take a slow path. */
static int add_same(const tern__call *call, const tern__conv_operand *op)
{
    tern__view place = *op->view, computed = *op->view;
    place.data = conv_data_of(op);
    computed.data = op->data;
    tern__call add = {.device = call->device,
                      .kernel = TERN__ADD,
                      .in = {&place, &computed},
                      .out = {&place},
                      .err = call->err};
    return tern__kernel_run(&add);
}

int tern__conv_take_back(tern__conv *c, const tern__prim_key *key, int i)
{
    const tern__conv_operand *op = &c->op[i];
    if (!op->result || op->data == conv_data_of(op)) return TERN_OK;
    if (op->add && tern__dnnl_same(&op->have, op->to)) return add_same(c->call, op);
    return reorder(c->call, *key, i, &(tern__dnnl_memory){op->to, op->data},
                   &(tern__dnnl_memory){&op->have, conv_data_of(op)}, op->add);
}
