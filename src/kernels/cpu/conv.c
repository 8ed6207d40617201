/* conv.c - convolutions over two or three spatial dimensions and their gradients by oneDNN's direct
 * algorithm.
 *
 * oneDNN is first asked for the activations as they stand. Where it has only fallbacks for that (mixed
 * layouts, channel counts that fill no block), it may choose their format too. The weight's format is always
 * its choice. Then every operand is brought to the format that the primitive wants: those that stand so
 * already are passed as they are, the others go through a copy. A weight's copy is kept with the
 * parameter where that pays (kernels/pack.h); a result's copy is reordered into its place afterwards, which
 * is its store or, where the caller adds, its add.
 *
 * bf16 where the CPU has oneDNN's kernels for it: all of them take the blocked layout of f32, none takes
 * blocks of 32, and in oneDNN 2.6 only the forward has a kernel for AMX, which wants channels last. Gradients
 * of weights and biases are computed in f32 and rounded on the way to their place, whose dtype they may
 * choose. f16 goes through f32 copies. */
#include "kernels/conv.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/amx_conv.h"
#include "kernels/cpu/amx_unfold.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/widen.h"
#include "kernels/pack.h"
#include "kernels/reduce.h"

#include <string.h>

/* The operands, whichever of them is computed: input, weight, output, bias, or their gradients. */
enum { X, W, Y, B, OPERANDS };

typedef struct operand {
    const tern__view *view; /* NULL: absent            */
    bool result, add;
    int arg;                      /* its DNNL_ARG_ number    */
    dnnl_data_type_t type;        /* that is computed with   */
    int64_t offset;               /* elements before the first of the view */
    dnnl_memory_desc_t have;      /* as the caller has it    */
    const dnnl_memory_desc_t *to; /* as the primitive has it */
    void *data;                   /* what the primitive gets */
} operand;

typedef struct conv {
    dnnl_prop_kind_t kind;
    dnnl_alg_kind_t algorithm;
    const tern__conv_attr *attr;
    operand op[OPERANDS];
} conv;

/* The first of the attributes' three numbers that counts: depth's or height's. */
static int first_axis(const conv *c)
{
    return 5 - c->op[X].view->ndim;
}

/* ---- descriptions ---- */

/* A grouped weight is (groups, O / groups, C / groups, [kd,] kh, kw) to oneDNN. */
static dnnl_status_t describe_weight(operand *op, int64_t groups)
{
    const tern__view *w = op->view;
    int more = groups > 1;
    dnnl_dims_t dims = {groups}, strides = {w->stride[0] * (w->shape[0] / groups)};
    for (int d = 0; d < w->ndim; d++) {
        dims[more + d] = d ? w->shape[d] : w->shape[0] / groups;
        strides[more + d] = w->stride[d];
    }
    dnnl_status_t vendor =
        dnnl_memory_desc_init_by_strides(&op->have, w->ndim + more, dims, tern__dnnl_type(w->dtype), strides);
    op->have.offset0 = op->offset;
    return vendor;
}

static dnnl_status_t describe(conv *c)
{
    dnnl_status_t vendor = dnnl_success;
    for (int i = 0; i < OPERANDS && vendor == dnnl_success; i++) {
        operand *op = &c->op[i];
        if (!op->view) continue;
        op->type = tern__dnnl_type(op->result && (i == W || i == B) ? TERN_F32 : op->view->dtype);
        vendor = i == W ? describe_weight(op, c->attr->groups) : tern__dnnl_describe(op->view, &op->have);
    }
    return vendor;
}

/* The same tensor in whatever format oneDNN likes. */
static dnnl_status_t any_format(const operand *op, dnnl_memory_desc_t *any)
{
    const dnnl_memory_desc_t *have = &op->have;
    return dnnl_memory_desc_init_by_tag(any, have->ndims, have->dims, op->type, dnnl_format_tag_any);
}

/* As much as before, but where x is longer than what y's elements see (of a transposed convolution with
 * output padding of a stride or more): there it ends early. oneDNN takes none below 0. */
