/* test_graphs.c - steps that are launched as graphs: the same bits as without, whatever a step does, with
 * few launches. */
#include "nets.h"

#include "autograd/autograd.h"
#include "device/backend.h"
#include "device/memory.h"
#include "kernels/kernel.h"
#include "kernels/pointwise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, STATE = 1 << 16 };

/* ---- the plug-in's calls ---- */

static emulated_counts *counted; /* all 0 on a real GPU */

static emulated_counts since(emulated_counts before)
{
    return (emulated_counts){.kernels = counted->kernels - before.kernels,
                             .others = counted->others - before.others,
                             .captures = counted->captures - before.captures,
                             .graphs = counted->graphs - before.graphs,
                             .changes = counted->changes - before.changes};
}

/* ---- a training ---- */

/* The ways in which steps differ. */
enum {
    STATIC = 0,
    OTHER_SIZE = 1,    /* every fifth has three rows fewer */
    EVALUATES = 2,     /* every third is followed by an evaluation */
    READS = 4,         /* the loss is read before backward */
    LONGER = 8,        /* every fourth takes another path */
    READS_SOME = 16,   /* every third reads its loss */
    TWO_BACKWARD = 32, /* gradients of two microbatches are added */
    CLIPS = 64         /* the gradients' norm is read */
};

typedef struct training {
    make_fn make;
    optim_fn optim;
    const batch *batch;
    tern_dtype autocast; /* TERN_F32: none */
    unsigned variety;
    bool graphs;
    int count; /* number of steps */
    emulated_counts steps[STEPS];
    double loss[STEPS]; /* of steps that read it */
    size_t bytes;       /* of the state at the end */
    char state[STATE];
} training;

static tern_tensor *loss_of(training *t, tern_module *net, tern_scope *scope, int step)
{
    const batch *b = t->batch;
    int64_t shape[4];
    memcpy(shape, b->shape, sizeof(shape));
    if (t->variety & OTHER_SIZE && step % 5 == 4) shape[0] -= 3;
    tern_tensor *x = tern_tensor_from(scope, b->x, TERN_F32, b->ndim, shape);
    tern_tensor *y = tern_tensor_from(scope, b->y, TERN_I64, 1, shape);
    tern_dtype was = tern_autocast_set(scope, t->autocast);
    if (net->training) x = tern_dropout(scope, x, 0.2);
    if (t->variety & LONGER && step % 4 == 3) x = tern_tanh(scope, tern_relu(scope, x));
    tern_tensor *loss = tern_cross_entropy(scope, tern_forward(net, scope, x), y, NULL);
    tern_autocast_set(scope, was);
    return loss;
}

static void train_step(training *t, tern_module *net, tern_optim *optim, tern_scope *scope, int step)
{
    bool reads = t->variety & READS || (t->variety & READS_SOME && step % 3 == 1);
    tern_optim_lr_set(optim, 0, 0.05 / (1 + step));
    for (int i = 0; i < (t->variety & TWO_BACKWARD ? 2 : 1); i++) {
        tern_tensor *loss = loss_of(t, net, scope, step);
        if (reads) t->loss[step] = tern_item(loss);
        tern_backward(scope, loss);
    }
    if (t->variety & CLIPS) tern_clip_grad_norm(scope, net, 5, 2);
    tern_optim_step(optim, scope);
}

static void evaluate(training *t, tern_module *net, tern_scope *scope, int step)
{
    tern_eval(net);
    t->loss[step] += tern_item(loss_of(t, net, scope, step));
    tern_train(net);
}

static void keep_state(training *t, const tern_module *net, tern_error *err)
{
    for (int i = 0; i < tern_state_count(net); i++) {
        const tern_tensor *tensor = tern_state_get(net, i).tensor;
        size_t bytes = tern__view_bytes(&tensor->view);
        assert_true(t->bytes + bytes <= STATE);
        tern_tensor_read(tensor, t->state + t->bytes, bytes, err);
        t->bytes += bytes;
    }
}

