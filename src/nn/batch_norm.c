/* batch_norm.c - torch.nn.BatchNorm1d to BatchNorm3d, and SyncBatchNorm over a group. */
#include "nn/batch_norm.h"
#include "base/opts.h"
#include "tensor/host.h"

typedef struct kind {
    const char *func, *name, *expected; /* "(N, C, H, W)" */
    int ndim_min, ndim_max;
} kind;

typedef struct batch_norm {
    tern_module base;
    const kind *kind;
    tern_tensor *weight, *bias;              /* NULL if not affine              */
    tern_tensor *running_mean, *running_var; /* NULL if they are not tracked    */
    tern_tensor *num_batches_tracked;
    double eps, momentum;
    bool cumulative, is_updated; /* by tern_update_bn: a cumulative average, too */
    tern__batch_norm_sync sync;  /* all zero: not synchronised */
} batch_norm;

/* Returns the counter of batches so far, or NULL. */
static int64_t *tracked(const batch_norm *self)
{
    return self->num_batches_tracked ? self->num_batches_tracked->view.data : NULL;
}

/* Returns the next batch's share in the running statistics; in a cumulative average, 1 / (batches). */
static double momentum_of(const batch_norm *self)
{
    return (self->cumulative || self->is_updated) && tracked(self) ? 1 / (double)(*tracked(self) + 1)
                                                                   : self->momentum;
}

/* True if it is synchronised with other ranks. */
static bool is_synced(const batch_norm *self)
{
    return self->sync.group && tern_group_size(self->sync.group) > 1;
}

static tern_tensor *batch_norm_run(batch_norm *self, tern_scope *scope, tern_tensor *x, tern_tensor *residual,
                                   bool relu)
{
    char shape[TERN__SHAPE_TEXT];
    if (x->view.ndim < self->kind->ndim_min || x->view.ndim > self->kind->ndim_max) {
        tern__scope_fail(scope, "tern_batch_norm_act_forward", TERN_E_SHAPE, "%s: expected %s, got %s",
                         self->base.kind, self->kind->expected, tern__shape_text(&x->view, shape));
        return NULL;
    }
    tern_batch_norm_act_opts opts = tern_batch_norm_act_defaults();
    opts.training = self->base.training || !self->running_mean;
    opts.eps = self->eps;
    opts.momentum = momentum_of(self);
    opts.relu = relu;
    bool moves = opts.training && !scope->role.keeps_buffers, reads = !opts.training;
    const tern__batch_norm_tensors tensors = {.x = x,
                                              .running_mean = moves || reads ? self->running_mean : NULL,
                                              .running_var = moves || reads ? self->running_var : NULL,
                                              .weight = self->weight,
                                              .bias = self->bias,
                                              .residual = residual};
    bool is_joint = self->base.training && is_synced(self);
    tern_tensor *y = tern__batch_norm_act(scope, &tensors, &opts, is_joint ? &self->sync : NULL);
    if (y && self->base.training && !scope->role.keeps_buffers && tracked(self)) ++*tracked(self);
    return y;
}

static tern_tensor *batch_norm_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return batch_norm_run((batch_norm *)module, scope, x, NULL, false);
}

static tern_tensor *with_relu(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return batch_norm_run((batch_norm *)module, scope, x, NULL, true);
}

tern_tensor *tern_batch_norm_act_forward(tern_module *module, tern_scope *scope, tern_tensor *x,
                                         tern_tensor *residual, bool relu)
{
    if (!module || !TERN__ENTER(scope, __func__, 1, &x)) return NULL;
    if (module->forward != batch_norm_forward) {
        tern__scope_fail(scope, __func__, TERN_E_INVALID, "expected a batch norm, got %s", module->kind);
        return NULL;
    }
    int64_t mark = tern_scope_mark(scope);
    return tern__module_return(module, scope, mark,
                               batch_norm_run((batch_norm *)module, scope, x, residual, relu));
}

bool tern__is_batch_norm(const tern_module *module)
{
    return module->forward == batch_norm_forward;
}

/* ---- synchronisation ---- */

int tern__batch_norm_sync_count(const tern_module *module)
{
    int count = module->forward == batch_norm_forward && ((const batch_norm *)module)->sync.group;
    for (const tern__module_tree *child = module->tree->children; child; child = child->next)
        count += tern__batch_norm_sync_count(child->module);
    return count;
}

void tern__batch_norm_sync_set(tern_module *module, const tern__batch_norm_sync *sync)
{
    if (module->forward == batch_norm_forward) {
        ((batch_norm *)module)->sync = *sync;
        ((batch_norm *)module)->sync.module = module;
        module->kind = "sync_batch_norm";
    }
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        tern__batch_norm_sync_set(child->module, sync);
}

/* ---- statistics of other batches ---- */

static int running_statistic_fill(tern_tensor *statistic, double value, tern_error *err)
{
    tern__host host;
    if (tern__host_open(&host, &statistic->view, err)) return err->code;
    for (int64_t c = 0; c < host.view.shape[0]; c++) tern__view_set(&host.view, c, value);
    return tern__host_close(&host, true, err);
}

