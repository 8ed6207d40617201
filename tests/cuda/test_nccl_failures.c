/* test_nccl_failures.c - what NCCL does not do by itself, on an emulation that hangs as NCCL does: ranks
 * that post different works, die, or are late are named, and nobody waits forever. */
#include "check.h"

#include "comm/ranks.h"

#include "comm/move/backend.h"
#include "comm/move/nccl/nccl.h"
#include "device/backend.h"
#include "parallel/ddp.h"

#include <math.h>
#include <sys/mman.h>
#include <time.h>

typedef struct desk {
    tern_group *group;
    tern_device *device;
    float *block;
    uint32_t window;
    void *channel;
} desk;

/* Opens a group and this rank's GPU, with 256 times rank + 1 in its memory. */
static int desk_open(desk *d, const tern__bootstrap *boot, int gpu, double timeout_s, tern_error *err)
{
    char name[16];
    float values[256];
    tern_group_opts opts = tern_group_defaults();
    opts.backend = "nccl";
    opts.timeout_s = timeout_s;
    snprintf(name, sizeof(name), "cuda:%d", gpu);
    *d = (desk){.group = tern__group_open_boot(boot, &opts, err), .device = tern_device_open(name, err)};
    if (err->code) return err->code;
    d->channel = d->group->channel;
    d->block = tern__memory_new(d->device, sizeof(values), __func__, err);
    for (size_t i = 0; i < TERN__COUNT(values); i++) values[i] = (float)boot->rank + 1;
    int status = tern__memory_copy(d->block, values, sizeof(values), err);
    return status ? status : tern__window_of(d->group, d->device, &d->window, err);
}

static void desk_close(desk *d)
{
    tern__memory_free(d->block);
    tern_device_close(d->device);
    tern_group_close(d->group);
}

static int post_with(desk *d, tern__post post, uint64_t count, uint64_t *seq, tern_error *err)
{
    static tern__extent extent;
    extent = (tern__extent){d->window, (uint64_t)((char *)d->block - d->device->memory.base), count};
    post.dtype = TERN_F32;
    post.extents = &extent;
    post.extent_count = 1;
    return d->group->backend->post(d->channel, &post, seq, err);
}

static int post_of(desk *d, tern__kind kind, uint64_t count, uint64_t *seq, tern_error *err)
{
    return post_with(d, (tern__post){.kind = kind}, count, seq, err);
}

static int sum(desk *d, uint64_t count, tern_error *err)
{
    uint64_t seq;
    int status = post_of(d, TERN__ALL_REDUCE, count, &seq, err);
    return status ? status : d->group->backend->wait(d->channel, seq, err);
}

/* Sums; the device is done, so all ranks have posted their part. */
static int sum_through(desk *d, tern_error *err)
{
    int status = sum(d, 256, err);
    return status ? status : d->device->backend->wait(d->device, err);
}

static double seconds_since(int64_t began)
{
    return (double)(tern__now_ns() - began) * 1e-9;
}

/* ---- correct use ---- */

static int sum_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    float value = 0;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 300; i++) RANK_CHECK(rank, !tern__memory_zero(d.block, 4, &err) && !sum(&d, 2, &err));
    RANK_CHECK(rank, !sum(&d, 256, &err));
    tern__memory_copy(&value, d.block + 200, sizeof(value), &err);
    RANK_CHECK(rank, value == 3);
    desk_close(&d);
    return 0;
}

static void many_works_are_done(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, sum_body, NULL));
}

/* ---- works of a ddp ---- */

/* The ranks' posts, what their memory holds before, and after. */
typedef struct encounter {
    tern__post of[3];
    float before[3], after[3];
} encounter;

