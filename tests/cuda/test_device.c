/* test_device.c - devices with memory of their own, on the emulated CUDA: names, copies, operands in
 * several memories, and models that are moved there and train as on the CPU. */
#include "nets.h"

#include "device/backend.h"
#include "kernels/kernel.h"
#include "nn/nn.h"
#include "tensor/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_refused(const char *name, int code, const char *text)
{
    tern_error err = {0};
    assert_null(tern_device_open(name, &err));
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, text));
}

/* ---- names ---- */

static void names(void **state)
{
    (void)state;
    if (gpu_count() != 2) skip_test("needs two GPUs");
    static const struct {
        const char *given, *local_rank, *name;
    } cases[] = {{"cuda", NULL, "cuda:0"},
                 {"cuda", "1", "cuda:1"},
                 {"cuda:0", "1", "cuda:0"},
                 {"cuda:1", NULL, "cuda:1"}};
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        setenv("LOCAL_WORLD_SIZE", "2", 1);
        if (cases[i].local_rank) setenv("LOCAL_RANK", cases[i].local_rank, 1);
        tern_device *device = check_device(cases[i].given);
        assert_string_equal(tern_device_name(device), cases[i].name);
        tern_device_close(device);
        unsetenv("LOCAL_RANK");
    }
    unsetenv("LOCAL_WORLD_SIZE");
}

/* Both of two GPUs, or the only one that the launcher shows this rank. */
static void numbers_by_other_launchers(void **state)
{
    (void)state;
    if (gpu_count() != 2 || !is_emulated()) skip_test("needs the emulation");
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                           {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};
    for (size_t i = 0; i < TERN__COUNT(names); i++)
        for (int gpus = 2; gpus > 0; gpus--) {
            setenv(names[i][0], "1", 1);
            setenv(names[i][1], "2", 1);
            setenv("TERN_EMULATED_DEVICES", gpus == 2 ? "2" : "1", 1);
            tern_device *device = check_device("cuda");
            assert_string_equal(tern_device_name(device), gpus == 2 ? "cuda:1" : "cuda:0");
            tern_device_close(device);
            unsetenv(names[i][0]);
            unsetenv(names[i][1]);
        }
    setenv("TERN_EMULATED_DEVICES", "2", 1);
}

