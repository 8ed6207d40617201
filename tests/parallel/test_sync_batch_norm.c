/* test_sync_batch_norm.c - residual nets with synchronised batch norms: the result of N ranks equals that of
 * one process on the whole batch, whatever the ranks' shares; cases in which nothing changes; and errors.
 * tests/torch compares the op itself with torch. */
#include "parallel/trainer.h"

#include "ledger.h"

#include <math.h>

#ifdef __SANITIZE_THREAD__
#define DEEP_STEPS 1 /* 20 times as slow */
#else
#define DEEP_STEPS 3
#endif

/* Returns the largest difference of two state dicts, relative to a tensor's largest value if that is above
 * 1. */
static double difference(const tern_module *a, const tern_module *b)
{
    double worst = 0;
    for (int i = 0; i < tern_state_count(a); i++) {
        const tern_tensor *x = tern_state_get(a, i).tensor, *y = tern_state_get(b, i).tensor;
        double largest = 1, off = 0;
        for (int64_t k = 0; k < tern_tensor_count(x); k++) {
            largest = fmax(largest, fabs(tern__view_get(&y->view, k)));
            off = fmax(off, fabs(tern__view_get(&x->view, k) - tern__view_get(&y->view, k)));
        }
        worst = fmax(worst, off / largest);
    }
    return worst;
}

/* Compares a checksum of the state dict. */
static bool same_on_all(const trainer *t)
{
    tern_error err = {0};
    double sum = 0, sums[4];
    for (int i = 0; i < tern_state_count(t->net); i++) {
        const tern_tensor *x = tern_state_get(t->net, i).tensor;
        for (int64_t k = 0; k < tern_tensor_count(x); k++)
            sum += (double)(k % 7 + 1) * tern__view_get(&x->view, k);
    }
    if (tern_all_gather(t->world, &sum, sums, 1, TERN_F64, &err)) return false;
    for (int r = 0; r < tern_group_size(t->world); r++)
        if (sums[r] != sum) return false;
    return true;
}

/* ---- the same result as one process ---- */

/* The largest relative change by rounding to bf16. */
#define HALF_STEP (1.0 / 256)
/* The effect of rounding on a deep net, where it decides whether a ReLU passes a gradient. In f64, noise of
 * 1e-7 in every convolution's result changes ResNet-18's gradients by 5e-6, and noise of 1e-6 by 8e-2 where
 * the last maps have 2x2 positions. Without synchronisation losses differ by 0.1. */
#define FLIPS 1e-3

typedef struct shares {
    int world;
    scale size;
    bool synced;
    int rows[4]; /* per rank */
    int steps;
    double nearer, farther; /* bounds for the difference from one process */
    tern_dtype region;      /* the autocast region's */
} shares;

static int learn(int rank, const tern__bootstrap *boot, void *arg)
{
    const shares *how = arg;
    tern_error err = {0};
    trainer t, alone = {0}; /* rank 0's: one process with the whole batch */
    int first = 0, total = 0;
    for (int r = 0; r < boot->world; r++) {
        if (r < rank) first += how->rows[r];
        total += how->rows[r];
    }
    open_trainer(&t, boot, how->size, how->synced, &err);
    if (rank == 0) open_trainer(&alone, NULL, how->size, false, &err);
    RANK_CHECK_OK(rank, err);
    t.region = alone.region = how->region;
    double limit = how->region != TERN_F32 ? HALF_STEP : how->size == RESNET18 ? FLIPS : 1e-5;
    for (int step = 0; step < how->steps; step++) {
        double own = train_step(&t, step, first, how->rows[rank], &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, isnan(own) == (how->rows[rank] == 0));
        if (rank) continue;
        double whole = train_step(&alone, step, 0, total, &err);
        double apart = fabs(tern_ddp_loss_mean(t.ddp) - whole) / whole;
        RANK_CHECK(rank, !how->synced || apart < limit);
    }
    RANK_CHECK(rank, !how->synced || same_on_all(&t));
    if (rank == 0) {
        double apart = difference(t.net, alone.net);
        RANK_CHECK(rank, how->nearer <= apart && apart <= how->farther);
        close_trainer(&alone);
    }
    close_trainer(&t);
    return 0;
}