#define MEAN .op = TERN_AVG, .terms.weighted = true
#define CAST .kind = TERN__BROADCAST, .label = {.kind = &tern__ddp_label, .user = 1}, .root = 2
static const encounter encounters[] = {
    {{{MEAN}, {MEAN, .terms.weight = 2, .terms.share = 2}, {MEAN, .terms.weight = 6, .terms.share = 2}},
     {NAN, 2, 1},
     {2.5, 2.5, 2.5}},
    {{{MEAN}, {MEAN}, {MEAN}}, {NAN, 4, 5}, {0, 0, 0}},
    {{{MEAN, .terms.idle = true}, {MEAN, .terms.idle = true}, {MEAN, .terms.idle = true}},
     {3, 4, 5},
     {3, 4, 5}},
    {{{.terms.idle = true}, {0}, {.terms.idle = true}}, {3, 4, 5}, {12, 12, 12}},
    {{{CAST}, {CAST}, {CAST}}, {3, 4, 5}, {5, 5, 5}},
    {{{CAST}, {CAST}, {CAST, .terms.shadow = true}}, {3, 4, 5}, {4, 4, 4}},
    {{{CAST}, {CAST, .terms.shadow = true}, {CAST, .terms.shadow = true}}, {3, 4, 5}, {3, 3, 3}},
    {{{CAST, .terms.shadow = true}, {CAST, .terms.shadow = true}, {CAST, .terms.shadow = true}},
     {3, 4, 5},
     {3, 4, 5}},
};

static int meet_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    uint64_t seq;
    float value;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    for (size_t i = 0; i < TERN__COUNT(encounters); i++) {
        tern__memory_copy(d.block, &encounters[i].before[rank], sizeof(value), &err);
        RANK_CHECK(rank, !post_with(&d, encounters[i].of[rank], 1, &seq, &err));
        RANK_CHECK(rank, !d.group->backend->wait(d.channel, seq, &err));
        tern__memory_copy(&value, d.block, sizeof(value), &err);
        if (value != encounters[i].after[rank]) fprintf(stderr, "encounter %zu: %g\n", i, (double)value);
        RANK_CHECK(rank, value == encounters[i].after[rank]);
    }
    desk_close(&d);
    return 0;
}

static void ranks_without_weight_are_left_out(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, meet_body, NULL));
}

/* Rank 0's works are held until rank 1 has posted them, so a third one must wait for a slot. */
static int slots_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { WORKS = 12 };
    desk d;
    tern_error err = {0};
    uint64_t seq;
    float value = 0;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    void *two = d.channel =
        d.group->backend->channel_open(d.group->state, &(tern__channel_opts){.slots = 2}, &err);
    if (rank == 1) RANK_CHECK(rank, !tern_recv(d.group, &value, 1, TERN_F32, 0, 0, NULL, &err));
    for (int i = 0; i < WORKS; i++) {
        RANK_CHECK(rank, !post_with(&d, (tern__post){.terms.idle = rank == 0}, 256, &seq, &err));
        if (rank == 0 && i == 1) RANK_CHECK(rank, !tern_send(d.group, &value, 1, TERN_F32, 1, 0, &err));
    }
    RANK_CHECK(rank, !d.group->backend->wait(two, seq, &err));
    tern__memory_copy(&value, d.block, sizeof(value), &err);
    RANK_CHECK(rank, value == 3 << (WORKS - 1));
    d.group->backend->channel_close(two);
    desk_close(&d);
    return 0;
}

static void works_wait_for_a_slot(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, slots_body, NULL));
}

/* ---- closing ---- */

/* Two more groups, which the ranks close in different order. */
static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    tern_group *groups[2];
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    for (int i = 0; i < 2; i++) {
        groups[i] = tern_group_new(d.group, (int[]){0, 1}, 2, NULL, &err);
        tern_all_reduce(groups[i], d.block, 256, TERN_F32, TERN_SUM, &err);
    }
    RANK_CHECK_OK(rank, err);
    tern_group_close(groups[rank]);
    tern_group_close(groups[1 - rank]);
    desk_close(&d);
    return 0;
}

static void groups_are_closed_in_any_order(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, order_body, NULL));
}

/* Closes a channel whose work the ranks have met for but not waited for; another channel's work comes
 * after it. */
static int leave_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    uint64_t seq, next;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    const tern__comm_backend *backend = d.group->backend;
    const tern__nccl *nccl = d.group->state;
    tern__nccl_channel *second =
        backend->channel_open(d.group->state, &(tern__channel_opts){.slots = 4}, &err);
    void *first = d.channel;
    d.channel = second;
    RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err));
    d.channel = first;
    RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 128, &next, &err));
    uint64_t meeting = second->works[seq % second->slots].seq;
    while (nccl->behind->test(nccl->order, meeting, &err) == TERN_PENDING) usleep(100);
    backend->channel_close(second);
    RANK_CHECK(rank, !backend->wait(d.channel, next, &err));
    desk_close(&d);
    return 0;
}

