/* test_nccl_messages.c - messages between ranks whose memory is on GPUs, on an emulation of NCCL: which
 * ones go directly between the devices, and that these keep all guarantees of messages. */
#include "check.h"

#include "comm/ranks.h"

#include "comm/move/window/window.h"
#include "comm/move/nccl/nccl.h"
#include "device/device.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { LONG = 40000, SHORT = 1000 }; /* counts of f32 */

typedef struct desk {
    tern_group *group;
    tern_device *device;
    int rank, world;
    float *out, *in; /* device memory: LONG times rank + 1, and 0 */
} desk;

static int desk_open(desk *d, const tern__bootstrap *boot, int gpu, double timeout_s, tern_error *err)
{
    static float values[LONG];
    char name[16];
    tern_group_opts opts = tern_group_defaults();
    opts.backend = "nccl";
    opts.timeout_s = timeout_s;
    snprintf(name, sizeof(name), "cuda:%d", gpu);
    *d = (desk){.rank = boot->rank, .world = boot->world};
    d->group = tern__group_open_boot(boot, &opts, err);
    d->device = tern_device_open(name, err);
    if (err->code) return err->code;
    d->out = tern__memory_new(d->device, sizeof(values), __func__, err);
    d->in = tern__memory_new(d->device, sizeof(values), __func__, err);
    for (int i = 0; i < LONG; i++) values[i] = (float)boot->rank + 1;
    int status = tern__memory_copy(d->out, values, sizeof(values), err);
    return status ? status : tern__memory_zero(d->in, sizeof(values), err);
}

static void desk_close(desk *d)
{
    tern__memory_free(d->out);
    tern__memory_free(d->in);
    tern_group_close(d->group);
    tern_device_close(d->device);
}

/* Whether all `count` elements are `value`. */
static bool holds(const float *data, int count, float value)
{
    static float came[LONG];
    tern_error err = {0};
    if (tern__memory_copy(came, data, (size_t)count * sizeof(*came), &err)) return false;
    for (int i = 0; i < count; i++)
        if (came[i] != value) return false;
    return true;
}

/* The number of messages that went directly between devices. */
static uint64_t moved(const desk *d)
{
    const tern__nccl *nccl = d->group->state;
    uint64_t count = 0;
    for (const tern__nccl_comm *comm = nccl->mail_device ? nccl->mail_device->comms : NULL; comm;
         comm = comm->next)
        count += comm->launched;
    return count;
}

/* ---- correct use ---- */

/* All ranks send first. */
static int ring_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    tern_error err = {0};
    const int *count = arg;
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    int next = (rank + 1) % d.world, before = (rank + d.world - 1) % d.world;
    for (int i = 0; i < 3; i++) {
        tern__memory_zero(d.in, LONG * sizeof(float), &err);
        tern_work *sent = tern_isend(d.group, d.out, (size_t)*count, TERN_F32, next, 3, &err);
        tern_recv(d.group, d.in, (size_t)*count, TERN_F32, before, 3, NULL, &err);
        tern_work_wait(sent, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, holds(d.in, *count, (float)before + 1) && holds(d.out, *count, (float)rank + 1));
    }
    RANK_CHECK(rank, moved(&d) == (*count == LONG ? 6 : 0));
    desk_close(&d);
    return 0;
}

static void long_messages_go_from_device_to_device(void **state)
{
    (void)state;
    int count = LONG;
    for (int world = 2; world <= 4; world++) assert_ranks_ok(ranks_run(world, ring_body, &count));
}

static void short_messages_go_by_the_host(void **state)
{
    (void)state;
    int count = SHORT;
    assert_ranks_ok(ranks_run(3, ring_body, &count));
}

/* Rank 0 receives the second tag first, then from any source, and into host memory; the collective comes
 * at another point on each rank. */
