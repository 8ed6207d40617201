/* test_nccl.c - the NCCL back end on an emulation of NCCL: ranks are processes, each with its own emulated
 * GPU. */
#include "nets.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "comm/move/nccl/nccl.h"
#include "device/memory.h"
#include "nn/nn.h"

#include <math.h>

enum { STEPS = 4, ROWS = 8 };

static tern_group *open_group(const tern__bootstrap *boot, const char *name, tern_error *err)
{
    tern_group_opts opts = tern_group_defaults();
    opts.backend = name;
    return tern__group_open_boot(boot, &opts, err);
}

/* Opens "cuda:1" on rank 1. */
static tern_device *open_device(int rank, tern_error *err)
{
    char name[16];
    snprintf(name, sizeof(name), "cuda:%d", rank);
    return tern_device_open(name, err);
}

/* ---- a ddp ---- */

typedef struct job {
    int world;
    make_fn make;
    tern_dtype reduce_dtype;
    double tolerance, predivide, count; /* count: of a sample in the losses' normalisers; 0: their own */
    bool static_graph, accumulates, sync_batch_norm;
    int fewer;       /* steps that the last rank makes less before it joins */
    const int *rows; /* per rank, weighted by them; NULL: equal */
    batch batch;
} job;

/* This rank's part of the batch, possibly empty. */
static void take_rows(tern_scope *scope, const job *j, int rank, tern_tensor **x, tern_tensor **y)
{
    int64_t first = 0, shape[4], each = 1;
    for (int r = 0; j->rows && r < rank; r++) first += j->rows[r];
    for (int d = 0; d < j->batch.ndim; d++) shape[d] = j->batch.shape[d];
    for (int d = 1; d < j->batch.ndim; d++) each *= shape[d];
    if (j->rows) shape[0] = j->rows[rank];
    *x = j->rows ? tern_tensor_from(scope, j->batch.x + first * each, TERN_F32, j->batch.ndim, shape)
                 : rows_of(scope, &j->batch, rank, j->world);
    *y = j->rows ? tern_tensor_from(scope, j->batch.y + first, TERN_I64, 1, shape)
                 : labels_of(scope, &j->batch, rank, j->world);
}

static void step(tern_scope *scope, tern_ddp *ddp, tern_module *net, tern_optim *optim, const job *j, int i,
                 int rank)
{
    bool syncs = !j->accumulates || i % 2;
    tern_ddp_sync_set(ddp, syncs);
    tern_tensor *x, *y;
    take_rows(scope, j, rank, &x, &y);
    if (j->count) tern_ddp_normaliser_set(ddp, j->count * j->rows[rank], NULL);
    tern_backward(scope, tern_cross_entropy(scope, tern_forward(net, scope, x), y, NULL));
    if (syncs) tern_optim_step(optim, scope);
}

/* values: the losses, of which the first may be unknown, then elements of the first parameters. */
static void train(tern_group *group, const job *j, tern_device *device, double *values, tern_error *err)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    int rank = tern_group_rank(group), steps = STEPS - (rank == j->world - 1 ? j->fewer : 0);
    opts.reduce_dtype = j->reduce_dtype;
    opts.first_bucket_bytes = opts.bucket_bytes = j->rows ? 1 : 2000; /* 1: each parameter is a bucket */
    opts.static_graph = j->static_graph;
    if (j->rows) opts.normaliser = TERN_NORMALISER_LOSS;
    if (j->predivide) opts.gradient_predivide_factor = j->predivide;
    tern_rng *rng = tern_rng_new(3 + (uint64_t)rank, err);
    tern_module *net = j->make(rng, err);
    tern_module_to(net, device, err);
    if (j->sync_batch_norm) tern_sync_batch_norm_convert(net, group, err);
    tern_ddp *ddp = tern_ddp_new(net, group, &opts, err);
    tern_optim *optim = err->code ? NULL : make_sgd(net, err);
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    for (int i = 0; i < steps && !err->code; i++) {
        step(scope, ddp, net, optim, j, i, rank);
        tern_scope_end(scope, err);
        values[i] = i ? tern_ddp_loss_mean(ddp) : 0;
    }
    if (j->fewer && !err->code) tern_ddp_join(ddp, NULL, err);
    for (int k = 0; k < 4 && !err->code; k++) {
        float element;
        tern_state_entry entry = tern_state_get(net, k % tern_state_count(net));
        tern__memory_copy(&element, entry.tensor->view.data, sizeof(element), err);
        values[STEPS + k] = element;
    }
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
}

