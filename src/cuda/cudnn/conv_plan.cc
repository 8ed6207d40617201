/* conv_plan.cc - a device's table of cases, and which of cuDNN's engines computes each.
 *
 * A case is decided when it first occurs. If measuring is allowed, the engine is the one that another rank
 * or the user's file names (device/choices.h), or else the fastest of those that the heuristics rank first.
 * A bias is part of the graph or added by a separate kernel, whichever is faster. Such a choice is followed
 * only if cuDNN has the engine and the device's rules allow it. A device that follows another uses the first
 * engine of the heuristics that runs until it is told, and a deterministic device always does. Rules that
 * exclude engines are part of the case's name, so a choice made under one set of rules has no effect under
 * another. */
#include "cuda/copy.h"
#include "cuda/cudnn/cudnn.h"
#include "cuda/stopwatch.h"

extern "C" {
#include "device/choices.h"
}

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#define MOST 10 /* most engines that are tried, of each graph */
#define TEXT 512

typedef std::array<int64_t, 48> conv_key;

typedef struct conv_plan {
    tern__cudnn_graph *graph;
    tern__cudnn_engine engine; /* .plan NULL: no engine */
    bool with_bias;            /* the graph adds the bias */
    uint64_t heard;            /* device->choices->heard when it was chosen */
    char label[48];
} conv_plan;

typedef struct conv_plans {
    std::map<conv_key, conv_plan> of;
    std::vector<conv_plan> replaced; /* kept, as recorded steps may still run them */
} conv_plans;

/* ---- the table ---- */

static void plan_free(conv_plan *p)
{
    tern__cudnn_engine_free(&p->engine);
    tern__cudnn_graph_free(p->graph);
}

static void plans_free(tern_device *, void *state)
{
    conv_plans *all = (conv_plans *)state;
    for (auto &entry : all->of) plan_free(&entry.second);
    for (conv_plan &plan : all->replaced) plan_free(&plan);
    delete all;
}

static conv_plans *plans_of(const tern__call *call)
{
    tern__cuda_library *slot = &tern__cuda_of(call->device)->libraries[TERN__CUDA_CONV];
    if (!slot->state) *slot = (tern__cuda_library){new conv_plans(), plans_free};
    return (conv_plans *)slot->state;
}

/* ---- cases ---- */

static conv_key key_of(const tern__cudnn_conv *c)
{
    conv_key key = {};
    size_t at = 0;
    key[at++] = c->kernel << 2 | c->has_bias << 1 | c->add;
    key[at++] = c->operand[0].ndim;
    for (int i = 0; i < TERN__CONV_OPERANDS - !c->has_bias; i++) {
        const tern__view *v = &c->operand[i];
        key[at++] = (int64_t)v->layout << 16 | v->dtype << 8 | tern__cudnn_alignment(v->data);
        for (int d = 0; d < v->ndim; d++) key[at++] = v->shape[d];
    }
    for (int d = 0; d < 3; d++) {
        key[at++] = c->attr->stride[d];
        key[at++] = c->attr->padding[d];
        key[at++] = c->attr->dilation[d];
    }
    key[at] = c->attr->groups;
    return key;
}

static size_t add_numbers(char text[TEXT], size_t used, const char *name, const int64_t *number, int count)
{
    for (int i = 0; i < count && used < TEXT; i++)
        used +=
            (size_t)std::snprintf(text + used, TEXT - used, "%s%lld", i ? "," : name, (long long)number[i]);
    return used;
}

/* Writes the case and the rules: "conv x 256,64,56,56 bf16 last 16 ..". */
static void describe(const tern__call *call, const tern__cudnn_conv *c, char text[TEXT])
{
    static const char *const kernels[] = {"conv", "data gradient", "weight gradient"};
    static const char *const operands[] = {" x ", " weight ", " y ", " bias "};
    const tern_device_conv_opts *rules = &call->device->conv;
    bool exact = rules->exact && c->operand[0].dtype == TERN_F32;
    size_t used = (size_t)std::snprintf(text, TEXT, "%s", kernels[c->kernel - TERN__CONV]);
    for (int i = 0; i < TERN__CONV_OPERANDS - !c->has_bias && used < TEXT; i++) {
        const tern__view *v = &c->operand[i];
        used = add_numbers(text, used, operands[i], v->shape, v->ndim);
        used += (size_t)std::snprintf(text + used, TEXT - used, " %s%s at %d", tern_dtype_name(v->dtype),
                                      v->layout == TERN__CHANNELS_LAST ? " last" : "",
                                      (int)tern__cudnn_alignment(v->data));
    }
    used = add_numbers(text, used, " stride ", c->attr->stride, 3);
    used = add_numbers(text, used, " padding ", c->attr->padding, 3);
    used = add_numbers(text, used, " dilation ", c->attr->dilation, 3);
    used = add_numbers(text, used, " groups ", &c->attr->groups, 1);
    if (used < TEXT)
        std::snprintf(text + used, TEXT - used, "%s%s, %zu MiB", c->add ? ", added" : "",
                      exact ? ", exact" : "", rules->workspace >> 20);
}