static tern_device *open_device(const char *name, bool graphs)
{
    tern_error err = {0};
    tern_device *device = tern_device_open(name, &err);
    assert_ok(err);
    assert_false(tern_device_graphs_get(device));
    assert_int_equal(tern_device_graphs_set(device, graphs, &err), TERN_OK);
    assert_true(tern_device_graphs_get(device) == graphs);
    return device;
}

static void train(training *t)
{
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", t->graphs);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = t->make(rng, &err);
    tern_module_to(net, device, &err);
    tern_optim *optim = t->optim(net, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    assert_ok(err);
    tern_scope_seed(scope, 7, 0);
    for (int step = 0; step < t->count; step++) {
        emulated_counts before = *counted;
        train_step(t, net, optim, scope, step);
        tern_scope_end(scope, &err);
        t->steps[step] = since(before);
        if (t->variety & EVALUATES && step % 3 == 2) evaluate(t, net, scope, step);
        tern_scope_end(scope, &err);
        assert_ok(err);
    }
    keep_state(t, net, &err);
    assert_ok(err);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
}

/* Trains with and without graphs; the counts are of the former. */
static void expect_the_same_bits(training *t)
{
    training *plain = malloc(sizeof(*plain));
    *plain = *t;
    t->graphs = true;
    train(t);
    train(plain);
    assert_int_equal(t->bytes, plain->bytes);
    assert_memory_equal(t->state, plain->state, t->bytes);
    assert_memory_equal(t->loss, plain->loss, sizeof(t->loss));
    for (int i = 0; i < STEPS; i++) assert_int_equal(plain->steps[i].graphs, 0);
    free(plain);
}

static void print_counts(const training *t)
{
    for (int i = 0; getenv("TERN_TEST_PRINT") && i < t->count; i++)
        printf("step %d: %lld kernels, %lld others, %lld captures, %lld graphs, %lld changes\n", i,
               (long long)t->steps[i].kernels, (long long)t->steps[i].others, (long long)t->steps[i].captures,
               (long long)t->steps[i].graphs, (long long)t->steps[i].changes);
}

/* From the fifth step on: only x and y are enqueued separately. */
static void expect_graphs(const training *t, int64_t graphs)
{
    print_counts(t);
    for (int i = 4; is_emulated() && i < t->count; i++) {
        assert_int_equal(t->steps[i].graphs, graphs);
        assert_int_equal(t->steps[i].kernels, 0);
        assert_int_equal(t->steps[i].captures, 0);
        assert_int_equal(t->steps[i].others, 2);
    }
}

static batch flat, images;

static training of(make_fn make, optim_fn optim, unsigned variety)
{
    return (training){.make = make,
                      .optim = optim,
                      .batch = make == make_mlp ? &flat : &images,
                      .autocast = TERN_F32,
                      .variety = variety,
                      .count = STEPS};
}

/* ---- tests ---- */

static void a_static_step_is_one_graph(void **state)
{
    (void)state;
    training t = of(make_mlp, make_sgd, STATIC);
    expect_the_same_bits(&t);
    expect_graphs(&t, 1);
    t = of(make_mlp, make_adam, STATIC);
    expect_the_same_bits(&t);
    expect_graphs(&t, 1);
}

static void so_is_one_of_convolutions(void **state)
{
    (void)state;
    training t = of(make_resnet, make_sgd, STATIC);
    expect_the_same_bits(&t);
    expect_graphs(&t, 1);
    t = of(make_resnet, make_adam, STATIC);
    t.count = 8;
    expect_the_same_bits(&t);
    expect_graphs(&t, 1);
}

static void and_in_16_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        training t = of(make_resnet, make_sgd, STATIC);
        t.autocast = i ? TERN_F16 : TERN_BF16;
        t.count = 8;
        expect_the_same_bits(&t);
        expect_graphs(&t, 1);
    }
}