static void a_channel_takes_no_others_work_along(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, leave_body, NULL));
}

/* Closes a channel while another one's work is held, since rank 1 has not posted it. More works follow. */
static int hold_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    uint64_t seq;
    float value = 0;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !sum_through(&d, &err));
    void *second = d.group->backend->channel_open(d.group->state, &(tern__channel_opts){.slots = 4}, &err);
    if (rank == 1) RANK_CHECK(rank, !tern_recv(d.group, &value, 1, TERN_F32, 0, 0, NULL, &err));
    RANK_CHECK(rank, !post_with(&d, (tern__post){.terms.idle = true}, 256, &seq, &err));
    d.group->backend->channel_close(second);
    RANK_CHECK(rank, !post_with(&d, (tern__post){.terms.idle = rank == 1}, 256, &seq, &err));
    if (rank == 0) RANK_CHECK(rank, !tern_send(d.group, &value, 1, TERN_F32, 1, 0, &err));
    RANK_CHECK(rank, !d.group->backend->wait(d.channel, seq, &err));
    tern__memory_copy(&value, d.block, sizeof(value), &err);
    RANK_CHECK(rank, value == 6);
    desk_close(&d);
    return 0;
}

static void a_closed_channel_leaves_others_works_in_order(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, hold_body, NULL));
}

/* Rank 0 closes a channel before it opens the next, rank 1 after: only rank 0 has a communicator to spare. */
static int spare_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    uint64_t seq;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    const tern__comm_backend *backend = d.group->backend;
    const tern__channel_opts opts = {.slots = 4, .is_separate = true};
    void *first = backend->channel_open(d.group->state, &opts, &err);
    RANK_CHECK(rank, first);
    if (rank == 0) backend->channel_close(first);
    d.channel = backend->channel_open(d.group->state, &opts, &err);
    RANK_CHECK(rank, d.channel);
    if (rank == 1) backend->channel_close(first);
    RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err));
    RANK_CHECK(rank, !backend->wait(d.channel, seq, &err));
    backend->channel_close(d.channel);
    desk_close(&d);
    return 0;
}

static void ranks_may_have_different_communicators_to_spare(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, spare_body, NULL));
}

/* Closes a channel whose work the device has not done: what the step does next comes after it. */
static int close_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    uint64_t seq;
    float five = 5;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    const tern__comm_backend *backend = d.group->backend;
    const tern__nccl *nccl = d.group->state;
    RANK_CHECK(rank, !sum_through(&d, &err));
    tern__nccl_channel *second = d.channel =
        backend->channel_open(d.group->state, &(tern__channel_opts){.slots = 4}, &err);
    RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err));
    uint64_t meeting = second->works[seq % second->slots].seq;
    while (nccl->behind->test(nccl->order, meeting, &err) == TERN_PENDING) usleep(100);
    backend->channel_close(second);
    tern__memory_copy(d.block, &five, sizeof(five), &err);
    tern_group_close(d.group);
    five = 0;
    tern__memory_copy(&five, d.block, sizeof(five), &err);
    RANK_CHECK(rank, five == 5);
    tern__memory_free(d.block);
    tern_device_close(d.device);
    return 0;
}

static void the_step_waits_for_a_closed_channel(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, close_body, NULL));
}

/* Rank 0 closes its group with a work that rank 1 never posts. */
static int unmet_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !sum_through(&d, &err));
    int64_t began = tern__now_ns();
    if (rank == 0) RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err));
    while (rank == 1 && !tern__group_check(d.group, __func__, &err) && seconds_since(began) < RANKS_SOON_S)
        usleep(1000);
    RANK_CHECK(rank, rank == 0 || strstr(err.text, "rank 0 has closed its group before work "));
    tern__memory_free(d.block);
    tern_group_close(d.group);
    tern_device_close(d.device);
    RANK_CHECK(rank, seconds_since(began) < RANKS_SOON_S);
    return 0;
}

static void a_group_closed_too_early_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, unmet_body, NULL));
}

/* ---- one GPU ---- */