static int train_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    double away[STEPS + 4] = {0}, here[STEPS + 4] = {0};
    tern_group *group = open_group(boot, "nccl", &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !strcmp(tern_group_backend(group), j->world > 1 ? "nccl+native" : "nccl+self"));
    tern_device *device = open_device(rank, &err), *cpu = tern_device_open("cpu", &err);
    train(group, j, device, away, &err);
    RANK_CHECK_OK(rank, err);
    train(group, j, cpu, here, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < STEPS + 4; i++) {
        if (!(fabs(away[i] - here[i]) <= j->tolerance))
            fprintf(stderr, "value %d: %.9g on cuda, %.9g on cpu\n", i, away[i], here[i]);
        RANK_CHECK(rank, fabs(away[i] - here[i]) <= j->tolerance);
    }
    RANK_CHECK(rank, here[1] > 0.5 && here[STEPS] != 0);
    tern_device_close(device);
    tern_device_close(cpu);
    tern_group_close(group);
    return 0;
}

static void expect_the_cpus_values(job *j)
{
    if (j->make != make_resnet)
        draw_batch(&j->batch, 5, 2, (int64_t[]){ROWS, 24});
    else
        draw_batch(&j->batch, 5, 4, (int64_t[]){ROWS, 3, 12, 12});
    if (!is_emulated() && j->world > gpu_count()) skip_test("needs two GPUs or more");
    assert_ranks_ok(ranks_run(j->world, train_body, j));
}

static void one_rank_trains(void **state)
{
    (void)state;
    static job j = {.world = 1, .make = make_mlp, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static void ranks_train(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_mlp, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static void ranks_train_a_resnet(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_resnet, .tolerance = 1e-4};
    expect_the_cpus_values(&j);
}

static void ranks_share_their_batch_norms(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_resnet, .sync_batch_norm = true, .tolerance = 1e-4};
    expect_the_cpus_values(&j);
}

/* An empty batch's loss is NaN with weight 0. */
static void ranks_of_unequal_batches_share_their_batch_norms(void **state)
{
    (void)state;
    static const int rows[][3] = {{8, 0}, {3, 1, 4}};
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        job j = {.world = 2 + (int)i, .make = make_resnet, .sync_batch_norm = true, .tolerance = 1e-4};
        j.rows = rows[i];
        expect_the_cpus_values(&j);
    }
}

static void four_ranks_train(void **state)
{
    (void)state;
    static job j = {.world = 4, .make = make_mlp, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static void gradients_go_over_in_16_bits(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_mlp, .reduce_dtype = TERN_BF16, .tolerance = 2e-3};
    expect_the_cpus_values(&j);
    static job f16 = {.world = 2, .make = make_mlp, .reduce_dtype = TERN_F16, .tolerance = 1e-3};
    expect_the_cpus_values(&f16);
}

/* Counts that do not fit into 16 bits: 9e5 is infinite in f16, and needs 20 bits, which bf16 does not
 * have. */
static void gradients_of_many_samples_go_over_in_16_bits(void **state)
{
    (void)state;
    static const int rows[] = {3, 5};
    job j = {.world = 2, .make = make_mlp, .rows = rows, .count = 300001, .tolerance = 1e-3};
    j.reduce_dtype = TERN_F16;
    expect_the_cpus_values(&j);
    j.reduce_dtype = TERN_BF16;
    expect_the_cpus_values(&j);
}

static void gradients_are_divided_before(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_mlp, .predivide = 4, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static void gradients_accumulate(void **state)
{
    (void)state;
    static job j = {
        .world = 2, .make = make_mlp, .accumulates = true, .static_graph = true, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static void a_rank_with_fewer_batches_joins(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_resnet, .fewer = 2, .tolerance = 1e-4};
    expect_the_cpus_values(&j);
}

static size_t bucket_bytes_of(tern_group *group, tern_device *device, tern_error *err)
{
    tern_ddp_stats stats = {.size = sizeof(stats)};
    tern_rng *rng = tern_rng_new(3, err);
    tern_module *net = make_mlp(rng, err);
    tern_module_to(net, device, err);
    tern_ddp *ddp = tern_ddp_new(net, group, NULL, err);
    tern_ddp_stats_get(ddp, &stats, err);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    return stats.bucket_bytes;
}

static int bucket_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, "nccl", &err);
    tern_device *device = open_device(rank, &err), *cpu = tern_device_open("cpu", &err);
    RANK_CHECK(rank, bucket_bytes_of(group, cpu, &err) == 2 << 20);
    RANK_CHECK(rank, bucket_bytes_of(group, device, &err) == 25 << 20);
    RANK_CHECK_OK(rank, err);
    tern_device_close(cpu);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void buckets_are_larger_between_gpus(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, bucket_body, NULL));
}