static int order_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    tern_work *works[3];
    static float host[LONG], two[2];
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    float *sums = tern__memory_new(d.device, sizeof(two), __func__, &err);
    tern__memory_zero(sums, sizeof(two), &err);
    int peer = 1 - rank, source = -1;
    if (rank == 1) {
        for (int i = 0; i < 3; i++) works[i] = tern_isend(d.group, d.out, LONG - i, TERN_F32, peer, i, &err);
        tern_all_reduce(d.group, sums, 2, TERN_F32, TERN_SUM, &err);
        for (int i = 0; i < 3; i++) tern_work_wait(works[i], &err);
    } else {
        tern_recv(d.group, d.in, LONG - 1, TERN_F32, peer, 1, NULL, &err);
        RANK_CHECK(rank, holds(d.in, LONG - 1, 2) && holds(d.in + LONG - 1, 1, 0));
        tern_recv(d.group, host, LONG - 2, TERN_F32, peer, 2, NULL, &err);
        RANK_CHECK(rank, host[0] == 2 && host[LONG - 3] == 2 && host[LONG - 2] == 0);
        tern_recv(d.group, d.in, LONG, TERN_F32, TERN_ANY_SOURCE, 0, &source, &err);
        RANK_CHECK(rank, source == 1 && holds(d.in, LONG, 2));
        tern_all_reduce(d.group, sums, 2, TERN_F32, TERN_SUM, &err);
    }
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, moved(&d) == 2);
    tern__memory_free(sums);
    desk_close(&d);
    return 0;
}

static void tags_and_sources_are_what_they_are_on_hosts(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, order_body, NULL));
}

static int batch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    tern_work *works[2];
    static float host[LONG];
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    bool is_host = rank == 1; /* it sends from host memory */
    for (int i = 0; i < LONG; i++) host[i] = 7;
    const tern_p2p ops[] = {{TERN_SEND, is_host ? host : d.out, LONG, TERN_F32, 1 - rank, 0},
                            {TERN_RECV, d.in, LONG, TERN_F32, 1 - rank, 0}};
    tern_batch_isend_irecv(d.group, ops, 2, works, &err);
    for (int i = 0; i < 2; i++)
        while (tern_work_test(works[i], &err) == TERN_PENDING) sched_yield();
    for (int i = 0; i < 2; i++) tern_work_wait(works[i], &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, holds(d.in, LONG, is_host ? 1 : 7) && moved(&d) == 1);
    desk_close(&d);
    return 0;
}

static void a_batch_of_two_memories(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, batch_body, NULL));
}

/* Two ranks share a GPU, which NCCL would refuse. */
static int shared_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, 0, 60, &err);
    if (rank == 0) tern_send(d.group, d.out, LONG, TERN_F32, 1, 0, &err);
    if (rank == 1) tern_recv(d.group, d.in, LONG, TERN_F32, 0, 0, NULL, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, moved(&d) == 0 && (rank == 0 || holds(d.in, LONG, 1)));
    desk_close(&d);
    return 0;
}

static void two_ranks_on_one_gpu_go_by_the_host(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, shared_body, NULL));
}

/* Every rank sends some messages to every other one and receives as many, in its own order, with sums at
 * different points on every rank. */
enum { STORM = 3, RANKS = 4, MOST = 2 * STORM * RANKS };

typedef struct storm {
    desk d;
    float *out[STORM], *in[RANKS][STORM], *sums;
    int order[MOST], count; /* of messages: which, to whom, and whether it is received */
} storm;

static void shuffle(storm *s, tern_rng *rng)
{
    s->count = 0;
    for (int i = 0; i < MOST; i++)
        if (i / 2 % RANKS != s->d.rank) s->order[s->count++] = i;
    for (int i = s->count - 1; i > 0; i--) {
        int other = (int)(tern_rng_u32(rng) % (uint32_t)(i + 1)), at = s->order[i];
        s->order[i] = s->order[other];
        s->order[other] = at;
    }
}

static tern_work *storm_start(const storm *s, int what, tern_error *err)
{
    int which = what / 2 / RANKS, peer = what / 2 % RANKS;
    size_t count = (size_t)(LONG - which);
    if (what % 2) return tern_irecv(s->d.group, s->in[peer][which], count, TERN_F32, peer, which, err);
    return tern_isend(s->d.group, s->out[which], count, TERN_F32, peer, which, err);
}