/* As many hardware queues as possible, unless the user has set the number. */
static void queues(void **state)
{
    (void)state;
    static const char name[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    unsetenv(name);
    tern_device_close(check_device("cuda:0"));
    assert_string_equal(getenv(name), "32");
    setenv(name, "8", 1);
    tern_device_close(check_device("cuda:0"));
    assert_string_equal(getenv(name), "8");
    unsetenv(name);
}

static void names_that_are_refused(void **state)
{
    (void)state;
    if (gpu_count() != 2) skip_test("needs two GPUs");
    expect_refused("cuda:2", TERN_E_RANGE,
                   "device \"cuda:2\": there is no device 2, this process can use 2 (CUDA_VISIBLE_DEVICES)");
    expect_refused("cuda:", TERN_E_INVALID, "device \"cuda:\": expected a number after the colon");
    expect_refused("cuda:-1", TERN_E_INVALID, "expected a number after the colon");
    expect_refused("cuda:1x", TERN_E_INVALID, "expected a number after the colon");
    expect_refused("cudas", TERN_E_UNSUPPORTED, "device \"cudas\": expected \"cpu\"");
    setenv("LOCAL_RANK", "2", 1);
    expect_refused("cuda", TERN_E_RANGE, "there is no device 2");
    unsetenv("LOCAL_RANK");
}

static void a_plug_in_that_is_not_there(void **state)
{
    (void)state;
    char *path = strdup(getenv("TERN_PLUGIN_PATH"));
    setenv("TERN_PLUGIN_PATH", "/nowhere", 1);
    expect_refused("cuda", TERN_E_UNSUPPORTED, "tern_cuda.so");
    setenv("TERN_PLUGIN_PATH", path, 1);
    free(path);
}

/* ---- the process's end ---- */

/* As in an exit handler registered before the device: CUDA's runtime has shut down first. Two products use
 * memory of two kinds, and cuBLASLt. */
static void close_without_runtime(void)
{
    tern_device *device = check_device("cuda:0");
    tern_error err = {0};
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    for (int64_t n = 4; n <= 1024; n *= 256) {
        tern_tensor *x = tern_full(scope, TERN_F32, 2, (int64_t[]){n, n}, 1);
        tern_matmul(scope, x, x);
    }
    tern_scope_end(scope, &err);
    tern_scope_free(scope);
    setenv("TERN_EMULATED_REFUSES", "runtime", 1);
    tern_device_close(device);
    _exit(err.code != 0);
}

static void a_device_outlives_the_runtime(void **state)
{
    (void)state;
    if (!is_emulated()) skip_test("needs the emulation");
    int status = -1;
    pid_t pid = fork();
    if (!pid) close_without_runtime();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* ---- memory ---- */

typedef struct pair {
    tern_device *one, *other;
    tern_error err;
} pair;

static int open_pair(void **state)
{
    pair *p = calloc(1, sizeof(*p));
    p->one = check_device("cuda:0");
    p->other = check_device(other_gpu());
    *state = p;
    return 0;
}

static int close_pair(void **state)
{
    pair *p = *state;
    tern_device_close(p->one);
    tern_device_close(p->other);
    free(p);
    return 0;
}

static void an_address_tells_its_device(void **state)
{
    pair *p = *state;
    char here;
    char *one = tern__device_alloc(p->one, 1000), *other = tern__device_alloc(p->other, 3 << 20);
    assert_ptr_equal(tern__memory_device(one), p->one);
    assert_ptr_equal(tern__memory_device(one + 999), p->one);
    assert_ptr_equal(tern__memory_device(other + (3 << 20) - 1), p->other);
    assert_null(tern__memory_device(&here));
    assert_null(tern__memory_device(NULL));
    assert_int_equal((size_t)one % 256, 0);
    tern__device_free(p->one, one);
    assert_ptr_equal(tern__device_alloc(p->one, 1000), one);
    tern__device_free(p->one, one);
    tern__device_free(p->other, other);
}

enum { COUNT = 5000 };

static void copies(void **state)
{
    pair *p = *state;
    static float in[COUNT], out[COUNT];
    size_t bytes = sizeof(in);
    for (int i = 0; i < COUNT; i++) in[i] = (float)i;
    void *one = tern__device_alloc(p->one, bytes), *next = tern__device_alloc(p->one, bytes),
         *other = tern__device_alloc(p->other, bytes);
    tern__memory_copy(one, in, bytes, &p->err);
    tern__memory_copy(next, one, bytes, &p->err);
    tern__memory_copy(other, next, bytes, &p->err);
    tern__memory_copy(out, other, bytes, &p->err);
    assert_ok(p->err);
    assert_memory_equal(in, out, bytes);
    tern__memory_zero((char *)other + 8, 8, &p->err);
    tern__memory_copy(out, other, bytes, &p->err);
    assert_ok(p->err);
    in[2] = in[3] = 0;
    assert_memory_equal(in, out, bytes);
    tern__device_free(p->one, one);
    tern__device_free(p->one, next);
    tern__device_free(p->other, other);
}

/* Copies `bytes` that were just mapped from one GPU to another. */
static void copy_across(const pair *p, size_t bytes, tern_error *err)
{
    char *in = malloc(bytes), *out = calloc(1, bytes);
    char *one = tern__device_alloc(p->one, bytes), *other = tern__device_alloc(p->other, bytes);
    for (size_t i = 0; i < bytes; i++) in[i] = (char)(i * 7);
    tern__memory_copy(one, in, bytes, err);
    tern__memory_copy(other, one, bytes, err);
    tern__memory_copy(out, other, bytes, err);
    assert_ok(*err);
    assert_memory_equal(in, out, bytes);
    tern__device_free(p->one, one);
    tern__device_free(p->other, other);
    free(in);
    free(out);
}

/* The other GPU gets access at the first copy: to small blocks' pages, and to large blocks mapped later. */
static void copies_go_across(void **state)
{
    pair *p = *state;
    copy_across(p, 1000, &p->err);
    copy_across(p, 5 << 20, &p->err);
    copy_across(p, 1000, &p->err);
}

static void copies_go_across_without_a_link(void **state)
{
    setenv("TERN_EMULATED_APART", "1", 1);
    copies_go_across(state);
    unsetenv("TERN_EMULATED_APART");
}

static void memory_runs_out(void **state)
{
    pair *p = *state;
    tern_scope *scope = tern_scope_new(p->one, NULL, &p->err);
    assert_null(tern_full(scope, TERN_F32, 1, (int64_t[]){INT64_C(1) << 40}, 1));
    for (int bits = 43; bits < 64; bits++) assert_null(tern__device_alloc(p->one, (size_t)1 << bits));
    assert_int_equal(tern_scope_error(scope)->code, TERN_E_MEMORY);
    tern_scope_end(scope, NULL);
    tern_tensor *x = tern_full(scope, TERN_F32, 1, (int64_t[]){4}, 1.5);
    assert_true(tern_item(tern_sum(scope, x)) == 6);
    tern_scope_free(scope);
}

/* ---- operands ---- */

static tern__view every_other(float *data, int64_t count)
{
    tern__view view = tern__view_make(TERN_F32, TERN__PLAIN, 1, &count);
    view.stride[0] = 2;
    view.data = data;
    return view;
}

/* odd += even, interleaved, in host memory or in another device's. */
static void add_odd_and_even(tern_device *device, float *data, int64_t count, tern_error *err)
{
    tern__view even = every_other(data, count), odd = every_other(data + 1, count);
    tern__call call = {.kernel = TERN__ADD, .device = device, .err = err, .in = {&even, &odd}, .out = {&odd}};
    assert_int_equal(tern__kernel_run(&call), TERN_OK);
}

static void expect_sums(const float *data, int64_t count)
{
    for (int i = 0; i < count; i++) {
        assert_true(data[2 * i] == (float)i);
        assert_true(data[2 * i + 1] == (float)i + 100);
    }
}

static void operands_that_overlap_are_carried_as_one(void **state)
{
    enum { HALF = 40 };
    pair *p = *state;
    tern_device *cpu = check_device("cpu");
    tern_device *const devices[] = {p->one, p->other, cpu};
    float in[2 * HALF], out[2 * HALF];
    for (int i = 0; i < 2 * HALF; i++) in[i] = i % 2 ? 100 : (float)(i / 2);
    for (int d = 0; d < 3; d++) {
        memcpy(out, in, sizeof(in));
        add_odd_and_even(devices[d], out, HALF, &p->err);
        expect_sums(out, HALF);
        float *away = tern__device_alloc(p->one, sizeof(in));
        tern__memory_copy(away, in, sizeof(in), &p->err);
        add_odd_and_even(devices[d], away, HALF, &p->err);
        tern__memory_copy(out, away, sizeof(in), &p->err);
        expect_sums(out, HALF);
        tern__device_free(p->one, away);
    }
    assert_ok(p->err);
    tern_device_close(cpu);
}

/* ---- what the host computes ---- */

typedef struct warning {
    int count;
    char text[256];
} warning;

static void keep_warning(tern_log_level level, const char *text, void *ctx)
{
    warning *w = ctx;
    assert_int_equal(level, TERN_LOG_WARN);
    w->count++;
    snprintf(w->text, sizeof(w->text), "%s", text);
}

static void a_kernel_that_a_device_lacks_is_named_once(void **state)
{
    static tern__kernel_fn kernels[TERN__KERNEL_COUNT];
    pair *p = *state;
    warning w = {0};
    const tern__device_backend *behind = p->one->backend;
    tern__device_backend lacking = *behind;
    memcpy(kernels, behind->kernels, sizeof(kernels));
    kernels[TERN__ADD] = NULL;
    lacking.kernels = kernels;
    p->one->backend = &lacking;
    tern_log_set(keep_warning, &w);
    float data[2 * 40] = {0};
    for (int i = 0; i < 3; i++) add_odd_and_even(p->one, data, 40, &p->err);
    tern_log_set(NULL, NULL);
    p->one->backend = behind;
    assert_int_equal(w.count, 1);
    assert_non_null(strstr(w.text, "cuda:0 has no kernel for add of f32 (40)"));
    assert_ok(p->err);
}

/* ---- models ---- */

enum { STEPS = 4 };

/* A training: the model, its settings, and the losses. */
typedef struct training {
    make_fn make;
    optim_fn optim;
    const batch *batch;
    bool half; /* at opt level O2, after the model was moved */
    double loss[STEPS];
} training;

static double make_step(tern_module *net, tern_optim *optim, tern_amp *amp, tern_scope *scope, const batch *b)
{
    tern_tensor *x = tern_tensor_from(scope, b->x, TERN_F32, b->ndim, b->shape);
    tern_tensor *y = tern_tensor_from(scope, b->y, TERN_I64, 1, b->shape);
    tern_tensor *loss = tern_cross_entropy(scope, tern_forward(net, scope, x), y, NULL);
    if (amp)
        tern_amp_backward(amp, scope, loss, NULL);
    else
        tern_backward(scope, loss);
    tern_clip_grad_norm(scope, net, 5, 2);
    tern_optim_step(optim, scope);
    return loss ? tern_item(loss) : NAN;
}

static void train(training *t, const char *name)
{
    tern_error err = {0};
    tern_device *device = check_device(name);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = t->make(rng, &err);
    tern_module_to(net, device, &err);
    tern_amp_opts level = tern_amp_defaults(TERN_O2);
    tern_amp *amp = t->half ? tern_amp_new(net, &level, &err) : NULL;
    tern_optim *optim = t->optim(net, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    for (int i = 0; i < STEPS; i++) {
        t->loss[i] = make_step(net, optim, amp, scope, t->batch);
        tern_scope_end(scope, &err);
        assert_ok(err);
    }
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_amp_free(amp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

/* The first loss knows of forward alone, the later ones of all. */
static void expect_the_cpus_losses(training t, double tolerance)
{
    training cpu = t;
    train(&t, "cuda:0");
    train(&cpu, "cpu");
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(t.loss[i] - cpu.loss[i]) <= tolerance))
            fail_msg("step %d: a loss of %.9g on cuda:0, %.9g on cpu", i, t.loss[i], cpu.loss[i]);
    assert_true(t.loss[STEPS - 1] < t.loss[0]);
}

static void an_mlp_trains(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 2, (int64_t[]){8, 24});
    expect_the_cpus_losses((training){.make = make_mlp, .optim = make_sgd, .batch = &b}, 1e-5);
    expect_the_cpus_losses((training){.make = make_mlp, .optim = make_adam, .batch = &b}, 1e-5);
}

static void a_resnet_trains(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 4, (int64_t[]){8, 3, 12, 12});
    expect_the_cpus_losses((training){.make = make_resnet, .optim = make_sgd, .batch = &b}, 1e-4);
    expect_the_cpus_losses((training){.make = make_resnet, .optim = make_adam, .batch = &b}, 1e-4);
}

/* bf16 has 8 bits: one rounding more or less makes that difference. */
static void a_model_that_was_moved_trains_in_16_bits(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 4, (int64_t[]){8, 3, 12, 12});
    expect_the_cpus_losses((training){.make = make_resnet, .optim = make_sgd, .batch = &b, .half = true},
                           0x1p-4);
}

