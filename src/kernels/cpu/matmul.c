/* matmul.c - chooses who computes a matrix product: f32 oneDNN on CPUs with AVX-512 (dnnl_matmul.c), on
 * others and without oneDNN f32_matmul.c; bf16, with y in bf16 or f32, the tile unit (amx_matmul.c) or
 * oneDNN's kernels where the CPU has one of them; f64, which oneDNN lacks, f64_matmul.c; a few rows in any of
 * the smaller types few_rows.c. Other 16-bit products go through f32 copies. A ReLU that is not part of the
 * product is applied to y afterwards. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/widen.h"
#include "kernels/cpu/widths.h"
#include "kernels/matmul.h"

enum { A, B, Y, OPERANDS = TERN__PRODUCT_OPERANDS };

tern__matrix tern__matrix_of(const tern__product *p, int operand, char *data, int64_t n)
{
    const tern__product_axis *rows = tern__product_rows(p, operand),
                             *columns = tern__product_columns(p, operand);
    int64_t offset = 0;
    for (int64_t i = 0; i < p->batches; n /= p->batch[i++].size)
        offset += n % p->batch[i].size * p->batch[i].stride[operand];
    tern__stand s;
    tern__product_stand(p, operand, &s);
    return (tern__matrix){data + offset * (int64_t)tern_dtype_bytes(p->view[operand]->dtype), rows->size,
                          columns->size, s.transposed ? 1 : s.step, s.transposed ? s.step : 1};
}

/* Returns the function for one matrix, if that is used; NULL: another is. */
static tern__matrix_product *own_product(const tern__product *p)
{
    tern_dtype dtype = p->view[A]->dtype;
    if (dtype == TERN_F64) return tern__f64_matmul;
    if (p->axis[0].size <= tern__few_rows_most(dtype) && !p->batches && !p->sums)
        return tern__few_rows_matmul;
    return dtype == TERN_BF16 && tern__amx_has() ? tern__amx_matmul : NULL;
}

static int run_matrices(const tern__call *call, const tern__product *p, char *const at[], bool add)
{
    int64_t count = tern__product_count(p);
    int status = TERN_OK;
    for (int64_t n = 0; n < count && !status; n++) {
        tern__matrix m[OPERANDS];
        for (int o = 0; o < OPERANDS; o++) m[o] = tern__matrix_of(p, o, at[o], n);
        status = own_product(p)(call, &m[A], &m[B], &m[Y], add);
    }
    return status;
}

/* Whether f32_matmul.c computes products in f32, which can apply a ReLU. */
static bool f32_is_own(void)
{
    return !tern__is_wide() || !tern__dnnl_is_there();
}

static tern__products *products_of(const tern__product *p)
{
    if (own_product(p)) return run_matrices;
    return p->view[A]->dtype == TERN_F32 && f32_is_own() ? tern__f32_matmul : tern__dnnl_multiply;
}

static int matmul_run(const tern__call *call, const tern__product *p)
{
    tern__products *multiply = products_of(p);
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
        int status = multiply(call, p, at, call->add[0] || n > 0);
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

/* Multiplies; oneDNN without the ReLU. */
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
    if (dtype == TERN_F64 || (dtype == TERN_F32 && f32_is_own()) || (dtype == TERN_BF16 && tern__amx_has()))
        return matmul_multiply(call);
    tern__call plain = *call, relu = tern__matmul_relu(call);
    plain.attr = NULL;
    int status = matmul_multiply(&plain);
    return status ? status : tern__cpu_pointwise(&relu);
}