/* Two sums are begun among the messages. */
static void storm_round(storm *s, tern_rng *rng, tern_error *err)
{
    tern_work *works[MOST], *sums[2];
    int places[2] = {(int)(tern_rng_u32(rng) % 9), 9 + (int)(tern_rng_u32(rng) % 9)}, begun = 0;
    shuffle(s, rng);
    for (int i = 0; i < s->count; i++) {
        works[i] = storm_start(s, s->order[i], err);
        if (begun == 2 || i != places[begun]) continue;
        sums[begun] = tern_all_reduce_post(s->d.group, s->sums + 4 * begun, 4, TERN_F32, TERN_SUM, err);
        begun++;
    }
    bool is_first = tern_rng_u32(rng) % 2;
    for (int k = 0; k < 2 && is_first; k++) tern_work_wait(sums[k], err);
    for (int i = s->count - 1; i >= 0; i--) tern_work_wait(works[i], err);
    for (int k = 0; k < 2 && !is_first; k++) tern_work_wait(sums[k], err);
}

static int storm_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    static storm s;
    tern_error err = {0};
    desk_open(&s.d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    tern_rng *rng = tern_rng_new(17 + (uint64_t)rank, &err);
    s.sums = tern__memory_new(s.d.device, 8 * sizeof(float), __func__, &err);
    for (int i = 0; i < STORM; i++) s.out[i] = s.d.out;
    for (int i = 0; i < RANKS * STORM; i++)
        s.in[i / STORM][i % STORM] = tern__memory_new(s.d.device, LONG * sizeof(float), __func__, &err);
    for (int round = 0; round < 4; round++) {
        tern__memory_copy(s.sums, s.d.out, 8 * sizeof(float), &err);
        storm_round(&s, rng, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, holds(s.sums, 8, 1 + 2 + 3 + 4));
        for (int i = 0; i < RANKS * STORM; i++) {
            float *in = s.in[i / STORM][i % STORM];
            RANK_CHECK(rank, i / STORM == rank || holds(in, LONG - i % STORM, (float)(i / STORM) + 1));
            tern__memory_zero(in, LONG * sizeof(float), &err);
        }
    }
    RANK_CHECK(rank, moved(&s.d) == (uint64_t)(4 * s.count));
    for (int i = 0; i < RANKS * STORM; i++) tern__memory_free(s.in[i / STORM][i % STORM]);
    tern__memory_free(s.sums);
    tern_rng_free(rng);
    desk_close(&s.d);
    return 0;
}

static void messages_in_any_order_beside_sums(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(RANKS, storm_body, NULL));
}

/* ---- kernels that are loaded late ---- */

/* Waits until NCCL has enqueued its works. */
static void await_comms(const desk *d, tern_error *err)
{
    const tern__nccl *nccl = d->group->state;
    for (tern__nccl_comm *comm = nccl->mail_device->comms; comm; comm = comm->next)
        while (tern__nccl_comm_test(comm, err) == TERN_PENDING) usleep(100);
}

/* Waits for the other rank without progressing messages. */
static void meet(atomic_int *come)
{
    int next = (atomic_fetch_add(come, 1) / 2 + 1) * 2;
    while (atomic_load(come) < next) usleep(100);
}

static void use_new_kernel(const desk *d, tern_error *err)
{
    tern_scope *scope = tern_scope_new(d->device, NULL, err);
    tern_exp(scope, tern_full(scope, TERN_F32, 1, (int64_t[]){64}, 1));
    tern_scope_end(scope, err);
    tern_scope_free(scope);
}

/* Each rank has accepted the other's first message when it begins its second one, and learns then that its
 * own was accepted. Then hosts wait for their devices, which wait for each other. */
static int loads_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    tern_error err = {0};
    tern_work *works[4];
    int peer = 1 - rank;
    alarm(RANKS_TIMEOUT_S);
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    tern_work *first = tern_isend(d.group, d.out, LONG, TERN_F32, peer, 0, &err);
    tern_recv(d.group, d.in, LONG, TERN_F32, peer, 0, NULL, &err);
    tern_work_wait(first, &err);
    await_comms(&d, &err);
    works[0] = tern_isend(d.group, d.out, LONG, TERN_F32, peer, 1, &err);
    meet(arg);
    works[1] = tern_irecv(d.group, d.in, LONG, TERN_F32, peer, 1, &err);
    meet(arg);
    works[2] = tern_isend(d.group, d.out, LONG, TERN_F32, peer, 2, &err);
    await_comms(&d, &err);
    meet(arg);
    use_new_kernel(&d, &err);
    works[3] = tern_irecv(d.group, d.in, LONG, TERN_F32, peer, 2, &err);
    for (int i = 0; i < 4; i++) tern_work_wait(works[i], &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, moved(&d) == 6 && holds(d.in, LONG, (float)peer + 1));
    desk_close(&d);
    return 0;
}

