/* language_model.c - the parts that all language models share: logits, the loss without logits, checks. */
#include "models/language_model.h"
#include "base/opts.h"
#include "base/pages.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- model ---- */

/* The options of a call of a model. */
typedef struct model_call {
    tern__decoder_call decoder;
    bool is_hidden;         /* returns the hidden states, not the logits      */
    int64_t logits_to_keep; /* of the last tokens of each sequence; 0: of all */
} model_call;

static tern_tensor *language_model_call(tern_module *module, tern_scope *s, tern_tensor *const *x,
                                        const void *opts)
{
    tern__language_model *self = (tern__language_model *)module;
    const model_call *call = opts;
    tern_tensor *y = tern__decoder_forward(self->kind->call, self->body, s, x, &call->decoder);
    if (!y || call->is_hidden) return y;
    int64_t tokens = y->view.shape[1], kept = call->logits_to_keep ? call->logits_to_keep : tokens;
    if (kept < tokens) y = tern_slice(s, y, 1, tokens - kept, tokens, 1);
    return tern_forward(self->head, s, y);
}

static tern_tensor *language_model_forward(tern_module *module, tern_scope *s, tern_tensor *tokens)
{
    const model_call plain = {0};
    return language_model_call(module, s, (tern_tensor *[TERN__DECODER_INPUTS]){tokens}, &plain);
}

int tern__matrices_check(double elements, const char *func, tern_error *err)
{
    double bytes = elements * sizeof(float),
           room = (double)sysconf(_SC_PHYS_PAGES) * (double)tern__page_bytes();
    if (bytes <= room) return TERN_OK;
    return tern__error_set(err, func, TERN_E_MEMORY,
                           "%.0f parameters take %.1f GB, and the machine has %.1f GB of memory", elements,
                           bytes * 1e-9, room * 1e-9);
}

void *tern__language_model_new(size_t bytes, const tern__pretrained_kind *kind, tern_error *err)
{
    static _Atomic uint64_t made;
    tern__language_model *self = tern__module_new(bytes, kind->model_type, language_model_forward, err);
    if (!self) return NULL;
    self->kind = kind;
    self->number = ++made;
    return self;
}

int tern__language_model_add(tern__language_model *model, tern_module *body, tern_tensor *embeddings,
                             bool tied, tern_error *err)
{
    model->embeddings = embeddings;
    model->is_tied = tied;
    model->body = tern_module_add(&model->base, model->kind->body, body, err);
    if (!model->body) return err->code;
    const int64_t *shape = embeddings->view.shape;
    tern_module *head = tern__linear_new_zeros(shape[1], shape[0], false, "tern_linear_new", err);
    model->head = tern_module_add(&model->base, "lm_head", head, err);
    if (model->head && tied) tern_parameter_share(model->head, "weight", embeddings, err);
    return err->code;
}

tern__language_model *tern__language_model_of(const tern_module *module)
{
    bool is_one = module && module->tree && module->tree->forward == language_model_forward;
    return is_one ? (tern__language_model *)module : NULL;
}

tern__language_model *tern__pretrained_of(const tern_module *module)
{
    tern__language_model *model = tern__language_model_of(module);
    return model ? model : tern__bert_of(module);
}

/* ---- what bodies share ---- */

static int tokens_check(const tern_module *body, tern_scope *scope, const tern_tensor *tokens, int64_t past,
                        int64_t positions)
{
    char shape[TERN__SHAPE_TEXT];
    const tern__view *view = &tokens->view;
    if (view->dtype != TERN_I64 && view->dtype != TERN_I32)
        return tern__scope_fail(scope, "tern_forward", TERN_E_DTYPE,
                                "%s: expected tokens of i64 or i32, got %s", body->kind,
                                tern_dtype_name(view->dtype));
    if (view->ndim != 2)
        return tern__scope_fail(scope, "tern_forward", TERN_E_SHAPE, "%s: expected tokens (N, T), got %s",
                                body->kind, tern__shape_text(view, shape));
    if (view->shape[1] > positions - past)
        return tern__scope_fail(scope, "tern_forward", TERN_E_RANGE,
                                "%s: a context of %lld tokens is longer than the model's %lld positions",
                                body->kind, (long long)(past + view->shape[1]), (long long)positions);
    return TERN_OK;
}

