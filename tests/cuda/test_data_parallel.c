/* test_data_parallel.c - replicas of a model on two devices with memory of their own: losses and scores
 * match those of one device, and data that a replica reads from another device are there before any
 * replica begins, so that they run concurrently. */
#include "nets.h"

#include "device/backend.h"
#include "nn/nn.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { STEPS = 3, ROWS = 7 };

static tern_module *make_deep_mlp(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){24, 40, 40, 40, 40, 40, 40, 40, 5}, 9, rng, err);
}

/* A model whose second product takes a view of its weight. */
typedef struct turned {
    tern_module base;
    tern_tensor *first, *second;
} turned;

static tern_tensor *turned_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    turned *self = (turned *)module;
    tern_tensor *inner = tern_tanh(s, tern_linear(s, x, self->first, NULL));
    return tern_matmul(s, inner, tern_transpose(s, self->second, 0, 1));
}

static tern_module *make_turned(tern_rng *rng, tern_error *err)
{
    static turned net;
    tern_module_init(&net.base, "turned", turned_forward, err);
    net.first = tern_parameter_add(&net.base, "first", TERN_F32, 2, (int64_t[]){16, 24}, err);
    net.second = tern_parameter_add(&net.base, "second", TERN_F32, 2, (int64_t[]){5, 16}, err);
    tern_init_uniform(net.first, -0.2, 0.2, rng, err);
    tern_init_uniform(net.second, -0.3, 0.3, rng, err);
    tern_module *holder = tern_sequential_new(err);
    tern_sequential_add(holder, &net.base, err);
    return holder;
}

/* ---- copies between devices ---- */

static tern__device_backend counting;
static const tern__device_backend *behind;
static atomic_int copies, copies_inside; /* inside: during a replica's forward */
static atomic_bool is_inside;            /* replicas on cores have threads of their own */

static int count_copy(tern_device *device, void *to, tern_device *other, const void *from, size_t bytes,
                      tern_error *err)
{
    copies++;
    copies_inside += is_inside;
    return behind->copy_from(device, to, other, from, bytes, err);
}

static tern_value forward_inside(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    is_inside = true;
    tern_value y = {.tensor = tern_forward(module, scope, input.tensor)};
    is_inside = false;
    return y;
}

/* ---- training ---- */

typedef struct trained {
    double loss[STEPS];
    float scores[ROWS * 5]; /* of the batch by the trained model, in evaluation mode */
    int copies;             /* in the last step */
} trained;

typedef struct setting {
    tern_device *devices[2];
    tern_module *net;
    tern_data_parallel *parallel; /* NULL: no replicas */
    tern_scope *scope;
} setting;

static tern_tensor *scores_of(setting *s, const batch *b)
{
    tern_tensor *x = tern_tensor_from(s->scope, b->x, TERN_F32, b->ndim, b->shape);
    if (!s->parallel) return tern_forward(s->net, s->scope, x);
    const tern_value input = {.tensor = x};
    return tern_data_parallel_apply(s->parallel, s->scope, forward_inside, input, NULL).tensor;
}

static double step(setting *s, tern_optim *optim, const batch *b)
{
    tern_error err = {0};
    copies = 0;
    tern_tensor *loss = tern_cross_entropy(s->scope, scores_of(s, b), labels_of(s->scope, b, 0, 1), NULL);
    tern_backward(s->scope, loss);
    tern_optim_step(optim, s->scope);
    double value = loss ? tern_item(loss) : NAN;
    tern_scope_end(s->scope, &err);
    assert_ok(err);
    return value;
}

static void evaluate(setting *s, const batch *b, float *scores)
{
    tern_error err = {0};
    tern_eval(s->net);
    tern_grad_enabled_set(s->scope, false);
    tern_tensor *y = scores_of(s, b);
    tern_tensor_read(y, scores, ROWS * 5 * sizeof(*scores), &err);
    tern_scope_end(s->scope, &err);
    assert_ok(err);
}

static void count_copies_of(tern_device *device)
{
    if (!device->backend) return;
    behind = device->backend;
    counting = *behind;
    counting.copy_from = count_copy;
    device->backend = &counting;
}

/* Replicas on the devices of these names, or no replicas on the CPU. */
static setting setting_open(make_fn make, const char *first, const char *second)
{
    tern_error err = {0};
    setting s = {.devices = {tern_device_open(first ? first : "cpu", &err)}};
    if (second) s.devices[1] = tern_device_open(second, &err);
    assert_ok(err);
    int count = (first != NULL) + (second != NULL);
    for (int i = 0; i < count; i++) count_copies_of(s.devices[i]);
    tern_data_parallel_opts opts = tern_data_parallel_defaults();
    opts.devices = s.devices;
    opts.device_count = count;
    tern_rng *rng = tern_rng_new(3, &err);
    s.net = make(rng, &err);
    tern_module_to(s.net, s.devices[0], &err);
    if (count) s.parallel = tern_data_parallel_new(s.net, &opts, &err);
    s.scope = tern_scope_new(s.devices[0], NULL, &err);
    assert_ok(err);
    tern_rng_free(rng);
    return s;
}

static void setting_close(setting *s)
{
    tern_scope_free(s->scope);
    tern_data_parallel_free(s->parallel);
    tern_module_free(s->net);
    for (int i = 0; i < 2 && s->devices[i]; i++) {
        if (s->devices[i]->backend) s->devices[i]->backend = behind;
        tern_device_close(s->devices[i]);
    }
}