static void a_step_may_do_what_it_likes(void **state)
{
    (void)state;
    static const unsigned cases[] = {OTHER_SIZE, EVALUATES,           READS,
                                     LONGER,     READS_SOME,          TWO_BACKWARD,
                                     CLIPS,      OTHER_SIZE | LONGER, EVALUATES | READS_SOME | OTHER_SIZE};
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        training t = of(make_mlp, make_adam, cases[i]);
        expect_the_same_bits(&t);
        print_counts(&t);
        int64_t graphs = t.steps[STEPS - 3].graphs + t.steps[STEPS - 2].graphs + t.steps[STEPS - 1].graphs;
        assert_true(!is_emulated() || graphs > 0);
    }
}

static void a_read_makes_two_graphs(void **state)
{
    (void)state;
    training t = of(make_mlp, make_sgd, READS);
    expect_the_same_bits(&t);
    print_counts(&t);
    for (int i = 5; is_emulated() && i < STEPS; i++) {
        assert_int_equal(t.steps[i].graphs, 2);
        assert_int_equal(t.steps[i].kernels, 0);
    }
}

/* Overlapping kernels are recorded again as non-overlapping ones in each graph that has some. */
static void arguments_that_are_refused_cost_no_graph(void **state)
{
    (void)state;
    setenv("TERN_EMULATED_REFUSES", "change", 1);
    training one = of(make_mlp, make_sgd, STATIC), two = of(make_mlp, make_sgd, READS);
    expect_the_same_bits(&one);
    expect_the_same_bits(&two);
    unsetenv("TERN_EMULATED_REFUSES");
    expect_graphs(&one, 1);
    for (int i = 5; is_emulated() && i < STEPS; i++) assert_int_equal(two.steps[i].graphs, 2);
}

/* As a_static_step_is_one_graph, on two devices whose steps alternate. */
static void each_device_has_its_own(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *devices[2] = {open_device("cuda:0", true), open_device(other_gpu(), true)};
    tern_scope *scopes[2];
    training t = of(make_mlp, make_sgd, STATIC);
    tern_module *nets[2];
    tern_optim *optims[2];
    tern_rng *rng = tern_rng_new(3, &err);
    for (int i = 0; i < 2; i++) {
        tern_rng_seed(rng, 3);
        nets[i] = make_mlp(rng, &err);
        tern_module_to(nets[i], devices[i], &err);
        optims[i] = make_sgd(nets[i], &err);
        scopes[i] = tern_scope_new(devices[i], NULL, &err);
    }
    for (int step = 0; step < 8; step++) {
        emulated_counts before = *counted;
        for (int i = 0; i < 2; i++) train_step(&t, nets[i], optims[i], scopes[i], step);
        for (int i = 0; i < 2; i++) tern_scope_end(scopes[i], &err);
        assert_ok(err);
        if (!is_emulated() || step <= 4) continue;
        assert_int_equal(since(before).graphs, 2);
        assert_int_equal(since(before).kernels, 0);
    }
    keep_state(&t, nets[0], &err);
    training other = t;
    other.bytes = 0;
    keep_state(&other, nets[1], &err);
    assert_ok(err);
    assert_memory_equal(t.state, other.state, t.bytes);
    for (int i = 0; i < 2; i++) {
        tern_scope_free(scopes[i]);
        tern_optim_free(optims[i]);
        tern_module_free(nets[i]);
        tern_device_close(devices[i]);
    }
    tern_rng_free(rng);
}

/* Copies between devices come after the work that one holds back and before the other's later work. */
static void devices_look_at_each_other(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *one = open_device("cuda:0", true), *other = open_device(other_gpu(), true);
    tern_scope *scope = tern_scope_new(one, NULL, &err);
    for (int step = 0; step < 8; step++) {
        tern_tensor *x = tern_full(scope, TERN_F32, 1, (int64_t[]){32}, 1 + step);
        for (int i = 0; i < 5; i++) x = tern_add(scope, x, x);
        x = tern_to(scope, x, other);
        for (int i = 0; i < 5; i++) x = tern_add(scope, x, x);
        x = tern_to(scope, x, one);
        for (int i = 0; i < 5; i++) x = tern_add(scope, x, x);
        assert_true(tern_item(tern_sum(scope, x)) == 32.0 * 32768 * (1 + step));
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    }
    tern_scope_free(scope);
    tern_device_close(one);
    tern_device_close(other);
}

