/* cudnn.cc - a convolution as a graph of cuDNN 9 (its C API: descriptors with attributes), alone or
 * followed by the addition of its bias, and the engines that cuDNN's heuristics name for it.
 *
 * An engine is identified by its number and the values of its knobs, which are the same in every process
 * for one version of cuDNN. The fallback mode's engines come after those of the heuristics. An engine that
 * needs more memory than the device's rules allow is used only if there is no other. */
#include "cuda/cudnn/cudnn.h"
#include "cuda/cudnn/cudnn_row.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

struct tern__cudnn_graph {
    place at;
    tern__cudnn_conv conv;
    std::vector<desc> parts; /* the parts of the graph, each after those it refers to */
    desc whole;
};

/* ---- graphs ---- */

/* Adds a part to the graph. */
static desc part(row *r, tern__cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    desc made = make(r, type);
    if (made) g->parts.push_back(made);
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

/* A tensor's id is its index in `operand` plus 1. */
static desc tensor(row *r, tern__cudnn_graph *g, int i)
{
    const tern__view *v = &g->conv.operand[i];
    desc d = part(r, g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = type_of(v->dtype);
    set(r, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(r, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, v->ndim, v->shape);
    set(r, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, v->ndim, v->stride);
    set_int64(r, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, i + 1);
    set_int64(r, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tern__cudnn_alignment(v->data));
    finalize(r, d);
    return d;
}

/* y before its bias, a virtual tensor of sums that are not stored. */
static desc sums(row *r, tern__cudnn_graph *g)
{
    const tern__view *v = &g->conv.operand[TERN__CONV_Y];
    desc d = part(r, g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = v->dtype == TERN_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    bool nowhere = true;
    set(r, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(r, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, v->ndim, v->shape);
    set(r, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, v->ndim, v->stride);
    set_int64(r, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, TERN__CONV_OPERANDS + 1);
    set_int64(r, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16);
    set(r, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &nowhere);
    finalize(r, d);
    return d;
}

static cudnnDataType_t computed_in(const tern__cudnn_graph *g)
{
    return g->conv.operand[0].dtype == TERN_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

static desc convolution(row *r, tern__cudnn_graph *g)
{
    const tern__conv_attr *attr = g->conv.attr;
    int spatial = g->conv.operand[0].ndim - 2, first = 3 - spatial;
    const int64_t *padding = attr->padding + first;
    cudnnDataType_t compute = computed_in(g);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    desc d = part(r, g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(r, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(r, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_int64(r, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, spatial);
    set(r, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, padding);
    set(r, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, padding);
    set(r, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, attr->dilation + first);
    set(r, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, attr->stride + first);
    finalize(r, d);
    return d;
}

/* The three operations differ only in the names of their attributes. */
typedef struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t operand[3], conv, alpha, beta;
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

static desc operation(row *r, tern__cudnn_graph *g, const desc tensors[3])
{
    const operation_names *names = names_of(g->conv.kernel);
    const float alpha = 1, beta = g->conv.add;
    const double alphas = 1, betas = g->conv.add;
    bool doubles = g->conv.operand[0].dtype == TERN_F64;
    cudnnBackendAttributeType_t type = doubles ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    desc how = convolution(r, g), d = part(r, g, names->type);
    for (int i = 0; i < 3; i++) set_desc(r, d, names->operand[i], tensors[i]);
    set_desc(r, d, names->conv, how);
    set(r, d, names->alpha, type, 1, doubles ? (const void *)&alphas : &alpha);
    set(r, d, names->beta, type, 1, doubles ? (const void *)&betas : &beta);
    finalize(r, d);
    return d;
}

static desc addition(row *r, tern__cudnn_graph *g, desc sums)
{
    cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    cudnnDataType_t compute = computed_in(g);
    desc bias = tensor(r, g, TERN__CONV_B), y = tensor(r, g, TERN__CONV_Y);
    desc how = part(r, g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(r, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(r, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(r, how);
    desc d = part(r, g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(r, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(r, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sums);
    set_desc(r, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
    set_desc(r, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finalize(r, d);
    return d;
}

/* The convolution, followed by the addition of its bias. */
static void connect(row *r, tern__cudnn_graph *g)
{
    bool has_bias = g->conv.has_bias;
    desc tensors[3], ops[2];
    for (int i = 0; i < 3; i++) tensors[i] = i == TERN__CONV_Y && has_bias ? sums(r, g) : tensor(r, g, i);
    ops[0] = operation(r, g, tensors);
    if (has_bias) ops[1] = addition(r, g, tensors[TERN__CONV_Y]);
    g->whole = part(r, g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_handle(r, g->whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    set(r, g->whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1 + has_bias, ops);
    finalize(r, g->whole);
}

static int new_graph(row *r, const tern__cudnn_conv *conv, tern__cudnn_graph **graph)
{
    tern__cudnn_graph *g = new tern__cudnn_graph{*r->at, *conv, {}, nullptr};
    connect(r, g);
    *graph = g;
    if (is_well(r)) return TERN_OK;
    tern__cudnn_graph_free(g);
    *graph = nullptr;
    return status_of(r);
}

void tern__cudnn_graph_free(tern__cudnn_graph *g)
{
    if (!g) return;
    for (size_t i = g->parts.size(); i > 0; i--) destroy(g->parts[i - 1]);
    delete g;
}

/* ---- engines ---- */

/* Returns the configurations that one mode of the heuristics names, best first; a mode without any is no
 * failure. */
static std::vector<desc> configs_of(const tern__cudnn_graph *g, cudnnBackendHeurMode_t mode)
{
    row r = row_of(&g->at, nullptr);
    desc heuristics = make(&r, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->whole);
    set(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    set_device(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
    finalize(&r, heuristics);
    int64_t count =
        get(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
    std::vector<desc> configs;
    for (int64_t i = 0; i < count; i++) configs.push_back(make(&r, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    int64_t got = get(&r, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                      configs.data());
    for (; count > got; count--) {
        destroy(configs.back());
        configs.pop_back();
    }
    destroy(heuristics);
    return configs;
}

/* ---- the library's state ---- */

static void cudnn_free(tern_device *, void *state)
{
    place *at = (place *)state;
    if (at->handle) cudnnDestroy(at->handle);
    delete at;
}

#define OLDEST 91600 /* versions from 9.8 on compute some convolutions of volumes wrongly */
#define NAME   32

static void name_version(size_t version, char *text, size_t size)
{
    std::snprintf(text, size, "cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

/* Checks the version that is loaded, which may differ from the one of the build. */
static int check_version(tern_error *err)
{
    char loaded[NAME], oldest[NAME];
    if (cudnnGetVersion() >= OLDEST) return TERN_OK;
    name_version(cudnnGetVersion(), loaded, NAME);
    name_version(OLDEST, oldest, NAME);
    return tern__error_set(err, "conv", TERN_E_SYSTEM, "%s is loaded, %s or later is needed", loaded, oldest);
}

static int open_handle(row *r, place *at, cudaStream_t stream)
{
    if (went(r, cudnnCreate(&at->handle), "cudnnCreate"))
        went(r, cudnnSetStream(at->handle, stream), "cudnnSetStream");
    return failure_of(r);
}

static bool has_configs(const tern__cudnn_graph *g)
{
    int count = 0;
    for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
        for (desc config : configs_of(g, mode)) {
            destroy(config);
            count++;
        }
    return count > 0;
}

/* Checks with a convolution for which every GPU has engines. If cuDNN cannot load their libraries it does
 * not say so but names no engine for anything, and the host would compute everything. */
static int check_engines(row *r)
{
    static const tern__conv_attr attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1};
    static const int64_t shape[][4] = {{1, 8, 8, 8}, {8, 8, 3, 3}, {1, 8, 6, 6}};
    tern__cudnn_conv conv = {TERN__CONV, {}, TERN__CONV_Y, &attr, false, false};
    tern__cudnn_graph *graph;
    for (int i = 0; i < 3; i++) conv.operand[i] = tern__view_make(TERN_F32, TERN__PLAIN, 4, shape[i]);
    if (new_graph(r, &conv, &graph)) return failure_of(r);
    bool has_some = has_configs(graph);
    tern__cudnn_graph_free(graph);
    if (has_some) return TERN_OK;
    return tern__error_set(r->err, "conv", TERN_E_SYSTEM,
                           "cuDNN loads no engines: CUDNN_LOGLEVEL_DBG=1 in the environment says why");
}

/* Every failure here is an error, whatever the code: only for a case may cuDNN say that it is not
 * supported. */
static int open_library(row *r, tern_device *device)
{
    tern__cuda *cuda = tern__cuda_of(device);
    tern__cuda_library *slot = &cuda->libraries[TERN__CUDA_CUDNN];
    cudaSetDevice(cuda->index);
    r->at = (place *)slot->state;
    if (r->at) return TERN_OK;
    place *at = new place();
    r->at = at;
    int status = check_version(r->err);
    if (!status) status = open_handle(r, at, cuda->stream);
    if (!status) status = check_engines(r);
    if (status)
        cudnn_free(device, at);
    else
        *slot = (tern__cuda_library){at, cudnn_free};
    return status;
}

int tern__cudnn_graph_new(const tern__call *call, const tern__cudnn_conv *conv, tern__cudnn_graph **graph)
{
    row r = row_of(nullptr, call->err);
    int status = open_library(&r, call->device);
    return status ? status : new_graph(&r, conv, graph);
}

/* ---- rules ---- */

/* Inputs always keep their precision and sums are in f32. Exact f32 excludes TF32, the format of tensor
 * cores, and transforms. */
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

/* An engine's numerical notes: a bit for each of cuDNN's. */
static unsigned notes_of(row *r, desc engine)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    unsigned bits = 0;
    int64_t count = get(r, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                        CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) bits |= 1u << notes[i];
    return bits;
}

#define KNOBS 64

/* Writes the name "12:2=1,5=3". False: too long. */
static bool name_it(row *r, desc config, desc engine, char name[TERN__CUDNN_NAME])
{
    desc choices[KNOBS];
    int64_t number = 0, value = 0, type = 0, made = 0;
    get(r, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
    size_t used = (size_t)std::snprintf(name, TERN__CUDNN_NAME, "%lld", (long long)number);
    for (; made < KNOBS; made++) choices[made] = make(r, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    int64_t count =
        get(r, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, choices);
    for (int64_t i = 0; i < count && i < KNOBS && used < TERN__CUDNN_NAME; i++) {
        cudnnBackendKnobType_t kind = CUDNN_KNOB_TYPE_COUNTS;
        get(r, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &kind);
        get(r, choices[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
        type = (int64_t)kind;
        used += (size_t)std::snprintf(name + used, TERN__CUDNN_NAME - used, "%c%lld=%lld", i ? ',' : ':',
                                      (long long)type, (long long)value);
    }
    for (desc choice : choices) destroy(choice);
    return is_well(r) && used < TERN__CUDNN_NAME;
}

/* Makes the plan of an engine that the rules allow. The engine takes over the configuration, or it is
 * destroyed. */
static bool build(const tern__call *call, const tern__cudnn_graph *g, desc config, tern__cudnn_engine *e)
{
    row r = row_of(&g->at, nullptr);
    int64_t workspace = 0;
    *e = {};
    e->config = config;
    desc engine = make(&r, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(&r, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    bool fits = is_allowed(notes_of(&r, engine), call->device, g->conv.operand[0].dtype) &&
                name_it(&r, config, engine, e->name);
    desc plan = fits ? make(&r, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) : nullptr;
    if (plan) {
        set_handle(&r, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
        set_device(&r, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
        set_desc(&r, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        finalize(&r, plan);
        get(&r, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &workspace);
    }
    destroy(engine);
    e->workspace = (size_t)workspace;
    e->plan = plan;
    if (is_well(&r) && plan) return true;
    tern__cudnn_engine_free(e);
    return false;
}

/* A search through engines for the caller. */
typedef struct walk {
    const tern__call *call;
    const tern__cudnn_graph *graph;
    tern__cudnn_visit *visit;
    void *ctx;
    int left; /* how many more engines are wanted */
    bool found;
    tern__cudnn_engine large;     /* the first engine that needs more memory than the rules allow */
    std::set<std::string> passed; /* names already visited: some occur twice */
} walk;

static void meet(walk *w, const tern__cudnn_engine *e)
{
    w->found = true;
    w->left = w->visit(w->ctx, e) ? w->left - 1 : 0;
}

/* Visits the engines of one mode while more are wanted; plans are only made for these. */
static void go_through(walk *w, cudnnBackendHeurMode_t mode)
{
    if (!w->left) return;
    for (desc config : configs_of(w->graph, mode)) {
        tern__cudnn_engine e;
        if (!w->left)
            destroy(config);
        else if (!build(w->call, w->graph, config, &e))
            continue;
        else if (!w->passed.insert(e.name).second)
            tern__cudnn_engine_free(&e);
        else if (e.workspace <= w->call->device->conv.workspace)
            meet(w, &e);
        else if (w->large.plan)
            tern__cudnn_engine_free(&e);
        else
            w->large = e;
    }
}

void tern__cudnn_engines(const tern__call *call, tern__cudnn_graph *g, int most, tern__cudnn_visit *visit,
                         void *ctx)
{
    walk w = {call, g, visit, ctx, most, false, {}, {}};
    go_through(&w, CUDNN_HEUR_MODE_A);
    go_through(&w, CUDNN_HEUR_MODE_FALLBACK);
    if (!w.found && w.large.plan)
        meet(&w, &w.large);
    else
        tern__cudnn_engine_free(&w.large);
}

void tern__cudnn_engine_free(tern__cudnn_engine *e)
{
    destroy((desc)e->plan);
    destroy((desc)e->config);
    *e = {};
}

/* ---- engines by name ---- */

/* Reads the next number of a name, and the character after it. */
static int64_t number(const char **name, char *end)
{
    char *behind;
    long long value = std::strtoll(*name, &behind, 10);
    *end = behind == *name ? '?' : *behind;
    *name = *end && *end != '?' ? behind + 1 : behind;
    return value;
}

/* Reads the knobs after the engine's number. Returns how many, or -1 if the name is invalid. */
static int knobs_of(row *r, const char *name, desc knobs[KNOBS])
{
    char end = ',';
    int count = 0;
    while (end == ',' && count < KNOBS) {
        cudnnBackendKnobType_t kind = (cudnnBackendKnobType_t)number(&name, &end);
        if (end != '=') return -1;
        int64_t value = number(&name, &end);
        knobs[count] = make(r, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        set(r, knobs[count], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &kind);
        set(r, knobs[count], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
        finalize(r, knobs[count++]);
    }
    return end ? -1 : count;
}

static desc config_named(const tern__cudnn_graph *g, const char *name)
{
    row r = row_of(&g->at, nullptr);
    desc knobs[KNOBS] = {};
    char end;
    int64_t index = number(&name, &end);
    int count = end == ':' ? knobs_of(&r, name, knobs) : end ? -1 : 0;
    desc engine = count >= 0 ? make(&r, CUDNN_BACKEND_ENGINE_DESCRIPTOR) : nullptr, config = nullptr;
    if (engine) {
        set_desc(&r, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, g->whole);
        set_int64(&r, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
        set_device(&r, engine, CUDNN_ATTR_ENGINE_DEVICEPROP);
        finalize(&r, engine);
        config = make(&r, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        set_desc(&r, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
        if (count > 0)
            set(&r, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, knobs);
        finalize(&r, config);
    }
    for (desc knob : knobs) destroy(knob);
    destroy(engine);
    if (is_well(&r)) return config;
    destroy(config);
    return nullptr;
}

bool tern__cudnn_engine_named(const tern__call *call, tern__cudnn_graph *g, const char *name,
                              tern__cudnn_engine *e)
{
    desc config = config_named(g, name);
    *e = {};
    if (!config || !build(call, g, config, e)) return false;
    if (e->workspace <= call->device->conv.workspace) return true;
    tern__cudnn_engine_free(e);
    return false;
}

/* ---- running ---- */

int tern__cudnn_run(tern__cuda *cuda, void *plan, bool has_bias, void *const data[TERN__CONV_OPERANDS],
                    void *workspace, tern_error *err)
{
    const int64_t names[TERN__CONV_OPERANDS] = {1, 2, 3, 4};
    int count = TERN__CONV_OPERANDS - !has_bias;
    row r = row_of((const place *)cuda->libraries[TERN__CUDA_CUDNN].state, err);
    desc pack = make(&r, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&r, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names);
    set(&r, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data);
    set(&r, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize(&r, pack);
    if (is_well(&r)) went(&r, cudnnBackendExecute(r.at->handle, (desc)plan, pack), "cudnnBackendExecute");
    destroy(pack);
    return failure_of(&r); /* not E_UNSUPPORTED: the plan worked before */
}

void tern__cudnn_version(char *text, size_t size)
{
    name_version(cudnnGetVersion(), text, size);
}