static void a_kernel_is_loaded_beside_messages(void **state)
{
    (void)state;
    atomic_int *come = share_memory(sizeof(*come));
    setenv("TERN_EMULATED_LAZY", "1", 1);
    assert_ranks_ok(ranks_run(2, loads_body, come));
    unsetenv("TERN_EMULATED_LAZY");
    munmap(come, sizeof(*come));
}

/* ---- failures ---- */

static int mismatch_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    if (rank == 0) tern_send(d.group, d.out, LONG, TERN_F32, 1, 5, &err);
    if (rank == 1) tern_recv(d.group, d.in, LONG - 1, TERN_F32, 0, 5, NULL, &err);
    RANK_CHECK(rank, err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(err.text, "rank 0: send of 40000 f32 to rank 1, tag 5"));
    RANK_CHECK(rank, strstr(err.text, "rank 1: recv of 39999 f32 from rank 0, tag 5"));
    desk_close(&d);
    return 0;
}

static void a_wrong_count_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, mismatch_body, NULL));
}

/* Rank 1 dies before its device has received, or before it has posted the receive, but not before rank 0
 * is done with the first message. */
static int death_body(int rank, const tern__bootstrap *boot, void *arg)
{
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    for (int count = LONG; count >= SHORT; count -= LONG - SHORT) {
        if (rank == 0) tern_send(d.group, d.out, (size_t)count, TERN_F32, 1, 0, &err);
        if (rank == 1) tern_recv(d.group, d.in, (size_t)count, TERN_F32, 0, 0, NULL, &err);
    }
    RANK_CHECK_OK(rank, err);
    if (rank == 1 && arg) tern_irecv(d.group, d.in, LONG, TERN_F32, 0, 0, &err);
    if (rank == 1) raise(SIGKILL);
    int64_t began = tern__now_ns();
    for (int i = 0; i < 2 && !err.code; i++) tern_send(d.group, d.out, LONG, TERN_F32, 1, 0, &err);
    RANK_CHECK(rank, err.code == TERN_E_PEER && strstr(err.text, "rank 1 ("));
    RANK_CHECK(rank, (double)(tern__now_ns() - began) * 1e-9 < 2);
    desk_close(&d);
    return 0;
}

static void a_rank_that_dies_is_named(void **state)
{
    (void)state;
    static int after;
    for (int i = 0; i < 2; i++) {
        ranks r = ranks_run(2, death_body, i ? &after : NULL);
        assert_int_equal(r.status[0], 0);
        assert_int_equal(r.status[1], 128 + SIGKILL);
    }
}

static int late_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, rank, 1, &err);
    if (rank == 1) sleep(3);
    if (rank == 0) tern_send(d.group, d.out, LONG, TERN_F32, 1, 8, &err);
    if (rank == 1) tern_recv(d.group, d.in, LONG, TERN_F32, 0, 8, NULL, &err);
    RANK_CHECK(rank, err.code == TERN_E_TIMEOUT || (rank == 1 && err.code == TERN_E_PEER));
    RANK_CHECK(rank, strstr(err.text, "rank 0 waited 1 s in send of 40000 f32 to rank 1, tag 8"));
    desk_close(&d);
    return 0;
}

static void a_rank_that_comes_late_is_named(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, late_body, NULL));
}

/* Rank 0 closes its group with a message that rank 1 has matched, and NCCL cannot connect the two any more.
 */
static int unconnected_body(int rank, const tern__bootstrap *boot, void *arg)
{
    atomic_int *matched = arg;
    struct rlimit files;
    desk d;
    tern_error err = {0};
    desk_open(&d, boot, rank, 60, &err);
    RANK_CHECK_OK(rank, err);
    tern_work *work = rank ? tern_irecv(d.group, d.in, LONG, TERN_F32, 0, 0, &err)
                           : tern_isend(d.group, d.out, LONG, TERN_F32, 1, 0, &err);
    const tern__nccl *nccl = d.group->state;
    while (rank == 0 && !atomic_load(matched)) tern__shm_progress(d.group->root->shm, &err);
    if (rank == 0) RANK_CHECK(rank, !tern__shm_progress(d.group->root->shm, &err));
    getrlimit(RLIMIT_NOFILE, &files);
    if (rank == 0) setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, files.rlim_max});
    while (rank == 1 && !nccl->mail_device->comms) tern_work_test(work, &err);
    atomic_store(matched, 1);
    if (rank == 1) RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_E_PEER);
    RANK_CHECK(rank, !rank || strstr(err.text, "rank 0 has closed its group before its send of 40000 f32"));
    desk_close(&d);
    if (rank == 0) RANK_CHECK(rank, tern_work_wait(work, NULL) == TERN_E_STATE);
    return setrlimit(RLIMIT_NOFILE, &files);
}