/* ---- running ---- */

/* The data of a convolution's item. */
typedef struct execution {
    void *plan, *data[TERN__CONV_OPERANDS], *workspace;
    int64_t has_bias;
} execution;

static int run_execution(tern__cuda *cuda, const void *data, tern_error *err)
{
    const execution *e = (const execution *)data;
    return tern__cudnn_run(cuda, e->plan, e->has_bias, e->data, e->workspace, err);
}

/* y += the bias, for a plan that does not add it. */
static int add_bias(const tern__call *call, const tern__cudnn_conv *conv, void *result)
{
    tern__view y = conv->operand[TERN__CONV_Y], bias = conv->operand[TERN__CONV_B];
    bias = tern__view_make(bias.dtype, TERN__PLAIN, 1, &y.shape[1]);
    bias.data = conv->operand[TERN__CONV_B].data;
    y.data = result;
    return tern__cuda_add_bias(call, &bias, &y);
}

/* Runs the plan with `result` as the result's address. */
static int run_plan(const tern__call *call, const tern__cudnn_conv *conv, const conv_plan *p, void *result,
                    void *workspace)
{
    static const tern__cuda_kind kind = {sizeof(execution), sizeof(execution), run_execution, nullptr};
    alignas(16) execution e = {p->engine.plan, {}, workspace, p->with_bias};
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) e.data[i] = conv->operand[i].data;
    e.data[conv->result] = result;
    int status = tern__cuda_ask(call->device, &kind, &e, call->err);
    return status || p->with_bias || !conv->has_bias ? status : add_bias(call, conv, result);
}

/* ---- measuring ---- */

/* The candidate, and a buffer for results when the call adds. */
typedef struct trial {
    tern__call call;
    const tern__cudnn_conv *conv;
    const conv_plan *plan;
    void *elsewhere, *result, *workspace;
    tern__stopwatch watch;
} trial;

static bool trial_open(trial *t, const tern__call *call, const tern__cudnn_conv *conv)
{
    *t = {};
    t->call = *call;
    t->call.err = nullptr;
    t->conv = conv;
    t->result = conv->operand[conv->result].data;
    bool is_open = tern__stopwatch_open(&t->watch, call);
    if (conv->add) {
        t->elsewhere = tern__cuda_scratch(call, tern__view_bytes(&conv->operand[conv->result]));
        t->result = t->elsewhere;
    }
    return is_open && t->result;
}

static void trial_close(trial *t)
{
    tern__cuda_scratch_free(&t->call, t->elsewhere);
    tern__stopwatch_close(&t->watch);
}

static int run_trial(void *ctx)
{
    trial *t = (trial *)ctx;
    return run_plan(&t->call, t->conv, t->plan, t->result, t->workspace);
}

/* Returns the milliseconds of a run; negative: it failed. */
static float try_out(trial *t, const conv_plan *p, float best)
{
    size_t bytes = p->engine.workspace;
    t->plan = p;
    t->workspace = bytes ? tern__cuda_scratch(&t->call, bytes) : nullptr;
    float ms = bytes && !t->workspace ? -1 : tern__stopwatch_try(&t->watch, run_trial, t, best);
    tern__cuda_scratch_free(&t->call, t->workspace);
    return ms;
}

/* ---- choosing ---- */

/* Opens the case's graph, with or without the bias. */
static bool open_graph(const tern__call *call, const tern__cudnn_conv *conv, bool with_bias, conv_plan *p,
                       int *status)
{
    tern__cudnn_conv seen = *conv;
    seen.has_bias = with_bias;
    *p = {};
    p->with_bias = with_bias;
    int code = tern__cudnn_graph_new(call, &seen, &p->graph);
    if (code && code != TERN_E_UNSUPPORTED) *status = code;
    return !code;
}

/* Whether an engine has run and measuring is not allowed. */
static bool is_enough(const tern__call *call, float least)
{
    return least >= 0 && !tern__stopwatch_decides(call->device);
}

/* A search through the engines of p's graph. */
typedef struct search {
    const tern__call *call;
    trial *t;              /* NULL: engines cannot be run */
    conv_plan *p;          /* holds the engine being tried */
    const conv_plan *best; /* best of the other graphs */
    float *least;          /* smallest time of all graphs */
    tern__cudnn_engine chosen;
} search;

/* Keeps the faster of the best so far and this engine, or the first that runs. */
static bool consider(void *ctx, const tern__cudnn_engine *engine)
{
    search *s = (search *)ctx;
    s->p->engine = *engine;
    float ms = s->t ? try_out(s->t, s->p, *s->least) : -1;
    bool is_first = !s->best->engine.plan && !s->chosen.plan;
    if (is_first || (ms >= 0 && (*s->least < 0 || ms < *s->least))) {
        std::swap(s->chosen, s->p->engine);
        *s->least = ms;
    }
    tern__cudnn_engine_free(&s->p->engine);
    return s->t && !is_enough(s->call, *s->least);
}

/* Replaces *best by the best of this graph's engines if that is faster. If none runs, or without `t`,
 * takes the first engine there is. */
