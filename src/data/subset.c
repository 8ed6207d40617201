/* subset.c - datasets made of some samples of another: chosen ones, or all that can be read; and the dataset
 * behind subsets and augmentations. */
#include "data/loader/loader.h"

#include "base/base.h"
#include "data/dataset_call.h"

#include <tern/collectives.h>

typedef struct subset {
    tern_dataset base;
    const tern_dataset *source;
    int64_t *indices; /* (length) */
} subset;

static int subset_get(const tern_dataset *base, int64_t epoch, int64_t index, float *x, void *y,
                      tern_error *err)
{
    const subset *s = (const subset *)base;
    return s->source->get(s->source, epoch, s->indices[index], x, y, err);
}

static void subset_free(tern_dataset *base)
{
    subset *s = (subset *)base;
    tern__free(s->indices);
    tern__free(s);
}

const tern_dataset *tern__subset_source(const tern_dataset *dataset, int64_t *index)
{
    if (dataset->get != subset_get) return NULL;
    const subset *s = (const subset *)dataset;
    *index = *index < 0 || *index >= s->base.length ? -1 : s->indices[*index];
    return s->source;
}

static int check_source(const char *func, const tern_dataset *dataset, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (dataset && dataset->get) return TERN_OK;
    return tern__error_set(err, func, TERN_E_INVALID, "expected a dataset with get");
}

/* Allocates a subset with room for `count` indices; the caller fills them in. */
static subset *subset_alloc(const char *func, const tern_dataset *source, int64_t count, tern_error *err)
{
    subset *s = tern__alloc(sizeof(*s), func, err);
    int64_t *indices = tern__alloc((size_t)count * sizeof(*indices), func, err);
    if (!s || !indices) {
        tern__free(s);
        tern__free(indices);
        return NULL;
    }
    *s = (subset){.base = *source, .source = source, .indices = indices};
    s->base.length = count;
    s->base.get = subset_get;
    s->base.free = subset_free;
    return s;
}

tern_dataset *tern_subset_new(const tern_dataset *dataset, const int64_t *indices, int64_t count,
                              tern_error *err)
{
    if (check_source(__func__, dataset, err)) return NULL;
    if (count < 0)
        tern__error_set(err, __func__, TERN_E_RANGE, "expected at least 0 indices, got %lld",
                        (long long)count);
    if (count < 0 || (count && tern__need(indices, "array of indices", __func__, err))) return NULL;
    for (int64_t i = 0; i < count; i++)
        if (indices[i] < 0 || indices[i] >= dataset->length) {
            tern__error_set(err, __func__, TERN_E_RANGE, "indices[%lld] is %lld, expected [0, %lld]",
                            (long long)i, (long long)indices[i], (long long)dataset->length - 1);
            return NULL;
        }
    subset *s = subset_alloc(__func__, dataset, count, err);
    if (!s) return NULL;
    for (int64_t i = 0; i < count; i++) s->indices[i] = indices[i];
    return &s->base;
}

/* ---- readable samples ---- */

double tern__readable_patience_s = TERN__PATIENCE_S;

static size_t subset_sample_bytes(int ndim, const int64_t *shape, size_t element)
{
    for (int d = 0; d < ndim; d++) element *= (size_t)shape[d];
    return element;
}

/* Returns 1 if sample i cannot be got. A lack of memory or descriptors says nothing about the sample. */
static uint8_t is_bad(const tern_dataset *dataset, tern__dataset_call *call, int64_t i, float *x, void *y,
                      tern_error *err)
{
    static const char func[] = "tern_readable_new";
    tern_error why = {0};
    tern__dataset_call_begin(call, TERN__DATASET_GET, -1, i);
    int status = dataset->get(dataset, 0, i, x, y, &why);
    tern__dataset_call_end(call);
    if (!status && !tern__label_check(func, dataset, y, &why)) return 0;
    if (why.code == TERN_E_MEMORY || tern__is_shortage(why.native)) {
        tern__error_set(err, func, why.code, "sample %lld: %s", (long long)i, why.text);
        err->native = why.native;
    } else {
        tern__log(TERN_LOG_WARN, "leaving out sample %lld: %s", (long long)i, why.text);
    }
    return 1;
}

/* Sets bad[i] = 1 for each sample that this rank tries and cannot get. */
static void look_through(const tern_dataset *dataset, tern_group *group, uint8_t *bad, tern_error *err)
{
    static const char func[] = "tern_readable_new";
    int ranks = group ? tern_group_size(group) : 1, rank = group ? tern_group_rank(group) : 0;
    size_t element = tern_dtype_bytes(tern__target_dtype(dataset));
    size_t value = tern_dtype_bytes(dataset->dtype);
    float *x = tern__alloc(subset_sample_bytes(dataset->ndim, dataset->shape, value), func, err);
    void *y =
        tern__alloc(subset_sample_bytes(dataset->target_ndim, dataset->target_shape, element), func, err);
    tern__dataset_call call = {0};
    tern__dataset_watch watch;
    tern__dataset_watch_start(&watch, &call, tern__readable_patience_s);
    for (int64_t i = rank; !tern__is_set(err) && i < dataset->length; i += ranks)
        bad[i] = is_bad(dataset, &call, i, x, y, err);
    tern__dataset_watch_stop(&watch);
    tern__free(x);
    tern__free(y);
}

static int64_t count_bad(const uint8_t *bad, int64_t length)
{
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) count += bad[i];
    return count;
}

static tern_dataset *leave_out(const tern_dataset *dataset, const uint8_t *bad, tern_error *err)
{
    static const char func[] = "tern_readable_new";
    int64_t left = dataset->length - count_bad(bad, dataset->length), count = 0;
    if (left == 0) {
        tern__error_set(err, func, TERN_E_IO, "none of %lld samples can be read", (long long)dataset->length);
        return NULL;
    }
    subset *s = subset_alloc(func, dataset, left, err);
    for (int64_t i = 0; s && i < dataset->length; i++)
        if (!bad[i]) s->indices[count++] = i;
    return s ? &s->base : NULL;
}

/* A rank that has failed calls the all_reduce all the same: with an error set, it ends the group for all. */
tern_dataset *tern_readable_new(const tern_dataset *dataset, tern_group *group, tern_error *err)
{
    tern_error own = {0};
    if (!err) err = &own;
    if (check_source(__func__, dataset, err)) return NULL;
    tern_dataset *readable = NULL;
    size_t length = (size_t)dataset->length;
    uint8_t *bad = tern__alloc(length, __func__, err);
    for (size_t i = 0; bad && i < length; i++) bad[i] = 0;
    if (bad) look_through(dataset, group, bad, err);
    if (group) tern_all_reduce(group, bad, length, TERN_U8, TERN_MAX, err);
    if (!tern__is_set(err)) readable = leave_out(dataset, bad, err);
    tern__free(bad);
    return readable;
}

/* ---- a dataset of any kind ---- */

void tern_dataset_free(tern_dataset *dataset)
{
    if (dataset && dataset->free) dataset->free(dataset);
}

const tern_dataset *tern__dataset_origin(const tern_dataset *dataset, int64_t *index)
{
    const tern_dataset *source = dataset;
    while (source) {
        dataset = source;
        source = tern__subset_source(dataset, index);
        if (!source) source = tern__augment_source(dataset);
    }
    return dataset;
}
