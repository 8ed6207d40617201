/* batch_norm.c - batch norm with a residual and a ReLU, over the batch of this rank or of all ranks. */
#include "ops/batch_norm.h"
#include "kernels/batch_norm.h"
#include "tensor/host.h"
#include "tensor/number.h"

/* The inputs, and the tensors saved for backward. For the ReLU's mask, y is saved, or the bias if backward
 * recomputes y. SAVED_COUNT, the synchronised batch norm's count, uses the bias's slot: there backward never
 * recomputes y. */
enum { X, WEIGHT, BIAS, RESIDUAL };
enum { SAVED_X, SAVED_Y, SAVED_MEAN, SAVED_VAR, SAVED_WEIGHT, SAVED_BIAS, SAVED_COUNT = SAVED_BIAS };

typedef struct record {
    tern__batch_norm_attr attr;
    int64_t own_count;          /* this rank's values per channel        */
    tern__batch_norm_sync sync; /* all zero: only this rank's batch      */
    bool training, relu;
} record;

static const tern__view *saved(const tern__node *node, int slot)
{
    return node->saved[slot].view.data ? &node->saved[slot].view : NULL;
}

/* True if one kernel can compute the statistics and use them, in forward and in backward: in training, over
 * this rank's batch alone. */
static bool batch_norm_is_whole(const record *r)
{
    return r->training && !r->sync.group && r->own_count > 0;
}

/* ---- gradient ---- */

/* Opens the gradients of weight and bias. A failure is set on the scope. */
static void open_affine(tern_scope *scope, tern__node *node, tern__call *call)
{
    const int w = TERN__BATCH_NORM_DW, b = TERN__BATCH_NORM_DB;
    if (tern__wants(node, WEIGHT)) call->out[w] = tern__grad_open(scope, node, WEIGHT, &call->add[w]);
    if (tern__wants(node, BIAS)) call->out[b] = tern__grad_open(scope, node, BIAS, &call->add[b]);
}

static int finish_affine(tern_scope *scope, tern__node *node)
{
    for (int i = BIAS; i >= WEIGHT; i--)
        if (tern__wants(node, i) && tern__grad_done(scope, node, i)) return scope->error.code;
    return TERN_OK;
}

/* Computes sum(dy') and sum(dy' xhat) of each channel. They are the gradients of bias and weight, and dx
 * needs them. */
static int batch_norm_make_sums(tern_scope *scope, tern__node *node, const tern__view *sum,
                                const tern__view *product)
{
    const record *r = node->attr;
    tern__call call = {.kernel = TERN__BATCH_NORM_SUMS,
                       .in = {tern__dy(node), saved(node, SAVED_X), saved(node, SAVED_Y),
                              saved(node, SAVED_MEAN), saved(node, SAVED_VAR)},
                       .out = {sum, product},
                       .attr = &r->attr};
    open_affine(scope, node, &call);
    return scope->error.code || !tern__run(scope, &call) ? scope->error.code : finish_affine(scope, node);
}

/* Computes dx and dy', the residual's gradient, in one pass. If nothing else needs dy, one of them overwrites
 * it: dy' if there is a residual, else dx. Without a ReLU dy' is dy. */