static int shared_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    RANK_CHECK(rank, desk_open(&d, boot, 0, 60, &err) == TERN_E_UNSUPPORTED);
    RANK_CHECK(rank,
               strstr(err.text, "rank 0 (") && strstr(err.text, "rank 1 (") && strstr(err.text, "cuda:0"));
    RANK_CHECK(rank,
               strstr(err.text, "choose another back end (TERN_BACKEND=gloo, or tern_group_opts.backend)"));
    desk_close(&d);
    return 0;
}

static void two_ranks_on_one_gpu_are_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, shared_body, NULL));
}

/* ---- different works ---- */

static int mismatch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    uint64_t seq;
    tern_error err = {0};
    bool differs_in_kind = arg;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    tern__kind kind = rank && differs_in_kind ? TERN__BROADCAST : TERN__ALL_REDUCE;
    int status = post_of(&d, kind, rank && !differs_in_kind ? 100 : 200, &seq, &err);
    if (!status) status = d.group->backend->wait(d.group->channel, seq, &err);
    RANK_CHECK(rank, status == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "all_reduce of 200 f32"));
    RANK_CHECK(rank, strstr(err.text, differs_in_kind ? "broadcast of 200 f32" : "all_reduce of 100 f32"));
    tern__group_fail(d.group, &err);
    desk_close(&d);
    return 0;
}

static void different_works_are_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, mismatch_body, NULL));
    static int kinds;
    assert_ranks_ok(ranks_run(2, mismatch_body, &kinds));
}

/* ---- death ---- */

/* Rank 1 dies before or after posting the work; its device never runs its part. */
static int death_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !sum_through(&d, &err));
    if (rank == 1 && arg) post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err);
    if (rank == 1) raise(SIGKILL);
    int64_t began = tern__now_ns();
    int status = sum(&d, 256, &err);
    while (!status && seconds_since(began) < 1) status = tern__group_check(d.group, __func__, &err);
    if (status != TERN_E_PEER || !strstr(err.text, "rank 1 (")) fprintf(stderr, "%d: %s\n", status, err.text);
    RANK_CHECK(rank, status == TERN_E_PEER);
    RANK_CHECK(rank, strstr(err.text, "rank 1 ("));
    RANK_CHECK(rank, seconds_since(began) < 1);
    tern__group_fail(d.group, &err);
    desk_close(&d);
    return 0;
}

/* Rank 0's device hangs in two communicators, and aborting one waits for the other. */
static int two_comms_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    void *first = d.channel;
    const tern__channel_opts opts = {.slots = 4, .is_separate = true};
    d.channel = d.group->backend->channel_open(d.group->state, &opts, &err);
    RANK_CHECK(rank, d.channel && !sum_through(&d, &err));
    if (rank == 1) raise(SIGKILL);
    post_of(&d, TERN__ALL_REDUCE, 256, &seq, &err);
    d.group->backend->channel_close(d.channel);
    d.channel = first;
    RANK_CHECK(rank, sum(&d, 256, &err) == TERN_E_PEER);
    tern__group_fail(d.group, &err);
    desk_close(&d);
    return 0;
}

static void expect_death(ranks_body body, void *arg)
{
    ranks r = ranks_run(2, body, arg);
    assert_int_equal(r.status[0], 0);
    assert_int_equal(r.status[1], 128 + SIGKILL);
}

static void a_rank_that_dies_is_named(void **state)
{
    (void)state;
    static int after;
    expect_death(death_body, NULL);
    expect_death(death_body, &after);
    expect_death(two_comms_body, NULL);
}

/* ---- time ---- */

static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, rank, 1, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !sum(&d, 256, &err));
    if (rank == 1) sleep(2);
    int status = sum(&d, 256, &err);
    RANK_CHECK(rank, status == (rank ? TERN_E_PEER : TERN_E_TIMEOUT) || status == TERN_E_TIMEOUT);
    RANK_CHECK(rank, strstr(err.text, "rank 0 waited 1 s in all_reduce of 256 f32"));
    tern__group_fail(d.group, &err);
    desk_close(&d);
    return 0;
}

static void a_rank_that_comes_late_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, late_body, NULL));
}

/* Rank 0 meets for a work and never gives NCCL its part, so NCCL does not begin rank 1's. */
static int begin_half(desk *d, int rank, uint64_t *seq, tern_error *err)
{
    const tern__post post = {.kind = TERN__ALL_REDUCE, .only_meets = rank == 0};
    int status = post_with(d, post, 256, seq, err);
    return status || rank ? status : d->group->backend->wait(d->channel, *seq, err);
}