static void a_group_is_closed_with_a_message_that_cannot_go(void **state)
{
    (void)state;
    atomic_int *matched = share_memory(sizeof(*matched));
    if (!getenv("TERN_TEST_HOSTS")) assert_ranks_ok(ranks_run(2, unconnected_body, matched));
    munmap(matched, sizeof(*matched));
}

/* Waits until the watch has aborted all communicators and the device has nothing more to do in them. */
static void await_abort(tern__nccl *nccl)
{
    const tern__nccl_comm *comm = nccl->mail_device->comms;
    tern_device *device = comm->gpu->device;
    pthread_mutex_lock(&nccl->lock);
    while (comm->handle || nccl->aborts) pthread_cond_wait(&nccl->changed, &nccl->lock);
    pthread_mutex_unlock(&nccl->lock);
    while (device->backend->event_query(device, comm->events[0], NULL)) usleep(100);
}

/* Rank 1's device hangs in a sum that rank 0's has no part of, and so it never sends. Both time out, which
 * ends rank 0's receive on its device. */
static int hung_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    desk d;
    uint32_t window;
    uint64_t seq;
    tern_error err = {0};
    desk_open(&d, boot, rank, 1, &err);
    tern_all_reduce(d.group, d.out, 2, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    tern__nccl *nccl = d.group->state;
    const tern__comm_backend *backend = d.group->backend;
    RANK_CHECK(rank, !tern__window_of(d.group, d.device, &window, &err));
    const tern__extent extent = {window, (uint64_t)((char *)d.out - d.device->memory.base), 2};
    const tern__post post = {.kind = TERN__ALL_REDUCE,
                             .dtype = TERN_F32,
                             .op = TERN_SUM,
                             .extents = &extent,
                             .extent_count = 1,
                             .only_meets = rank == 0};
    RANK_CHECK(rank, !backend->post(d.group->channel, &post, &seq, &err));
    RANK_CHECK(rank, !backend->wait(d.group->channel, seq, &err));
    tern_work *work = rank ? tern_isend(d.group, d.out, LONG, TERN_F32, 0, 0, &err)
                           : tern_irecv(d.group, d.in, LONG, TERN_F32, 1, 0, &err);
    while (!moved(&d)) RANK_CHECK(rank, tern_work_test(work, &err) == TERN_PENDING);
    await_abort(nccl);
    RANK_CHECK(rank, !tern__nccl_mailbox_advance(nccl->mailbox, &err));
    RANK_CHECK(rank, tern_work_wait(work, &err) && strstr(err.text, "waited 1 s for cuda:1 to finish"));
    desk_close(&d);
    return 0;
}

static void a_message_that_was_aborted_is_not_done(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, hung_body, NULL));
}

int main(void)
{
    if (!getenv("TERN_PLUGIN_PATH")) return skip_program("this build has no emulation of CUDA");
    setenv("TERN_EMULATED_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_messages_go_from_device_to_device),
        cmocka_unit_test(short_messages_go_by_the_host),
        cmocka_unit_test(tags_and_sources_are_what_they_are_on_hosts),
        cmocka_unit_test(a_batch_of_two_memories),
        cmocka_unit_test(two_ranks_on_one_gpu_go_by_the_host),
        cmocka_unit_test(messages_in_any_order_beside_sums),
        cmocka_unit_test(a_kernel_is_loaded_beside_messages),
        cmocka_unit_test(a_wrong_count_is_named),
        cmocka_unit_test(a_rank_that_dies_is_named),
        cmocka_unit_test(a_rank_that_comes_late_is_named),
        cmocka_unit_test(a_message_that_was_aborted_is_not_done),
        cmocka_unit_test(a_group_is_closed_with_a_message_that_cannot_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
