/* profile.c - a kernel observer that times every call and sums times, operations and bytes by kernel. Times
 * are read in batches of CALLS, so that a GPU is not waited for after each call. */
#include "bench/profile.h"
#include "bench/bench.h"

#include "kernels/cost.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES_TEXT 128
#define CALLS       4096

typedef struct row {
    tern__kernel kernel;
    char shapes[SHAPES_TEXT]; /* "" if a row has all shapes of a kernel */
    const char *algorithm;    /* of a convolution, by shape; else NULL  */
    long calls;
    double ms;
    tern__cost cost;
    double bytes_once; /* as cost.bytes, but with every operand read once */
    double copy_gbs;   /* the copy rate that the row is compared with     */
} row;

struct tern__profile {
    tern__kernel_observer observer; /* first: a pointer to it is one to the profile */
    tern_device *device;
    bool by_shape;
    row *rows;
    size_t count, room;
    tern__bench_clock *clock; /* 2 * CALLS points: before and after each call */
    size_t row_of[CALLS];     /* the row of each call whose time has not been read yet */
    int calls;
    tern_error *err; /* the bench's */
};

/* ---- observing ---- */

/* Writes "32x64x8x8", or "()" for a scalar. Returns its length. */
static int put_shape(char *text, size_t size, const tern__view *view)
{
    int used = view->ndim ? 0 : snprintf(text, size, "()");
    for (int d = 0; d < view->ndim && used < (int)size; d++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", d ? "x" : "", (long long)view->shape[d]);
    return TERN__MIN(used, (int)size);
}

/* Writes the first two inputs and the first output, which identify the work: "32x3x8x8 16x3x3x3 > 32x16x8x8".
 */
static void put_shapes(char text[SHAPES_TEXT], const tern__call *call)
{
    const tern__view *views[] = {call->in[0], call->in[1], call->out[0] ? call->out[0] : call->out[1]};
    int used = 0;
    for (size_t i = 0; i < TERN__COUNT(views); i++) {
        if (!views[i] || used >= SHAPES_TEXT - 3) continue;
        used += snprintf(text + used, SHAPES_TEXT - (size_t)used, "%s", i == 2 ? " > " : i ? " " : "");
        used += put_shape(text + used, SHAPES_TEXT - (size_t)used, views[i]);
    }
}

/* The cost without a device assumes that every operand is read once. */
static double bytes_once(const tern__call *call)
{
    tern__call here = *call;
    here.device = NULL;
    return tern__call_cost(&here).bytes;
}

static row *profile_add_row(tern__profile *self)
{
    if (tern__array_reserve(&self->rows, &self->room, self->count + 1, sizeof(row), "tern bench", self->err))
        return NULL;
    return &self->rows[self->count++];
}

static row *find_row(tern__profile *self, const tern__call *call)
{
    row like = {.kernel = call->kernel};
    if (self->by_shape) {
        put_shapes(like.shapes, call);
        like.algorithm = self->device->algorithm;
    }
    for (size_t i = 0; i < self->count; i++)
        if (self->rows[i].kernel == like.kernel && self->rows[i].algorithm == like.algorithm &&
            !strcmp(self->rows[i].shapes, like.shapes))
            return &self->rows[i];
    row *added = profile_add_row(self);
    if (added) *added = like;
    return added;
}

static void read_clock(tern__profile *self)
{
    for (int i = 0; i < self->calls; i++)
        self->rows[self->row_of[i]].ms += tern__bench_clock_ms(self->clock, 2 * i, 2 * i + 1);
    self->calls = 0;
}

static void begin_call(tern__kernel_observer *observer)
{
    tern__profile *self = (tern__profile *)observer;
    if (self->calls == CALLS) read_clock(self);
    tern__bench_clock_set(self->clock, 2 * self->calls, self->err);
}

static void end_call(tern__kernel_observer *observer, const tern__call *call)
{
    tern__profile *self = (tern__profile *)observer;
    tern__bench_clock_set(self->clock, 2 * self->calls + 1, self->err);
    row *at = find_row(self, call);
    if (!at) return;
    tern__cost cost = tern__call_cost(call);
    at->calls++;
    at->cost.flops += cost.flops;
    at->cost.bytes += cost.bytes;
    at->bytes_once += bytes_once(call);
    self->row_of[self->calls++] = (size_t)(at - self->rows);
}

tern__profile *tern__profile_new(tern_device *device, bool shapes, tern_error *err)
{
    tern__profile *self = tern__alloc(sizeof(*self), "tern bench", err);
    if (!self) return NULL;
    *self =
        (tern__profile){.observer = {end_call, begin_call}, .device = device, .by_shape = shapes, .err = err};
    self->clock = tern__bench_clock_new(device, 2 * CALLS, err);
    device->observer = self->clock ? &self->observer : NULL;
    return self;
}

void tern__profile_free(tern__profile *self)
{
    if (!self) return;
    self->device->observer = NULL;
    tern__bench_clock_free(self->clock);
    tern__free(self->rows);
    tern__free(self);
}

/* ---- printing ---- */

/* The figures of a row over all steps; percentages are of the machine's peak. */
typedef struct line {
    double ms, step_percent, gflops, peak_percent, gbs, copy_percent, once_percent;
} line;

static line line_of(const row *r, const tern__machine *machine, double ms)
{
    line l = {.ms = r->ms, .gflops = r->cost.flops / r->ms * 1e-6, .gbs = r->cost.bytes / r->ms * 1e-6};
    l.step_percent = 100 * l.ms / ms;
    l.peak_percent = 100 * l.gflops / machine->gflops;
    l.copy_percent = 100 * l.gbs / r->copy_gbs;
    l.once_percent = l.copy_percent * r->bytes_once / r->cost.bytes;
    return l;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const row *)a)->ms, y = ((const row *)b)->ms;
    return (x < y) - (x > y);
}