/* Rank 0's time is up in a barrier, to which rank 1 does not come. */
static int barrier_body(desk *d, tern_error *err)
{
    uint64_t seq;
    const tern__post barrier = {.kind = TERN__BARRIER};
    int status = d->group->backend->post(d->channel, &barrier, &seq, err);
    if (!status) status = d->group->backend->wait(d->channel, seq, err);
    RANK_CHECK(0, status == TERN_E_TIMEOUT && strstr(err->text, "rank 0 waited 1 s in barrier (work 1)"));
    tern__group_fail(d->group, err);
    desk_close(d);
    return 0;
}

/* Rank 1 waits for NCCL to begin a work. */
static int begins_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, rank ? 60 : 1, &err);
    RANK_CHECK(rank, !begin_half(&d, rank, &seq, &err));
    if (rank == 0 && barrier_body(&d, &err)) return 1;
    if (rank == 1) RANK_CHECK(rank, d.group->backend->wait(d.channel, seq, &err));
    RANK_CHECK(rank, strstr(err.text, "waits in NCCL to begin all_reduce of 256 f32, sum (work "));
    if (rank == 1) desk_close(&d);
    return 0;
}

/* Rank 1 closes its device, which is in the midst of a work. */
static int closes_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, rank ? 60 : 1, &err);
    RANK_CHECK(rank, !sum_through(&d, &err) && !begin_half(&d, rank, &seq, &err));
    if (rank == 1) RANK_CHECK(rank, !d.group->backend->wait(d.channel, seq, &err));
    if (rank == 0 && barrier_body(&d, &err)) return 1;
    RANK_CHECK(rank, rank || strstr(err.text, "waits in NCCL to finish its work 2 on cuda:1"));
    if (rank == 1) desk_close(&d);
    return 0;
}

/* Both ranks close their devices before they wait for the work there. */
static int closed_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK(rank, !post_with(&d, (tern__post){.kind = TERN__ALL_REDUCE}, 256, &seq, &err));
    const tern__nccl *nccl = d.group->state;
    while (!nccl->devices->comms->launched) RANK_CHECK(rank, !d.group->root->progress(d.group, &err));
    tern__memory_free(d.block);
    tern_device_close(d.device);
    d.group->backend->wait(d.channel, seq, &err);
    RANK_CHECK_OK(rank, err);
    tern_group_close(d.group);
    return 0;
}

static void a_closed_device_has_done_its_works(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, closed_body, NULL));
}

static void a_rank_that_waits_in_nccl_says_so(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, begins_body, NULL));
    assert_ranks_ok(ranks_run(2, closes_body, NULL));
}

/* Rank 1's time is up in NCCL, while rank 0 does something else, or waits in a barrier. */
static int slow_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, rank ? 1 : 60, &err);
    RANK_CHECK(rank, !begin_half(&d, rank, &seq, &err));
    const tern__post barrier = {.kind = TERN__BARRIER};
    if (rank == 0 && arg) d.group->backend->post(d.channel, &barrier, &seq, &err);
    RANK_CHECK_OK(rank, err);
    int status = rank || arg ? d.group->backend->wait(d.channel, seq, &err) : TERN_OK;
    while (!status) status = tern__group_check(d.group, __func__, &err);
    tern__group_fail(d.group, &err);
    RANK_CHECK(rank,
               strstr(err.text, "rank 1 waited 1 s for NCCL to begin all_reduce of 256 f32, sum (work "));
    RANK_CHECK(rank,
               strstr(err.text, "; rank 0 (") && !arg == !strstr(err.text, "waits in barrier (work 1)"));
    desk_close(&d);
    return 0;
}

static void a_wait_in_nccl_names_the_others(void **state)
{
    (void)state;
    static int waits;
    assert_ranks_ok(ranks_run(2, slow_body, NULL));
    assert_ranks_ok(ranks_run(2, slow_body, &waits));
}

/* Nobody waits for the last two of many works, so for the watch they have not begun, although they take the
 * events of the first two. Of these one is finished before and one after. */
