/* test_staged.c - gradients that go through the host's windows while the device is far behind the host:
 * nothing writes to a window that the device still reads, and what can be reduced is reduced while it
 * computes. */
#include "nets.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "nn/nn.h"
#include "parallel/ddp.h"

enum { STEPS = 6, ROWS = 8, MOST = 1 << 12 };

/* ---- windows that are still read ---- */

typedef enum way {
    HEADS,  /* each rank has a head of its own in each step */
    IDLES,  /* in each step only one rank uses the model */
    SHADOW, /* rank 1 runs out of inputs after two steps, and goes on stepping */
    WAYS
} way;

typedef struct job {
    way way;
    tern_dtype reduce_dtype;
    batch batch;
} job;

typedef struct branches {
    tern_module base;
    tern_module *trunk, *heads[2];
} branches;

typedef struct run {
    tern__listener listener; /* first */
    const job *job;
    int rank;
    tern_group *group;
    tern_device *device;
    tern_module *net, *other; /* `other` has no ddp */
    tern_ddp *ddp;
    tern_optim *optim;
    tern_scope *scope;
    tern_error err;
} run;

static tern_tensor *forward(tern_module *module, tern_scope *scope, tern_tensor *x)
{
    return tern_relu(scope, tern_forward(((branches *)module)->trunk, scope, x));
}

static tern_module *make_branches(tern_rng *rng, tern_error *err)
{
    static const char *const names[] = {"one", "two"};
    branches *b = tern__module_new(sizeof(*b), "branches", forward, err);
    if (!b) return NULL;
    b->trunk = tern_module_add(&b->base, "trunk", tern_linear_new(24, 40, NULL, rng, err), err);
    for (int i = 0; i < 2; i++)
        b->heads[i] = tern_module_add(&b->base, names[i], tern_linear_new(40, 5, NULL, rng, err), err);
    return &b->base;
}

/* Waits until the peer has reduced a bucket to which this rank contributes nothing, before this rank's
 * device goes on. */
static int begin(tern__listener *self, const tern_tensor *loss, tern_error *err)
{
    const tern_ddp *ddp = ((run *)self)->ddp;
    (void)loss;
    if (!ddp->round.next_bucket) return TERN_OK;
    return ddp->group->backend->wait(ddp->channel, ddp->round.last_seq, err);
}

static int end(tern__listener *self, tern_error *err)
{
    (void)self;
    (void)err;
    return TERN_OK;
}

static void open_run(run *r, tern_group *group, const job *j)
{
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.reduce_dtype = j->reduce_dtype;
    opts.checksum_every = 0; /* it reads the parameters and so waits for the device */
    opts.first_bucket_bytes = opts.bucket_bytes = 500;
    *r = (run){.job = j, .rank = tern_group_rank(group), .group = group};
    tern_rng *rng = tern_rng_new(3, &r->err);
    r->device = tern_device_open("cuda:0", &r->err);
    r->net = make_branches(rng, &r->err);
    r->other = tern_linear_new(24, 5, NULL, rng, &r->err);
    tern_module_to(r->net, r->device, &r->err);
    tern_module_to(r->other, r->device, &r->err);
    r->ddp = tern_ddp_new(r->net, group, &opts, &r->err);
    r->optim = make_sgd(r->net, &r->err);
    r->scope = tern_scope_new(r->device, group, &r->err);
    r->listener = (tern__listener){.begin = begin, .end = end};
    if (!r->err.code) r->ddp->listener.next = &r->listener;
    tern_rng_free(rng);
}

static void close_run(run *r)
{
    tern_scope_free(r->scope);
    tern_optim_free(r->optim);
    if (r->ddp) r->ddp->listener.next = NULL;
    tern_ddp_free(r->ddp);
    tern_module_free(r->net);
    tern_module_free(r->other);
    tern_device_close(r->device);
}

static tern_tensor *scores_of(run *r, tern_tensor *x, int step)
{
    const branches *b = (const branches *)r->net;
    int turn = r->job->way == HEADS ? step + r->rank : step / 2;
    if (r->job->way == IDLES && step % 2 != r->rank) return tern_forward(r->other, r->scope, x);
    return tern_forward(b->heads[turn % 2], r->scope, tern_forward(r->net, r->scope, x));
}

static int update(void *arg, tern_error *err)
{
    run *r = arg;
    tern_optim_step(r->optim, r->scope);
    return tern_scope_end(r->scope, err);
}

static void train(run *r)
{
    int count = r->job->way == SHADOW && r->rank == 1 ? 2 : STEPS;
    const tern_join_opts opts = {.size = sizeof(opts), .after_backward = update, .ctx = r};
    for (int i = 0; i < count && !r->err.code; i++) {
        tern_tensor *x = rows_of(r->scope, &r->job->batch, r->rank, 2),
                    *y = labels_of(r->scope, &r->job->batch, r->rank, 2);
        tern_backward(r->scope, tern_cross_entropy(r->scope, scores_of(r, x, i), y, NULL));
        update(r, &r->err);
    }
    if (r->job->way == SHADOW) tern_ddp_join(r->ddp, &opts, &r->err);
}

