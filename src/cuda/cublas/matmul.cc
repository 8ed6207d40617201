/* matmul.cc - the matrix product (kernels/product.h) as products of cuBLASLt. Each of these takes the
 * longest dimension of the batch; the others are a loop.
 *
 * A single product in f32 may be computed by our own kernel (small_gemm.h), if that is faster.
 *
 * An operand whose neighbouring elements are not adjacent is copied first. y is computed in an f32 copy if
 * it is transposed, or if sums of several products would be rounded to 16 bits in between. A ReLU is the
 * epilogue of the product that makes y; if that is another kernel, or if cuBLASLt has none, a separate
 * kernel follows. */
#include "cuda/cublas/matmul.h"
#include "cuda/copy.h"
#include "cuda/cublas/cublas.h"
#include "cuda/kernels.h"
#include "cuda/kernels/small_gemm.h"

extern "C" {
#include "kernels/matmul.h"
#include "kernels/product.h"
}

enum { A, B, Y, OPERANDS };
enum { M, K, N };

typedef tern__product_axis axis;

static int matmul(const tern__call *call);

/* ---- choosing ---- */

/* Whether y is broadcast, and so summed, along some dimension. */
static bool falls_together(const tern__view *y, int first, int last)
{
    bool does = false;
    for (int d = first; d < last; d++) does |= y->shape[d] > 1 && y->stride[d] == 0;
    return does;
}

bool tern__cuda_matmul_takes(const tern__call *call)
{
    const tern__view *a = call->in[A], *b = call->in[B], *bias = call->in[2], *y = call->out[0];
    return tern__dtype_is_float(a->dtype) && b->dtype == a->dtype && tern__cuda_makes(y->dtype, a->dtype) &&
           (!bias || (tern__cuda_makes(bias->dtype, a->dtype) && !falls_together(y, 0, y->ndim - 2))) &&
           (!call->out[1] || (!bias && y->ndim == 2)) && !falls_together(y, y->ndim - 2, y->ndim) &&
           (!tern__matmul_has_relu(call) || (!call->out[1] && !falls_together(y, 0, y->ndim))) &&
           tern__view_count(y) > 0 && tern__view_count(a) > 0;
}

/* ---- products ---- */

/* Merges dimensions of the batch that continue each other. */
static void merge(tern__product *p)
{
    int kept = 0;
    for (int i = 1; i < p->batches; i++) {
        axis *inner = &p->batch[kept], *outer = &p->batch[i];
        bool continues = true;
        for (int o = 0; o < OPERANDS; o++) continues &= outer->stride[o] == inner->size * inner->stride[o];
        if (continues)
            inner->size *= outer->size;
        else
            p->batch[++kept] = *outer;
    }
    p->batches = TERN__MIN(p->batches, kept + 1);
}

/* Removes and returns the longest dimension of the batch. */
static axis take_longest(tern__product *p)
{
    axis longest = {1, {0}};
    int at = -1;
    for (int i = 0; i < p->batches; i++)
        if (p->batch[i].size > longest.size) longest = p->batch[at = i];
    if (at >= 0) p->batch[at] = p->batch[--p->batches];
    return longest;
}

/* The alignment common to all addresses, at most 256 bytes. */
static int64_t alignment_of(const tern__product *p, int operand, const axis *taken)
{
    int64_t bytes = (int64_t)tern_dtype_bytes(p->view[operand]->dtype);
    int64_t bits = 256 | (int64_t)(uintptr_t)p->view[operand]->data | taken->stride[operand] * bytes;
    for (int i = 0; i < p->batches; i++) bits |= p->batch[i].stride[operand] * bytes;
    for (int i = 0; i < p->sums; i++) bits |= p->sum[i].stride[operand] * bytes;
    return bits & -bits;
}

static tern__gemm gemm_of(const tern__product *p, const axis *taken)
{
    tern__gemm g = {};
    tern__gemm_operand *operands[OPERANDS] = {&g.a, &g.b, &g.y};
    g.m = p->axis[M].size, g.n = p->axis[N].size, g.k = p->axis[K].size, g.count = taken->size;
    for (int i = 0; i < OPERANDS; i++) {
        tern__stand s;
        tern__product_stand(p, i, &s);
        *operands[i] = {p->view[i]->data, p->view[i]->dtype, s.transposed, s.step, taken->stride[i]};
        g.alignment[i] = alignment_of(p, i, taken);
    }
    g.bias = p->bias ? p->bias->data : nullptr;
    return g;
}

