/* The state of optimizers out and in: sharded or not the same bytes, on any number of ranks, and what does
 * not fit. */
#include "optim/twins.h"

#include "ledger.h"

#include <sys/mman.h>

/* ---- snapshots ---- */

static bool same_entry(const tern_optim_entry *x, const tern_optim_entry *y)
{
    return !strcmp(x->parameter, y->parameter) && !strcmp(x->name, y->name) &&
           x->tensor->view.dtype == y->tensor->view.dtype &&
           tern__view_same_shape(&x->tensor->view, &y->tensor->view) &&
           !memcmp(x->tensor->view.data, y->tensor->view.data, tern__view_bytes(&x->tensor->view));
}

static bool same_state(const tern_optim_state *x, const tern_optim_state *y)
{
    bool same = x && y && tern_optim_state_count(x) == tern_optim_state_count(y);
    for (int i = 0; same && i < tern_optim_state_count(x); i++)
        same = same_entry(&tern_optim_state_entries(x)[i], &tern_optim_state_entries(y)[i]);
    return same;
}

/* On `root`, or on all, what the twin without a shard has; elsewhere nothing. */
static bool gathers_right(twins *t, int root)
{
    tern_optim_state *a = tern_optim_state_gather(t->a.optim, root, &t->err);
    tern_optim_state *b = tern_optim_state_gather(t->b.optim, root, &t->err);
    bool right = root < 0 || root == t->rank ? same_state(a, b) : !a && b;
    tern_optim_state_free(a);
    tern_optim_state_free(b);
    return right && !t->err.code;
}

static int snapshot_body(int rank, const tern__bootstrap *boot, void *arg)
{
    twins t;
    twins_open(&t, boot, *(twin_optim *)arg);
    for (int step = 0; step < 4; step++) {
        RANK_CHECK_OK(rank, t.err);
        for (int root = -1; root < t.size; root++) RANK_CHECK(rank, gathers_right(&t, root));
        twins_step(&t, &t.a, step);
        twins_step(&t, &t.b, step);
    }
    RANK_CHECK_OK(rank, t.err);
    return twins_close(&t);
}

static void a_snapshot_is_that_without_a_shard(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_sgd, twin_grouped_sgd, twin_grouped_adamw, twin_grouped_rmsprop,
                          twin_grouped_lamb};
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < TERN__COUNT(makes); i++)
            assert_ranks_ok(ranks_run(world, snapshot_body, &makes[i]));
    assert_ranks_ok(ranks_run_threads(3, snapshot_body, &makes[2]));
}

/* ---- torch's names, in the order of the state dict ---- */

static int names_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_grouped_adamw);
    tern_optim_state *state = tern_optim_state_gather(t.a.optim, -1, &t.err);
    RANK_CHECK(rank, state && tern_optim_state_count(state) == 0); /* there is none before the first step */
    tern_optim_state_free(state);
    for (int step = 0; step < 3; step++) twins_step(&t, &t.a, step);
    state = tern_optim_state_gather(t.a.optim, -1, &t.err);
    RANK_CHECK_OK(rank, t.err);
    static const char *const names[] = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
    static const char *const layers[] = {"a", "b"};
    const tern_optim_entry *entry = tern_optim_state_entries(state);
    for (int i = 0; i < PARAMS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%s.%s", layers[i >= PARAMS / 2], twin_params[i].name);
        int count = twin_is_bias(name, NULL, NULL) ? 4 : 3; /* the second group has amsgrad */
        for (int s = 0; i != FROZEN && s < count; s++, entry++) {
            RANK_CHECK(rank, !strcmp(entry->parameter, name) && !strcmp(entry->name, names[s]));
            if (s == 0) RANK_CHECK(rank, tern_tensor_dtype(entry->tensor) == TERN_I64);
            if (s == 0 && i < 2) RANK_CHECK(rank, tern_item(entry->tensor) == (i ? 2 : 3)); /* twins_uses */
        }
    }
    RANK_CHECK(rank, entry == tern_optim_state_entries(state) + tern_optim_state_count(state));
    tern_optim_state_free(state);
    return twins_close(&t);
}

static void entries_are_named_as_torch_names_them(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, names_body, NULL));
}

/* ---- another number of ranks ---- */

/* A snapshot and the parameters, as a file would hold them. */
enum { ROOM = 40 };
typedef struct file {
    int count;
    struct {
        char parameter[16], name[16];
        _Alignas(8) char data[2200];
    } entries[ROOM];
    char params[PARAMS][2200];
    twin_optim make;
} file;

