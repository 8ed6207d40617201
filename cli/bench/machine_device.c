/* machine_device.c - peak arithmetic and copy rates of a GPU. */
#include "bench/machine.h"

#include "bench/bench.h"
#include "device/backend.h"

#include <tern.h>

/* Problem sizes double until one run takes ENOUGH_MS, so that neither the clock's resolution nor the caches
 * matter, or the largest size is reached. */
enum { TRIES = 10, PRODUCT_MIN = 256, PRODUCT_MAX = 8192, ENOUGH_MS = 1, ALIGNMENT = 256 };
static const size_t copy_min = (size_t)1 << 20, copy_max = (size_t)2 << 30;
/* If all copies together move less than this, each gets its own memory, so that none finds its data in a
 * cache. */
static const size_t apart_max = (size_t)256 << 20;

typedef struct yardstick {
    tern_device *device;
    tern__bench_clock *clock;
    tern_dtype dtype;
    tern_error *err;
} yardstick;

typedef void (*work_fn)(const yardstick *y, void *ctx);

/* Returns the milliseconds of the fastest of TRIES runs after a warm-up; 0 after an error. */
static double best_ms(const yardstick *y, work_fn work, void *ctx)
{
    double best = 0;
    work(y, ctx);
    for (int i = 0; i < TRIES && !y->err->code; i++) {
        tern__bench_clock_set(y->clock, 0, y->err);
        work(y, ctx);
        tern__bench_clock_set(y->clock, 1, y->err);
        double ms = tern__bench_clock_ms(y->clock, 0, 1);
        best = best > 0 ? TERN__MIN(best, ms) : ms;
    }
    return best;
}

/* ---- products ---- */

typedef struct product {
    tern_scope *scope;
    tern_tensor *a, *b;
} product;

static void multiply_once(const yardstick *y, void *ctx)
{
    (void)y;
    product *p = ctx;
    tern_matmul(p->scope, p->a, p->b);
}

/* Multiplies random numbers: zeros would be faster. */
static double product_ms(const yardstick *y, int64_t n)
{
    product p = {.scope = tern_scope_new(y->device, NULL, y->err)};
    tern_rng *rng = tern_rng_new(1, y->err);
    if (!y->err->code) {
        p.a = tern_cast(p.scope, tern_randn(p.scope, rng, 2, (int64_t[]){n, n}), y->dtype);
        p.b = tern_cast(p.scope, tern_randn(p.scope, rng, 2, (int64_t[]){n, n}), y->dtype);
    }
    double ms = y->err->code ? 0 : best_ms(y, multiply_once, &p);
    if (p.scope) tern_scope_end(p.scope, y->err);
    tern_scope_free(p.scope);
    tern_rng_free(rng);
    return ms;
}

static double measure_gflops(const yardstick *y)
{
    double gflops = 0;
    for (int64_t n = PRODUCT_MIN; n <= PRODUCT_MAX && !y->err->code; n *= 2) {
        double ms = product_ms(y, n);
        if (ms > 0) gflops = TERN__MAX(gflops, 2.0 * (double)(n * n * n) / ms * 1e-6);
        if (ms > ENOUGH_MS) break;
    }
    return gflops;
}

/* ---- copies ---- */

typedef struct copied {
    char *to, *from;
    size_t bytes, step; /* of a copy; from one copy to the next */
    int done;
} copied;

static void copy_once(const yardstick *y, copied *c)
{
    size_t at = c->step * (size_t)(c->done++ % TRIES);
    y->device->backend->copy(y->device, c->to + at, c->from + at, c->bytes, y->err);
}

/* Returns the mean milliseconds of a copy after a warm-up, without waiting in between; 0 after an error. */
static double mean_copy_ms(const yardstick *y, copied *c)
{
    double ms = 0;
    copy_once(y, c);
    for (int i = 0; i < TRIES && !y->err->code; i++) {
        tern__bench_clock_set(y->clock, 2 * i, y->err);
        copy_once(y, c);
        tern__bench_clock_set(y->clock, 2 * i + 1, y->err);
    }
    for (int i = 0; i < TRIES && !y->err->code; i++) ms += tern__bench_clock_ms(y->clock, 2 * i, 2 * i + 1);
    return y->err->code ? 0 : ms / TRIES;
}

static double copy_ms(const yardstick *y, size_t bytes)
{
    const tern__device_backend *backend = y->device->backend;
    size_t room = TERN__MAX(bytes, TERN__MIN(TRIES * tern__align_up(bytes, ALIGNMENT), apart_max));
    copied c = {.to = backend->alloc(y->device, room),
                .from = backend->alloc(y->device, room),
                .bytes = bytes,
                .step = (room - bytes) / TRIES / ALIGNMENT * ALIGNMENT};
    double ms = c.to && c.from ? mean_copy_ms(y, &c) : 0;
    backend->free(y->device, c.to);
    backend->free(y->device, c.from);
    return ms;
}

static double device_measure_copy(const yardstick *y)
{
    double gbs = 0;
    for (size_t bytes = copy_min; bytes <= copy_max && !y->err->code; bytes *= 2) {
        double ms = copy_ms(y, bytes);
        if (ms > 0) gbs = 2 * (double)bytes / ms * 1e-6;
        if (ms <= 0 || ms > ENOUGH_MS) break;
    }
    return gbs;
}

int tern__machine_measure_device(tern_device *device, tern_dtype dtype, tern__machine *machine,
                                 tern_error *err)
{
    yardstick y = {
        .device = device, .clock = tern__bench_clock_new(device, 2 * TRIES, err), .dtype = dtype, .err = err};
    if (!y.clock) return err->code;
    machine->gflops = measure_gflops(&y);
    machine->copy_gbs = device_measure_copy(&y);
    tern__bench_clock_free(y.clock);
    return err->code;
}

double tern__machine_copy_of(tern_device *device, double bytes, tern_error *err)
{
    yardstick y = {.device = device, .clock = tern__bench_clock_new(device, 2 * TRIES, err), .err = err};
    size_t half = TERN__MAX((size_t)(bytes / 2), (size_t)1);
    double ms = y.clock ? copy_ms(&y, half) : 0;
    tern__bench_clock_free(y.clock);
    return ms > 0 ? 2 * (double)half / ms * 1e-6 : 0;
}
