/* described_products.cc - cuBLASLt's own descriptors, which it makes without a GPU, for the products of an
 * MLP, of ResNet-50's last layer, of attention and for odd ones. It takes every value that
 * src/cuda/cublas/cublas.cc sets, and read back they describe one product of matrices by columns. Whether
 * it has an algorithm for them can only be asked with a GPU's driver. */
#include "cuda/cublas/cublas.cc"
#include "cuda/stopwatch.cc"

static int failures;

/* ---- functions that are never called here ---- */

int tern__cuda_ask(tern_device *, const tern__cuda_kind *, const void *, tern_error *)
{
    return TERN_E_UNSUPPORTED;
}

int tern__cuda_flush(tern_device *, tern_error *)
{
    return TERN_E_UNSUPPORTED;
}

uint64_t tern__cuda_pool_mapped(tern__cuda_pool *)
{
    return 0;
}

void tern__cuda_pool_trim(tern__cuda_pool *, uint64_t)
{
}

/* ---- products ---- */

typedef struct problem {
    const char *name;
    tern_dtype dtype, made;
    int64_t count, m, k, n;
    bool is_a_t, is_b_t, has_bias, relu, has_sums;
    int64_t gap; /* elements after every row or column */
} problem;

static void expect(const problem *p, bool is_so, const char *what)
{
    if (is_so) return;
    std::printf("FAILED: %s: %s\n", p->name, what);
    failures++;
}

static tern__gemm_operand operand_of(const problem *p, tern_dtype dtype, bool transposed, int64_t rows,
                                     int64_t columns)
{
    int64_t step = (transposed ? rows : columns) + p->gap;
    return {nullptr, dtype, transposed, step, p->count > 1 ? step * (transposed ? columns : rows) : 0};
}

static tern__gemm gemm_of(const problem *p)
{
    static char vector[16] __attribute__((aligned(256)));
    tern__gemm g = {};
    g.m = p->m, g.n = p->n, g.k = p->k, g.count = p->count;
    g.a = operand_of(p, p->dtype, p->is_a_t, p->m, p->k);
    g.b = operand_of(p, p->dtype, p->is_b_t, p->k, p->n);
    g.y = operand_of(p, p->made, false, p->m, p->n);
    g.bias = p->has_bias ? vector : nullptr;
    g.row_sums = p->has_sums ? vector : nullptr;
    g.relu = p->relu;
    for (int64_t &bytes : g.alignment) bytes = p->gap ? 2 : 256;
    return g;
}

/* ---- reading descriptors back ---- */

template <class T> static T read(const problem *p, cublasLtMatrixLayout_t layout, int attribute)
{
    T value = {};
    size_t written = 0;
    cublasStatus_t code = cublasLtMatrixLayoutGetAttribute(layout, (cublasLtMatrixLayoutAttribute_t)attribute,
                                                           &value, sizeof(value), &written);
    expect(p, code == CUBLAS_STATUS_SUCCESS && written == sizeof(value), "a layout's attribute");
    return value;
}

template <class T> static T read(const problem *p, cublasLtMatmulDesc_t desc, int attribute)
{
    T value = {};
    size_t written = 0;
    cublasStatus_t code = cublasLtMatmulDescGetAttribute(desc, (cublasLtMatmulDescAttributes_t)attribute,
                                                         &value, sizeof(value), &written);
    expect(p, code == CUBLAS_STATUS_SUCCESS && written == sizeof(value), "an operation's attribute");
    return value;
}

/* The rows of op(matrix), or its columns. */
static int64_t side(const problem *p, cublasLtMatrixLayout_t layout, int op, bool columns)
{
    bool swapped = op == CUBLAS_OP_T;
    return (int64_t)read<uint64_t>(
        p, layout, columns != swapped ? CUBLASLT_MATRIX_LAYOUT_COLS : CUBLASLT_MATRIX_LAYOUT_ROWS);
}

static void check_layout(const problem *p, cublasLtMatrixLayout_t layout, tern_dtype dtype)
{
    int64_t rows = side(p, layout, CUBLAS_OP_N, false), columns = side(p, layout, CUBLAS_OP_N, true);
    int64_t step = read<int64_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_LD);
    int64_t next = read<int64_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
    expect(p, read<int32_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_COL, "by rows");
    expect(p, read<int32_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) == p->count, "another batch");
    expect(p, read<uint32_t>(p, layout, CUBLASLT_MATRIX_LAYOUT_TYPE) == type_of(dtype), "another type");
    expect(p, step == rows + p->gap, "another step from column to column");
    expect(p, next == (p->count > 1 ? step * columns : 0), "another step from matrix to matrix");
}

