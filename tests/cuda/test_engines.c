/* test_engines.c - which of cuDNN's engines computes a convolution: chosen by measuring, by the file, by
 * what others tell, or by the heuristics. The emulated cuDNN has two that run, of which the second is
 * faster (emulated/cudnn.cc). Also what a step asks of the libraries. */
#include "nets.h"

#include "device/backend.h"
#include "device/choices.h"
#include "kernels/conv.h"
#include "kernels/kernel.h"

#include <tern/preempt.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOW "cuDNN engine 1"
#define FAST "cuDNN engine 2"
#define ROOM ((size_t)16 << 10)

/* ---- a convolution ---- */

static const tern__conv_attr attr = {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1};

static tern__view new_view(tern_device *device, int ndim, const int64_t *shape)
{
    tern_error err = {0};
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, ndim, shape);
    view.data = tern__memory_new(device, tern__view_bytes(&view), __func__, &err);
    assert_ok(err);
    tern__memory_zero(view.data, tern__view_bytes(&view), &err);
    return view;
}

/* Memory of another device that the thread uses just before; NULL: none. */
static void *beside;

static int try_run(tern_device *device, int64_t channels, bool has_bias)
{
    tern_error err = {0};
    tern__view x = new_view(device, 4, (int64_t[]){2, channels, 4, 4});
    tern__view w = new_view(device, 4, (int64_t[]){3, channels, 3, 3});
    tern__view y = new_view(device, 4, (int64_t[]){2, 3, 4, 4});
    tern__view b = new_view(device, 1, (int64_t[]){3});
    tern__call call = {.device = device,
                       .kernel = TERN__CONV,
                       .in = {&x, &w, has_bias ? &b : NULL},
                       .out = {&y},
                       .attr = &attr,
                       .err = &err};
    device->algorithm = NULL;
    if (beside) tern__memory_zero(beside, 256, &err);
    int status = tern__kernel_run(&call);
    assert_int_equal(err.code, status);
    tern__view *all[] = {&x, &w, &y, &b};
    for (size_t i = 0; i < TERN__COUNT(all); i++) tern__memory_free(all[i]->data);
    return status;
}

/* Runs a convolution; returns the engine that computed it. */
static const char *run(tern_device *device, int64_t channels, bool has_bias)
{
    assert_int_equal(try_run(device, channels, has_bias), TERN_OK);
    return device->algorithm;
}

/* Opens a device that may measure, unlike the environment of the tests here. */
static tern_device *open_device(bool deterministic)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cuda:0", &err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.exact = false;
    rules.deterministic = deterministic;
    assert_ok(err);
    tern_device_conv_set(device, &rules, &err);
    assert_ok(err);
    return device;
}

/* ---- the file ---- */

static int open_file(void **state)
{
    char name[] = "/tmp/tern-engines-XXXXXX";
    close(mkstemp(name));
    setenv("TERN_CONV_CACHE", name, 1);
    *state = strdup(name);
    return 0;
}

static int close_file(void **state)
{
    unlink(*state);
    free(*state);
    unsetenv("TERN_CONV_CACHE");
    return 0;
}

static size_t read_file(const char *name, char text[ROOM])
{
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, ROOM - 1, file);
    text[bytes] = '\0';
    fclose(file);
    return bytes;
}