/* Bytes on the host's stack that change as soon as they were copied, in the middle of a piece. */
static void bytes_of_the_host_come_in_order(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", true);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    for (int step = 0; step < 8; step++) {
        float value[1000];
        tern_tensor *sum = tern_full(scope, TERN_F32, 1, (int64_t[]){1000}, 0);
        for (int i = 0; i < 6; i++) {
            for (int e = 0; e < 1000; e++) value[e] = (float)(step * 10 + i + e);
            sum = tern_add(scope, sum, tern_tensor_from(scope, value, TERN_F32, 1, (int64_t[]){1000}));
        }
        tern_tensor_read(sum, value, sizeof(value), &err);
        for (int e = 0; e < 1000; e++) assert_true(value[e] == (float)(60 * step + 15 + 6 * e));
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    }
    tern_scope_free(scope);
    tern_device_close(device);
}

/* More items than fit into a piece, and more bytes than fit into the stage. */
static void long_steps_are_several_graphs(void **state)
{
    (void)state;
    enum { COUNT = 1 << 19 };
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", true);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    float *large = calloc(COUNT, sizeof(*large));
    emulated_counts before = *counted;
    for (int step = 0; step < 6; step++) {
        if (step == 5) before = *counted;
        tern_tensor *x = tern_full(scope, TERN_F32, 1, (int64_t[]){4}, step);
        tern_tensor *one = tern_full(scope, TERN_F32, 1, (int64_t[]){4}, 1);
        for (int i = 0; i < 600; i++) x = tern_add(scope, x, one);
        tern_tensor *y = tern_sum(scope, x);
        for (int i = 0; i < 5; i++) {
            large[COUNT - 1] = (float)i;
            tern_tensor *z = tern_tensor_from(scope, large, TERN_F32, 1, (int64_t[]){COUNT});
            y = tern_add(scope, y, tern_amax(scope, z, 0, NULL, false));
        }
        assert_true(tern_item(y) == 4 * (step + 600) + 10);
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
    }
    assert_true(!is_emulated() || since(before).graphs >= 3);
    assert_true(since(before).kernels < 12);
    free(large);
    tern_scope_free(scope);
    tern_device_close(device);
}

/* Three steps of so many different pieces, as when ranks communicate much in a backward; returns the
 * counts of the last one. */
static emulated_counts step_in_pieces(tern_device *device, char *block, int pieces)
{
    enum { ITEMS = 5 };
    tern_error err = {0};
    emulated_counts before = *counted;
    for (int step = 0; step < 3; step++) {
        before = *counted;
        for (int i = 0; i < pieces * ITEMS; i++) {
            device->backend->zero(device, block + i, 1, &err);
            if (i % ITEMS == ITEMS - 1) device->backend->flush(device, &err);
        }
    }
    assert_ok(err);
    return since(before);
}

/* The recordings of a step that is too long are dropped before they are used again, and do no harm
 * afterwards. */
static void a_step_of_many_pieces_is_as_many_graphs(void **state)
{
    (void)state;
    static const int pieces[] = {500, 2000, 500};
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", true);
    char *block = tern__memory_new(device, 10000, "test", &err);
    assert_ok(err);
    for (size_t i = 0; i < TERN__COUNT(pieces); i++) {
        emulated_counts asked = step_in_pieces(device, block, pieces[i]);
        if (is_emulated()) assert_int_equal(asked.graphs, pieces[i] == 500 ? 500 : 0);
    }
    tern__memory_free(block);
    tern_device_close(device);
}