/* ---- moving models ---- */

static void expect_everywhere(const tern_module *net, tern_device *device, bool is_counter_too)
{
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *tensor = tern_state_get(net, i).tensor;
        bool counts = tensor->view.dtype == TERN_I64 && !is_counter_too;
        assert_ptr_equal(tern__memory_device(tensor->view.data), counts ? NULL : device);
    }
}

/* Compares the state of `a` with that of `b`, by name. */
static void expect_same_state(const tern_module *a, const tern_module *b, tern_error *err)
{
    static char one[1 << 16], other[1 << 16];
    for (int i = 0; i < tern_state_count(a); i++) {
        const tern_tensor *x = tern_state_get(a, i).tensor,
                          *y = tern_state_find(b, tern_state_get(a, i).name);
        size_t bytes = tern__view_bytes(&x->view);
        assert_true(bytes <= sizeof(one));
        tern_tensor_read(x, one, bytes, err);
        tern_tensor_read(y, other, bytes, err);
        assert_ok(*err);
        assert_memory_equal(one, other, bytes);
    }
}

/* Moves a model to a device, to the next one and back, with one parameter under two names. */
static void a_model_moves_and_comes_back(void **state)
{
    pair *p = *state;
    tern_device *cpu = check_device("cpu");
    tern_rng *rng = tern_rng_new(3, &p->err);
    tern_module *net = make_resnet(rng, &p->err), *stays;
    tern_rng_seed(rng, 3);
    stays = make_resnet(rng, &p->err);
    tern_tensor *shared = tern_parameter_share(net, "again", tern_state_find(net, "fc.weight"), &p->err);
    assert_ok(p->err);
    tern_device *const way[] = {p->one, p->other, p->one, cpu};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(tern_module_to(net, way[i], &p->err), TERN_OK);
        expect_everywhere(net, way[i] == cpu ? NULL : way[i], way[i] == cpu);
        assert_ptr_equal(shared->view.data, tern_state_find(net, "fc.weight")->view.data);
        expect_same_state(stays, net, &p->err);
    }
    tern_module_free(net);
    tern_module_free(stays);
    tern_rng_free(rng);
    tern_device_close(cpu);
}