static trained train(make_fn make, const batch *b, const char *first, const char *second)
{
    tern_error err = {0};
    trained t;
    setting s = setting_open(make, first, second);
    tern_optim *optim = make_sgd(s.net, &err);
    assert_ok(err);
    for (int i = 0; i < STEPS; i++) t.loss[i] = step(&s, optim, b);
    t.copies = copies;
    evaluate(&s, b, t.scores);
    tern_optim_free(optim);
    setting_close(&s);
    return t;
}

/* ---- the tests ---- */

static void expect_the_cpus_values(make_fn make, const batch *b, const char *first, const char *second)
{
    const trained alone = train(make, b, NULL, NULL), t = train(make, b, first, second);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(t.loss[i] - alone.loss[i]) <= 1e-5);
    for (int i = 0; i < ROWS * 5; i++) assert_true(fabsf(t.scores[i] - alone.scores[i]) <= 1e-4f);
}

static void replicas_train(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 2, (int64_t[]){ROWS, 24});
    expect_the_cpus_values(make_mlp, &b, "cuda:0", NULL);
    expect_the_cpus_values(make_mlp, &b, "cuda:0", other_gpu());
    expect_the_cpus_values(make_deep_mlp, &b, "cuda:0", other_gpu());
}

static void views_of_parameters_are_where_the_replica_is(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 2, (int64_t[]){ROWS, 24});
    expect_the_cpus_values(make_turned, &b, "cuda:0", other_gpu());
    expect_the_cpus_values(make_turned, &b, "cpu:0", "cuda:0");
}

/* Only one of the two devices has memory of its own. */
static void cores_and_a_gpu_train(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 2, (int64_t[]){ROWS, 24});
    expect_the_cpus_values(make_mlp, &b, "cpu:0", "cuda:0");
    expect_the_cpus_values(make_mlp, &b, "cuda:0", "cpu:0");
}

/* Batch norm uses each replica's own rows, so only a single replica matches no replicas. */
static void buffers_come_along(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 4, (int64_t[]){ROWS, 3, 12, 12});
    expect_the_cpus_values(make_resnet, &b, "cuda:0", NULL);
    const trained t = train(make_resnet, &b, "cuda:0", other_gpu());
    for (int i = 0; i < ROWS * 5; i++) assert_true(isfinite(t.scores[i]));
}

/* Copies: the model, an input, a result, its gradient and the model's gradients, however deep the model
 * is. */
static void replicas_wait_for_no_other(void **state)
{
    (void)state;
    static batch b;
    draw_batch(&b, 5, 2, (int64_t[]){ROWS, 24});
    copies_inside = 0;
    const trained flat = train(make_mlp, &b, "cuda:0", other_gpu());
    const trained deep = train(make_deep_mlp, &b, "cuda:0", other_gpu());
    assert_int_equal(copies_inside, 0);
    assert_true(flat.copies > 0 && flat.copies <= 8);
    assert_int_equal(deep.copies, flat.copies);
}

static tern_value loss_inside(tern_module *module, tern_scope *scope, tern_value input, void *ctx)
{
    (void)ctx;
    tern_tensor *y = tern_forward(module, scope, input.items[0].tensor);
    return (tern_value){.tensor = tern_cross_entropy(scope, y, input.items[1].tensor, NULL)};
}

/* Reads the losses; everything before them has been computed then. */
static int end_of_step(setting *s, const batch *b, bool trains, tern_error *err)
{
    float loss[2];
    tern_error unread = {0};
    tern_value *both = tern_value_list(s->scope, 2);
    tern_grad_enabled_set(s->scope, trains);
    both[0].tensor = tern_tensor_from(s->scope, b->x, TERN_F32, b->ndim, b->shape);
    both[1].tensor = labels_of(s->scope, b, 0, 1);
    const tern_value input = {.items = both, .count = 2};
    tern_tensor *losses = tern_data_parallel_apply(s->parallel, s->scope, loss_inside, input, NULL).tensor;
    if (trains) tern_backward(s->scope, tern_mean(s->scope, losses));
    tern_tensor_read(losses, loss, sizeof(loss), &unread);
    return tern_scope_end(s->scope, err);
}

/* A GPU reports an error at the end of the step, and the next step works. */
static void a_label_names_its_replica(void **state)
{
    (void)state;
    static batch b;
    char text[64];
    draw_batch(&b, 5, 2, (int64_t[]){ROWS, 24});
    setting s = setting_open(make_mlp, "cuda:0", other_gpu());
    snprintf(text, sizeof(text), "replica 1 on %s: ", other_gpu());
    for (int trains = 0; trains < 2; trains++) {
        tern_error wrong = {0}, well = {0};
        b.y[ROWS - 1] = 99;
        assert_int_equal(end_of_step(&s, &b, trains, &wrong), TERN_E_RANGE);
        if (!strstr(wrong.text, text)) fail_msg("\"%s\" has no \"%s\"", wrong.text, text);
        b.y[ROWS - 1] = 0;
        end_of_step(&s, &b, trains, &well);
        assert_ok(well);
    }
    setting_close(&s);
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_train),
        cmocka_unit_test(views_of_parameters_are_where_the_replica_is),
        cmocka_unit_test(cores_and_a_gpu_train),
        cmocka_unit_test(buffers_come_along),
        cmocka_unit_test(replicas_wait_for_no_other),
        cmocka_unit_test(a_label_names_its_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
