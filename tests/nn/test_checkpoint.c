/* test_checkpoint.c - tern_checkpoint: the bits of tern_forward with less memory, nested checkpoints, and
 * errors. */
#include "ledger.h"
#include "nn/scored.h"

#include "nn/nn.h"
#include "device/device.h"

#include <string.h>

enum { rows = 12, channels = 16, side = 8, classes = 5, pairs = 6, steps = 4 };

typedef enum checkpoints { PLAIN, SEGMENTS, NESTED } checkpoints;

typedef tern_tensor *(*call_fn)(tern_module *module, tern_scope *scope, tern_tensor *x);

/* Two blocks of convolution, batch norm, ReLU and dropout. */
typedef struct pair {
    tern_module base;
    tern_module *block[2];
    checkpoints mode;
} pair;

/* Pairs, and one of two heads. */
typedef struct tower {
    tern_module base;
    pair pair[pairs];
    tern_module *head[2];
    int which;
    checkpoints mode;
} tower;

static tern_tensor *pair_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const pair *self = (pair *)module;
    call_fn call = self->mode == NESTED ? tern_checkpoint : tern_forward;
    return tern_forward(self->block[1], scope, call(self->block[0], scope, x));
}

static tern_tensor *tower_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    tower *self = (tower *)module;
    call_fn call = self->mode == PLAIN ? tern_forward : tern_checkpoint;
    for (int i = 0; i < pairs; i++) x = call(&self->pair[i].base, scope, x);
    return call(self->head[self->which], scope, tern_flatten(scope, x, 1));
}

static tern_module *new_block(tern_rng *rng, tern_error *err)
{
    tern_conv2d_opts conv = tern_conv2d_defaults();
    conv.padding[0] = conv.padding[1] = 1;
    tern_module *block = tern_sequential_new(err);
    tern_sequential_add(block, tern_conv2d_new(channels, channels, 3, 3, &conv, rng, err), err);
    tern_sequential_add(block, tern_batch_norm2d_new(channels, NULL, err), err);
    tern_sequential_add(block, tern_relu_new(err), err);
    tern_sequential_add(block, tern_dropout_new(0.25, err), err);
    return block;
}

static void make_tower(tower *net, checkpoints mode, tern_error *err)
{
    tern_rng *rng = tern_rng_new(5, err);
    *net = (tower){.mode = mode};
    tern_module_init(&net->base, "tower", tower_forward, err);
    for (int i = 0; i < pairs; i++) {
        char name[8] = {'p', (char)('0' + i)};
        tern_module_init(&net->pair[i].base, "pair", pair_forward, err);
        net->pair[i].mode = mode;
        net->pair[i].block[0] = tern_module_add(&net->pair[i].base, "a", new_block(rng, err), err);
        net->pair[i].block[1] = tern_module_add(&net->pair[i].base, "b", new_block(rng, err), err);
        tern_module_add(&net->base, name, &net->pair[i].base, err);
    }
    for (int i = 0; i < 2; i++)
        net->head[i] = tern_module_add(&net->base, i ? "other" : "head",
                                       tern_linear_new(channels * side * side, classes, NULL, rng, err), err);
    tern_rng_free(rng);
}

typedef struct result {
    char state[1 << 20];
    size_t bytes;     /* the state's */
    size_t taken;     /* by the device                     */
    int last_asked;   /* requests for memory, last step    */
    bool none[steps]; /* the head that was not used has no gradient */
} result;

static void read_state(const tower *net, result *out, tern_error *err)
{
    for (int i = 0; i < tern_state_count(&net->base); i++) {
        const tern_tensor *t = tern_state_get(&net->base, i).tensor;
        size_t bytes = (size_t)tern_tensor_count(t) * tern_dtype_bytes(tern_tensor_dtype(t));
        tern_tensor_read(t, out->state + out->bytes, bytes, err);
        out->bytes += bytes;
    }
}

/* Backward is outside of the autocast region, where checkpoints compute again as inside of it. */
static void step(tower *net, tern_scope *scope, tern_dtype region, tern_rng *rng, tern_optim *sgd, bool *none)
{
    int64_t label[rows];
    for (int i = 0; i < rows; i++) label[i] = i % classes;
    for (int micro = 0; micro < 2; micro++) { /* gradients of two backwards are added up */
        tern_tensor *x = tern_randn(scope, rng, 4, (int64_t[]){rows, channels, side, side});
        tern_autocast_set(scope, region);
        tern_tensor *y = tern_forward(&net->base, scope, x);
        tern_tensor *t = tern_tensor_from(scope, label, TERN_I64, 1, (int64_t[]){rows});
        tern_tensor *loss = tern_cross_entropy(scope, y, t, NULL);
        tern_autocast_set(scope, TERN_F32);
        tern_backward(scope, loss);
    }
    *none = !tern_grad_get(tern_state_find(net->head[1 - net->which], "weight"));
    tern_optim_step(sgd, scope);
}