static int many_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    enum { EVENTS = TERN__NCCL_EVENTS, MANY = EVENTS + 2 };
    desk d;
    uint64_t seqs[MANY];
    tern_error err = {0};
    desk_open(&d, boot, rank, 20, &err);
    RANK_CHECK_OK(rank, err);
    tern__nccl *nccl = d.group->state;
    d.channel = d.group->backend->channel_open(nccl, &(tern__channel_opts){.slots = 2 * MANY}, &err);
    const tern__nccl_comm *comm = nccl->devices->comms;
    for (int i = 0; i < MANY; i++) {
        if (i == EVENTS) RANK_CHECK(rank, !d.group->backend->wait(d.channel, seqs[0], &err));
        RANK_CHECK(rank, !post_of(&d, TERN__ALL_REDUCE, 2, &seqs[i], &err));
    }
    while (comm->launched < MANY) RANK_CHECK(rank, !tern__nccl_progress(&nccl->hook, &err));
    RANK_CHECK(rank, !d.group->backend->wait(d.channel, seqs[EVENTS - 1], &err));
    RANK_CHECK(rank, comm->began[0] == 0 && comm->began[1] == 0 && comm->began[2] != 0);
    d.group->backend->wait(d.channel, seqs[MANY - 1], &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, comm->began[0] != 0);
    d.group->backend->channel_close(d.channel);
    desk_close(&d);
    return 0;
}

static void works_that_nobody_waits_for_may_come_late(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, many_body, NULL));
}

/* Rank 1 is stopped before its device has done a work that all have posted. With some drivers NCCL cannot
 * abort while a peer lives that has not; rank 0 is told all the same. */
static int stopped_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    uint64_t first, second;
    tern_error err = {0};
    pid_t *stopped = arg;
    setenv("EMULATED_NCCL_ABORT_WAITS", "1", 1);
    desk_open(&d, boot, rank, 1, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, !sum_through(&d, &err));
    const tern__post post = {.kind = TERN__ALL_REDUCE, .only_meets = rank == 1};
    int status = post_with(&d, post, 256, &first, &err);
    if (!status) status = post_with(&d, post, 256, &second, &err);
    if (!status) status = d.group->backend->wait(d.channel, rank ? second : first, &err);
    RANK_CHECK(rank, !status);
    if (rank == 1) {
        *stopped = getpid();
        raise(SIGSTOP);
        desk_close(&d);
        return 0;
    }
    sleep(2); /* until the watch aborts */
    int64_t began = tern__now_ns();
    status = d.group->backend->wait(d.channel, second, &err);
    RANK_CHECK(rank, status && strstr(err.text, "rank 0 waited 1 s for cuda:0 to finish NCCL's work 2"));
    RANK_CHECK(rank, seconds_since(began) < 3);
    kill(*stopped, SIGCONT);
    tern__group_fail(d.group, &err);
    desk_close(&d);
    return 0;
}

static void a_stopped_rank_stops_no_other(void **state)
{
    (void)state;
    pid_t *stopped = share_memory(sizeof(*stopped));
    assert_ranks_ok(ranks_run(2, stopped_body, stopped));
    munmap(stopped, sizeof(*stopped));
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "3", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_works_are_done),
        cmocka_unit_test(ranks_without_weight_are_left_out),
        cmocka_unit_test(works_wait_for_a_slot),
        cmocka_unit_test(groups_are_closed_in_any_order),
        cmocka_unit_test(a_channel_takes_no_others_work_along),
        cmocka_unit_test(a_closed_channel_leaves_others_works_in_order),
        cmocka_unit_test(ranks_may_have_different_communicators_to_spare),
        cmocka_unit_test(the_step_waits_for_a_closed_channel),
        cmocka_unit_test(a_group_closed_too_early_is_named),
        cmocka_unit_test(two_ranks_on_one_gpu_are_named),
        cmocka_unit_test(different_works_are_named),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(a_rank_that_comes_late_is_named),
        cmocka_unit_test(a_closed_device_has_done_its_works),
        cmocka_unit_test(a_rank_that_waits_in_nccl_says_so),
        cmocka_unit_test(a_wait_in_nccl_names_the_others),
        cmocka_unit_test(works_that_nobody_waits_for_may_come_late),
        cmocka_unit_test(a_stopped_rank_stops_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
