/* backward.c - the backward of apex's scale_loss, with the work of its context manager before and after.
 *
 * The gradients may hold values of another loss or microbatch already, with another scale. They are first
 * brought to the scale of this loss, so that backward can add to them, and afterwards all are divided by it.
 * Scales are powers of two by default, so this rounds nothing. (apex stashes the old gradients instead and
 * adds them to the new ones, which takes memory and a pass.) If the step is to be skipped anyway, the old
 * gradients are dropped, so that an overflow of one loss is not counted again for the next. */
#include "amp/amp.h"
#include "base/opts.h"
#include "kernels/pointwise.h"
#include "tensor/number.h"

#include <tern/comm.h>

#include <math.h>
#include <stdio.h>

static const char func[] = "tern_amp_backward";

tern_amp_backward_opts tern_amp_backward_defaults(void)
{
    return (tern_amp_backward_opts){.size = sizeof(tern_amp_backward_opts)};
}

/* ---- the optimizers of a loss ---- */

typedef struct pass {
    tern_amp *amp;
    tern_scope *scope;
    const tern_amp_backward_opts *opts;
    tern__loss_scaler *scaler;
    bool found; /* gradients overflowed, or only the device knows */
} pass;

typedef bool (*visit_fn)(pass *p, tern_optim *optim);

static bool each_optim(pass *p, visit_fn visit)
{
    for (int i = 0; p->opts->optims && i < p->opts->optim_count; i++)
        if (!visit(p, p->opts->optims[i])) return false;
    for (int i = 0; !p->opts->optims && i < p->amp->model_count; i++) {
        const tern__seal *seal = p->amp->models[i]->tree->seal;
        for (tern_optim *optim = seal ? seal->optims : NULL; optim; optim = optim->next)
            if (!visit(p, optim)) return false;
    }
    return true;
}

/* ---- before: older gradients ---- */

/* Returns the address of the factor that brings the older gradients to this scale; NULL after a failure. */
static const double *factor_of(const pass *p, tern_optim *optim)
{
    const double *scale = &p->scaler->scale->scale;
    if (!optim->is_scaled) return scale;
    tern__view new = tern__number_view(scale), old = tern__number_view(optim->skips.scale),
               factor = tern__number_view(optim->skips.factor);
    tern__call call = {.kernel = TERN__DIV, .in = {&new, &old}, .out = {&factor}};
    tern__go_to(p->scope, optim->skips.factor);
    return tern__run(p->scope, &call) ? optim->skips.factor : NULL;
}

static bool amp_backward_prepare(pass *p, tern_optim *optim)
{
    if (optim->skip && !tern__number_is_on_device(optim->skips.verdict)) tern__optim_forget(optim);
    const double *factor = factor_of(p, optim);
    return factor && tern__optim_rescale(optim, p->scope, factor);
}

/* With delay_unscale the gradients stay scaled: remembers by how much. */
static bool keep_scale(pass *p, tern_optim *optim)
{
    tern_error err = {0};
    if (!tern__skips_begin(optim, p->scope)) return false;
    optim->is_scaled = true;
    int status = tern__memory_copy(optim->skips.scale, &p->scaler->scale->scale, sizeof(double), &err);
    if (status) tern__scope_fail_with(p->scope, &err);
    return !status;
}

/* ---- after ---- */

static bool unscale(pass *p, tern_optim *optim)
{
    tern__overflow overflow;
    optim->is_scaled = false;
    if (!p->scaler->dynamic) return tern__optim_rescale(optim, p->scope, &p->scaler->scale->inverse);
    if (!tern__overflow_check(optim, p->scope, p->scaler->scale, &overflow)) return false;
    p->found |= overflow.found;
    return true;
}

static bool skip_next(pass *p, tern_optim *optim)
{
    return tern__skips_vote(optim, p->scope, &p->scaler->scale->found);
}

static void amp_backward_report(const tern__loss_scaler *scaler, int loss_id, const tern__loss_scale *values)
{
    double more = values->overflows - scaler->told;
    char times[32] = "";
    if (more > 1) snprintf(times, sizeof(times), " (%.0f times)", more);
    tern__log(TERN_LOG_INFO, "Gradient overflow.  Skipping step%s, loss scaler %d reducing loss scale to %g",
              times, loss_id, values->scale);
}

