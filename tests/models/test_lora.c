/* test_lora.c - linears with adapters: the ways to call them, dropout, the products that a step makes, no
 * allocation once warm, and allocations that fail at every point. tests/torch compares values of models. */
#include "ledger.h"
#include "models/lora.h"
#include "ops/world.h"

#include <ftw.h>
#include <math.h>
#include <string.h>

enum { ROWS = 5, IN = 7, OUT = 6, RANK = 3 };

/* ---- a linear ---- */

static tern_module *adapted_linear(world *w, bool is_turned, bool bias, double dropout)
{
    const char *const targets[] = {"all-linear"};
    tern_lora_opts opts = tern_lora_defaults();
    opts.r = RANK;
    opts.lora_alpha = 4.5;
    opts.lora_dropout = dropout;
    opts.target_modules = targets;
    opts.target_count = 1;
    tern_module *net = tern_sequential_new(&w->err);
    tern_sequential_add(net,
                        is_turned ? tern__linear_new_turned(IN, OUT, "test", &w->err)
                                  : tern__linear_new_zeros(IN, OUT, bias, "test", &w->err),
                        &w->err);
    tern_sequential_add(net, tern_relu_new(&w->err), &w->err);
    assert_int_equal(tern_lora_add(net, &opts, NULL, &w->err), TERN_OK);
    for (int i = 0; i < tern_state_count(net); i++)
        tern_init_normal(tern_state_get(net, i).tensor, 0, 1, w->rng, &w->err);
    assert_ok(w->err);
    return net;
}

static double at(const tern_module *net, const char *name, int row, int column)
{
    const tern_tensor *tensor = tern_state_find(net, name);
    const tern__view *view = tensor ? &tensor->view : NULL;
    if (!view) return 0;
    return (
        (const float *)view->data)[row * view->stride[0] + (view->ndim > 1 ? column * view->stride[1] : 0)];
}

/* The definition, in f64. */
static double expected(const tern_module *net, bool is_turned, const float *x, int out)
{
    double y = at(net, "0.bias", out, 0);
    for (int i = 0; i < IN; i++)
        y += x[i] * (is_turned ? at(net, "0.weight", i, out) : at(net, "0.weight", out, i));
    for (int k = 0; k < RANK; k++)
        for (int i = 0; i < IN; i++)
            y += 1.5 * at(net, "0.lora_B.weight", out, k) * at(net, "0.lora_A.weight", k, i) * x[i];
    return y;
}

static void expect_values(world *w, const tern_module *net, bool is_turned, const float *x, int rows,
                          bool relu, tern_tensor *y)
{
    float got[ROWS * OUT];
    assert_non_null(y);
    assert_int_equal(tern_tensor_read(y, got, sizeof(float) * (size_t)(rows * OUT), &w->err), TERN_OK);
    for (int i = 0; i < rows * OUT; i++) {
        double want = expected(net, is_turned, x + i / OUT * IN, i % OUT);
        assert_true(fabs(got[i] - (relu ? fmax(want, 0) : want)) <= 1e-5 * (1 + fabs(want)));
    }
}

static void called(tern__observer *self, const tern_module *module, const tern_tensor *y)
{
    (void)self, (void)module, (void)y;
}

/* Alone, with a ReLU, in a sequential, seen by an observer; matrices, a vector and three dimensions. */
static void all_calls_have_both_products(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        world w = open_world();
        bool is_turned = kind == 2;
        tern_module *net = adapted_linear(&w, is_turned, kind == 1, 0), *linear = net->tree->children->module;
        tern__observer observer = {called};
        float x[ROWS * IN];
        tern_rng_normal(w.rng, x, ROWS * IN, 0, 1);
        for (int seen = 0; seen < 2; seen++) {
            tern_tensor *matrix = tern_tensor_from(w.scope, x, TERN_F32, 2, (int64_t[]){ROWS, IN}),
                        *batch = tern_tensor_from(w.scope, x, TERN_F32, 3, (int64_t[]){ROWS, 1, IN}),
                        *vector = tern_tensor_from(w.scope, x, TERN_F32, 1, (int64_t[]){IN});
            w.scope->observer = seen ? &observer : NULL;
            expect_values(&w, net, is_turned, x, ROWS, false, tern_forward(linear, w.scope, matrix));
            expect_values(&w, net, is_turned, x, ROWS, false, tern_forward(linear, w.scope, batch));
            expect_values(&w, net, is_turned, x, ROWS, true, tern_forward(net, w.scope, matrix));
            expect_values(&w, net, is_turned, x, ROWS, true,
                          tern_linear_act_forward(linear, w.scope, matrix, true));
            tern_tensor *y = tern_forward(linear, w.scope, vector);
            assert_int_equal(tern_tensor_ndim(y), 1);
            expect_values(&w, net, is_turned, x, 1, false, y);
            assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        }
        tern_module_free(net);
        close_world(&w);
    }
}