static int make_data_grad(tern_scope *scope, tern__node *node, const tern__view *sum,
                          const tern__view *product)
{
    const record *r = node->attr;
    const tern__view *dy = tern__dy(node);
    bool residual = tern__wants(node, RESIDUAL), given = residual && !r->relu, owned = tern__owns_dy(node);
    int in_place = !owned || given ? -1 : residual ? RESIDUAL : X;
    tern__call call = {.kernel = TERN__BATCH_NORM_DATA_GRAD,
                       .in = {dy, saved(node, SAVED_X), saved(node, SAVED_Y), saved(node, SAVED_MEAN),
                              saved(node, SAVED_VAR), saved(node, SAVED_WEIGHT), sum, product},
                       .attr = &r->attr};
    const int inputs[2] = {X, given ? -1 : RESIDUAL};
    for (int i = 0; i < 2; i++) {
        if (inputs[i] < 0 || !tern__wants(node, inputs[i])) continue;
        call.out[i] = inputs[i] == in_place ? dy : tern__grad_open(scope, node, inputs[i], &call.add[i]);
        if (!call.out[i]) return scope->error.code;
    }
    if ((call.out[0] || call.out[1]) && !tern__run(scope, &call)) return scope->error.code;
    if (given && tern__grad_give(scope, node, RESIDUAL, dy)) return scope->error.code;
    for (int i = 0; i < 2; i++) {
        if (!call.out[i]) continue;
        int status = inputs[i] == in_place ? tern__grad_give(scope, node, inputs[i], dy)
                                           : tern__grad_done(scope, node, inputs[i]);
        if (status) return status;
    }
    return TERN_OK;
}

static int zero_gradient(tern_scope *scope, tern__node *node, int i)
{
    bool add;
    if (!tern__wants(node, i)) return TERN_OK;
    const tern__view *to = tern__grad_open(scope, node, i, &add);
    if (!to || (!add && !tern__fill(scope, to, 0))) return scope->error.code;
    return tern__grad_done(scope, node, i);
}

/* The gradients of an empty batch: zeros. */
static int empty_gradient(tern_scope *scope, tern__node *node)
{
    int status = TERN_OK;
    for (int i = RESIDUAL; i >= X && !status; i--) status = zero_gradient(scope, node, i);
    return status;
}

/* The sums of an empty batch: zeros, also for the gradients of weight and bias. */
static int empty_sums(tern_scope *scope, tern__node *node, const tern__view *both)
{
    int status = tern__fill(scope, both, 0) ? TERN_OK : scope->error.code;
    for (int i = BIAS; i >= WEIGHT && !status; i--) status = zero_gradient(scope, node, i);
    return status;
}

static int empty_data_grad(tern_scope *scope, tern__node *node)
{
    int status = zero_gradient(scope, node, X);
    return status ? status : zero_gradient(scope, node, RESIDUAL);
}

/* Computes the gradients with the means of dy' and dy' xhat over all ranks' batches. A rank with an empty
 * batch goes through the same steps in the same order: finishing a gradient may start a bucket's all_reduce,
 * which must come before the exchange of means on all ranks or after it on all. */
static int joint_gradient_by(tern_scope *scope, tern__node *node, const tern__view *both)
{
    const record *r = node->attr;
    int64_t channels = both->shape[0] / 2;
    const double *data = both->data;
    tern__view sum = tern__numbers_view(data, channels),
               product = tern__numbers_view(data + channels, channels);
    bool empty = r->own_count == 0;
    int status = empty ? empty_sums(scope, node, both) : batch_norm_make_sums(scope, node, &sum, &product);
    if (!status) status = r->sync.average(&r->sync, scope, both, saved(node, SAVED_COUNT));
    if (status) return status;
    return empty ? empty_data_grad(scope, node) : make_data_grad(scope, node, &sum, &product);
}

static int joint_gradient(tern_scope *scope, tern__node *node)
{
    int64_t count = 2 * saved(node, SAVED_MEAN)->shape[0];
    tern__view like = tern__view_make(TERN_F64, TERN__PLAIN, 1, &count);
    tern__saved both = tern__temporary(scope, &like);
    int status = both.storage ? joint_gradient_by(scope, node, &both.view) : scope->error.code;
    tern__saved_drop(&both);
    return status;
}

/* The memory of dx: dy's, if this node owns it and no residual's gradient takes it; x's, if nothing else
 * holds x and there is no gradient to add to; else memory of its own. */
typedef enum place { PLACE_OWN, PLACE_DY, PLACE_X } place;