static bool save(const twins *t, file *to)
{
    tern_optim_state *state = tern_optim_state_gather(t->a.optim, 0, NULL);
    if (!state) return t->rank != 0;
    to->count = tern_optim_state_count(state);
    for (int i = 0; i < to->count; i++) {
        const tern_optim_entry *entry = &tern_optim_state_entries(state)[i];
        snprintf(to->entries[i].parameter, sizeof(to->entries[i].parameter), "%s", entry->parameter);
        snprintf(to->entries[i].name, sizeof(to->entries[i].name), "%s", entry->name);
        memcpy(to->entries[i].data, entry->tensor->view.data, tern__view_bytes(&entry->tensor->view));
    }
    for (int i = 0; i < PARAMS; i++)
        memcpy(to->params[i], t->a.p[i]->view.data, tern__view_bytes(&t->a.p[i]->view));
    tern_optim_state_free(state);
    return true;
}

static tern_tensor *wrap(const twins *t, file *from, int i, tern_error *err)
{
    if (!strcmp(from->entries[i].name, "step"))
        return tern_tensor_wrap(from->entries[i].data, TERN_I64, 0, NULL, NULL, NULL, err);
    const tern__view *like = &tern_state_find(t->a.net, from->entries[i].parameter)->view;
    return tern_tensor_wrap(from->entries[i].data, like->dtype, like->ndim, like->shape, NULL, NULL, err);
}

static bool restore(twins *t, twin *one, file *from)
{
    tern_optim_entry entries[ROOM];
    for (int i = 0; i < from->count; i++)
        entries[i] =
            (tern_optim_entry){from->entries[i].parameter, from->entries[i].name, wrap(t, from, i, &t->err)};
    int status = tern_optim_state_load(one->optim, entries, from->count, &t->err);
    for (int i = 0; i < from->count; i++) tern_tensor_free(entries[i].tensor);
    for (int i = 0; i < PARAMS; i++)
        memcpy(one->p[i]->view.data, from->params[i], tern__view_bytes(&one->p[i]->view));
    return status == TERN_OK;
}

static int train_body(int rank, const tern__bootstrap *boot, void *arg)
{
    file *f = arg;
    twins t;
    twins_open(&t, boot, f->make);
    for (int step = 0; step < 4; step++) twins_step(&t, &t.a, step);
    RANK_CHECK_OK(rank, t.err);
    RANK_CHECK(rank, save(&t, f));
    return twins_close(&t);
}

/* What was loaded comes out again; and sharded or not the steps go on alike, over a state of older steps. */
static int resume_body(int rank, const tern__bootstrap *boot, void *arg)
{
    file *f = arg, *again = malloc(sizeof(*again));
    twins t;
    twins_open(&t, boot, f->make);
    twins_step(&t, &t.a, 50);
    twins_step(&t, &t.b, 50);
    RANK_CHECK(rank, restore(&t, &t.a, f) && restore(&t, &t.b, f));
    *again = *f;
    again->count = 0;
    RANK_CHECK(rank, save(&t, again));
    RANK_CHECK(rank, rank != 0 || !memcmp(again, f, sizeof(*f)));
    for (int step = 4; step < 8; step++) {
        twins_step(&t, &t.a, step);
        twins_step(&t, &t.b, step);
        RANK_CHECK_OK(rank, t.err);
        RANK_CHECK(rank, twins_are_equal(&t) && gathers_right(&t, -1));
    }
    free(again);
    return twins_close(&t);
}

static void resumes_on_another_number_of_ranks(void **state)
{
    (void)state;
    twin_optim makes[] = {twin_nesterov,        twin_grouped_sgd, twin_grouped_adamw,
                          twin_grouped_rmsprop, twin_adagrad,     twin_grouped_lamb};
    file *f = share_memory(sizeof(*f));
    for (int i = 0; i < (int)TERN__COUNT(makes); i++) {
        int from = 1 + i % 4;
        memset(f, 0, sizeof(*f));
        f->make = makes[i];
        assert_ranks_ok(ranks_run(from, train_body, f));
        assert_true(f->count > 0);
        for (int to = 1; to <= 4; to++) assert_ranks_ok(ranks_run(to, resume_body, f));
    }
    munmap(f, sizeof(*f));
}

/* ---- one process, without a group ---- */

typedef struct alone {
    tern_error err;
    tern_device *dev;
    tern_scope *s;
    tern_rng *rng;
    tern_module *net;
    tern_optim *optim;
} alone;

static void step_alone(alone *a)
{
    tern_tensor *x = tern_randn(a->s, a->rng, 2, (int64_t[]){4, 5});
    tern_backward(a->s, tern_mean(a->s, tern_forward(a->net, a->s, x)));
    tern_optim_step(a->optim, a->s);
    tern_scope_end(a->s, &a->err);
    assert_ok(a->err);
}

