/* cublaslt.cc - the loops that implement cublasLt.h, with sums in f64. There are three algorithms: one
 * that heuristics return first as usable and that fails when it is run, one for matrices that are aligned
 * to 16 bytes, and one for any, which is twice as fast. For batches of f16 with a bias there is only the
 * first. Before all of them heuristics return one that is not usable. An algorithm may write its workspace,
 * and needs a vector that is aligned as the one that it was returned for. */
#include "cuda/kernels/elements.h"
#include "memory.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cublasLt.h>
#include <iterator>
#include <numeric>
#include <vector>

#define ALIGNED   1
#define ANY       2
#define FAILING   3
#define UNUSABLE  4
#define VECTOR    3    /* the word of an algorithm that says how its vector is aligned */
#define WORKSPACE 4096 /* of the first algorithm */
#define BATCH     65535

struct cublasLtContext {
    int device;
};

struct emulated_matrix {
    cudaDataType_t type;
    int64_t rows, columns, step, next;
    int32_t count;
};

struct emulated_operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    void *vector;
};

struct emulated_preference {
    uint64_t workspace;
    uint32_t reduction, alignment[4];
};

enum { A, B, C, D, MATRICES };

typedef struct problem {
    emulated_operation op;
    emulated_matrix m[MATRICES];
} problem;