/* A state dict carries a state from device to device, and initialisers write to the parameter's device. */
static void states_are_read_and_written_there(void **state)
{
    pair *p = *state;
    tern_rng *rng = tern_rng_new(3, &p->err);
    tern_module *net = make_resnet(rng, &p->err), *copy = make_resnet(rng, &p->err), *plain;
    tern_module_to(net, p->one, &p->err);
    tern_module_to(copy, p->other, &p->err);
    tern_object *dict = tern_module_state_dict(net, &p->err);
    assert_int_equal(tern_module_state_dict_load(copy, dict, NULL, NULL, &p->err), TERN_OK);
    expect_same_state(net, copy, &p->err);
    tern_object_free(dict);
    plain = make_resnet(rng, &p->err);
    for (int i = 0; i < 2; i++) {
        tern_tensor *weight = tern_state_find(i ? plain : net, "fc.weight");
        tern_rng_seed(rng, 9);
        tern_init_kaiming_normal(weight, 0, TERN_FAN_IN, TERN_GAIN_RELU, rng, &p->err);
        tern_init_trunc_normal(tern_state_find(i ? plain : net, "fc.bias"), 0, 1, -2, 2, rng, &p->err);
    }
    assert_ok(p->err);
    float one[5 * 16], other[5 * 16];
    tern_tensor_read(tern_state_find(net, "fc.weight"), one, sizeof(one), &p->err);
    tern_tensor_read(tern_state_find(plain, "fc.weight"), other, sizeof(other), &p->err);
    assert_memory_equal(one, other, sizeof(one));
    assert_ok(p->err);
    tern_module_free(net);
    tern_module_free(copy);
    tern_module_free(plain);
    tern_rng_free(rng);
}