static size_t read_one(run *r, const tern_tensor *tensor, char *to)
{
    size_t bytes = tern__view_bytes(&tensor->view);
    tern_tensor_read(tensor, to, bytes, &r->err);
    return bytes;
}

/* Reads parameters and momenta, which were not read before; returns the number of bytes. */
static size_t read_all(run *r, char *to)
{
    size_t used = 0;
    for (int i = 0; i < tern_state_count(r->net); i++)
        used += read_one(r, tern_state_get(r->net, i).tensor, to + used);
    tern_optim_state *state = tern_optim_state_gather(r->optim, -1, &r->err);
    for (int i = 0; i < tern_optim_state_count(state); i++)
        used += read_one(r, tern_optim_state_entries(state)[i].tensor, to + used);
    tern_optim_state_free(state);
    return used;
}

/* Applies to devices opened from here on. */
static void set_behind(bool is_behind)
{
    if (is_behind)
        setenv("TERN_EMULATED_ASYNC", "1", 1);
    else
        unsetenv("TERN_EMULATED_ASYNC");
}

/* Trains on a device that is behind, or not. */
static size_t train_anew(tern_group *group, const job *j, bool is_behind, char *to, tern_error *err)
{
    run r;
    set_behind(is_behind);
    open_run(&r, group, j);
    train(&r);
    size_t used = r.err.code ? 0 : read_all(&r, to);
    close_run(&r);
    *err = r.err;
    return used;
}

static int equal_body(int rank, const tern__bootstrap *boot, void *arg)
{
    static char prompt[MOST * sizeof(float)], behind[MOST * sizeof(float)];
    const job *j = arg;
    tern_error err = {0};
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    RANK_CHECK_OK(rank, err);
    size_t bytes = train_anew(group, j, false, prompt, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, train_anew(group, j, true, behind, &err) == bytes && bytes <= sizeof(behind));
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !memcmp(behind, prompt, bytes));
    tern_broadcast(group, behind, bytes, TERN_U8, 0, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !memcmp(behind, prompt, bytes));
    tern_group_close(group);
    return 0;
}

static void expect_the_same_bits(way how)
{
    static job j;
    static const tern_dtype dtypes[] = {TERN_F32, TERN_BF16};
    j.way = how;
    draw_batch(&j.batch, 5, 2, (int64_t[]){ROWS, 24});
    for (size_t i = 0; i < TERN__COUNT(dtypes); i++) {
        j.reduce_dtype = dtypes[i];
        assert_ranks_ok(ranks_run(2, equal_body, &j));
    }
}

static void heads_are_used_in_turn(void **state)
{
    (void)state;
    expect_the_same_bits(HEADS);
}

static void a_rank_does_not_use_the_model(void **state)
{
    (void)state;
    expect_the_same_bits(IDLES);
}

static void a_rank_has_run_out_of_inputs(void **state)
{
    (void)state;
    expect_the_same_bits(SHADOW);
}

/* ---- progress meanwhile ---- */

typedef enum lateness {
    LATE,                 /* the device reaches no event while the first bucket is posted and not reduced */
    STUCK_BEFORE_BUCKETS, /* nor ever, once that is posted */
    STUCK_BEFORE_BUFFERS  /* the same once all buckets are posted */
} lateness;

static struct {
    tern__device_backend backend;
    const tern__device_backend *behind;
    const tern_ddp *ddp;
    lateness how;
    bool dies;  /* the rank dies where it would be stuck, like its peer */
    int stalls; /* waits in which nothing else could progress */
} late;

/* The first gradients equal the number of this rank's rows: 2 or 4. */
static bool is_reduced(void)
{
    const tern__extent *first = late.ddp->buckets[0].extents;
    const char *base = tern__window_own(late.ddp->group, first->window);
    float value;
    memcpy(&value, base + first->offset, sizeof(value));
    return value == 3;
}

static bool is_late(void)
{
    int posted = late.ddp->round.active ? late.ddp->round.next_bucket : 0;
    if (late.how == STUCK_BEFORE_BUFFERS) return posted == late.ddp->bucket_count;
    return posted > 0 && (late.how == STUCK_BEFORE_BUCKETS || !is_reduced());
}

static int late_test(tern_device *device, tern__device_event *event, tern_error *err)
{
    if (late.dies && is_late()) {
        late.ddp->group->backend->wait(late.ddp->channel, late.ddp->round.last_seq, err);
        kill(getpid(), SIGKILL);
    }
    return is_late() ? TERN_PENDING : late.behind->event_query(device, event, err);
}

