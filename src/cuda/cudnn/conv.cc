/* conv.cc - convolutions in two and three dimensions by cuDNN.
 *
 * The operands of a call are brought to one layout: channels last if one of the activations has it, else
 * plain. A weight in its parameter and its gradient are plain, so beside channels-last activations both
 * are copied. If cuDNN has no engine in one layout the other is tried; f64 begins with the plain one, the
 * only layout in which cuDNN has f64. A 16-bit result for which cuDNN has no engine is computed in f32. */
#include "cuda/copy.h"
#include "cuda/cudnn/cudnn.h"
#include "cuda/kernels.h"

#define SIDES TERN__CONV_B /* the number of x, w and y */

typedef struct conv {
    const tern__call *call;
    const tern__view *at[SIDES];
    int result;
    const tern__view *bias; /* added by cuDNN, or NULL */
} conv;

/* The operands given to cuDNN, and their copies. */
typedef struct brought {
    tern__cudnn_conv conv;
    bool is_copy[SIDES];
} brought;

static conv conv_of(const tern__call *call, const tern__view *bias)
{
    const tern__view *first = call->in[0], *second = call->in[1], *out = call->out[0];
    switch ((int)call->kernel) {
    case TERN__CONV: return {call, {first, second, out}, TERN__CONV_Y, bias};
    case TERN__CONV_DATA_GRAD: return {call, {out, second, first}, TERN__CONV_X, nullptr};
    default: return {call, {second, out, first}, TERN__CONV_W, nullptr};
    }
}

/* Sets *as to the view in that layout, if it is contiguous there; a dimension of size 1 may have any
 * stride. */
static bool stands(const tern__view *view, tern__layout layout, tern__view *as)
{
    *as = tern__view_make(view->dtype, layout, view->ndim, view->shape);
    as->data = view->data;
    bool does = true;
    for (int d = 0; d < view->ndim; d++) does &= view->shape[d] == 1 || view->stride[d] == as->stride[d];
    return does;
}

static void drop(const conv *c, brought *b)
{
    for (int i = 0; i < SIDES; i++)
        if (b->is_copy[i]) tern__cuda_scratch_free(c->call, b->conv.operand[i].data);
}

/* Copies inputs that are not in the layout; allocates a buffer for a result that is not, or if `beside`. */
static int bring(const conv *c, tern__layout layout, tern_dtype dtype, bool beside, brought *b)
{
    int status = TERN_OK;
    for (int i = 0; i < SIDES && !status; i++) {
        bool is_result = i == c->result;
        tern_dtype wanted = is_result ? c->at[i]->dtype : dtype;
        bool is_here = stands(c->at[i], layout, &b->conv.operand[i]) && c->at[i]->dtype == wanted;
        if (is_here && !(is_result && beside)) continue;
        if (!tern__cuda_dense(c->call, c->at[i], wanted, layout, &b->conv.operand[i])) return TERN_E_MEMORY;
        b->is_copy[i] = true;
        if (!is_result) status = tern__cuda_copy_view(c->call, c->at[i], &b->conv.operand[i], false);
    }
    return status;
}

/* The bias as cuDNN takes it, (1, C, 1, ..). */
static void bring_bias(const conv *c, brought *b)
{
    const tern__view *y = &b->conv.operand[TERN__CONV_Y];
    int64_t shape[TERN_NDIM_MAX];
    for (int d = 0; d < y->ndim; d++) shape[d] = d == 1 ? y->shape[1] : 1;
    b->conv.has_bias = c->bias != nullptr;
    if (!c->bias) return;
    b->conv.operand[TERN__CONV_B] = tern__view_make(c->bias->dtype, y->layout, y->ndim, shape);
    b->conv.operand[TERN__CONV_B].data = c->bias->data;
}

static int run_once(const conv *c, tern__layout layout, tern_dtype dtype, bool beside)
{
    brought b = {};
    int status = bring(c, layout, dtype, beside, &b);
    b.conv.kernel = c->call->kernel;
    b.conv.result = c->result;
    b.conv.attr = (const tern__conv_attr *)c->call->attr;
    b.conv.add = c->call->add[0] && !b.is_copy[c->result];
    bring_bias(c, &b);
    if (!status) status = tern__conv_run(c->call, &b.conv);
    if (!status && b.is_copy[c->result])
        status = tern__cuda_copy_view(c->call, &b.conv.operand[c->result], c->at[c->result], c->call->add[0]);
    drop(c, &b);
    return status;
}

