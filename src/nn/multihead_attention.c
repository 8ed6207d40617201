/* multihead_attention.c - torch.nn.MultiheadAttention: projections, the attention of all heads as one op,
 * and a projection of what they give.
 *
 * A projection gives (N, T, P H, D) for P parts of H heads. The heads of each part are a view of it, which
 * the op reads in place and whose gradient it writes in place, and its result (N, T, H, D) has the heads side
 * by side already. Without a batch the op takes and gives (H, T, D). */
#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"
#include "ops/ops.h"

#include <tern/transformer.h>

#include <math.h>

enum { QUERY, KEY, VALUE, ATTN_MASK, KEY_PADDING_MASK, INPUTS };

typedef struct multihead_attention {
    tern_module base;
    tern_tensor *in_proj_weight; /* (3 embed, embed), or NULL, and then */
    tern_tensor *proj_weight[3]; /* one each for q, k and v             */
    tern_tensor *in_proj_bias;   /* (3 embed) or NULL */
    tern_module *out_proj;
    int64_t embed, heads, features[3]; /* of q, k and v */
    double dropout;
    bool batch_first;
} multihead_attention;

/* ---- projections ---- */

static tern_tensor *rows_of(tern_scope *s, tern_tensor *x, int64_t first, int64_t count)
{
    bool is_whole = !x || (first == 0 && count == x->view.shape[0]);
    return is_whole ? x : tern_slice(s, x, 0, first, first + count, 1);
}

/* Projects x by the rows of parts first .. first + count - 1 of q, k and v, and stores the heads of each. */
static void project_parts(const multihead_attention *self, tern_scope *s, tern_tensor *x, int first,
                          int count, tern_tensor **heads)
{
    int64_t from = first * self->embed, rows = count * self->embed;
    tern_tensor *weight = self->proj_weight[first];
    if (self->in_proj_weight) weight = rows_of(s, self->in_proj_weight, from, rows);
    tern_tensor *y = tern_linear(s, x, weight, rows_of(s, self->in_proj_bias, from, rows));
    const int64_t *shape = tern_tensor_shape(x), all = count * self->heads, depth = self->embed / self->heads;
    bool batch = tern_tensor_ndim(x) == 3;
    y = batch ? tern_reshape(s, y, 4, (int64_t[]){shape[0], shape[1], all, depth})
              : tern_reshape(s, y, 3, (int64_t[]){shape[0], all, depth});
    if (!batch || !self->batch_first) y = tern_transpose(s, y, 0, 1);
    tern_split(s, y, self->heads, batch ? 2 : 0, heads, count);
}

static void project_inputs(const multihead_attention *self, tern_scope *s, tern_tensor *const *x,
                           tern_tensor *heads[3])
{
    for (int first = QUERY, count; first <= VALUE; first += count) {
        count = 1;
        while (self->in_proj_weight && first + count <= VALUE && x[first + count] == x[first]) count++;
        project_parts(self, s, x[first], first, count, heads + first);
    }
}

/* Puts the results of the heads side by side: as the queries came. */
static tern_tensor *join_heads(const multihead_attention *self, tern_scope *s, tern_tensor *y,
                               const tern_tensor *q)
{
    bool is_turned = tern_tensor_ndim(q) == 2 || !self->batch_first;
    return tern_reshape(s, is_turned ? tern_transpose(s, y, 0, 1) : y, tern_tensor_ndim(q),
                        tern_tensor_shape(q));
}

/* ---- masks: PyTorch's say which keys do not take part, the op's say which do. `on` is on their device,
 * which a mask that is kept or wrapped does not tell ---- */

static tern_tensor *mask_turned(tern_scope *s, tern_tensor *mask, const tern_tensor *on)
{
    bool is_bool = mask && tern_tensor_dtype(mask) == TERN_BOOL;
    return is_bool ? tern_eq(s, mask, tern__number(s, on, TERN_BOOL, 0)) : mask;
}

