/* rotary_embedding.c - rotary position embedding, and the tables of its cosines and sines. The gradient turns
 * back by the same angles. */
#include "ops/rotary_embedding.h"
#include "kernels/rotary_embedding.h"
#include "ops/ops.h"
#include "tensor/host.h"

#include <math.h>

/* ---- the op ---- */

enum { COS, SIN, TABLES }; /* the saved tensors */

/* A table as the kernel sees it: with x's dimensions before the last one. */
static tern__view rotary_seen(const tern__view *table, const tern__view *x)
{
    int64_t shape[TERN_NDIM_MAX];
    for (int d = 0; d < x->ndim; d++) shape[d] = x->shape[d];
    shape[x->ndim - 1] = table->shape[table->ndim - 1];
    return tern__broadcast_view(table, x->ndim, shape);
}

static bool rotary_run(tern_scope *scope, const tern__rotary_attr *attr, const tern__view *x,
                       const tern__view *const tables[TABLES], const tern__view *y, bool add)
{
    tern__view c = rotary_seen(tables[COS], x), s = rotary_seen(tables[SIN], x);
    tern__call call = {
        .kernel = TERN__ROTARY_EMBEDDING, .in = {x, &c, &s}, .out = {y}, .add = {add}, .attr = attr};
    return tern__run(scope, &call);
}

/* dx overwrites dy if nothing else needs it. */
static int rotary_gradient(tern_scope *scope, tern__node *node)
{
    tern__rotary_attr back = *(const tern__rotary_attr *)node->attr;
    const tern__view *dy = tern__dy(node), *dx = dy;
    const tern__view *tables[TABLES] = {&node->saved[COS].view, &node->saved[SIN].view};
    bool over = tern__owns_dy(node), add = false;
    back.back = 1;
    if (!over) dx = tern__grad_open(scope, node, 0, &add);
    if (!dx || !rotary_run(scope, &back, dy, tables, dx, add)) return scope->error.code;
    return over ? tern__grad_give(scope, node, 0, dy) : tern__grad_done(scope, node, 0);
}

/* Whether the table repeats to the rows of x. */
static bool rotary_table_fits(const tern__view *table, const tern__view *x)
{
    int before = x->ndim - table->ndim;
    bool fits = x->ndim > 0 && table->ndim > 0 && before >= 0;
    for (int d = 0; fits && d + 1 < table->ndim; d++)
        fits = table->shape[d] == 1 || table->shape[d] == x->shape[before + d];
    return fits && 2 * table->shape[table->ndim - 1] <= x->shape[x->ndim - 1];
}

static int rotary_check(tern_scope *scope, const tern_tensor *x, const tern_tensor *const tables[TABLES])
{
    const char *func = "tern_rotary_embedding";
    char xs[TERN__SHAPE_TEXT], cs[TERN__SHAPE_TEXT], ss[TERN__SHAPE_TEXT];
    const tern__view *c = &tables[COS]->view, *s = &tables[SIN]->view;
    tern_dtype dtype = x->view.dtype;
    if (!tern__dtype_is_float(dtype))
        return tern__scope_fail(scope, func, TERN_E_DTYPE,
                                "rotary_embedding: expected floating point, got %s", tern_dtype_name(dtype));
    if (c->dtype != s->dtype || (c->dtype != dtype && (c->dtype != TERN_F32 || dtype == TERN_F64)))
        return tern__scope_fail(scope, func, TERN_E_DTYPE,
                                "rotary_embedding: cos and sin are %s and %s but input is %s",
                                tern_dtype_name(c->dtype), tern_dtype_name(s->dtype), tern_dtype_name(dtype));
    if (!tern__view_same_shape(c, s) || !rotary_table_fits(c, &x->view))
        return tern__scope_fail(
            scope, func, TERN_E_SHAPE,
            "rotary_embedding: expected input (.., T, D), cos and sin (T, K) or (.., T, K) "
            "with 2 K <= D, got %s, %s and %s",
            tern__shape_text(&x->view, xs), tern__shape_text(c, cs), tern__shape_text(s, ss));
    if (!tables[COS]->requires_grad && !tables[SIN]->requires_grad) return TERN_OK;
    return tern__scope_fail(scope, func, TERN_E_UNSUPPORTED,
                            "rotary_embedding: a table wants a gradient; tern_detach it");
}

/* The kernel takes rows wherever they are. */
static bool has_plain_rows(const tern__view *x)
{
    return x->layout == TERN__PLAIN && (x->stride[x->ndim - 1] == 1 || x->shape[x->ndim - 1] == 1);
}

