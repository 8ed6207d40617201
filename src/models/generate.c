/* generate.c - a text, token by token: the model sees the prompt, and then each token that was chosen, behind
 * those that its cache has. Every token is a step of the scope, so memory is used again, and nothing is
 * allocated once the first tokens are there. */
#include "models/generate.h"
#include "base/opts.h"
#include "models/language_model.h"

#include <tern/ops.h>

#include <math.h>

/* ---- options ---- */

tern_generate_opts tern_generate_defaults(void)
{
    return (tern_generate_opts){.size = sizeof(tern_generate_opts),
                                .max_new_tokens = 20,
                                .temperature = 1,
                                .top_k = 50,
                                .top_p = 1,
                                .repetition_penalty = 1};
}

static int real_refuse(const char *name, double value, const char *expected, const char *func,
                       tern_error *err)
{
    return tern__error_set(err, func, TERN_E_RANGE, "%s is %g, expected %s", name, value, expected);
}

static bool is_factor(double x)
{
    return (float)x > 0 && isfinite((float)x);
}

int tern__generate_opts_read(tern_generate_opts *to, const tern_generate_opts *opts, const char *func,
                             tern_error *err)
{
    *to = tern_generate_defaults();
    int status = tern__opts_read(to, sizeof(*to), opts, func, err);
    if (status) return status;
    if (to->do_sample && !is_factor(to->temperature))
        return real_refuse("temperature", to->temperature,
                           to->temperature == 0
                               ? "more than 0 (do_sample = false takes the most probable token)"
                               : "more than 0",
                           func, err);
    if (to->do_sample && !(to->top_p > 0 && to->top_p <= 1))
        return real_refuse("top_p", to->top_p, "more than 0 and at most 1", func, err);
    if (!is_factor(to->repetition_penalty))
        return real_refuse("repetition_penalty", to->repetition_penalty, "more than 0", func, err);
    if (to->max_new_tokens < 1 || to->max_length < 0 || to->top_k < 0 || to->eos_count < 0)
        return tern__error_set(err, func, TERN_E_RANGE,
                               "max_new_tokens is %lld, expected at least 1; max_length %lld, top_k %lld and "
                               "eos_count %lld, expected at least 0",
                               (long long)to->max_new_tokens, (long long)to->max_length, (long long)to->top_k,
                               (long long)to->eos_count);
    return to->eos_count > 0 ? tern__need(to->eos_ids, "array of eos_ids", func, err) : TERN_OK;
}

int tern__generate_ids_check(const int32_t *ids, int64_t count, int64_t vocabulary, const char *func,
                             tern_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= vocabulary)
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "token %lld of the text is %d, and the model's vocabulary has %lld tokens",
                                   (long long)i, (int)ids[i], (long long)vocabulary);
    return TERN_OK;
}

/* ---- the mode of a model ---- */

static void modes_save(const tern_module *module, bool **to)
{
    *(*to)++ = module->training;
    for (const tern__module_tree *child = module->tree->children; child; child = child->next)
        modes_save(child->module, to);
}

static void modes_restore(tern_module *module, const bool **from)
{
    module->training = *(*from)++;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        modes_restore(child->module, from);
}

/* ---- a text ---- */

typedef struct generation {
    tern_module *model;
    tern_scope *scope;
    tern_token_ids *ids;
    tern_generate_opts opts;
    tern_language_model_call_opts call;
    int64_t vocabulary, limit; /* tokens of the whole text, at most */
    float *logits;
    bool *modes;
    tern_rng *rng;        /* if the caller gave none */
    tern_kv_cache *cache; /* the same */
    tern_error *err;
} generation;

static const char FUNC[] = "tern_generate";

static int generation_check(generation *g, int64_t positions)
{
    const tern_token_ids *ids = g->ids;
    int64_t most = g->opts.max_length;
    if (ids->count > 0 && tern__need(ids->ids, "array of ids", FUNC, g->err)) return g->err->code;
    if (ids->count < 1)
        return tern__error_set(g->err, FUNC, TERN_E_INVALID,
                               "the prompt is empty, expected at least one token");
    if (tern__generate_ids_check(ids->ids, ids->count, g->vocabulary, FUNC, g->err)) return g->err->code;
    if (ids->count > positions)
        return tern__error_set(g->err, FUNC, TERN_E_RANGE,
                               "the prompt has %lld tokens, and the model's longest context is %lld",
                               (long long)ids->count, (long long)positions);
    if (most && ids->count >= most)
        return tern__error_set(g->err, FUNC, TERN_E_RANGE,
                               "the prompt has %lld tokens, and max_length is %lld: give max_new_tokens",
                               (long long)ids->count, (long long)most);
    if (g->scope->tensors || g->scope->tape || g->scope->error.code)
        return tern__error_set(g->err, FUNC, TERN_E_STATE,
                               "the scope has work: end its step first (tern_scope_end)");
    /* The last token need not be seen. */
    g->limit = positions + 1;
    if (!most && g->opts.max_new_tokens < g->limit - ids->count) most = ids->count + g->opts.max_new_tokens;
    if (most) g->limit = TERN__MIN(g->limit, most);
    return TERN_OK;
}