/* Fails unless an option is (N, columns), or (1, columns) if it may be one for all sequences. */
static int option_check(const tern_module *body, tern_scope *scope, const char *name, const tern_tensor *x,
                        const int64_t *tokens, int64_t columns, bool shared)
{
    char have[TERN__SHAPE_TEXT];
    if (!x) return TERN_OK;
    const int64_t *shape = x->view.shape;
    bool fits = x->view.ndim == 2 && (shape[0] == tokens[0] || (shared && shape[0] == 1));
    if (fits && shape[1] == columns) return TERN_OK;
    return tern__scope_fail(scope, "tern_language_model_forward", TERN_E_SHAPE,
                            "%s: expected %s (%lld%s, %lld), got %s", body->kind, name, (long long)tokens[0],
                            shared ? " or 1" : "", (long long)columns, tern__shape_text(&x->view, have));
}

int tern__decoder_check(const tern_module *body, tern_scope *scope, tern_tensor *const *x,
                        const tern__decoder_call *call, int64_t positions)
{
    const tern_tensor *tokens = x[TERN__TOKENS];
    const int64_t *shape = tokens->view.shape;
    int status = tokens_check(body, scope, tokens, call->past, positions);
    if (!status && call->cache) status = tern__kv_cache_check(call->cache, body, scope, tokens);
    if (!status)
        status = option_check(body, scope, "attention_mask", x[TERN__ATTENTION_MASK], shape,
                              call->past + shape[1], false);
    return status ? status
                  : option_check(body, scope, "position_ids", x[TERN__POSITION_IDS], shape, shape[1], true);
}

/* Counts, for each of the last `tokens` columns of a mask, the tokens that take part before it. */
static tern_tensor *positions_of_mask(tern_scope *s, tern_tensor *mask, int64_t tokens, const tern_tensor *on)
{
    tern_tensor *counts = tern_cumsum(s, mask, 1);
    int64_t all = mask->view.shape[1];
    counts = tern_slice(s, counts, 1, all - tokens, all, 1);
    return tern_clamp(s, tern_sub(s, counts, tern__number(s, on, TERN_I64, 1)), 0, INFINITY);
}

/* A causal mask is needed only where a call of several tokens has others before it: the op's own begins with
 * the first key, and a single query sees all. */
static tern_tensor *causal_mask(tern_scope *s, int64_t tokens, int64_t past, const tern_tensor *on)
{
    if (!past || tokens < 2) return NULL;
    tern_tensor *ones = tern_full(s, TERN_BOOL, 2, (int64_t[]){tokens, past + tokens}, 1);
    return tern_tril(s, tern__beside(s, ones, on), past);
}

int tern__decoder_settle(tern_scope *s, tern_tensor *const *x, const tern__decoder_call *call,
                         tern_tensor *in[TERN__DECODER_INPUTS])
{
    const tern_tensor *on = in[TERN__STATES];
    const int64_t *shape = x[TERN__TOKENS]->view.shape;
    tern_tensor *mask = x[TERN__ATTENTION_MASK], *causal = causal_mask(s, shape[1], call->past, on);
    in[TERN__POSITION_IDS] = x[TERN__POSITION_IDS];
    in[TERN__ATTENTION_MASK] = causal;
    if (!mask) return s->error.code;
    if (mask->view.dtype != TERN_BOOL) mask = tern_ne(s, mask, tern__number(s, on, mask->view.dtype, 0));
    if (!mask) return s->error.code;
    if (!in[TERN__POSITION_IDS]) in[TERN__POSITION_IDS] = positions_of_mask(s, mask, shape[1], on);
    mask = tern_reshape(s, mask, 4, (int64_t[]){shape[0], 1, 1, call->past + shape[1]});
    in[TERN__ATTENTION_MASK] = causal ? tern_minimum(s, mask, causal) : mask;
    return s->error.code;
}

tern_tensor *tern__decoder_forward(const tern__call_kind *kind, tern_module *module, tern_scope *s,
                                   tern_tensor *const *in, const tern__decoder_call *call)
{
    tern_tensor *own[] = {in[TERN__STATES], in[TERN__ATTENTION_MASK], in[TERN__POSITION_IDS]};
    bool is_plain = !in[TERN__ATTENTION_MASK] && !in[TERN__POSITION_IDS] && !call->cache;
    if (is_plain && module->forward != kind->made) return tern_forward(module, s, in[TERN__STATES]);
    return tern__forward_inputs(kind, module, s, own, call);
}