/* Replaces the last `from` by `to`, of the same length. */
static void change_file(const char *name, const char *from, const char *to)
{
    char text[ROOM], *at = NULL;
    size_t bytes = read_file(name, text);
    for (char *next = text; (next = strstr(next, from)); next++) at = next;
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    FILE *file = fopen(name, "w");
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

static int lines_of(const char *name)
{
    char text[ROOM];
    int count = 0;
    size_t bytes = read_file(name, text);
    for (size_t i = 0; i < bytes; i++) count += text[i] == '\n';
    return count;
}

/* ---- tests ---- */

static void the_fastest_is_kept_for_the_next_process(void **state)
{
    tern_device *device = open_device(false);
    assert_string_equal(run(device, 2, false), FAST);
    assert_string_equal(run(device, 2, false), FAST);
    assert_string_equal(run(device, 2, true), FAST " with bias");
    tern_device_close(device);
    assert_int_equal(lines_of(*state), 2);
    change_file(*state, "\"+2:0=1,5=4\"", "\"+1:2=3\"    ");
    device = open_device(false);
    assert_string_equal(run(device, 2, true), SLOW " with bias");
    assert_string_equal(run(device, 2, false), FAST);
    tern_device_close(device);
    assert_int_equal(lines_of(*state), 2);
}

static void a_thread_of_two_devices_measures_on_either(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device(false), *other = tern_device_open("cuda:1", &err);
    assert_ok(err);
    beside = tern__device_alloc(other, 256);
    assert_string_equal(run(device, 4, false), FAST);
    tern__device_free(other, beside);
    beside = NULL;
    tern_device_close(other);
    tern_device_close(device);
}

static void an_engine_that_is_no_more_is_measured_anew(void **state)
{
    tern_device *device = open_device(false);
    run(device, 2, false);
    tern_device_close(device);
    change_file(*state, "\"2:0=1,5=4\"", "\"9:0=1,5=4\"");
    device = open_device(false);
    assert_string_equal(run(device, 2, false), FAST);
    tern_device_close(device);
    assert_int_equal(lines_of(*state), 2);
}

static void lines_of_other_devices_are_passed_over(void **state)
{
    tern_device *device = open_device(false);
    run(device, 2, false);
    tern_device_close(device);
    change_file(*state, "\"2:0=1,5=4\"", "\"1:2=3\"    ");
    change_file(*state, "emulated GPU", "imagined GPU");
    device = open_device(false);
    assert_string_equal(run(device, 2, false), FAST);
    tern_device_close(device);
}

static void without_clocks_the_first_that_runs_is_taken(void **state)
{
    tern_device *device = open_device(true);
    assert_string_equal(run(device, 2, false), SLOW);
    assert_string_equal(run(device, 2, true), SLOW " with bias");
    assert_int_equal(tern__choices_serial(device), 0);
    tern_device_close(device);
    assert_int_equal(lines_of(*state), 0);
}

/* Neither before the first use nor after it: what is told depends on another's clock. */
static void without_clocks_nothing_told_is_taken(void **state)
{
    char text[ROOM];
    (void)state;
    tern_device *first = open_device(false), *other = open_device(true);
    assert_string_equal(run(first, 2, false), FAST);
    assert_string_equal(run(first, 3, false), FAST);
    assert_string_equal(run(other, 2, false), SLOW);
    tern__choices_read(other, text, tern__choices_write(first, text, sizeof(text)));
    assert_string_equal(run(other, 2, false), SLOW);
    assert_string_equal(run(other, 3, false), SLOW);
    tern_device_close(first);
    tern_device_close(other);
}

static void what_never_ran_is_not_kept(void **state)
{
    setenv("TERN_EMULATED_REFUSES", "engines", 1);
    tern_device *device = open_device(false);
    int status = try_run(device, 2, true);
    unsetenv("TERN_EMULATED_REFUSES");
    assert_int_equal(status, TERN_E_SYSTEM);
    assert_int_equal(tern__choices_serial(device), 0);
    tern_device_close(device);
    assert_int_equal(lines_of(*state), 0);
}

/* How often a library was called (emulated/cuda_runtime.h) for the first use of another case. */
static int64_t works_of(tern_device *device, int64_t channels)
{
    const int64_t *counted = emulated_symbol("emulated_counted");
    int64_t before = counted[1];
    run(device, channels, false);
    return counted[1] - before;
}

/* The first measurement of all comes after rounds of 10 runs of the first candidate. */
static void a_device_is_warm_when_it_is_measured(void **state)
{
    (void)state;
    tern_device *device = open_device(false);
    int64_t more = works_of(device, 2) - works_of(device, 3);
    assert_true(more >= 10 && more % 10 == 0);
    assert_int_equal(works_of(device, 4), works_of(device, 5));
    tern_device_close(device);
}

static void who_is_asked_to_stop_measures_nothing(void **state)
{
    (void)state;
    tern_device *device = open_device(false);
    assert_string_equal(run(device, 2, false), FAST);
    tern_preempt *stopping = tern_preempt_new(NULL, NULL, NULL);
    tern_preempt_ask(stopping);
    assert_string_equal(run(device, 2, false), FAST);
    assert_string_equal(run(device, 3, false), SLOW);
    assert_int_equal(tern__choices_serial(device), 1);
    tern_preempt_free(stopping);
    assert_string_equal(run(device, 4, false), FAST);
    assert_int_equal(tern__choices_serial(device), 2);
    tern_device_close(device);
}

/* This also holds for a case that has run already. */
static void who_follows_takes_what_it_is_told(void **state)
{
    char text[ROOM];
    (void)state;
    tern_device *first = open_device(false), *other = open_device(false);
    other->follows = true;
    assert_string_equal(run(first, 2, false), FAST);
    assert_string_equal(run(other, 2, false), SLOW);
    assert_int_equal(tern__choices_serial(other), 0);
    size_t bytes = tern__choices_write(first, text, sizeof(text));
    tern__choices_read(other, text, bytes);
    assert_string_equal(run(other, 2, false), FAST);
    assert_string_equal(run(other, 3, false), SLOW);
    assert_string_equal(run(first, 3, false), FAST);
    tern__choices_copy(first, 1, other);
    assert_string_equal(run(other, 3, false), FAST);
    tern_device_close(first);
    tern_device_close(other);
}

/* Two hosts of a job may have different GPUs or libraries: the neighbour's choice does not apply, and the
 * own heuristics decide. */
static void who_follows_another_machine_is_told_nothing(void **state)
{
    static const char *const changes[][2] = {{"emulated GPU", "imagined GPU"}, {"cuBLAS 13", "cuBLAS 12"}};
    char text[ROOM];
    (void)state;
    tern_device *first = open_device(false), *other = open_device(false);
    other->follows = true;
    run(first, 2, false);
    for (size_t i = 0; i < TERN__COUNT(changes); i++) {
        size_t bytes = tern__choices_write(first, text, sizeof(text));
        memcpy(strstr(text, changes[i][0]), changes[i][1], strlen(changes[i][1]));
        tern__choices_read(other, text, bytes);
        assert_int_equal(tern__choices_serial(other), 0);
        assert_string_equal(run(other, 2, false), SLOW);
    }
    tern_device_close(first);
    tern_device_close(other);
}

/* Learns other cases, which are not in the test's file. */
static void learn_others(tern_device *device, int cases, const char *file)
{
    char what[32];
    setenv("TERN_CONV_CACHE", "off", 1);
    for (int i = 0; i < cases; i++) {
        snprintf(what, sizeof(what), "case %d", i);
        device->choices->keep(device, what, "1");
    }
    setenv("TERN_CONV_CACHE", file, 1);
}

static void note_full(tern_log_level level, const char *text, void *ctx)
{
    *(int *)ctx += level == TERN_LOG_INFO && strstr(text, "cases of convolutions");
}

static void a_full_device_measures_no_more(void **state)
{
    int said = 0;
    tern_device *device = open_device(false);
    tern_log_set(note_full, &said);
    learn_others(device, TERN__CHOICE_CASES - 1, *state);
    assert_int_equal(said, 0);
    assert_string_equal(run(device, 2, false), FAST);
    assert_int_equal(said, 1);
    for (int64_t channels = 3; channels < 6; channels++) {
        assert_string_equal(run(device, channels, false), SLOW);
        assert_string_equal(run(device, channels, true), SLOW " with bias");
    }
    assert_string_equal(run(device, 2, false), FAST);
    assert_int_equal(lines_of(*state), 1);
    assert_int_equal(tern__choices_serial(device), TERN__CHOICE_CASES);
    assert_int_equal(said, 1);
    tern_log_set(NULL, NULL);
    tern_device_close(device);
}

/* The file needs no measuring, but would give another choice in every step as well. */
static void a_full_device_hears_others_only(void **state)
{
    tern_device *other = open_device(false), *device = open_device(false);
    assert_string_equal(run(other, 2, false), FAST);
    learn_others(device, TERN__CHOICE_CASES, *state);
    assert_string_equal(run(device, 2, false), SLOW);
    tern__choices_copy(other, 0, device);
    assert_string_equal(run(device, 2, false), FAST);
    tern_device_close(device);
    tern_device_close(other);
}

static void what_is_no_line_is_passed_over(void **state)
{
    static const char text[] =
        "\n{}\nnothing\n{\"tern\":\"0\",\"case\":\"a\",\"choice\":\"b\"}\n{\"case\":1}";
    (void)state;
    tern_device *device = open_device(false);
    tern__choices_read(device, text, sizeof(text) - 1);
    assert_int_equal(tern__choices_serial(device), 0);
    tern_device_close(device);
}

/* A patch release of cuBLAS may name its algorithms differently. */
static void a_library_is_known_by_its_whole_version(void **state)
{
    char text[128];
    (void)state;
    tern_device *device = open_device(false);
    device->backend->libraries(text, sizeof(text));
    assert_non_null(strstr(text, "cuBLAS 13.2.4"));
    tern_device_close(device);
}

static void workspace_is_the_devices_own_unless_it_is_said(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device(false);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    assert_true(device->conv.workspace == (size_t)128 << 20); /* a sixteenth of the memory */
    rules.workspace = 12345;
    tern_device_conv_set(device, &rules, &err);
    assert_true(device->conv.workspace == 12345);
    tern_device_close(device);
}

/* The first emulated engine, which does not run, wants 8 MiB for this; blocks that were in use before
 * stay. */
static void what_was_only_tried_leaves_no_memory(void **state)
{
    (void)state;
    const size_t wanted = (size_t)8 << 20;
    tern_device *device = open_device(false);
    tern__device_free(device, tern__device_alloc(device, 256));
    size_t before = device->backend->bytes(device);
    run(device, 2, false);
    assert_true(device->backend->bytes(device) - before < wanted);
    void *block = tern__device_alloc(device, wanted);
    tern__device_free(device, block);
    before = device->backend->bytes(device);
    run(device, 3, false);
    assert_true(device->backend->bytes(device) == before);
    assert_ptr_equal(tern__device_alloc(device, wanted), block);
    assert_true(device->backend->bytes(device) == before);
    tern__device_free(device, block);
    tern_device_close(device);
}

/* ---- weights ---- */

/* Records the weights given to convolutions, and how often one, or its gradient, was copied. */
typedef struct witness {
    tern__kernel_observer observer; /* first: cast back to the witness */
    const void *weight;
    int copies, forward, backward;
} witness;

static bool is_weight(const tern__view *view)
{
    return view && view->ndim == 4 && view->shape[0] == 3 && view->shape[2] == 3;
}

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    witness *w = (witness *)observer;
    if (call->kernel == TERN__CONV || call->kernel == TERN__CONV_DATA_GRAD) {
        assert_int_equal(call->in[1]->layout, TERN__CHANNELS_LAST);
        assert_true(!w->weight || w->weight == call->in[1]->data);
        w->weight = call->in[1]->data;
        w->forward += call->kernel == TERN__CONV;
        w->backward += call->kernel == TERN__CONV_DATA_GRAD;
    } else if (call->kernel == TERN__CONV_WEIGHT_GRAD) {
        assert_int_equal(call->out[0]->layout, TERN__CHANNELS_LAST);
    } else {
        w->copies += is_weight(call->in[0]) && is_weight(call->out[0]);
    }
}