/* Makes a mask of bool one that is added. */
static tern_tensor *mask_added(tern_scope *s, tern_tensor *mask, tern_dtype dtype, const tern_tensor *on)
{
    if (tern_tensor_dtype(mask) != TERN_BOOL) return mask;
    return tern_where(s, mask, tern__number(s, on, dtype, 0), tern__number(s, on, dtype, -INFINITY));
}

static tern_tensor *masks_joined(tern_scope *s, tern_tensor *a, tern_tensor *b, const tern_tensor *on)
{
    if (!a || !b) return a ? a : b;
    tern_dtype of_a = tern_tensor_dtype(a), of_b = tern_tensor_dtype(b);
    if (of_a == TERN_BOOL && of_b == TERN_BOOL) return tern_minimum(s, a, b);
    return tern_add(s, mask_added(s, a, of_b, on), mask_added(s, b, of_a, on));
}

/* Returns both masks as one of the op's, or NULL if there is none. */
static tern_tensor *mask_of(const multihead_attention *self, tern_scope *s, tern_tensor *const *x,
                            const tern_tensor *on)
{
    tern_tensor *mask = mask_turned(s, x[ATTN_MASK], on);
    tern_tensor *padding = mask_turned(s, x[KEY_PADDING_MASK], on);
    const int64_t *shape = tern_tensor_shape(mask);
    bool batch = tern_tensor_ndim(x[QUERY]) == 3;
    if (mask && batch && tern_tensor_ndim(mask) == 3)
        mask = tern_reshape(s, mask, 4, (int64_t[]){shape[0] / self->heads, self->heads, shape[1], shape[2]});
    if (padding && batch) {
        shape = tern_tensor_shape(padding);
        padding = tern_reshape(s, padding, 4, (int64_t[]){shape[0], 1, 1, shape[1]});
    }
    return masks_joined(s, mask, padding, on);
}

/* ---- checks ---- */

/* The size of the batch (1 without one) and the length of an input. */
static void sizes_of(const multihead_attention *self, const tern_tensor *x, int64_t *batch, int64_t *length)
{
    const tern__view *view = &x->view;
    bool has_batch = view->ndim == 3;
    *batch = has_batch ? view->shape[!self->batch_first] : 1;
    *length = view->shape[has_batch ? self->batch_first : 0];
}

static bool inputs_fit(const multihead_attention *self, tern_tensor *const *x)
{
    int64_t batch[3], length[3];
    int ndim = x[QUERY]->view.ndim;
    for (int i = QUERY; i <= VALUE; i++) {
        const tern__view *view = &x[i]->view;
        if (view->ndim != ndim || ndim < 2 || ndim > 3) return false;
        if (view->shape[ndim - 1] != self->features[i]) return false;
        sizes_of(self, x[i], &batch[i], &length[i]);
    }
    return batch[QUERY] == batch[KEY] && batch[KEY] == batch[VALUE] && length[KEY] == length[VALUE];
}

static int inputs_check(const multihead_attention *self, tern_scope *s, tern_tensor *const *x)
{
    char q[TERN__SHAPE_TEXT], k[TERN__SHAPE_TEXT], v[TERN__SHAPE_TEXT];
    const char *before[] = {"T, N", "S, N"};
    if (self->batch_first) before[0] = "N, T", before[1] = "N, S";
    if (inputs_fit(self, x)) return TERN_OK;
    return tern__scope_fail(
        s, "tern_multihead_attention", TERN_E_SHAPE,
        "multihead_attention: expected q (%s, %lld), k (%s, %lld) and v (%s, %lld), or none with N, got "
        "%s, %s and %s",
        before[0], (long long)self->features[QUERY], before[1], (long long)self->features[KEY], before[1],
        (long long)self->features[VALUE], tern__shape_text(&x[QUERY]->view, q),
        tern__shape_text(&x[KEY]->view, k), tern__shape_text(&x[VALUE]->view, v));
}

