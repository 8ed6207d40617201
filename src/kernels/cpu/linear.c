/* linear.c - the three products of a linear layer as oneDNN matmuls on strided descriptions, so that a
 * transpose is only a pair of strides and the weight is read and its gradient written as it stands in the
 * parameter range. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"

/* c (m, n) = or += a (m, k) times b (k, n) [+ bias (n)]; ta, tb: stored transposed. */
typedef struct product {
    int64_t m, k, n;
    bool ta, tb, bias, add;
} product;

static dnnl_status_t matrix_desc(dnnl_memory_desc_t *desc, int64_t rows, int64_t cols, bool transposed)
{
    dnnl_dims_t dims = {rows, cols};
    dnnl_dims_t strides = {transposed ? 1 : cols, transposed ? rows : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, dims, dnnl_f32, strides);
}

static int matmul_desc(const tern__call *call, const product *p, const dnnl_memory_desc_t md[4],
                       dnnl_primitive_desc_t *desc)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t sum = NULL;
    dnnl_matmul_desc_t matmul;
    int status = tern__dnnl_attr_new(call, &attr);
    if (status) return status;
    dnnl_status_t vendor = dnnl_matmul_desc_init(&matmul, &md[0], &md[1], p->bias ? &md[3] : NULL, &md[2]);
    if (vendor == dnnl_success && p->add) {
        vendor = dnnl_post_ops_create(&sum);
        if (vendor == dnnl_success) vendor = dnnl_post_ops_append_sum(sum, 1.0f);
        if (vendor == dnnl_success) vendor = dnnl_primitive_attr_set_post_ops(attr, sum);
        if (sum) dnnl_post_ops_destroy(sum);
    }
    if (vendor == dnnl_success)
        vendor = dnnl_primitive_desc_create(desc, &matmul, attr, tern__dnnl_engine(call), NULL);
    dnnl_primitive_attr_destroy(attr);
    return vendor == dnnl_success ? TERN_OK : tern__dnnl_fail(call, vendor, "matmul");
}

static int matmul_new(const tern__call *call, const tern__prim_key *key, const product *p, tern__prim **prim)
{
    dnnl_memory_desc_t md[4];
    dnnl_status_t vendor = matrix_desc(&md[0], p->m, p->k, p->ta);
    if (vendor == dnnl_success) vendor = matrix_desc(&md[1], p->k, p->n, p->tb);
    if (vendor == dnnl_success) vendor = matrix_desc(&md[2], p->m, p->n, false);
    if (vendor == dnnl_success) vendor = matrix_desc(&md[3], 1, p->n, false);
    if (vendor != dnnl_success) return tern__dnnl_fail(call, vendor, "memory description");
    dnnl_primitive_desc_t desc;
    int status = matmul_desc(call, p, md, &desc);
    if (status) return status;
    tern__prim_arg args[] = {
        {DNNL_ARG_SRC, &md[0]}, {DNNL_ARG_WEIGHTS, &md[1]}, {DNNL_ARG_DST, &md[2]}, {DNNL_ARG_BIAS, &md[3]}};
    return tern__prim_new(call, key, desc, args, p->bias ? 4 : 3, prim);
}

static int matmul(const tern__call *call, product p, void *a, void *b, void *c, void *bias)
{
    tern__prim_key key = tern__prim_key_make(call, 0);
    key.number[0] = p.m;
    key.number[1] = p.k;
    key.number[2] = p.n;
    key.number[3] = p.ta | p.tb << 1 | p.bias << 2 | p.add << 3;
    tern__prim *prim = tern__prim_find(call, &key);
    int status = prim ? TERN_OK : matmul_new(call, &key, &p, &prim);
    return status ? status : tern__prim_run(call, prim, (void *[]){a, b, c, bias});
}

static bool takes(const tern__call *call, int inputs)
{
    for (int i = 0; i < inputs; i++) {
        const tern__view *in = call->in[i];
        if (in && (in->dtype != TERN_F32 || !tern__view_is_contiguous(in) || tern__view_count(in) == 0))
            return false;
    }
    return true;
}

int tern__cpu_linear(const tern__call *call)
{
    if (!takes(call, 3)) return TERN_E_UNSUPPORTED;
    const tern__view *x = call->in[0], *w = call->in[1], *b = call->in[2];
    product p = {
        .m = x->shape[0], .k = x->shape[1], .n = w->shape[0], .tb = true, .bias = b, .add = call->add[0]};
    return matmul(call, p, x->data, w->data, call->out[0]->data, b ? b->data : NULL);
}

int tern__cpu_linear_data_grad(const tern__call *call)
{
    if (!takes(call, 2)) return TERN_E_UNSUPPORTED;
    const tern__view *dy = call->in[0], *w = call->in[1];
    product p = {.m = dy->shape[0], .k = dy->shape[1], .n = w->shape[1], .add = call->add[0]};
    return matmul(call, p, dy->data, w->data, call->out[0]->data, NULL);
}

TERN__SIMD static void column_sums(float *out, const float *in, int64_t rows, int64_t cols, bool add)
{
    for (int64_t c = 0; c < cols; c++) out[c] = add ? out[c] + in[c] : in[c];
    for (int64_t r = 1; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) out[c] += in[r * cols + c];
}

int tern__cpu_linear_weight_grad(const tern__call *call)
{
    if (!takes(call, 2)) return TERN_E_UNSUPPORTED;
    const tern__view *dy = call->in[0], *x = call->in[1], *dw = call->out[0], *db = call->out[1];
    int64_t rows = dy->shape[0], outs = dy->shape[1];
    if (db) column_sums(db->data, dy->data, rows, outs, call->add[1]);
    if (!dw) return TERN_OK;
    product p = {.m = outs, .k = rows, .n = x->shape[1], .ta = true, .add = call->add[0]};
    return matmul(call, p, dy->data, x->data, dw->data, NULL);
}
