/* kv_cache.c - the keys and values of the tokens that a language model has seen: for each layer two tensors
 * (batch, max_tokens, heads, features), of which the first `length` tokens are filled. A call writes its own
 * behind them and attends to views of all. */
#include "models/language_model.h"
#include "ops/ops.h"

struct tern_kv_cache {
    uint64_t model; /* the number of the one that it was made for */
    int layers;
    int64_t batch, max_tokens, length;
    int64_t positions;     /* the most that max_tokens may become */
    tern_tensor *memory[]; /* [2 layers] keys and values; NULL before the first call */
};

tern_kv_cache *tern_kv_cache_new(const tern_module *model, int64_t batch, int64_t max_tokens, tern_error *err)
{
    if (tern__is_set(err)) return NULL;
    const tern__language_model *self = tern__language_model_of(model);
    if (!self) {
        tern__error_set(err, __func__, TERN_E_INVALID, "expected a language model, got %s",
                        model ? model->kind : "NULL");
        return NULL;
    }
    if (batch < 1 || max_tokens < 1 || max_tokens > self->positions) {
        tern__error_set(err, __func__, TERN_E_RANGE,
                        "kv_cache: expected a batch of at least 1 and max_tokens from 1 to the model's %lld "
                        "positions, got %lld and %lld",
                        (long long)self->positions, (long long)batch, (long long)max_tokens);
        return NULL;
    }
    size_t tensors = 2 * (size_t)self->layers;
    tern_kv_cache *cache = tern__alloc(sizeof(*cache) + tensors * sizeof(*cache->memory), __func__, err);
    if (!cache) return NULL;
    *cache = (tern_kv_cache){.model = self->number,
                             .layers = self->layers,
                             .batch = batch,
                             .max_tokens = max_tokens,
                             .positions = self->positions};
    return cache;
}

int64_t tern_kv_cache_length(const tern_kv_cache *cache)
{
    return cache ? cache->length : 0;
}

void tern_kv_cache_reset(tern_kv_cache *cache)
{
    if (cache) cache->length = 0;
}

int tern_kv_cache_crop(tern_kv_cache *cache, int64_t length, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (tern__need(cache, "cache", __func__, err)) return TERN_E_INVALID;
    if (length < 0 || length > cache->length)
        return tern__error_set(err, __func__, TERN_E_RANGE,
                               "kv_cache: expected 0 to its %lld tokens, got %lld", (long long)cache->length,
                               (long long)length);
    cache->length = length;
    return TERN_OK;
}

int tern_kv_cache_reserve(tern_kv_cache *cache, int64_t max_tokens, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (tern__need(cache, "cache", __func__, err)) return TERN_E_INVALID;
    if (max_tokens > cache->positions)
        return tern__error_set(err, __func__, TERN_E_RANGE,
                               "kv_cache: expected max_tokens up to the model's %lld positions, got %lld",
                               (long long)cache->positions, (long long)max_tokens);
    cache->max_tokens = TERN__MAX(cache->max_tokens, max_tokens);
    return TERN_OK;
}

void tern_kv_cache_free(tern_kv_cache *cache)
{
    for (int i = 0; cache && i < 2 * cache->layers; i++) tern_tensor_free(cache->memory[i]);
    tern__free(cache);
}

bool tern__kv_cache_fits(const tern_kv_cache *cache, const tern__language_model *model)
{
    return cache->model == model->number && cache->batch == 1;
}

int tern__kv_cache_check(const tern_kv_cache *cache, const tern_module *body, tern_scope *s,
                         const tern_tensor *tokens)
{
    static const char func[] = "tern_language_model_forward";
    const int64_t *shape = tokens->view.shape;
    if (cache->model != tern__language_model_of(body->tree->parent)->number)
        return tern__scope_fail(s, func, TERN_E_INVALID, "kv_cache: it was made for another model");
    const tern__first_pass *pass = &s->checkpoint;
    if (s->grad || (pass->traced && !pass->paused))
        return tern__scope_fail(s, func, TERN_E_STATE,
                                "kv_cache: it passes no gradients on; turn their recording off "
                                "(tern_grad_enabled_set)");
    if (shape[0] != cache->batch)
        return tern__scope_fail(s, func, TERN_E_SHAPE,
                                "kv_cache: expected tokens (%lld, T), got (%lld, %lld)",
                                (long long)cache->batch, (long long)shape[0], (long long)shape[1]);
    if (shape[1] > cache->max_tokens - cache->length)
        return tern__scope_fail(s, func, TERN_E_RANGE,
                                "kv_cache: %lld tokens after %lld are more than its max_tokens of %lld",
                                (long long)shape[1], (long long)cache->length, (long long)cache->max_tokens);
    return TERN_OK;
}

