/* test_any_function.c - a ddp averages the gradients of any backward: functions of the model that its
 * forward does not call, parts called one by one, branches that differ between ranks, and modules used
 * twice. A rank that only evaluates blocks no other. All results equal those of one process on all samples.
 */
#include "parallel/ddp_fixture.h"

#define SAMPLES 12
#define STEPS   12

/* Its forward is classify(encode(x)); the other functions are the test's. */
typedef struct model {
    tern_module base;
    tern_module *encoder, *inner, *classifier, *left, *right;
} model;

static tern_tensor *encode(model *m, tern_scope *s, tern_tensor *x)
{
    return tern_tanh(s, tern_forward(m->encoder, s, x));
}

static tern_tensor *classify(model *m, tern_scope *s, tern_tensor *code)
{
    return tern_forward(m->classifier, s, code);
}

static tern_tensor *model_forward(tern_module *module, tern_scope *s, tern_tensor *x)
{
    model *m = (model *)module;
    return classify(m, s, encode(m, s, x));
}

static tern_module *new_model(tern_rng *rng, tern_error *err)
{
    model *m = tern__module_new(sizeof(*m), "model", model_forward, err);
    m->encoder = tern_module_add(&m->base, "encoder", tern_linear_new(FEATURES, 8, NULL, rng, err), err);
    m->inner = tern_module_add(&m->base, "inner", tern_linear_new(8, 8, NULL, rng, err), err);
    m->classifier = tern_module_add(&m->base, "classifier", tern_linear_new(8, CLASSES, NULL, rng, err), err);
    m->left = tern_module_add(&m->base, "left", tern_linear_new(8, CLASSES, NULL, rng, err), err);
    m->right = tern_module_add(&m->base, "right", tern_linear_new(8, CLASSES, NULL, rng, err), err);
    return &m->base;
}

/* ---- the functions: each returns the mean loss of rows [first, first + count) ---- */

typedef tern_tensor *(*way_fn)(fixture *f, int step, int first, int count);

static model *model_of(fixture *f)
{
    return (model *)f->net;
}

/* Calls encode only; the classifier is not used. */
static tern_tensor *second_function(fixture *f, int step, int first, int count)
{
    tern_tensor *code = encode(model_of(f), f->s, fixture_rows(f, step, first, count));
    return tern_mean(f->s, tern_mul(f->s, code, code));
}

/* Calls two functions of a model whose forward is never called. */
static tern_tensor *two_functions(fixture *f, int step, int first, int count)
{
    tern_tensor *code = encode(model_of(f), f->s, fixture_rows(f, step, first, count));
    tern_tensor *y = classify(model_of(f), f->s, code);
    return tern_add(f->s, tern_cross_entropy(f->s, y, fixture_labels(f, first, count), NULL),
                    second_function(f, step, first, count));
}

static tern_tensor *in_parts(fixture *f, int step, int first, int count)
{
    model *m = model_of(f);
    tern_tensor *code = tern_relu(f->s, tern_forward(m->encoder, f->s, fixture_rows(f, step, first, count)));
    tern_tensor *deep = tern_add(f->s, code, tern_forward(m->inner, f->s, code));
    tern_tensor *y = tern_forward(m->classifier, f->s, deep);
    return tern_cross_entropy(f->s, y, fixture_labels(f, first, count), NULL);
}

static tern_tensor *used_twice(fixture *f, int step, int first, int count)
{
    model *m = model_of(f);
    tern_tensor *code = encode(m, f->s, fixture_rows(f, step, first, count));
    for (int i = 0; i < 2; i++) code = tern_tanh(f->s, tern_forward(m->inner, f->s, code));
    return tern_cross_entropy(f->s, classify(m, f->s, code), fixture_labels(f, first, count), NULL);
}

