/* cublas.cc - plain loops with sums in f64, in the place of cuBLASLt. */
#include "cuda/cublas.h"
#include "cuda/elements.h"
#include "memory.h"

#include <cmath>

static double get(const tern__gemm_operand &o, int64_t batch, int64_t row, int64_t column)
{
    int64_t at = batch * o.next + (o.transposed ? column * o.step + row : row * o.step + column);
    return tern__element<double>(o.data, o.dtype, at);
}

static void put(const tern__gemm *g, int64_t batch, int64_t i, int64_t j, double sum)
{
    int64_t at = batch * g->y.next + i * g->y.step + j;
    if (g->bias) sum += tern__element<double>(g->bias, g->y.dtype, j);
    if (g->add) sum += tern__element<double>(g->y.data, g->y.dtype, at);
    if (g->relu) sum = fmax(sum, 0); /* of NaN 0, as cuBLASLt's */
    tern__element_set<double>(g->y.data, g->y.dtype, at, sum);
}

static void sum_rows(const tern__gemm *g)
{
    for (int64_t i = 0; i < g->m && g->row_sums; i++) {
        double sum = 0;
        for (int64_t p = 0; p < g->k; p++) sum += get(g->a, 0, i, p);
        tern__element_set<double>(g->row_sums, g->y.dtype, i, sum);
    }
}

static void multiply(const tern__gemm *g)
{
    emulated_memory_open();
    sum_rows(g);
    for (int64_t batch = 0; batch < g->count; batch++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < g->k; p++) sum += get(g->a, batch, i, p) * get(g->b, batch, p, j);
                put(g, batch, i, j, sum);
            }
    emulated_memory_close();
    emulated_ms += 2e-6 * (double)g->count * (double)g->m * (double)g->n * (double)g->k;
}

static int run(tern__cuda *cuda, const void *data, tern_error *)
{
    tern__gemm g = *(const tern__gemm *)data;
    emulated_enqueue(cuda->stream, [g] { multiply(&g); });
    return TERN_OK;
}

/* Without what may stand in the gaps of the struct. */
static void copy_operand(tern__gemm_operand *to, const tern__gemm_operand *from)
{
    to->data = from->data;
    to->dtype = from->dtype;
    to->transposed = from->transposed;
    to->step = from->step;
    to->next = from->next;
}

/* It has no ReLU in f64: who asks has to go without. */
int tern__cublas_gemm(const tern__call *call, const tern__gemm *g)
{
    if (g->relu && g->y.dtype == TERN_F64) return TERN_E_UNSUPPORTED;
    static const tern__cuda_kind kind = {sizeof(tern__gemm), sizeof(tern__gemm), run, nullptr};
    alignas(16) char data[sizeof(tern__gemm)] = {};
    tern__gemm *item = (tern__gemm *)data;
    item->m = g->m;
    item->n = g->n;
    item->k = g->k;
    item->count = g->count;
    copy_operand(&item->a, &g->a);
    copy_operand(&item->b, &g->b);
    copy_operand(&item->y, &g->y);
    item->bias = g->bias;
    item->row_sums = g->row_sums;
    item->add = g->add;
    item->relu = g->relu;
    return tern__cuda_ask(call->device, &kind, data, call->err);
}

void tern__cublas_version(char *text, size_t size)
{
    if (size) *text = 0;
}