/* The last token of the prompt is not kept, because its logits are needed. */
static void generation_cache_open(generation *g)
{
    tern_kv_cache *given = g->opts.cache;
    if (!given) {
        g->call.cache = g->cache = tern_kv_cache_new(g->model, 1, g->limit - 1, g->err);
        return;
    }
    int64_t known = TERN__MIN(tern_kv_cache_length(given), g->ids->count - 1);
    g->call.cache = given;
    if (!tern_kv_cache_crop(given, known, g->err)) tern_kv_cache_reserve(given, g->limit - 1, g->err);
}

static int generation_open(generation *g)
{
    tern_error *err = g->err;
    size_t room = (size_t)g->ids->room;
    int status = tern__array_reserve(&g->ids->ids, &room, (size_t)g->limit, sizeof(*g->ids->ids), FUNC, err);
    g->ids->room = (int64_t)room;
    if (status) return status;
    g->logits = tern__alloc((size_t)g->vocabulary * sizeof(*g->logits), FUNC, err);
    g->modes = g->logits ? tern__alloc((size_t)tern__module_count(g->model), FUNC, err) : NULL;
    if (g->modes && g->opts.do_sample && !g->opts.rng) g->opts.rng = g->rng = tern_rng_new(0, err);
    g->call = tern_language_model_call_defaults();
    g->call.logits_to_keep = 1;
    if (!tern__is_set(err)) generation_cache_open(g);
    return err->code;
}

static void generation_close(generation *g)
{
    tern_kv_cache_free(g->cache);
    tern_rng_free(g->rng);
    tern__free(g->modes);
    tern__free(g->logits);
}

/* Fills in the logits after the tokens that the cache has and those that it has not. */
static int generation_see(generation *g)
{
    int64_t seen = tern_kv_cache_length(g->call.cache), shape[] = {1, g->ids->count - seen};
    tern_tensor *tokens = tern_tensor_from(g->scope, g->ids->ids + seen, TERN_I32, 2, shape);
    tern_tensor *y = tern_language_model_forward(g->model, g->scope, tokens, &g->call);
    y = tern_cast(g->scope, y, TERN_F32);
    if (y) tern_tensor_read(y, g->logits, (size_t)g->vocabulary * sizeof(*g->logits), g->err);
    tern_scope_end(g->scope, g->err);
    return g->err->code;
}

/* Chooses the next token. Sets *ends if the text ends with it. */
static int generation_step(generation *g, bool *ends)
{
    const tern_generate_opts *o = &g->opts;
    tern_token_ids *ids = g->ids;
    int32_t id;
    if (generation_see(g) ||
        tern__generate_choose(g->logits, g->vocabulary, ids->ids, ids->count, o, &id, FUNC, g->err))
        return g->err->code;
    ids->ids[ids->count++] = id;
    *ends = o->on_token && !o->on_token(o->context, id);
    for (int64_t i = 0; i < o->eos_count; i++) *ends = *ends || o->eos_ids[i] == id;
    return TERN_OK;
}

static int generation_run(generation *g)
{
    bool *saved = g->modes, recorded = tern_grad_enabled_set(g->scope, false), ends = false;
    const bool *modes = g->modes;
    int status = TERN_OK;
    modes_save(g->model, &saved);
    tern_eval(g->model);
    while (!ends && g->ids->count < g->limit && !status) status = generation_step(g, &ends);
    modes_restore(g->model, &modes);
    tern_grad_enabled_set(g->scope, recorded);
    return status;
}

int tern_generate(tern_module *model, tern_scope *scope, tern_token_ids *ids, const tern_generate_opts *opts,
                  tern_error *err)
{
    tern_error own = {0};
    generation g = {.model = model, .scope = scope, .ids = ids, .err = err ? err : &own};
    const tern__language_model *self = tern__language_model_of(model);
    if (tern__is_set(g.err)) return g.err->code;
    if (tern__need(scope, "scope", FUNC, g.err) || tern__need(ids, "list of ids", FUNC, g.err))
        return g.err->code;
    if (!self)
        return tern__error_set(g.err, FUNC, TERN_E_INVALID, "expected a language model, got %s",
                               model ? model->kind : "NULL");
    g.vocabulary = self->embeddings->view.shape[0];
    int status = tern__generate_opts_read(&g.opts, opts, FUNC, g.err);
    if (!status && g.opts.cache && !tern__kv_cache_fits(g.opts.cache, self))
        status = tern__error_set(g.err, FUNC, TERN_E_INVALID,
                                 "kv_cache: it was made for another model, or for several sequences");
    if (!status) status = generation_check(&g, self->positions);
    if (!status) status = generation_open(&g);
    if (!status) status = generation_run(&g);
    generation_close(&g);
    return status;
}