/* A linear layer of (3, 5) after a step. */
static alone open_alone(twin_optim make)
{
    alone a = {.dev = tern_device_open("cpu", NULL)};
    tern_device_threads_set(a.dev, 1, &a.err);
    a.s = tern_scope_new(a.dev, NULL, &a.err);
    a.rng = tern_rng_new(2, &a.err);
    a.net = tern_linear_new(5, 3, NULL, a.rng, &a.err);
    a.optim = make(a.net, &a.err);
    step_alone(&a);
    return a;
}

static void close_alone(alone *a)
{
    tern_optim_free(a->optim);
    tern_module_free(a->net);
    tern_rng_free(a->rng);
    tern_scope_free(a->s);
    tern_device_close(a->dev);
}

/* Loads the first `count` of these entries; a refused load leaves everything as it was. */
static void expect_refused(alone *a, const tern_optim_entry *entries, int count, int code, const char *text)
{
    tern_error err = {0};
    tern_optim_state *before = tern_optim_state_gather(a->optim, 0, &err);
    assert_int_equal(tern_optim_state_load(a->optim, entries, count, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.func, "tern_optim_state_load");
    assert_string_equal(err.text, text);
    err = (tern_error){0};
    tern_optim_state *after = tern_optim_state_gather(a->optim, 0, &err);
    assert_true(same_state(before, after));
    tern_optim_state_free(before);
    tern_optim_state_free(after);
}

/* `entries` with entry `at` in another form. */
static void expect_refused_with(alone *a, const tern_optim_state *state, int at, tern_optim_entry other,
                                int code, const char *text)
{
    tern_optim_entry entries[8];
    int count = tern_optim_state_count(state);
    memcpy(entries, tern_optim_state_entries(state), (size_t)count * sizeof(*entries));
    entries[at] = other;
    expect_refused(a, entries, count, code, text);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    alone a = open_alone(twin_grouped_adamw); /* the weight has 3 entries, the bias 4 */
    tern_optim_state *s = tern_optim_state_gather(a.optim, -1, &a.err);
    const tern_optim_entry *e = tern_optim_state_entries(s);
    assert_int_equal(tern_optim_state_count(s), 7);
    expect_refused_with(&a, s, 1, (tern_optim_entry){"wait", "exp_avg", e[1].tensor}, TERN_E_INVALID,
                        "the optimizer has no parameter \"wait\"");
    expect_refused_with(&a, s, 1, (tern_optim_entry){NULL, "exp_avg", e[1].tensor}, TERN_E_INVALID,
                        "the optimizer has no parameter \"\"");
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "max_exp_avg_sq", e[1].tensor}, TERN_E_INVALID,
                        "\"weight\" has no state \"max_exp_avg_sq\" in this adamw");
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", NULL, e[1].tensor}, TERN_E_INVALID,
                        "\"weight\" has no state \"\" in this adamw");
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "exp_avg", NULL}, TERN_E_INVALID,
                        "the tensor is NULL");
    expect_refused_with(&a, s, 1, e[2], TERN_E_INVALID, "\"exp_avg_sq\" of \"weight\" is given twice");
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "exp_avg", e[4].tensor}, TERN_E_SHAPE,
                        "\"exp_avg\" of \"weight\" is (3), expected (3, 5)");
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "exp_avg", e[0].tensor}, TERN_E_DTYPE,
                        "\"exp_avg\" of \"weight\" is i64, expected f32");
    expect_refused_with(&a, s, 0, (tern_optim_entry){"weight", "step", e[1].tensor}, TERN_E_RANGE,
                        "\"step\" of \"weight\" is nan, expected one element, a whole number from 1");
    tern_tensor *half = tern_tensor_from(a.s, (float[]){1.5f}, TERN_F32, 1, (int64_t[]){1});
    expect_refused_with(&a, s, 0, (tern_optim_entry){"weight", "step", half}, TERN_E_RANGE,
                        "\"step\" of \"weight\" is 1.5, expected one element, a whole number from 1");
    tern_tensor *turned =
        tern_transpose(a.s, tern_tensor_from(a.s, NULL, TERN_F32, 2, (int64_t[]){5, 3}), 0, 1);
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "exp_avg", turned}, TERN_E_UNSUPPORTED,
                        "\"exp_avg\" of \"weight\" is not row-major; tern_keep gives a copy that is");
    assert_int_equal(tern_scope_end(a.s, &a.err), TERN_OK);
    expect_refused_with(&a, s, 1, (tern_optim_entry){"weight", "exp_avg", turned}, TERN_E_LIFETIME,
                        "tensor (3, 5) is used after its scope has ended; tern_keep gives a copy that lasts");
    expect_refused(&a, e, 6, TERN_E_INVALID, "\"bias\" has no \"max_exp_avg_sq\"");
    expect_refused(&a, e + 1, 6, TERN_E_INVALID, "\"weight\" has no \"step\"");
    expect_refused(&a, NULL, 2, TERN_E_INVALID, "the optimizer or the entries are NULL");
    expect_refused(&a, e, -1, TERN_E_INVALID, "the optimizer or the entries are NULL");
    tern_optim_state_free(s);
    close_alone(&a);
}