/* A row of y here is a column there. */
static void check_operation(const problem *p, const gemm_plan *plan, const tern__gemm *g)
{
    int first = read<int32_t>(p, plan->desc, CUBLASLT_MATMUL_DESC_TRANSA);
    int second = read<int32_t>(p, plan->desc, CUBLASLT_MATMUL_DESC_TRANSB);
    int scale = read<int32_t>(p, plan->desc, CUBLASLT_MATMUL_DESC_SCALE_TYPE);
    expect(p, side(p, plan->layout[Y], CUBLAS_OP_N, false) == p->n, "another height of D");
    expect(p, side(p, plan->layout[Y], CUBLAS_OP_N, true) == p->m, "another width of D");
    expect(p, side(p, plan->layout[B], first, false) == p->n, "another height of op(A)");
    expect(p, side(p, plan->layout[B], first, true) == p->k, "another width of op(A)");
    expect(p, side(p, plan->layout[A], second, false) == p->k, "another height of op(B)");
    expect(p, side(p, plan->layout[A], second, true) == p->m, "another width of op(B)");
    expect(p, scale == (p->dtype == TERN_F64 ? CUDA_R_64F : CUDA_R_32F), "another type of scales");
    expect(p, read<uint32_t>(p, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE) == epilogue_of(g), "its epilogue");
    expect(p, read<const void *>(p, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER) == vector_of(g),
           "its vector");
    expect(p, read<int32_t>(p, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) == -1,
           "a vector of another type than D");
}

template <class T>
static void check_preference(const problem *p, cublasLtMatmulPreference_t preference, int attribute, T wanted)
{
    T value = {};
    size_t written = 0;
    cublasStatus_t code = cublasLtMatmulPreferenceGetAttribute(
        preference, (cublasLtMatmulPreferenceAttributes_t)attribute, &value, sizeof(value), &written);
    expect(p, code == CUBLAS_STATUS_SUCCESS && value == wanted, "a preference");
}

static void check_preferences(const problem *p, const tern__gemm *g)
{
    cublasLtMatmulPreference_t preference;
    expect(p, cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS, "no preferences");
    expect(p, set_preference(preference, g) == CUBLAS_STATUS_SUCCESS, "a preference that is refused");
    check_preference<uint64_t>(p, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE);
    check_preference<uint32_t>(p, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                               CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;
         i++)
        check_preference<uint32_t>(p, preference, i, (uint32_t)g->alignment[0]);
    cublasLtMatmulPreferenceDestroy(preference);
}

static void check(const problem *p)
{
    gemm_plan plan = {};
    tern__gemm g = gemm_of(p);
    expect(p, set_layouts(&plan, &g) == CUBLAS_STATUS_SUCCESS, "a layout that is refused");
    expect(p, set_desc(&plan, &g) == CUBLAS_STATUS_SUCCESS, "an operation that is refused");
    check_layout(p, plan.layout[A], p->dtype);
    check_layout(p, plan.layout[B], p->dtype);
    check_layout(p, plan.layout[Y], p->made);
    check_operation(p, &plan, &g);
    check_preferences(p, &g);
    plan_free(&plan);
}

/* A linear's products: forward, the gradient of its input, of its weight (out, in) and of its bias. */
static void linear(const char *name, tern_dtype dtype, tern_dtype made, int64_t rows, int64_t in, int64_t out,
                   int64_t gap)
{
    const problem all[] = {
        {name, dtype, made, 1, rows, in, out, false, true, true, false, false, gap},
        {name, dtype, made, 1, rows, in, out, false, true, true, true, false, gap},
        {name, dtype, made, 1, rows, in, out, false, true, false, true, false, gap},
        {name, dtype, made, 1, rows, out, in, false, false, false, false, false, gap},
        {name, dtype, made, 1, out, rows, in, true, false, false, false, true, gap},
    };
    for (const problem &p : all) check(&p);
}

int main(void)
{
    const problem attention[] = {
        {"scores", TERN_F16, TERN_F16, 96, 512, 64, 512, false, true, false, false, false, 0},
        {"heads", TERN_F16, TERN_F16, 96, 512, 512, 64, false, false, false, false, false, 0},
        {"keys' gradient", TERN_F16, TERN_F16, 96, 512, 512, 64, true, false, false, false, false, 0}};
    linear("an MLP's first", TERN_F32, TERN_F32, 64, 784, 1024, 0);
    linear("an MLP's second", TERN_F32, TERN_F32, 64, 1024, 1024, 0);
    linear("an MLP's last", TERN_F32, TERN_F32, 64, 1024, 10, 0);
    linear("ResNet-50's last", TERN_BF16, TERN_F32, 256, 2048, 1000, 0);
    linear("f16", TERN_F16, TERN_F16, 256, 2048, 1000, 0);
    linear("f64", TERN_F64, TERN_F64, 64, 784, 10, 0);
    linear("odd", TERN_BF16, TERN_BF16, 13, 7, 5, 6);
    linear("one row", TERN_F32, TERN_F32, 1, 7, 1, 0);
    for (const problem &p : attention) check(&p);
    if (!failures) std::printf("all are taken\n");
    return failures != 0;
}