static void train(checkpoints mode, tern_dtype region, result *out)
{
    tern_error err = {0};
    ledger books = {0};
    memset(out, 0, sizeof(*out));
    ledger_open(&books);
    tower net;
    make_tower(&net, mode, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_rng *rng = tern_rng_new(6, &err);
    tern_optim *sgd = tern_sgd_new(&net.base, NULL, &err);
    tern_scope *scope = tern_scope_new(device, NULL, &err);
    tern_scope_seed(scope, 9, 0);
    for (int i = 0; i < steps; i++) {
        int before = books.requests;
        net.which = i % 2;
        step(&net, scope, region, rng, sgd, &out->none[i]);
        assert_int_equal(tern_scope_end(scope, &err), TERN_OK);
        out->last_asked = books.requests - before;
    }
    read_state(&net, out, &err);
    out->taken = tern__device_bytes(device);
    tern_scope_free(scope);
    tern_optim_free(sgd);
    tern_rng_free(rng);
    tern_module_release(&net.base);
    tern_device_close(device);
    ledger_close(&books);
    assert_ok(err);
}

/* `share` of the memory is enough. */
static void compare_modes(tern_dtype region, double share)
{
    static result plain, other;
    train(PLAIN, region, &plain);
    assert_int_equal(plain.last_asked, 0);
    for (checkpoints p = SEGMENTS; p <= NESTED; p++) {
        train(p, region, &other);
        assert_int_equal(other.bytes, plain.bytes);
        assert_memory_equal(other.state, plain.state, plain.bytes);
        assert_memory_equal(other.none, plain.none, sizeof(plain.none));
        assert_true(other.none[0] && other.none[steps - 1]);
        assert_int_equal(other.last_asked, 0);
        print_message("mode %d: %zu of %zu bytes\n", p, other.taken, plain.taken);
        assert_true((double)other.taken < share * (double)plain.taken);
    }
}

static void same_bits_less_memory(void **state)
{
    (void)state;
    compare_modes(TERN_F32, 0.75);
}

static void also_under_autocast(void **state)
{
    (void)state;
    compare_modes(TERN_BF16, 0.8); /* what is saved is half as large, the casts of parameters stay */
    compare_modes(TERN_F16, 0.8);
}

/* ---- the input's gradient, and calls that are no more than their input ---- */

static tern_tensor *return_input(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module;
    (void)scope;
    return x;
}

typedef struct scaled {
    tern_module base;
    tern_tensor *scale;
    tern_tensor *captured; /* or NULL */
} scaled;

static tern_tensor *scaled_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    const scaled *self = (scaled *)module;
    tern_tensor *y = tern_mul(scope, x, self->scale);
    return self->captured ? tern_add(scope, y, self->captured) : y;
}

typedef struct fixture {
    tern_device *device;
    tern_scope *scope;
    scaled inner;
    tern_module identity;
} fixture;

static void open_fixture(fixture *f)
{
    tern_error err = {0};
    *f = (fixture){.device = tern_device_open("cpu", &err)};
    tern_device_threads_set(f->device, 1, &err); /* a second thread would only spin on a busy machine */
    f->scope = tern_scope_new(f->device, NULL, &err);
    tern_module_init(&f->inner.base, "scaled", scaled_forward, &err);
    f->inner.scale = tern_parameter_add(&f->inner.base, "scale", TERN_F32, 0, NULL, &err);
    tern_tensor_write(f->inner.scale, &(float){3}, sizeof(float), &err);
    tern_module_init(&f->identity, "identity", return_input, &err);
    assert_ok(err);
}

static void close_fixture(fixture *f)
{
    tern_scope_free(f->scope);
    tern_module_release(&f->identity);
    tern_module_release(&f->inner.base);
    tern_device_close(f->device);
}

/* d/ds (s (s 2)) through two checkpoints of the same parameter, one fed by the other. */
static void gradients_pass_through(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    x = tern_checkpoint(&f.inner.base, f.scope, x);
    x = tern_checkpoint(&f.identity, f.scope, x);
    x = tern_checkpoint(&f.inner.base, f.scope, x);
    assert_true(tern_item(x) == 18);
    assert_int_equal(tern_backward(f.scope, x), TERN_OK);
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 2 * 3 * 2);
    /* Without gradients it is a plain call. */
    tern_grad_enabled_set(f.scope, false);
    x = tern_checkpoint(&f.inner.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2));
    assert_true(tern_item(x) == 6 && !tern_requires_grad_get(x));
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