/* With A and B of ones in the diagonal, the result tells what is left of each element of x. */
static void dropout_is_of_the_input_of_A_in_training(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *net = adapted_linear(&w, false, false, 0.4), *linear = net->tree->children->module;
    float x[IN], y[2][OUT], one[RANK * IN] = {0}, other[OUT * RANK] = {0};
    int dropped = 0, kept = 0, same = 0;
    for (int i = 0; i < RANK; i++) one[i * IN + i] = other[i * RANK + i] = 1;
    tern_tensor_write(tern_state_find(net, "0.lora_A.weight"), one, sizeof(one), &w.err);
    tern_tensor_write(tern_state_find(net, "0.lora_B.weight"), other, sizeof(other), &w.err);
    tern_init_constant(tern_state_find(net, "0.weight"), 0, &w.err);
    for (int step = 0; step < 200; step++) {
        tern_rng_normal(w.rng, x, IN, 3, 0.1);
        if (step == 150) tern_eval(net);
        for (int i = 0; i < 2; i++) {
            tern_tensor *in = tern_tensor_from(w.scope, x, TERN_F32, 1, (int64_t[]){IN});
            tern_tensor_read(tern_forward(linear, w.scope, in), y[i], sizeof(y[i]), &w.err);
        }
        for (int i = 0; i < RANK; i++) {
            double scale = step < 150 ? 1.5 / 0.6 : 1.5, whole = scale * x[i];
            bool is_dropped = y[0][i] == 0;
            assert_true(is_dropped || fabs(y[0][i] - whole) < 1e-5);
            dropped += step < 150 && is_dropped;
            kept += step >= 150 && !is_dropped;
            same += step < 150 && y[0][i] == y[1][i];
        }
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    }
    assert_in_range(dropped, 130, 230); /* 180 of 450 */
    assert_in_range(same, 190, 280);    /* 234 of 450 */
    assert_int_equal(kept, 50 * RANK);
    assert_ok(w.err);
    tern_module_free(net);
    close_world(&w);
}

/* ---- the products of a step ---- */

typedef struct tally {
    tern__kernel_observer kernels; /* first: the observer is cast to the tally */
    int products, others;
    const void *weight_grad; /* that nobody may write */
} tally;

static void ran(tern__kernel_observer *observer, const tern__call *call)
{
    tally *t = (tally *)observer;
    bool is_product = call->kernel == TERN__MATMUL || call->kernel == TERN__LINEAR_GRAD;
    t->products += is_product;
    t->others += !is_product;
    for (int i = 0; i < TERN__KERNEL_OUTS; i++)
        if (call->out[i]) assert_ptr_not_equal(call->out[i]->data, t->weight_grad);
}

/* W x, A x and B A x; backward the gradients of B, of A x and of A, and with a gradient of x its two parts.
 * Beside them there is only what scales A x, and nothing as large as the result. */
static void a_frozen_weight_costs_no_product(void **state)
{
    (void)state;
    for (int wants = 0; wants < 2; wants++) {
        world w = open_world();
        tern_module *net = adapted_linear(&w, false, true, 0), *linear = net->tree->children->module;
        assert_non_null(tern__module_seal(net, &w.err));
        tally t = {.kernels = {.ran = ran},
                   .weight_grad = tern_state_find(net, "0.weight")->leaf->grad->view.data};
        tern_tensor *x = tern_full(w.scope, TERN_F32, 2, (int64_t[]){ROWS, IN}, 0.5);
        if (wants) tern_requires_grad_set(x, true, &w.err);
        w.device->observer = &t.kernels;
        tern_tensor *y = tern_forward(linear, w.scope, x);
        assert_int_equal(t.products, 3);
        assert_int_equal(t.others, 1);
        w.device->observer = NULL;
        tern_tensor *loss = tern_sum(w.scope, y);
        t.products = 0;
        w.device->observer = &t.kernels;
        assert_int_equal(tern_backward(w.scope, loss), TERN_OK);
        w.device->observer = NULL;
        assert_int_equal(t.products, wants ? 5 : 3);
        assert_null(tern_grad_get(tern_state_find(net, "0.weight")));
        assert_null(tern_grad_get(tern_state_find(net, "0.bias")));
        assert_non_null(tern_grad_get(tern_state_find(net, "0.lora_A.weight")));
        assert_true(!wants == !tern_grad_get(x));
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        tern_module_free(net);
        close_world(&w);
    }
}

/* ---- models ---- */

