/* small_gemm_plan.cc - whether products are made by the kernel for small ones or in another way: as
 * conv_plan.cc has it, the device's clock decides, on one rank for all. What adds to its results is not run
 * for the clock's sake, and goes the other way until it is known. */
#include "cuda/small_gemm.h"

extern "C" {
#include "device/notes.h"
}

#include <array>
#include <cstdio>
#include <map>

#define TEXT  512
#define SMALL "small"
#define OTHER "other"

enum { NUMBERS = 7 }; /* of a product */

typedef std::array<int64_t, TERN__SMALL_GEMMS * NUMBERS + 1> plan_key;

/* NULL: not known. */
typedef struct plan {
    const char *way;
    uint64_t heard; /* device->notes->heard when it was found */
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
        key[at++] = g[i].a.transposed << 5 | g[i].b.transposed << 4 | (g[i].bias != nullptr) << 3 |
                    (g[i].row_sums != nullptr) << 2 | g[i].relu << 1 | is_aligned;
    }
    key[at] = gate != nullptr;
    return key;
}

static void describe(const plan_key &key, char text[TEXT])
{
    size_t used = (size_t)std::snprintf(text, TEXT, "small products");
    for (int64_t number : key)
        if (used < TEXT) used += (size_t)std::snprintf(text + used, TEXT - used, " %lld", (long long)number);
}

/* ---- by the clock ---- */

typedef struct trial {
    const tern__call *call;
    const tern__gemm *g;
    int count;
    const float *gate;
} trial;

static int run_small(void *ctx)
{
    const trial *t = (const trial *)ctx;
    return tern__small_gemms(t->call, t->g, t->count, t->gate);
}

static const char *faster(const trial *t, tern__timed *other, void *ctx)
{
    tern__stopwatch watch;
    const char *way = OTHER;
    tern__call call = *t->call;
    trial quiet = *t;
    call.err = nullptr;
    quiet.call = &call;
    if (tern__stopwatch_open(&watch, &call)) {
        float others = tern__stopwatch_try(&watch, other, ctx, -1);
        float small = tern__stopwatch_try(&watch, run_small, &quiet, others);
        if (small >= 0 && (others < 0 || small < others)) way = SMALL;
    }
    tern__stopwatch_close(&watch);
    return way;
}

/* ---- what is known ---- */

static const char *known(const char *name)
{
    return !name ? nullptr : std::strcmp(name, SMALL) == 0 ? SMALL : OTHER;
}

static bool adds(const tern__gemm *g, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) any |= g[i].add;
    return any;
}

static const char *choose(const trial *t, const plan_key &key, tern__timed *other, void *ctx)
{
    tern_device *device = t->call->device;
    char what[TEXT];
    describe(key, what);
    const char *way = known(device->notes->find(device, what));
    if (way || device->follows || adds(t->g, t->count)) return way;
    way = faster(t, other, ctx);
    device->notes->keep(device, what, way);
    return way;
}

int tern__small_gemms_or(const tern__call *call, const tern__gemm *g, int count, const float *gate,
                         tern__timed *other, void *ctx)
{
    tern_device *device = call->device;
    if (device->conv.deterministic || !tern__small_gemms_fit(g, count)) return other(ctx);
    plan_key key = key_of(g, count, gate);
    plan *p = &(*plans_of(call))[key];
    trial t = {call, g, count, gate};
    if (!p->way || p->heard != device->notes->heard) {
        p->heard = device->notes->heard;
        const char *way = choose(&t, key, other, ctx);
        if (way) p->way = way;
    }
    return p->way && std::strcmp(p->way, SMALL) == 0 ? run_small(&t) : other(ctx);
}