static int mask_check(tern_scope *s, const char *name, const tern_tensor *mask, const tern__view *want,
                      const tern__view *other)
{
    char have[TERN__SHAPE_TEXT], text[TERN__SHAPE_TEXT], more[TERN__SHAPE_TEXT];
    if (!mask) return TERN_OK;
    tern_dtype dtype = mask->view.dtype;
    if (dtype != TERN_BOOL && !tern__dtype_is_float(dtype))
        return tern__scope_fail(s, "tern_multihead_attention", TERN_E_DTYPE,
                                "multihead_attention: expected %s of bool or floating point, got %s", name,
                                tern_dtype_name(dtype));
    if (tern__view_same_shape(&mask->view, want) || (other && tern__view_same_shape(&mask->view, other)))
        return TERN_OK;
    return tern__scope_fail(s, "tern_multihead_attention", TERN_E_SHAPE,
                            "multihead_attention: expected %s %s%s%s, got %s", name,
                            tern__shape_text(want, text), other ? " or " : "",
                            other ? tern__shape_text(other, more) : "", tern__shape_text(&mask->view, have));
}

static int masks_check(const multihead_attention *self, tern_scope *s, tern_tensor *const *x)
{
    int64_t batch, queries, keys;
    sizes_of(self, x[QUERY], &batch, &queries);
    sizes_of(self, x[KEY], &batch, &keys);
    bool has_batch = x[QUERY]->view.ndim == 3;
    tern__view one = tern__view_make(TERN_BOOL, TERN__PLAIN, 2, (int64_t[]){queries, keys});
    tern__view each =
        tern__view_make(TERN_BOOL, TERN__PLAIN, 3, (int64_t[]){batch * self->heads, queries, keys});
    tern__view padding = tern__view_make(TERN_BOOL, TERN__PLAIN, has_batch ? 2 : 1,
                                         has_batch ? (int64_t[]){batch, keys} : (int64_t[]){keys, 0});
    int status = mask_check(s, "attn_mask", x[ATTN_MASK], &one, &each);
    return status ? status : mask_check(s, "key_padding_mask", x[KEY_PADDING_MASK], &padding, NULL);
}

/* ---- the call ---- */

static tern_tensor *attention_of_inputs(tern_module *module, tern_scope *s, tern_tensor *const *x,
                                        const void *opts)
{
    multihead_attention *self = (multihead_attention *)module;
    tern_tensor *heads[3] = {0};
    if (inputs_check(self, s, x) || masks_check(self, s, x)) return NULL;
    tern_attention_opts o = tern_attention_defaults();
    o.is_causal = ((const tern_multihead_attention_call_opts *)opts)->is_causal;
    o.dropout = module->training ? self->dropout : 0;
    o.bthd = tern_tensor_ndim(x[QUERY]) == 3;
    project_inputs(self, s, x, heads);
    tern_tensor *mask = mask_of(self, s, x, heads[QUERY]);
    if (s->error.code) return NULL; /* a mask that could not be made is not an absent one */
    tern_tensor *y = tern__attention(s, heads[QUERY], heads[KEY], heads[VALUE], mask, &o);
    return tern_forward(self->out_proj, s, y ? join_heads(self, s, y, x[QUERY]) : NULL);
}

static tern_tensor *self_attention(tern_module *module, tern_scope *s, tern_tensor *x)
{
    tern_multihead_attention_call_opts none = {0};
    return attention_of_inputs(module, s, (tern_tensor *[INPUTS]){x, x, x}, &none);
}

tern_multihead_attention_call_opts tern_multihead_attention_call_defaults(void)
{
    return (tern_multihead_attention_call_opts){.size = sizeof(tern_multihead_attention_call_opts)};
}

tern_tensor *tern_multihead_attention_forward(tern_module *module, tern_scope *s, tern_tensor *q,
                                              tern_tensor *k, tern_tensor *v,
                                              const tern_multihead_attention_call_opts *opts)
{
    static const tern__call_kind kind = {
        __func__,    "multihead_attention", self_attention,       attention_of_inputs,
        .needed = 3, .count = INPUTS,       .opts = sizeof(*opts)};
    tern_multihead_attention_call_opts o = tern_multihead_attention_call_defaults();
    if (!s || tern__scope_opts(s, &o, sizeof(o), opts, __func__)) return NULL;
    tern_tensor *x[INPUTS] = {q, k, v, o.attn_mask, o.key_padding_mask};
    return tern__forward_inputs(&kind, module, s, x, &o);
}

