/* levels.c - apex's opt levels: their options, and how they prepare a model. */
#include "amp/amp.h"
#include "amp/autocast.h"
#include "base/opts.h"

#include <math.h>

tern_amp_opts tern_amp_defaults(tern_opt_level level)
{
    bool casts = level == TERN_O2 || level == TERN_O3;
    bool dynamic = level == TERN_O1 || level == TERN_O2;
    return (tern_amp_opts){.size = sizeof(tern_amp_opts),
                           .level = level,
                           .enabled = true,
                           .half_type = TERN_BF16,
                           .cast_model = casts,
                           .patch_functions = level == TERN_O1,
                           .keep_batch_norm_f32 = level == TERN_O2,
                           .master_weights = level == TERN_O2,
                           .gradients_f32 = level == TERN_O2,
                           .cast_model_outputs = casts ? TERN_F32 : TERN_DTYPE_NONE,
                           .loss_scale = dynamic ? TERN_LOSS_SCALE_DYNAMIC : 1,
                           .max_loss_scale = 0x1p24,
                           .num_losses = 1};
}

/* ---- options ---- */

static int opt_level_check_opts(const tern_amp_opts *o, tern_error *err)
{
    const char *func = "tern_amp_new";
    if ((unsigned)o->level > TERN_O3)
        return tern__error_set(err, func, TERN_E_INVALID,
                               "amp: unexpected optimization level %d; options are O0, O1, O2, O3",
                               (int)o->level);
    if (!tern__dtype_is_half(o->half_type))
        return tern__error_set(err, func, TERN_E_DTYPE, "amp: expected a half_type of bf16 or f16, got %s",
                               tern_dtype_name(o->half_type));
    bool output =
        o->cast_model_outputs == TERN_DTYPE_NONE ||
        ((unsigned)o->cast_model_outputs < TERN_DTYPE_COUNT && tern__dtype_is_float(o->cast_model_outputs));
    if (!output)
        return tern__error_set(err, func, TERN_E_DTYPE,
                               "amp: expected cast_model_outputs of floating point or TERN_DTYPE_NONE");
    if (!(o->loss_scale >= 0 && isfinite(o->loss_scale)) || !(o->min_loss_scale >= 0) ||
        !(o->max_loss_scale >= TERN__MAX(o->min_loss_scale, 1)))
        return tern__error_set(
            err, func, TERN_E_RANGE,
            "amp: expected loss_scale and min_loss_scale >= 0 and max_loss_scale >= 1 and >= "
            "min_loss_scale, got %g, %g and %g",
            o->loss_scale, o->min_loss_scale, o->max_loss_scale);
    if (o->num_losses < 1)
        return tern__error_set(err, func, TERN_E_RANGE, "amp: expected num_losses >= 1, got %d",
                               o->num_losses);
    return TERN_OK;
}

/* Options that the caller leaves out take the defaults of the caller's level. */
static int opt_level_read_opts(tern_amp_opts *o, const tern_amp_opts *user, tern_error *err)
{
    const char *func = "tern_amp_new";
    *o = tern_amp_defaults(TERN_O1);
    int status = tern__opts_read(o, sizeof(*o), user, func, err);
    if (status) return status;
    *o = tern_amp_defaults(o->level);
    tern__opts_read(o, sizeof(*o), user, func, err);
    return opt_level_check_opts(o, err);
}

/* ---- models ---- */

static int check_model(const char *func, tern_module *model, tern_error *err)
{
    if (!model || !model->tree)
        return tern__error_set(err, func, TERN_E_INVALID, "the model is NULL or was never made");
    if (model->tree->parent)
        return tern__error_set(err, func, TERN_E_STATE, "%s is part of another module: give amp the whole",
                               model->kind);
    const tern__seal *seal = model->tree->seal;
    const char *has = model->tree->precision.set ? "amp"
                      : seal && seal->attached   ? "a ddp"
                      : seal                     ? "an optimizer or made a backward"
                                                 : NULL;
    if (!has) return TERN_OK;
    return tern__error_set(err, func, TERN_E_STATE, "%s already has %s: " TERN__SETUP_ORDER, model->kind,
                           has);
}