static int64_t padding_after(const conv *c, int axis)
{
    const tern__conv_attr *a = c->attr;
    int d = 2 + axis - first_axis(c);
    int64_t in = c->op[X].view->shape[d], out = c->op[Y].view->shape[d];
    int64_t reach = a->dilation[axis] * (c->op[W].view->shape[d] - 1) + 1, padding = a->padding[axis];
    if ((in + 2 * padding - reach) / a->stride[axis] + 1 == out) return padding;
    return (out - 1) * a->stride[axis] + reach - in - padding;
}

static dnnl_status_t init_desc(const conv *c, bool free_choice, dnnl_convolution_desc_t *desc)
{
    dnnl_memory_desc_t x = c->op[X].have, w, y = c->op[Y].have, vector = c->op[B].have;
    const dnnl_memory_desc_t *b = c->op[B].view ? &vector : NULL;
    dnnl_dims_t stride, padding, after, dilation;
    for (int i = 0, axis = first_axis(c); axis < 3; i++, axis++) {
        stride[i] = c->attr->stride[axis];
        padding[i] = c->attr->padding[axis];
        after[i] = padding_after(c, axis);
        dilation[i] = c->attr->dilation[axis] - 1;
    }
    dnnl_status_t vendor = any_format(&c->op[W], &w);
    if (vendor == dnnl_success && free_choice) vendor = any_format(&c->op[X], &x);
    if (vendor == dnnl_success && free_choice) vendor = any_format(&c->op[Y], &y);
    vector.data_type = c->op[B].type;
    if (vendor != dnnl_success) return vendor;
    if (c->kind == dnnl_backward_data)
        return dnnl_dilated_convolution_backward_data_desc_init(desc, c->algorithm, &x, &w, &y, stride,
                                                                dilation, padding, after);
    if (c->kind == dnnl_backward_weights)
        return dnnl_dilated_convolution_backward_weights_desc_init(desc, c->algorithm, &x, &w, b, &y, stride,
                                                                   dilation, padding, after);
    return dnnl_dilated_convolution_forward_desc_init(desc, c->kind, c->algorithm, &x, &w, b, &y, stride,
                                                      dilation, padding, after);
}

/* ---- the primitive ---- */

/* Not code made for these very shapes, but a slow product of matrices or very slow plain loops. */
static bool is_fallback(const_dnnl_primitive_desc_t desc)
{
    const char *name = "";
    dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    return strstr(name, "ref") || strstr(name, "gemm");
}

static int choose(const tern__call *call, const conv *c, dnnl_primitive_desc_t *chosen)
{
    dnnl_primitive_attr_t attr = NULL;
    int status = tern__dnnl_attr_new(call, &attr);
    if (status) return status;
    dnnl_status_t vendor = dnnl_unimplemented;
    *chosen = NULL;
    for (int free_choice = 0; free_choice < 2; free_choice++) {
        dnnl_convolution_desc_t desc;
        dnnl_primitive_desc_t found = NULL;
        vendor = init_desc(c, free_choice, &desc);
        if (vendor == dnnl_success)
            vendor = dnnl_primitive_desc_create(&found, &desc, attr, tern__dnnl_engine(call), NULL);
        if (vendor != dnnl_success) continue;
        if (*chosen) dnnl_primitive_desc_destroy(*chosen);
        *chosen = found;
        if (!is_fallback(found)) break;
    }
    dnnl_primitive_attr_destroy(attr);
    return *chosen ? TERN_OK : tern__dnnl_fail(call, vendor, "convolution");
}

static int conv_new(const tern__call *call, const tern__prim_key *key, const conv *c, tern__prim **prim)
{
    dnnl_primitive_desc_t desc;
    int status = choose(call, c, &desc);
    if (status) return status;
    tern__prim_arg args[OPERANDS];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!c->op[i].view) continue;
        int arg = c->op[i].arg;
        args[count++] =
            (tern__prim_arg){arg, dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg)};
    }
    return tern__prim_new(call, key, desc, args, count, prim);
}

