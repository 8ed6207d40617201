/* described.cc - asks cuDNN for plans for a GPU that is only described, so none is needed. Every
 * convolution of ResNet-50 and of 3-D U-Nets in bf16, and some under every rule, has engines, also for
 * gradients that are added, with tensor cores where they matter, and each is found again by its name.
 * Nothing runs. With an argument cuDNN finds none of its engines, which must be reported. */
#include "cuda/cudnn/cudnn.cc"
#include "../skips.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

static const char h200[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,"
    "\"multiProcessorCount\":132,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,"
    "\"totalGlobalMem\":150000000000,\"l2CacheSize\":62914560,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"regsPerBlock\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"supportCoopLaunch\":1,\"isTccDriver\":0,\"pciDeviceId\":0}";

static place at;
static tern_device device;
static tern__call call;
static tern_error err;
static int failures;

/* A convolution; y's sizes follow from the others. */
typedef struct problem {
    const char *name;
    tern_dtype dtype;
    int spatial;
    int64_t images, in, out, size[3], kernel[3], stride, padding, groups;
    bool is_thin; /* too few channels for tensor cores to matter */
} problem;

static void fail(const problem *p, tern__kernel kernel, const char *what)
{
    std::printf("FAILED: %s, kernel %d: %s %s\n", p->name, (int)kernel, what, err.text);
    failures++;
    err = {};
}

static bool describe(void)
{
    row r = row_of(&at, &err);
    at.device = make(&r, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set(&r, at.device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, sizeof(h200) - 1, h200);
    finalize(&r, at.device);
    return is_well(&r);
}

/* `without`: cuDNN cannot load its engines, which must be detected. */
static bool check_library(bool without)
{
    row r = row_of(&at, &err);
    int status = check_engines(&r);
    bool is_said = status == TERN_E_SYSTEM && std::strstr(err.text, "loads no engines");
    if (without ? is_said : status == TERN_OK) return true;
    std::printf("FAILED: cuDNN has engines%s: %s\n", without ? ", where it can load none" : "", err.text);
    return false;
}

static tern__cudnn_conv conv_of(const problem *p, tern__conv_attr *attr, tern__kernel kernel, bool has_bias)
{
    static char memory[16] __attribute__((aligned(16)));
    int64_t shape[TERN__CONV_OPERANDS][5] = {
        {p->images, p->in}, {p->out, p->in / p->groups}, {p->images, p->out}, {1, p->out, 1, 1, 1}};
    tern__cudnn_conv c = {};
    *attr = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, p->groups};
    for (int d = 0; d < p->spatial; d++) {
        int i = 3 - p->spatial + d;
        int64_t kernel_size = p->kernel[i], padding = kernel_size > 1 ? p->padding : 0;
        attr->stride[i] = p->stride;
        attr->padding[i] = padding;
        shape[0][2 + d] = p->size[i];
        shape[1][2 + d] = kernel_size;
        shape[2][2 + d] = (p->size[i] + 2 * padding - kernel_size) / p->stride + 1;
    }
    tern__layout layout = p->dtype == TERN_F64 ? TERN__PLAIN : TERN__CHANNELS_LAST;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        c.operand[i] = tern__view_make(p->dtype, layout, 2 + p->spatial, shape[i]);
        c.operand[i].data = memory;
    }
    c.kernel = kernel;
    c.attr = attr;
    c.has_bias = has_bias;
    return c;
}