tern_tensor *tern_rotary_embedding(tern_scope *scope, tern_tensor *x, tern_tensor *cos, tern_tensor *sin,
                                   bool interleaved)
{
    if (!TERN__ENTER(scope, __func__, 3, &x, &cos, &sin)) return NULL;
    if (rotary_check(scope, x, (const tern_tensor *[]){cos, sin})) return NULL;
    if (!has_plain_rows(&x->view) && !(x = tern__plain(scope, x))) return NULL;
    if (!(cos = tern__plain(scope, cos)) || !(sin = tern__plain(scope, sin))) return NULL;
    tern__rotary_attr attr = {.interleaved = interleaved};
    const tern__view *v = &x->view, *tables[TABLES] = {&cos->view, &sin->view};
    tern_tensor *y = tern__result(scope, v->dtype, TERN__PLAIN, v->ndim, v->shape);
    if (!y || !rotary_run(scope, &attr, v, tables, &y->view, false)) return NULL;
    tern__node *node = tern__record(scope, "rotary_embedding", rotary_gradient, y, 1, &x);
    tern__save(node, COS, cos);
    tern__save(node, SIN, sin);
    tern__save_attr(scope, node, &attr, sizeof(attr));
    return y;
}

/* ---- the tables ---- */

tern_rotary_table_opts tern_rotary_table_defaults(void)
{
    return (tern_rotary_table_opts){.size = sizeof(tern_rotary_table_opts),
                                    .base = 10000,
                                    .factor = 1,
                                    .low_freq_factor = 1,
                                    .high_freq_factor = 4,
                                    .original_positions = 8192,
                                    .beta_fast = 32,
                                    .beta_slow = 1,
                                    .truncate = true};
}

/* How much of a frequency llama3 keeps: by the waves in the original length. */
static double llama3_share(const tern_rotary_table_opts *o, double frequency)
{
    double waves = (double)o->original_positions * frequency / (2 * M_PI);
    double share = (waves - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    return waves < o->low_freq_factor ? 0 : waves > o->high_freq_factor ? 1 : share;
}

/* The pair, or a place between two, that turns so many times in the original length. */
static double yarn_pair(const tern_rotary_table_opts *o, double turns, int64_t pairs)
{
    return (double)pairs * log((double)o->original_positions / (turns * 2 * M_PI)) / log(o->base);
}

/* How much of a frequency yarn keeps: all before the fast pair, nothing after the slow one. */
static double yarn_share(const tern_rotary_table_opts *o, int64_t k, int64_t pairs)
{
    double fast = yarn_pair(o, o->beta_fast, pairs), slow = yarn_pair(o, o->beta_slow, pairs);
    if (o->truncate) {
        fast = floor(fast);
        slow = ceil(slow);
    }
    fast = fmax(fast, 0);
    slow = fmin(slow, (double)(2 * pairs - 1));
    if (fast == slow) slow += 0.001;
    return 1 - fmin(fmax(((double)k - fast) / (slow - fast), 0), 1);
}

/* transformers' modeling_rope_utils.py has the formulas: linear divides all frequencies by the factor,
 * dynamic raises the base for sequences longer than the model was trained with, llama3 and yarn divide those
 * of long waves, leave those of short waves, and go from one to the other in between, and longrope has a
 * divisor for each. */
double tern__rotary_frequency(const tern_rotary_table_opts *o, int64_t k, int64_t pairs, int64_t length)
{
    double base = o->base, original = (double)o->original_positions;
    if (o->scaling == TERN_ROPE_DYNAMIC && length > o->original_positions)
        base *=
            pow(o->factor * (double)length / original - (o->factor - 1), (double)pairs / (double)(pairs - 1));
    double frequency = pow(base, -(double)k / (double)pairs);
    if (o->scaling == TERN_ROPE_LINEAR) return frequency / o->factor;
    if (o->scaling == TERN_ROPE_LONGROPE)
        return frequency / (length > o->original_positions ? o->long_factor : o->short_factor)[k];
    bool is_yarn = o->scaling == TERN_ROPE_YARN;
    if (!is_yarn && o->scaling != TERN_ROPE_LLAMA3) return frequency;
    double share = is_yarn ? yarn_share(o, k, pairs) : llama3_share(o, frequency);
    return (1 - share) * frequency / o->factor + share * frequency;
}

/* What cosines and sines are multiplied by, so that attention over more positions stays as sharp. */
static double rotary_amplitude(const tern_rotary_table_opts *o)
{
    bool is_yarn = o->scaling == TERN_ROPE_YARN;
    if (!is_yarn && o->scaling != TERN_ROPE_LONGROPE) return 1;
    if (o->attention_factor != 0) return o->attention_factor;
    if (o->factor <= 1) return 1;
    double grown = log(o->factor);
    return is_yarn ? 0.1 * grown + 1 : sqrt(1 + grown / log((double)o->original_positions));
}

static int longrope_check(const tern_rotary_table_opts *o, int64_t pairs, const char *func, tern_error *err)
{
    if (!o->short_factor || !o->long_factor)
        return tern__error_set(err, func, TERN_E_INVALID, "longrope: short_factor or long_factor is NULL");
    for (int64_t k = 0; k < pairs; k++)
        if (!(o->short_factor[k] > 0 && o->long_factor[k] > 0))
            return tern__error_set(err, func, TERN_E_RANGE,
                                   "longrope: expected factors above 0, got %g and %g for pair %lld",
                                   o->short_factor[k], o->long_factor[k], (long long)k);
    if (o->original_positions > 1) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "longrope: original_positions is 1, expected more");
}