static void what_comes_from_elsewhere_is_refused(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    f.inner.captured = tern_mul(f.scope, x, f.inner.scale);
    assert_null(tern_checkpoint(&f.inner.base, f.scope, x));
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "an input from outside this replica or checkpoint wants a gradient"));
    /* Detached it is welcome. */
    x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    f.inner.captured = tern_detach(f.scope, tern_mul(f.scope, x, f.inner.scale));
    tern_backward(f.scope, tern_checkpoint(&f.inner.base, f.scope, x));
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 2);
    assert_null(tern_checkpoint(NULL, f.scope, x));
    err = (tern_error){0};
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

/* The sum of the gradients of one layer that is used twice under autocast, the second time by `call`. */
static double used_twice(fixture *f, tern_module *layer, call_fn call)
{
    tern_error err = {0};
    tern_autocast_set(f->scope, TERN_BF16);
    tern_tensor *x = tern_full(f->scope, TERN_F32, 2, (int64_t[]){2, 4}, 0.5);
    tern_tensor *y = call(layer, f->scope, tern_forward(layer, f->scope, x));
    tern_autocast_set(f->scope, TERN_F32);
    assert_int_equal(tern_backward(f->scope, tern_sum(f->scope, y)), TERN_OK);
    double sum = tern_item(tern_sum(f->scope, tern_grad_get(tern_state_get(layer, 0).tensor)));
    assert_int_equal(tern_scope_end(f->scope, &err), TERN_OK);
    tern_zero_grad(layer);
    return sum;
}

/* The first use's cast of the weight is kept, which must not hide the checkpoint's use. */
static void a_kept_cast_hides_no_use(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *layer = tern_linear_new(4, 4, NULL, rng, &err);
    assert_ok(err);
    assert_true(used_twice(&f, layer, tern_checkpoint) == used_twice(&f, layer, tern_forward));
    tern_module_free(layer);
    tern_rng_free(rng);
    close_fixture(&f);
}

/* ---- a module that behaves differently the second time ---- */

typedef struct forked {
    tern_module base;
    tern_tensor *first, *second;
    int calls, from; /* from this call on it takes the second one */
} forked;

static tern_tensor *forked_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    forked *self = (forked *)module;
    return tern_mul(scope, x, self->calls++ < self->from ? self->first : self->second);
}

static void open_forked(forked *net, int from, tern_error *err)
{
    *net = (forked){.from = from};
    tern_module_init(&net->base, "forked", forked_forward, err);
    net->first = tern_parameter_add(&net->base, "first", TERN_F32, 0, NULL, err);
    net->second = tern_parameter_add(&net->base, "second", TERN_F32, 0, NULL, err);
    assert_ok(*err);
}

static void expect_refusal(tern_scope *scope, tern_tensor *y, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern_backward(scope, y), TERN_E_STATE);
    assert_int_equal(tern_scope_end(scope, &err), TERN_E_STATE);
    if (!strstr(err.text, text)) fail_msg("\"%s\" has no \"%s\"", err.text, text);
}

static void the_second_pass_uses_what_the_first_did(void **state)
{
    (void)state;
    fixture f;
    forked net;
    tern_error err = {0};
    open_fixture(&f);
    open_forked(&net, 1, &err);
    expect_refusal(f.scope, tern_checkpoint(&net.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2)),
                   "the parameter \"second\" was used only when it was computed again");
    net.from = net.calls + 2; /* the same both times */
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    assert_int_equal(tern_backward(f.scope, tern_checkpoint(&net.base, f.scope, x)), TERN_OK);
    assert_true(tern_item(tern_grad_get(net.first)) == 2);
    assert_null(tern_grad_get(net.second));
    tern_scope_end(f.scope, &err);
    net.from = net.calls + 2;
    tern_tensor *y = tern_checkpoint(&net.base, f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2));
    tern_requires_grad_set(net.first, false, &err);
    expect_refusal(f.scope, y, "the parameter \"first\" was used only the first time");
    net.from = net.calls + 2;
    x = tern_mul(f.scope, tern_full(f.scope, TERN_F32, 0, NULL, 2), f.inner.scale);
    y = tern_checkpoint(&net.base, f.scope, x);
    tern_requires_grad_set(net.first, true, &err);
    expect_refusal(f.scope, y, "the parameter \"first\" was used only when it was computed again");
    tern_module_release(&net.base);
    close_fixture(&f);
}

/* A teacher beside the trained part: its forward runs without gradients, both times. */
static tern_tensor *taught_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    forked *self = (forked *)module;
    bool before = tern_grad_enabled_set(scope, false);
    tern_tensor *target = tern_mul(scope, x, self->second);
    assert_true(before && !tern_requires_grad_get(target));
    tern_grad_enabled_set(scope, before);
    return tern_mul(scope, target, self->first);
}

static tern_tensor *return_parameter(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)scope, (void)x;
    return ((forked *)module)->first;
}

static tern_tensor *return_constant(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    (void)module, (void)x;
    return tern_full(scope, TERN_F32, 0, NULL, 7);
}

