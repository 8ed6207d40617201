/* backward.c - apex's scale_loss: what its context manager does before and after the scaled backward.
 *
 * A gradient range may hold gradients already, of another loss or microbatch, with another scale. They are
 * brought to the scale of the coming ones, so that backward can add to them, and all are divided by it
 * afterwards; scales are powers of two by default, so that this rounds nothing. (apex puts the old gradients
 * aside instead and adds them to the new ones, which takes memory and a pass.) If a step is to be skipped
 * anyway, what there is is worthless, and forgotten, so that an overflow of one loss is not taken for one of
 * the next. */
#include "amp/amp.h"
#include "base/opts.h"

#include <tern/comm.h>

#include <math.h>

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
    bool found;
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

/* ---- before: gradients that are there already ---- */

static bool prepare(pass *p, tern_optim *optim)
{
    double factor = p->scaler->scale / optim->grad_scale;
    if (optim->skip) tern__optim_forget(optim);
    optim->grad_scale = p->scaler->scale;
    return tern__optim_rescale(optim, p->scope, factor);
}

/* ---- after ---- */

static bool unscale(pass *p, tern_optim *optim)
{
    tern__overflow overflow;
    double factor = 1 / optim->grad_scale;
    optim->grad_scale = 1;
    if (!p->scaler->dynamic) return tern__optim_rescale(optim, p->scope, factor);
    if (!tern__overflow_check(optim, p->scope, factor, &overflow)) return false;
    p->found |= overflow.found;
    return true;
}

static bool skip_next(pass *p, tern_optim *optim)
{
    (void)p;
    optim->skip = true;
    return true;
}

static void report(const pass *p)
{
    const tern_group *group = p->scope->group;
    if (group && tern_group_rank(group) > 0) return;
    tern__log(TERN_LOG_INFO, "Gradient overflow.  Skipping step, loss scaler %d reducing loss scale to %g",
              p->opts->loss_id, p->scaler->scale);
}

/* apex's LossScaler.update_scale. */
static void update_scale(pass *p)
{
    const tern_amp_opts *o = &p->amp->opts;
    tern__loss_scaler *scaler = p->scaler;
    enum { window = 2000 };
    if (p->found) {
        scaler->scale = TERN__MAX(o->min_loss_scale, scaler->scale / 2);
        scaler->unskipped = 0;
        each_optim(p, skip_next);
        report(p);
    } else {
        scaler->unskipped++;
    }
    if (scaler->unskipped != window || !scaler->dynamic) return;
    scaler->scale = TERN__MIN(o->max_loss_scale, scaler->scale * 2);
    scaler->unskipped = 0;
}

/* ---- the whole ---- */

static int go_back(const pass *p, tern_tensor *loss)
{
    tern__non_finite *names = p->amp->opts.name_non_finite ? &p->amp->non_finite : NULL;
    if (names) tern__non_finite_begin(names, p->scope);
    int status = tern_backward(p->scope, loss);
    if (names) tern__non_finite_report(names, p->scope);
    return status;
}

static int run(pass *p, tern_tensor *loss)
{
    tern_scope *scope = p->scope;
    if (!each_optim(p, prepare)) return scope->error.code;
    int status = go_back(p, tern__loss_scale(scope, loss, p->scaler->scale));
    if (status || p->opts->delay_unscale) return status;
    if (!each_optim(p, unscale)) return scope->error.code;
    update_scale(p);
    return TERN_OK;
}

/* Without masters and with a constant scale of 1 apex does nothing. */
static bool is_plain(const tern_amp *amp, const tern__loss_scaler *scaler)
{
    return !amp->opts.enabled || (!amp->opts.master_weights && !scaler->dynamic && scaler->scale == 1);
}

static int check(const tern_amp *amp, const tern_amp_backward_opts *o, tern_error *err)
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
    if (!TERN__ENTER(scope, func, 1, &loss)) return scope->error.code;
    if (!amp) return tern__scope_fail(scope, func, TERN_E_INVALID, "the amp is NULL");
    if (tern__opts_read(&o, sizeof(o), opts, func, &err) || check(amp, &o, &err))
        return tern__scope_fail_with(scope, &err);
    pass p = {.amp = amp, .scope = scope, .opts = &o, .scaler = &amp->scalers[o.loss_id]};
    return is_plain(amp, p.scaler) ? go_back(&p, loss) : run(&p, loss);
}

double tern_amp_loss_scale_get(const tern_amp *amp, int loss_id)
{
    bool has = amp && loss_id >= 0 && loss_id < amp->opts.num_losses;
    return has ? amp->scalers[loss_id].scale : NAN;
}
