/* transformer_layer.c - torch.nn.TransformerEncoderLayer and TransformerDecoderLayer, and stacks of them. */
#include "base/opts.h"
#include "nn/nn.h"
#include "ops/ops.h"

#include <tern/init.h>
#include <tern/transformer.h>

#include <stdio.h>
#include <string.h>

/* A layer of an encoder has no attention to memory, and no third norm. */
typedef struct transformer_layer {
    tern_module base;
    tern_module *self_attn, *multihead_attn, *linear1, *linear2, *norm1, *norm2, *norm3;
    tern_transformer_activation activation;
    double dropout;
    bool norm_first;
} transformer_layer;

typedef struct transformer {
    tern_module base;
    const tern__call_kind *layer; /* of its layers */
    tern_module *layers, *norm;
} transformer;

/* Inputs of the calls, in this order; an encoder has no memory. */
enum { X, MEMORY, MASK, MEMORY_MASK, PADDING, MEMORY_PADDING, INPUTS };

/* What else a call is told. */
typedef struct transformer_call {
    bool is_causal, memory_is_causal;
} transformer_call;

/* ---- a layer ---- */

static tern_tensor *layer_dropout(const transformer_layer *self, tern_scope *s, tern_tensor *x)
{
    return self->base.training && self->dropout > 0 ? tern_dropout(s, x, self->dropout) : x;
}

static tern_tensor *layer_attention(const transformer_layer *self, tern_module *attention, tern_scope *s,
                                    tern_tensor *x, tern_tensor *memory,
                                    const tern_multihead_attention_call_opts *opts)
{
    tern_tensor *keys = memory ? memory : x;
    return layer_dropout(self, s, tern_multihead_attention_forward(attention, s, x, keys, keys, opts));
}

static tern_tensor *layer_feedforward(const transformer_layer *self, tern_scope *s, tern_tensor *x)
{
    bool relu = self->activation == TERN_TRANSFORMER_RELU;
    x = tern_linear_act_forward(self->linear1, s, x, relu);
    if (!relu) x = tern_gelu(s, x, false);
    x = tern_forward(self->linear2, s, layer_dropout(self, s, x));
    return layer_dropout(self, s, x);
}

/* Adds each part's result to its input; a norm is before the part, or after the sum. */
static tern_tensor *layer_parts(const transformer_layer *self, tern_scope *s, tern_tensor *x,
                                tern_tensor *memory, const tern_multihead_attention_call_opts *of_x,
                                const tern_multihead_attention_call_opts *of_memory)
{
    tern_module *const norms[] = {self->norm1, self->norm2, self->norm3};
    bool is_decoder = self->multihead_attn;
    int count = is_decoder ? 3 : 2;
    for (int i = 0; i < count; i++) {
        tern_tensor *y = self->norm_first ? tern_forward(norms[i], s, x) : x;
        if (i == 0)
            y = layer_attention(self, self->self_attn, s, y, NULL, of_x);
        else if (i == 1 && is_decoder)
            y = layer_attention(self, self->multihead_attn, s, y, memory, of_memory);
        else
            y = layer_feedforward(self, s, y);
        x = tern_add(s, x, y);
        if (!self->norm_first) x = tern_forward(norms[i], s, x);
    }
    return x;
}

static tern_multihead_attention_call_opts attention_opts_of(tern_tensor *mask, tern_tensor *padding,
                                                            bool is_causal)
{
    tern_multihead_attention_call_opts o = tern_multihead_attention_call_defaults();
    o.attn_mask = mask;
    o.key_padding_mask = padding;
    o.is_causal = is_causal;
    return o;
}

static tern_tensor *layer_call(tern_module *module, tern_scope *s, tern_tensor *const *x, const void *opts)
{
    const transformer_call *call = opts;
    tern_multihead_attention_call_opts of_x = attention_opts_of(x[MASK], x[PADDING], call->is_causal);
    tern_multihead_attention_call_opts of_memory =
        attention_opts_of(x[MEMORY_MASK], x[MEMORY_PADDING], call->memory_is_causal);
    return layer_parts((transformer_layer *)module, s, x[X], x[MEMORY], &of_x, &of_memory);
}