/* The host's generator draws for all devices. */
static void draws_are_the_hosts(void **state)
{
    pair *p = *state;
    tern_device *cpu = check_device("cpu");
    float values[2][64];
    for (int i = 0; i < 2; i++) {
        tern_rng *rng = tern_rng_new(3, &p->err);
        tern_scope *scope = tern_scope_new(i ? cpu : p->one, NULL, &p->err);
        tern_tensor *x = tern_randn(scope, rng, 1, (int64_t[]){64});
        tern_tensor_read(x, values[i], sizeof(values[i]), &p->err);
        tern_scope_free(scope);
        tern_rng_free(rng);
    }
    assert_ok(p->err);
    assert_memory_equal(values[0], values[1], sizeof(values[0]));
    tern_device_close(cpu);
}

static int look_for_plug_in(void **state)
{
    (void)state;
    unsetenv("LOCAL_RANK");
    setenv("TERN_EMULATED_DEVICES", "2", 1);
    return 0;
}

/* ---- streams ---- */

enum { PINNED = 1 << 16 };

/* to = from in host memory, through a block of the device: there in the copy stream, back in the
 * communication stream. */
static void go_around(tern_device *device, float *to, const float *from, tern_error *err)
{
    const tern__device_backend *b = device->backend;
    float *block = tern__device_alloc(device, PINNED);
    tern__device_event *there = b->event_new(device, err), *back = b->event_new(device, err);
    assert_int_equal(b->event_query(device, there, err), TERN_OK);
    b->stream_copy(device, TERN__STREAM_COPY, block, from, PINNED, err);
    b->event_record(device, TERN__STREAM_COPY, there, err);
    b->stream_wait(device, TERN__STREAM_COMM, there, err);
    b->stream_copy(device, TERN__STREAM_COMM, to, block, PINNED, err);
    b->event_record(device, TERN__STREAM_COMM, back, err);
    while (b->event_query(device, back, err) == TERN_PENDING) continue;
    assert_int_equal(b->event_wait(device, back, err), TERN_OK);
    b->event_free(device, there);
    b->event_free(device, back);
    tern__device_free(device, block);
}

static void lanes_meet_at_marks(void **state)
{
    pair *p = *state;
    const tern__device_backend *b = p->one->backend;
    float *from = b->pinned_new(p->one, PINNED), *to = aligned_alloc(4096, PINNED);
    for (int i = 0; i < PINNED / 4; i++) from[i] = (float)i, to[i] = -1;
    assert_int_equal(b->pin(p->one, to, PINNED, &p->err), TERN_OK);
    go_around(p->one, to, from, &p->err);
    assert_ok(p->err);
    assert_memory_equal(to, from, PINNED);
    b->unpin(p->one, to);
    b->pinned_free(p->one, from);
    free(to);
}