static void shares_of_a_batch_equal_the_batch(void **state)
{
    (void)state;
    static const shares cases[] = {
        {1, SMALL, true, {8}, 4, 0, 1e-6, TERN_F32},
        {2, SMALL, true, {4, 4}, 4, 0, 1e-6, TERN_F32},
        {2, SMALL, true, {1, 6}, 4, 0, 1e-6, TERN_F32},
        {2, SMALL, true, {0, 5}, 4, 0, 1e-6, TERN_F32},
        {3, SMALL, true, {3, 0, 4}, 4, 0, 1e-6, TERN_F32},
        {4, SMALL, true, {2, 1, 0, 4}, 4, 0, 1e-6, TERN_F32},
        {2, SMALL, false, {4, 4}, 4, 1e-2, 10, TERN_F32}, /* shows that the test can fail */
        {1, SMALL, true, {8}, 4, 0, 1e-3, TERN_BF16},
        {2, SMALL, true, {4, 4}, 4, 0, 1e-3, TERN_BF16},
        {3, SMALL, true, {3, 0, 4}, 4, 0, 1e-3, TERN_BF16},
        {2, SMALL, false, {4, 4}, 4, 1e-2, 10, TERN_BF16},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        shares how = cases[i];
        if (ranks_fill_hosts(how.world)) assert_ranks_ok(ranks_run(how.world, learn, &how));
    }
}

static void resnet18_on_two_ranks_equals_one_process(void **state)
{
    (void)state;
    shares how = {2, RESNET18, true, {4, 4}, DEEP_STEPS, 0, FLIPS, TERN_F32};
    if (ranks_fill_hosts(2)) assert_ranks_ok(ranks_run(2, learn, &how));
}

/* ---- a layer, and errors ---- */

/* A batch norm of `channels` channels and (rows, channels) values that differ between ranks. */
typedef struct layer {
    tern_group *world;
    tern_device *dev;
    tern_module *norm;
    tern_scope *s;
} layer;

static void open_layer(layer *l, const tern__bootstrap *boot, int64_t channels, tern_error *err)
{
    *l = (layer){.world = tern__group_open_boot(boot, NULL, err), .dev = tern_device_open("cpu", err)};
    l->norm = tern_batch_norm1d_new(channels, NULL, err);
    l->s = tern_scope_new(l->dev, l->world, err);
}

static void close_layer(layer *l)
{
    tern_scope_free(l->s);
    tern_module_free(l->norm);
    tern_device_close(l->dev);
    tern_group_close(l->world);
}

static tern_tensor *values(tern_scope *s, int first, int rows, int64_t channels)
{
    float x[ROWS_MAX * 8];
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < channels; c++) x[i * channels + c] = (float)((first + i) * (first + i + c) % 7);
    return tern_tensor_from(s, x, TERN_F32, 2, (int64_t[]){rows, channels});
}

/* A NaN is the same as nothing. */
static bool same_values(const tern_tensor *a, const tern_tensor *b, double tolerance)
{
    for (int64_t i = 0; i < tern_tensor_count(a); i++)
        if (!(fabs(tern__view_get(&a->view, i) - tern__view_get(&b->view, i)) <= tolerance)) return false;
    return true;
}

static bool same_state(const tern_module *a, const tern_module *b, double tolerance)
{
    for (int i = 0; i < tern_state_count(a); i++)
        if (!same_values(tern_state_get(a, i).tensor, tern_state_get(b, i).tensor, tolerance)) return false;
    return true;
}

/* Pairs of four ranks: each uses its own pair's rows, in a group made from the scope's. */
static int pairs(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    open_layer(&l, boot, 3, &err);
    tern_group *pair = tern_group_split(l.world, rank / 2, 0, NULL, &err);
    tern_module *alone = tern_batch_norm1d_new(3, NULL, &err);
    tern_sync_batch_norm_convert(l.norm, pair, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *y = tern_forward(l.norm, l.s, values(l.s, 4 * rank, 4, 3));
    tern_tensor *both = tern_forward(alone, l.s, values(l.s, rank / 2 * 8, 8, 3));
    RANK_CHECK(rank, y && both);
    RANK_CHECK(rank, same_values(y, tern_slice(l.s, both, 0, rank % 2 * 4, rank % 2 * 4 + 4, 1), 1e-6));
    RANK_CHECK(rank, same_state(l.norm, alone, 1e-6));
    tern_module_free(alone);
    close_layer(&l);
    tern_group_close(pair);
    return 0;
}

static void pairs_of_ranks_are_groups_too(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(4, pairs, NULL));
    assert_ranks_ok(ranks_run_threads(4, pairs, NULL));
}

