/* dnnl_matmul.c - the matrix product as oneDNN's matmul on strided descriptions: a transpose is only a pair
 * of strides, and operands are read and written in place (a weight in the parameter range, its gradient).
 * Of the product's batch (kernels/product.h) oneDNN takes the dimensions along which y moves. It could
 * apply a ReLU, but its own turns NaN into 0. */
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/matrix.h"

enum { A, B, Y, OPERANDS = TERN__PRODUCT_OPERANDS };
enum { M, K, N };

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
int tern__dnnl_multiply(const tern__call *call, const tern__product *p, char *const at[], bool add)
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
        status = tern__dnnl_multiply(call, &inner, there, add);
    }
    return status;
}
