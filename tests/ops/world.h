/* world.h - a device and a scope for tests of ops, checks of expected errors, and an allocator that counts
 * and fails on demand. */
#ifndef TERN_TESTS_OPS_WORLD_H
#define TERN_TESTS_OPS_WORLD_H

#include "base/base.h"
#include "check.h"

#include <stdlib.h>

typedef struct world {
    tern_error err;
    tern_device *device;
    tern_scope *scope;
    tern_rng *rng;
} world;

static inline world open_world(void)
{
    world w = {0};
    w.device = tern_device_open("cpu", &w.err);
    tern_device_threads_set(w.device, 1, &w.err); /* a second thread would only spin on a busy machine */
    w.scope = tern_scope_new(w.device, NULL, &w.err);
    w.rng = tern_rng_new(1, &w.err);
    assert_ok(w.err);
    return w;
}

static inline void close_world(world *w)
{
    tern_rng_free(w->rng);
    tern_scope_free(w->scope);
    tern_device_close(w->device);
}

/* Zeros of shape (n, c, h, w). */
static inline tern_tensor *zeros4(world *w, int64_t n, int64_t c, int64_t h, int64_t width)
{
    return tern_tensor_from(w->scope, NULL, TERN_F32, 4, (int64_t[]){n, c, h, width});
}

static inline tern_tensor *zeros1(world *w, tern_dtype dtype, int64_t n)
{
    return tern_tensor_from(w->scope, NULL, dtype, 1, &n);
}

/* Checks that the scope has this error of this function, and clears it. */
static inline void expect_error(world *w, const tern_tensor *result, const char *func, int code,
                                const char *text)
{
    assert_null(result);
    const tern_error *err = tern_scope_error(w->scope);
    assert_string_equal(err->text, text);
    assert_int_equal(err->code, code);
    assert_string_equal(err->func, func);
    tern_error ended = {0};
    assert_int_equal(tern_scope_end(w->scope, &ended), code);
}

/* ---- the counting allocator ---- */

typedef struct counter {
    int calls;
    int fail_from; /* all calls from this one on fail; 0: none */
    int fail_only; /* this call fails; 0: none */
} counter;

static inline void *count_alloc(size_t bytes, size_t align, void *ctx)
{
    counter *c = ctx;
    c->calls++;
    if ((c->fail_from && c->calls >= c->fail_from) || c->calls == c->fail_only) return NULL;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static inline void count_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

/* ---- a whole step: forward, backward, and the scope's end, whose code it returns ---- */

/* The end of a step whose last result is `loss`, or NULL if an op has failed. */
static inline int backward_and_end(world *w, tern_tensor *loss)
{
    int code = loss ? tern_backward(w->scope, loss) : tern_scope_error(w->scope)->code;
    tern_error ended = {0};
    tern_scope_end(w->scope, &ended);
    return code;
}

/* A net of one batch norm with its list of names, which a step does not use. */
static inline tern_module *named_batch_norm(world *w, int64_t features)
{
    tern_module *net = tern_batch_norm1d_new(features, NULL, &w->err);
    assert_non_null(tern_state_find(net, "weight"));
    return net;
}

typedef tern_module *(*make_fn)(world *w);
typedef int (*step_fn)(world *w, tern_module *net);

/* A scope has two arenas: after two steps there are no more allocations. */
static inline void expect_warm_steps_to_allocate_nothing(make_fn make, step_fn step)
{
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    world w = open_world();
    tern_module *net = make(&w);
    assert_ok(w.err);
    for (int i = 0; i < 2; i++) assert_int_equal(step(&w, net), TERN_OK);
    int warm = count.calls;
    assert_true(warm > 0);
    for (int i = 0; i < 3; i++) assert_int_equal(step(&w, net), TERN_OK);
    assert_int_equal(count.calls, warm);
    tern_module_free(net);
    close_world(&w);
    tern__allocator_replace(NULL);
}

/* Lets each allocation of the first step fail in turn: always E_MEMORY, and the next step succeeds. Returns
 * the number of failures. */
static inline int expect_out_of_memory_to_be_told(make_fn make, step_fn step)
{
    counter count = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &count});
    int failures = 0;
    bool reached = true;
    for (int at = 1; reached; at++) {
        world w = open_world();
        tern_module *net = make(&w);
        assert_ok(w.err);
        count = (counter){.fail_from = at};
        int code = step(&w, net);
        reached = count.calls >= at;
        count.fail_from = 0;
        if (code != TERN_OK) assert_int_equal(code, TERN_E_MEMORY);
        failures += code != TERN_OK;
        assert_int_equal(step(&w, net), TERN_OK);
        tern_module_free(net);
        close_world(&w);
    }
    tern__allocator_replace(NULL);
    return failures;
}

/* ---- the two tests of every step, which is their prestate ---- */

typedef struct whole_step {
    make_fn make;
    step_fn run;
    int failures; /* allocations fail more often than this */
} whole_step;

static inline void a_whole_step_allocates_nothing_once_warm(void **state)
{
    const whole_step *step = *state;
    expect_warm_steps_to_allocate_nothing(step->make, step->run);
}

static inline void a_whole_step_tells_out_of_memory(void **state)
{
    const whole_step *step = *state;
    assert_true(expect_out_of_memory_to_be_told(step->make, step->run) > step->failures);
}

/* The main of a test that has these two only. */
static inline int run_whole_step(whole_step *whole)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, whole),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