/* The last of three ranks is alone in its group; the model is still the same on all ranks. */
static int odd_pairs(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    open_layer(&l, boot, 3, &err);
    tern_group *pair = tern_group_split(l.world, rank / 2, 0, NULL, &err);
    tern_sync_batch_norm_convert(l.norm, pair, &err);
    tern_ddp *ddp = tern_ddp_new(l.norm, l.world, NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *y = tern_forward(l.norm, l.s, values(l.s, 4 * rank, 4, 3));
    RANK_CHECK(rank, tern_backward(l.s, tern_sum(l.s, y)) == TERN_OK);
    tern_ddp_free(ddp);
    close_layer(&l);
    tern_group_close(pair);
    return 0;
}

static void pairs_of_an_odd_number_of_ranks(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, odd_pairs, NULL));
}

/* In evaluation, and with one rank, it gives the bits of a plain batch norm. Training updates the statistics
 * once, even if the forward is recomputed in backward. */
static int stays(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    open_layer(&l, boot, 3, &err);
    tern_module *plain = tern_batch_norm1d_new(3, NULL, &err), *again = tern_batch_norm1d_new(3, NULL, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err);
    tern_sync_batch_norm_convert(again, l.world, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(l.norm->kind, "sync_batch_norm"));
    tern_tensor *x = values(l.s, 4 * rank, 4, 3);
    tern_tensor *one = tern_forward(l.norm, l.s, x), *two = tern_checkpoint(again, l.s, x);
    tern_tensor *loss =
        tern_add(l.s, tern_sum(l.s, tern_mul(l.s, one, x)), tern_sum(l.s, tern_mul(l.s, two, x)));
    RANK_CHECK(rank, tern_backward(l.s, loss) == TERN_OK);
    RANK_CHECK(rank, same_state(l.norm, again, 0) && same_values(one, two, 0));
    RANK_CHECK(rank, same_values(tern_grad_get(tern_state_find(l.norm, "weight")),
                                 tern_grad_get(tern_state_find(again, "weight")), 0));
    if (boot->world == 1) {
        tern_tensor *same = tern_forward(plain, l.s, x);
        RANK_CHECK(rank, same_values(one, same, 0) && same_state(l.norm, plain, 0));
    }
    tern_eval(l.norm);
    if (rank == 0)
        RANK_CHECK(rank, tern_forward(l.norm, l.s, values(l.s, 0, 1, 3)) !=
                             NULL); /* the other ranks do not call it */
    tern_module_free(again);
    tern_module_free(plain);
    close_layer(&l);
    return 0;
}

static void what_is_not_changed(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++) assert_ranks_ok(ranks_run(world, stays, NULL));
}

/* A mistake of one rank, or of all, and every rank's error. */
typedef enum mistake { ONE_VALUE, CHANNELS, NO_GROUP, OTHER_GROUP, SHAPE } mistake;

