/* cudnn.cc - a convolution as a graph of one operation (cuDNN 9's C API: descriptors with attributes), the
 * engines that its heuristics name for it, and the one of them that is kept.
 *
 * Where clocks may decide, the fastest of those that the heuristics find fit is taken, else the first.
 * Engines for everything, and then those that need more memory than the device's rules allow, count only
 * where there is no other. */
#include "cuda/cudnn.h"
#include "cuda/cudnn_row.h"

#include <array>
#include <cstdio>
#include <map>
#include <vector>

#define RUNS  3
#define SIDES TERN__CONV_OPERANDS

typedef std::array<int64_t, 40> conv_key;

typedef struct conv_plan {
    std::vector<desc> parts; /* what the plan is made of, each of those before it */
    desc plan;               /* NULL: there is none */
    int64_t workspace;
    char name[32];
} conv_plan;

struct cudnn {
    cudnnHandle_t handle;
    std::map<conv_key, conv_plan> plans;
};

/* ---- the library's state ---- */

static void plan_free(conv_plan *p)
{
    destroy(p->plan);
    for (size_t i = p->parts.size(); i > 0; i--) destroy(p->parts[i - 1]);
}

static void cudnn_free(tern_device *, void *state)
{
    cudnn *lib = (cudnn *)state;
    for (auto &entry : lib->plans) plan_free(&entry.second);
    if (lib->handle) cudnnDestroy(lib->handle);
    delete lib;
}

static void open_library(row *r)
{
    tern__cuda *cuda = tern__cuda_of(r->call->device);
    tern__cuda_library *slot = &cuda->libraries[TERN__CUDA_CUDNN];
    cudaSetDevice(cuda->index);
    r->lib = (cudnn *)slot->state;
    if (r->lib) return;
    cudnn *lib = new cudnn();
    if (went(r, cudnnCreate(&lib->handle), "cudnnCreate"))
        went(r, cudnnSetStream(lib->handle, cuda->stream), "cudnnSetStream");
    if (!is_well(r)) return cudnn_free(r->call->device, lib);
    *slot = (tern__cuda_library){lib, cudnn_free};
    r->lib = lib;
}

/* ---- cases ---- */

static int64_t alignment_of(const void *data)
{
    int64_t bits = 16 | (int64_t)(uintptr_t)data;
    return bits & -bits;
}

static conv_key key_of(const tern__cudnn_conv *c)
{
    conv_key key = {};
    size_t at = 0;
    key[at++] = c->kernel << 1 | c->add;
    for (const tern__view &v : c->operand) {
        key[at++] = v.layout << 16 | v.dtype << 8 | alignment_of(v.data);
        for (int d = 0; d < v.ndim; d++) key[at++] = v.shape[d];
    }
    for (int d = 0; d < 3; d++) {
        key[at++] = c->attr->stride[d];
        key[at++] = c->attr->padding[d];
        key[at++] = c->attr->dilation[d];
    }
    key[at++] = c->attr->groups;
    key[at++] = c->operand[0].ndim;
    return key;
}

/* ---- graphs ---- */

/* A part of the plan. */
static desc part(row *r, conv_plan *p, cudnnBackendDescriptorType_t type)
{
    desc made = make(r, type);
    if (made) p->parts.push_back(made);
    return made;
}

static cudnnDataType_t type_of(tern_dtype dtype)
{
    switch ((int)dtype) {
    case TERN_F64: return CUDNN_DATA_DOUBLE;
    case TERN_BF16: return CUDNN_DATA_BFLOAT16;
    case TERN_F16: return CUDNN_DATA_HALF;
    default: return CUDNN_DATA_FLOAT;
    }
}

