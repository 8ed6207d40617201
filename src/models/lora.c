/* lora.c - low-rank adapters (LoRA, Hu et al. 2021) as PEFT has them: which linears get one, how it is drawn,
 * and how it becomes a part of the weight. The linear itself calls its adapter (nn/linear.c). */
#include "models/lora.h"
#include "base/opts.h"
#include "base/text.h"
#include "models/language_model.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* ---- linears and targets ---- */

static void collect_linears(tern__lora_linears *linears, tern_module *module, const char *name)
{
    tern__linear *linear = tern__linear_of(module);
    if (linear) {
        tern__lora_linear *entry = &linears->list[linears->count++];
        *entry = (tern__lora_linear){.linear = linear};
        tern__text_append(entry->name, sizeof(entry->name), "%s", name);
        return;
    }
    for (const tern__module_tree *child = module->tree->children; child; child = child->next) {
        char full[sizeof(linears->list->name)] = "";
        tern__text_append(full, sizeof(full), "%s%s%s", name, *name ? "." : "", child->name);
        collect_linears(linears, child->module, full);
    }
}

int tern__lora_linears_open(tern__lora_linears *linears, const tern_module *model, const char *func,
                            tern_error *err)
{
    *linears = (tern__lora_linears){.model = model, .func = func, .err = err};
    if (!model || !model->tree)
        return tern__error_set(err, func, TERN_E_INVALID, "the module is NULL or was never made");
    size_t count = (size_t)tern__module_count(model);
    linears->list = tern__alloc(count * sizeof(*linears->list), func, err);
    if (!linears->list) return TERN_E_MEMORY;
    collect_linears(linears, (tern_module *)model, "");
    return TERN_OK;
}

/* Returns the last part of a name: "c_attn". */
static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static bool is_head(const tern__lora_linears *linears, const tern__linear *linear)
{
    const tern__language_model *model = tern__language_model_of(linears->model);
    return model && model->head == &linear->base;
}

static bool is_meant(const tern__lora_linears *linears, const tern__lora_linear *entry, const char *target)
{
    size_t length = strlen(entry->name), end = strlen(target);
    if (!strcmp(target, "all-linear")) return !is_head(linears, entry->linear);
    if (length < end || strcmp(entry->name + length - end, target)) return false;
    return length == end || entry->name[length - end - 1] == '.';
}

int tern__lora_target(const tern__lora_linears *linears, const char *target)
{
    int meant = 0;
    for (int i = 0; i < linears->count; i++) {
        if (!is_meant(linears, &linears->list[i], target)) continue;
        linears->list[i].is_target = true;
        meant++;
    }
    return meant;
}

/* Names the linears that there are, each last part once. */
static int fail_target(const tern__lora_linears *linears, const char *target)
{
    char known[256] = "", quoted[TERN__QUOTE_TEXT];
    for (int i = 0; i < linears->count; i++) {
        const char *part = last_part(linears->list[i].name);
        int first = 0;
        while (strcmp(last_part(linears->list[first].name), part)) first++;
        if (first == i) tern__text_append(known, sizeof(known), "%s%s", *known ? ", " : "", part);
    }
    return tern__error_set(linears->err, linears->func, TERN_E_INVALID,
                           "%s has no linear %s in target_modules; it has %s", linears->model->kind,
                           tern__quote(target, strlen(target), quoted), *known ? known : "none");
}

/* Marks the linears that the options mean, or those that are usual for such a model. */
static int mark_targets(const tern__lora_linears *linears, const tern_lora_opts *opts)
{
    const tern__pretrained_kind *kind = tern__pretrained_kind_of(linears->model);
    const char *const *usual = kind ? kind->lora_targets : NULL;
    if (opts->target_count < 0 || (opts->target_count && !opts->target_modules))
        return tern__error_set(linears->err, linears->func, TERN_E_INVALID, "target_modules has %d names%s",
                               opts->target_count, opts->target_modules ? "" : " and is NULL");
    if (!opts->target_count && !usual)
        return tern__error_set(linears->err, linears->func, TERN_E_INVALID,
                               "%s has no usual targets: name its linears in target_modules",
                               linears->model->kind);
    for (int i = 0; opts->target_count ? i < opts->target_count : usual[i] != NULL; i++) {
        const char *target = opts->target_count ? opts->target_modules[i] : usual[i];
        if (!target || !tern__lora_target(linears, target)) return fail_target(linears, target ? target : "");
    }
    return TERN_OK;
}

/* ---- adding ---- */