/* The offset of the operand's matrix `n`, counted over these dimensions. */
static int64_t offset_of(const axis *axes, int count, int operand, int64_t n)
{
    int64_t offset = 0;
    for (int i = 0; i < count; n /= axes[i++].size) offset += n % axes[i].size * axes[i].stride[operand];
    return offset;
}

static int64_t count_of(const axis *axes, int count)
{
    int64_t all = 1;
    for (int i = 0; i < count; i++) all *= axes[i].size;
    return all;
}

/* Whether cuBLASLt can take the vector: contiguous and aligned. */
static bool is_vector(const tern__view *v)
{
    return (v->stride[0] == 1 || v->shape[0] == 1) && (uintptr_t)v->data % TERN__GEMM_VECTOR == 0;
}

/* Whether the product can compute the row sums. */
static bool has_row_sums(const tern__call *call)
{
    const tern__view *sums = call->out[1];
    return sums && !call->add[1] && sums->dtype == call->out[0]->dtype && is_vector(sums);
}

static int make_relu(const tern__call *call)
{
    const tern__call relu = tern__matmul_relu(call);
    return tern__cuda_must(tern__cuda_pointwise(&relu));
}

/* Called when cuBLASLt has no algorithm. Whether to ask again without the row sums or the ReLU, which
 * separate kernels then compute. */
static bool leave_out(tern__gemm *g)
{
    bool had = g->row_sums || g->relu;
    g->row_sums = nullptr;
    g->relu = false;
    return had;
}

static void move_on(tern__gemm_operand *o, int64_t elements)
{
    o->data = (char *)o->data + elements * (int64_t)tern_dtype_bytes(o->dtype);
}

/* Multiplies as much of the batch at a time as cuBLASLt takes. */
static int multiply(const tern__call *call, const tern__gemm *g)
{
    int status = TERN_OK;
    tern__gemm part = *g;
    for (int64_t from = 0; from < g->count && !status; from += part.count) {
        part.count = TERN__MIN(g->count - from, TERN__GEMM_BATCH);
        status = tern__cublas_gemm(call, &part);
        if (from > 0) status = tern__cuda_must(status);
        move_on(&part.a, part.count * part.a.next);
        move_on(&part.b, part.count * part.b.next);
        move_on(&part.y, part.count * part.y.next);
    }
    return status;
}

/* The products of a call; `first` is the first one. */
typedef struct products {
    const tern__call *call;
    tern__product p;
    tern__gemm first;
} products;

static products products_of(const tern__call *call, const tern__product *p)
{
    products all = {call, *p, {}};
    merge(&all.p);
    axis taken = take_longest(&all.p);
    all.first = gemm_of(&all.p, &taken);
    if (has_row_sums(call)) all.first.row_sums = call->out[1]->data;
    all.first.relu = tern__matmul_has_relu(call);
    all.first.add = call->add[0];
    return all;
}

static bool is_one(const products *all)
{
    return all->p.sums == 0 && all->p.batches == 0 && (!all->call->out[1] || all->first.row_sums);
}

static tern__gemm nth(const products *all, int64_t n)
{
    const tern__product *p = &all->p;
    int64_t batches = count_of(p->batch, p->batches);
    tern__gemm g = all->first;
    tern__gemm_operand *operands[OPERANDS] = {&g.a, &g.b, &g.y};
    for (int i = 0; i < OPERANDS; i++) {
        int64_t offset = offset_of(p->sum, p->sums, i, n / batches);
        offset += offset_of(p->batch, p->batches, i, n % batches);
        move_on(operands[i], offset);
    }
    g.add |= n >= batches;
    return g;
}

static int run_by_cublas(const tern__call *call, const void *ctx)
{
    products all = *(const products *)ctx;
    int64_t count = count_of(all.p.sum, all.p.sums) * count_of(all.p.batch, all.p.batches);
    bool relu = all.first.relu;
    int status = TERN_OK;
    for (int64_t n = 0; n < count && !status; n++) {
        tern__gemm g = nth(&all, n);
        status = multiply(call, &g);
        if (status == TERN_E_UNSUPPORTED && leave_out(&g)) {
            leave_out(&all.first);
            status = multiply(call, &g);
        }
        if (n > 0) status = tern__cuda_must(status);
    }
    if (!status && relu && !all.first.relu) status = make_relu(call);
    if (status || !call->out[1] || all.first.row_sums) return status;
    return tern__cuda_must(tern__cuda_sum_along(call, call->in[A], 0, 1));
}