/* ---- a stack: calls its layers with the masks of its own call ---- */

static tern_tensor *stack_call(tern_module *module, tern_scope *s, tern_tensor *const *x, const void *opts)
{
    const transformer *self = (transformer *)module;
    tern_tensor *inputs[INPUTS], *y = x[X];
    for (const tern__module_tree *layer = self->layers->tree->children; layer; layer = layer->next) {
        memcpy(inputs, x, sizeof(inputs));
        inputs[X] = y;
        y = tern__forward_inputs(self->layer, layer->module, s, inputs, opts);
    }
    return self->norm ? tern_forward(self->norm, s, y) : y;
}

/* ---- the kinds, each with a forward of its own, by which it is known ---- */

static const transformer_call without_masks = {0};

static tern_tensor *encoder_layer_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    return layer_call(module, s, (tern_tensor *[INPUTS]){x}, &without_masks);
}

static tern_tensor *encoder_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    return stack_call(module, s, (tern_tensor *[INPUTS]){x}, &without_masks);
}

static tern_tensor *memory_is_missing(tern_module *module, tern_scope *s)
{
    tern__scope_fail(s, "tern_forward", TERN_E_INVALID, "%s: it needs memory too: call tern_%s_forward",
                     module->kind, module->kind);
    return NULL;
}

static tern_tensor *decoder_layer_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)x;
    return memory_is_missing(module, s);
}

static tern_tensor *decoder_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    (void)x;
    return memory_is_missing(module, s);
}

#define KIND(name, call, needs)                                                                              \
    static const tern__call_kind name##_kind = {"tern_transformer_" #name "_forward",                        \
                                                "transformer_" #name,                                        \
                                                name##_forward,                                              \
                                                call,                                                        \
                                                .needed = needs,                                             \
                                                .count = INPUTS,                                             \
                                                .opts = sizeof(transformer_call)};
KIND(encoder_layer, layer_call, 1)
KIND(encoder, stack_call, 1)
KIND(decoder_layer, layer_call, 2)
KIND(decoder, stack_call, 2)
#undef KIND

/* ---- calls from outside ---- */

tern_transformer_encoder_call_opts tern_transformer_encoder_call_defaults(void)
{
    return (tern_transformer_encoder_call_opts){.size = sizeof(tern_transformer_encoder_call_opts)};
}

tern_transformer_decoder_call_opts tern_transformer_decoder_call_defaults(void)
{
    return (tern_transformer_decoder_call_opts){.size = sizeof(tern_transformer_decoder_call_opts)};
}

static tern_tensor *encoder_enter(const tern__call_kind *kind, tern_module *module, tern_scope *s,
                                  tern_tensor *src, const tern_transformer_encoder_call_opts *opts)
{
    tern_transformer_encoder_call_opts o = tern_transformer_encoder_call_defaults();
    if (!s || tern__scope_opts(s, &o, sizeof(o), opts, kind->func)) return NULL;
    tern_tensor *x[INPUTS] = {[X] = src, [MASK] = o.src_mask, [PADDING] = o.src_key_padding_mask};
    const transformer_call call = {.is_causal = o.is_causal};
    return tern__forward_inputs(kind, module, s, x, &call);
}

static tern_tensor *decoder_enter(const tern__call_kind *kind, tern_module *module, tern_scope *s,
                                  tern_tensor *tgt, tern_tensor *memory,
                                  const tern_transformer_decoder_call_opts *opts)
{
    tern_transformer_decoder_call_opts o = tern_transformer_decoder_call_defaults();
    if (!s || tern__scope_opts(s, &o, sizeof(o), opts, kind->func)) return NULL;
    tern_tensor *x[INPUTS] = {
        tgt, memory, o.tgt_mask, o.memory_mask, o.tgt_key_padding_mask, o.memory_key_padding_mask};
    const transformer_call call = {o.tgt_is_causal, o.memory_is_causal};
    return tern__forward_inputs(kind, module, s, x, &call);
}

