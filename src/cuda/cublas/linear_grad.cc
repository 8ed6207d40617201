/* linear_grad.cc - the gradients of a linear layer. All in one launch if the kernel for small products is
 * faster. Otherwise the gradient of the ReLU after it, if there is one, then products by cuBLASLt, of
 * which the one for dw also makes db, and last the gradient of the ReLU that made x. */
#include "cuda/copy.h"
#include "cuda/kernels.h"
#include "cuda/cublas/matmul.h"
#include "cuda/kernels/small_gemm.h"

extern "C" {
#include "kernels/matmul.h"
#include "kernels/pointwise.h"
}

enum { DY, IN, WEIGHT, Y };
enum { DX, DW, DB };

/* The products: dx = dz w, if wanted, and dw = dz^T x with db. dx comes first because its sums are usually
 * longer. */
typedef struct gradients {
    const tern__call *call;
    tern__view dz, turned;
    tern__call product[TERN__SMALL_GEMMS];
    int count;
} gradients;

static void set_dz(gradients *g, const tern__view *dz)
{
    g->dz = g->turned = *dz;
    g->turned.shape[0] = dz->shape[1], g->turned.shape[1] = dz->shape[0];
    g->turned.stride[0] = dz->stride[1], g->turned.stride[1] = dz->stride[0];
}

static void push(gradients *g, const tern__view *a, const tern__view *b, int out, int sums)
{
    const tern__call *call = g->call;
    tern__call *p = &g->product[g->count++];
    *p = {};
    p->device = call->device;
    p->kernel = TERN__MATMUL;
    p->err = call->err;
    p->in[0] = a;
    p->in[1] = b;
    p->out[0] = call->out[out];
    p->add[0] = call->add[out];
    if (sums) p->out[1] = call->out[sums], p->add[1] = call->add[sums];
}

/* `g` points into itself afterwards. */
static void gradients_of(const tern__call *call, gradients *g)
{
    g->call = call;
    g->count = 0;
    set_dz(g, call->in[DY]);
    if (call->out[DX]) push(g, &g->dz, call->in[WEIGHT], DX, 0);
    push(g, &g->turned, call->in[IN], DW, DB);
}

static bool takes(const gradients *g)
{
    bool all = !tern__linear_grad_is_relus(g->call) || !g->call->add[DX];
    for (int i = 0; i < g->count; i++) all &= tern__cuda_matmul_takes(&g->product[i]);
    return all;
}

static int make_products(const gradients *g)
{
    int status = tern__cuda_matmul(&g->product[0]);
    return status || g->count == 1 ? status : tern__cuda_must(tern__cuda_matmul(&g->product[1]));
}

static int cut(const tern__call *call, const tern__view *dy, const tern__view *y, const tern__view *dz)
{
    static const tern__pointwise_attr none = {{0, 0}};
    tern__call relu = {};
    relu.device = call->device;
    relu.kernel = TERN__RELU_GRAD;
    relu.in[0] = dy;
    relu.in[1] = y;
    relu.out[0] = dz;
    relu.attr = &none;
    relu.err = call->err;
    return tern__cuda_pointwise(&relu);
}

static int make_all(const gradients *g)
{
    const tern__call *call = g->call;
    int status = make_products(g);
    if (status || !call->out[DX] || !tern__linear_grad_is_relus(call)) return status;
    return tern__cuda_must(cut(call, call->out[DX], call->in[IN], call->out[DX]));
}

static int one_by_one(const tern__call *call, const void *)
{
    gradients g;
    const tern__view *dy = call->in[DY];
    tern__view dz;
    gradients_of(call, &g);
    if (!call->in[Y]) return make_all(&g);
    if (!tern__cuda_dense(call, dy, dy->dtype, TERN__PLAIN, &dz)) return TERN_E_MEMORY;
    set_dz(&g, &dz);
    int status = cut(call, dy, call->in[Y], &dz);
    if (!status) status = make_all(&g);
    tern__cuda_scratch_free(call, dz.data);
    return status;
}

static bool stand_alike(const tern__view *a, const tern__view *b)
{
    return a->dtype == b->dtype && a->stride[0] == b->stride[0] && a->stride[1] == b->stride[1];
}

/* Whether the kernel for small products can do it, apart from sizes. */
static bool can_be_small(const gradients *g, tern__gemm gemm[TERN__SMALL_GEMMS])
{
    const tern__call *call = g->call;
    bool is_relus = call->out[DX] && tern__linear_grad_is_relus(call);
    bool can = (!call->in[Y] || stand_alike(call->in[DY], call->in[Y])) &&
               (!is_relus || stand_alike(call->in[IN], call->out[DX])) && (!call->out[DB] || !call->add[DB]);
    for (int i = 0; i < g->count && can; i++) can = tern__cuda_gemm_of(&g->product[i], &gemm[i]);
    if (can && is_relus) gemm[0].gate = (const float *)call->in[IN]->data;
    return can;
}

int tern__cuda_linear_grad(const tern__call *call)
{
    gradients g;
    tern__gemm gemm[TERN__SMALL_GEMMS];
    gradients_of(call, &g);
    if (!takes(&g)) return TERN_E_UNSUPPORTED;
    if (!can_be_small(&g, gemm)) return one_by_one(call, nullptr);
    const float *gate = call->in[Y] ? (const float *)call->in[Y]->data : nullptr;
    return tern__small_gemms_or(call, gemm, g.count, gate, one_by_one, nullptr);
}