/* Checks what one scaling needs. */
static int rotary_scaling_check(const tern_rotary_table_opts *o, int64_t pairs, const char *func,
                                tern_error *err)
{
    if (o->scaling == TERN_ROPE_LLAMA3 && !(o->low_freq_factor < o->high_freq_factor))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected a low_freq_factor below the high_freq_factor, got %g and %g",
                               o->low_freq_factor, o->high_freq_factor);
    if (o->scaling == TERN_ROPE_DYNAMIC && pairs == 1)
        return tern__error_set(err, func, TERN_E_SHAPE, "dynamic scaling of one pair is not defined");
    if (!(o->attention_factor >= 0))
        return tern__error_set(err, func, TERN_E_RANGE, "expected an attention_factor of at least 0, got %g",
                               o->attention_factor);
    if (o->scaling == TERN_ROPE_YARN && !(o->beta_fast > 0 && o->beta_slow > 0 && o->base != 1))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "yarn: expected beta_fast and beta_slow above 0 and a base that is not 1, got "
                               "%g, %g and %g",
                               o->beta_fast, o->beta_slow, o->base);
    return o->scaling == TERN_ROPE_LONGROPE ? longrope_check(o, pairs, func, err) : TERN_OK;
}

static int rotary_table_check(const tern_tensor *cos, const tern_tensor *sin, const tern_rotary_table_opts *o,
                              const char *func, tern_error *err)
{
    char cs[TERN__SHAPE_TEXT], ss[TERN__SHAPE_TEXT];
    int status = tern__tensor_check(cos, func, err);
    if (!status) status = tern__tensor_check(sin, func, err);
    if (status) return status;
    const tern__view *c = &cos->view, *s = &sin->view;
    if (c->ndim != 2 || !tern__view_same_shape(c, s))
        return tern__error_set(err, func, TERN_E_SHAPE, "expected tables of one shape (T, K), got %s and %s",
                               tern__shape_text(c, cs), tern__shape_text(s, ss));
    if (!tern__dtype_is_float(c->dtype) || !tern__dtype_is_float(s->dtype))
        return tern__error_set(err, func, TERN_E_DTYPE, "expected tables of floating point, got %s and %s",
                               tern_dtype_name(c->dtype), tern_dtype_name(s->dtype));
    if ((unsigned)o->scaling > TERN_ROPE_LONGROPE)
        return tern__error_set(err, func, TERN_E_INVALID, "scaling %d does not exist", (int)o->scaling);
    if (!(o->base > 0 && o->factor > 0 && o->original_positions > 0))
        return tern__error_set(err, func, TERN_E_RANGE,
                               "expected base, factor and original_positions above 0, got %g, %g and %lld",
                               o->base, o->factor, (long long)o->original_positions);
    return rotary_scaling_check(o, c->shape[1], func, err);
}

static int64_t rotary_position(const int64_t *positions, int64_t row)
{
    return positions ? positions[row] : row;
}

static void rotary_table_fill(const tern__view *cosine, const tern__view *sine, const int64_t *positions,
                              const tern_rotary_table_opts *o)
{
    double amplitude = rotary_amplitude(o);
    int64_t rows = cosine->shape[0], pairs = cosine->shape[1], length = 0;
    for (int64_t row = 0; row < rows; row++) length = TERN__MAX(length, rotary_position(positions, row) + 1);
    for (int64_t k = 0; k < pairs; k++) {
        double frequency = tern__rotary_frequency(o, k, pairs, length);
        for (int64_t row = 0; row < rows; row++) {
            double angle = (double)rotary_position(positions, row) * frequency;
            tern__view_set(cosine, row * pairs + k, amplitude * cos(angle));
            tern__view_set(sine, row * pairs + k, amplitude * sin(angle));
        }
    }
}

int tern_rotary_table_fill(tern_tensor *cos, tern_tensor *sin, const int64_t *positions,
                           const tern_rotary_table_opts *opts, tern_error *err)
{
    tern_rotary_table_opts o = tern_rotary_table_defaults();
    tern__host hosts[TABLES];
    if (tern__is_set(err)) return err->code;
    int status = tern__opts_read(&o, sizeof(o), opts, __func__, err);
    if (!status) status = rotary_table_check(cos, sin, &o, __func__, err);
    if (status || tern__view_count(&cos->view) == 0) return status;
    if (cos->view.packs) cos->view.packs->version++;
    if (sin->view.packs) sin->view.packs->version++;
    status = tern__host_open(&hosts[COS], &cos->view, err);
    if (status) return status;
    status = tern__host_open(&hosts[SIN], &sin->view, err);
    if (!status) {
        rotary_table_fill(&hosts[COS].view, &hosts[SIN].view, positions, &o);
        status = tern__host_close(&hosts[SIN], true, err);
    }
    int closed = tern__host_close(&hosts[COS], !status, status ? NULL : err);
    return status ? status : closed;
}