/* The sixth step has a label that is no class. */
static void a_label_out_of_range_is_said(void **state)
{
    (void)state;
    char text[2][TERN_ERROR_TEXT];
    for (int graphs = 0; graphs < 2; graphs++) {
        tern_error err = {0};
        tern_device *device = open_device("cuda:0", graphs);
        tern_scope *scope = tern_scope_new(device, NULL, &err);
        for (int step = 0; step < 8; step++) {
            float x[6] = {1, 2, 3, 4, 5, 6};
            int64_t y[2] = {0, step == 5 ? 7 : 2};
            tern_tensor *in = tern_tensor_from(scope, x, TERN_F32, 2, (int64_t[]){2, 3});
            tern_tensor *label = tern_tensor_from(scope, y, TERN_I64, 1, (int64_t[]){2});
            tern_tensor *loss = tern_cross_entropy(scope, tern_relu(scope, in), label, NULL);
            tern_item(tern_neg(scope, tern_tanh(scope, loss)));
            int code = tern_scope_end(scope, &err);
            assert_int_equal(code, step == 5 ? TERN_E_RANGE : TERN_OK);
            if (code) memcpy(text[graphs], err.text, sizeof(text[graphs]));
            err = (tern_error){0};
        }
        tern_scope_free(scope);
        tern_device_close(device);
    }
    assert_string_equal(text[0], text[1]);
}

/* ---- addresses and allocations ---- */

static void *count_alloc(size_t bytes, size_t align, void *ctx)
{
    ++*(int *)ctx;
    return aligned_alloc(align < sizeof(void *) ? sizeof(void *) : align, tern__align_up(bytes, align));
}

static void count_free(void *data, void *ctx)
{
    (void)ctx;
    free(data);
}