static int mistaken(int rank, const tern__bootstrap *boot, void *arg)
{
    mistake m = *(mistake *)arg;
    tern_error err = {0};
    layer l;
    open_layer(&l, boot, m == CHANNELS && rank ? 4 : 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world,
                                 &err); /* may return the error of a rank that was faster and failed */
    tern_group *own =
        m == OTHER_GROUP ? tern_group_open(NULL, &err) : NULL; /* a group of one: there is no launcher here */
    tern_scope *s = m == NO_GROUP || m == OTHER_GROUP ? tern_scope_new(l.dev, own, &err) : l.s;
    int rows = m == ONE_VALUE ? rank == 0 : 4, columns = m == SHAPE && rank == 1 ? 2
                                                         : m == CHANNELS && rank ? 4
                                                                                 : 3;
    if (!err.code) RANK_CHECK(rank, !tern_forward(l.norm, s, values(s, 0, rows, columns)));
    const tern_error *heard = err.code ? &err : tern_scope_error(s);
    static const struct {
        int code;
        const char *text;
    } said[] = {{TERN_E_SHAPE, "expected more than 1 value per channel when training, got input size"},
                {TERN_E_MISMATCH, "all_gather"},
                {TERN_E_STATE, "on a scope of no group"},
                {TERN_E_STATE, "on a scope of another group"},
                {TERN_E_SHAPE, "weight is (3) but input is (4, 2)"}};
    RANK_CHECK(rank, heard->code == said[m].code || heard->code == TERN_E_PEER);
    RANK_CHECK(rank, strstr(heard->text, said[m].text));
    RANK_CHECK(rank, m != ONE_VALUE || strstr(heard->text, "on all ranks together"));
    if (s != l.s) { /* the group is not told of this mistake: no rank leaves before all have made it */
        tern_scope_free(s);
        tern_barrier(l.world, &err);
        RANK_CHECK_OK(rank, err);
    }
    tern_group_close(own);
    close_layer(&l);
    return 0;
}

static void mistakes_are_told_to_all(void **state)
{
    (void)state;
    for (mistake m = ONE_VALUE; m <= SHAPE; m++) assert_ranks_ok(ranks_run(3, mistaken, &m));
}

/* Convert first, then make the ddp, the same on all ranks; and no join. */
static int out_of_order(int rank, const tern__bootstrap *boot, void *arg)
{
    int which = *(int *)arg;
    tern_error err = {0}, late = {0};
    trainer t;
    if (which == 0) {
        open_trainer(&t, boot, SMALL, false, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, tern_sync_batch_norm_convert(t.net, t.world, &late) == TERN_E_STATE);
        RANK_CHECK(rank,
                   strstr(late.text, "already has a ddp: the order is SyncBN, amp, DDP, optimizer, steps"));
    } else if (which == 1) {
        open_trainer(&t, boot, SMALL, rank == 0, &err);
        RANK_CHECK(rank, err.code == TERN_E_MISMATCH && strstr(err.text, "rank 0 has 6 sync_batch_norm"));
    } else {
        open_trainer(&t, boot, SMALL, true, &err);
        if (rank == 0) RANK_CHECK(rank, tern_ddp_join(t.ddp, NULL, &late) == TERN_E_STATE);
        if (rank != 0 && !err.code) train_step(&t, 0, 4, 4, &late);
        if (err.code) late = err; /* it was still opening when it was told */
        RANK_CHECK(rank, late.code && strstr(late.text, "go on with empty batches instead of joining"));
    }
    close_trainer(&t);
    return 0;
}

static void order_and_agreement(void **state)
{
    (void)state;
    for (int which = 0; which < 3; which++) assert_ranks_ok(ranks_run(2, out_of_order, &which));
}

static void arguments(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_group *group = tern_group_open(NULL, &err);
    tern_module *norm = tern_batch_norm1d_new(3, NULL, &err);
    assert_ok(err);
    assert_int_equal(tern_sync_batch_norm_convert(NULL, group, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "the module is NULL");
    assert_int_equal(tern_sync_batch_norm_convert(norm, group, &err),
                     TERN_E_INVALID); /* the error that was set before */
    err = (tern_error){0};
    assert_int_equal(tern_sync_batch_norm_convert(norm, NULL, &err), TERN_E_INVALID);
    assert_string_equal(err.text, "the group is NULL");
    assert_int_equal(tern_sync_batch_norm_convert(norm, group, NULL), TERN_OK);
    tern_group_abort(group, TERN_E_STATE, "enough");
    err = (tern_error){0};
    assert_int_equal(tern_sync_batch_norm_convert(norm, group, &err), TERN_E_STATE);
    tern_module_free(norm);
    tern_group_close(group);
}

/* ---- memory ---- */

/* Counts this thread's allocations; another thread of rank 0 serves the store. */
static _Thread_local int own_requests, own_limit; /* 0: none; else the number of allocations that succeed */

static void *count_own(size_t bytes, size_t align, void *ctx)
{
    if (own_limit && own_requests >= own_limit) return NULL;
    own_requests++;
    return ledger_alloc(bytes, align, ctx);
}

static int warm(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    ledger books = {0};
    trainer t;
    tern__allocator_replace(&(tern_allocator){count_own, ledger_free, &books});
    open_trainer(&t, boot, SMALL, true, &err);
    for (int step = 0; step < 3; step++) train_step(&t, step, 4 * rank, 4, &err);
    RANK_CHECK_OK(rank, err);
    int before = own_requests;
    for (int step = 3; step < 6; step++) train_step(&t, step, 4 * rank, 4, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, before > 0 && own_requests == before);
    t.region = TERN_BF16;
    for (int step = 6; step < 9; step++) {
        before = own_requests;
        train_step(&t, step, 4 * rank, 4, &err);
    }
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, own_requests == before);
    close_trainer(&t);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return 0;
}