/* ---- works that ranks post in different order ---- */

/* On a rank that does not use the extra linear its bucket is ready before the batch norm communicates. */
typedef struct two_ways {
    tern_module base;
    tern_module *body, *norm, *head, *extra;
    int rank, calls;
} two_ways;

static tern_tensor *two_ways_forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    two_ways *net = (two_ways *)module;
    tern_tensor *h = tern_forward(net->body, scope, x);
    if (net->calls++ % 2 == net->rank) h = tern_add(scope, h, tern_forward(net->extra, scope, x));
    return tern_forward(net->head, scope, tern_relu(scope, tern_forward(net->norm, scope, h)));
}

static void two_ways_init(two_ways *net, int rank, tern_error *err)
{
    tern_rng *rng = tern_rng_new(3, err);
    *net = (two_ways){.rank = rank};
    tern_module_init(&net->base, "two_ways", two_ways_forward, err);
    net->body = tern_module_add(&net->base, "body", tern_linear_new(24, 16, NULL, rng, err), err);
    net->norm = tern_module_add(&net->base, "norm", tern_batch_norm1d_new(16, NULL, err), err);
    net->head = tern_module_add(&net->base, "head", tern_linear_new(16, 5, NULL, rng, err), err);
    net->extra = tern_module_add(&net->base, "extra", tern_linear_new(24, 16, NULL, rng, err), err);
    tern_rng_free(rng);
}

static void first_elements(tern_module *net, double *values, tern_error *err)
{
    for (int k = 0; k < 4 && !err->code; k++) {
        float element;
        tern__memory_copy(&element, tern_state_get(net, k % tern_state_count(net)).tensor->view.data,
                          sizeof(element), err);
        values[k] = element;
    }
}

/* Each parameter is a bucket. */
static tern_ddp_opts small_buckets(const job *j)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 1;
    opts.reduce_dtype = j->reduce_dtype;
    if (j->rows) opts.normaliser = TERN_NORMALISER_LOSS;
    return opts;
}

static void train_two_ways(tern_group *group, const job *j, tern_device *device, double *values,
                           tern_error *err)
{
    two_ways net;
    tern_ddp_opts opts = small_buckets(j);
    two_ways_init(&net, tern_group_rank(group), err);
    tern_module_to(&net.base, device, err);
    tern_sync_batch_norm_convert(&net.base, group, err);
    tern_ddp *ddp = tern_ddp_new(&net.base, group, &opts, err);
    tern_optim *optim = err->code ? NULL : make_sgd(&net.base, err);
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    for (int i = 0; i < STEPS && !err->code; i++) {
        step(scope, ddp, &net.base, optim, j, i, tern_group_rank(group));
        tern_scope_end(scope, err);
    }
    first_elements(&net.base, values, err);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_module_release(&net.base);
}

/* Gradients of the second model come first, but a rank without inputs posts the first model's first. */
static void train_two_models(tern_group *group, const job *j, tern_device *device, double *values,
                             tern_error *err)
{
    int rank = tern_group_rank(group), steps = STEPS - (rank == j->world - 1 ? j->fewer : 0);
    tern_module *nets[2];
    tern_ddp *ddps[2];
    tern_ddp_opts opts = small_buckets(j);
    tern_rng *rng = tern_rng_new(3, err);
    for (int k = 0; k < 2; k++) {
        nets[k] = j->make(rng, err);
        tern_module_to(nets[k], device, err);
        ddps[k] = tern_ddp_new(nets[k], group, &opts, err);
    }
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    for (int i = 0; i < steps && !err->code; i++) {
        tern_tensor *x, *y, *losses[2];
        take_rows(scope, j, rank, &x, &y);
        for (int k = 0; k < 2 && j->rows; k++) tern_ddp_normaliser_set(ddps[k], j->rows[rank], err);
        for (int k = 0; k < 2; k++)
            losses[k] = tern_cross_entropy(scope, tern_forward(nets[k], scope, x), y, NULL);
        tern_backward(scope, tern_add(scope, losses[0], losses[1]));
        tern_scope_end(scope, err);
    }
    for (int k = 0; k < 2 && !err->code && steps == STEPS; k++) {
        tern_tensor *grad = tern_grad_get(tern_state_get(nets[k], 0).tensor);
        float element = 0;
        if (grad) tern__memory_copy(&element, grad->view.data, sizeof(element), err);
        values[2 + k] = element;
    }
    if (!err->code) tern_ddp_join(ddps[0], NULL, err);
    for (int k = 0; k < 2; k++) {
        double first[4] = {0};
        first_elements(nets[k], first, err);
        values[k] = first[0];
    }
    tern_scope_free(scope);
    for (int k = 0; k < 2; k++) {
        tern_ddp_free(ddps[k]);
        tern_module_free(nets[k]);
    }
    tern_rng_free(rng);
}