static tern_module *bare_gpt2(tern_rng *rng, tern_error *err)
{
    tern_gpt2_opts opts = tern_gpt2_defaults();
    opts.vocab_size = 11;
    opts.n_positions = 5;
    opts.n_embd = 8;
    opts.n_layer = 2;
    opts.n_head = 2;
    return tern_gpt2_new(&opts, rng, err);
}

static tern_module *adapted_gpt2(world *w)
{
    const char *const targets[] = {"c_attn", "mlp.c_proj", "lm_head"};
    tern_lora_opts opts = tern_lora_defaults();
    opts.lora_dropout = 0.1;
    opts.target_modules = targets;
    opts.target_count = 3;
    tern_module *model = bare_gpt2(w->rng, &w->err);
    assert_int_equal(tern_lora_add(model, &opts, w->rng, &w->err), TERN_OK);
    return model;
}

static int run_step(world *w, tern_module *model)
{
    tern_tensor *tokens = tern_tensor_from(w->scope, NULL, TERN_I64, 2, (int64_t[]){2, 5});
    return backward_and_end(w, tern_language_model_loss(model, w->scope, tokens, NULL, NULL));
}

static whole_step gpt2 = {adapted_gpt2, run_step, 20};

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

/* Two replicas give the gradients of one call with all rows. */
static void replicas_share_adapters(void **state)
{
    (void)state;
    float x[ROWS * IN], grads[2][2][RANK * IN];
    static const char *const names[] = {"0.lora_A.weight", "0.lora_B.weight"};
    for (int replicas = 1; replicas <= 2; replicas++) {
        world w = open_world();
        tern_module *net = adapted_linear(&w, false, true, 0);
        tern_device *cores[] = {tern_device_open("cpu:0", &w.err), tern_device_open("cpu:0", &w.err)};
        tern_data_parallel_opts opts = tern_data_parallel_defaults();
        opts.devices = cores;
        opts.device_count = replicas;
        tern_data_parallel *parallel = tern_data_parallel_new(net, &opts, &w.err);
        assert_ok(w.err);
        for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i % 11) / 5 - 1;
        tern_tensor *in = tern_tensor_from(w.scope, x, TERN_F32, 2, (int64_t[]){ROWS, IN});
        tern_tensor *y = tern_data_parallel_forward(parallel, w.scope, in);
        tern_backward(w.scope, tern_sum(w.scope, tern_mul(w.scope, y, y)));
        for (int m = 0; m < 2; m++) {
            const tern_tensor *grad = tern_grad_get(tern_state_find(net, names[m]));
            size_t bytes = sizeof(float) * (size_t)tern_tensor_count(grad);
            assert_int_equal(tern_tensor_read(grad, grads[replicas - 1][m], bytes, &w.err), TERN_OK);
        }
        assert_null(tern_grad_get(tern_state_find(net, "0.weight")));
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        tern_data_parallel_free(parallel);
        tern_module_free(net);
        for (int i = 0; i < 2; i++) tern_device_close(cores[i]);
        close_world(&w);
    }
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < RANK * (m ? OUT : IN); i++)
            assert_true(fabsf(grads[0][m][i] - grads[1][m][i]) <= 1e-4f * (1 + fabsf(grads[0][m][i])));
}