static unsigned notes_of_engine(const tern__cudnn_engine *e)
{
    row r = row_of(&at, nullptr);
    desc engine = make(&r, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    get(&r, (desc)e->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    unsigned notes = notes_of(&r, engine);
    destroy(engine);
    return notes;
}

/* Names that only begin as an engine's do are not taken. */
static bool takes_only(tern__cudnn_graph *graph, const char *name)
{
    const std::string all = name, number = all.substr(0, all.find(':'));
    tern__cudnn_engine e;
    for (const std::string &wrong : {all + "x", number + "x", number + ":", number + ":1"})
        if (tern__cudnn_engine_named(&call, graph, wrong.c_str(), &e)) return false;
    return true;
}

static void check_engine(const problem *p, tern__kernel kernel, tern__cudnn_graph *graph,
                         tern__cudnn_engine *first)
{
    tern__cudnn_engine again;
    unsigned notes = notes_of_engine(first);
    bool has_cores = notes & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    bool is_exact = device.conv.exact && p->dtype == TERN_F32;
    bool wants_cores = p->dtype != TERN_F64 && !p->is_thin && !is_exact;
    if (wants_cores && !has_cores) fail(p, kernel, "no tensor cores");
    if (is_exact && has_cores) fail(p, kernel, "TF32 where f32 is to be exact");
    if (device.conv.deterministic && (notes & 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
        fail(p, kernel, "an engine that is not deterministic");
    if (first->workspace > device.conv.workspace) fail(p, kernel, "more workspace than is allowed");
    if (!tern__cudnn_engine_named(&call, graph, first->name, &again))
        return fail(p, kernel, "the engine is not found by its name");
    if (std::strcmp(again.name, first->name) || again.workspace != first->workspace)
        fail(p, kernel, "another engine of that name");
    tern__cudnn_engine_free(&again);
    if (!takes_only(graph, first->name)) fail(p, kernel, "an engine is found by a wrong name");
}

static bool keep(void *ctx, const tern__cudnn_engine *engine)
{
    *(tern__cudnn_engine *)ctx = *engine;
    return false;
}

static void check(const problem *p, tern__kernel kernel, bool has_bias, bool add)
{
    tern__conv_attr attr;
    tern__cudnn_conv conv = conv_of(p, &attr, kernel, has_bias);
    tern__cudnn_graph *graph = nullptr;
    tern__cudnn_engine first = {};
    conv.add = add;
    row r = row_of(&at, &err);
    if (new_graph(&r, &conv, &graph)) return fail(p, kernel, "no graph:");
    tern__cudnn_engines(&call, graph, 1, keep, &first);
    if (first.plan)
        check_engine(p, kernel, graph, &first);
    else
        fail(p, kernel, "no engine");
    tern__cudnn_engine_free(&first);
    tern__cudnn_graph_free(graph);
}

static void check_all(const problem *p)
{
    check(p, TERN__CONV, false, false);
    for (int add = 0; add < 2; add++) {
        check(p, TERN__CONV_DATA_GRAD, false, add);
        check(p, TERN__CONV_WEIGHT_GRAD, false, add);
    }
    if (p->dtype != TERN_F64) check(p, TERN__CONV, true, false);
}

/* A block's convolutions: those of a stage's first block, and of the others. */
static void resnet50(void)
{
    const problem stem = {"stem", TERN_BF16, 2, 256, 3, 64, {1, 224, 224}, {1, 7, 7}, 2, 3, 1, false};
    check_all(&stem);
    int64_t in = 64, size = 56;
    for (int64_t width = 64; width <= 512; width *= 2) {
        int64_t stride = width == 64 ? 1 : 2, out = 4 * width, half = size / stride;
        const problem all[] = {
            {"1x1 in", TERN_BF16, 2, 256, in, width, {1, size, size}, {1, 1, 1}, 1, 0, 1, false},
            {"3x3 first", TERN_BF16, 2, 256, width, width, {1, size, size}, {1, 3, 3}, stride, 1, 1, false},
            {"1x1 out", TERN_BF16, 2, 256, width, out, {1, half, half}, {1, 1, 1}, 1, 0, 1, false},
            {"shortcut", TERN_BF16, 2, 256, in, out, {1, size, size}, {1, 1, 1}, stride, 0, 1, false},
            {"1x1 back", TERN_BF16, 2, 256, out, width, {1, half, half}, {1, 1, 1}, 1, 0, 1, false},
            {"3x3", TERN_BF16, 2, 256, width, width, {1, half, half}, {1, 3, 3}, 1, 1, 1, false}};
        for (const problem &p : all) check_all(&p);
        in = out;
        size = half;
    }
}

/* A U-Net with a level for each width. */
static void unet3d(int64_t first, int64_t last, int64_t classes)
{
    int64_t d = 64, h = 160, before = 1;
    for (int64_t width = first; width <= last; width *= 2, d /= 2, h /= 2) {
        const problem all[] = {
            {"down", TERN_BF16, 3, 8, before, width, {d, h, h}, {3, 3, 3}, 1, 1, 1, before == 1},
            {"same", TERN_BF16, 3, 8, width, width, {d, h, h}, {3, 3, 3}, 1, 1, 1, false},
            {"joined", TERN_BF16, 3, 8, 2 * width, width, {d, h, h}, {3, 3, 3}, 1, 1, 1, false},
            {"up", TERN_BF16, 3, 8, width, 2 * width, {d, h, h}, {2, 2, 2}, 2, 0, 1, false}};
        for (const problem &p : all) check_all(&p);
        before = width;
    }
    const problem head = {"head", TERN_BF16, 3, 8, first, classes, {64, 160, 160}, {1, 1, 1}, 1, 0, 1, true};
    check_all(&head);
}

/* Other convolutions and rules. */
static void others(void)
{
    const problem all[] = {{"f32", TERN_F32, 2, 32, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false},
                           {"f16", TERN_F16, 2, 32, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false},
                           {"f64", TERN_F64, 2, 8, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false},
                           {"in groups", TERN_BF16, 2, 32, 128, 128, {1, 56, 56}, {1, 3, 3}, 1, 1, 32, false},
                           {"odd channels", TERN_BF16, 2, 32, 21, 13, {1, 33, 33}, {1, 3, 3}, 1, 1, 1, true}};
    for (int rules = 0; rules < 4; rules++) {
        device.conv.exact = rules & 1;
        device.conv.deterministic = rules & 2;
        for (const problem &p : all) check_all(&p);
    }
}

/* Collects the names of the engines that it is given. */
static bool list(void *ctx, const tern__cudnn_engine *engine)
{
    tern__cudnn_engine e = *engine;
    ((std::vector<std::string> *)ctx)->push_back(e.name);
    tern__cudnn_engine_free(&e);
    return true;
}

static std::vector<std::string> list_first(const tern__cudnn_graph *graph)
{
    std::vector<std::string> first;
    for (desc config : configs_of(graph, CUDNN_HEUR_MODE_A)) {
        tern__cudnn_engine e;
        if (build(&call, graph, config, &e)) list(&first, &e);
    }
    return first;
}

/* If exact f32 leaves few of the engines that the heuristics rank first, the fallback's can be tried too;
 * cuDNN names some of them twice. */
static void few(void)
{
    const problem p = {"f32", TERN_F32, 2, 2, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false};
    const tern__kernel kernel = TERN__CONV_WEIGHT_GRAD;
    tern__conv_attr attr;
    tern__cudnn_graph *graph = nullptr;
    std::vector<std::string> all;
    device.conv.exact = true;
    device.conv.deterministic = false;
    tern__cudnn_conv conv = conv_of(&p, &attr, kernel, false);
    row r = row_of(&at, &err);
    if (new_graph(&r, &conv, &graph)) return fail(&p, kernel, "no graph:");
    tern__cudnn_engines(&call, graph, 10, list, &all);
    const std::vector<std::string> first = list_first(graph);
    const std::set<std::string> names(all.begin(), all.end());
    if (first.size() >= 10) fail(&p, kernel, "has enough of the first");
    if (all.size() <= first.size()) fail(&p, kernel, "is left with few engines");
    if (names.size() < all.size()) fail(&p, kernel, "is given an engine twice");
    tern__cudnn_graph_free(graph);
}

typedef struct engines {
    int count;
    unsigned notes;              /* of all */
    size_t most;                 /* workspace */
    char name[TERN__CUDNN_NAME]; /* of one that needs so much */
} engines;

static bool take_note(void *ctx, const tern__cudnn_engine *engine)
{
    engines *all = (engines *)ctx;
    tern__cudnn_engine e = *engine;
    all->count++;
    all->notes |= notes_of_engine(&e);
    if (e.workspace > all->most) std::strcpy(all->name, e.name);
    all->most = std::max(all->most, e.workspace);
    tern__cudnn_engine_free(&e);
    return true;
}

static bool take_one(void *ctx, const tern__cudnn_engine *engine)
{
    take_note(ctx, engine);
    return false;
}

/* Checks all engines of a graph, not only the first. */
static void check_rules(const problem *p, tern__kernel kernel, tern__cudnn_graph *graph)
{
    engines all = {}, one = {}, small = {};
    tern__cudnn_engine e;
    unsigned never = 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                     1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    if (device.conv.exact && p->dtype == TERN_F32)
        never |= 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD;
    tern__cudnn_engines(&call, graph, 100, take_note, &all);
    if (all.notes & never) fail(p, kernel, "an engine computes in another way than is allowed");
    tern__cudnn_engines(&call, graph, 100, take_one, &one);
    if (one.count != 1) fail(p, kernel, "engines are shown to one who wants no more");
    size_t before = device.conv.workspace;
    device.conv.workspace = 0;
    tern__cudnn_engines(&call, graph, 100, take_note, &small);
    if (small.most > 0 && small.count > 1) fail(p, kernel, "engines need more memory than is allowed");
    if (small.count == 0) fail(p, kernel, "has no engine without memory");
    if (all.most > 0 && tern__cudnn_engine_named(&call, graph, all.name, &e))
        fail(p, kernel, "an engine by name needs more memory than is allowed");
    device.conv.workspace = before;
}

static void rules(void)
{
    const problem all[] = {{"f32", TERN_F32, 2, 2, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false},
                           {"bf16", TERN_BF16, 2, 2, 64, 64, {1, 56, 56}, {1, 3, 3}, 1, 1, 1, false},
                           {"f16", TERN_F16, 2, 2, 64, 64, {1, 56, 56}, {1, 5, 5}, 1, 2, 1, false}};
    for (int exact = 0; exact < 2; exact++) {
        for (const problem &p : all) {
            for (tern__kernel kernel : {TERN__CONV, TERN__CONV_DATA_GRAD, TERN__CONV_WEIGHT_GRAD}) {
                tern__conv_attr attr;
                tern__cudnn_graph *graph = nullptr;
                device.conv.exact = exact;
                tern__cudnn_conv conv = conv_of(&p, &attr, kernel, false);
                row r = row_of(&at, &err);
                if (new_graph(&r, &conv, &graph)) return fail(&p, kernel, "no graph:");
                check_rules(&p, kernel, graph);
                tern__cudnn_graph_free(graph);
            }
        }
    }
}

int main(int arguments, char **)
{
    bool without = arguments > 1;
    call.device = &device;
    call.err = &err;
    device.conv.workspace = (size_t)8 << 30;
    if (!describe()) {
        return skip_program(
            (std::string("this cuDNN takes no description of a device: ") + err.text).c_str());
    }
    failures = !check_library(without);
    if (!without && !failures) {
        resnet50();
        unet3d(16, 128, 1); /* bench/gpu's */
        unet3d(32, 512, 2);
        others();
        few();
        rules();
    }
    destroy(at.device);
    if (!failures && !without) std::printf("all have engines\n");
    return failures != 0;
}