static void expect_gradients(tern_scope *s, forked *net, tern_forward_fn forward, double first)
{
    tern_error err = {0};
    net->base.forward = forward;
    tern_tensor *y = tern_checkpoint(&net->base, s, tern_full(s, TERN_F32, 0, NULL, 2));
    assert_int_equal(tern_backward(s, y), TERN_OK);
    assert_true(tern_item(tern_grad_get(net->first)) == first);
    assert_null(tern_grad_get(net->second));
    assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    tern_zero_grad(&net->base);
}

static void a_part_may_be_without_gradients(void **state)
{
    (void)state;
    fixture f;
    forked net;
    tern_error err = {0};
    open_fixture(&f);
    open_forked(&net, 0, &err);
    tern_tensor_write(net.second, &(float){5}, sizeof(float), &err);
    expect_gradients(f.scope, &net, taught_forward, 10);
    expect_gradients(f.scope, &net, return_parameter, 1);
    net.base.forward = return_constant;
    tern_tensor *x = tern_full(f.scope, TERN_F32, 0, NULL, 2);
    tern_requires_grad_set(x, true, &err);
    tern_tensor *y = tern_add(f.scope, x, tern_checkpoint(&net.base, f.scope, x));
    assert_int_equal(tern_backward(f.scope, y), TERN_OK);
    assert_true(tern_item(y) == 9 && tern_item(tern_grad_get(x)) == 1);
    tern_scope_end(f.scope, &err);
    tern_module_release(&net.base);
    close_fixture(&f);
}

/* The input may be a parameter. */
static void a_parameter_goes_in(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    tern_tensor *y = tern_checkpoint(&f.inner.base, f.scope, f.inner.scale);
    assert_int_equal(tern_backward(f.scope, y), TERN_OK);
    assert_true(tern_item(tern_grad_get(f.inner.scale)) == 6);
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    close_fixture(&f);
}

/* ---- a backward inside the module's call ---- */

/* The gradients of scale and x, and the result. */
static void go_back_through_score(call_fn call, bool is_function, double *numbers)
{
    fixture f;
    tern_error err = {0};
    scored net;
    open_fixture(&f);
    scored_init(&net, is_function, &err);
    tern_tensor *x = tern_tensor_from(f.scope, (float[]){2, 5, 3, 4}, TERN_F32, 4, (int64_t[]){1, 1, 2, 2});
    tern_requires_grad_set(x, true, &err);
    tern_tensor *loss = tern_sum(f.scope, call(&net.base, f.scope, x));
    assert_int_equal(tern_backward(f.scope, loss), TERN_OK);
    numbers[0] = tern_item(loss);
    numbers[1] = tern_item(tern_grad_get(net.scale));
    numbers[2] = tern_item(tern_sum(f.scope, tern_grad_get(x)));
    tern_scope_end(f.scope, &err);
    assert_ok(err);
    tern_module_release(&net.base);
    close_fixture(&f);
}

static void the_module_goes_back_inside(void **state)
{
    (void)state;
    for (int is_function = 0; is_function < 2; is_function++) {
        double plain[3], again[3];
        go_back_through_score(tern_forward, is_function, plain);
        go_back_through_score(tern_checkpoint, is_function, again);
        assert_memory_equal(again, plain, sizeof(plain));
        assert_true(plain[0] == 15 * 2 * 15 * 3);  /* y = 15 wins, and its slope is 2 y scale */
        assert_true(plain[1] == 15 * 15 + 5 * 90); /* of the score, and of the result */
        assert_true(plain[2] == 3 * 90);
    }
}

/* ---- calls with several inputs and results ---- */

enum { EMBED = 8, HEADS = 2, TOKENS = 6, MEMORY = 9, SEQUENCES = 3, VALUES_MAX = 1 << 15 };

/* The gradients of a step, and its loss. */
typedef struct values {
    float value[VALUES_MAX];
    int64_t count;
    int completed, leaves; /* gradients that were announced as complete, and parameters that have one */
    tern__watch watch;
} values;

static void values_add(values *to, const tern_tensor *x)
{
    tern_error err = {0};
    int64_t count = tern_tensor_count(x);
    if (!x) return;
    assert_true(to->count + count < VALUES_MAX);
    assert_int_equal(tern_tensor_read(x, to->value + to->count, (size_t)count * sizeof(float), &err),
                     TERN_OK);
    to->count += count;
}

static void values_add_gradients(values *to, const tern_module *module)
{
    for (int i = 0; i < tern_state_count(module); i++) {
        const tern_tensor *dw = tern_grad_get(tern_state_get(module, i).tensor);
        values_add(to, dw);
        to->leaves += dw && !tern__state_repeats(module, i);
    }
}

static int values_count_complete(tern__watch *watch, tern_scope *scope, const tern__leaf *leaf)
{
    (void)scope, (void)leaf;
    ((values *)((char *)watch - offsetof(values, watch)))->completed++;
    return TERN_OK;
}