static place place_of_dx(const tern__node *node, bool overwrites_dy)
{
    if (overwrites_dy) return PLACE_DY;
    return tern__owns_saved(node, SAVED_X) && !node->in[X]->grad_storage ? PLACE_X : PLACE_OWN;
}

static int finish_dx(tern_scope *scope, tern__node *node, place at)
{
    if (at == PLACE_DY) return tern__grad_give(scope, node, X, tern__dy(node));
    return at == PLACE_X ? tern__grad_give_saved(scope, node, X, SAVED_X) : tern__grad_done(scope, node, X);
}

/* Computes all gradients in one kernel. Without a ReLU the residual's gradient is dy itself. */
static int whole_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    const tern__view *dy = tern__dy(node);
    bool residual = tern__wants(node, RESIDUAL), owned = tern__owns_dy(node);
    bool passed = residual && r->relu, give_dy = residual && (!r->relu || owned);
    tern__call call = {.kernel = TERN__BATCH_NORM_GRAD,
                       .in = {dy, saved(node, SAVED_X), saved(node, SAVED_Y), saved(node, SAVED_MEAN),
                              saved(node, SAVED_VAR), saved(node, SAVED_WEIGHT), saved(node, SAVED_BIAS)},
                       .attr = &r->attr};
    place at = place_of_dx(node, owned && !residual);
    if (at == PLACE_OWN)
        call.out[0] = tern__grad_open(scope, node, X, &call.add[0]);
    else
        call.out[0] = at == PLACE_DY ? dy : call.in[1];
    if (passed) call.out[1] = owned ? dy : tern__grad_open(scope, node, RESIDUAL, &call.add[1]);
    open_affine(scope, node, &call);
    if (scope->error.code || !tern__run(scope, &call)) return scope->error.code;
    if (finish_affine(scope, node) || finish_dx(scope, node, at)) return scope->error.code;
    if (give_dy) return tern__grad_give(scope, node, RESIDUAL, dy);
    return residual ? tern__grad_done(scope, node, RESIDUAL) : TERN_OK;
}

static int batch_norm_gradient(tern_scope *scope, tern__node *node)
{
    const record *r = node->attr;
    if (batch_norm_is_whole(r) && tern__wants(node, X)) return whole_gradient(scope, node);
    if (r->sync.group && tern__wants(node, X)) return joint_gradient(scope, node);
    if (r->own_count == 0) return empty_gradient(scope, node);
    int status = TERN_OK;
    if (tern__wants(node, WEIGHT) || tern__wants(node, BIAS))
        status = batch_norm_make_sums(scope, node, NULL, NULL);
    return status ? status : make_data_grad(scope, node, NULL, NULL);
}

/* ---- shape rule ---- */

typedef struct args {
    tern_tensor *x, *weight, *bias, *mean, *var, *residual;
    tern_tensor *count;           /* values per channel on all ranks; NULL: not synchronised         */
    char layer[TERN__LAYER_TEXT]; /* for errors */
} args;

/* The dtype of running statistics: x's, but at least 32 bits. Parameters may have it, too. */
static tern_dtype running_dtype(const tern_tensor *x)
{
    return x->view.dtype == TERN_F64 ? TERN_F64 : TERN_F32;
}

/* Checks the shape and dtype of a tensor beside x, which may be NULL. */
static bool operand_fits(tern_scope *scope, const args *a, const char *name, const tern_tensor *tensor,
                         bool shape_fits)
{
    char xs[TERN__SHAPE_TEXT], ts[TERN__SHAPE_TEXT];
    if (!tensor) return true;
    bool exact = tensor->view.dtype == running_dtype(a->x);
    if (!shape_fits) {
        tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_SHAPE, "batch_norm%s: %s is %s but input is %s",
                         a->layer, name, tern__shape_text(&tensor->view, ts),
                         tern__shape_text(&a->x->view, xs));
        return false;
    }
    if (tensor->view.dtype == a->x->view.dtype || (tensor != a->residual && exact)) return true;
    tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_DTYPE, "batch_norm%s: %s is %s but input is %s",
                     a->layer, name, tern_dtype_name(tensor->view.dtype), tern_dtype_name(a->x->view.dtype));
    return false;
}

