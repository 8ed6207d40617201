/* choice.c - names a case, and finds its algorithm.
 *
 * A case is decided when it occurs: by what another rank has told, else by what the user's file has, else by
 * measuring (device/choices.h). A device that follows another rank uses the fixed table until it is told, as
 * it does if it was told something it may not or cannot run, and as it does for what it does not learn. A
 * case for which the table has no algorithm is not measured either: it goes through f32 copies, which are a
 * case of their own. The rules that exclude algorithms are part of the case's name, so a choice made under
 * one set of rules has no effect under another. */
#include "kernels/cpu/conv/choice.h"
#include "device/choices.h"

#include <pthread.h>
#include <string.h>

#define TRIES 3 /* timed runs; the fastest counts */

/* From the one that takes the most cases to the fastest ones, which take few. */
const tern__conv_algorithm *const tern__conv_algorithms[] = {
    &tern__conv_direct, &tern__conv_winograd, &tern__conv_tiles, &tern__conv_taps, &tern__conv_unfold, NULL};

/* ---- cases ---- */

/* The numbers of tern__conv_key by name. A shape has as many as x has dimensions. */
typedef struct field {
    const char *name;
    int first, count;
} field;

static const field fields[] = {
    {" x ", 0, 5},         {" weight ", 5, 5},  {" stride ", 10, 3},  {" padding ", 13, 3},
    {" dilation ", 16, 3}, {" groups ", 19, 1}, {" layouts ", 20, 2}, {" bias ", 22, 1},
    {" dtypes ", 24, 4},   {" offset ", 28, 1}, {" strides ", 29, 3},
};

/* oneDNN takes longer to say this than a small convolution does. */
static char kernels[96];

static void describe_kernels(void)
{
    tern__kernel_choices(kernels, sizeof(kernels));
}

static char *add_number(char *to, uint64_t number)
{
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count) *to++ = digits[--count];
    return to;
}

static char *add_numbers(char *to, const char *name, const int64_t *number, int count)
{
    for (int i = 0; i < count; i++) to = add_number(stpcpy(to, i ? "," : name), (uint64_t)number[i]);
    return to;
}

void tern__conv_case(const tern__conv *c, char text[TERN__CONV_CASE])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const tern__view *x = c->op[TERN__CONV_X].view;
    const tern_device *device = c->call->device;
    const int64_t threads = device->threads, workspace = (int64_t)device->conv.workspace;
    tern__prim_key key = tern__conv_key(c);
    pthread_once(&once, describe_kernels);
    char *to = stpcpy(stpcpy(stpcpy(text, tern__kernel_name(c->call->kernel)), " by "), kernels);
    for (size_t i = 0; i < TERN__COUNT(fields); i++)
        to = add_numbers(to, fields[i].name, key.number + fields[i].first,
                         TERN__MIN(fields[i].count, x->ndim));
    to = add_numbers(to, " threads ", &threads, 1);
    to = add_numbers(to, " workspace ", &workspace, 1);
    strcpy(to, device->conv.exact && x->dtype == TERN_F32 ? " exact" : "");
}

/* ---- the fixed table ---- */

static bool choice_is_allowed(const tern__conv *c, const tern__conv_algorithm *a)
{
    const tern_device_conv_opts *rules = &c->call->device->conv;
    bool rounds = a->rounds_f32 && c->op[TERN__CONV_X].view->dtype == TERN_F32;
    return !(rounds && rules->exact) && a->takes(c) && (!a->scratch || a->scratch(c) <= rules->workspace);
}

/* The fixed table: the last algorithm that is allowed and pays; NULL: none. */
static const tern__conv_algorithm *look_up(const tern__conv *c)
{
    const tern__conv_algorithm *best = NULL;
    for (int i = 0; tern__conv_algorithms[i]; i++) {
        const tern__conv_algorithm *a = tern__conv_algorithms[i];
        if (choice_is_allowed(c, a) && (!a->pays || a->pays(c))) best = a;
    }
    return best;
}

/* ---- measuring ---- */

/* A copy of the case whose results go elsewhere. */
typedef struct trial {
    tern__conv c;
    tern__call call;
    tern__view views[TERN__CONV_OPERANDS];
    void *blocks[TERN__CONV_OPERANDS];
} trial;

static size_t span(const tern__view *view)
{
    if (view->layout != TERN__PLAIN) return tern__view_bytes(view);
    return (size_t)(view->shape[0] * view->stride[0]) * tern_dtype_bytes(view->dtype);
}