static void values_backward(values *to, tern_scope *s, tern_tensor *loss)
{
    to->watch.ready = values_count_complete;
    s->watch = &to->watch;
    values_add(to, loss);
    assert_int_equal(tern_backward(s, loss), TERN_OK);
}

/* A call of one of the modules, whose attribute is a pointer to it. */
typedef struct several {
    const char *name;
    tern_checkpoint_fn call;
    int x_count, y_count;
    const char
        *x; /* for each input: t (of the target's shape), m (of the memory's), T (a mask of scores, tokens x
                    * tokens), p (a padding mask, sequences x memory), i (indices), = (the input before it),
                    * w (the module's first parameter), - (NULL) */
} several;

static tern_module *module_of(const void *attr)
{
    return *(tern_module *const *)attr;
}

static void call_decoder_layer(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_transformer_decoder_call_opts o = tern_transformer_decoder_call_defaults();
    o.tgt_mask = x[2];
    o.memory_key_padding_mask = x[3];
    y[0] = tern_transformer_decoder_layer_forward(module_of(attr), s, x[0], x[1], &o);
}

static void call_attention(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_multihead_attention_call_opts o = tern_multihead_attention_call_defaults();
    o.key_padding_mask = x[3];
    y[0] = tern_multihead_attention_forward(module_of(attr), s, x[0], x[1], x[2], &o);
}

/* Results of every kind: made of inputs, an input itself, a parameter, twice the same, of integers, and
 * none. */
static void call_many(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_tensor *bias = tern_state_get(module_of(attr), 1).tensor;
    y[0] = tern_dropout(s, tern_forward(module_of(attr), s, x[0]), 0.5);
    y[1] = x[1];
    y[2] = bias;
    y[3] = y[0];
    y[4] = tern_argmax(s, x[1], 2, false);
    y[6] = tern_mul(s, x[1], x[2]);
}

static void call_nested(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_tensor *inner;
    tern_module *layer = module_of(attr);
    tern_checkpoint_function(s, call_decoder_layer, 4, x, 1, &inner, &layer, sizeof(layer));
    tern_checkpoint_function(s, call_decoder_layer, 4, (tern_tensor *[]){inner, x[1], NULL, x[3]}, 1, y,
                             &layer, sizeof(layer));
}

static void call_parameter(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    y[0] = tern_matmul(s, tern_forward(module_of(attr), s, x[0]), x[1]);
}

static tern_tensor *several_input(tern_scope *s, tern_rng *rng, tern_module *module, char what)
{
    static const uint8_t padding[SEQUENCES][MEMORY] = {{[MEMORY - 1] = 1}, {0}, {[MEMORY - 2] = 1, 1}};
    static const int64_t indices[TOKENS];
    int64_t shape[] = {what == 'm' ? MEMORY : TOKENS, SEQUENCES, EMBED};
    if (what == '-') return NULL;
    if (what == 'w') return tern_state_get(module, 0).tensor;
    if (what == 'i') return tern_tensor_from(s, indices, TERN_I64, 1, (int64_t[]){TOKENS});
    if (what == 'p') return tern_tensor_from(s, padding, TERN_BOOL, 2, (int64_t[]){SEQUENCES, MEMORY});
    tern_tensor *x =
        what == 'T' ? tern_randn(s, rng, 2, (int64_t[]){TOKENS, TOKENS}) : tern_randn(s, rng, 3, shape);
    assert_int_equal(tern_requires_grad_set(x, true, NULL), TERN_OK);
    return x;
}

/* Two backwards through a call, directly or as a checkpoint, and what they give. */
static void several_run(const several *of, tern_module *module, bool is_checkpoint, values *out)
{
    tern_error err = {0};
    fixture f;
    open_fixture(&f);
    *out = (values){0};
    tern_rng *rng = tern_rng_new(8, &err);
    tern_scope_seed(f.scope, 5, 2);
    for (int step = 0; step < 2; step++) {
        tern_tensor *x[8], *y[8] = {0}, *loss = tern_full(f.scope, TERN_F32, 0, NULL, 0);
        for (int i = 0; i < of->x_count; i++)
            x[i] = of->x[i] == '=' ? x[i - 1] : several_input(f.scope, rng, module, of->x[i]);
        if (is_checkpoint)
            tern_checkpoint_function(f.scope, of->call, of->x_count, x, of->y_count, y, &module,
                                     sizeof(module));
        else
            of->call(&module, f.scope, x, y);
        for (int i = 0; i < of->y_count; i++) {
            if (y[i] &&
                tern_tensor_dtype(y[i]) == TERN_F32) /* of two that are the same, the second counts twice */
                loss = tern_add(f.scope, loss,
                                tern_sum(f.scope, tern_affine(f.scope, tern_tanh(f.scope, y[i]), i + 1, 0)));
        }
        values_backward(out, f.scope, loss);
        for (int i = 0; i < of->x_count; i++)
            if (of->x[i] != '=' && of->x[i] != 'w') values_add(out, tern_grad_get(x[i]));
        out->leaves = 0;
        values_add_gradients(out, module);
        tern_zero_grad(module);
        assert_int_equal(tern_scope_end(f.scope, &err), TERN_OK);
    }
    tern_rng_free(rng);
    close_fixture(&f);
    assert_ok(err);
}