static bool vector_fits(tern_scope *scope, const args *a, const char *name, const tern_tensor *vector)
{
    bool fits = vector && vector->view.ndim == 1 && vector->view.shape[0] == a->x->view.shape[1];
    return operand_fits(scope, a, name, vector, fits);
}

static bool input_fits(tern_scope *scope, const args *a)
{
    const tern__view *x = &a->x->view;
    char shape[TERN__SHAPE_TEXT];
    if (x->ndim < 2 || x->shape[1] == 0) {
        tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_SHAPE,
                         "batch_norm%s: expected (N, C, ...) with at least one channel, got %s", a->layer,
                         tern__shape_text(x, shape));
        return false;
    }
    if (!tern__dtype_is_float(x->dtype)) {
        tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_DTYPE,
                         "batch_norm%s: expected floating point, got %s", a->layer,
                         tern_dtype_name(x->dtype));
        return false;
    }
    return true;
}

static bool batch_norm_fits(tern_scope *scope, const args *a, bool training)
{
    if (!training && (!a->mean || !a->var)) {
        tern__scope_fail(scope, "tern_batch_norm_act", TERN_E_INVALID,
                         "batch_norm%s: running_mean and running_var are needed when not training", a->layer);
        return false;
    }
    bool residual = a->residual && tern__view_same_shape(&a->x->view, &a->residual->view);
    return input_fits(scope, a) && vector_fits(scope, a, "weight", a->weight) &&
           vector_fits(scope, a, "bias", a->bias) && vector_fits(scope, a, "running_mean", a->mean) &&
           vector_fits(scope, a, "running_var", a->var) &&
           operand_fits(scope, a, "residual", a->residual, residual);
}

/* ---- forward ---- */

static const tern__view *view_of(const tern_tensor *tensor)
{
    return tensor ? &tensor->view : NULL;
}

static tern_tensor *like(tern_scope *scope, const tern__view *view)
{
    return tern__result(scope, view->dtype, view->layout, view->ndim, view->shape);
}

/* Fails if there is one value per channel on all ranks together: it has no variance. */
static bool has_variance(tern_scope *scope, const args *a, const record *r, bool is_one)
{
    char shape[TERN__SHAPE_TEXT];
    if (!is_one) return true;
    tern__scope_fail(
        scope, "tern_batch_norm_act", TERN_E_SHAPE,
        "batch_norm%s: expected more than 1 value per channel when training, got input size %s%s", a->layer,
        tern__shape_text(&a->x->view, shape), r->sync.group ? " on all ranks together" : "");
    return false;
}

/* The same for a synchronised batch norm. A rank with two values or more need not wait for a device to learn
 * how many all ranks have. */
static bool has_joint_variance(tern_scope *scope, const args *a, const record *r)
{
    double count = 0;
    tern_error err = {0};
    if (r->own_count > 1) return true;
    if (!tern__host_item(&a->count->view, &count, &err)) return has_variance(scope, a, r, count == 1);
    tern__scope_fail_with(scope, &err);
    return false;
}

/* Writes [count, mean (C), var (C)] of this rank's batch. */
static bool make_row(tern_scope *scope, const args *a, const record *r, const double *row)
{
    int64_t channels = a->x->view.shape[1];
    bool empty = r->own_count == 0;
    tern__view head = tern__numbers_view(row, empty ? tern__batch_norm_row(channels) : 1),
               mean = tern__numbers_view(row + 1, channels),
               var = tern__numbers_view(row + 1 + channels, channels);
    tern__call call = {
        .kernel = TERN__BATCH_NORM_STATS, .in = {&a->x->view}, .out = {&mean, &var}, .attr = &r->attr};
    return tern__fill(scope, &head, (double)r->own_count) && (empty || tern__run(scope, &call));
}

