/* cublas.cc - plain loops with sums in f64, in the place of cuBLASLt. */
#include "cuda/cublas.h"
#include "cuda/elements.h"
#include "memory.h"

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
    tern__element_set<double>(g->y.data, g->y.dtype, at, sum);
}

int tern__cublas_gemm(const tern__call *, const tern__gemm *g)
{
    emulated_memory_open();
    for (int64_t batch = 0; batch < g->count; batch++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < g->k; p++) sum += get(g->a, batch, i, p) * get(g->b, batch, p, j);
                put(g, batch, i, j, sum);
            }
    emulated_memory_close();
    return TERN_OK;
}

void tern__cublas_version(char *text, size_t size)
{
    if (size) *text = 0;
}