/* Models with a ddp each, in the order in which they were made. The used ones contribute to one loss. */
typedef struct models {
    int count;
    tern_module *net[2];
    tern_ddp *ddp[2];
} models;

static void add_model(models *m, tern_module *net, tern_device *device, tern_group *group, const job *j,
                      tern_error *err)
{
    tern_ddp_opts opts = small_buckets(j);
    tern_module_to(net, device, err);
    m->net[m->count] = net;
    m->ddp[m->count++] = tern_ddp_new(net, group, &opts, err);
}

/* Writes each model's mean loss, and after these an element of each model's gradient. */
static void take_values(const models *m, double *values, tern_error *err)
{
    for (int k = 0; k < m->count && !err->code; k++) {
        tern_tensor *grad = tern_grad_get(tern_state_get(m->net[k], 0).tensor);
        float element = 0;
        tern__memory_copy(&element, grad->view.data, sizeof(element), err);
        values[k] = tern_ddp_loss_mean(m->ddp[k]);
        values[2 + k] = element;
    }
}

static void free_models(models *m)
{
    for (int k = 0; k < m->count; k++) {
        tern_ddp_free(m->ddp[k]);
        tern_module_free(m->net[k]);
    }
}

/* Groups {0, 1} and {1, 2}: rank 1 has two ddps, ranks 0 and 2 have one each. */
static void train_in_overlapping_groups(tern_group *group, const job *j, tern_device *device, double *values,
                                        tern_error *err)
{
    models m = {0};
    tern_group *pair[2];
    tern_rng *rng = tern_rng_new(3, err);
    for (int k = 0; k < 2; k++) pair[k] = tern_group_new(group, (int[]){k, k + 1}, 2, NULL, err);
    for (int k = 0; k < 2; k++)
        if (pair[k]) add_model(&m, j->make(rng, err), device, pair[k], j, err);
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    for (int i = 0; i < STEPS && !err->code; i++) {
        tern_tensor *x, *y, *loss = tern_full(scope, TERN_F32, 0, NULL, 0);
        take_rows(scope, j, tern_group_rank(group), &x, &y);
        for (int k = 0; k < m.count; k++)
            loss =
                tern_add(scope, loss, tern_cross_entropy(scope, tern_forward(m.net[k], scope, x), y, NULL));
        tern_backward(scope, loss);
        tern_scope_end(scope, err);
    }
    take_values(&m, values, err);
    tern_scope_free(scope);
    free_models(&m);
    for (int k = 0; k < 2; k++) tern_group_close(pair[k]);
    tern_rng_free(rng);
}

/* Rank 1 does not use the first model, so that model's buckets are ready there before the second model's
 * batch norm communicates. */
static void train_beside_a_batch_norm(tern_group *group, const job *j, tern_device *device, double *values,
                                      tern_error *err)
{
    models m = {0};
    tern_rng *rng = tern_rng_new(3, err);
    tern_module *norm = tern_batch_norm1d_new(24, NULL, err);
    tern_sync_batch_norm_convert(norm, group, err);
    add_model(&m, j->make(rng, err), device, group, j, err);
    add_model(&m, norm, device, group, j, err);
    tern_scope *scope = err->code ? NULL : tern_scope_new(device, group, err);
    for (int i = 0; i < STEPS && !err->code; i++) {
        tern_tensor *x, *y, *loss;
        take_rows(scope, j, tern_group_rank(group), &x, &y);
        tern_requires_grad_set(x, true, err);
        tern_tensor *first = tern_cross_entropy(scope, tern_forward(m.net[0], scope, x), y, NULL);
        loss = tern_mean(scope, tern_mul(scope, tern_forward(m.net[1], scope, x), x));
        tern_backward(scope, tern_group_rank(group) == 1 ? loss : tern_add(scope, first, loss));
        tern_scope_end(scope, err);
    }
    take_values(&m, values, err);
    tern_scope_free(scope);
    free_models(&m);
    tern_rng_free(rng);
}