tern_tensor *tern_transformer_encoder_layer_forward(tern_module *layer, tern_scope *scope, tern_tensor *src,
                                                    const tern_transformer_encoder_call_opts *opts)
{
    return encoder_enter(&encoder_layer_kind, layer, scope, src, opts);
}

tern_tensor *tern_transformer_encoder_forward(tern_module *encoder, tern_scope *scope, tern_tensor *src,
                                              const tern_transformer_encoder_call_opts *opts)
{
    return encoder_enter(&encoder_kind, encoder, scope, src, opts);
}

tern_tensor *tern_transformer_decoder_layer_forward(tern_module *layer, tern_scope *scope, tern_tensor *tgt,
                                                    tern_tensor *memory,
                                                    const tern_transformer_decoder_call_opts *opts)
{
    return decoder_enter(&decoder_layer_kind, layer, scope, tgt, memory, opts);
}

tern_tensor *tern_transformer_decoder_forward(tern_module *decoder, tern_scope *scope, tern_tensor *tgt,
                                              tern_tensor *memory,
                                              const tern_transformer_decoder_call_opts *opts)
{
    return decoder_enter(&decoder_kind, decoder, scope, tgt, memory, opts);
}

/* ---- making ---- */

tern_transformer_layer_opts tern_transformer_layer_defaults(void)
{
    return (tern_transformer_layer_opts){.size = sizeof(tern_transformer_layer_opts),
                                         .feedforward = 2048,
                                         .dropout = 0.1,
                                         .eps = 1e-5,
                                         .bias = true};
}

/* The attention checks the sizes of heads and the dropout. */
static int layer_check_opts(const char *func, const tern_transformer_layer_opts *o, tern_error *err)
{
    if (o->feedforward < 1)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "transformer: feedforward is %lld, expected at least 1",
                               (long long)o->feedforward);
    if (o->activation == TERN_TRANSFORMER_RELU || o->activation == TERN_TRANSFORMER_GELU) return TERN_OK;
    return tern__error_set(err, func, TERN_E_INVALID,
                           "transformer: activation is %d, expected TERN_TRANSFORMER_RELU or _GELU",
                           (int)o->activation);
}

static tern_module *add_attention(transformer_layer *self, const char *name, int64_t embed, int64_t heads,
                                  const tern_transformer_layer_opts *o, tern_rng *rng, tern_error *err)
{
    tern_multihead_attention_opts opts = tern_multihead_attention_defaults();
    opts.dropout = o->dropout;
    opts.bias = o->bias;
    opts.batch_first = o->batch_first;
    return tern_module_add(&self->base, name, tern_multihead_attention_new(embed, heads, &opts, rng, err),
                           err);
}

/* In PyTorch's order. */
static bool layer_add_all(transformer_layer *self, bool is_decoder, int64_t embed, int64_t heads,
                          const tern_transformer_layer_opts *o, tern_rng *rng, tern_error *err)
{
    tern_module *m = &self->base;
    tern_linear_opts linear = tern_linear_defaults();
    linear.bias = o->bias;
    if (!(self->self_attn = add_attention(self, "self_attn", embed, heads, o, rng, err))) return false;
    if (is_decoder) self->multihead_attn = add_attention(self, "multihead_attn", embed, heads, o, rng, err);
    self->linear1 =
        tern_module_add(m, "linear1", tern_linear_new(embed, o->feedforward, &linear, rng, err), err);
    self->linear2 =
        tern_module_add(m, "linear2", tern_linear_new(o->feedforward, embed, &linear, rng, err), err);
    self->norm1 = tern_module_add(m, "norm1", tern__layer_norm_new(embed, o->eps, o->bias, err), err);
    self->norm2 = tern_module_add(m, "norm2", tern__layer_norm_new(embed, o->eps, o->bias, err), err);
    if (is_decoder)
        self->norm3 = tern_module_add(m, "norm3", tern__layer_norm_new(embed, o->eps, o->bias, err), err);
    return is_decoder ? self->norm3 : self->norm2;
}