int tern__loss_scaler_read(tern__loss_scaler *scaler, int loss_id, tern__loss_scale *values, tern_error *err)
{
    int status = tern__memory_copy(values, scaler->scale, sizeof(*values), err);
    if (status) return status;
    if (values->overflows > scaler->told && !scaler->is_silent) amp_backward_report(scaler, loss_id, values);
    scaler->told = values->overflows;
    return TERN_OK;
}

/* apex's LossScaler.update_scale. */
static bool update_scale(pass *p)
{
    const tern_group *group = p->scope->group;
    const tern_amp_opts *o = &p->amp->opts;
    tern__loss_scaler *scaler = p->scaler;
    const tern__scale_attr attr = {.growth = 2,
                                   .backoff = 0.5,
                                   .interval = scaler->dynamic ? 2000 : INFINITY,
                                   .least = o->min_loss_scale,
                                   .most = o->max_loss_scale};
    tern__loss_scale values;
    scaler->is_silent = group && tern_group_rank(group) > 0;
    if (p->found && !each_optim(p, skip_next)) return false;
    if (!tern__loss_scale_advance(p->scope, scaler->scale, &attr)) return false;
    return tern__number_is_on_device(scaler->scale) ||
           !tern__loss_scaler_read(scaler, p->opts->loss_id, &values, NULL);
}

/* ---- all of it ---- */

static int go_back(const pass *p, tern_tensor *loss)
{
    tern__non_finite *names = p->amp->opts.name_non_finite ? &p->amp->non_finite : NULL;
    if (names) tern__non_finite_begin(names, p->scope);
    int status = tern_backward(p->scope, loss);
    if (names) tern__non_finite_report(names, p->scope);
    return status;
}

static int amp_backward_run(pass *p, tern_tensor *loss)
{
    tern_scope *scope = p->scope;
    if (!each_optim(p, amp_backward_prepare)) return scope->error.code;
    scope->asks = p->scaler->dynamic;
    tern_tensor *scaled = tern__loss_scaled(scope, loss, p->scaler->scale);
    int status = scaled ? go_back(p, scaled) : scope->error.code;
    if (status || p->opts->delay_unscale) {
        each_optim(p, keep_scale);
        return scope->error.code;
    }
    if (!each_optim(p, unscale) || !update_scale(p)) return scope->error.code;
    return TERN_OK;
}

/* apex does nothing, either, with a constant scale of 1 and without masters. */
static bool is_plain(const tern_amp *amp, const tern__loss_scaler *scaler)
{
    return !amp->opts.enabled || (!amp->opts.master_weights && !scaler->dynamic && scaler->scale->scale == 1);
}

static int amp_backward_check(const tern_amp *amp, const tern_amp_backward_opts *o, tern_error *err)
{
    if (o->loss_id < 0 || o->loss_id >= amp->opts.num_losses)
        return tern__error_set(err, func, TERN_E_RANGE, "loss_id is %d, expected one below num_losses, %d",
                               o->loss_id, amp->opts.num_losses);
    for (int i = 0; o->optims && i < o->optim_count; i++)
        if (!o->optims[i]) return tern__error_set(err, func, TERN_E_INVALID, "optimizer %d is NULL", i);
    return TERN_OK;
}

int tern_amp_backward(tern_amp *amp, tern_scope *scope, tern_tensor *loss, const tern_amp_backward_opts *opts)
{
    tern_error err = {0};
    tern_amp_backward_opts o = tern_amp_backward_defaults();
    if (!TERN__ENTER(scope, func, 1, &loss)) return tern_scope_error(scope)->code;
    if (!amp) return tern__scope_fail(scope, func, TERN_E_INVALID, "the amp is NULL");
    if (tern__opts_read(&o, sizeof(o), opts, func, &err) || amp_backward_check(amp, &o, &err))
        return tern__scope_fail_with(scope, &err);
    pass p = {.amp = amp, .scope = scope, .opts = &o, .scaler = &amp->scalers[o.loss_id]};
    if (p.scaler->dynamic && tern__loss_scale_follow(&p.scaler->scale, loss, &err))
        return tern__scope_fail_with(scope, &err);
    return is_plain(amp, p.scaler) ? go_back(&p, loss) : amp_backward_run(&p, loss);
}

double tern_amp_loss_scale_get(const tern_amp *amp, int loss_id)
{
    bool has = amp && loss_id >= 0 && loss_id < amp->opts.num_losses;
    tern__loss_scale values;
    if (has && !amp->opts.enabled) return 1;
    if (!has || tern__loss_scaler_read(&amp->scalers[loss_id], loss_id, &values, NULL)) return NAN;
    return values.scale;
}