tern_lora_opts tern_lora_defaults(void)
{
    return (tern_lora_opts){.size = sizeof(tern_lora_opts), .r = 8, .lora_alpha = 8};
}

int tern__lora_opts_check(const tern_lora_opts *o, const char *func, tern_error *err)
{
    if (o->r < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "r is %lld, expected at least 1", (long long)o->r);
    if (!isfinite(o->lora_alpha))
        return tern__error_set(err, func, TERN_E_RANGE, "lora_alpha is %g, expected a finite number",
                               o->lora_alpha);
    if (o->lora_dropout >= 0 && o->lora_dropout < 1) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "lora_dropout is %g, expected a number in [0, 1)",
                           o->lora_dropout);
}

int tern__lora_check_new(const tern__lora_linears *linears)
{
    if (tern_lora_has(linears->model))
        return tern__error_set(linears->err, linears->func, TERN_E_INVALID, "%s has adapters already",
                               linears->model->kind);
    return tern__tree_open((tern_module *)linears->model, linears->func, "lora_A", linears->err);
}

/* PEFT makes two linears of PyTorch, which draw their weights, and then draws A once more and sets B to 0. So
 * the same seed gives the same bits. */
static int draw_adapter(tern__linear *a, tern__linear *b, tern_rng *rng, tern_error *err)
{
    int status = tern__init_default(a->weight, NULL, rng, err);
    if (!status) status = tern__init_default(b->weight, NULL, rng, err);
    if (!status) status = tern__init_default(a->weight, NULL, rng, err);
    return status ? status : tern_init_constant(b->weight, 0, err);
}

/* Gives one of an adapter's linears the linear's device and dtype: f32 beside 16 bits, as PEFT. */
static int settle_adapter(tern_module *module, const tern__linear *like, tern_error *err)
{
    tern_dtype dtype = like->weight->view.dtype;
    int status = tern__dtype_is_half(dtype) ? TERN_OK : tern_module_cast(module, dtype, err);
    return status || !like->weight->device ? status : tern_module_to(module, like->weight->device, err);
}

/* Makes an adapter, and adds it when nothing but the lack of a name's memory can fail any more. */
static int attach_one(tern__linear *linear, const tern_lora_opts *o, tern_rng *rng, const char *func,
                      tern_error *err)
{
    const int64_t *shape = linear->weight->view.shape;
    int64_t in = shape[linear->is_turned ? 0 : 1], out = shape[linear->is_turned ? 1 : 0];
    tern_module *a = tern__linear_new_zeros(in, o->r, false, func, err);
    tern_module *b = a ? tern__linear_new_zeros(o->r, out, false, func, err) : NULL;
    int status = b ? TERN_OK : err->code;
    if (!status && rng) status = draw_adapter((tern__linear *)a, (tern__linear *)b, rng, err);
    if (!status) status = settle_adapter(a, linear, err);
    if (!status) status = settle_adapter(b, linear, err);
    if (status) {
        tern_module_free(a);
        tern_module_free(b);
        return status;
    }
    a = tern_module_add(&linear->base, "lora_A", a, err);
    b = tern_module_add(&linear->base, "lora_B", b, err);
    if (!a || !b) return err->code;
    linear->lora = (tern__lora){.a = (tern__linear *)a,
                                .b = (tern__linear *)b,
                                .lora_alpha = o->lora_alpha,
                                .scale = o->lora_alpha / (o->use_rslora ? sqrt((double)o->r) : (double)o->r),
                                .dropout = o->lora_dropout,
                                .use_rslora = o->use_rslora};
    tern__options_add_real(&linear->base, "lora_scale", linear->lora.scale);
    tern__options_add_real(&linear->base, "lora_dropout", o->lora_dropout);
    return TERN_OK;
}

int tern__lora_attach(const tern__lora_linears *linears, const tern_lora_opts *opts, tern_rng *rng,
                      bool trains)
{
    int status = TERN_OK;
    tern_module_requires_grad_set((tern_module *)linears->model, false);
    for (int i = 0; i < linears->count && !status; i++) {
        tern__linear *linear = linears->list[i].linear;
        if (!linears->list[i].is_target) continue;
        status = attach_one(linear, opts, rng, linears->func, linears->err);
        for (int m = 0; m < 2 && !status; m++) {
            tern_module *part = m ? &linear->lora.b->base : &linear->lora.a->base;
            part->training = linear->base.training;
            tern_module_requires_grad_set(part, trains);
        }
    }
    return status;
}

