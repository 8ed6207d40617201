/* cudnn.cc - the reference kernels in place of cuDNN, with three engines: the heuristics' first wants a
 * large workspace, can be planned and does not run; the last one is faster than the second, except in its
 * fourth run, when another process has the device. A bias can be part of all graphs except in f64. Engines
 * write their workspace, and end the program if data are aligned less than the graph was told. */
#include "cuda/cudnn/cudnn.h"
#include "memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

extern "C" {
#include "device/device.h"
#include "kernels/reference/reference.h"
}

#define ENGINES 3

typedef struct emulated_plan {
    tern__cudnn_graph *graph;
    const char *name;
    float ms; /* negative: it does not run */
    size_t workspace;
    int runs;
} emulated_plan;

struct tern__cudnn_graph {
    tern__cudnn_conv conv;
    tern__conv_attr attr;
    emulated_plan plans[ENGINES];
};

/* cuDNN rejects a y that leaves out positions of x as a bad parameter. */
static bool is_valid(const tern__cudnn_conv *conv)
{
    const tern__conv_attr *attr = conv->attr;
    const tern__view *x = &conv->operand[TERN__CONV_X], *w = &conv->operand[TERN__CONV_W];
    bool is = true;
    for (int i = 3 - (x->ndim - 2), d = 2; i < 3; i++, d++) {
        int64_t behind = x->shape[d] + 2 * attr->padding[i] - (w->shape[d] - 1) * attr->dilation[i] - 1;
        is &= conv->operand[TERN__CONV_Y].shape[d] == behind / attr->stride[i] + 1;
    }
    return is;
}

int tern__cudnn_graph_new(const tern__call *, const tern__cudnn_conv *conv, tern__cudnn_graph **graph)
{
    if (conv->has_bias && conv->operand[TERN__CONV_Y].dtype == TERN_F64) return TERN_E_UNSUPPORTED;
    if (!is_valid(conv)) return TERN_E_SYSTEM;
    tern__cudnn_graph *g = new tern__cudnn_graph{*conv, *conv->attr, {}};
    g->conv.attr = &g->attr;
    g->plans[0] = {g, "3:1=1", -1, (size_t)8 << 20, 0};
    g->plans[1] = {g, "1:2=3", 2, 0, 0};
    g->plans[2] = {g, "2:0=1,5=4", 1, 4096, 0};
    *graph = g;
    return TERN_OK;
}

void tern__cudnn_graph_free(tern__cudnn_graph *graph)
{
    delete graph;
}

bool tern__cudnn_engine_named(const tern__call *, tern__cudnn_graph *graph, const char *name,
                              tern__cudnn_engine *engine)
{
    *engine = {};
    for (emulated_plan &plan : graph->plans)
        if (!std::strcmp(plan.name, name)) {
            engine->plan = &plan;
            engine->workspace = plan.workspace;
            std::snprintf(engine->name, sizeof(engine->name), "%s", name);
        }
    return engine->plan != nullptr;
}

void tern__cudnn_engines(const tern__call *call, tern__cudnn_graph *graph, int most, tern__cudnn_visit *visit,
                         void *ctx)
{
    for (const emulated_plan &plan : graph->plans) {
        tern__cudnn_engine engine;
        if (most-- == 0 || !tern__cudnn_engine_named(call, graph, plan.name, &engine)) return;
        if (!visit(ctx, &engine)) return;
    }
}

void tern__cudnn_engine_free(tern__cudnn_engine *engine)
{
    *engine = {};
}

/* For the reference kernels, which have a host's device elsewhere. */
void *tern__device_scratch(tern_device *, int which, size_t bytes)
{
    static thread_local std::map<int, std::vector<char>> buffers;
    std::vector<char> &buffer = buffers[which];
    if (buffer.size() < bytes) buffer.resize(bytes);
    return buffer.data();
}

static int compute(const tern__call *call, tern__kernel kernel)
{
    switch ((int)kernel) {
    case TERN__CONV: return tern__reference_conv(call);
    case TERN__CONV_DATA_GRAD: return tern__reference_conv_data_grad(call);
    default: return tern__reference_conv_weight_grad(call);
    }
}

static void expect_aligned(const tern__cudnn_conv *conv, void *const data[TERN__CONV_OPERANDS])
{
    for (int i = 0; i < TERN__CONV_OPERANDS - !conv->has_bias; i++) {
        if (tern__cudnn_alignment(data[i]) >= tern__cudnn_alignment(conv->operand[i].data)) continue;
        std::fprintf(stderr, "emulated: a convolution of data at a misaligned address\n");
        std::abort();
    }
}

static void execute(emulated_plan *p, void *const data[TERN__CONV_OPERANDS], void *workspace)
{
    const tern__cudnn_conv *conv = &p->graph->conv;
    tern__view v[TERN__CONV_OPERANDS];
    tern__call call = {};
    emulated_ms += p->ms < 2 && ++p->runs == 4 ? 10 : p->ms;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        v[i] = conv->operand[i];
        v[i].data = data[i];
    }
    if (conv->has_bias)
        v[TERN__CONV_B] = tern__view_make(v[TERN__CONV_B].dtype, TERN__PLAIN, 1, &v[TERN__CONV_Y].shape[1]);
    v[TERN__CONV_B].data = data[TERN__CONV_B];
    call.in[0] = conv->kernel == TERN__CONV ? &v[TERN__CONV_X] : &v[TERN__CONV_Y];
    call.in[1] = conv->kernel == TERN__CONV_WEIGHT_GRAD ? &v[TERN__CONV_X] : &v[TERN__CONV_W];
    call.in[2] = conv->has_bias ? &v[TERN__CONV_B] : nullptr;
    call.out[0] = &v[conv->result];
    call.add[0] = conv->add;
    call.attr = &p->graph->attr;
    emulated_memory_open();
    std::memset(workspace, 0xff, p->workspace);
    compute(&call, conv->kernel);
    emulated_memory_close();
}

int tern__cudnn_run(tern__cuda *cuda, void *plan, bool has_bias, void *const data[TERN__CONV_OPERANDS],
                    void *workspace, tern_error *err)
{
    emulated_plan *p = (emulated_plan *)plan;
    if (p->ms < 0 || emulated_refuses("engines"))
        return tern__error_set(err, "conv", TERN_E_SYSTEM, "an emulated engine that does not run");
    if ((p->workspace && !workspace) || has_bias != p->graph->conv.has_bias) return TERN_E_SYSTEM;
    expect_aligned(&p->graph->conv, data);
    void *x = data[TERN__CONV_X], *w = data[TERN__CONV_W], *y = data[TERN__CONV_Y], *b = data[TERN__CONV_B];
    emulated_enqueue(cuda->stream, [=] {
        void *const operands[TERN__CONV_OPERANDS] = {x, w, y, b};
        execute(p, operands, workspace);
    });
    return TERN_OK;
}

void tern__cudnn_version(char *text, size_t size)
{
    if (size) *text = 0;
}
