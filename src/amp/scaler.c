/* scaler.c - torch's GradScaler: remembers what each optimizer has done since the last update, and keeps the
 * scale, which is an f32 as in torch. */
#include "amp/amp.h"
#include "base/opts.h"
#include "tensor/field.h"

#include <float.h>
#include <math.h>

typedef enum stage { READY, UNSCALED, STEPPED } stage;

typedef struct entry {
    const tern_optim *optim;
    stage stage;
    tern__overflow overflow; /* from UNSCALED on */
} entry;

struct tern_scaler {
    tern_scaler_opts opts;
    tern__loss_scale *scale;
    entry *entries; /* [count] since the last update */
    int count;
    size_t room;
    tern__non_finite non_finite;
};

/* ---- life ---- */

tern_scaler_opts tern_scaler_defaults(void)
{
    return (tern_scaler_opts){.size = sizeof(tern_scaler_opts),
                              .init_scale = 65536,
                              .growth_factor = 2,
                              .backoff_factor = 0.5,
                              .growth_interval = 2000,
                              .enabled = true};
}

static int scaler_check_opts(const tern_scaler_opts *o, tern_error *err)
{
    const char *func = "tern_scaler_new";
    if (!(o->init_scale > 0 && isfinite((float)o->init_scale)))
        return tern__error_set(err, func, TERN_E_RANGE, "scaler: expected an init_scale > 0, got %g",
                               o->init_scale);
    if (!(o->growth_factor > 1))
        return tern__error_set(err, func, TERN_E_RANGE, "scaler: expected a growth_factor > 1, got %g",
                               o->growth_factor);
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "scaler: expected a backoff_factor between 0 and 1, got %g",
                               o->backoff_factor);
    if (o->growth_interval < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "scaler: expected a growth_interval >= 1, got %lld",
                               (long long)o->growth_interval);
    return TERN_OK;
}

static int set_scale(tern_scaler *scaler, double scale, double tracker, tern_error *err)
{
    double rounded = (float)scale;
    const tern__loss_scale values = {.scale = rounded, .inverse = (float)(1 / rounded), .unskipped = tracker};
    return tern__memory_copy(scaler->scale, &values, sizeof(values), err);
}

tern_scaler *tern_scaler_new(const tern_scaler_opts *opts, tern_error *err)
{
    tern_scaler_opts o = tern_scaler_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, __func__, err) ||
        scaler_check_opts(&o, err))
        return NULL;
    tern_scaler *scaler = tern__alloc(sizeof(*scaler), __func__, err);
    if (!scaler) return NULL;
    *scaler = (tern_scaler){.opts = o, .scale = tern__alloc(sizeof(*scaler->scale), __func__, err)};
    if (scaler->scale && set_scale(scaler, o.init_scale, 0, err) == TERN_OK) return scaler;
    tern_scaler_free(scaler);
    return NULL;
}

void tern_scaler_free(tern_scaler *scaler)
{
    if (!scaler) return;
    tern__memory_free(scaler->scale);
    tern__free(scaler->entries);
    tern__free(scaler);
}

double tern_scaler_scale_get(const tern_scaler *scaler)
{
    tern__loss_scale values;
    if (!scaler || !scaler->opts.enabled) return 1;
    return tern__memory_copy(&values, scaler->scale, sizeof(values), NULL) ? NAN : values.scale;
}

/* ---- the optimizers' stages ---- */

static bool scaler_make_room(tern_scaler *scaler, tern_scope *scope, const char *func)
{
    tern_error err = {0};
    if (tern__array_reserve(&scaler->entries, &scaler->room, scaler->count + 1, sizeof(*scaler->entries),
                            func, &err))
        return tern__scope_fail_with(scope, &err), false;
    return true;
}