static tern__prim_key key_of(const tern__call *call, const conv *c)
{
    tern__prim_key key = tern__prim_key_make(call, 0);
    int64_t *number = key.number;
    size_t shape_bytes = (size_t)c->op[X].view->ndim * sizeof(*number);
    memcpy(number, c->op[X].view->shape, shape_bytes);
    memcpy(number + 5, c->op[W].view->shape, shape_bytes);
    memcpy(number + 10, c->attr, sizeof(*c->attr));
    number[20] = c->op[X].view->layout;
    number[21] = c->op[Y].view->layout;
    number[22] = c->op[B].view != NULL;
    number[23] = c->algorithm;
    for (int i = 0; i < OPERANDS; i++) number[24 + i] = c->op[i].view ? c->op[i].view->dtype : 0;
    number[28] = c->op[W].offset;
    memcpy(number + 29, c->op[W].view->stride + 1, 3 * sizeof(*number));
    return key;
}

/* ---- operands ---- */

/* The reorder of operand i has the convolution's key, and a part of its own. */
static int reorder(const tern__call *call, tern__prim_key key, int i, const tern__dnnl_memory *from,
                   const tern__dnnl_memory *to, bool add)
{
    key.part = 1 + 2 * i + add;
    return tern__dnnl_reorder(call, &key, from, to, add);
}

/* A kept copy is told by what it was made from, too: a data gradient's tiles have the channels in each
 * other's places, which of a square weight is the same format. */
static void *copy_of(const tern__call *call, const operand *op, int i, bool *stale)
{
    size_t bytes = dnnl_memory_desc_get_size(op->to);
    tern__packs *packs = op->result ? NULL : op->view->packs;
    const dnnl_memory_desc_t format[2] = {op->have, *op->to};
    *stale = true;
    void *kept = packs ? tern__pack_get(packs, call->device, format, sizeof(format), bytes, stale) : NULL;
    return kept ? kept : tern__device_scratch(call->device, TERN__SCRATCH_OPERAND + i, bytes);
}

/* Finds the memory that the primitive reads or writes and, for what it reads, fills it. */
static int bring(const tern__call *call, const tern__prim_key *key, operand *op, int i)
{
    op->data = op->view->data;
    if (!op->add && dnnl_memory_desc_equal(&op->have, op->to)) return TERN_OK;
    bool stale;
    op->data = copy_of(call, op, i, &stale);
    if (!op->data) return tern__dnnl_fail(call, dnnl_out_of_memory, "copy of an operand");
    if (op->result || !stale) return TERN_OK;
    return reorder(call, *key, i, &(tern__dnnl_memory){&op->have, op->view->data},
                   &(tern__dnnl_memory){op->to, op->data}, false);
}

/* The same format on both sides: a plain sum, where oneDNN's reorder would take a slow path. */
static int add_same(const tern__call *call, const operand *op)
{
    tern__view computed = *op->view;
    computed.data = op->data;
    tern__call add = {.device = call->device,
                      .kernel = TERN__ADD,
                      .in = {op->view, &computed},
                      .out = {op->view},
                      .err = call->err};
    return tern__kernel_run(&add);
}

static int take_back(const tern__call *call, const tern__prim_key *key, const operand *op, int i)
{
    if (!op->result || op->data == op->view->data) return TERN_OK;
    if (op->add && dnnl_memory_desc_equal(&op->have, op->to)) return add_same(call, op);
    return reorder(call, *key, i, &(tern__dnnl_memory){op->to, op->data},
                   &(tern__dnnl_memory){&op->have, op->view->data}, op->add);
}

static int run_library(const tern__call *call, conv *c)
{
    tern__prim_key key = key_of(call, c);
    tern__prim *prim = tern__prim_find(call, &key);
    dnnl_status_t vendor = describe(c);
    if (vendor != dnnl_success) return tern__dnnl_fail(call, vendor, "memory description");
    int status = prim ? TERN_OK : conv_new(call, &key, c, &prim);
    void *data[OPERANDS];
    int count = 0;
    for (int i = 0; i < OPERANDS && !status; i++) {
        operand *op = &c->op[i];
        if (!op->view) continue;
        dnnl_memory_get_memory_desc(prim->args[count].memory, &op->to);
        status = bring(call, &key, op, i);
        data[count++] = op->data;
    }
    if (!status) status = tern__prim_run(call, prim, data);
    for (int i = 0; i < OPERANDS && !status; i++)
        if (c->op[i].view) status = take_back(call, &key, &c->op[i], i);
    return status;
}

/* ---- by tiles ---- */

/* Whether the tile unit computes it: bf16, one group. */
static bool by_tiles(const conv *c)
{
    return c->op[X].view->dtype == TERN_BF16 && c->attr->groups == 1 && tern__amx_has();
}