static void try_graph(const tern__call *call, conv_plan *p, trial *t, conv_plan *best, float *least)
{
    search s = {call, t, p, best, least, {}};
    tern__cudnn_engines(call, p->graph, MOST, consider, &s);
    p->engine = s.chosen;
    if (p->engine.plan) std::swap(*p, *best);
    plan_free(p);
}

/* *least: the best engine's milliseconds; negative: none has run. */
static int try_all(const tern__call *call, const tern__cudnn_conv *conv, conv_plan *best, float *least)
{
    trial t;
    int status = TERN_OK;
    bool can = trial_open(&t, call, conv);
    *best = {};
    *least = -1;
    for (int with_bias = conv->has_bias; with_bias >= 0; with_bias--) {
        conv_plan p;
        bool goes_on = !status && !is_enough(call, *least);
        if (goes_on && open_graph(call, conv, with_bias, &p, &status))
            try_graph(call, &p, can ? &t : nullptr, best, least);
    }
    trial_close(&t);
    return status;
}

/* "+12:2=1" is engine 12 of the graph with the bias. */
static bool take_named(const tern__call *call, const tern__cudnn_conv *conv, const char *name, conv_plan *p)
{
    int status = TERN_OK;
    bool with_bias = *name == '+';
    if (with_bias && !conv->has_bias) return false;
    if (!open_graph(call, conv, with_bias, p, &status)) return false;
    if (tern__cudnn_engine_named(call, p->graph, name + with_bias, &p->engine)) return true;
    plan_free(p);
    *p = {};
    return false;
}

static void set_label(conv_plan *p)
{
    std::snprintf(p->label, sizeof(p->label), "cuDNN engine %.*s%s", (int)std::strcspn(p->engine.name, ":"),
                  p->engine.name, p->with_bias ? " with bias" : "");
}

static void keep(const tern__call *call, const char *what, const conv_plan *p)
{
    char name[TERN__CUDNN_NAME + 1];
    std::snprintf(name, sizeof(name), "%s%s", p->with_bias ? "+" : "", p->engine.name);
    call->device->choices->keep(call->device, what, name);
}

/* A plan without an engine is kept as well: cuDNN is not asked again. */
static int choose(const tern__call *call, const tern__cudnn_conv *conv, conv_plan *p)
{
    tern_device *device = call->device;
    char what[TEXT];
    float least;
    int status = TERN_OK;
    describe(call, conv, what);
    const char *named = device->conv.deterministic ? nullptr : device->choices->find(device, what);
    if (!named || !take_named(call, conv, named, p)) {
        status = try_all(call, conv, p, &least);
        if (!status && least >= 0 && tern__stopwatch_decides(device)) keep(call, what, p);
    }
    p->heard = device->choices->heard;
    set_label(p);
    return status;
}

/* ---- news from others ---- */

/* Whether others have told another engine than this since it was chosen. */
static bool is_outdated(const tern__call *call, const tern__cudnn_conv *conv, conv_plan *p)
{
    tern_device *device = call->device;
    char what[TEXT];
    if (p->heard == device->choices->heard || device->conv.deterministic) return false;
    p->heard = device->choices->heard;
    describe(call, conv, what);
    const char *named = device->choices->find(device, what);
    return named && ((*named == '+') != p->with_bias || std::strcmp(named + (*named == '+'), p->engine.name));
}

static void take_news(const tern__call *call, const tern__cudnn_conv *conv, conv_plan *p)
{
    conv_plan next;
    char what[TEXT];
    describe(call, conv, what);
    if (!take_named(call, conv, call->device->choices->find(call->device, what), &next)) return;
    plans_of(call)->replaced.push_back(*p);
    next.heard = p->heard;
    set_label(&next);
    *p = next;
}

static int plan_of(const tern__call *call, const tern__cudnn_conv *conv, const conv_plan **plan)
{
    conv_plans *all = plans_of(call);
    conv_key key = key_of(conv);
    auto known = all->of.find(key);
    if (known == all->of.end()) {
        conv_plan made;
        int status = choose(call, conv, &made);
        if (status) {
            plan_free(&made);
            return status;
        }
        known = all->of.emplace(key, made).first;
    } else if (is_outdated(call, conv, &known->second)) {
        take_news(call, conv, &known->second);
    }
    *plan = &known->second;
    return (*plan)->engine.plan ? TERN_OK : TERN_E_UNSUPPORTED;
}

int tern__conv_run(const tern__call *call, const tern__cudnn_conv *conv)
{
    const conv_plan *plan = nullptr;
    void *workspace = nullptr;
    int status = plan_of(call, conv, &plan);
    if (status) return status;
    size_t bytes = plan->engine.workspace;
    if (bytes) workspace = tern__cuda_scratch(call, bytes);
    if (bytes && !workspace) return TERN_E_MEMORY;
    status = run_plan(call, conv, plan, conv->operand[conv->result].data, workspace);
    tern__cuda_scratch_free(call, workspace);
    call->device->algorithm = plan->label;
    return status;
}