static void several_compare(const several *of, tern_module *module)
{
    static values plain, other;
    several_run(of, module, false, &plain);
    several_run(of, module, true, &other);
    print_message("%s: %lld values\n", of->name, (long long)plain.count);
    assert_true(plain.leaves > 0 && other.leaves == plain.leaves);
    assert_true(plain.completed == 2 * plain.leaves && other.completed == plain.completed);
    assert_int_equal(other.count, plain.count);
    assert_memory_equal(other.value, plain.value, (size_t)plain.count * sizeof(float));
}

static void several_inputs_and_results(void **state)
{
    (void)state;
    static const several of_decoder[] = {
        {"decoder layer", call_decoder_layer, 4, 1, "tmTp"},
        {"decoder layer without masks", call_decoder_layer, 4, 1, "tm--"},
        {"decoder layer, of one tensor", call_decoder_layer, 4, 1, "m=-p"},
        {"nested decoder layers", call_nested, 4, 1, "tmTp"},
    };
    static const several of_attention[] = {
        {"attention of a sequence to itself", call_attention, 4, 1, "m==p"},
        {"attention to a memory", call_attention, 4, 1, "tm=p"},
        {"attention of three", call_attention, 4, 1, "tmmp"},
    };
    static const several of_linear[] = {
        {"results of many kinds", call_many, 4, 7, "tmmi"},
        {"a parameter goes in", call_parameter, 2, 1, "tw"},
    };
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(4, &err);
    tern_transformer_layer_opts layer = tern_transformer_layer_defaults();
    tern_multihead_attention_opts attention = tern_multihead_attention_defaults();
    layer.feedforward = 12;
    layer.dropout = attention.dropout = 0.25;
    tern_module *decoder = tern_transformer_decoder_layer_new(EMBED, HEADS, &layer, rng, &err);
    tern_module *multihead = tern_multihead_attention_new(EMBED, HEADS, &attention, rng, &err);
    tern_module *linear = tern_linear_new(EMBED, EMBED, NULL, rng, &err);
    assert_ok(err);
    for (size_t i = 0; i < TERN__COUNT(of_decoder); i++) several_compare(&of_decoder[i], decoder);
    for (size_t i = 0; i < TERN__COUNT(of_attention); i++) several_compare(&of_attention[i], multihead);
    for (size_t i = 0; i < TERN__COUNT(of_linear); i++) several_compare(&of_linear[i], linear);
    tern_module_free(decoder);
    tern_module_free(multihead);
    tern_module_free(linear);
    tern_rng_free(rng);
}

/* A result that is another one the second time. */
static void call_growing(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    int *calls = *(int *const *)attr;
    y[0] = ++*calls == 1 ? tern_mul(s, x[0], x[0])
           : *calls == 2 ? tern_cat(s, 2, (tern_tensor *[]){x[0], x[0]}, 0)
                         : NULL;
}

/* Uses its input, too, so that there is something to compute again. */
static void call_captured(const void *attr, tern_scope *s, tern_tensor *const *x, tern_tensor **y)
{
    tern_mul(s, x[0], x[0]);
    y[0] = *(tern_tensor *const *)attr;
}

static void calls_that_are_refused(void **state)
{
    (void)state;
    fixture f;
    tern_error err = {0};
    open_fixture(&f);
    int calls = 0, *counter = &calls;
    for (int time = 0; time < 2; time++) {
        tern_tensor *y = NULL, *x = tern_full(f.scope, TERN_F32, 1, (int64_t[]){2}, 3);
        tern_requires_grad_set(x, true, &err);
        assert_int_equal(
            tern_checkpoint_function(f.scope, call_growing, 1, &x, 1, &y, &counter, sizeof(counter)), 0);
        calls += time;
        expect_refusal(
            f.scope, tern_sum(f.scope, y),
            time ? "checkpoint: result 0 was (2) of f32, but NULL when it was computed again"
                 : "checkpoint: result 0 was (2) of f32, but (4) of f32 when it was computed again");
        calls = 0;
    }
    /* A tensor of the outer tape that comes in by the attribute. */
    tern_tensor *outer = tern_mul(f.scope, f.inner.scale, f.inner.scale), *back = NULL;
    tern_tensor *in = f.inner.scale;
    tern_checkpoint_function(f.scope, call_captured, 1, &in, 1, &back, &outer, sizeof(outer));
    assert_int_equal(tern_backward(f.scope, back), TERN_E_UNSUPPORTED);
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "result 0 is from outside and wants a gradient"));
    err = (tern_error){0};
    tern_tensor *y = f.inner.scale;
    assert_int_equal(tern_checkpoint_function(f.scope, NULL, 0, NULL, 1, &y, NULL, 0), TERN_E_INVALID);
    assert_null(y);
    assert_int_equal(tern_scope_end(f.scope, &err), TERN_E_INVALID);
    assert_int_equal(tern_checkpoint_function(NULL, call_growing, 0, NULL, 0, NULL, NULL, 0), TERN_E_INVALID);
    close_fixture(&f);
}