/* The weight as amx_conv.h wants it: in a data gradient with its channels in each other's places, where x is
 * unfolded with a channel for every tap. */
static dnnl_status_t describe_tiles(operand *w, dnnl_prop_kind_t kind, bool unfolded, dnnl_memory_desc_t *to)
{
    static const dnnl_format_tag_t tags[2][2] = {{dnnl_OIhw16i16o2i, dnnl_OIhw16i16o},
                                                 {dnnl_OIdhw16i16o2i, dnnl_OIdhw16i16o}};
    const tern__view *view = w->view;
    bool turned = kind == dnnl_backward_data;
    dnnl_dims_t dims = {0}, strides = {0};
    for (int d = 0; d < view->ndim; d++) {
        int from = d < 2 ? d ^ turned : d;
        dims[d] = view->shape[from];
        strides[d] = view->stride[from];
    }
    for (int d = 2; d < view->ndim && unfolded; d++) {
        dims[1] *= dims[d];
        dims[d] = strides[d] = strides[1] = 1;
    }
    dnnl_status_t vendor =
        dnnl_memory_desc_init_by_strides(&w->have, view->ndim, dims, tern__dnnl_type(view->dtype), strides);
    if (vendor != dnnl_success) return vendor;
    w->have.offset0 = w->offset;
    w->to = to;
    return dnnl_memory_desc_init_by_tag(to, view->ndim, dims, w->result ? dnnl_f32 : dnnl_bf16,
                                        tags[view->ndim == 5][w->result]);
}

/* db: all of dy that is of a channel. */
static int sum_bias(const tern__call *call, const conv *c)
{
    static const tern__factor_attr one = {1};
    const tern__view *b = c->op[B].view, *dy = c->op[Y].view;
    if (!b) return TERN_OK;
    tern__view seen = tern__view_make(b->dtype, TERN__PLAIN, dy->ndim, dy->shape);
    for (int d = 0; d < dy->ndim; d++) seen.stride[d] = d == 1;
    seen.data = b->data;
    tern__call sum = {.device = call->device,
                      .kernel = TERN__SUM,
                      .in = {dy},
                      .out = {&seen},
                      .add = {c->op[B].add},
                      .attr = &one,
                      .err = call->err};
    return tern__kernel_run(&sum);
}

static int run_tiles(const tern__call *call, conv *c)
{
    operand *w = &c->op[W];
    dnnl_memory_desc_t to;
    bool unfolded = c->kind != dnnl_backward_data && tern__amx_unfolds(c->op[X].view, w->view);
    dnnl_status_t vendor = describe_tiles(w, c->kind, unfolded, &to);
    if (vendor != dnnl_success) return tern__dnnl_fail(call, vendor, "memory description");
    tern__prim_key key = key_of(call, c);
    int status = bring(call, &key, w, W);
    if (status) return status;
    if (!w->result) return tern__amx_conv(call, c->op[X].view, c->op[Y].view, w->data, c->op[B].view);
    status = tern__amx_conv_weight(call, c->op[X].view, c->op[Y].view, w->data);
    if (!status) status = take_back(call, &key, w, W);
    return status ? status : sum_bias(call, c);
}

/* ---- the three kernels ---- */

/* All of one dtype, but for what is computed in f32 in any case. */
static bool takes(const conv *c)
{
    for (int i = 0; i < OPERANDS; i++) {
        const tern__view *view = c->op[i].view;
        if (!view) continue;
        bool blocked = view->layout == TERN__BLOCKED16 && (i == X || i == Y);
        bool rounded = c->op[i].result && (i == W || i == B) && view->dtype == TERN_F32;
        if (!(view->dtype == c->op[X].view->dtype || rounded) || tern__view_count(view) == 0 ||
            !(blocked || tern__view_is_contiguous(view)))
            return false;
    }
    bool fit = tern__dnnl_type(c->op[X].view->dtype) != dnnl_data_type_undef;
    for (int axis = first_axis(c); axis < 3; axis++) fit = fit && padding_after(c, axis) >= 0;
    return fit;
}

/* ---- taps that see nothing ---- */

