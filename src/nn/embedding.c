/* embedding.c - torch.nn.Embedding: a table of vectors, one for each index. */
#include "base/opts.h"
#include "nn/init.h"
#include "nn/nn.h"

#include <string.h>

typedef struct embedding {
    tern_module base;
    tern_tensor *weight;
    tern_embedding_opts opts;
} embedding;

static tern_tensor *embedding_forward(tern_module *module, tern_scope *scope, tern_tensor *index)
{
    embedding *self = (embedding *)module;
    return tern_embedding(scope, index, self->weight, &self->opts);
}

static int embedding_check(int64_t count, int64_t size, const tern_embedding_opts *o, tern_error *err)
{
    if (count < 1 || size < 1)
        return tern__error_set(err, "tern_embedding_new", TERN_E_RANGE,
                               "embedding: expected at least 1 row and 1 feature, got %lld and %lld",
                               (long long)count, (long long)size);
    if (o->padding_idx >= -1 && o->padding_idx < count) return TERN_OK;
    return tern__error_set(err, "tern_embedding_new", TERN_E_RANGE,
                           "embedding: expected a padding_idx in [0, %lld) or -1, got %lld", (long long)count,
                           (long long)o->padding_idx);
}

tern_module *tern__embedding_new_zeros(int64_t count, int64_t size, const tern_embedding_opts *opts,
                                       tern_error *err)
{
    tern_embedding_opts o = tern_embedding_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, "tern_embedding_new", err)) return NULL;
    if (embedding_check(count, size, &o, err)) return NULL;
    embedding *self = tern__module_new(sizeof(*self), "embedding", embedding_forward, err);
    if (!self) return NULL;
    self->opts = o;
    tern__options_add(&self->base, "padding_idx", 1, &o.padding_idx);
    self->weight = tern_parameter_add(&self->base, "weight", TERN_F32, 2, (int64_t[]){count, size}, err);
    if (self->weight) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_embedding_new(int64_t count, int64_t size, const tern_embedding_opts *opts, tern_rng *rng,
                                tern_error *err)
{
    embedding *self = (embedding *)tern__embedding_new_zeros(count, size, opts, err);
    if (!self) return NULL;
    if (!rng) return &self->base;
    if (tern__init_normal(self->weight, 0, 1, rng, __func__, err)) {
        tern_module_free(&self->base);
        return NULL;
    }
    float *values = self->weight->view.data;
    int64_t padding = self->opts.padding_idx;
    if (padding >= 0) memset(values + padding * size, 0, (size_t)size * sizeof(*values));
    return &self->base;
}