/* A copy is complete when it returns, although a device reads pinned memory by itself. */
static void a_copy_of_pinned_memory_waits(void **state)
{
    pair *p = *state;
    const tern__device_backend *b = p->one->backend;
    const long *waits = emulated_symbol("emulated_waits");
    float *from = b->pinned_new(p->one, PINNED), pageable[64] = {0};
    float *block = tern__device_alloc(p->one, PINNED);
    if (!waits) skip_test("needs the emulation");
    long before = *waits;
    tern__memory_copy(block, pageable, sizeof(pageable), &p->err);
    assert_int_equal(*waits, before);
    tern__memory_copy(block, from, PINNED, &p->err);
    assert_int_equal(*waits, before + 1);
    assert_ok(p->err);
    tern__device_free(p->one, block);
    b->pinned_free(p->one, from);
}

/* The step reads data that another stream copies only if it waits for that stream. */
static void a_step_waits_for_a_stream(void **state)
{
    pair *p = *state;
    const tern__device_backend *b = p->one->backend;
    float *from = b->pinned_new(p->one, 256), *block = tern__device_alloc(p->one, 256), seen = 0;
    tern__device_event *event = b->event_new(p->one, &p->err);
    from[0] = 7;
    tern__memory_zero(block, 256, &p->err);
    b->wait(p->one, &p->err); /* which no stream waits for by itself */
    b->stream_copy(p->one, TERN__STREAM_COPY, block, from, 256, &p->err);
    b->event_record(p->one, TERN__STREAM_COPY, event, &p->err);
    b->stream_wait(p->one, TERN__STREAM_STEP, event, &p->err);
    tern__memory_copy(&seen, block, sizeof(seen), &p->err);
    assert_ok(p->err);
    assert_true(seen == 7);
    b->event_free(p->one, event);
    b->pinned_free(p->one, from);
    tern__device_free(p->one, block);
}

/* A stream that is freed leaves its place to the next. */
static void streams_come_and_go(void **state)
{
    pair *p = *state;
    const tern__device_backend *b = p->one->backend;
    for (int i = 0; i < 2 * TERN__STREAMS; i++) {
        tern__device_stream stream;
        assert_int_equal(b->stream_new(p->one, &stream, &p->err), TERN_OK);
        b->stream_free(p->one, stream);
    }
}

static void timers_are_waited_for(void **state)
{
    pair *p = *state;
    const tern__device_backend *b = p->one->backend;
    float *block = tern__device_alloc(p->one, 256);
    tern__device_event *from = b->timer_new(p->one, &p->err), *to = b->timer_new(p->one, &p->err);
    b->event_record(p->one, TERN__STREAM_STEP, from, &p->err);
    tern__memory_zero(block, 256, &p->err);
    b->event_record(p->one, TERN__STREAM_STEP, to, &p->err);
    assert_ok(p->err);
    assert_true(b->timer_ms(p->one, from, to) >= 0);
    b->event_free(p->one, from);
    b->event_free(p->one, to);
    tern__device_free(p->one, block);
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(numbers_by_other_launchers),
        cmocka_unit_test(queues),
        cmocka_unit_test(names_that_are_refused),
        cmocka_unit_test(a_plug_in_that_is_not_there),
        cmocka_unit_test(a_device_outlives_the_runtime),
        cmocka_unit_test_setup_teardown(an_address_tells_its_device, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(copies, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(copies_go_across, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(copies_go_across_without_a_link, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(memory_runs_out, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(operands_that_overlap_are_carried_as_one, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(a_kernel_that_a_device_lacks_is_named_once, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(lanes_meet_at_marks, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(a_copy_of_pinned_memory_waits, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(a_step_waits_for_a_stream, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(streams_come_and_go, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(timers_are_waited_for, open_pair, close_pair),
        cmocka_unit_test(an_mlp_trains),
        cmocka_unit_test(a_resnet_trains),
        cmocka_unit_test(a_model_that_was_moved_trains_in_16_bits),
        cmocka_unit_test_setup_teardown(a_model_moves_and_comes_back, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(states_are_read_and_written_there, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(draws_are_the_hosts, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, look_for_plug_in, NULL);
}