static void warm_steps_allocate_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) assert_ranks_ok(ranks_run(world, warm, NULL));
}

/* ---- beside another model ---- */

/* Computes the gradient of x under mean((norm(x) - x)^2), with 2 rows on rank 0 and 6 on the others. */
static bool norm_gradient(layer *l, float grad[6 * 3], tern_error *err)
{
    int rows = tern_group_rank(l->world) ? 6 : 2;
    tern_tensor *x = values(l->s, 4 * rows, rows, 3);
    tern_requires_grad_set(x, true, err);
    tern_tensor *target = values(l->s, 4 * rows, rows, 3);
    tern_backward(l->s, tern_mse_loss(l->s, tern_forward(l->norm, l->s, x), target, TERN_LOSS_MEAN));
    memset(grad, 0, 6 * 3 * sizeof(*grad));
    tern_tensor_read(tern_grad_get(x), grad, (size_t)(rows * 3) * sizeof(*grad), err);
    return tern_scope_end(l->s, err) == TERN_OK;
}

/* Another ddp counts samples; the batch norm's does not. */
static int beside(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    float alone[6 * 3], together[6 * 3];
    open_layer(&l, boot, 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err);
    tern_ddp *ddp = tern_ddp_new(l.norm, l.world, NULL, &err);
    RANK_CHECK(rank, norm_gradient(&l, alone, &err));
    tern_module *other = tern_batch_norm1d_new(3, NULL, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    tern_ddp *counting = tern_ddp_new(other, l.world, &opts, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, norm_gradient(&l, together, &err));
    RANK_CHECK(rank, !memcmp(alone, together, sizeof(alone)) && alone[0] != 0);
    tern_ddp_free(counting);
    tern_module_free(other);
    tern_ddp_free(ddp);
    close_layer(&l);
    return 0;
}

static void another_models_samples_do_not_count(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, beside, NULL));
}

/* ---- frozen, behind another model ---- */

typedef enum beside_it { SYNCED, NOT_SYNCED, WAITING, WITHOUT, WAYS } beside_it;

static tern_ddp *new_counting_ddp(tern_module *module, tern_group *group, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.normaliser = TERN_NORMALISER_LOSS;
    return tern_ddp_new(module, group, &opts, err);
}

static tern_module *new_linear(tern_error *err)
{
    tern_rng *rng = tern_rng_new(3, err);
    tern_module *linear = tern_linear_new(3, 3, NULL, rng, err);
    tern_rng_free(rng);
    return linear;
}

/* norm(first(x)) against x, of rows [from, from + rows). */
static int learn_behind(tern_scope *s, tern_module *first, tern_module *norm, int from, int rows)
{
    tern_tensor *y = tern_forward(norm, s, tern_forward(first, s, values(s, from, rows, 3)));
    return tern_backward(s, tern_mse_loss(s, y, values(s, from, rows, 3), TERN_LOSS_MEAN));
}

/* The norm's ddp in this way: frozen, and with what its way is about. */
static tern_ddp *freeze_norm(layer *l, beside_it way, tern_error *err)
{
    float unused[6 * 3];
    tern_ddp *ddp = way == WITHOUT ? NULL : new_counting_ddp(l->norm, l->world, err);
    if (way == WAITING) norm_gradient(l, unused, err);
    tern_module_requires_grad_set(l->norm, false);
    if (way == NOT_SYNCED) tern_ddp_sync_set(ddp, false);
    return ddp;
}