typedef struct order_case {
    void (*train)(tern_group *group, const job *j, tern_device *device, double *values, tern_error *err);
    job job;
} order_case;

static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const order_case *c = arg;
    tern_error err = {0};
    double away[4] = {0}, here[4] = {0};
    tern_group *group = open_group(boot, "nccl", &err);
    tern_device *device = open_device(rank, &err), *cpu = tern_device_open("cpu", &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 2; i++) { /* the second time with the communicators of the first */
        c->train(group, &c->job, device, away, &err);
        RANK_CHECK_OK(rank, err);
    }
    c->train(group, &c->job, cpu, here, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 4; i++) RANK_CHECK(rank, fabs(away[i] - here[i]) <= c->job.tolerance);
    RANK_CHECK(rank, here[0] != 0 && (here[2] != 0 || c->job.fewer));
    tern_device_close(device);
    tern_device_close(cpu);
    tern_group_close(group);
    return 0;
}

static void expect_the_cpus_order(order_case *c)
{
    draw_batch(&c->job.batch, 5, 2, (int64_t[]){ROWS, 24});
    if (!is_emulated() && c->job.world > gpu_count()) skip_test("needs two GPUs or more");
    assert_ranks_ok(ranks_run(c->job.world, order_body, c));
}

static void ranks_use_different_parameters_beside_batch_norms(void **state)
{
    (void)state;
    order_case c = {train_two_ways, {.world = 2, .tolerance = 1e-5}};
    expect_the_cpus_order(&c);
    static const int rows[] = {3, 5};
    c.job = (job){.world = 2, .rows = rows, .reduce_dtype = TERN_BF16, .tolerance = 1e-2};
    expect_the_cpus_order(&c);
}

static void a_rank_joins_of_two_models(void **state)
{
    (void)state;
    order_case c = {train_two_models, {.world = 3, .make = make_mlp, .fewer = 2, .tolerance = 1e-5}};
    expect_the_cpus_order(&c);
    static const int rows[] = {2, 3, 3};
    c.job.rows = rows;
    c.job.reduce_dtype = TERN_BF16;
    c.job.tolerance = 1e-2;
    expect_the_cpus_order(&c);
}

static void ddps_of_groups_that_overlap(void **state)
{
    (void)state;
    order_case c = {train_in_overlapping_groups, {.world = 3, .make = make_mlp, .tolerance = 1e-5}};
    expect_the_cpus_order(&c);
}

static void a_ddp_beside_a_later_models_batch_norms(void **state)
{
    (void)state;
    order_case c = {train_beside_a_batch_norm, {.world = 2, .make = make_mlp, .tolerance = 1e-5}};
    expect_the_cpus_order(&c);
}

/* ---- registered memory ---- */

/* A model with more than a page of gradients. */
static tern_module *make_wide(tern_rng *rng, tern_error *err)
{
    return tern_mlp_new((int64_t[]){24, 512, 512, 512, 5}, 5, rng, err);
}

static void gradients_of_many_pages(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_wide, .tolerance = 1e-5};
    expect_the_cpus_values(&j);
}

static int attached(const tern_group *group)
{
    const tern__nccl *nccl = group->state;
    int count = 0;
    for (uint32_t i = 0; i < nccl->window_count; i++) count += nccl->windows[i].handle != NULL;
    return count;
}

/* Returns how many windows of its ddp are registered. */
static int attached_of(make_fn make, tern_group *group, tern_device *device, tern_error *err)
{
    tern_rng *rng = tern_rng_new(3, err);
    tern_module *net = make(rng, err);
    tern_module_to(net, device, err);
    tern_ddp *ddp = tern_ddp_new(net, group, NULL, err);
    int count = err->code ? -1 : attached(group);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    return count;
}

/* The second time rank 1 cannot register its windows. */
static int attach_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, "nccl", &err);
    tern_device *device = open_device(rank, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, attached_of(make_wide, group, device, &err) == 1);
    RANK_CHECK(rank, attached(group) == 0);
    RANK_CHECK(rank, attached_of(make_mlp, group, device, &err) == 0);
    if (rank == 1) setenv("NCCL_LOCAL_REGISTER", "0", 1);
    RANK_CHECK(rank, attached_of(make_wide, group, device, &err) == 0);
    RANK_CHECK_OK(rank, err);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void all_ranks_attach_their_gradients_or_none(void **state)
{
    (void)state;
    if (!is_emulated()) skip_test("needs the emulation");
    assert_ranks_ok(ranks_run(2, attach_body, NULL));
    assert_ranks_ok(ranks_run(3, attach_body, NULL));
}