static int run(const tern__call *call, const tern__product *p)
{
    products all = products_of(call, p);
    if (!is_one(&all)) return run_by_cublas(call, &all);
    return tern__small_gemms_or(call, &all.first, 1, nullptr, run_by_cublas, &all);
}

bool tern__cuda_gemm_of(const tern__call *call, tern__gemm *g)
{
    tern__product p = tern__product_of(call);
    if (!tern__product_stands(&p)) return false;
    products all = products_of(call, &p);
    *g = all.first;
    return is_one(&all);
}

/* ---- operands that are copied ---- */

/* A view without broadcast dimensions, and a dense copy of it: as such, and expanded like the view. */
typedef struct beside {
    tern__view once, made, seen;
} beside;

static bool beside_of(const tern__call *call, const tern__view *view, tern_dtype dtype, beside *b)
{
    b->once = *view;
    for (int d = 0; d < view->ndim - 2; d++)
        if (view->stride[d] == 0) b->once.shape[d] = 1;
    if (!tern__cuda_dense(call, &b->once, dtype, TERN__PLAIN, &b->made)) return false;
    b->seen = b->made;
    for (int d = 0; d < view->ndim - 2; d++) {
        b->seen.shape[d] = view->shape[d];
        if (view->stride[d] == 0) b->seen.stride[d] = 0;
    }
    return true;
}

/* Multiplies with a dense copy of input `i` in that dtype. */
static int with_copy(const tern__call *call, int i, tern_dtype dtype)
{
    beside b;
    if (!beside_of(call, call->in[i], dtype, &b)) return TERN_E_MEMORY;
    tern__call inner = *call;
    inner.in[i] = &b.seen;
    int status = tern__cuda_copy_view(call, &b.once, &b.made, false);
    if (!status) status = matmul(&inner);
    tern__cuda_scratch_free(call, b.made.data);
    return status;
}

/* Computes y in a copy in f32 (f64 for f64), then copies or adds it, then applies the ReLU. */
static int made_beside(const tern__call *call)
{
    const tern__view *y = call->out[0];
    beside b;
    if (!beside_of(call, y, y->dtype == TERN_F64 ? TERN_F64 : TERN_F32, &b)) return TERN_E_MEMORY;
    tern__call inner = *call;
    inner.out[0] = &b.seen;
    inner.add[0] = false;
    inner.attr = nullptr;
    int status = matmul(&inner);
    if (!status) status = tern__cuda_must(tern__cuda_copy_view(call, &b.made, &b.once, call->add[0]));
    if (!status && tern__matmul_has_relu(call)) status = make_relu(call);
    tern__cuda_scratch_free(call, b.made.data);
    return status;
}

/* Computes the product without its bias and adds that afterwards; in f32 if y would be rounded in between.
 * A kernel that declines has computed nothing, so the bias is never added twice. */
static int before_bias(const tern__call *call)
{
    const tern__view *y = call->out[0];
    if (tern__dtype_is_half(y->dtype)) return made_beside(call);
    tern__view bias = tern__cuda_along(call->in[2], y, y->ndim - 1);
    tern__call inner = *call;
    inner.in[2] = nullptr;
    inner.attr = nullptr;
    int status = matmul(&inner);
    if (!status) status = tern__cuda_must(tern__cuda_copy_view(call, &bias, y, true));
    return status || !tern__matmul_has_relu(call) ? status : make_relu(call);
}

static int matmul(const tern__call *call)
{
    const tern__view *bias = call->in[2], *y = call->out[0];
    tern__product p = tern__product_of(call);
    tern__stand s;
    for (int i = A; i <= B; i++)
        if (!tern__product_stand(&p, i, &s)) return with_copy(call, i, call->in[i]->dtype);
    bool is_wider = bias && tern__dtype_is_half(y->dtype) && bias->dtype != y->dtype;
    if (!tern__product_stand(&p, Y, &s) || (tern__dtype_is_half(y->dtype) && p.sums) || is_wider)
        return made_beside(call);
    if (bias && (bias->dtype != y->dtype || !is_vector(bias))) return with_copy(call, 2, y->dtype);
    int status = run(call, &p);
    return status == TERN_E_UNSUPPORTED && bias ? before_bias(call) : status;
}

int tern__cuda_matmul(const tern__call *call)
{
    return tern__cuda_matmul_takes(call) ? matmul(call) : TERN_E_UNSUPPORTED;
}
