/* model.h - the networks that `tern bench step` trains, with the shape of their samples and their usual loss.
 * A language model's samples are sequences of size[0] tokens. bench/peers/nets.py has the same in PyTorch. */
#ifndef TERN_CLI_BENCH_MODEL_H
#define TERN_CLI_BENCH_MODEL_H

#include <tern.h>

typedef struct tern__bench_model {
    const char *name;
    long batch;       /* default */
    int64_t channels; /* of a sample; the features of the mlp; 0: a language model's tokens */
    int spatial;      /* the number of spatial dimensions */
    int64_t size[3];  /* of these; default */
    int64_t classes;  /* 1: the labels are a mask; of a language model: the vocabulary */
    bool dense;       /* there is a label per pixel or voxel, not per sample */
    tern_module *(*make)(const struct tern__bench_model *model, tern_rng *rng, tern_error *err);
    tern_tensor *(*loss)(tern_scope *scope, tern_tensor *scores, tern_tensor *labels);
    long layers, width, heads; /* of a transformer; 0: it is none */
    long patch;                /* side of the vision transformer's; 0 */
} tern__bench_model;

static inline bool tern__bench_model_is_language(const tern__bench_model *model)
{
    return !model->channels;
}

/* Returns NULL after a message if there is no model of that name. */
const tern__bench_model *tern__bench_model_find(const char *name);

/* Reads "32x160x160", or "257" for all dimensions, into size[0..spatial). Returns false after a message if
 * `text` is wrong. */
bool tern__bench_model_size(const tern__bench_model *model, const char *text, int64_t *size);

#endif