/* Two uses of one weight: it is copied once, and its gradient is copied back once. */
static void a_weight_is_laid_out_once_a_step(void **state)
{
    static const float zeros[2 * 3 * 9 * 9];
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device(true);
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *net = tern_conv2d_new(3, 3, 3, 3, NULL, rng, &err);
    tern_module_to(net, device, &err);
    tern_optim *optim = tern_sgd_new(net, NULL, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    for (int half = 0; half < 2; half++) {
        witness w = {.observer = {.ran = ran}};
        device->observer = &w.observer;
        if (half) tern_autocast_set(s, TERN_BF16);
        tern_tensor *x = tern_tensor_from(s, zeros, TERN_F32, 4, (int64_t[]){2, 3, 9, 9});
        tern_tensor *y = tern_forward(net, s, tern_forward(net, s, x));
        if (half) tern_autocast_set(s, TERN_F32);
        tern_backward(s, tern_mean(s, y));
        tern_optim_step(optim, s);
        device->observer = NULL;
        tern_scope_end(s, &err);
        assert_ok(err);
        assert_int_equal(w.copies, 2);
        assert_int_equal(w.forward, 2);
        assert_int_equal(w.backward, 1);
    }
    tern_scope_free(s);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

/* ---- kernels of a step ---- */

typedef struct counter {
    tern__kernel_observer observer; /* first: cast back to the counter */
    int products, gradients, losses, others;
} counter;

static void count(tern__kernel_observer *observer, const tern__call *call)
{
    counter *c = (counter *)observer;
    c->products += call->kernel == TERN__MATMUL;
    c->gradients += call->kernel == TERN__LINEAR_GRAD;
    c->losses += call->kernel == TERN__CROSS_ENTROPY || call->kernel == TERN__CROSS_ENTROPY_GRAD;
    c->others += call->kernel != TERN__MATMUL && call->kernel != TERN__LINEAR_GRAD;
}

/* A layer of an MLP is one product forward, with its ReLU, and one kernel backward. The loss is one kernel
 * with its gradient, and the optimizer's step is one. With a single rank the loss is stored for its mean. */
static void a_step_has_few_kernels(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device(true);
    static batch b;
    counter c = {.observer = {.ran = count}};
    draw_batch(&b, 5, 2, (int64_t[]){8, 24});
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = make_mlp(rng, &err);
    tern_module_to(net, device, &err);
    tern_group *world = tern_group_open(NULL, &err);
    tern_ddp *ddp = tern_ddp_new(net, world, NULL, &err);
    tern_optim *optim = make_sgd(net, &err);
    tern_scope *s = tern_scope_new(device, world, &err);
    for (int step = 0; step < 2; step++) {
        device->observer = step ? &c.observer : NULL;
        tern_tensor *y = tern_forward(net, s, tern_tensor_from(s, b.x, TERN_F32, 2, b.shape));
        tern_tensor *loss = tern_cross_entropy(s, y, tern_tensor_from(s, b.y, TERN_I64, 1, b.shape), NULL);
        tern_backward(s, loss);
        tern_optim_step(optim, s);
        device->observer = NULL;
        assert_true(tern_ddp_loss_mean(ddp) == tern_item(loss));
        tern_scope_end(s, &err);
        assert_ok(err);
    }
    assert_int_equal(c.products, 2);
    assert_int_equal(c.gradients, 2);
    assert_int_equal(c.losses, 1);
    assert_int_equal(c.others, 3);
    tern_scope_free(s);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_group_close(world);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

/* ---- a loss's gradient, which is computed with it ---- */

/* The gradient of a bias that is the scores of all labels; with `twice` the loss counts twice. Returns how
 * many kernels the loss and its gradient took. */
static int gradient_of_loss(tern_device *device, int64_t labels, bool twice, float grad[10])
{
    tern_error err = {0};
    counter c = {.observer = {.ran = count}};
    float *x = calloc((size_t)labels, sizeof(*x));
    int64_t *y = calloc((size_t)labels, sizeof(*y));
    for (int64_t i = 0; i < labels; i++) y[i] = i * i % 10;
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *layer = tern_linear_new(1, 10, NULL, rng, &err);
    tern_module_to(layer, device, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_tensor *scores = tern_forward(layer, s, tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){labels, 1}));
    device->observer = &c.observer;
    tern_tensor *loss = tern_cross_entropy(s, scores, tern_tensor_from(s, y, TERN_I64, 1, &labels), NULL);
    tern_backward(s, twice ? tern_add(s, loss, loss) : loss);
    device->observer = NULL;
    tern_tensor_read(tern_grad_get(tern_state_find(layer, "bias")), grad, 10 * sizeof(*grad), &err);
    tern_scope_end(s, &err);
    assert_ok(err);
    tern_scope_free(s);
    tern_module_free(layer);
    tern_rng_free(rng);
    free(x);
    free(y);
    return c.losses;
}

static void a_short_loss_brings_its_gradient(void **state)
{
    (void)state;
    tern_device *device = open_device(true);
    float one[10], twice[10], many[10];
    assert_int_equal(gradient_of_loss(device, 64, false, one), 1);
    assert_int_equal(gradient_of_loss(device, 64, true, twice), 2);
    assert_int_equal(gradient_of_loss(device, 256, false, many), 1);
    assert_int_equal(gradient_of_loss(device, 257, false, many), 2);
    for (int i = 0; i < 10; i++) assert_true(twice[i] == 2 * one[i]);
    tern_device_close(device);
}

/* ---- a ReLU's gradient, which the next layer masks ---- */

enum { CUT_INS = 24, CUT_OUTS = 40, CUT_ROWS = 8, CUT_CASES = 4 };

/* The users of the ReLU's output, in this order; their gradients come in reverse. */
static tern_tensor *loss_of_users(tern_scope *s, tern_module *layer, tern_tensor *h, int users)
{
    tern_tensor *a = users == 2 ? tern_mean(s, tern_mul(s, h, h)) : tern_mean(s, tern_forward(layer, s, h));
    if (users == 0) return a;
    return tern_add(s, a, tern_mean(s, users == 1 ? tern_mul(s, h, h) : tern_forward(layer, s, h)));
}

static void gradient_before(tern_device *device, int users, float grad[CUT_OUTS * CUT_INS])
{
    static batch b;
    tern_error err = {0};
    draw_batch(&b, 5, 2, (int64_t[]){CUT_ROWS, CUT_INS});
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *first = tern_linear_new(CUT_INS, CUT_OUTS, NULL, rng, &err);
    tern_module *layer = tern_linear_new(CUT_OUTS, 5, NULL, rng, &err);
    if (device->backend) tern_module_to(first, device, &err);
    if (device->backend) tern_module_to(layer, device, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_tensor *w = tern_state_find(first, "weight");
    tern_tensor *x = tern_tensor_from(s, b.x, TERN_F32, 2, b.shape);
    tern_tensor *h = tern_linear_act(s, x, w, tern_state_find(first, "bias"), true);
    tern_backward(s, loss_of_users(s, layer, h, users));
    tern_tensor_read(tern_grad_get(w), grad, CUT_OUTS * CUT_INS * sizeof(*grad), &err);
    tern_scope_end(s, &err);
    assert_ok(err);
    tern_scope_free(s);
    tern_module_free(first);
    tern_module_free(layer);
    tern_rng_free(rng);
}

static void a_gradient_is_cut_whoever_adds_to_it(void **state)
{
    (void)state;
    static float got[CUT_OUTS * CUT_INS], want[CUT_OUTS * CUT_INS];
    tern_error err = {0};
    tern_device *cpu = tern_device_open("cpu", &err);
    assert_ok(err);
    for (int i = 0; i < 2 * CUT_CASES; i++) {
        tern_device *device = open_device(i < CUT_CASES);
        gradient_before(device, i % CUT_CASES, got);
        gradient_before(cpu, i % CUT_CASES, want);
        for (int k = 0; k < CUT_OUTS * CUT_INS; k++)
            if (!(fabsf(got[k] - want[k]) <= 1e-6f)) fail_msg("case %d: %g, expected %g", i, got[k], want[k]);
        tern_device_close(device);
    }
    tern_device_close(cpu);
}

int main(void)
{
#define OF_FILE(test) cmocka_unit_test_setup_teardown(test, open_file, close_file)
    const struct CMUnitTest tests[] = {
        OF_FILE(the_fastest_is_kept_for_the_next_process),
        OF_FILE(a_thread_of_two_devices_measures_on_either),
        OF_FILE(an_engine_that_is_no_more_is_measured_anew),
        OF_FILE(lines_of_other_devices_are_passed_over),
        OF_FILE(without_clocks_the_first_that_runs_is_taken),
        OF_FILE(without_clocks_nothing_told_is_taken),
        OF_FILE(what_never_ran_is_not_kept),
        OF_FILE(a_device_is_warm_when_it_is_measured),
        cmocka_unit_test(who_follows_takes_what_it_is_told),
        OF_FILE(who_is_asked_to_stop_measures_nothing),
        OF_FILE(who_follows_another_machine_is_told_nothing),
        OF_FILE(a_full_device_measures_no_more),
        OF_FILE(a_full_device_hears_others_only),
        OF_FILE(what_is_no_line_is_passed_over),
        OF_FILE(a_step_has_few_kernels),
        OF_FILE(a_short_loss_brings_its_gradient),
        OF_FILE(a_gradient_is_cut_whoever_adds_to_it),
        OF_FILE(a_weight_is_laid_out_once_a_step),
        OF_FILE(a_library_is_known_by_its_whole_version),
        OF_FILE(workspace_is_the_devices_own_unless_it_is_said),
        OF_FILE(what_was_only_tried_leaves_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