/* On a GPU, starting and ending a call takes time, for a copy as for a kernel: a row is compared with a copy
 * of as many bytes as its calls move. */
static void profile_measure_copy(tern__profile *self, row *r, const tern__machine *machine)
{
    double own = self->device->backend
                     ? tern__machine_copy_of(self->device, r->cost.bytes / (double)r->calls, self->err)
                     : 0;
    r->copy_gbs = own > 0 ? own : machine->copy_gbs;
}

/* Sorts the rows, measures their copy rates and returns the milliseconds spent outside of kernels. */
static double finish_rows(tern__profile *self, const tern__machine *machine, double ms)
{
    read_clock(self);
    qsort(self->rows, self->count, sizeof(row), by_time);
    for (size_t i = 0; i < self->count; i++) {
        profile_measure_copy(self, &self->rows[i], machine);
        ms -= self->rows[i].ms;
    }
    return ms;
}

static void profile_print_row(const row *r, const line *l, long steps)
{
    printf("%-22s %7.1f %10.3f %6.1f", tern__kernel_name(r->kernel), (double)r->calls / (double)steps,
           l->ms / (double)steps, l->step_percent);
    if (r->cost.flops > 0)
        printf(" %9.1f %6.1f", l->gflops, l->peak_percent);
    else
        printf(" %9s %6s", "-", "-");
    printf(" %10.3f %8.1f %6.1f %6.1f", r->cost.bytes * 1e-6 / (double)r->calls, l->gbs, l->copy_percent,
           l->once_percent);
    if (*r->shapes) printf("  %s", r->shapes);
    if (r->algorithm) printf("  %s", r->algorithm);
    printf("\n");
}

void tern__profile_print(tern__profile *self, const tern__machine *machine, long steps, double ms)
{
    double outside = finish_rows(self, machine, ms);
    printf("\nrank 0, mean of %ld step%s; its device reaches %.1f GFLOPS and copies %.1f GB/s out of cache\n",
           steps, steps == 1 ? "" : "s", machine->gflops, machine->copy_gbs);
    if (self->device->backend)
        printf("%% copy: relative to a copy of as many bytes, timed call by call, launch included\n");
    printf("%-22s %7s %10s %6s %9s %6s %10s %8s %6s %6s%s\n", "kernel", "calls", "ms", "% step", "GFLOPS",
           "% peak", "MB a call", "GB/s", "% copy", "% once", self->by_shape ? "  shapes" : "");
    for (size_t i = 0; i < self->count; i++) {
        line l = line_of(&self->rows[i], machine, ms);
        profile_print_row(&self->rows[i], &l, steps);
    }
    printf("%-22s %7s %10.3f %6.1f\n", "outside of kernels", "", outside / (double)steps, 100 * outside / ms);
}

static cJSON *row_json(const row *r, const line *l, long steps)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "kernel", tern__kernel_name(r->kernel));
    cJSON_AddStringToObject(object, "shapes", r->shapes);
    if (r->algorithm) cJSON_AddStringToObject(object, "algorithm", r->algorithm);
    cJSON_AddNumberToObject(object, "calls", (double)r->calls / (double)steps);
    cJSON_AddNumberToObject(object, "ms", l->ms / (double)steps);
    cJSON_AddNumberToObject(object, "step_percent", l->step_percent);
    cJSON_AddNumberToObject(object, "gflops", l->gflops);
    cJSON_AddNumberToObject(object, "peak_percent", l->peak_percent);
    cJSON_AddNumberToObject(object, "bytes_a_call", r->cost.bytes / (double)r->calls);
    cJSON_AddNumberToObject(object, "gbs", l->gbs);
    cJSON_AddNumberToObject(object, "copy_gbs", r->copy_gbs);
    cJSON_AddNumberToObject(object, "copy_percent", l->copy_percent);
    cJSON_AddNumberToObject(object, "once_percent", l->once_percent);
    return object;
}

cJSON *tern__profile_json(tern__profile *self, const tern__machine *machine, long steps, double ms)
{
    double outside = finish_rows(self, machine, ms);
    cJSON *object = cJSON_CreateObject();
    cJSON_AddNumberToObject(object, "machine_gflops", machine->gflops);
    cJSON_AddNumberToObject(object, "machine_copy_gbs", machine->copy_gbs);
    cJSON_AddNumberToObject(object, "step_ms", ms / (double)steps);
    cJSON_AddNumberToObject(object, "outside_ms", outside / (double)steps);
    cJSON *rows = cJSON_AddArrayToObject(object, "rows");
    for (size_t i = 0; i < self->count; i++) {
        line l = line_of(&self->rows[i], machine, ms);
        cJSON_AddItemToArray(rows, row_json(&self->rows[i], &l, steps));
    }
    return object;
}