static void a_warm_step_has_the_same_addresses(void **state)
{
    (void)state;
    enum { SEEN = 64 };
    static void *seen[STEPS][SEEN];
    int allocated = 0, cold = 0;
    size_t bytes = 0;
    tern_error err = {0};
    tern__allocator_replace(&(tern_allocator){count_alloc, count_free, &allocated});
    tern_device *device = open_device("cuda:0", true);
    training t = of(make_mlp, make_adam, STATIC);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = make_mlp(rng, &err);
    tern_module_to(net, device, &err);
    tern_optim *optim = make_adam(net, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    for (int step = 0; step < STEPS; step++) {
        train_step(&t, net, optim, scope, step);
        int count = 0;
        for (tern_tensor *x = scope->tensors; x && count < SEEN; x = x->next)
            seen[step][count++] = x->view.data;
        assert_true(count > 5);
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
        if (step == 4) cold = allocated, bytes = tern__device_bytes(device);
        if (step > 2) assert_memory_equal(seen[step], seen[2], sizeof(seen[2]));
    }
    assert_int_equal(allocated, cold);
    assert_int_equal(tern__device_bytes(device), bytes);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern__allocator_replace(NULL);
}

/* ---- pieces of a few kernels ---- */

enum { ROWS = 6, COLUMNS = 64, LONG = 4096, NUMBERS = ROWS * COLUMNS + LONG };

/* Fills rows with value, value + 1, ..; with `is_long` the long row behind them instead of the third. */
static void fill_rows(tern_device *device, float *rows, bool is_long, double value, int count)
{
    tern_error err = {0};
    for (int i = 0; i < count; i++) {
        bool other = is_long && i == 2;
        tern__view row = tern__view_make(TERN_F32, TERN__PLAIN, 1, (int64_t[]){other ? LONG : COLUMNS});
        row.data = rows + COLUMNS * (other ? ROWS : i);
        tern__call call = {.device = device,
                           .kernel = TERN__FILL,
                           .in = {&row},
                           .out = {&row},
                           .attr = &(tern__pointwise_attr){{value + i}},
                           .err = &err};
        assert_int_equal(device->backend->kernels[TERN__FILL](&call), TERN_OK);
    }
}

/* A graph takes its own arguments, whichever other graph begins like it and was used last. */
static void steps_that_begin_alike_are_told_apart(void **state)
{
    (void)state;
    static const bool is_long[] = {0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0};
    static float seen[NUMBERS];
    float third[2] = {0, 0}; /* what the third kernel has filled, by its row */
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", true);
    float *rows = tern__device_alloc(device, sizeof(seen));
    int64_t before = counted->graphs;
    tern__memory_zero(rows, sizeof(seen), &err);
    for (size_t step = 0; step < TERN__COUNT(is_long); step++) {
        float value = 10 * (float)step;
        fill_rows(device, rows, is_long[step], value, ROWS);
        assert_int_equal(tern__memory_copy(seen, rows, sizeof(seen), &err), TERN_OK);
        third[is_long[step]] = value + 2;
        for (int i = 0; i < ROWS; i++)
            assert_true(seen[COLUMNS * i] == (i == 2 ? third[false] : value + (float)i));
        assert_true(seen[NUMBERS - 1] == third[true]);
    }
    assert_true(!is_emulated() || counted->graphs >= before + 7);
    tern__device_free(device, rows);
    tern_device_close(device);
}

/* Another stream that waits for the step's waits for what is held back as well. */
static void another_stream_waits_for_what_is_held_back(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_device *device = open_device("cuda:0", true);
    const tern__device_backend *backend = device->backend;
    float *rows = tern__device_alloc(device, NUMBERS * sizeof(*rows));
    float *seen = backend->pinned_new(device, COLUMNS * sizeof(*seen));
    tern__device_event *turn = backend->event_new(device, &err);
    for (int step = 0; step < 4; step++) {
        fill_rows(device, rows, false, step, ROWS);
        backend->flush(device, &err);
    }
    fill_rows(device, rows, false, 40, 3);
    backend->event_record(device, TERN__STREAM_STEP, turn, &err);
    backend->stream_wait(device, TERN__STREAM_COPY, turn, &err);
    backend->stream_copy(device, TERN__STREAM_COPY, seen, rows, COLUMNS * sizeof(*seen), &err);
    backend->event_record(device, TERN__STREAM_COPY, turn, &err);
    backend->event_wait(device, turn, &err);
    assert_ok(err);
    assert_true(seen[0] == 40);
    backend->event_free(device, turn);
    backend->pinned_free(device, seen);
    tern__device_free(device, rows);
    tern_device_close(device);
}

/* ---- the setting ---- */

static void a_cpu_has_none(void **state)
{
    (void)state;
    tern_error err = {0};
    setenv("TERN_GRAPHS", "1", 1);
    tern_device *cpu = tern_device_open("cpu", &err), *gpu = tern_device_open("cuda:0", &err);
    unsetenv("TERN_GRAPHS");
    assert_ok(err);
    assert_false(tern_device_graphs_get(cpu));
    assert_int_equal(tern_device_graphs_set(cpu, true, &err), TERN_OK);
    assert_false(tern_device_graphs_get(cpu));
    assert_true(tern_device_graphs_get(gpu));
    tern_device_close(cpu);
    tern_device_close(gpu);
}

static int look_for_plug_in(void **state)
{
    (void)state;
    static emulated_counts none;
    unsetenv("LOCAL_RANK");
    setenv("TERN_EMULATED_DEVICES", "2", 1);
    tern_device_close(tern_device_open("cuda:0", NULL));
    counted = is_emulated() ? emulated_symbol("emulated_counted") : &none;
    draw_batch(&flat, 5, 2, (int64_t[]){8, 24});
    draw_batch(&images, 5, 4, (int64_t[]){8, 3, 12, 12});
    return counted ? 0 : -1;
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_static_step_is_one_graph),
        cmocka_unit_test(so_is_one_of_convolutions),
        cmocka_unit_test(and_in_16_bits),
        cmocka_unit_test(a_step_may_do_what_it_likes),
        cmocka_unit_test(a_read_makes_two_graphs),
        cmocka_unit_test(arguments_that_are_refused_cost_no_graph),
        cmocka_unit_test(each_device_has_its_own),
        cmocka_unit_test(devices_look_at_each_other),
        cmocka_unit_test(bytes_of_the_host_come_in_order),
        cmocka_unit_test(long_steps_are_several_graphs),
        cmocka_unit_test(a_step_of_many_pieces_is_as_many_graphs),
        cmocka_unit_test(a_label_out_of_range_is_said),
        cmocka_unit_test(a_warm_step_has_the_same_addresses),
        cmocka_unit_test(steps_that_begin_alike_are_told_apart),
        cmocka_unit_test(another_stream_waits_for_what_is_held_back),
        cmocka_unit_test(a_cpu_has_none),
    };
    return cmocka_run_group_tests(tests, look_for_plug_in, NULL);
}