static tern_module *layer_new(const char *func, const tern__call_kind *kind, int64_t embed, int64_t heads,
                              const tern_transformer_layer_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts o = tern_transformer_layer_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, func, err) ||
        layer_check_opts(func, &o, err))
        return NULL;
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    transformer_layer *self = tern__module_new(sizeof(*self), kind->kind, kind->made, err);
    if (!self) return NULL;
    self->activation = o.activation;
    self->dropout = o.dropout;
    self->norm_first = o.norm_first;
    tern__options_add_real(&self->base, "dropout", o.dropout);
    if (o.activation == TERN_TRANSFORMER_GELU) tern__options_add(&self->base, "gelu", 0, NULL);
    if (o.norm_first) tern__options_add(&self->base, "norm_first", 0, NULL);
    if (layer_add_all(self, kind == &decoder_layer_kind, embed, heads, &o, rng, err)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_transformer_encoder_layer_new(int64_t embed, int64_t heads,
                                                const tern_transformer_layer_opts *opts, tern_rng *rng,
                                                tern_error *err)
{
    return layer_new(__func__, &encoder_layer_kind, embed, heads, opts, rng, err);
}

tern_module *tern_transformer_decoder_layer_new(int64_t embed, int64_t heads,
                                                const tern_transformer_layer_opts *opts, tern_rng *rng,
                                                tern_error *err)
{
    return layer_new(__func__, &decoder_layer_kind, embed, heads, opts, rng, err);
}

/* What a stack is made of. */
typedef struct stack {
    const char *func;
    const tern__call_kind *kind, *layer;
    int layers;
    int64_t embed, heads;
    const tern_transformer_layer_opts *opts;
} stack;

/* Every layer is drawn from the same state of the generator: PyTorch copies one layer. */
static tern_module *stack_layers_new(const stack *of, tern_rng *rng, tern_error *err)
{
    char state[TERN_RNG_STATE_BYTES];
    tern_module *list = tern_sequential_new(err);
    if (rng) tern_rng_state_get(rng, state);
    for (int i = 0; i < of->layers && list; i++) {
        if (rng && tern_rng_state_set(rng, state, err)) break;
        tern_module *layer = layer_new(of->func, of->layer, of->embed, of->heads, of->opts, rng, err);
        if (tern_sequential_add(list, layer, err)) continue;
        tern_module_free(list);
        return NULL;
    }
    return list;
}

/* Takes `norm`, also on error. */
static tern_module *stack_new(const stack *of, tern_module *norm, tern_rng *rng, tern_error *err)
{
    tern_error own = {0};
    if (!err) err = &own; /* so that the first error stops the following steps */
    if (!err->code && of->layers < 1)
        tern__error_set(err, of->func, TERN_E_RANGE, "transformer: expected at least 1 layer, got %d",
                        of->layers);
    transformer *self = tern__module_new(sizeof(*self), of->kind->kind, of->kind->made, err);
    if (!self) {
        tern__child_drop(norm);
        return NULL;
    }
    self->layer = of->layer;
    self->layers = tern_module_add(&self->base, "layers", stack_layers_new(of, rng, err), err);
    if (norm) self->norm = tern_module_add(&self->base, "norm", norm, err);
    if (self->layers && (self->norm || !norm)) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_transformer_encoder_new(int layers, int64_t embed, int64_t heads,
                                          const tern_transformer_layer_opts *opts, tern_module *norm,
                                          tern_rng *rng, tern_error *err)
{
    const stack of = {__func__, &encoder_kind, &encoder_layer_kind, layers, embed, heads, opts};
    return stack_new(&of, norm, rng, err);
}

tern_module *tern_transformer_decoder_new(int layers, int64_t embed, int64_t heads,
                                          const tern_transformer_layer_opts *opts, tern_module *norm,
                                          tern_rng *rng, tern_error *err)
{
    const stack of = {__func__, &decoder_kind, &decoder_layer_kind, layers, embed, heads, opts};
    return stack_new(&of, norm, rng, err);
}
