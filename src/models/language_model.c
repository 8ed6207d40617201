/* language_model.c - the parts that all language models share: logits, the loss without logits, checks. */
#include "models/language_model.h"
#include "base/opts.h"
#include "base/pages.h"
#include "ops/ops.h"

#include <string.h>
#include <unistd.h>

/* ---- model ---- */

static tern_tensor *language_model_forward(tern_module *module, tern_scope *s, tern_tensor *tokens)
{
    tern__language_model *self = (tern__language_model *)module;
    return tern_forward(self->head, s, tern_forward(self->body, s, tokens));
}

static tern_tensor *language_model_hidden(tern_module *module, tern_scope *s, tern_tensor *tokens)
{
    return tern_forward(((tern__language_model *)module)->body, s, tokens);
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

void *tern__language_model_new(size_t bytes, const tern__language_kind *kind, tern_error *err)
{
    tern__language_model *self = tern__module_new(bytes, kind->model_type, language_model_forward, err);
    if (self) self->kind = kind;
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

int tern__tokens_check(const tern_module *body, tern_scope *scope, const tern_tensor *tokens,
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
    if (view->shape[1] > positions)
        return tern__scope_fail(scope, "tern_forward", TERN_E_RANGE,
                                "%s: a context of %lld tokens is longer than the model's %lld positions",
                                body->kind, (long long)view->shape[1], (long long)positions);
    return TERN_OK;
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

/* ---- loss ---- */

tern_language_model_loss_opts tern_language_model_loss_defaults(void)
{
    return (tern_language_model_loss_opts){
        .size = sizeof(tern_language_model_loss_opts), .ignore_index = -100, .reduction = TERN_LOSS_MEAN};
}

static tern__language_model *language_model_enter(tern_module *module, tern_scope *scope, const char *func)
{
    tern__language_model *model = tern__language_model_of(module);
    if (!model)
        tern__scope_fail(scope, func, TERN_E_INVALID, "expected a language model, got %s",
                         module ? module->kind : "NULL");
    return model;
}

tern_tensor *tern_language_model_hidden(tern_module *model, tern_scope *scope, tern_tensor *tokens)
{
    if (!TERN__ENTER(scope, __func__, 1, &tokens) || !language_model_enter(model, scope, __func__))
        return NULL;
    return tern__forward_by(model, scope, tokens, language_model_hidden);
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

tern_tensor *tern_language_model_loss(tern_module *model, tern_scope *scope, tern_tensor *tokens,
                                      tern_tensor *labels, const tern_language_model_loss_opts *opts)
{
    tern_language_model_loss_opts o = tern_language_model_loss_defaults();
    if (!labels) labels = tokens;
    if (!TERN__ENTER(scope, __func__, 2, &tokens, &labels)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, __func__)) return NULL;
    tern__language_model *self = language_model_enter(model, scope, __func__);
    if (!self) return NULL;
    tern_tensor *hidden = tern__forward_by(model, scope, tokens, language_model_hidden);
    if (!hidden || !labels_fit(scope, tokens, labels)) return NULL;
    if (!o.shifted && !(labels = shift_labels(scope, labels, o.ignore_index))) return NULL;
    tern_tensor *weight = tern__weight_of(self->head);
    /* amp has the root's results cast to f32, but its weights may be of 16 bits. */
    if (!scope->autocast.policy) hidden = tern_cast(scope, hidden, weight->view.dtype);
    tern_cross_entropy_opts cross_entropy = tern_cross_entropy_defaults();
    cross_entropy.ignore_index = o.ignore_index;
    cross_entropy.label_smoothing = o.label_smoothing;
    cross_entropy.reduction = o.reduction;
    return tern_linear_cross_entropy(scope, hidden, weight, NULL, labels, &cross_entropy);
}
