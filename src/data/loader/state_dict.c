/* state_dict.c - saves and loads a loader's position, counted in samples of all ranks, so that another number
 * of ranks can resume from it. */
#include "base/base.h"
#include "data/loader/loader.h"
#include "data/loader/sampler.h"
#include "tensor/field.h"

#include <tern/state_dict.h>

tern_object *tern_loader_state_dict(const tern_loader *loader, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return NULL;
    if (!loader) {
        tern__error_set(e, __func__, TERN_E_INVALID, "the loader is NULL");
        return NULL;
    }
    const tern_sampler *sampler = tern__loader_sampler(loader);
    tern__loader_place place = tern__loader_place_get(loader);
    int64_t position = tern__sampler_position(sampler, place.samples);
    tern_object *state = tern_object_dict(e);
    tern_object_set(state, "epoch", tern_object_int(place.epoch, e), e);
    tern_object_set(state, "position", tern_object_int(position, e), e);
    tern_object_set(state, "length", tern_object_int(tern__sampler_span(sampler), e), e);
    tern_object_set(state, "seed", tern_object_int((int64_t)tern__sampler_seed_get(sampler), e), e);
    tern_object_set(state, "shuffle", tern_object_bool(tern__sampler_shuffles(sampler), e), e);
    if (!tern__is_set(e)) return state;
    tern_object_free(state);
    return NULL;
}

typedef struct loader_state {
    int64_t epoch, position, length, seed;
    bool shuffle;
} loader_state;

static int loader_read_state(const char *func, const tern_object *state, loader_state *out, tern_error *err)
{
    int status = tern__field_int(func, state, "epoch", INT64_MIN, INT64_MAX, &out->epoch, err);
    if (!status) status = tern__field_int(func, state, "position", 0, INT64_MAX, &out->position, err);
    if (!status) status = tern__field_int(func, state, "length", 0, INT64_MAX, &out->length, err);
    if (!status) status = tern__field_int(func, state, "seed", INT64_MIN, INT64_MAX, &out->seed, err);
    if (!status) status = tern__field_bool(func, state, "shuffle", &out->shuffle, err);
    return status;
}

static const char *order_name(bool shuffle)
{
    return shuffle ? "a shuffled" : "its own";
}

int tern_loader_state_dict_load(tern_loader *loader, const tern_object *state, tern_error *err)
{
    loader_state s;
    if (tern__is_set(err)) return err->code;
    if (!loader) return tern__error_set(err, __func__, TERN_E_INVALID, "the loader is NULL");
    tern_sampler *sampler = tern__loader_sampler(loader);
    bool shuffles = tern__sampler_shuffles(sampler);
    int status = loader_read_state(__func__, state, &s, err);
    if (status) return status;
    if (s.length != tern__sampler_span(sampler) || s.shuffle != shuffles)
        return tern__error_set(
            err, __func__, TERN_E_INVALID,
            "the state was saved for %lld samples in %s order, but this loader has %lld in %s order",
            (long long)s.length, order_name(s.shuffle), (long long)tern__sampler_span(sampler),
            order_name(shuffles));
    tern__sampler_seed_set(sampler, (uint64_t)s.seed);
    tern__loader_place_set(loader, (tern__loader_place){s.epoch, tern__sampler_place(sampler, s.position)});
    return TERN_OK;
}