/* ---- waits ---- */

/* Host memory that is read or written is pinned, or a batch's, which is copied in the step. */
static int wait_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const job *j = arg;
    tern_error err = {0};
    tern_group *group = open_group(boot, "nccl", &err);
    tern_device *device = open_device(rank, &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = j->make(rng, &err);
    tern_module_to(net, device, &err);
    if (j->sync_batch_norm) tern_sync_batch_norm_convert(net, group, &err);
    tern_ddp_opts opts = tern_ddp_defaults();
    if (j->rows) opts.normaliser = TERN_NORMALISER_LOSS;
    tern_ddp *ddp = tern_ddp_new(net, group, &opts, &err);
    RANK_CHECK_OK(rank, err);
    tern_optim *optim = make_sgd(net, &err);
    tern_scope *scope = tern_scope_new(device, group, &err);
    const long *count = emulated_symbol("emulated_waits");
    long before = 0;
    RANK_CHECK(rank, count);
    for (int i = 0; i < STEPS; i++) {
        if (i == 2) before = *count;
        step(scope, ddp, net, optim, j, i, rank);
        tern_scope_end(scope, &err);
        RANK_CHECK_OK(rank, err);
    }
    if (*count != before) fprintf(stderr, "%ld waits\n", *count - before);
    RANK_CHECK(rank, *count == before);
    RANK_CHECK(rank, tern_ddp_loss_mean(ddp) > 0.5 && *count > before);
    tern_scope_free(scope);
    tern_optim_free(optim);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void a_warm_step_waits_for_no_device(void **state)
{
    (void)state;
    static job j = {.world = 2, .make = make_resnet};
    if (!is_emulated()) skip_test("needs the emulation");
    draw_batch(&j.batch, 5, 4, (int64_t[]){ROWS, 3, 12, 12});
    assert_ranks_ok(ranks_run(2, wait_body, &j));
    j.sync_batch_norm = true;
    assert_ranks_ok(ranks_run(2, wait_body, &j));
}

/* Parameters and gradients do not go through the host either, which would have to wait for the copies. */
static void an_empty_batch_waits_for_no_device(void **state)
{
    (void)state;
    static const int rows[] = {ROWS, 0};
    static job j = {.world = 2, .make = make_mlp, .rows = rows, .count = 1};
    if (!is_emulated()) skip_test("needs the emulation");
    draw_batch(&j.batch, 5, 2, (int64_t[]){ROWS, 24});
    assert_ranks_ok(ranks_run(2, wait_body, &j));
}

/* Ranks are forked from here, and CUDA does not work in children of a process that has initialised it. */
static void the_parent_has_opened_no_gpu(void **state)
{
    (void)state;
    assert_false(tern__memory_any());
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_trains),
        cmocka_unit_test(ranks_train),
        cmocka_unit_test(ranks_train_a_resnet),
        cmocka_unit_test(ranks_share_their_batch_norms),
        cmocka_unit_test(ranks_of_unequal_batches_share_their_batch_norms),
        cmocka_unit_test(four_ranks_train),
        cmocka_unit_test(gradients_go_over_in_16_bits),
        cmocka_unit_test(gradients_of_many_samples_go_over_in_16_bits),
        cmocka_unit_test(gradients_are_divided_before),
        cmocka_unit_test(buckets_are_larger_between_gpus),
        cmocka_unit_test(gradients_accumulate),
        cmocka_unit_test(a_rank_with_fewer_batches_joins),
        cmocka_unit_test(ranks_use_different_parameters_beside_batch_norms),
        cmocka_unit_test(a_rank_joins_of_two_models),
        cmocka_unit_test(ddps_of_groups_that_overlap),
        cmocka_unit_test(a_ddp_beside_a_later_models_batch_norms),
        cmocka_unit_test(gradients_of_many_pages),
        cmocka_unit_test(all_ranks_attach_their_gradients_or_none),
        cmocka_unit_test(a_warm_step_waits_for_no_device),
        cmocka_unit_test(an_empty_batch_waits_for_no_device),
        cmocka_unit_test(the_parent_has_opened_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