/* Weights are packed in every run, as in a training step. */
static bool choice_trial_open(trial *t, const tern__conv *c)
{
    bool fits = true;
    *t = (trial){.c = *c, .call = *c->call};
    t->c.call = &t->call;
    t->call.err = NULL;
    t->call.add[0] = t->call.add[1] = false;
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        tern__conv_operand *op = &t->c.op[i];
        if (!op->view) continue;
        t->views[i] = *op->view;
        t->views[i].packs = NULL;
        if (op->result) t->views[i].data = t->blocks[i] = tern__device_alloc(c->call->device, span(op->view));
        fits = fits && t->views[i].data;
        op->view = &t->views[i];
        op->add = false;
        if (op->result) t->call.out[i == TERN__CONV_B] = op->view;
    }
    if (!t->c.op[TERN__CONV_W].result) t->call.in[1] = t->c.op[TERN__CONV_W].view;
    return fits;
}

/* Frees scratch memory: algorithms that are not chosen may have used much. The operand of a strided 1x1
 * convolution (thin.c) stays. */
static void choice_trial_close(trial *t)
{
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) tern__device_release(t->call.device, t->blocks[i]);
    tern__device_scratch_free(t->call.device, TERN__SCRATCH_THIN);
}

/* For one thread its processor time, which is not affected by other processes; several threads wait for
 * each other, so for them the elapsed time. */
static int64_t clock_of(const trial *t)
{
    return t->call.device->threads > 1 ? tern__now_ns() : tern__thread_ns();
}

static bool may_go_on(const tern__conv *c)
{
    return c->call->device->choices->may_measure(c->call->device);
}

/* Returns the nanoseconds of the fastest run; INT64_MAX: it failed, or the device may measure no longer. The
 * first run creates what is created once. */
static int64_t time_of(const trial *t, const tern__conv_algorithm *a)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i <= TRIES; i++) {
        tern__conv c = t->c;
        int64_t started = clock_of(t);
        if (!may_go_on(&t->c) || a->run(&c)) return INT64_MAX;
        if (i > 0) best = TERN__MIN(best, clock_of(t) - started);
    }
    return best;
}

/* A gain below a tenth is not worth an error in the last places, nor a choice that the next measurement
 * would reverse. */
static bool is_faster(int64_t ns, int64_t than)
{
    return ns < than - than / 10;
}

/* Returns the fastest of the algorithms that are allowed; NULL: none has run, out of memory, or cut short. */
static const tern__conv_algorithm *choice_measure(const tern__conv *c)
{
    trial t;
    const tern__conv_algorithm *best = NULL;
    int64_t least = INT64_MAX;
    bool fits = choice_trial_open(&t, c);
    for (int i = 0; fits && tern__conv_algorithms[i]; i++) {
        if (!choice_is_allowed(c, tern__conv_algorithms[i])) continue;
        int64_t ns = time_of(&t, tern__conv_algorithms[i]);
        if (!is_faster(ns, least)) continue;
        best = tern__conv_algorithms[i];
        least = ns;
    }
    choice_trial_close(&t);
    return may_go_on(c) ? best : NULL;
}

/* ---- deciding ---- */

/* Returns the algorithm that was told, or is in the file, or was measured; NULL: none that is allowed. */
static const tern__conv_algorithm *find_known(const tern__conv *c, const char *what)
{
    const char *name = c->call->device->choices->find(c->call->device, what);
    for (int i = 0; name && tern__conv_algorithms[i]; i++)
        if (!strcmp(tern__conv_algorithms[i]->name, name) && choice_is_allowed(c, tern__conv_algorithms[i]))
            return tern__conv_algorithms[i];
    return NULL;
}

static bool may_measure(const tern__conv *c)
{
    int count = 0;
    for (int i = 0; tern__conv_algorithms[i]; i++) count += choice_is_allowed(c, tern__conv_algorithms[i]);
    return count > 1 && may_go_on(c);
}

/* Measures the case if that is allowed, and keeps the choice. */
static const tern__conv_algorithm *choice_decide(const tern__conv *c, const char *what)
{
    const tern__conv_algorithm *best = may_measure(c) ? choice_measure(c) : NULL;
    if (best) c->call->device->choices->keep(c->call->device, what, best->name);
    return best;
}

int tern__conv_choose(const tern__conv *c, const tern__conv_algorithm **chosen)
{
    char what[TERN__CONV_CASE];
    *chosen = NULL;
    if (!c->call->device->conv.deterministic) {
        tern__conv_case(c, what);
        *chosen = find_known(c, what);
        if (!*chosen) *chosen = choice_decide(c, what);
    }
    if (!*chosen) *chosen = look_up(c);
    return *chosen ? TERN_OK : TERN_E_UNSUPPORTED;
}