/* A parameter without entries has made no step; torch's SGD keeps no step. */
static void a_state_may_be_a_part(void **state)
{
    (void)state;
    alone a = open_alone(twin_nesterov);
    tern_optim_state *s = tern_optim_state_gather(a.optim, -1, &a.err);
    const tern_optim_entry *e = tern_optim_state_entries(s);
    assert_int_equal(tern_optim_state_count(s), 4);
    step_alone(&a);
    assert_int_equal(tern_optim_state_load(a.optim, e + 3, 1, &a.err), TERN_OK);
    tern_optim_state *bias = tern_optim_state_gather(a.optim, -1, &a.err);
    assert_int_equal(tern_optim_state_count(bias), 2);
    assert_true(same_entry(&tern_optim_state_entries(bias)[0], &e[2]));
    assert_true(same_entry(&tern_optim_state_entries(bias)[1], &e[3]));
    assert_int_equal(tern_optim_state_load(a.optim, NULL, 0, &a.err), TERN_OK);
    tern_optim_state *none = tern_optim_state_gather(a.optim, -1, &a.err);
    assert_int_equal(tern_optim_state_count(none), 0);
    tern_optim_state_free(none);
    tern_optim_state_free(bias);
    tern_optim_state_free(s);
    close_alone(&a);
}

static void out_of_memory_leaves_nothing_behind(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    alone a = open_alone(twin_grouped_adamw), b = open_alone(twin_grouped_adamw);
    tern_optim_state *s = NULL;
    int at = 0;
    do {
        tern_error err = {0};
        int live = atomic_load(&books.live);
        books.refuse_at = atomic_load(&books.requests) + ++at;
        s = tern_optim_state_gather(a.optim, -1, &err);
        books.refuse_at = 0;
        assert_true(s || (err.code == TERN_E_MEMORY && atomic_load(&books.live) == live));
    } while (!s);
    assert_int_equal(at, 8); /* the snapshot, its three arrays, three blocks */
    tern_optim_free(b.optim);
    b.optim = twin_grouped_adamw(b.net, &b.err); /* without state yet */
    for (at = 1; at <= 4; at++) {
        tern_error err = {0};
        books.refuse_at = atomic_load(&books.requests) + at;
        assert_int_equal(tern_optim_state_load(b.optim, tern_optim_state_entries(s), 7, &err), TERN_E_MEMORY);
        books.refuse_at = 0;
        assert_int_equal(tern_optim_state_bytes(b.optim), 0);
    }
    assert_int_equal(tern_optim_state_load(b.optim, tern_optim_state_entries(s), 7, &b.err), TERN_OK);
    assert_int_equal(tern_optim_state_bytes(b.optim), tern_optim_state_bytes(a.optim));
    assert_int_equal(tern_adam_group_add(b.optim, twin_is_bias, NULL, NULL, &b.err), TERN_E_STATE);
    tern_optim_state_free(s);
    close_alone(&a);
    close_alone(&b);
    ledger_close(&books);
}

/* ---- wrong use ---- */

static int root_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    twins t;
    twins_open(&t, boot, twin_adam);
    twins_step(&t, &t.a, 0);
    RANK_CHECK(rank, !tern_optim_state_gather(t.a.optim, rank == 1 ? 2 : 0, &t.err));
    RANK_CHECK(rank, t.err.code == (rank == 1 ? TERN_E_RANGE : TERN_E_PEER));
    RANK_CHECK(rank, strstr(t.err.text, "root is 2, expected -1 or a rank below 2"));
    return twins_close(&t);
}

static void a_wrong_root_is_an_error_of_all(void **state)
{
    (void)state;
    tern_error err = {0};
    assert_null(tern_optim_state_gather(NULL, 0, &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_int_equal(tern_optim_state_load(NULL, NULL, 0, &err), TERN_E_INVALID);
    assert_int_equal(tern_optim_state_count(NULL), 0);
    assert_null(tern_optim_state_entries(NULL));
    assert_int_equal(tern_optim_state_bytes(NULL), 0);
    tern_optim_state_free(NULL);
    assert_ranks_ok(ranks_run(2, root_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_is_that_without_a_shard),
        cmocka_unit_test(entries_are_named_as_torch_names_them),
        cmocka_unit_test(resumes_on_another_number_of_ranks),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_state_may_be_a_part),
        cmocka_unit_test(out_of_memory_leaves_nothing_behind),
        cmocka_unit_test(a_wrong_root_is_an_error_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