/* Rank 0 has 2 rows, each other one 6, and all count as one batch of one process. */
static int behind(int rank, const tern__bootstrap *boot, void *arg)
{
    beside_it way = *(beside_it *)arg;
    tern_error err = {0};
    layer l;
    open_layer(&l, boot, 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err);
    tern_module *first = new_linear(&err), *same = new_linear(&err);
    tern_module *norm = tern_batch_norm1d_new(3, NULL, &err);
    tern_module_requires_grad_set(norm, false);
    tern_ddp *ddp = new_counting_ddp(first, l.world, &err), *norms = freeze_norm(&l, way, &err);
    tern_scope *alone = tern_scope_new(l.dev, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !learn_behind(l.s, first, l.norm, rank ? 6 * rank - 4 : 0, rank ? 6 : 2));
    RANK_CHECK(rank, !learn_behind(alone, same, norm, 0, 6 * boot->world - 4));
    for (int i = 0; i < tern_state_count(first); i++)
        RANK_CHECK(rank, same_values(tern_grad_get(tern_state_get(first, i).tensor),
                                     tern_grad_get(tern_state_get(same, i).tensor), 1e-6));
    RANK_CHECK(rank, tern_scope_end(l.s, &err) == TERN_OK);
    tern_scope_free(alone);
    tern_ddp_free(norms);
    tern_ddp_free(ddp);
    tern_module_free(norm);
    tern_module_free(same);
    tern_module_free(first);
    close_layer(&l);
    return 0;
}

static void a_frozen_models_samples_count_as_those_of_the_one_before_it(void **state)
{
    (void)state;
    for (int way = 0; way < WAYS; way++)
        for (int world = 2; world <= 3; world++) assert_ranks_ok(ranks_run(world, behind, &way));
}

/* A ddp of another family is none of this step's. */
static int strange(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    float alone[6 * 3], beside_ddp[6 * 3];
    open_layer(&l, boot, 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err);
    tern_module_requires_grad_set(l.norm, false);
    RANK_CHECK(rank, norm_gradient(&l, alone, &err));
    tern_group *other = tern_group_open(NULL, &err);
    tern_ddp *ddp = tern_ddp_new(l.norm, other, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, norm_gradient(&l, beside_ddp, &err));
    RANK_CHECK(rank, !memcmp(alone, beside_ddp, sizeof(alone)) && alone[0] != 0);
    tern_ddp_free(ddp);
    tern_group_close(other);
    close_layer(&l);
    return 0;
}

static void a_ddp_of_another_family_changes_nothing(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, strange, NULL));
}

/* ---- a rank whose labels do not count ---- */

/* A loss of norm(x), whose rows behind the first `labelled` are of a class without weight. */
static int classify(tern_scope *s, tern_module *norm, tern_tensor *x, int labelled)
{
    int64_t labels[6 * RANKS_MAX], count = x ? x->view.shape[0] : 0;
    for (int i = 0; i < count; i++) labels[i] = i < labelled ? i % 2 : 2;
    tern_cross_entropy_opts opts = tern_cross_entropy_defaults();
    opts.weight = tern_tensor_from(s, (float[]){1, 2, 0}, TERN_F32, 1, (int64_t[]){3});
    tern_tensor *label = tern_tensor_from(s, labels, TERN_I64, 1, &count);
    return tern_backward(s, tern_cross_entropy(s, tern_forward(norm, s, x), label, &opts));
}

/* first(x) of all rows; the last rank's are data of the norm, and no more. */
static tern_tensor *rows_alone(tern_scope *s, tern_module *first, int labelled)
{
    tern_tensor *with = tern_forward(first, s, values(s, 0, labelled, 3));
    tern_tensor *without = tern_detach(s, tern_forward(first, s, values(s, labelled, 6, 3)));
    return tern_cat(s, 2, (tern_tensor *[]){with, without}, 0);
}

/* The last rank's loss is 0 / 0, which must not reach the others by way of the norm. As its gradients do not
 * count, nor do those of the others' losses with respect to its data. */