static void batch_norm_update_begin(tern_module *module, tern_error *err)
{
    batch_norm *self = (batch_norm *)module;
    bool is_tracked = module->forward == batch_norm_forward && self->running_mean;
    if (is_tracked && !err->code && !running_statistic_fill(self->running_mean, 0, err) &&
        !running_statistic_fill(self->running_var, 1, err)) {
        *tracked(self) = 0;
        self->is_updated = true;
    }
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        batch_norm_update_begin(child->module, err);
}

static void batch_norm_update_end(tern_module *module)
{
    if (module->forward == batch_norm_forward) ((batch_norm *)module)->is_updated = false;
    for (tern__module_tree *child = module->tree->children; child; child = child->next)
        batch_norm_update_end(child->module);
}

int tern_update_bn(tern_module *module, tern_scope *scope, tern_loader *loader, tern_error *err)
{
    tern_error own = {0};
    tern_error *e = err ? err : &own;
    if (tern__is_set(e)) return e->code;
    if (tern__need(module, "module", __func__, e) || tern__need(scope, "scope", __func__, e) ||
        tern__need(loader, "loader", __func__, e))
        return e->code;
    bool was_training = module->training, had_grad = tern_grad_enabled_set(scope, false);
    tern_train(module);
    batch_norm_update_begin(module, e);
    for (tern_batch b; !e->code && tern_loader_next(loader, scope, &b);) {
        tern_forward(module, scope, b.x);
        tern_scope_end(scope, e);
    }
    batch_norm_update_end(module);
    tern_grad_enabled_set(scope, had_grad);
    if (!was_training) tern_eval(module);
    return e->code;
}

/* ---- making ---- */

tern_batch_norm_opts tern_batch_norm_defaults(void)
{
    return (tern_batch_norm_opts){.size = sizeof(tern_batch_norm_opts),
                                  .eps = 1e-5,
                                  .momentum = 0.1,
                                  .affine = true,
                                  .track_running_stats = true};
}

static void fill_ones(tern_tensor *tensor)
{
    for (int64_t c = 0; c < tensor->view.shape[0]; c++) tern__view_set(&tensor->view, c, 1);
}

/* Adds parameters and buffers in PyTorch's order. */
static int add_members(batch_norm *self, int64_t channels, const tern_batch_norm_opts *o, tern_error *err)
{
    tern_module *module = &self->base;
    if (o->affine) {
        self->weight = tern_parameter_add(module, "weight", TERN_F32, 1, &channels, err);
        self->bias = tern_parameter_add(module, "bias", TERN_F32, 1, &channels, err);
        if (!self->bias) return TERN_E_MEMORY;
        fill_ones(self->weight);
    }
    if (!o->track_running_stats) return TERN_OK;
    self->running_mean = tern_buffer_add(module, "running_mean", TERN_F32, 1, &channels, err);
    self->running_var = tern_buffer_add(module, "running_var", TERN_F32, 1, &channels, err);
    self->num_batches_tracked = tern_buffer_add(module, "num_batches_tracked", TERN_I64, 0, NULL, err);
    if (!self->num_batches_tracked) return TERN_E_MEMORY;
    fill_ones(self->running_var);
    return TERN_OK;
}

static tern_module *new_batch_norm(const kind *k, int64_t channels, const tern_batch_norm_opts *opts,
                                   tern_error *err)
{
    tern_batch_norm_opts o = tern_batch_norm_defaults();
    if (tern__is_set(err) || tern__opts_read(&o, sizeof(o), opts, k->func, err)) return NULL;
    if (channels < 1) {
        tern__error_set(err, k->func, TERN_E_RANGE, "%s: expected at least 1 channel, got %lld", k->name,
                        (long long)channels);
        return NULL;
    }
    batch_norm *self = tern__module_new(sizeof(*self), k->name, batch_norm_forward, err);
    if (!self) return NULL;
    self->base.tree->with_relu = with_relu;
    self->eps = o.eps;
    self->momentum = o.momentum;
    self->cumulative = o.cumulative;
    self->kind = k;
    tern__options_add_real(&self->base, "eps", o.eps);
    tern__options_add_real(&self->base, "momentum", o.momentum);
    if (add_members(self, channels, &o, err) == TERN_OK) return &self->base;
    tern_module_free(&self->base);
    return NULL;
}

tern_module *tern_batch_norm1d_new(int64_t channels, const tern_batch_norm_opts *opts, tern_error *err)
{
    static const kind k = {"tern_batch_norm1d_new", "batch_norm1d", "(N, C) or (N, C, L)", 2, 3};
    return new_batch_norm(&k, channels, opts, err);
}

tern_module *tern_batch_norm2d_new(int64_t channels, const tern_batch_norm_opts *opts, tern_error *err)
{
    static const kind k = {"tern_batch_norm2d_new", "batch_norm2d", "(N, C, H, W)", 4, 4};
    return new_batch_norm(&k, channels, opts, err);
}

tern_module *tern_batch_norm3d_new(int64_t channels, const tern_batch_norm_opts *opts, tern_error *err)
{
    static const kind k = {"tern_batch_norm3d_new", "batch_norm3d", "(N, C, D, H, W)", 5, 5};
    return new_batch_norm(&k, channels, opts, err);
}
