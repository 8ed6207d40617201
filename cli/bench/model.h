/* model.h - what `tern bench step` trains: nets, samples for them, and the loss that is usual with
 * them. bench/peers/nets.py has the same in PyTorch. */
#ifndef TERN_CLI_BENCH_MODEL_H
#define TERN_CLI_BENCH_MODEL_H

#include <tern.h>

typedef struct tern__bench_model {
    const char *name;
    long batch;       /* where none is asked for */
    int64_t channels; /* of a sample; for the mlp its features */
    int spatial;      /* a sample's other dimensions */
    int64_t size[3];  /* of these, where none is asked for */
    int64_t classes;  /* 1: the labels are a mask */
    bool dense;       /* each pixel or voxel has a label, not each sample */
    tern_module *(*make)(const struct tern__bench_model *model, tern_rng *rng, tern_error *err);
    tern_tensor *(*loss)(tern_scope *scope, tern_tensor *scores, tern_tensor *labels);
} tern__bench_model;

/* NULL: there is none, and who asked for it has been told. */
const tern__bench_model *tern__bench_model_find(const char *name);

/* "257" for all alike, or "32x160x160", into size[0..spatial). False: it is something else, and who asked has
 * been told. */
bool tern__bench_model_size(const tern__bench_model *model, const char *text, int64_t *size);

#endif