/* A tensor is known by its number in `operand`, from 1 on. */
static desc tensor(row *r, conv_plan *p, const tern__cudnn_conv *c, int i)
{
    const tern__view *v = &c->operand[i];
    desc d = part(r, p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = type_of(v->dtype);
    set(r, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(r, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, v->ndim, v->shape);
    set(r, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, v->ndim, v->stride);
    set_int64(r, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, i + 1);
    set_int64(r, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment_of(v->data));
    finalize(r, d);
    return d;
}

static desc convolution(row *r, conv_plan *p, const tern__cudnn_conv *c)
{
    int spatial = c->operand[0].ndim - 2, first = 3 - spatial;
    const int64_t *padding = c->attr->padding + first;
    cudnnDataType_t compute = c->operand[0].dtype == TERN_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    desc d = part(r, p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(r, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(r, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_int64(r, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, spatial);
    set(r, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, padding);
    set(r, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, padding);
    set(r, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, c->attr->dilation + first);
    set(r, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, c->attr->stride + first);
    finalize(r, d);
    return d;
}

/* The three operations differ in nothing but the names of their attributes. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t operand[SIDES], conv, alpha, beta;
} operation_names;

#define ATTRIBUTE(kind, name) CUDNN_ATTR_OPERATION_CONVOLUTION_##kind##_##name
#define OPERATION(type, kind, x, w, y)                                                                       \
    {                                                                                                        \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##type##_DESCRIPTOR,                                             \
            {ATTRIBUTE(kind, x), ATTRIBUTE(kind, w), ATTRIBUTE(kind, y)}, ATTRIBUTE(kind, CONV_DESC),        \
            ATTRIBUTE(kind, ALPHA), ATTRIBUTE(kind, BETA)                                                    \
    }

static const operation_names *names_of(tern__kernel kernel)
{
    static const operation_names forward = OPERATION(FORWARD, FORWARD, X, W, Y);
    static const operation_names data = OPERATION(BACKWARD_DATA, BWD_DATA, DX, W, DY);
    static const operation_names weight = OPERATION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY);
    return kernel == TERN__CONV ? &forward : kernel == TERN__CONV_DATA_GRAD ? &data : &weight;
}

static desc operation(row *r, conv_plan *p, const tern__cudnn_conv *c)
{
    const operation_names *names = names_of(c->kernel);
    const float alpha = 1, beta = c->add;
    const double alphas = 1, betas = c->add;
    bool doubles = c->operand[0].dtype == TERN_F64;
    cudnnBackendAttributeType_t type = doubles ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    desc tensors[SIDES], how = convolution(r, p, c);
    for (int i = 0; i < SIDES; i++) tensors[i] = tensor(r, p, c, i);
    desc d = part(r, p, names->type);
    for (int i = 0; i < SIDES; i++) set_desc(r, d, names->operand[i], tensors[i]);
    set_desc(r, d, names->conv, how);
    set(r, d, names->alpha, type, 1, doubles ? (const void *)&alphas : &alpha);
    set(r, d, names->beta, type, 1, doubles ? (const void *)&betas : &beta);
    finalize(r, d);
    return d;
}

static desc graph(row *r, conv_plan *p, const tern__cudnn_conv *c)
{
    desc only = operation(r, p, c), d = part(r, p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (d) set(r, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &r->lib->handle);
    set_desc(r, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, only);
    finalize(r, d);
    return d;
}

/* ---- engines ---- */

/* One of the heuristics' answers, and what there is of it to run. */
typedef struct candidate {
    desc config, plan;
    int64_t workspace, engine;
} candidate;

static void candidate_free(const candidate *c)
{
    destroy(c->plan);
    destroy(c->config);
}

/* All that one mode of the heuristics names, best first; a mode that has nothing to say is no failure. */
static void add_candidates(const row *outer, desc graph, cudnnBackendHeurMode_t mode,
                           std::vector<candidate> *all)
{
    row r = *outer;
    desc heuristics = make(&r, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(&r, heuristics);
    int64_t count =
        get(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    std::vector<desc> configs;
    for (int64_t i = 0; i < count; i++) configs.push_back(make(&r, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    int64_t got = get(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                      configs.data());
    for (int64_t i = 0; i < count; i++)
        if (i < got)
            all->push_back({configs[(size_t)i], nullptr, 0, 0});
        else
            destroy(configs[(size_t)i]);
    destroy(heuristics);
}

/* What an engine does to numbers: a bit for each of cuDNN's notes. */
static unsigned notes_of(row *r, candidate *c)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    unsigned bits = 0;
    desc engine = make(r, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(r, c->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    get(r, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &c->engine);
    int64_t count = get(r, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) bits |= 1u << notes[i];
    destroy(engine);
    return bits;
}

/* Inputs keep their bits and sums are f32's, always. f32 that is to be exact meets neither TF32, which is
 * what tensor cores make of it, nor transforms. */
static bool is_allowed(unsigned notes, const tern_device *device, tern_dtype dtype)
{
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (device->conv.deterministic) never |= 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    if (device->conv.exact && dtype == TERN_F32)
        never |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
    return !(notes & never);
}

/* Makes the plan, of an engine that the rules allow. */
static bool build(const row *outer, const tern__cudnn_conv *conv, candidate *c)
{
    row r = *outer;
    if (!is_allowed(notes_of(&r, c), r.call->device, conv->operand[0].dtype)) return false;
    c->plan = make(&r, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(&r, c->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &r.lib->handle);
    set_desc(&r, c->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, c->config);
    finalize(&r, c->plan);
    get(&r, c->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &c->workspace);
    return is_well(&r);
}

/* Those of one mode that can run, within so much memory or beyond it; not more than one if that will do. */
static void sort_out(const row *r, const tern__cudnn_conv *conv, std::vector<candidate> *all,
                     bool one_will_do, std::vector<candidate> *fit, std::vector<candidate> *large)
{
    size_t limit = r->call->device->conv.workspace;
    for (candidate &c : *all) {
        if ((one_will_do && !fit->empty()) || !build(r, conv, &c))
            candidate_free(&c);
        else
            ((size_t)c.workspace <= limit ? fit : large)->push_back(c);
    }
}

static std::vector<candidate> buildable(const row *r, const tern__cudnn_conv *conv, desc graph,
                                        bool one_will_do)
{
    std::vector<candidate> fit, large;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        std::vector<candidate> all;
        if (fit.empty()) add_candidates(r, graph, mode, &all);
        sort_out(r, conv, &all, one_will_do, &fit, &large);
    }
    if (fit.empty() && !large.empty()) {
        fit.push_back(large.front());
        large.erase(large.begin());
    }
    for (candidate &c : large) candidate_free(&c);
    return fit;
}

/* ---- running ---- */

static void execute(row *r, desc plan, void *const data[SIDES], void *workspace)
{
    const int64_t names[SIDES] = {1, 2, 3};
    desc pack = make(r, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(r, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, SIDES, names);
    set(r, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, SIDES, data);
    set(r, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(r, pack);
    if (is_well(r)) went(r, cudnnBackendExecute(r->lib->handle, plan, pack), "cudnnBackendExecute");
    destroy(pack);
}

/* A clock on the device's stream. */
typedef struct clock_pair {
    cudaEvent_t started, ended;
} clock_pair;

/* Milliseconds of a run, the mean of so many; negative if it cannot. */
static float time_of(row *r, desc plan, void *const data[SIDES], void *workspace, const clock_pair *clock,
                     int runs)
{
    cudaStream_t stream = tern__cuda_of(r->call->device)->stream;
    float ms = 0;
    cudaEventRecord(clock->started, stream);
    for (int i = 0; i < runs; i++) execute(r, plan, data, workspace);
    cudaEventRecord(clock->ended, stream);
    bool ran = cudaEventSynchronize(clock->ended) == cudaSuccess && is_well(r) &&
               cudaEventElapsedTime(&ms, clock->started, clock->ended) == cudaSuccess;
    return ran ? ms / (float)runs : -1;
}

/* The first run loads code and counts for nothing; what is far behind the best has no more than one other. */
static float try_out(const row *outer, const candidate *c, void *const data[SIDES], const clock_pair *clock,
                     float best)
{
    row r = *outer;
    void *workspace = c->workspace ? tern__cuda_scratch(r.call, (size_t)c->workspace) : nullptr;
    if (c->workspace && !workspace) return -1;
    float ms = time_of(&r, c->plan, data, workspace, clock, 1);
    if (ms >= 0) ms = time_of(&r, c->plan, data, workspace, clock, 1);
    if (ms >= 0 && (best < 0 || ms < 2 * best)) ms = time_of(&r, c->plan, data, workspace, clock, RUNS);
    tern__cuda_scratch_free(r.call, workspace);
    return ms;
}

/* The place of the fastest. What is added to is not touched: results go elsewhere. */
static size_t fastest(const row *r, const tern__cudnn_conv *conv, const std::vector<candidate> *all)
{
    const tern__view *result = &conv->operand[conv->result];
    void *elsewhere = conv->add ? tern__cuda_scratch(r->call, tern__view_bytes(result)) : nullptr;
    void *data[SIDES];
    for (int i = 0; i < SIDES; i++) data[i] = conv->operand[i].data;
    if (elsewhere) data[conv->result] = elsewhere;
    clock_pair clock = {};
    size_t best = 0;
    float least = -1;
    bool can = (elsewhere || !conv->add) && cudaEventCreate(&clock.started) == cudaSuccess &&
               cudaEventCreate(&clock.ended) == cudaSuccess;
    for (size_t i = 0; i < all->size() && can; i++) {
        float ms = try_out(r, &(*all)[i], data, &clock, least);
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        best = i;
        least = ms;
    }
    if (clock.started) cudaEventDestroy(clock.started);
    if (clock.ended) cudaEventDestroy(clock.ended);
    tern__cuda_scratch_free(r->call, elsewhere);
    return best;
}

/* A plan without an engine is one, too: cuDNN is not asked again. */
static void choose(row *r, const tern__cudnn_conv *conv, conv_plan *p)
{
    const tern_device *device = r->call->device;
    desc whole = graph(r, p, conv);
    if (!is_well(r)) return;
    bool by_clock = !device->conv.deterministic && !device->follows;
    std::vector<candidate> all = buildable(r, conv, whole, !by_clock);
    size_t best = all.size() > 1 ? fastest(r, conv, &all) : 0;
    for (size_t i = 0; i < all.size(); i++) {
        if (i != best) {
            candidate_free(&all[i]);
            continue;
        }
        p->parts.push_back(all[i].config);
        p->plan = all[i].plan;
        p->workspace = all[i].workspace;
        std::snprintf(p->name, sizeof(p->name), "cuDNN engine %lld", (long long)all[i].engine);
    }
}

static int plan_of(row *r, const tern__cudnn_conv *conv, const conv_plan **plan)
{
    conv_key key = key_of(conv);
    auto known = r->lib->plans.find(key);
    if (known == r->lib->plans.end()) {
        conv_plan made = {};
        choose(r, conv, &made);
        int status = status_of(r);
        if (status && status != TERN_E_UNSUPPORTED) {
            plan_free(&made);
            return status;
        }
        known = r->lib->plans.emplace(key, made).first;
    }
    *plan = &known->second;
    return (*plan)->plan ? TERN_OK : TERN_E_UNSUPPORTED;
}

/* What a convolution's item says. */
typedef struct execution {
    cudnn *lib;
    desc plan;
    void *data[SIDES], *workspace;
} execution;

static int run_execution(tern__cuda *, const void *data, tern_error *err)
{
    const execution *e = (const execution *)data;
    tern__call call = {};
    call.err = err;
    row r = {&call, e->lib, CUDNN_STATUS_SUCCESS, ""};
    execute(&r, e->plan, e->data, e->workspace);
    int status = status_of(&r);
    return status == TERN_E_UNSUPPORTED ? TERN_E_SYSTEM : status;
}

int tern__cudnn_conv_run(const tern__call *call, const tern__cudnn_conv *conv)
{
    static const tern__cuda_kind kind = {sizeof(execution), run_execution};
    row r = {call, nullptr, CUDNN_STATUS_SUCCESS, ""};
    const conv_plan *plan = nullptr;
    alignas(16) execution e = {};
    open_library(&r);
    int status = is_well(&r) ? plan_of(&r, conv, &plan) : status_of(&r);
    if (status) return status;
    if (plan->workspace) e.workspace = tern__cuda_scratch(call, (size_t)plan->workspace);
    if (plan->workspace && !e.workspace) return TERN_E_MEMORY;
    e.lib = r.lib;
    e.plan = plan->plan;
    for (int i = 0; i < SIDES; i++) e.data[i] = conv->operand[i].data;
    status = tern__cuda_ask(call->device, &kind, &e, call->err);
    tern__cuda_scratch_free(call, e.workspace);
    call->device->algorithm = plan->name;
    return status;
}

void tern__cudnn_version(char *text, size_t size)
{
    size_t version = cudnnGetVersion();
    std::snprintf(text, size, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}