int tern_lora_add(tern_module *model, const tern_lora_opts *opts, tern_rng *rng, tern_error *err)
{
    tern_lora_opts o = tern_lora_defaults();
    tern__lora_linears linears = {0};
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        tern__lora_opts_check(&o, __func__, err))
        return err->code;
    int status = tern__lora_linears_open(&linears, model, __func__, err);
    if (!status) status = mark_targets(&linears, &o);
    if (!status) status = tern__lora_check_new(&linears);
    if (!status) status = tern__lora_attach(&linears, &o, rng, true);
    tern__free(linears.list);
    return status;
}

/* ---- asking ---- */

/* Returns the first linear with an adapter, of those that call it if `calls`; or NULL. */
static const tern__linear *find_adapted(const tern_module *module, bool calls)
{
    const tern__linear *linear = tern__linear_of(module);
    if (linear && linear->lora.a && !(calls && linear->lora.is_merged)) return linear;
    for (const tern__module_tree *child = module->tree->children; child; child = child->next) {
        const tern__linear *found = find_adapted(child->module, calls);
        if (found) return found;
    }
    return NULL;
}

bool tern_lora_has(const tern_module *model)
{
    return model && model->tree && find_adapted(model, false);
}

const tern__linear *tern__lora_unmerged(const tern_module *model)
{
    return find_adapted(model, true);
}

bool tern__lora_owns(const tern_tensor *parameter)
{
    const tern_module *module = parameter->leaf ? parameter->leaf->module : NULL;
    const tern__linear *above = module ? tern__linear_of(module->tree->parent) : NULL;
    return above && (module == &above->lora.a->base || module == &above->lora.b->base);
}

/* ---- merging ---- */

/* The other user of a shared weight, such as the embedding of a tied head, would change with it. */
static int merge_check(const tern__lora_linears *linears)
{
    if (!tern_lora_has(linears->model))
        return tern__error_set(linears->err, linears->func, TERN_E_INVALID, "%s has no adapters",
                               linears->model->kind);
    if (!tern__lora_unmerged(linears->model))
        return tern__error_set(linears->err, linears->func, TERN_E_INVALID,
                               "the adapters of %s are merged already", linears->model->kind);
    for (int i = 0; i < linears->count; i++) {
        const tern__linear *linear = linears->list[i].linear;
        if (linear->lora.a && linear->weight->leaf->shared)
            return tern__error_set(
                linears->err, linears->func, TERN_E_INVALID,
                "the weight of %s is shared with another layer, which merging would change",
                linears->list[i].name);
    }
    return TERN_OK;
}

/* Computes W += scale B A in the adapter's dtype. */
static int merge_one(tern_scope *s, tern__linear *linear)
{
    tern__lora *lora = &linear->lora;
    tern_tensor *weight = linear->weight;
    int64_t mark = tern_scope_mark(s);
    tern_tensor *product = tern_matmul(s, lora->b->weight, lora->a->weight);
    if (linear->is_turned) product = tern_transpose(s, product, 0, 1);
    product = tern_affine(s, product, lora->scale, 0);
    tern_tensor *sum = product ? tern_add(s, tern_cast(s, weight, product->view.dtype), product) : NULL;
    if (!sum || !tern__copy(s, &weight->view, &sum->view)) return s->error.code;
    weight->leaf->packs.version++;
    tern__leaf_require(lora->a->weight->leaf, false);
    tern__leaf_require(lora->b->weight->leaf, false);
    lora->is_merged = true;
    tern_scope_release(s, mark, 0, NULL);
    return s->error.code;
}

static int merge_all(const tern__lora_linears *linears)
{
    tern_device *device = tern_device_open("cpu", linears->err);
    tern_scope *scope = device ? tern_scope_new(device, NULL, linears->err) : NULL;
    int status = scope ? TERN_OK : linears->err->code;
    if (scope) tern_grad_enabled_set(scope, false);
    for (int i = 0; i < linears->count && !status; i++) {
        tern__linear *linear = linears->list[i].linear;
        if (linear->lora.a && !linear->lora.is_merged) status = merge_one(scope, linear);
    }
    if (scope) tern_scope_end(scope, linears->err);
    tern_scope_free(scope);
    tern_device_close(device);
    return linears->err->code;
}

int tern_lora_merge(tern_module *model, tern_error *err)
{
    tern__lora_linears linears = {0};
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err)) return err->code;
    int status = tern__lora_linears_open(&linears, model, __func__, err);
    if (!status) status = merge_check(&linears);
    if (!status) status = merge_all(&linears);
    tern__free(linears.list);
    return status;
}