/* Adds the options to the model's description, which tern_ddp_new compares between ranks. */
static void opt_level_describe(tern_module *model, const tern_amp_opts *o)
{
    const int64_t casts = o->cast_model ? 16 : 32, patched = o->patch_functions;
    tern__options_add(model, o->half_type == TERN_BF16 ? "amp_bf16" : "amp_f16", 1, &casts);
    if (o->patch_functions) tern__options_add(model, "patch_functions", 1, &patched);
    if (o->gradients_f32) tern__options_add(model, "gradients_f32", 1, &patched);
}

static int opt_level_prepare(tern_module *model, const tern_amp_opts *o, tern_error *err)
{
    bool casts = o->cast_model || o->cast_model_outputs != TERN_DTYPE_NONE;
    model->tree->precision = (tern__precision){
        .set = true,
        .policy = o->patch_functions ? tern__autocast_policy(TERN__AUTOCAST_APEX, o->half_type) : NULL,
        .casts = casts,
        .input = o->cast_model ? o->half_type : TERN_DTYPE_NONE,
        .output = o->cast_model_outputs,
        .masters = o->master_weights,
        .gradients_f32 = o->gradients_f32,
    };
    opt_level_describe(model, o);
    return o->cast_model ? tern__module_cast(model, o->half_type, o->keep_batch_norm_f32, err) : TERN_OK;
}

static int opt_level_add(const char *func, tern_amp *amp, tern_module *model, tern_error *err)
{
    size_t size = sizeof(*amp->models), count = (size_t)amp->model_count;
    int status = check_model(func, model, err);
    if (status) return status;
    void *grown = tern__realloc_array(amp->models, count * size, (count + 1) * size, func, err);
    if (!grown) return TERN_E_MEMORY;
    amp->models = grown;
    amp->models[amp->model_count++] = model;
    if (amp->opts.enabled) return opt_level_prepare(model, &amp->opts, err);
    model->tree->precision.set = true;
    return TERN_OK;
}

/* ---- life ---- */

static int open_scaler(tern__loss_scaler *scaler, const tern_amp_opts *o, tern_error *err)
{
    scaler->dynamic = o->loss_scale == TERN_LOSS_SCALE_DYNAMIC;
    double scale = scaler->dynamic ? TERN__MIN(o->max_loss_scale, 0x1p16) : o->loss_scale;
    scaler->scale = tern__alloc(sizeof(*scaler->scale), "tern_amp_new", err);
    if (!scaler->scale) return TERN_E_MEMORY;
    *scaler->scale = (tern__loss_scale){.scale = scale, .inverse = 1 / scale};
    return TERN_OK;
}

static int open_scalers(tern_amp *amp, tern_error *err)
{
    int status = TERN_OK;
    amp->scalers = tern__alloc((size_t)amp->opts.num_losses * sizeof(*amp->scalers), "tern_amp_new", err);
    if (!amp->scalers) return TERN_E_MEMORY;
    for (int i = 0; i < amp->opts.num_losses && !status; i++)
        status = open_scaler(&amp->scalers[i], &amp->opts, err);
    return status;
}

tern_amp *tern_amp_new(tern_module *model, const tern_amp_opts *opts, tern_error *err)
{
    tern_amp_opts o;
    if (tern__is_set(err) || opt_level_read_opts(&o, opts, err)) return NULL;
    tern_amp *amp = tern__alloc(sizeof(*amp), __func__, err);
    if (!amp) return NULL;
    *amp = (tern_amp){.opts = o};
    if (open_scalers(amp, err) == TERN_OK && opt_level_add(__func__, amp, model, err) == TERN_OK) return amp;
    tern_amp_free(amp);
    return NULL;
}

int tern_amp_add(tern_amp *amp, tern_module *model, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!amp) return tern__error_set(err, __func__, TERN_E_INVALID, "the amp is NULL");
    return opt_level_add(__func__, amp, model, err);
}

void tern_amp_free(tern_amp *amp)
{
    if (!amp) return;
    for (int i = 0; amp->scalers && i < amp->opts.num_losses; i++) tern__memory_free(amp->scalers[i].scale);
    tern__free(amp->scalers);
    tern__free(amp->models);
    tern__free(amp);
}
