/* state_dict.c - amp's state dict, in apex's format. */
#include "amp/amp.h"
#include "tensor/field.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char load[] = "tern_amp_state_dict_load";

static tern_object *scaler_object(tern__loss_scaler *scaler, int loss_id, tern_error *err)
{
    tern__loss_scale values;
    if (tern__loss_scaler_read(scaler, loss_id, &values, err)) return NULL;
    tern_object *dict = tern_object_dict(err);
    tern_object_set(dict, "loss_scale", tern_object_float(values.scale, err), err);
    tern_object_set(dict, "unskipped", tern_object_int((int64_t)values.unskipped, err), err);
    return dict;
}

tern_object *tern_amp_state_dict(const tern_amp *amp, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (!amp) tern__error_set(e, __func__, TERN_E_INVALID, "the amp is NULL");
    if (!amp || tern__is_set(e)) return NULL;
    tern_object *state = tern_object_dict(e);
    for (int i = 0; i < amp->opts.num_losses; i++) {
        char key[32];
        snprintf(key, sizeof(key), "loss_scaler%d", i);
        tern_object_set(state, key, scaler_object(&amp->scalers[i], i, e), e);
    }
    if (!tern__is_set(e)) return state;
    tern_object_free(state);
    return NULL;
}

/* ---- loading ---- */

/* Entry `index` becomes scaler `index`, whatever number its key has, as in apex. */
static int read_scaler(const tern_object *state, int64_t index, tern__loss_scale *scale, tern_error *err)
{
    const char *key = tern_object_to_string(tern_object_key(state, index));
    const tern_object *item = tern_object_at(state, index);
    char path[64];
    double unskipped;
    if (!key || strncmp(key, "loss_scaler", 11) != 0)
        return tern__error_set(err, load, TERN_E_INVALID,
                               "Error(s) in loading state_dict. Unexpected key(s) in "
                               "state_dict: \"%s\"",
                               key ? key : "(no string)");
    if (!scale) return TERN_OK;
    snprintf(path, sizeof(path), "state[\"%s\"]", key);
    int status = tern__field_real(load, item, path, "loss_scale", DBL_MIN, DBL_MAX, &scale->scale, err);
    if (!status) status = tern__field_real(load, item, path, "unskipped", 0, 1 << 30, &unskipped, err);
    if (status) return status;
    scale->inverse = 1 / scale->scale;
    scale->unskipped = floor(unskipped);
    return TERN_OK;
}

/* Reads into copies, so that a failure leaves the scalers as they were. */
static int scaler_read_all(const tern_object *state, const tern_amp *amp, tern__loss_scale *scales,
                           tern_error *err)
{
    int status = TERN_OK, count = amp->opts.num_losses;
    for (int i = 0; i < count && !status; i++)
        status = tern__memory_copy(&scales[i], amp->scalers[i].scale, sizeof(*scales), err);
    for (int64_t i = 0; i < tern_object_count(state) && !status; i++)
        status = read_scaler(state, i, i < count ? &scales[i] : NULL, err);
    return status;
}

static int scaler_take_all(const tern_amp *amp, const tern__loss_scale *scales, tern_error *err)
{
    int status = TERN_OK;
    for (int i = 0; i < amp->opts.num_losses && !status; i++)
        status = tern__memory_copy(amp->scalers[i].scale, &scales[i], sizeof(*scales), err);
    return status;
}

static void compare_counts(int64_t given, int count)
{
    if (given == count) return;
    tern__log(TERN_LOG_WARN, "amp: the state has %lld loss scalers, %d are used", (long long)given, count);
}

int tern_amp_state_dict_load(tern_amp *amp, const tern_object *state, tern_error *err)
{
    if (tern__is_set(err)) return err->code;
    if (!amp || tern_object_kind_get(state) != TERN_OBJECT_DICT)
        return tern__error_set(err, load, TERN_E_INVALID, "the %s", amp ? "state is no dict" : "amp is NULL");
    tern__loss_scale *scales = tern__alloc((size_t)amp->opts.num_losses * sizeof(*scales), load, err);
    if (!scales) return TERN_E_MEMORY;
    int status = scaler_read_all(state, amp, scales, err);
    if (!status) compare_counts(tern_object_count(state), amp->opts.num_losses);
    if (!status) status = scaler_take_all(amp, scales, err);
    tern__free(scales);
    return status;
}