/* Not every engine can add to its result. */
static int run_in(const conv *c, tern__layout layout, tern_dtype dtype)
{
    int status = run_once(c, layout, dtype, false);
    bool can_help = status == TERN_E_UNSUPPORTED && c->call->add[0];
    return can_help ? run_once(c, layout, dtype, true) : status;
}

static int run_as(const conv *c, tern_dtype dtype)
{
    const tern__view *x = c->at[TERN__CONV_X], *y = c->at[TERN__CONV_Y];
    bool last = x->layout == TERN__CHANNELS_LAST || y->layout == TERN__CHANNELS_LAST;
    tern__layout first = last && dtype != TERN_F64 ? TERN__CHANNELS_LAST : TERN__PLAIN;
    int status = run_in(c, first, dtype);
    if (status != TERN_E_UNSUPPORTED) return status;
    return run_in(c, first == TERN__PLAIN ? TERN__CHANNELS_LAST : TERN__PLAIN, dtype);
}

static int run(const tern__call *call, const tern__view *bias)
{
    conv c = conv_of(call, bias);
    tern_dtype dtype = call->in[0]->dtype, made = call->out[0]->dtype;
    int status = run_as(&c, dtype);
    return status == TERN_E_UNSUPPORTED && made == TERN_F32 && dtype != made ? run_as(&c, made) : status;
}

/* ---- the kernels ---- */

/* Whether y has as many positions as x allows for the weight. It has fewer if a transposed convolution's
 * output padding is as large as its stride, which is allowed with dilation but not in cuDNN. */
static bool is_whole(const tern__call *call)
{
    const tern__conv_attr *attr = (const tern__conv_attr *)call->attr;
    conv c = conv_of(call, nullptr);
    bool is = true;
    for (int d = 2; d < c.at[TERN__CONV_X]->ndim; d++) {
        int a = 3 - c.at[TERN__CONV_X]->ndim + d;
        int64_t reach = attr->dilation[a] * (c.at[TERN__CONV_W]->shape[d] - 1) + 1;
        int64_t room = c.at[TERN__CONV_X]->shape[d] + 2 * attr->padding[a] - reach;
        is &= c.at[TERN__CONV_Y]->shape[d] == room / attr->stride[a] + 1;
    }
    return is;
}

static bool takes(const tern__call *call)
{
    const tern__view *first = call->in[0], *second = call->in[1], *out = call->out[0];
    return tern__dtype_is_float(first->dtype) && second->dtype == first->dtype &&
           (!out ||
            (tern__cuda_makes(out->dtype, first->dtype) && tern__view_count(out) > 0 && is_whole(call))) &&
           tern__view_count(first) > 0 && tern__view_count(second) > 0;
}

/* Whether cuDNN's graph can add the bias: y is overwritten. */
static bool is_plain_bias(const tern__call *call)
{
    const tern__view *bias = call->in[2];
    return bias && !call->add[0] && bias->dtype == call->out[0]->dtype &&
           (bias->stride[0] == 1 || bias->shape[0] == 1);
}

int tern__cuda_conv(const tern__call *call)
{
    const tern__view *bias = call->in[2], *within = is_plain_bias(call) ? bias : nullptr;
    int status = takes(call) ? run(call, within) : TERN_E_UNSUPPORTED;
    return status || !bias || within ? status : tern__cuda_add_bias(call, bias, call->out[0]);
}

int tern__cuda_conv_data_grad(const tern__call *call)
{
    return takes(call) ? run(call, nullptr) : TERN_E_UNSUPPORTED;
}

/* dw may already have been added to when db, the sums of dy by channel, is computed. */
int tern__cuda_conv_weight_grad(const tern__call *call)
{
    if (!takes(call)) return TERN_E_UNSUPPORTED;
    int status = call->out[0] ? run(call, nullptr) : TERN_OK;
    if (status || !call->out[1]) return status;
    return tern__cuda_must(tern__cuda_sum_along(call, call->in[0], 1, 1));
}
