/* cublas.cc - matrix products by cuBLASLt. It stores matrices by columns, so it is asked for y^T = b^T
 * a^T: a matrix by rows here is its transpose there. Of the algorithms that its heuristics return for a
 * case the fastest is kept, or the first that runs if measuring is not allowed (as in conv_plan.cc). */
#include "cuda/cublas/cublas.h"
#include "cuda/stopwatch.h"

extern "C" {
#include "device/choices.h"
}

#include <array>
#include <cstdio>
#include <cstring>
#include <cublasLt.h>
#include <map>

#define WORKSPACE ((size_t)32 << 20)
#define MOST      8 /* most algorithms that are tried */
#define TEXT      512
#define WORDS     8 /* words of an algorithm's data */
#define NAME      (16 * WORDS + 1)

enum { A, B, Y, OPERANDS };

typedef std::array<int64_t, 16> gemm_key;

typedef struct gemm_plan {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout[OPERANDS];
    cublasLtMatmulAlgo_t algorithm;
    bool works;
    uint64_t heard; /* device->choices->heard when it was chosen */
} gemm_plan;

typedef struct cublas {
    cublasLtHandle_t handle;
    void *workspace;
    std::map<gemm_key, gemm_plan> plans;
} cublas;

static int check_code(cublasStatus_t code, const char *what, tern_error *err)
{
    if (code == CUBLAS_STATUS_SUCCESS) return TERN_OK;
    int status = code == CUBLAS_STATUS_ALLOC_FAILED ? TERN_E_MEMORY : TERN_E_SYSTEM;
    tern__error_set(err, "matmul", status, "%s: %s", what, cublasLtGetStatusString(code));
    if (err && !err->native) err->native = (int)code;
    return status;
}

static int check(const tern__call *call, cublasStatus_t code, const char *what)
{
    return check_code(code, what, call->err);
}

/* ---- the library's state ---- */

static void plan_free(gemm_plan *plan)
{
    for (cublasLtMatrixLayout_t layout : plan->layout)
        if (layout) cublasLtMatrixLayoutDestroy(layout);
    if (plan->desc) cublasLtMatmulDescDestroy(plan->desc);
}

static void cublas_free(tern_device *device, void *state)
{
    cublas *lib = (cublas *)state;
    for (auto &entry : lib->plans) plan_free(&entry.second);
    if (lib->handle) cublasLtDestroy(lib->handle);
    if (lib->workspace) device->backend->free(device, lib->workspace);
    delete lib;
}

static int cublas_of(const tern__call *call, cublas **lib)
{
    tern__cuda_library *slot = &tern__cuda_of(call->device)->libraries[TERN__CUDA_CUBLAS];
    *lib = (cublas *)slot->state;
    if (*lib) return TERN_OK;
    *lib = new cublas();
    int status = check(call, cublasLtCreate(&(*lib)->handle), "cublasLtCreate");
    if (!status) (*lib)->workspace = tern__cuda_scratch(call, WORKSPACE);
    if (!status && !(*lib)->workspace) status = TERN_E_MEMORY;
    if (status)
        cublas_free(call->device, *lib);
    else
        *slot = (tern__cuda_library){*lib, cublas_free};
    return status;
}

/* ---- plans ---- */

static cudaDataType_t type_of(tern_dtype dtype)
{
    switch ((int)dtype) {
    case TERN_F64: return CUDA_R_64F;
    case TERN_BF16: return CUDA_R_16BF;
    case TERN_F16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

/* The vector that an epilogue reads or writes: cuBLASLt has one parameter for both. */
static const void *vector_of(const tern__gemm *g)
{
    return g->row_sums ? g->row_sums : g->bias;
}

/* The heuristics depend on the vector's address as well. */
static gemm_key key_of(const tern__gemm *g)
{
    gemm_key key = {g->m, g->n, g->k, g->count};
    const tern__gemm_operand *operands[OPERANDS] = {&g->a, &g->b, &g->y};
    size_t at = 4;
    for (int i = 0; i < OPERANDS; i++) {
        key[at++] = operands[i]->step;
        key[at++] = operands[i]->next;
        key[at++] = (int64_t)operands[i]->dtype << 16 | g->alignment[i] << 1 | operands[i]->transposed;
    }
    const int64_t bits = (int64_t)(uintptr_t)vector_of(g) | 256;
    key[at++] = bits & -bits;
    key[at++] = g->relu << 3 | (g->row_sums != nullptr) << 2 | (g->bias != nullptr) << 1 | g->add;
    return key;
}

static cublasStatus_t set_layout(cublasLtMatrixLayout_t *layout, const tern__gemm_operand *o, int64_t rows,
                                 int64_t columns, int64_t count)
{
    int64_t inner = o->transposed ? rows : columns, outer = o->transposed ? columns : rows;
    int32_t batches = (int32_t)count;
    cublasStatus_t code =
        cublasLtMatrixLayoutCreate(layout, type_of(o->dtype), (uint64_t)inner, (uint64_t)outer, o->step);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches,
                                                sizeof(batches));
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &o->next, sizeof(o->next));
    return code;
}