/* Finds or adds the optimizer's entry; NULL after a failure. */
static entry *entry_of(tern_scaler *scaler, tern_scope *scope, const tern_optim *optim, const char *func)
{
    for (int i = 0; i < scaler->count; i++)
        if (scaler->entries[i].optim == optim) return &scaler->entries[i];
    if (!scaler_make_room(scaler, scope, func)) return NULL;
    entry *e = &scaler->entries[scaler->count++];
    *e = (entry){.optim = optim};
    return e;
}

static bool can_go(tern_scope *scope, const char *func, const tern_scaler *scaler, const tern_optim *optim)
{
    if (!scope || scope->error.code) return false;
    if (!scaler || !optim)
        tern__scope_fail(scope, func, TERN_E_INVALID, "the %s is NULL", scaler ? "optimizer" : "scaler");
    return !scope->error.code;
}

/* ---- a step ---- */

tern_tensor *tern_scaler_scale(tern_scaler *scaler, tern_scope *scope, tern_tensor *loss)
{
    if (!TERN__ENTER(scope, __func__, 1, &loss)) return NULL;
    if (!scaler) {
        tern__scope_fail(scope, __func__, TERN_E_INVALID, "the scaler is NULL");
        return NULL;
    }
    if (!scaler->opts.enabled) return loss;
    tern_error err = {0};
    if (tern__loss_scale_follow(&scaler->scale, loss, &err)) return tern__scope_fail_with(scope, &err), NULL;
    if (scaler->opts.name_non_finite) tern__non_finite_begin(&scaler->non_finite, scope);
    scope->asks = true;
    return tern__loss_scaled(scope, loss, scaler->scale);
}

static bool unscale(tern_scaler *scaler, tern_scope *scope, tern_optim *optim, entry *e)
{
    if (tern__optim_has_grad(optim, TERN_F16)) {
        tern__scope_fail(scope, "tern_scaler_unscale", TERN_E_DTYPE, "Attempting to unscale FP16 gradients.");
        return false;
    }
    e->stage = UNSCALED;
    tern__non_finite_report(&scaler->non_finite, scope);
    return tern__overflow_check(optim, scope, scaler->scale, &e->overflow);
}

void tern_scaler_unscale(tern_scaler *scaler, tern_scope *scope, tern_optim *optim)
{
    if (!can_go(scope, __func__, scaler, optim) || !scaler->opts.enabled) return;
    entry *e = entry_of(scaler, scope, optim, __func__);
    if (!e) return;
    if (e->stage == READY)
        unscale(scaler, scope, optim, e);
    else
        tern__scope_fail(scope, __func__, TERN_E_STATE,
                         e->stage == STEPPED ? "unscale_() is being called after step()."
                                             : "unscale_() has already been called on this optimizer since "
                                               "the last update().");
}

/* Unscales the gradients if that is still to do, and returns the optimizer's entry; NULL after a failure. */
static entry *scaler_prepare(tern_scaler *scaler, tern_scope *scope, tern_optim *optim)
{
    const char *func = "tern_scaler_step";
    entry *e = entry_of(scaler, scope, optim, func);
    if (!e) return NULL;
    if (e->stage == STEPPED) {
        tern__scope_fail(scope, func, TERN_E_STATE,
                         "step() has already been called since the last update().");
        return NULL;
    }
    if (e->stage == READY && !unscale(scaler, scope, optim, e)) return NULL;
    if (e->overflow.any) return e;
    tern__scope_fail(scope, func, TERN_E_STATE, "No inf checks were recorded for this optimizer.");
    return NULL;
}

bool tern_scaler_step(tern_scaler *scaler, tern_scope *scope, tern_optim *optim)
{
    if (!can_go(scope, __func__, scaler, optim)) return false;
    entry *e = scaler->opts.enabled ? scaler_prepare(scaler, scope, optim) : NULL;
    if (scaler->opts.enabled && !e) return false;
    if (e) e->stage = STEPPED;
    if (e && e->overflow.found) tern__skips_vote(optim, scope, optim->skips.bad);
    tern_optim_step(optim, scope);
    return !scope->error.code && !(e && e->overflow.found && !e->overflow.is_on_device);
}