/* Sample by sample: the first feature chooses the head, and in some steps no head is used at all. */
static tern_tensor *by_input(fixture *f, int step, int first, int count)
{
    model *m = model_of(f);
    tern_tensor *loss = NULL, *n = tern_full(f->s, TERN_F32, 0, NULL, count);
    for (int i = first; i < first + count; i++) {
        tern_tensor *x = fixture_rows(f, step, i, 1);
        tern_tensor *code = encode(m, f->s, x);
        bool is_left = tern__view_get(&x->view, 0) > 0;
        tern_tensor *y =
            step % 4 == 3 ? classify(m, f->s, code) : tern_forward(is_left ? m->left : m->right, f->s, code);
        tern_tensor *own = tern_div(f->s, tern_cross_entropy(f->s, y, fixture_labels(f, i, 1), NULL), n);
        loss = loss ? tern_add(f->s, loss, own) : own;
    }
    return loss;
}

static tern_tensor *by_forward(fixture *f, int step, int first, int count)
{
    tern_tensor *y = tern_forward(f->net, f->s, fixture_rows(f, step, first, count));
    return tern_cross_entropy(f->s, y, fixture_labels(f, first, count), NULL);
}

typedef struct way {
    way_fn loss;
    bool evaluates; /* the last rank, between its steps and within them */
} way;

/* ---- several ranks compared with one process ---- */

/* Evaluates in its own scope without gradients, and in the step's scope. */
static void evaluate(fixture *f, tern_error *err)
{
    tern_scope *own = tern_scope_new(f->dev, NULL, err), *step = f->s;
    f->s = own;
    tern_grad_enabled_set(own, false);
    tern_eval(f->net);
    by_forward(f, 99, 0, SAMPLES);
    tern_scope_end(own, err);
    tern_scope_free(own);
    f->s = step;
    bool before = tern_grad_enabled_set(step, false);
    by_forward(f, 98, 0, 5);
    tern_grad_enabled_set(step, before);
    tern_train(f->net);
}

static void train(fixture *f, const way *how, int step, int first, int count, tern_error *err)
{
    if (how->evaluates && f->rank == f->world_size - 1) evaluate(f, err);
    tern_backward(f->s, how->loss(f, step, first, count));
    tern_optim_step(f->opt, f->s);
    tern_scope_end(f->s, err);
}

static int way_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const way *how = arg;
    tern_error err = {0};
    fixture f, alone;
    tern_rng *rng = tern_rng_new((uint64_t)rank + 7, &err);
    fixture_open(&f, boot, new_model(rng, &err), NULL, &err);
    fixture_open_alone_with(&alone, new_model, &err);
    tern_device_threads_set(f.dev, 1, &err); /* more threads would only spin on a busy machine */
    tern_device_threads_set(alone.dev, 1, &err);
    RANK_CHECK_OK(rank, err);
    int share = SAMPLES / boot->world;
    for (int step = 0; step < STEPS; step++) {
        train(&f, how, step, rank * share, share, &err);
        train(&alone, &(way){how->loss, false}, step, 0, SAMPLES, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, fixture_difference(f.net, alone.net) < 2e-6);
    }
    RANK_CHECK(rank, fixture_same(f.world, fixture_hash(f.net), &err));
    fixture_close(&f);
    fixture_close(&alone);
    tern_rng_free(rng);
    return 0;
}

static void run(way_fn loss, bool evaluates)
{
    way how = {loss, evaluates};
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, way_body, &how));
}

static void a_function_that_forward_does_not_call(void **state)
{
    (void)state;
    run(second_function, false);
    run(two_functions, false);
}

static void parts_called_one_by_one(void **state)
{
    (void)state;
    run(in_parts, false);
}

static void a_module_used_twice_in_a_step(void **state)
{
    (void)state;
    run(used_twice, false);
}

static void a_branch_by_the_input(void **state)
{
    (void)state;
    run(by_input, false);
}

static void a_view_without_gradients_on_one_rank(void **state)
{
    (void)state;
    run(by_forward, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_function_that_forward_does_not_call), cmocka_unit_test(parts_called_one_by_one),
        cmocka_unit_test(a_module_used_twice_in_a_step),         cmocka_unit_test(a_branch_by_the_input),
        cmocka_unit_test(a_view_without_gradients_on_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