/* ---- making ---- */

tern_multihead_attention_opts tern_multihead_attention_defaults(void)
{
    return (tern_multihead_attention_opts){.size = sizeof(tern_multihead_attention_opts), .bias = true};
}

static int multihead_attention_check(int64_t embed, int64_t heads, const tern_multihead_attention_opts *o,
                                     tern_error *err)
{
    const char *func = "tern_multihead_attention_new";
    if (embed < 1 || heads < 1 || embed % heads || embed > INT64_MAX / 3)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "multihead_attention: expected at least 1 head, and features divisible by the "
                               "heads; got %lld heads, %lld features",
                               (long long)heads, (long long)embed);
    if (o->kdim < 0 || o->vdim < 0)
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "multihead_attention: expected a kdim and vdim of at least 1, or 0, got %lld and "
            "%lld",
            (long long)o->kdim, (long long)o->vdim);
    if (o->dropout >= 0 && o->dropout <= 1) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE,
                           "multihead_attention: expected a dropout in [0, 1], got %g", o->dropout);
}

/* As PyTorch: the output's projection is made, which draws numbers, and then the others are drawn. */
static bool add_projections(multihead_attention *self, bool bias, tern_rng *rng, tern_error *err)
{
    static const char *const names[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    tern_module *m = &self->base;
    int64_t embed = self->embed, three = 3 * embed;
    bool is_one = self->features[KEY] == embed && self->features[VALUE] == embed;
    tern_linear_opts linear = tern_linear_defaults();
    linear.bias = bias;
    if (is_one)
        self->in_proj_weight =
            tern_parameter_add(m, "in_proj_weight", TERN_F32, 2, (int64_t[]){three, embed}, err);
    for (int i = QUERY; i <= VALUE && !is_one; i++)
        self->proj_weight[i] =
            tern_parameter_add(m, names[i], TERN_F32, 2, (int64_t[]){embed, self->features[i]}, err);
    if (bias) self->in_proj_bias = tern_parameter_add(m, "in_proj_bias", TERN_F32, 1, &three, err);
    self->out_proj = tern_module_add(m, "out_proj", tern_linear_new(embed, embed, &linear, rng, err), err);
    if (!self->out_proj) return false;
    if (is_one && rng && tern_init_xavier_uniform(self->in_proj_weight, 1, rng, err)) return false;
    for (int i = QUERY; i <= VALUE && !is_one && rng; i++)
        if (tern_init_xavier_uniform(self->proj_weight[i], 1, rng, err)) return false;
    return !bias || tern_init_constant(tern__state_find(self->out_proj, "bias", err), 0, err) == TERN_OK;
}

tern_module *tern_multihead_attention_new(int64_t embed, int64_t heads,
                                          const tern_multihead_attention_opts *opts, tern_rng *rng,
                                          tern_error *err)
{
    tern_multihead_attention_opts o = tern_multihead_attention_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        multihead_attention_check(embed, heads, &o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    multihead_attention *self = tern__module_new(sizeof(*self), "multihead_attention", self_attention, err);
    if (!self) return NULL;
    self->embed = self->features[QUERY] = embed;
    self->features[KEY] = o.kdim ? o.kdim : embed;
    self->features[VALUE] = o.vdim ? o.vdim : embed;
    self->heads = heads;
    self->dropout = o.dropout;
    self->batch_first = o.batch_first;
    tern__options_add(&self->base, "heads", 1, &heads);
    tern__options_add_real(&self->base, "dropout", o.dropout);
    if (o.batch_first) tern__options_add(&self->base, "batch_first", 0, NULL);
    if (add_projections(self, o.bias, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}
