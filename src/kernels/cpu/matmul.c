/* matmul.c - the matrix product as oneDNN's matmul on strided descriptions: a transpose is only a pair of
 * strides, and operands are read and written in place (a weight in the parameter range, its gradient). Of
 * the product's batch (kernels/product.h) oneDNN takes the dimensions along which y moves.
 *
 * f32, and bf16 (with y in bf16 or f32) if the CPU has the tile unit (amx_matmul.c) or oneDNN's kernels
 * for it. Other 16-bit products go through f32 copies, except those of a few rows, which few_rows.c computes
 * in any type.
 *
 * A ReLU is applied to y afterwards, or when a tile is stored. oneDNN could fuse it, but its own turns NaN
 * into 0. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/widen.h"
#include "kernels/matmul.h"
#include "kernels/product.h"

enum { A, B, Y, OPERANDS = TERN__PRODUCT_OPERANDS };
enum { M, K, N };

/* ---- oneDNN ---- */

/* Describes the operand's matrices: oneDNN's batch dimensions come first, outermost first. Where an
 * operand does not move it has size 1 and any stride that does not overlap the others. */
static tern__dnnl_desc matmul_describe(const tern__product *p, int operand)
{
    tern__stand s;
    tern__product_stand(p, operand, &s);
    int row = p->batches, column = row + 1;
    dnnl_dims_t dims = {0}, strides = {0};
    dims[row] = tern__product_rows(p, operand)->size;
    dims[column] = tern__product_columns(p, operand)->size;
    strides[row] = s.transposed ? 1 : s.step;
    strides[column] = s.transposed ? s.step : 1;
    int64_t span = s.step * dims[s.transposed ? column : row];
    for (int i = 0; i < p->batches; i++)
        span = TERN__MAX(span, p->batch[i].size * p->batch[i].stride[operand]);
    for (int i = 0; i < p->batches; i++) {
        int64_t stride = p->batch[i].stride[operand];
        dims[row - 1 - i] = stride ? p->batch[i].size : 1;
        strides[row - 1 - i] = stride ? stride : span;
    }
    return tern__dnnl_by_strides(column + 1, dims, strides, tern__dnnl_type(p->view[operand]->dtype));
}

static tern__dnnl_desc describe_bias(const tern__product *p)
{
    dnnl_dims_t dims = {0}, strides = {0};
    int column = p->batches + 1;
    for (int d = 0; d < column; d++) {
        dims[d] = 1;
        strides[d] = p->axis[N].size;
    }
    dims[column] = p->axis[N].size;
    strides[column] = 1;
    return tern__dnnl_by_strides(column + 1, dims, strides, tern__dnnl_type(p->bias->dtype));
}

static int prim_new(const tern__call *call, const tern__prim_key *key, const tern__product *p, bool add,
                    tern__prim **prim)
{
    tern__dnnl_desc a = matmul_describe(p, A), b = matmul_describe(p, B), y = matmul_describe(p, Y),
                    bias = {0};
    if (p->bias) bias = describe_bias(p);
    dnnl_primitive_desc_t plan = NULL;
    tern__dnnl_matmul m = {.a = &a, .b = &b, .y = &y, .bias = p->bias ? &bias : NULL, .add = add};
    int status = tern__dnnl_plan_matmul(call, &m, &plan);
    if (status) return status;
    tern__prim_arg args[] = {
        {DNNL_ARG_SRC, &a}, {DNNL_ARG_WEIGHTS, &b}, {DNNL_ARG_DST, &y}, {DNNL_ARG_BIAS, &bias}};
    return tern__prim_new(call, key, plan, args, p->bias ? 4 : 3, prim);
}

static tern__prim_key matmul_key_of(const tern__call *call, const tern__product *p, bool add)
{
    tern__prim_key key = tern__prim_key_make(call, 0);
    int64_t *number = key.number;
    int64_t flags = (p->bias ? p->bias->dtype + 1 : 0) << 1 | add;
    for (int i = 0; i < OPERANDS; i++) {
        tern__stand s;
        tern__product_stand(p, i, &s);
        flags = (flags << 4 | p->view[i]->dtype) << 1 | s.transposed;
        *number++ = p->axis[i].size;
        *number++ = s.step;
    }
    *number++ = flags;
    for (int i = 0; i < p->batches; i++) {
        *number++ = p->batch[i].size;
        for (int o = 0; o < OPERANDS; o++) *number++ = p->batch[i].stride[o];
    }
    return key;
}

/* Runs the product with the operands' first elements at these addresses. */
static int run_prim(const tern__call *call, const tern__product *p, char *const at[OPERANDS], bool add)
{
    tern__prim_key key = matmul_key_of(call, p, add);
    tern__prim *prim = tern__prim_find(call, &key);
    int status = prim ? TERN_OK : prim_new(call, &key, p, add, &prim);
    if (status) return status;
    return tern__prim_run(call, prim, (void *[]){at[A], at[B], at[Y], p->bias ? p->bias->data : NULL});
}