static int unlabelled(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    layer l;
    int labelled = 6 * (boot->world - 1);
    open_layer(&l, boot, 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err);
    tern_module_requires_grad_set(l.norm, false);
    tern_module *first = new_linear(&err), *same = new_linear(&err);
    tern_module *norm = tern_batch_norm1d_new(3, NULL, &err);
    tern_module_requires_grad_set(norm, false);
    tern_ddp *ddp = new_counting_ddp(first, l.world, &err);
    tern_scope *alone = tern_scope_new(l.dev, NULL, &err);
    RANK_CHECK_OK(rank, err);
    tern_tensor *own = tern_forward(first, l.s, values(l.s, 6 * rank, 6, 3));
    RANK_CHECK(rank, !classify(l.s, l.norm, own, 6 * rank < labelled ? 6 : 0));
    RANK_CHECK(rank, !classify(alone, norm, rows_alone(alone, same, labelled), labelled));
    for (int i = 0; i < tern_state_count(first); i++)
        RANK_CHECK(rank, same_values(tern_grad_get(tern_state_get(first, i).tensor),
                                     tern_grad_get(tern_state_get(same, i).tensor), 1e-6));
    tern_scope_free(alone);
    tern_ddp_free(ddp);
    tern_module_free(norm);
    tern_module_free(same);
    tern_module_free(first);
    close_layer(&l);
    return 0;
}

static void a_rank_without_labels_disturbs_nobody(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, unlabelled, NULL));
}

/* ---- memory ---- */

/* From its first step's n-th allocation on, rank 1 gets no memory: it returns an error, and the others are
 * told. */
static int starved(int rank, const tern__bootstrap *boot, void *arg)
{
    int at = *(int *)arg;
    tern_error err = {0}, late = {0};
    ledger books = {0};
    layer l;
    tern__allocator_replace(&(tern_allocator){count_own, ledger_free, &books});
    open_layer(&l, boot, 3, &err);
    tern_sync_batch_norm_convert(l.norm, l.world, &err); /* rank 1 may have failed by now */
    RANK_CHECK(rank, !err.code || (rank == 0 && strstr(err.text, "rank 1")));
    if (!err.code) {
        tern_tensor *x = values(l.s, 4 * rank, 4, 3);
        if (rank == 1) own_limit = own_requests + at - 1;
        tern_tensor *y = tern_forward(l.norm, l.s, x);
        tern_tensor *loss = y ? tern_sum(l.s, tern_mul(l.s, y, x)) : NULL;
        if (loss) tern_backward(l.s, loss);
        own_limit = 0;
        tern_scope_end(l.s, &late);
    }
    bool failed = err.code || late.code;
    RANK_CHECK(rank, !late.code || late.code == TERN_E_MEMORY || (rank != 1 && strstr(late.text, "rank 1")));
    close_layer(&l);
    tern__allocator_replace(NULL);
    RANK_CHECK(rank, atomic_load(&books.live) == 0);
    return failed ? 77 : 0;
}

static void memory_that_runs_out_is_told(void **state)
{
    (void)state;
    int at = 1;
    if (!ranks_fill_hosts(2)) return;
    for (;; at++) {
        ranks r = ranks_run(2, starved, &at);
        if (r.status[1] == 0) break;
        assert_int_equal(r.status[1], 77);
        assert_true(r.status[0] == 77 || r.status[0] == 0); /* it may have finished before */
    }
    assert_true(at > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_of_a_batch_equal_the_batch),
        cmocka_unit_test(resnet18_on_two_ranks_equals_one_process),
        cmocka_unit_test(pairs_of_ranks_are_groups_too),
        cmocka_unit_test(pairs_of_an_odd_number_of_ranks),
        cmocka_unit_test(what_is_not_changed),
        cmocka_unit_test(mistakes_are_told_to_all),
        cmocka_unit_test(order_and_agreement),
        cmocka_unit_test(another_models_samples_do_not_count),
        cmocka_unit_test(a_frozen_models_samples_count_as_those_of_the_one_before_it),
        cmocka_unit_test(a_rank_without_labels_disturbs_nobody),
        cmocka_unit_test(a_ddp_of_another_family_changes_nothing),
        cmocka_unit_test(arguments),
        cmocka_unit_test(warm_steps_allocate_nothing),
        cmocka_unit_test(memory_that_runs_out_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