tern_tensor *tern__decoder_layers(const tern__call_kind *kind, const tern_module *list, tern_scope *s,
                                  tern_tensor *const *in, const tern__decoder_call *call)
{
    tern__decoder_call one = *call;
    tern_tensor *own[] = {in[TERN__STATES], in[TERN__ATTENTION_MASK], in[TERN__POSITION_IDS]};
    for (const tern__module_tree *layer = list->tree->children; layer; layer = layer->next, one.layer++)
        own[TERN__STATES] = tern__decoder_forward(kind, layer->module, s, own, &one);
    return own[TERN__STATES];
}

tern_tensor *tern__decoder_attention(tern_scope *s, tern_tensor *q, tern_tensor *k, tern_tensor *v,
                                     tern_tensor *mask, const tern__decoder_call *call, double dropout)
{
    tern_tensor *kv[] = {k, v};
    tern_attention_opts opts = tern_attention_defaults();
    opts.is_causal = call->past == 0;
    opts.bthd = true;
    opts.enable_gqa = true;
    opts.dropout = dropout;
    if (!q || !k || !v) return NULL;
    if (call->cache && tern__kv_cache_append(call->cache, call->layer, s, kv)) return NULL;
    return tern__attention(s, q, kv[0], kv[1], mask, &opts);
}

int tern__weights_draw(tern_module *module, double std, tern_rng *rng, tern_error *err)
{
    int status = tern__module_state(module, err);
    for (int i = 0; rng && !status && i < module->tree->state_count; i++) {
        tern_tensor *tensor = module->tree->state[i].tensor;
        bool draws = tensor->view.ndim == 2 && !tern__state_repeats(module, i);
        if (draws) status = tern_init_normal(tensor, 0, std, rng, err);
    }
    return status;
}

/* ---- calls ---- */

/* tern_forward with all inputs and options. */
static tern_tensor *language_model_run(tern_module *model, tern_scope *scope, const char *func,
                                       tern_tensor *tokens, tern_tensor *mask, tern_tensor *ids,
                                       const model_call *call)
{
    tern_tensor *x[TERN__DECODER_INPUTS] = {tokens, mask, ids};
    if (scope->error.code) return NULL;
    if (tern__language_model_of(model)) { /* whatever its tern_forward has become */
        const tern__call_kind kind = {func,
                                      "language model",
                                      model->forward,
                                      language_model_call,
                                      .needed = 1,
                                      .count = TERN__DECODER_INPUTS,
                                      .opts = sizeof(*call)};
        return tern__forward_inputs(&kind, model, scope, x, call);
    }
    tern__scope_fail(scope, func, TERN_E_INVALID, "expected a language model, got %s",
                     model ? model->kind : "NULL");
    return NULL;
}

tern_language_model_call_opts tern_language_model_call_defaults(void)
{
    return (tern_language_model_call_opts){.size = sizeof(tern_language_model_call_opts)};
}