/* ---- layers of models that call them themselves ---- */

enum { LAYERS = 8, CONTEXT = 48, WIDTH = 8, VOCABULARY = 11 };

typedef tern_module *(*model_new_fn)(tern_rng *rng, tern_error *err);
typedef tern_tensor *(*model_call_fn)(tern_module *model, tern_scope *s);

typedef struct model_case {
    const char *kind; /* of its layers */
    model_new_fn make;
    model_call_fn call;
} model_case;

static tern_tensor *model_tokens(tern_scope *s, bool is_mask)
{
    int64_t ids[2][CONTEXT];
    for (int i = 0; i < 2 * CONTEXT; i++)
        ids[i / CONTEXT][i % CONTEXT] = is_mask ? i % CONTEXT < 40 || i < CONTEXT : 1 + i * i % 10;
    return tern_tensor_from(s, ids, TERN_I64, 2, (int64_t[]){2, CONTEXT});
}

static tern_tensor *model_states(tern_scope *s)
{
    int64_t shape[] = {CONTEXT, 2, WIDTH};
    tern_tensor *x = tern_tensor_from(s, NULL, TERN_F32, 3, shape);
    float *value = tern_tensor_data(x);
    for (int i = 0; i < 2 * CONTEXT * WIDTH; i++) value[i] = (float)(i * i % 31) / 16 - 1;
    return x;
}

static tern_transformer_layer_opts model_layer_opts(void)
{
    tern_transformer_layer_opts o = tern_transformer_layer_defaults();
    o.feedforward = 4 * WIDTH;
    return o;
}

static tern_module *new_encoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts o = model_layer_opts();
    return tern_transformer_encoder_new(LAYERS, WIDTH, HEADS, &o, NULL, rng, err);
}

static tern_module *new_decoder(tern_rng *rng, tern_error *err)
{
    tern_transformer_layer_opts o = model_layer_opts();
    return tern_transformer_decoder_new(LAYERS, WIDTH, HEADS, &o, NULL, rng, err);
}

static tern_module *new_bert(tern_rng *rng, tern_error *err)
{
    tern_bert_opts o = tern_bert_defaults();
    o.vocab_size = VOCABULARY;
    o.hidden_size = WIDTH;
    o.num_hidden_layers = LAYERS;
    o.num_attention_heads = HEADS;
    o.intermediate_size = 4 * WIDTH;
    o.max_position_embeddings = CONTEXT;
    return tern_bert_new(&o, rng, err);
}

static tern_module *new_gpt2(tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts o = tern_gpt2_defaults();
    o.vocab_size = VOCABULARY;
    o.n_positions = CONTEXT;
    o.n_embd = WIDTH;
    o.n_layer = LAYERS;
    o.n_head = HEADS;
    return tern_gpt2_new(&o, rng, err);
}

static tern_module *new_llama(tern_rng *rng, tern_error *err)
{
    tern_llama_opts o = tern_llama_defaults();
    o.vocab_size = VOCABULARY;
    o.hidden_size = WIDTH;
    o.intermediate_size = 3 * WIDTH;
    o.num_hidden_layers = LAYERS;
    o.num_attention_heads = HEADS;
    o.max_position_embeddings = CONTEXT;
    o.attention_dropout = 0.1;
    return tern_llama_new(&o, rng, err);
}

static tern_tensor *call_encoder(tern_module *model, tern_scope *s)
{
    return tern_forward(model, s, model_states(s));
}

static tern_tensor *call_encoder_causal(tern_module *model, tern_scope *s)
{
    tern_transformer_encoder_call_opts o = tern_transformer_encoder_call_defaults();
    o.is_causal = true;
    return tern_transformer_encoder_forward(model, s, model_states(s), &o);
}

static tern_tensor *call_decoder(tern_module *model, tern_scope *s)
{
    tern_transformer_decoder_call_opts o = tern_transformer_decoder_call_defaults();
    o.tgt_is_causal = true;
    tern_tensor *x = model_states(s);
    return tern_transformer_decoder_forward(model, s, x, tern_slice(s, x, 0, 0, 7, 1), &o);
}