static cublasStatus_t set_layouts(gemm_plan *plan, const tern__gemm *g)
{
    cublasStatus_t code = set_layout(&plan->layout[A], &g->a, g->m, g->k, g->count);
    if (code == CUBLAS_STATUS_SUCCESS) code = set_layout(&plan->layout[B], &g->b, g->k, g->n, g->count);
    if (code == CUBLAS_STATUS_SUCCESS) code = set_layout(&plan->layout[Y], &g->y, g->m, g->n, g->count);
    return code;
}

static cublasStatus_t set_bias(const gemm_plan *plan, const void *bias)
{
    return cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

/* The ReLU is documented as max(x, 0), but is reported to turn NaN into 0. */
static cublasLtEpilogue_t epilogue_of(const tern__gemm *g)
{
    if (g->row_sums) return CUBLASLT_EPILOGUE_BGRADB;
    if (g->bias) return g->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    return g->relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

/* f32 is multiplied in f32, which is PyTorch's default. */
static cublasStatus_t set_desc(gemm_plan *plan, const tern__gemm *g)
{
    bool doubles = g->a.dtype == TERN_F64;
    cublasOperation_t first = g->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = g->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = epilogue_of(g);
    cublasStatus_t code = cublasLtMatmulDescCreate(
        &plan->desc, doubles ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, doubles ? CUDA_R_64F : CUDA_R_32F);
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    if (code == CUBLAS_STATUS_SUCCESS)
        code =
            cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (code == CUBLAS_STATUS_SUCCESS)
        code = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof(epilogue));
    if (code == CUBLAS_STATUS_SUCCESS && vector_of(g)) code = set_bias(plan, vector_of(g));
    return code;
}

/* Partial sums of long sums are added in f32, never in 16 bits. */
static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, const tern__gemm *g)
{
    size_t workspace = WORKSPACE;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t first = (uint32_t)g->alignment[B], second = (uint32_t)g->alignment[A];
    uint32_t result = (uint32_t)g->alignment[Y];
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t size;
    } settings[] = {{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
                    {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof(reduction)},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first, sizeof(first)},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second, sizeof(second)},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof(result)},
                    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof(result)}};
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (const auto &s : settings)
        if (code == CUBLAS_STATUS_SUCCESS)
            code = cublasLtMatmulPreferenceSetAttribute(preference, s.attribute, s.value, s.size);
    return code;
}

/* ---- products ---- */

/* The data of a product's item. It holds the algorithm itself, since the plan's may have changed when a
 * recorded step is compared with the next. */
typedef struct alignas(16) product {
    cublas *lib;
    const gemm_plan *plan;
    const void *a, *b, *bias;
    void *y;
    int64_t add, doubles;
    cublasLtMatmulAlgo_t algorithm;
} product;

static int run_product(tern__cuda *cuda, const void *data, tern_error *err)
{
    const product *p = (const product *)data;
    const gemm_plan *plan = p->plan;
    const float one = 1, beta = (float)p->add;
    const double ones = 1, betas = (double)p->add;
    cublasStatus_t code = p->bias ? set_bias(plan, p->bias) : CUBLAS_STATUS_SUCCESS;
    if (code != CUBLAS_STATUS_SUCCESS) return check_code(code, "cublasLtMatmulDescSetAttribute", err);
    code = cublasLtMatmul(p->lib->handle, plan->desc, p->doubles ? (const void *)&ones : &one, p->b,
                          plan->layout[B], p->a, plan->layout[A], p->doubles ? (const void *)&betas : &beta,
                          p->y, plan->layout[Y], p->y, plan->layout[Y], &p->algorithm, p->lib->workspace,
                          WORKSPACE, cuda->stream);
    return check_code(code, "cublasLtMatmul", err);
}