/* ---- the scale ---- */

static tern__scale_attr scaler_attr_of(const tern_scaler_opts *o)
{
    return (tern__scale_attr){.growth = o->growth_factor,
                              .backoff = o->backoff_factor,
                              .interval = (double)o->growth_interval,
                              .most = FLT_MAX,
                              .single = 1};
}

void tern_scaler_update(tern_scaler *scaler, tern_scope *scope)
{
    bool any = false;
    if (!scope || scope->error.code || (scaler && !scaler->opts.enabled)) return;
    for (int i = 0; scaler && i < scaler->count; i++)
        any |= scaler->entries[i].stage != READY && scaler->entries[i].overflow.any;
    if (!any) {
        tern__scope_fail(scope, __func__, scaler ? TERN_E_STATE : TERN_E_INVALID, "%s",
                         scaler ? "No inf checks were recorded prior to update." : "the scaler is NULL");
        return;
    }
    const tern__scale_attr attr = scaler_attr_of(&scaler->opts);
    if (tern__loss_scale_advance(scope, scaler->scale, &attr)) scaler->count = 0;
}

/* ---- state ---- */

tern_object *tern_scaler_state_dict(const tern_scaler *scaler, tern_error *err)
{
    if (!scaler) {
        tern__error_set(err, __func__, TERN_E_INVALID, "the scaler is NULL");
        return NULL;
    }
    const tern_scaler_opts *o = &scaler->opts;
    tern__loss_scale values;
    if (tern__memory_copy(&values, scaler->scale, sizeof(values), err)) return NULL;
    tern_object *state = tern_object_dict(err);
    if (!state || !o->enabled) return state;
    tern_object_set(state, "scale", tern_object_float(values.scale, err), err);
    tern_object_set(state, "growth_factor", tern_object_float(o->growth_factor, err), err);
    tern_object_set(state, "backoff_factor", tern_object_float(o->backoff_factor, err), err);
    tern_object_set(state, "growth_interval", tern_object_int(o->growth_interval, err), err);
    tern_object_set(state, "_growth_tracker", tern_object_int((int64_t)values.unskipped, err), err);
    if (!tern__is_set(err)) return state;
    tern_object_free(state);
    return NULL;
}

static int scaler_read_state(const tern_object *state, tern_scaler_opts *o, double *tracker, tern_error *err)
{
    const char *func = "tern_scaler_state_dict_load";
    double interval, most = 1 << 30;
    int status = tern__field_real(func, state, "state", "scale", FLT_TRUE_MIN, FLT_MAX, &o->init_scale, err);
    if (!status)
        status = tern__field_real(func, state, "state", "growth_factor", 1, FLT_MAX, &o->growth_factor, err);
    if (!status)
        status = tern__field_real(func, state, "state", "backoff_factor", 0, 1, &o->backoff_factor, err);
    if (!status) status = tern__field_real(func, state, "state", "growth_interval", 1, most, &interval, err);
    if (!status) status = tern__field_real(func, state, "state", "_growth_tracker", 0, most, tracker, err);
    if (!status) o->growth_interval = (int64_t)interval;
    return status;
}

int tern_scaler_state_dict_load(tern_scaler *scaler, const tern_object *state, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!scaler) return tern__error_set(err, __func__, TERN_E_INVALID, "the scaler is NULL");
    if (!scaler->opts.enabled) return TERN_OK;
    if (tern_object_kind_get(state) == TERN_OBJECT_DICT && tern_object_count(state) == 0)
        return tern__error_set(
            err, __func__, TERN_E_INVALID,
            "The source state dict is empty, possibly because it was saved from a disabled "
            "instance of GradScaler.");
    tern_scaler_opts o = scaler->opts;
    double tracker;
    int status = scaler_read_state(state, &o, &tracker, err);
    if (!status) status = set_scale(scaler, o.init_scale, tracker, err);
    if (!status) scaler->opts = o;
    return status;
}
