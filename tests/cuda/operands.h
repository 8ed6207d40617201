/* operands.h - operands of a table of kernel calls: their shapes, layouts and contents, and each on a device
 * and on the one that it is compared with. */
#ifndef TERN_TESTS_CUDA_OPERANDS_H
#define TERN_TESTS_CUDA_OPERANDS_H

#include "check.h"

#include "device/memory.h"
#include "kernels/kernel.h"
#include "tensor/host.h"

#include <math.h>

#define IGNORED 200 /* fits into a u8 */

/* ---- operands ---- */

/* Contents: random numbers, or log probabilities and the like; sums of weights; labels of `classes`, some
 * ignored; positions among `classes`. */
typedef enum kind { NONE, NUMBERS, LOGS, POSITIVE, LABELS, PLACES } kind;
/* Layouts: contiguous; channels last; two dimensions transposed; with gaps, not aligned for reading four
 * elements, or aligned; broadcast along the dimensions of the `seen` mask. */
typedef enum form { PLAIN, LAST, TURNED, GAPS, FOURS, SEEN } form;

enum { INS = 5, OUTS = 4, OPERANDS = INS + OUTS };

#define OF_ROW TERN_DTYPE_COUNT /* the type that the row is run with */

typedef struct operand {
    kind kind;
    int dtype, ndim;
    int64_t shape[5];
    form form;
    int seen;
    int64_t classes;
} operand;

typedef struct row {
    const char *what;
    tern__kernel kernel;
    operand in[INS], out[OUTS];
    const void *attr;
    bool add;
} row;

static uint64_t seed;

static inline double draw(void) /* in [0, 1) */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 40) / (1 << 24);
}

static inline double draw_of(const operand *o)
{
    switch (o->kind) {
    case LOGS: return -4 * draw();
    case POSITIVE: return 0.5 + draw();
    case LABELS: return draw() < 0.1 ? IGNORED : floor(draw() * (double)o->classes);
    case PLACES: return floor(draw() * (double)o->classes);
    default: return 4 * draw() - 2;
    }
}

static inline void set_strides(tern__view *view, const operand *o)
{
    int64_t stride = 1;
    for (int d = view->ndim - 1; d >= 0; d--) {
        bool is_seen = o->form == SEEN && o->seen >> d & 1;
        view->stride[d] = is_seen ? 0 : stride;
        stride *= is_seen ? 1 : view->shape[d] + (o->form == GAPS ? 3 : o->form == FOURS ? 4 : 0);
    }
}

/* Allocates memory for an operand, with some more after it. */
static inline tern__view new_view(const operand *o, tern_dtype dtype)
{
    tern_dtype own = o->dtype == OF_ROW ? dtype : (tern_dtype)o->dtype;
    tern__view view =
        tern__view_make(own, o->form == LAST ? TERN__CHANNELS_LAST : TERN__PLAIN, o->ndim, o->shape);
    int64_t room = 64;
    if (o->form == TURNED) view.stride[0] = 1, view.stride[1] = view.shape[0];
    if (o->form >= GAPS) set_strides(&view, o);
    for (int d = 0; d < o->ndim; d++) room += (o->shape[d] - 1) * view.stride[d];
    view.data = tern__alloc((size_t)room * tern_dtype_bytes(own), __func__, NULL);
    assert_non_null(view.data);
    if (o->form == GAPS) view.data = (char *)view.data + tern_dtype_bytes(own);
    return view;
}

static inline void drop_view(tern__view *view, const operand *o)
{
    tern__free((char *)view->data - (o->form == GAPS ? tern_dtype_bytes(view->dtype) : 0));
}

static inline void fill(const tern__view *view, const operand *o)
{
    for (int64_t i = 0; i < tern__view_count(view); i++) tern__view_set(view, i, draw_of(o));
}

/* An operand of the call on both devices. */
typedef struct pair {
    const operand *operand;
    tern__view device, reference;
    tern__view there; /* in the device's memory */
    void *memory;     /* NULL: the call's own copies are there */
} pair;

static inline void open_pair(pair *p, const operand *o, tern_dtype dtype)
{
    *p = (pair){.operand = o};
    if (o->kind == NONE) return;
    uint64_t start = seed;
    p->device = new_view(o, dtype);
    fill(&p->device, o);
    seed = start;
    p->reference = new_view(o, dtype);
    fill(&p->reference, o);
}

/* What begins at an odd place begins at an odd one of the device's memory. A call's own copies would not. */
static inline void move_there(pair *p, tern_device *device)
{
    tern_error err = {0};
    size_t bytes = tern__view_reach(&p->device), odd = tern_dtype_bytes(p->device.dtype);
    if (p->operand->form != GAPS) return;
    p->there = p->device;
    p->memory = tern__memory_new(device, bytes + odd, __func__, &err);
    p->there.data = (char *)p->memory + odd;
    tern__memory_copy(p->there.data, p->device.data, bytes, &err);
    assert_ok(err);
}

static inline void move_back(pair *p)
{
    tern_error err = {0};
    if (!p->memory) return;
    tern__memory_copy(p->device.data, p->there.data, tern__view_reach(&p->device), &err);
    tern__memory_free(p->memory);
    assert_ok(err);
}

#endif