tern_tensor *tern_language_model_forward(tern_module *model, tern_scope *scope, tern_tensor *tokens,
                                         const tern_language_model_call_opts *opts)
{
    tern_language_model_call_opts o = tern_language_model_call_defaults();
    if (!scope || tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    if (o.logits_to_keep < 0) {
        tern__scope_fail(scope, __func__, TERN_E_RANGE, "logits_to_keep is %lld, expected at least 0",
                         (long long)o.logits_to_keep);
        return NULL;
    }
    model_call call = {.decoder = {.cache = o.cache, .past = tern_kv_cache_length(o.cache)},
                       .logits_to_keep = o.logits_to_keep};
    tern_tensor *y =
        language_model_run(model, scope, __func__, tokens, o.attention_mask, o.position_ids, &call);
    if (y && o.cache) tern__kv_cache_advance(o.cache, tokens->view.shape[1]);
    return y;
}

tern_tensor *tern_language_model_hidden(tern_module *model, tern_scope *scope, tern_tensor *tokens)
{
    const model_call call = {.is_hidden = true};
    return scope ? language_model_run(model, scope, __func__, tokens, NULL, NULL, &call) : NULL;
}

/* ---- loss ---- */

tern_language_model_loss_opts tern_language_model_loss_defaults(void)
{
    return (tern_language_model_loss_opts){
        .size = sizeof(tern_language_model_loss_opts), .ignore_index = -100, .reduction = TERN_LOSS_MEAN};
}

/* Returns labels that are one position ahead: the last of each sequence does not count. */
static tern_tensor *shift_labels(tern_scope *s, tern_tensor *labels, int64_t ignore_index)
{
    const int64_t *shape = labels->view.shape;
    int64_t last[] = {shape[0], TERN__MIN(shape[1], 1)};
    tern_tensor *parts[] = {tern_slice(s, labels, 1, 1, shape[1], 1),
                            tern_full(s, labels->view.dtype, 2, last, (double)ignore_index)};
    return parts[0] && parts[1] ? tern_cat(s, 2, parts, 1) : NULL;
}

static bool labels_fit(tern_scope *scope, const tern_tensor *tokens, const tern_tensor *labels)
{
    char ts[TERN__SHAPE_TEXT], ls[TERN__SHAPE_TEXT];
    bool is_index = labels->view.dtype == TERN_I64 || labels->view.dtype == TERN_I32;
    if (is_index && labels->view.ndim == 2 && tern__view_same_shape(&labels->view, &tokens->view))
        return true;
    tern__scope_fail(scope, "tern_language_model_loss", is_index ? TERN_E_SHAPE : TERN_E_DTYPE,
                     "expected labels of i64 or i32 in the tokens' shape %s, got %s %s",
                     tern__shape_text(&tokens->view, ts), tern_dtype_name(labels->view.dtype),
                     tern__shape_text(&labels->view, ls));
    return false;
}

/* The loss of a head with an adapter, whose logits are no product of one weight. */
static tern_tensor *loss_of_logits(tern_module *model, tern_scope *s, tern_tensor *hidden,
                                   tern_tensor *labels, const tern_cross_entropy_opts *opts)
{
    tern_tensor *logits = tern_forward(tern__language_model_of(model)->head, s, hidden);
    if (!logits) return NULL;
    int64_t shape[] = {labels->view.shape[0], labels->view.shape[1]}, words = logits->view.shape[2];
    if (tern__dtype_is_half(logits->view.dtype)) logits = tern_cast(s, logits, TERN_F32);
    logits = tern_reshape(s, logits, 2, (int64_t[]){shape[0] * shape[1], words});
    labels = tern_reshape(s, labels, 1, (int64_t[]){shape[0] * shape[1]});
    tern_tensor *loss = tern_cross_entropy(s, logits, labels, opts);
    return loss && opts->reduction == TERN_LOSS_NONE ? tern_reshape(s, loss, 2, shape) : loss;
}

tern_tensor *tern_language_model_loss(tern_module *model, tern_scope *scope, tern_tensor *tokens,
                                      tern_tensor *labels, const tern_language_model_loss_opts *opts)
{
    tern_language_model_loss_opts o = tern_language_model_loss_defaults();
    if (!labels) labels = tokens;
    if (!TERN__ENTER(scope, __func__, 2, &tokens, &labels)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    const model_call call = {.is_hidden = true};
    tern_tensor *hidden = language_model_run(model, scope, __func__, tokens, o.attention_mask, NULL, &call);
    if (!hidden || !labels_fit(scope, tokens, labels)) return NULL;
    if (!o.shifted && !(labels = shift_labels(scope, labels, o.ignore_index))) return NULL;
    const tern__linear *head = tern__linear_of(tern__language_model_of(model)->head);
    tern_tensor *weight = head->weight;
    /* amp has the root's results cast to f32, but its weights may be of 16 bits. */
    if (!scope->autocast.policy) hidden = tern_cast(scope, hidden, weight->view.dtype);
    tern_cross_entropy_opts cross_entropy = tern_cross_entropy_defaults();
    cross_entropy.ignore_index = o.ignore_index;
    cross_entropy.label_smoothing = o.label_smoothing;
    cross_entropy.reduction = o.reduction;
    if (head->lora.a && !head->lora.is_merged)
        return loss_of_logits(model, scope, hidden, labels, &cross_entropy);
    return tern_linear_cross_entropy(scope, hidden, weight, NULL, labels, &cross_entropy);
}