/* Merges the rows of all ranks, and updates the running statistics with the result. */
static bool batch_norm_merge(tern_scope *scope, const args *a, const record *r, const tern__view *rows,
                             const tern__view *mean, const tern__view *var)
{
    tern__call call = {.kernel = TERN__BATCH_NORM_MERGE,
                       .in = {rows},
                       .out = {mean, var, view_of(a->mean), view_of(a->var), view_of(a->count)},
                       .attr = &r->attr};
    return tern__run(scope, &call);
}

/* Computes the statistics of all ranks' batches, and updates the running ones. */
static bool make_joint_stats(tern_scope *scope, args *a, const record *r, const tern__view *mean,
                             const tern__view *var)
{
    int64_t length = tern__batch_norm_row(mean->shape[0]);
    tern__view like = tern__view_make(TERN_F64, TERN__PLAIN, 2, (int64_t[]){r->sync.world, length});
    tern__saved rows = tern__temporary(scope, &like);
    const double *own = (const double *)rows.view.data + r->sync.rank * length;
    a->count = rows.storage ? tern__result(scope, TERN_F64, TERN__PLAIN, 0, NULL) : NULL;
    bool made = a->count && make_row(scope, a, r, own) && !r->sync.gather(&r->sync, scope, &rows.view) &&
                batch_norm_merge(scope, a, r, &rows.view, mean, var);
    tern__saved_drop(&rows);
    return made && has_joint_variance(scope, a, r);
}

/* Copies the running statistics, which may change before backward. */
static bool copy_stats(tern_scope *scope, const args *a, const tern__view *mean, const tern__view *var)
{
    return tern__copy(scope, mean, &a->mean->view) && tern__copy(scope, var, &a->var->view);
}

/* Fills in the statistics where the kernel of y does not compute them: the running ones in evaluation, those
 * of all ranks, or zeros for an empty batch. */
static bool take_stats(tern_scope *scope, args *a, const record *r, const tern__view *mean,
                       const tern__view *var)
{
    if (!r->training) return copy_stats(scope, a, mean, var);
    if (r->sync.group) return make_joint_stats(scope, a, r, mean, var);
    return tern__fill(scope, mean, 0) && tern__fill(scope, var, 0);
}

/* Computes y with given statistics. */
static bool batch_norm_apply(tern_scope *scope, const args *a, const record *r, const tern__view *mean,
                             const tern__view *var, const tern__view *y)
{
    tern__call call = {
        .kernel = TERN__BATCH_NORM_APPLY,
        .in = {&a->x->view, mean, var, view_of(a->weight), view_of(a->bias), view_of(a->residual)},
        .out = {y},
        .attr = &r->attr};
    return r->own_count == 0 || tern__run(scope, &call);
}

/* Computes the statistics and y in one kernel, and updates the running statistics. */
static bool normalise(tern_scope *scope, const args *a, const record *r, const tern__view *mean,
                      const tern__view *var, const tern__view *y)
{
    tern__call call = {.kernel = TERN__BATCH_NORM,
                       .in = {&a->x->view, view_of(a->weight), view_of(a->bias), view_of(a->residual)},
                       .out = {y, mean, var, view_of(a->mean), view_of(a->var)},
                       .attr = &r->attr};
    return has_variance(scope, a, r, r->own_count == 1) && tern__run(scope, &call);
}