static int late_wait(tern_device *device, tern__device_event *event, tern_error *err)
{
    late.stalls += is_late();
    return late.behind->event_wait(device, event, err);
}

static void be_late(tern_device *device, const tern_ddp *ddp, lateness how)
{
    late.backend = *device->backend;
    late.behind = device->backend;
    late.ddp = ddp;
    late.how = how;
    late.dies = how != LATE && tern_group_rank(ddp->group) == 1;
    late.backend.event_query = late_test;
    late.backend.event_wait = late_wait;
    device->backend = &late.backend;
}

/* A classifier whose last layer has a bias, which comes first; after a batch norm, which has buffers. */
static tern_module *make_net(tern_rng *rng, tern_error *err)
{
    tern_module *net = tern_sequential_new(err);
    tern_sequential_add(net, tern_linear_new(24, 40, NULL, rng, err), err);
    tern_sequential_add(net, tern_batch_norm1d_new(40, NULL, err), err);
    tern_sequential_add(net, tern_linear_new(40, 5, NULL, rng, err), err);
    return net;
}

/* Rank 0 has 2 rows, rank 1 has 4. */
static void backward(tern_module *net, tern_scope *scope, int rank)
{
    tern_tensor *x = tern_full(scope, TERN_F32, 2, (int64_t[]){2 * (rank + 1), 24}, 1);
    tern_backward(scope, tern_sum(scope, tern_forward(net, scope, x)));
}

static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    lateness how = *(const lateness *)arg;
    tern_error err = {0};
    tern_ddp_opts opts = tern_ddp_defaults();
    opts.first_bucket_bytes = opts.bucket_bytes = 1;
    tern_group *group = tern__group_open_boot(boot, NULL, &err);
    tern_device *device = tern_device_open("cuda:0", &err);
    tern_rng *rng = tern_rng_new(3, &err);
    tern_module *net = make_net(rng, &err);
    tern_module_to(net, device, &err);
    tern_ddp *ddp = tern_ddp_new(net, group, &opts, &err);
    tern_scope *scope = tern_scope_new(device, group, &err);
    RANK_CHECK_OK(rank, err);
    be_late(device, ddp, how);
    backward(net, scope, rank);
    tern_scope_end(scope, &err);
    RANK_CHECK(rank, how == LATE ? !err.code : err.code == TERN_E_PEER && strstr(err.text, "rank 1"));
    RANK_CHECK(rank, !late.stalls);
    device->backend = late.behind;
    tern_scope_free(scope);
    tern_ddp_free(ddp);
    tern_module_free(net);
    tern_rng_free(rng);
    tern_device_close(device);
    tern_group_close(group);
    return 0;
}

static void buckets_are_reduced_while_the_device_computes(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, late_body, &(lateness){LATE}));
}

static void a_rank_is_lost_while_the_device_computes(void **state)
{
    (void)state;
    for (lateness how = STUCK_BEFORE_BUCKETS; how <= STUCK_BEFORE_BUFFERS; how++) {
        ranks r = ranks_run(2, late_body, &how);
        assert_int_equal(r.status[0], 0);
        assert_int_equal(r.status[1], 128 + SIGKILL);
    }
}

/* ---- the emulation ---- */

/* Queries an event after `count` clearings until it has passed; returns how often. */
static int look(tern_device *device, int count)
{
    const tern__device_backend *backend = device->backend;
    tern_error err = {0};
    tern__device_event *event = backend->event_new(device, &err);
    float *block = tern__memory_new(device, 16, "test", &err);
    assert_ok(err);
    for (int i = 0; i < count; i++) backend->zero(device, block, 16, &err);
    backend->event_record(device, TERN__STREAM_STEP, event, &err);
    int looks = 1;
    for (; backend->event_query(device, event, &err) == TERN_PENDING; looks++)
        ;
    assert_ok(err);
    tern__memory_free(block);
    backend->event_free(device, event);
    return looks;
}

static void a_step_is_behind_if_that_is_asked(void **state)
{
    (void)state;
    if (!is_emulated()) skip_test("needs the emulation");
    for (int is_behind = 0; is_behind < 2; is_behind++) {
        tern_error err = {0};
        set_behind(is_behind);
        tern_device *device = tern_device_open("cuda:0", &err);
        assert_ok(err);
        assert_int_equal(look(device, 5), is_behind ? 5 : 1);
        tern_device_close(device);
    }
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_used_in_turn),
        cmocka_unit_test(a_rank_does_not_use_the_model),
        cmocka_unit_test(a_rank_has_run_out_of_inputs),
        cmocka_unit_test(buckets_are_reduced_while_the_device_computes),
        cmocka_unit_test(a_rank_is_lost_while_the_device_computes),
        cmocka_unit_test(a_step_is_behind_if_that_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