/* Leaves out the ends of a kernel's axis that see nothing but padding, wherever they are: a dilated kernel
 * may be larger than the image. Padding does not become negative by that, before or behind. */
static bool trim_axis(const conv *c, int axis, tern__view *w, tern__conv_attr *attr, int64_t *offset)
{
    int d = 2 + axis - first_axis(c);
    int64_t in = c->op[X].view->shape[d], way = (c->op[Y].view->shape[d] - 1) * attr->stride[axis];
    int64_t dilation = attr->dilation[axis], padding = attr->padding[axis], all = w->shape[d];
    int64_t first = padding > way ? (padding - way + dilation - 1) / dilation : 0;
    int64_t last = (in - 1 + padding) / dilation, least = (in - 1 + padding - way + dilation - 1) / dilation;
    first = TERN__MIN(TERN__MIN(first, padding / dilation), all - 1);
    last = TERN__MIN(TERN__MAX(TERN__MAX(last, least), first), all - 1);
    w->shape[d] = last - first + 1;
    attr->padding[axis] -= first * dilation;
    *offset += first * w->stride[d];
    return w->shape[d] < all;
}

static int run(const tern__call *call, conv *c)
{
    if (!takes(c)) return TERN_E_UNSUPPORTED;
    operand *op = &c->op[W];
    tern__call seen = *call;
    tern__view w = *op->view;
    tern__conv_attr attr = *c->attr;
    bool trimmed = false;
    for (int axis = first_axis(c); axis < 3; axis++)
        trimmed = trim_axis(c, axis, &w, &attr, &op->offset) || trimmed;
    if (trimmed && op->result && !op->add) /* the gradient of what is left out */
        memset(op->view->data, 0, tern__view_bytes(op->view));
    *(op->result ? &seen.out[0] : &seen.in[1]) = op->view = &w;
    seen.attr = c->attr = &attr;
    return by_tiles(c) ? run_tiles(&seen, c) : run_library(&seen, c);
}

static bool needs_f32(const tern__call *call)
{
    tern_dtype dtype = call->in[0]->dtype;
    return dtype == TERN_F16 || (dtype == TERN_BF16 && !tern__amx_has() && !tern__dnnl_has_bf16());
}

int tern__cpu_conv(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_conv);
    conv c = {.kind = dnnl_forward_training,
              .algorithm = dnnl_convolution_direct,
              .attr = call->attr,
              .op = {[X] = {.view = call->in[0], .arg = DNNL_ARG_SRC},
                     [W] = {.view = call->in[1], .arg = DNNL_ARG_WEIGHTS},
                     [B] = {.view = call->in[2], .arg = DNNL_ARG_BIAS},
                     [Y] = {.view = call->out[0], .arg = DNNL_ARG_DST, .result = true, .add = call->add[0]}}};
    return run(call, &c);
}

int tern__cpu_conv_data_grad(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_conv_data_grad);
    conv c = {
        .kind = dnnl_backward_data,
        .algorithm = dnnl_convolution_direct,
        .attr = call->attr,
        .op = {[Y] = {.view = call->in[0], .arg = DNNL_ARG_DIFF_DST},
               [W] = {.view = call->in[1], .arg = DNNL_ARG_WEIGHTS},
               [X] = {.view = call->out[0], .arg = DNNL_ARG_DIFF_SRC, .result = true, .add = call->add[0]}}};
    return run(call, &c);
}

int tern__cpu_conv_weight_grad(const tern__call *call)
{
    if (needs_f32(call)) return tern__cpu_widened(call, tern__cpu_conv_weight_grad);
    if (!call->out[0]) return TERN_E_UNSUPPORTED;
    conv c = {
        .kind = dnnl_backward_weights,
        .algorithm = dnnl_convolution_direct,
        .attr = call->attr,
        .op = {
            [Y] = {.view = call->in[0], .arg = DNNL_ARG_DIFF_DST},
            [X] = {.view = call->in[1], .arg = DNNL_ARG_SRC},
            [W] = {.view = call->out[0], .arg = DNNL_ARG_DIFF_WEIGHTS, .result = true, .add = call->add[0]},
            [B] = {.view = call->out[1], .arg = DNNL_ARG_DIFF_BIAS, .result = true, .add = call->add[1]}}};
    return run(call, &c);
}
