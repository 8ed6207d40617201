/* direct.c - convolutions over two or three spatial dimensions and their gradients by oneDNN's direct
 * algorithm.
 *
 * oneDNN is first asked with the activations' own format. If it only has fallbacks for that (mixed
 * layouts, channel counts that fill no block), it may choose their format, too. It always chooses the
 * weight's format. Then every operand is brought to the format that the primitive wants: those that have
 * it are passed as they are, the others are copied. A weight's copy is kept with the parameter if that
 * pays (kernels/pack.h). A result's copy is reordered into its place afterwards, which stores or adds it.
 *
 * bf16 runs where the CPU has oneDNN's kernels for it. All of them take f32's blocked layout and none
 * takes blocks of 32; in oneDNN 2.6 only the forward has a kernel for AMX, which wants channels last.
 * Gradients of weights and biases are computed in f32 and rounded on the way to their place, whose dtype
 * is free. */
#include "kernels/cpu/conv/conv.h"

#include <string.h>

/* ---- descriptions ---- */

/* To oneDNN a grouped weight is (groups, O / groups, C / groups, [kd,] kh, kw). */
static tern__dnnl_desc describe_weight(const tern__view *w, int64_t groups)
{
    int more = groups > 1;
    dnnl_dims_t shape = {groups}, stride = {w->stride[0] * (w->shape[0] / groups)};
    for (int d = 0; d < w->ndim; d++) {
        shape[more + d] = d ? w->shape[d] : w->shape[0] / groups;
        stride[more + d] = w->stride[d];
    }
    return tern__dnnl_by_strides(w->ndim + more, shape, stride, tern__dnnl_type(w->dtype));
}

static void direct_describe(tern__conv *c)
{
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        tern__conv_operand *op = &c->op[i];
        if (!op->view) continue;
        bool exact = op->result && (i == TERN__CONV_W || i == TERN__CONV_B);
        op->type = (int32_t)tern__dnnl_type(exact ? TERN_F32 : op->view->dtype);
        op->have =
            i == TERN__CONV_W ? describe_weight(op->view, c->attr->groups) : tern__dnnl_describe(op->view);
    }
}

/* The same tensor in a format of oneDNN's choice. */
static tern__dnnl_desc any_format(const tern__conv_operand *op)
{
    return tern__dnnl_by_tag(op->have.ndim, op->have.shape, dnnl_format_tag_any, (dnnl_data_type_t)op->type);
}

static dnnl_prop_kind_t direction(tern__kernel kernel)
{
    return kernel == TERN__CONV             ? dnnl_forward_training
           : kernel == TERN__CONV_DATA_GRAD ? dnnl_backward_data
                                            : dnnl_backward_weights;
}

static int direct_plan(const tern__conv *c, bool free_choice, dnnl_primitive_desc_t *found)
{
    const tern__conv_operand *op = c->op;
    tern__dnnl_desc w = any_format(&op[TERN__CONV_W]), b = op[TERN__CONV_B].have;
    tern__dnnl_desc x = free_choice ? any_format(&op[TERN__CONV_X]) : op[TERN__CONV_X].have;
    tern__dnnl_desc y = free_choice ? any_format(&op[TERN__CONV_Y]) : op[TERN__CONV_Y].have;
    b.type = op[TERN__CONV_B].type;
    tern__dnnl_conv want = {.kind = direction(c->call->kernel),
                            .x = &x,
                            .w = &w,
                            .y = &y,
                            .b = op[TERN__CONV_B].view ? &b : NULL};
    for (int i = 0, axis = tern__conv_first_axis(c); axis < 3; i++, axis++) {
        want.stride[i] = c->attr->stride[axis];
        want.dilation[i] = c->attr->dilation[axis] - 1;
        want.before[i] = c->attr->padding[axis];
        want.after[i] = tern__conv_padding_after(c, axis);
    }
    return tern__dnnl_plan_conv(c->call, &want, found);
}

/* ---- the primitive ---- */

/* Whether it is not code generated for the shapes, but a slow matrix product or very slow plain loops. */
static bool is_fallback(const_dnnl_primitive_desc_t found)
{
    const char *name = tern__dnnl_plan_name(found);
    return strstr(name, "ref") || strstr(name, "gemm");
}

/* If one question runs out of memory nothing is chosen: the other answer would round differently. */
static int direct_choose(const tern__conv *c, dnnl_primitive_desc_t *chosen)
{
    int status = TERN_E_UNSUPPORTED;
    bool is_fast = false;
    *chosen = NULL;
    for (int free_choice = 0; free_choice < 2 && !is_fast && status != TERN_E_MEMORY; free_choice++) {
        dnnl_primitive_desc_t found = NULL;
        status = direct_plan(c, free_choice, &found);
        if (status == TERN_E_UNSUPPORTED) continue;
        if (*chosen) dnnl_primitive_desc_destroy(*chosen);
        *chosen = found;
        is_fast = found && !is_fallback(found);
    }
    return *chosen ? TERN_OK : status;
}

/* The DNNL_ARG_ numbers of the operands. */
static const int *arguments(tern__kernel kernel)
{
    static const int forward[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS};
    static const int data[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0};
    static const int weight[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS};
    return kernel == TERN__CONV ? forward : kernel == TERN__CONV_DATA_GRAD ? data : weight;
}

static int conv_new(const tern__conv *c, const tern__prim_key *key, tern__prim **prim)
{
    dnnl_primitive_desc_t chosen;
    int status = direct_choose(c, &chosen);
    if (status) return status;
    tern__prim_arg args[TERN__CONV_OPERANDS];
    int count = 0;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++)
        if (c->op[i].view) args[count++] = (tern__prim_arg){arguments(c->call->kernel)[i], &c->op[i].have};
    return tern__prim_new(c->call, key, chosen, args, count, prim);
}

/* Finds the primitive, or makes it at its first use. */
static int direct_find(tern__conv *c, tern__prim_key *key, tern__prim **prim)
{
    *key = tern__conv_key(c);
    *prim = tern__prim_find(c->call, key);
    direct_describe(c);
    return *prim ? TERN_OK : conv_new(c, key, prim);
}

static int direct_run(tern__conv *c)
{
    tern__prim_key key;
    tern__prim *prim;
    int status = direct_find(c, &key, &prim);
    void *data[TERN__CONV_OPERANDS];
    int count = 0;
    for (int i = 0; i < TERN__CONV_OPERANDS && !status; i++) {
        if (!c->op[i].view) continue;
        c->op[i].to = &prim->desc[count];
        c->op[i].bytes = prim->bytes[count];
        status = tern__conv_bring(c, &key, i);
        data[count++] = c->op[i].data;
    }
    if (!status) status = tern__prim_run(c->call, prim, data);
    for (int i = 0; i < TERN__CONV_OPERANDS && !status; i++)
        if (c->op[i].view) status = tern__conv_take_back(c, &key, i);
    return status;
}

/* oneDNN has no f16, and bf16 only with AVX-512. */
static bool direct_takes(const tern__conv *c)
{
    tern_dtype dtype = c->op[TERN__CONV_X].view->dtype;
    return dtype == TERN_F32 || (dtype == TERN_BF16 && tern__dnnl_has_bf16());
}

const tern__conv_algorithm tern__conv_direct = {.name = "direct", .takes = direct_takes, .run = direct_run};