static const tern__cuda_kind product_kind = {sizeof(product), sizeof(product), run_product, nullptr};

static product product_of(cublas *lib, const gemm_plan *plan, const tern__gemm *g)
{
    bool doubles = g->a.dtype == TERN_F64;
    return {lib, plan, g->a.data, g->b.data, vector_of(g), g->y.data, g->add, doubles, plan->algorithm};
}

/* ---- choosing ---- */

/* Keeps the algorithms that cuBLASLt reports as usable. */
static int keep_sound(cublasLtMatmulHeuristicResult_t found[MOST], int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) found[kept++] = found[i];
    return kept;
}

/* Asks the heuristics for algorithms, best first; none is no error. */
static int ask_heuristics(const tern__call *call, cublas *lib, const gemm_plan *plan, const tern__gemm *g,
                          cublasLtMatmulHeuristicResult_t found[MOST], int *count)
{
    cublasLtMatmulPreference_t preference;
    *count = 0;
    int status = check(call, cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    if (status) return status;
    status = check(call, set_preference(preference, g), "cublasLtMatmulPreferenceSetAttribute");
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    if (!status)
        code =
            cublasLtMatmulAlgoGetHeuristic(lib->handle, plan->desc, plan->layout[B], plan->layout[A],
                                           plan->layout[Y], plan->layout[Y], preference, MOST, found, count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status) return status;
    bool is_none = code == CUBLAS_STATUS_NOT_SUPPORTED || code == CUBLAS_STATUS_INVALID_VALUE;
    *count = code == CUBLAS_STATUS_SUCCESS ? keep_sound(found, *count) : 0;
    return is_none ? TERN_OK : check(call, code, "cublasLtMatmulAlgoGetHeuristic");
}

/* The candidate, and a buffer for results when the call adds to y. */
typedef struct trial {
    tern__call call;
    product what;
    tern__stopwatch watch;
    void *elsewhere;
} trial;

static int run_trial(void *ctx)
{
    trial *t = (trial *)ctx;
    return tern__cuda_ask(t->call.device, &product_kind, &t->what, t->call.err);
}

static bool trial_open(trial *t, const tern__call *call, cublas *lib, const gemm_plan *plan,
                       const tern__gemm *g)
{
    int64_t elements = (g->count - 1) * g->y.next + (g->m - 1) * g->y.step + g->n;
    *t = {};
    t->call = *call;
    t->call.err = nullptr;
    t->what = product_of(lib, plan, g);
    bool is_open = tern__stopwatch_open(&t->watch, call);
    if (g->add) {
        t->elsewhere = tern__cuda_scratch(call, (size_t)elements * tern_dtype_bytes(g->y.dtype));
        t->what.y = t->elsewhere;
    }
    return is_open && t->what.y;
}

static void trial_close(trial *t)
{
    tern__cuda_scratch_free(&t->call, t->elsewhere);
    tern__stopwatch_close(&t->watch);
}

/* Puts the best algorithm into the plan, and runs it if any works: one reported as usable may still fail
 * when it runs. Returns its milliseconds; negative: none has run. */
static float take_best(const tern__call *call, cublas *lib, gemm_plan *plan, const tern__gemm *g,
                       const cublasLtMatmulHeuristicResult_t found[MOST], int count)
{
    trial t;
    int best = 0;
    float least = -1;
    bool can = trial_open(&t, call, lib, plan, g);
    for (int i = 0; i < count && can; i++) {
        t.what.algorithm = found[i].algo;
        float ms = tern__stopwatch_try(&t.watch, run_trial, &t, least);
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        best = i;
        least = ms;
        if (!tern__stopwatch_decides(call->device)) break;
    }
    plan->algorithm = found[best].algo;
    plan->works = !can || least >= 0;
    trial_close(&t);
    return least;
}

/* ---- choosing with what is known ---- */

static void describe(const tern__gemm *g, char text[TEXT])
{
    gemm_key key = key_of(g);
    tern__stopwatch_case("product", key.data(), key.size(), text, TEXT);
}

/* An algorithm is plain bytes, valid in all processes with the same version of cuBLAS. */
static void name_it(const cublasLtMatmulAlgo_t *algorithm, char name[NAME])
{
    for (int i = 0; i < WORDS; i++)
        std::snprintf(name + 16 * i, 17, "%016llx", (unsigned long long)algorithm->data[i]);
}

static bool take_named(cublas *lib, gemm_plan *plan, const char *name)
{
    cublasLtMatmulAlgo_t algorithm = {};
    cublasLtMatmulHeuristicResult_t result = {};
    if (std::strlen(name) != NAME - 1) return false;
    for (int i = 0; i < WORDS; i++) {
        unsigned long long word;
        if (std::sscanf(name + 16 * i, "%16llx", &word) != 1) return false;
        algorithm.data[i] = word;
    }
    cublasStatus_t code = cublasLtMatmulAlgoCheck(lib->handle, plan->desc, plan->layout[B], plan->layout[A],
                                                  plan->layout[Y], plan->layout[Y], &algorithm, &result);
    if (code != CUBLAS_STATUS_SUCCESS || result.workspaceSize > WORKSPACE) return false;
    plan->algorithm = algorithm;
    return plan->works = true;
}

/* Chooses as conv_plan.cc chooses engines. */
static int choose(const tern__call *call, cublas *lib, gemm_plan *plan, const tern__gemm *g)
{
    tern_device *device = call->device;
    cublasLtMatmulHeuristicResult_t found[MOST] = {};
    char what[TEXT], name[NAME];
    int count = 0;
    describe(g, what);
    plan->heard = device->choices->heard;
    const char *named = device->conv.deterministic ? nullptr : device->choices->find(device, what);
    if (named && take_named(lib, plan, named)) return TERN_OK;
    int status = ask_heuristics(call, lib, plan, g, found, &count);
    if (status || !count) return status;
    if (take_best(call, lib, plan, g, found, count) < 0 || !tern__stopwatch_decides(device)) return TERN_OK;
    name_it(&plan->algorithm, name);
    device->choices->keep(device, what, name);
    return TERN_OK;
}

/* Takes choices heard since. Items that were given to the device or recorded do not refer to the plan's
 * algorithm. */
static void take_news(const tern__call *call, cublas *lib, gemm_plan *plan, const tern__gemm *g)
{
    tern_device *device = call->device;
    char what[TEXT];
    plan->heard = device->choices->heard;
    if (device->conv.deterministic || !plan->works) return;
    describe(g, what);
    const char *named = device->choices->find(device, what);
    if (named) take_named(lib, plan, named);
}

static int plan_of(const tern__call *call, cublas *lib, const tern__gemm *g, const gemm_plan **plan)
{
    gemm_key key = key_of(g);
    auto known = lib->plans.find(key);
    if (known == lib->plans.end()) {
        gemm_plan made = {};
        int status = check(call, set_layouts(&made, g), "cublasLtMatrixLayoutSetAttribute");
        if (!status) status = check(call, set_desc(&made, g), "cublasLtMatmulDescSetAttribute");
        if (!status) status = choose(call, lib, &made, g);
        if (status) {
            plan_free(&made);
            return status;
        }
        known = lib->plans.emplace(key, made).first;
    } else if (known->second.heard != call->device->choices->heard) {
        take_news(call, lib, &known->second, g);
    }
    *plan = &known->second;
    return (*plan)->works ? TERN_OK : TERN_E_UNSUPPORTED;
}

int tern__cublas_gemm(const tern__call *call, const tern__gemm *g)
{
    const gemm_plan *plan;
    cublas *lib;
    cudaSetDevice(tern__cuda_of(call->device)->index);
    int status = cublas_of(call, &lib);
    if (!status) status = plan_of(call, lib, g, &plan);
    if (status) return status;
    const product p = product_of(lib, plan, g);
    return tern__cuda_ask(call->device, &product_kind, &p, call->err);
}

void tern__cublas_version(char *text, size_t size)
{
    size_t version = cublasLtGetVersion();
    std::snprintf(text, size, "cuBLAS %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}