void tern__kv_cache_advance(tern_kv_cache *cache, int64_t tokens)
{
    cache->length += tokens;
}

static void kv_memory_release(void *ctx)
{
    tern__storage *storage = ctx;
    tern__memory_free(storage->data);
    tern__free(storage);
}

/* A tensor of the caller's, as of tern_keep, but in the memory of `device`. A scope's views of it may outlive
 * the cache. */
static tern_tensor *kv_memory_new(tern_dtype dtype, const int64_t shape[4], tern_device *device,
                                  tern_error *err)
{
    static const char func[] = "tern_language_model_forward";
    tern__view view = tern__view_make(dtype, TERN__PLAIN, 4, shape);
    tern__storage *storage = tern__alloc(sizeof(*storage), func, err);
    if (!storage) return NULL;
    *storage = (tern__storage){.refs = 1, .release = kv_memory_release, .ctx = storage};
    storage->data = tern__memory_new(device, tern__view_bytes(&view), func, err);
    tern_tensor *tensor = NULL;
    if (storage->data)
        tensor = tern__tensor_over(storage, storage->data, dtype, 4, shape, view.stride, func, err);
    if (tensor) tensor->device = device;
    tern__storage_drop(storage);
    return tensor;
}

/* Makes the memory for tensors like x, unless it is there. Memory that has become too small gives its tokens
 * to the new one. */
static int kv_cache_allocate(const tern_kv_cache *cache, tern_tensor **at, tern_scope *s,
                             const tern_tensor *x)
{
    bool is_alike = *at && (*at)->view.dtype == x->view.dtype && (*at)->device == x->device;
    if (is_alike && (*at)->view.shape[1] >= cache->max_tokens) return TERN_OK;
    if (cache->length && !is_alike)
        return tern__scope_fail(s, "tern_language_model_forward", TERN_E_DTYPE,
                                "kv_cache: it has tokens of %s, and those of this call are %s%s",
                                tern_dtype_name((*at)->view.dtype), tern_dtype_name(x->view.dtype),
                                (*at)->device == x->device ? "" : " on another device");
    tern_error err = {0};
    int64_t shape[] = {cache->batch, cache->max_tokens, x->view.shape[2], x->view.shape[3]};
    tern_tensor *made = kv_memory_new(x->view.dtype, shape, x->device, &err);
    if (!made) return tern__scope_fail_with(s, &err);
    if (cache->length) {
        tern_tensor *from = tern_slice(s, *at, 1, 0, cache->length, 1),
                    *to = tern_slice(s, made, 1, 0, cache->length, 1);
        if (!from || !to || !tern__copy(s, &to->view, &from->view)) {
            tern_tensor_free(made);
            return s->error.code;
        }
    }
    tern_tensor_free(*at);
    *at = made;
    return TERN_OK;
}

int tern__kv_cache_append(tern_kv_cache *cache, int layer, tern_scope *s, tern_tensor *kv[2])
{
    for (int i = 0; i < 2; i++) {
        tern_tensor **memory = &cache->memory[2 * layer + i];
        if (kv_cache_allocate(cache, memory, s, kv[i])) return s->error.code;
        int64_t all = cache->length + kv[i]->view.shape[1];
        tern_tensor *place = tern_slice(s, *memory, 1, cache->length, all, 1);
        if (!place || !tern__copy(s, &place->view, &kv[i]->view)) return s->error.code;
        kv[i] = tern_slice(s, *memory, 1, 0, all, 1);
    }
    return s->error.code;
}