static tern_tensor *call_bert(tern_module *model, tern_scope *s)
{
    tern_bert_call_opts o = tern_bert_call_defaults();
    o.attention_mask = model_tokens(s, true);
    return tern_bert_forward(model, s, model_tokens(s, false), &o);
}

static tern_tensor *call_language_model(tern_module *model, tern_scope *s)
{
    return tern_language_model_loss(model, s, model_tokens(s, false), NULL, NULL);
}

/* Two steps with microbatches; returns the device's bytes. */
static size_t model_run(const model_case *of, bool is_checkpointed, values *out)
{
    tern_error err = {0};
    *out = (values){0};
    tern_rng *rng = tern_rng_new(2, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, 1, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_module *model = of->make(rng, &err);
    assert_ok(err);
    assert_int_equal(tern_module_checkpoint_set(model, of->kind, is_checkpointed), LAYERS);
    assert_int_equal(tern_module_checkpoint_set(model, "no kind", true), 0);
    for (int step = 0; step < 2; step++) {
        tern_tensor *y = of->call(model, s);
        values_backward(out, s, tern_sum(s, tern_mul(s, y, y)));
        assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    }
    values_add_gradients(out, model);
    size_t bytes = tern__device_bytes(device);
    tern_module_free(model);
    tern_scope_free(s);
    tern_device_close(device);
    tern_rng_free(rng);
    return bytes;
}

static void layers_of_models(void **state)
{
    (void)state;
    static const model_case cases[] = {
        {"transformer_encoder_layer", new_encoder, call_encoder},
        {"transformer_encoder_layer", new_encoder, call_encoder_causal},
        {"transformer_decoder_layer", new_decoder, call_decoder},
        {"bert_layer", new_bert, call_bert},
        {"gpt2_block", new_gpt2, call_language_model},
        {"llama_layer", new_llama, call_language_model},
    };
    static values plain, other;
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        size_t whole = model_run(&cases[i], false, &plain), less = model_run(&cases[i], true, &other);
        print_message("%s: %zu of %zu bytes\n", cases[i].kind, less, whole);
        assert_true(plain.leaves > 0 && plain.completed == 2 * plain.leaves);
        assert_int_equal(other.completed, plain.completed);
        assert_int_equal(other.count, plain.count);
        assert_memory_equal(other.value, plain.value, (size_t)plain.count * sizeof(float));
        assert_true((double)less < 0.6 * (double)whole);
    }
    assert_int_equal(tern_module_checkpoint_set(NULL, "gpt2_block", true), 0);
}

/* The memory of a step of GPT-2 with checkpointed blocks on a context of `tokens`. */
static size_t bytes_of_context(int64_t tokens)
{
    tern_error err = {0};
    tern_gpt2_opts o = tern_gpt2_defaults();
    static const int64_t ids[4096];
    o.vocab_size = VOCABULARY;
    o.n_positions = tokens;
    o.n_embd = WIDTH;
    o.n_layer = 2;
    o.n_head = 1;
    o.attn_pdrop = 0;
    tern_rng *rng = tern_rng_new(2, &err);
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_threads_set(device, 1, &err);
    tern_scope *s = tern_scope_new(device, NULL, &err);
    tern_module *model = tern_gpt2_new(&o, rng, &err);
    assert_int_equal(tern_module_checkpoint_set(model, "gpt2_block", true), 2);
    tern_tensor *x = tern_tensor_from(s, ids, TERN_I64, 2, (int64_t[]){1, tokens});
    assert_int_equal(tern_backward(s, tern_language_model_loss(model, s, x, NULL, NULL)), TERN_OK);
    assert_int_equal(tern_scope_end(s, &err), TERN_OK);
    size_t bytes = tern__device_bytes(device);
    tern_module_free(model);
    tern_scope_free(s);
    tern_device_close(device);
    tern_rng_free(rng);
    assert_ok(err);
    return bytes;
}

/* Attention's scores, of which there are 16 times as many, are never in memory. */
static void memory_is_linear_in_the_context(void **state)
{
    (void)state;
    size_t few = bytes_of_context(1024), many = bytes_of_context(4096);
    print_message("%zu bytes for 1024 tokens, %zu for 4096\n", few, many);
    assert_true(many < 5 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_less_memory),
        cmocka_unit_test(also_under_autocast),
        cmocka_unit_test(gradients_pass_through),
        cmocka_unit_test(a_kept_cast_hides_no_use),
        cmocka_unit_test(what_comes_from_elsewhere_is_refused),
        cmocka_unit_test(the_second_pass_uses_what_the_first_did),
        cmocka_unit_test(a_part_may_be_without_gradients),
        cmocka_unit_test(a_parameter_goes_in),
        cmocka_unit_test(the_module_goes_back_inside),
        cmocka_unit_test(several_inputs_and_results),
        cmocka_unit_test(calls_that_are_refused),
        cmocka_unit_test(layers_of_models),
        cmocka_unit_test(memory_is_linear_in_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