size_t cublasLtGetVersion()
{
    return 130204;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an emulated failure";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    emulated_expect_runtime();
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

/* Sets a field; a value of another size is refused. */
static cublasStatus_t set(void *field, size_t field_size, const void *value, size_t size)
{
    if (size != field_size) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(field, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t step)
{
    *layout = new emulated_matrix{type, (int64_t)rows, (int64_t)columns, step, 0, 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t size)
{
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        return set(&layout->count, sizeof(layout->count), value, size);
    return set(&layout->next, sizeof(layout->next), value, size);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    *desc =
        new emulated_operation{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t size)
{
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(&desc->a, sizeof(desc->a), value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(&desc->b, sizeof(desc->b), value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&desc->epilogue, sizeof(desc->epilogue), value, size);
    default: return set(&desc->vector, sizeof(desc->vector), value, size);
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = new emulated_preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return set(&preference->workspace, sizeof(preference->workspace), value, size);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return set(&preference->reduction, sizeof(preference->reduction), value, size);
    uint32_t *alignment = &preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
    return set(alignment, sizeof(*alignment), value, size);
}

/* ---- checks, and what is supported ---- */

static void insist(bool is_right, const char *what)
{
    if (is_right) return;
    std::fprintf(stderr, "cuBLASLt was asked for what cannot be: %s\n", what);
    std::abort();
}

static bool has_relu(const problem *p)
{
    return p->op.epilogue & CUBLASLT_EPILOGUE_RELU;
}

static bool has_bias(const problem *p)
{
    return p->op.epilogue & CUBLASLT_EPILOGUE_BIAS;
}

/* Whether the epilogue sums B's columns. */
static bool has_sums(const problem *p)
{
    return p->op.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static int64_t rows_of(const emulated_matrix *m, cublasOperation_t op)
{
    return op == CUBLAS_OP_T ? m->columns : m->rows;
}

static int64_t columns_of(const emulated_matrix *m, cublasOperation_t op)
{
    return op == CUBLAS_OP_T ? m->rows : m->columns;
}

/* The number of products in a sum. */
static int64_t depth_of(const problem *p)
{
    return columns_of(&p->m[A], p->op.a);
}

static problem problem_of(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    problem p = {*desc, {*a, *b, *c, *d}};
    for (const emulated_matrix &m : p.m) {
        insist(m.rows > 0 && m.columns > 0 && m.step >= m.rows && m.next >= 0,
               "a matrix that overlaps itself");
        insist(m.count == d->count && m.count > 0, "batches of different sizes");
    }
    insist(depth_of(&p) == rows_of(b, desc->b), "matrices that do not match");
    insist(d->rows == rows_of(a, desc->a) && d->columns == columns_of(b, desc->b), "another result");
    insist(c->type == d->type && c->rows == d->rows && c->columns == d->columns, "another C than D");
    insist(desc->vector || !(has_bias(&p) || has_sums(&p)), "no vector");
    return p;
}

static bool has_types(const problem *p)
{
    cudaDataType_t a = p->m[A].type, d = p->m[D].type;
    bool doubles = p->op.compute == CUBLAS_COMPUTE_64F;
    if (p->m[B].type != a || p->op.scale != (doubles ? CUDA_R_64F : CUDA_R_32F)) return false;
    return doubles ? a == CUDA_R_64F && d == a : a != CUDA_R_64F && (d == a || d == CUDA_R_32F);
}

/* No ReLU in f64, no row sums in a wider dtype than the operands. */
static bool has_epilogue(const problem *p)
{
    if (has_sums(p)) return p->m[D].count == 1 && p->m[B].type == p->m[D].type;
    return !(has_relu(p) && p->m[D].type == CUDA_R_64F);
}

static bool runs(const problem *p)
{
    return !(has_bias(p) && p->m[D].count > 1 && p->m[D].type == CUDA_R_16F);
}

static bool has(const problem *p)
{
    return has_types(p) && has_epilogue(p) && p->m[D].count <= BATCH;
}

static int64_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static bool goes_on_aligned(const emulated_matrix *m)
{
    return (m->step | m->next) * bytes_of(m->type) % 16 == 0;
}

/* ---- algorithms ---- */

static uint64_t alignment_of(const void *vector)
{
    uint64_t bits = (uint64_t)(uintptr_t)vector | 256;
    return bits & -bits;
}

/* An algorithm is valid for the case that it was returned for. */
static cublasLtMatmulAlgo_t algorithm_of(const problem *p, uint64_t which)
{
    return {{which, (uint64_t)p->m[A].type << 32 | (uint64_t)p->m[D].type, (uint64_t)p->op.epilogue,
             alignment_of(p->op.vector)}};
}

static bool is_of(const problem *p, const cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulAlgo_t own = algorithm_of(p, algorithm->data[0]);
    bool is_aligned = true;
    for (const emulated_matrix &m : p->m) is_aligned &= goes_on_aligned(&m);
    if (own.data[VECTOR] > algorithm->data[VECTOR]) own.data[VECTOR] = algorithm->data[VECTOR];
    return !std::memcmp(&own, algorithm, sizeof(own)) && own.data[0] >= ALIGNED && own.data[0] <= FAILING &&
           (own.data[0] != ALIGNED || is_aligned) && (own.data[0] == FAILING || runs(p));
}

static size_t workspace_of(const cublasLtMatmulAlgo_t *algorithm)
{
    return algorithm->data[0] == ALIGNED ? WORKSPACE : 0;
}

static bool allows(const emulated_preference *preference, const cublasLtMatmulAlgo_t *algorithm)
{
    bool is_aligned = true;
    for (uint32_t bytes : preference->alignment) is_aligned &= bytes >= 16;
    return workspace_of(algorithm) <= preference->workspace && (algorithm->data[0] != ALIGNED || is_aligned);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    insist(!emulated_captures, "algorithms while a stream is captured");
    problem p = problem_of(desc, a, b, c, d);
    *count = 0;
    if (!has(&p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    results[(*count)++] = {algorithm_of(&p, UNUSABLE), 0, CUBLAS_STATUS_NOT_SUPPORTED, 1, {}};
    for (uint64_t which : {FAILING, ALIGNED, ANY}) {
        cublasLtMatmulAlgo_t algorithm = algorithm_of(&p, which);
        if (*count < most && is_of(&p, &algorithm) && allows(preference, &algorithm))
            results[(*count)++] = {algorithm, workspace_of(&algorithm), CUBLAS_STATUS_SUCCESS, 1, {}};
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *result)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    insist(!emulated_captures, "algorithms while a stream is captured");
    problem p = problem_of(desc, a, b, c, d);
    if (!has(&p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!is_of(&p, algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = workspace_of(algorithm);
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- products ---- */

static int dtype_of(cudaDataType_t type)
{
    return type == CUDA_R_64F    ? TERN_F64
           : type == CUDA_R_32F  ? TERN_F32
           : type == CUDA_R_16BF ? TERN_BF16
                                 : TERN_F16;
}

static double get(const emulated_matrix *m, cublasOperation_t op, const void *data, int64_t batch, int64_t i,
                  int64_t j)
{
    int64_t at = batch * m->next + (op == CUBLAS_OP_T ? i * m->step + j : j * m->step + i);
    return tern__element<double>(data, dtype_of(m->type), at);
}

typedef struct work {
    problem p;
    double alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    double speed;
} work;

/* The rows of op(A), or the columns of op(B), one after the other. */
typedef std::vector<double> lines;

static lines rows_of_a(const work *w, int64_t batch)
{
    int64_t depth = depth_of(&w->p), count = w->p.m[D].rows;
    lines all((size_t)(count * depth));
    for (int64_t i = 0; i < count * depth; i++)
        all[(size_t)i] = get(&w->p.m[A], w->p.op.a, w->a, batch, i / depth, i % depth);
    return all;
}

static lines columns_of_b(const work *w, int64_t batch)
{
    int64_t depth = depth_of(&w->p), count = w->p.m[D].columns;
    lines all((size_t)(count * depth));
    for (int64_t i = 0; i < count * depth; i++)
        all[(size_t)i] = get(&w->p.m[B], w->p.op.b, w->b, batch, i % depth, i / depth);
    return all;
}

/* Stores a result. The ReLU turns NaN into 0. */
static void put(const work *w, int64_t batch, int64_t i, int64_t j, double sum)
{
    const emulated_matrix *d = &w->p.m[D];
    double value = w->alpha * sum;
    if (w->beta != 0) value += w->beta * get(&w->p.m[C], CUBLAS_OP_N, w->c, batch, i, j);
    if (has_bias(&w->p)) value += tern__element<double>(w->p.op.vector, dtype_of(d->type), i);
    if (has_relu(&w->p)) value = std::fmax(value, 0);
    tern__element_set<double>(w->d, dtype_of(d->type), batch * d->next + j * d->step + i, value);
}

/* Rounds as the requested type does: in f32 after each product. With a ReLU the sum starts from the end,
 * as heuristics may return another algorithm for another epilogue. */
static double sum_of(const work *w, const double *row, const double *column)
{
    const double *end = row + depth_of(&w->p), *column_end = column + depth_of(&w->p);
    if (w->p.op.compute == CUBLAS_COMPUTE_64F) return std::inner_product(row, end, column, 0.0);
    if (!has_relu(&w->p)) return std::inner_product(row, end, column, 0.0f);
    return std::inner_product(std::make_reverse_iterator(end), std::make_reverse_iterator(row),
                              std::make_reverse_iterator(column_end), 0.0f);
}

static void multiply_one(const work *w, int64_t batch)
{
    const emulated_matrix *d = &w->p.m[D];
    const lines a = rows_of_a(w, batch), b = columns_of_b(w, batch);
    int64_t depth = depth_of(&w->p);
    for (int64_t j = 0; j < d->columns; j++)
        for (int64_t i = 0; i < d->rows; i++) {
            const double *row = &a[(size_t)(i * depth)], *column = &b[(size_t)(j * depth)];
            put(w, batch, i, j, sum_of(w, row, column));
        }
    const lines ones(has_sums(&w->p) ? (size_t)depth : 0, 1);
    for (int64_t j = 0; j < d->columns && has_sums(&w->p); j++)
        tern__element_set<double>(w->p.op.vector, dtype_of(d->type), j,
                                  sum_of(w, &b[(size_t)(j * depth)], ones.data()));
}

static void multiply(const work *w)
{
    const emulated_matrix *d = &w->p.m[D];
    emulated_memory_open();
    std::memset(w->workspace, 0xff, w->workspace_bytes);
    for (int64_t batch = 0; batch < d->count; batch++) multiply_one(w, batch);
    emulated_memory_close();
    emulated_ms +=
        2e-6 / w->speed * (double)(d->count * d->rows) * (double)d->columns * (double)depth_of(&w->p);
}

static bool begins_aligned(const void *data)
{
    return (uintptr_t)data % 16 == 0;
}

static double number(const problem *p, const void *data)
{
    return p->op.scale == CUDA_R_64F ? *(const double *)data : *(const float *)data;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    problem p = problem_of(desc, a_layout, b_layout, c_layout, d_layout);
    bool is_aligned = begins_aligned(a) && begins_aligned(b) && begins_aligned(c) && begins_aligned(d);
    insist(has(&p) && is_of(&p, algorithm), "an algorithm for something else");
    insist(workspace && workspace_of(algorithm) <= workspace_bytes, "too little workspace");
    insist(is_aligned || algorithm->data[0] != ALIGNED, "a matrix at a misaligned address");
    insist(begins_aligned(desc->vector), "a vector at a misaligned address");
    if (algorithm->data[0] == FAILING || emulated_refuses("products")) return CUBLAS_STATUS_EXECUTION_FAILED;
    const double speed = algorithm->data[0] == ANY ? 2 : 1;
    const work w = {p, number(&p, alpha), number(&p, beta),        a,    b, c,
                    d, workspace,         workspace_of(algorithm), speed};
    emulated_enqueue(stream, [w] { multiply(&w); });
    return CUBLAS_STATUS_SUCCESS;
}
