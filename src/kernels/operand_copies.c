/* operand_copies.c - copies a call's operands to memory that its kernel can reach.
 *
 * An operand is copied with everything between its first and its last element. Operands may share memory,
 * for example a gradient that overwrites what it is computed from. So ranges that overlap form one region,
 * which is copied once, and the operands keep their places in it. A region with an output is written back
 * whole, including the bytes between its elements, which are unchanged. What the device has a mirror of is
 * not copied; what is written back goes into the mirror as well. */
#include "kernels/operand_copies.h"
#include "device/memory.h"
#include "device/mirror.h"
#include "tensor/host.h"
#include "kernels/reduce.h"

#define OPERANDS (TERN__KERNEL_INS + TERN__KERNEL_OUTS)

typedef struct region {
    char *begin, *end; /* in the caller's memory */
    char *copy;
    char *mirror; /* the device's mirror of it, or NULL */
    bool is_written;
} region;

typedef struct copies {
    tern__call call;
    tern__view views[OPERANDS];
    tern_device *home;
    region regions[OPERANDS];
    int count;
} copies;

static const tern__view **operand_at(tern__call *call, int i)
{
    return i < TERN__KERNEL_INS ? &call->in[i] : &call->out[i - TERN__KERNEL_INS];
}

/* The output of an empty sum is written although its view, seen with the input's shape, has no elements. */
static bool is_elsewhere(const tern__view *view, const tern_device *home)
{
    return view && tern__own_count(view) > 0 && tern__memory_device(view->data) != home;
}

bool tern__operands_stray(const tern__call *call)
{
    const tern_device *home = call->device->backend ? call->device : NULL;
    if (!tern__memory_any()) return false; /* on the path of every kernel call */
    tern__call seen = *call;
    bool stray = false;
    for (int i = 0; i < OPERANDS && !stray; i++) stray = is_elsewhere(*operand_at(&seen, i), home);
    return stray;
}

static region region_of(const tern__view *view, bool is_written)
{
    char *begin = view->data;
    return (region){begin, begin + tern__view_reach(view), NULL, NULL, is_written};
}

/* Adds a region, merged with those that it overlaps. */
static void add_region(copies *c, region more)
{
    for (int i = 0; i < c->count;) {
        region *other = &c->regions[i];
        if (other->end <= more.begin || more.end <= other->begin) {
            i++;
            continue;
        }
        more.begin = TERN__MIN(more.begin, other->begin);
        more.end = TERN__MAX(more.end, other->end);
        more.is_written |= other->is_written;
        *other = c->regions[--c->count];
        i = 0;
    }
    c->regions[c->count++] = more;
}

static void *copy_alloc(const copies *c, size_t bytes)
{
    return c->home ? tern__device_alloc(c->home, bytes) : tern__alloc_raw(bytes, TERN__LINE);
}

static int bring_region(copies *c, region *r)
{
    size_t bytes = (size_t)(r->end - r->begin);
    r->mirror = c->home ? tern__mirror_of(c->home, r->begin, r->end) : NULL;
    r->copy = r->mirror && !r->is_written ? r->mirror : copy_alloc(c, bytes);
    if (!r->copy) return TERN_E_MEMORY;
    return r->copy == r->mirror ? TERN_OK : tern__memory_copy(r->copy, r->begin, bytes, c->call.err);
}

static int bring_regions(copies *c)
{
    int status = TERN_OK;
    for (int i = 0; i < c->count && !status; i++) status = bring_region(c, &c->regions[i]);
    return status;
}

static void view_redirect(copies *c, tern__view *view)
{
    char *data = view->data;
    for (int i = 0; i < c->count; i++)
        if (data >= c->regions[i].begin && data < c->regions[i].end)
            view->data = c->regions[i].copy + (data - c->regions[i].begin);
}

static int write_back(copies *c)
{
    int status = TERN_OK;
    for (int i = 0; i < c->count && !status; i++) {
        const region *r = &c->regions[i];
        size_t bytes = (size_t)(r->end - r->begin);
        if (!r->is_written) continue;
        status = tern__memory_copy(r->begin, r->copy, bytes, c->call.err);
        if (!status && r->mirror) status = tern__memory_copy(r->mirror, r->copy, bytes, c->call.err);
    }
    return status;
}

/* Operands with the same view share a copy: kernels recognise in-place updates by the address. */
static void operands_replace(copies *c)
{
    for (int i = 0; i < OPERANDS; i++) {
        const tern__view **place = operand_at(&c->call, i);
        if (!is_elsewhere(*place, c->home)) continue;
        c->views[i] = **place;
        c->views[i].packs = NULL;
        view_redirect(c, &c->views[i]);
        *place = &c->views[i];
    }
}

int tern__kernel_run_on_copies(const tern__call *call, tern_device *home, tern__kernel_fn kernel)
{
    copies c = {.call = *call, .home = home};
    if (!home && call->device->backend) c.call.device = call->device->host;
    for (int i = 0; i < OPERANDS; i++) {
        const tern__view *view = *operand_at(&c.call, i);
        if (is_elsewhere(view, home)) add_region(&c, region_of(view, i >= TERN__KERNEL_INS));
    }
    int status = bring_regions(&c);
    if (!status) {
        operands_replace(&c);
        status = kernel(&c.call);
    }
    if (!status) status = write_back(&c);
    for (int i = 0; i < c.count; i++)
        if (!c.home)
            tern__free(c.regions[i].copy);
        else if (c.regions[i].copy != c.regions[i].mirror)
            tern__device_free(c.home, c.regions[i].copy);
    return status;
}