static void batch_norm_keep(tern_scope *scope, const args *a, tern_tensor *y, const record *r)
{
    tern_tensor *inputs[] = {a->x, a->weight, a->bias, a->residual};
    tern__node *node = tern__record(scope, "batch_norm", batch_norm_gradient, y, 4, inputs);
    tern__save_attr(scope, node, r, sizeof(*r));
    tern__save(node, SAVED_X, a->x);
    bool again = batch_norm_is_whole(r) && !a->residual && node && tern__wants(node, X);
    tern__save(node, SAVED_Y, r->relu && !again ? y : NULL);
    if (r->relu && again) tern__save(node, SAVED_BIAS, a->bias);
    tern__save(node, SAVED_MEAN, a->mean);
    tern__save(node, SAVED_VAR, a->var);
    tern__save(node, SAVED_WEIGHT, a->weight);
    if (r->sync.group) tern__save(node, SAVED_COUNT, a->count);
}

tern_batch_norm_act_opts tern_batch_norm_act_defaults(void)
{
    return (tern_batch_norm_act_opts){
        .size = sizeof(tern_batch_norm_act_opts), .training = true, .momentum = 0.1, .eps = 1e-5};
}

/* Makes all operands dense, and brings the residual into x's layout. */
static bool make_dense(tern_scope *scope, args *a)
{
    a->x = tern__dense(scope, a->x);
    if (a->x && a->weight) a->weight = tern__plain(scope, a->weight);
    if (a->x && a->bias) a->bias = tern__plain(scope, a->bias);
    if (a->x && a->residual) a->residual = tern__laid_out(scope, a->residual, a->x->view.layout);
    return !scope->error.code;
}

static tern_tensor *batch_norm_run(tern_scope *scope, args *a, const record *r)
{
    if (!make_dense(scope, a)) return NULL;
    int64_t channels = a->x->view.shape[1];
    tern_tensor *mean = tern__result(scope, TERN_F64, TERN__PLAIN, 1, &channels);
    tern_tensor *var = mean ? like(scope, &mean->view) : NULL, *y = var ? like(scope, &a->x->view) : NULL;
    if (!y) return NULL;
    bool made = batch_norm_is_whole(r) ? normalise(scope, a, r, &mean->view, &var->view, &y->view)
                                       : take_stats(scope, a, r, &mean->view, &var->view) &&
                                             batch_norm_apply(scope, a, r, &mean->view, &var->view, &y->view);
    if (!made) return NULL;
    a->mean = mean;
    a->var = var;
    batch_norm_keep(scope, a, y, r);
    return y;
}

tern_tensor *tern__batch_norm_act(tern_scope *scope, const tern__batch_norm_tensors *t,
                                  const tern_batch_norm_act_opts *opts, const tern__batch_norm_sync *sync)
{
    const char *func = "tern_batch_norm_act";
    args a = {t->x, t->weight, t->bias, t->running_mean, t->running_var, t->residual, NULL, ""};
    tern_batch_norm_act_opts o = tern_batch_norm_act_defaults();
    if (!TERN__ENTER(scope, func, 1, &a.x, &a.weight, &a.bias, &a.mean, &a.var, &a.residual)) return NULL;
    if (tern__scope_opts(scope, &o, sizeof(o), opts, func)) return NULL;
    if (t->weight) tern__layer_text(t->weight, a.layer);
    if (!batch_norm_fits(scope, &a, o.training)) return NULL;
    record r = {.training = o.training, .relu = o.relu};
    r.own_count = tern__view_count(&a.x->view) / a.x->view.shape[1];
    r.attr = (tern__batch_norm_attr){.eps = o.eps, .momentum = o.momentum, .relu = o.relu};
    if (sync) r.sync = *sync;
    return batch_norm_run(scope, &a, &r);
}

tern_tensor *tern_batch_norm_act(tern_scope *scope, tern_tensor *x, tern_tensor *running_mean,
                                 tern_tensor *running_var, tern_tensor *weight, tern_tensor *bias,
                                 tern_tensor *residual, const tern_batch_norm_act_opts *opts)
{
    const tern__batch_norm_tensors tensors = {x, running_mean, running_var, weight, bias, residual};
    return tern__batch_norm_act(scope, &tensors, opts, NULL);
}