/* The weights and adapters are cast, only the latter have masters, and a folder has them in f32. */
static void opt_level_O2_trains_adapters(void **state)
{
    (void)state;
    char folder[] = "/tmp/tern-lora-XXXXXX";
    assert_non_null(mkdtemp(folder));
    world w = open_world();
    tern_module *model = adapted_gpt2(&w), *other = bare_gpt2(NULL, &w.err);
    tern_amp_opts opts = tern_amp_defaults(TERN_O2);
    int64_t elements = 0;
    tern_amp *amp = tern_amp_new(model, &opts, &w.err);
    tern_optim *optim = tern_adamw_new(model, NULL, &w.err);
    assert_ok(w.err);
    for (int i = 0; i < tern_state_count(model); i++) {
        const tern_tensor *tensor = tern_state_get(model, i).tensor;
        assert_int_equal(tern_tensor_dtype(tensor), TERN_BF16);
        if (tensor->requires_grad)
            elements += ((tern_tensor_count(tensor) + 31) / 32) * 32; /* a cache line */
    }
    for (int step = 0; step < 3; step++) {
        tern_tensor *tokens = tern_tensor_from(w.scope, NULL, TERN_I64, 2, (int64_t[]){2, 5});
        tern_amp_backward(amp, w.scope, tern_language_model_loss(model, w.scope, tokens, NULL, NULL), NULL);
        tern_optim_step(optim, w.scope);
        assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
    }
    assert_in_range(tern_optim_state_bytes(optim), 1, 3 * sizeof(float) * (size_t)elements);
    assert_int_equal(tern_lora_save(model, folder, NULL, &w.err), TERN_OK);
    assert_int_equal(tern_lora_open(other, folder, false, &w.err), TERN_OK);
    for (int i = 0; i < tern_state_count(other); i++) {
        const char *name = tern_state_get(other, i).name;
        const tern_tensor *got = tern_state_get(other, i).tensor, *want = tern_state_find(model, name);
        if (!tern__lora_owns(got)) continue;
        assert_int_equal(tern_tensor_dtype(got), TERN_F32);
        for (int64_t e = 0; e < tern_tensor_count(got); e++)
            assert_true(tern__view_get(&got->view, e) == tern__view_get(&want->view, e));
    }
    tern_optim_free(optim);
    tern_amp_free(amp);
    tern_module_free(other);
    tern_module_free(model);
    close_world(&w);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* A state dict of the model and one of the optimizer, taken after three steps. */
static void a_run_is_resumed(void **state)
{
    (void)state;
    world w = open_world();
    tern_module *nets[2] = {0};
    tern_optim *optims[2];
    tern_object *model = NULL, *optim = NULL;
    for (int i = 0; i < 2; i++) {
        nets[i] = adapted_gpt2(&w);
        tern_eval(nets[i]);
        optims[i] = tern_adamw_new(nets[i], NULL, &w.err);
    }
    for (int step = 0; step < 6; step++) {
        if (step == 3) {
            model = tern_module_state_dict(nets[0], &w.err);
            optim = tern_optim_state_dict(optims[0], -1, &w.err);
            assert_int_equal(tern_module_state_dict_load(nets[1], model, NULL, NULL, &w.err), TERN_OK);
            assert_int_equal(tern_optim_state_dict_load(optims[1], optim, &w.err), TERN_OK);
        }
        for (int i = 0; i < (step < 3 ? 1 : 2); i++) {
            int64_t tokens[10];
            for (int k = 0; k < 10; k++) tokens[k] = (step * 7 + k * k) % 11;
            tern_tensor *x = tern_tensor_from(w.scope, tokens, TERN_I64, 2, (int64_t[]){2, 5});
            tern_backward(w.scope, tern_language_model_loss(nets[i], w.scope, x, NULL, NULL));
            tern_optim_step(optims[i], w.scope);
            assert_int_equal(tern_scope_end(w.scope, &w.err), TERN_OK);
        }
    }
    for (int i = 0; i < tern_state_count(nets[0]); i++) {
        const tern__view *one = &tern_state_get(nets[0], i).tensor->view,
                         *two = &tern_state_get(nets[1], i).tensor->view;
        assert_memory_equal(one->data, two->data, tern__view_bytes(one));
    }
    tern_object_free(model);
    tern_object_free(optim);
    for (int i = 0; i < 2; i++) {
        tern_optim_free(optims[i]);
        tern_module_free(nets[i]);
    }
    close_world(&w);
}

/* Adds adapters, saves them, opens them beside another model, and merges them. Returns the first error's
 * code. */
static int save_open_and_merge(const char *folder)
{
    tern_error err = {0};
    tern_rng *rng = tern_rng_new(1, &err);
    tern_module *one = rng ? bare_gpt2(rng, &err) : NULL, *other = one ? bare_gpt2(NULL, &err) : NULL;
    if (other && !tern_lora_add(one, NULL, rng, &err) && !tern_lora_save(one, folder, "gpt2", &err) &&
        !tern_lora_open(other, folder, true, &err))
        tern_lora_merge(other, &err);
    tern_module_free(other);
    tern_module_free(one);
    tern_rng_free(rng);
    return err.code;
}

static void files_and_merging_tell_out_of_memory(void **state)
{
    (void)state;
    char folder[] = "/tmp/tern-lora-XXXXXX";
    assert_non_null(mkdtemp(folder));
    int code = TERN_E_MEMORY, failures = 0;
    for (int at = 1; code == TERN_E_MEMORY; at += 5, failures++) {
        ledger books = {.refuse_at = at, .refuse_all = true};
        ledger_open(&books);
        code = save_open_and_merge(folder);
        ledger_close(&books);
    }
    assert_int_equal(code, TERN_OK);
    assert_true(failures > 50);
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_calls_have_both_products),
        cmocka_unit_test(dropout_is_of_the_input_of_A_in_training),
        cmocka_unit_test(a_frozen_weight_costs_no_product),
        cmocka_unit_test_prestate(a_whole_step_allocates_nothing_once_warm, &gpt2),
        cmocka_unit_test_prestate(a_whole_step_tells_out_of_memory, &gpt2),
        cmocka_unit_test(replicas_share_adapters),
        cmocka_unit_test(opt_level_O2_trains_adapters),
        cmocka_unit_test(a_run_is_resumed),
        cmocka_unit_test(files_and_merging_tell_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
