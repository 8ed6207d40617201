/* small_gemm_plan.cc - chooses whether products are computed by the kernel for small ones, and with how
 * many blocks, or otherwise. As in conv_plan.cc, measuring decides, on one rank for all. A call that adds
 * to its results is not measured; it is computed otherwise until the choice is known. */
#include "cuda/kernels/small_gemm.h"
#include "cuda/stopwatch.h"

extern "C" {
#include "device/choices.h"
}

#include <array>
#include <cstdio>
#include <map>

#define TEXT  512
#define NAME  32
#define SMALL "small %d"
#define OTHER "other"

enum { NUMBERS = 7 }; /* describe a product */

/* The candidates: not this kernel (0), half of a large GPU's multiprocessors, nearly all of them, and up to
 * twice as many: on an H200 a product took 12.7 us in 32 clusters of 8 blocks, and 10.7 in 32 of 6. */
static const int tried[] = {0, 64, 128, 192, 224, TERN__SMALL_BLOCKS};

typedef std::array<int64_t, TERN__SMALL_GEMMS * NUMBERS + 1> plan_key;

typedef struct plan {
    bool is_known;
    int blocks;     /* 0: not this kernel */
    uint64_t heard; /* device->choices->heard when the choice was made */
} plan;

typedef std::map<plan_key, plan> plans;

static plans *plans_of(const tern__call *call)
{
    tern__cuda_library *slot = &tern__cuda_of(call->device)->libraries[TERN__CUDA_SMALL_GEMM_PLANS];
    if (!slot->state) *slot = {new plans, [](tern_device *, void *state) { delete (plans *)state; }};
    return (plans *)slot->state;
}

static plan_key key_of(const tern__gemm *g, int count, const float *gate)
{
    plan_key key = {};
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        bool is_aligned =
            ((uintptr_t)g[i].a.data | (uintptr_t)g[i].b.data | (uintptr_t)g[i].y.data) % 16 == 0;
        key[at++] = g[i].m;
        key[at++] = g[i].n;
        key[at++] = g[i].k;
        key[at++] = g[i].a.step;
        key[at++] = g[i].b.step;
        key[at++] = g[i].y.step;
        key[at++] = (g[i].gate != nullptr) << 6 | g[i].a.transposed << 5 | g[i].b.transposed << 4 |
                    (g[i].bias != nullptr) << 3 | (g[i].row_sums != nullptr) << 2 | g[i].relu << 1 |
                    is_aligned;
    }
    key[at] = gate != nullptr;
    return key;
}

/* ---- measuring ---- */

typedef struct trial {
    const tern__call *call;
    const tern__gemm *g;
    int count, blocks; /* blocks 0: not this kernel */
    const float *gate;
    tern__other_way *other;
    const void *ctx; /* argument of the alternative */
} trial;

static int run_trial(void *ctx)
{
    const trial *t = (const trial *)ctx;
    return t->blocks ? tern__small_gemms(t->call, t->g, t->count, t->gate, t->blocks)
                     : t->other(t->call, t->ctx);
}

/* Returns the fastest number of blocks; 0: not this kernel. *least: its milliseconds; negative: nothing
 * has run. */
static int fastest(const trial *t, float *least)
{
    tern__stopwatch watch;
    tern__call call = *t->call;
    trial quiet = *t;
    int blocks = 0;
    call.err = nullptr;
    quiet.call = &call;
    *least = -1;
    bool is_open = tern__stopwatch_open(&watch, &call);
    for (int some : tried) {
        quiet.blocks = some;
        float ms = is_open ? tern__stopwatch_try(&watch, run_trial, &quiet, *least) : -1;
        if (ms < 0 || (*least >= 0 && ms >= *least)) continue;
        *least = ms;
        blocks = some;
    }
    tern__stopwatch_close(&watch);
    return blocks;
}

/* ---- choosing ---- */

static bool adds(const tern__gemm *g, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) any |= g[i].add;
    return any;
}

/* False: the name is not one of the candidates. */
static bool take_named(plan *p, const char *name)
{
    int blocks = 0;
    bool is_other = name && std::strcmp(name, OTHER) == 0;
    bool is_small =
        name && std::sscanf(name, SMALL, &blocks) == 1 && blocks > 0 && blocks <= TERN__SMALL_BLOCKS;
    if (is_other || is_small) *p = {true, is_small ? blocks : 0, p->heard};
    return is_other || is_small;
}

static void choose(plan *p, const trial *t, const plan_key &key)
{
    tern_device *device = t->call->device;
    char what[TEXT], name[NAME];
    float least;
    p->heard = device->choices->heard;
    tern__stopwatch_case("small products", key.data(), key.size(), what, TEXT);
    if (take_named(p, device->choices->find(device, what)) || p->is_known ||
        !tern__stopwatch_decides(device) || adds(t->g, t->count))
        return;
    *p = {true, fastest(t, &least), p->heard};
    std::snprintf(name, NAME, p->blocks ? SMALL : OTHER, p->blocks);
    if (least >= 0 && tern__stopwatch_decides(device)) device->choices->keep(device, what, name);
}

int tern__small_gemms_or(const tern__call *call, const tern__gemm *g, int count, const float *gate,
                         tern__other_way *other, const void *ctx)
{
    tern_device *device = call->device;
    bool may = tern__cuda_of(device)->has_small_gemms && !device->conv.deterministic;
    if (!may || !tern__small_gemms_fit(g, count)) return other(call, ctx);
    plan_key key = key_of(g, count, gate);
    plan *p = &(*plans_of(call))[key];
    trial t = {call, g, count, 0, gate, other, ctx};
    if (!p->is_known || p->heard != device->choices->heard) choose(p, &t, key);
    t.blocks = p->blocks;
    return run_trial(&t);
}