/* Runs a batch that oneDNN does not support matrix by matrix. */
static int run_one(const tern__call *call, const tern__product *p, char *const at[OPERANDS], bool add)
{
    int status = run_prim(call, p, at, add);
    if (status != TERN_E_UNSUPPORTED || p->batches == 0) return status;
    tern__product inner = *p;
    tern__product_axis outer = inner.batch[--inner.batches];
    status = TERN_OK;
    for (int64_t n = 0; n < outer.size && !status; n++) {
        char *there[OPERANDS];
        for (int o = 0; o < OPERANDS; o++)
            there[o] = at[o] + n * outer.stride[o] * (int64_t)tern_dtype_bytes(p->view[o]->dtype);
        status = run_one(call, &inner, there, add);
    }
    return status;
}

/* ---- matrix by matrix ---- */

static tern__matrix matrix_of(const tern__product *p, int operand, char *data)
{
    const tern__product_axis *rows = tern__product_rows(p, operand),
                             *columns = tern__product_columns(p, operand);
    tern__stand s;
    tern__product_stand(p, operand, &s);
    return (tern__matrix){data, rows->size, columns->size, s.transposed ? 1 : s.step,
                          s.transposed ? s.step : 1};
}

/* Returns our own product function if it is used; NULL: oneDNN is. */
static tern__matrix_product *own_product(const tern__product *p)
{
    tern_dtype dtype = p->view[A]->dtype;
    if (dtype == TERN_F64) return tern__f64_matmul;
    if (p->axis[M].size <= tern__few_rows_most(dtype) && !p->batches && !p->sums)
        return tern__few_rows_matmul;
    return dtype == TERN_BF16 && tern__amx_has() ? tern__amx_matmul : NULL;
}

static int run_own(const tern__call *call, const tern__product *p, char *const at[OPERANDS], bool add)
{
    int64_t count = 1;
    int status = TERN_OK;
    for (int i = 0; i < p->batches; i++) count *= p->batch[i].size;
    for (int64_t n = 0; n < count && !status; n++) {
        tern__matrix m[OPERANDS];
        for (int o = 0; o < OPERANDS; o++) {
            int64_t offset = 0;
            for (int64_t i = 0, rest = n; i < p->batches; rest /= p->batch[i++].size)
                offset += rest % p->batch[i].size * p->batch[i].stride[o];
            m[o] = matrix_of(p, o, at[o] + offset * (int64_t)tern_dtype_bytes(p->view[o]->dtype));
        }
        status = own_product(p)(call, &m[A], &m[B], &m[Y], add);
    }
    return status;
}

static int matmul_run(const tern__call *call, const tern__product *p)
{
    int64_t count = 1;
    for (int i = 0; i < p->sums; i++) count *= p->sum[i].size;
    for (int64_t n = 0; n < count; n++) {
        char *at[OPERANDS];
        for (int o = 0; o < OPERANDS; o++) {
            int64_t bytes = (int64_t)tern_dtype_bytes(p->view[o]->dtype);
            at[o] = p->view[o]->data;
            for (int64_t i = 0, rest = n; i < p->sums; rest /= p->sum[i++].size)
                at[o] += rest % p->sum[i].size * p->sum[i].stride[o] * bytes;
        }
        int status = (own_product(p) ? run_own : run_one)(call, p, at, call->add[0] || n > 0);
        if (status) return status;
    }
    return TERN_OK;
}

/* Whether the product is computed on f32 copies; `stands`: of tern__product_stands. */
static bool matmul_must_widen(const tern__product *p, bool stands)
{
    tern_dtype dtype = p->view[A]->dtype;
    if (!tern__dtype_is_half(dtype)) return false;
    /* rounding sums to 16 bits in between would lose precision */
    if (stands && p->sums && p->view[Y]->dtype == dtype) return true;
    if (stands && own_product(p)) return false;
    return dtype == TERN_F16 || !(tern__amx_has() || tern__dnnl_has_bf16());
}

/* Multiplies, with the ReLU only in our own products. */
static int matmul_multiply(const tern__call *call)
{
    const tern__view *a = call->in[A], *b = call->in[B], *y = call->out[0];
    tern_dtype dtype = a->dtype;
    if (tern__view_count(y) == 0 || tern__view_count(a) == 0 || call->out[1]) return TERN_E_UNSUPPORTED;
    if (!tern__dtype_is_float(dtype) || (y->dtype != dtype && (y->dtype != TERN_F32 || dtype == TERN_F64)))
        return TERN_E_UNSUPPORTED;
    tern__product p = tern__product_of(call);
    bool stands = tern__product_stands(&p) && b->layout == TERN__PLAIN;
    if (matmul_must_widen(&p, stands)) return tern__cpu_widened(call, matmul_multiply);
    return stands ? matmul_run(call, &p) : TERN_E_UNSUPPORTED;
}

static bool falls_together(const tern__view *y)
{
    bool does = false;
    for (int d = 0; d < y->ndim; d++) does |= y->shape[d] > 1 && y->stride[d] == 0;
    return does;
}

int tern__cpu_matmul(const tern__call *call)
{
    tern_dtype dtype = call->in[A]->dtype;
    if (!tern__matmul_has_relu(call)) return matmul_multiply(call);
    if (falls_together(call->out[0])) return TERN_E_UNSUPPORTED;
    if (dtype == TERN_F64 || (dtype == TERN_BF16 && tern__amx_has())) return matmul_multiply(call);
    tern__call plain = *call, relu = tern__matmul_relu(call);
    plain.attr = NULL;
    int status = matmul_multiply(&plain);
    return status ? status : tern__cpu_pointwise(&relu);
}
