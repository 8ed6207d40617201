/* test_work_wait.c - waits for a work that end before it is done: after a time, or because another thread
 * or a signal handler has woken the family; and time-outs of single works. */
#include "group_fixture.h"

#include <sys/time.h>
#include <tern/p2p.h>

enum { MANY = 100000 };

static double seconds_since(int64_t began)
{
    return (double)(tern__now_ns() - began) * 1e-9;
}

/* What rank 0 waits for, and rank 1 brings late. */
typedef struct late {
    bool is_message;
    int way; /* what ends the wait; see await_once */
} late;

static tern_work *post_work(tern_group *group, const late *l, float *data, tern_error *err)
{
    int rank = tern_group_rank(group);
    if (!l->is_message) return tern_all_reduce_post(group, data, MANY, TERN_F32, TERN_SUM, err);
    if (rank == 0) return tern_irecv(group, data, MANY, TERN_F32, 1, 7, err);
    return rank == 1 ? tern_isend(group, data, MANY, TERN_F32, 0, 7, err) : NULL;
}

static bool is_right(const float *data, float expected)
{
    for (int i = 0; i < MANY; i++)
        if (data[i] != expected) return false;
    return true;
}

static tern_group *woken_group;

static void *wake_later(void *arg)
{
    usleep(300000);
    tern_group_wake(arg);
    return NULL;
}

static void wake_on_alarm(int number)
{
    (void)number;
    tern_group_wake(woken_group);
}

enum { BY_TIME, BY_THREAD, BY_SIGNAL, BEFORE, WAYS };

/* One limited wait that does not see its work done. *took: how long it may have taken at most. */
static int await_once(tern_work *work, tern_group *group, int way, double *took, tern_error *err)
{
    pthread_t thread;
    int64_t began = tern__now_ns();
    *took = RANKS_SOON_S;
    if (way == BY_THREAD && pthread_create(&thread, NULL, wake_later, group)) return -1;
    if (way == BY_SIGNAL) {
        const struct itimerval soon = {.it_value = {.tv_usec = 300000}};
        woken_group = group;
        signal(SIGALRM, wake_on_alarm);
        setitimer(ITIMER_REAL, &soon, NULL);
    }
    if (way == BEFORE) tern_group_wake(group);
    int status = tern_work_wait_for(work, way == BY_TIME ? 0.3 : 100, err);
    if (way == BY_THREAD) pthread_join(thread, NULL);
    *took = seconds_since(began);
    return status;
}

/* Rank 1 begins only when rank 0 has ended a wait, and says so through a pipe. */
typedef struct shared {
    late l;
    atomic_int ended;
} shared;

static int wait_in_parts(int rank, const tern__bootstrap *boot, void *arg)
{
    shared *s = arg;
    tern_error err = {0};
    double took;
    tern_group *group = open_group(boot, &err);
    float *data = malloc(MANY * sizeof(*data));
    for (int way = 0; way < WAYS; way++) {
        int wanted = way + 1;
        for (int i = 0; i < MANY; i++) data[i] = rank + 1;
        if (rank != 0) RANK_CHECK(rank, await_count(&s->ended, wanted));
        tern_work *work = post_work(group, &s->l, data, &err);
        RANK_CHECK_OK(rank, err);
        if (rank == 0) {
            RANK_CHECK(rank, tern_work_wait_for(work, 0, &err) == TERN_PENDING);
            RANK_CHECK(rank, await_once(work, group, way, &took, &err) == TERN_PENDING);
            RANK_CHECK_OK(rank, err);
            RANK_CHECK(rank, took < RANKS_SOON_S && (way == BEFORE || took > 0.2));
            atomic_fetch_add(&s->ended, 1);
            if (way % 2) RANK_CHECK(rank, tern_work_wait_for(work, RANKS_TIMEOUT_S, &err) == TERN_OK);
            if (way % 2) RANK_CHECK(rank, tern_work_wait_for(work, 1, &err) == TERN_OK); /* and again */
        }
        if (work) RANK_CHECK(rank, tern_work_wait(work, &err) == TERN_OK);
        RANK_CHECK_OK(rank, err);
        if (s->l.is_message)
            RANK_CHECK(rank, rank > 1 || is_right(data, 2));
        else
            RANK_CHECK(rank, is_right(data, (float)(boot->world * (boot->world + 1)) / 2));
        tern_barrier(group, &err);
    }
    free(data);
    tern_group_close(group);
    RANK_CHECK_OK(rank, err);
    return 0;
}

/* A wake is not kept from a plain wait, which it does not end. */
static void a_wait_ends_by_time_thread_or_signal_and_goes_on(void **state)
{
    (void)state;
    shared *s = share_memory(sizeof(*s));
    for (int world = 2; world <= 3; world++)
        for (int is_message = 0; is_message < 2; is_message++) {
            *s = (shared){.l = {.is_message = is_message}};
            assert_ranks_ok(ranks_run(world, wait_in_parts, s));
        }
}

/* ---- the first of several ---- */

/* Rank 0 waits for messages with the tags 0 to 3 and a barrier, which rank 1 lets come in the order of
 * `turn`. */
static int wait_for_any(int rank, const tern__bootstrap *boot, void *arg)
{
    static const int turn[] = {2, 4, 0, 3, 1};
    atomic_int *seen = arg;
    tern_error err = {0};
    tern_work *works[5] = {NULL};
    float data[5] = {0};
    tern_group *group = open_group(boot, &err);
    if (rank == 0) {
        for (int i = 0; i < 4; i++) works[i] = tern_irecv(group, &data[i], 1, TERN_F32, 1, i, &err);
        works[4] = tern_all_reduce_post(group, &data[4], 1, TERN_F32, TERN_SUM, &err);
    }
    for (int i = 0; i < 5; i++) {
        size_t index = 99;
        if (rank == 1) {
            RANK_CHECK(rank, await_count(seen, i));
            float value = (float)i + 1;
            if (turn[i] < 4)
                tern_send(group, &value, 1, TERN_F32, 0, turn[i], &err);
            else
                tern_all_reduce(group, &value, 1, TERN_F32, TERN_SUM, &err);
        } else {
            tern_work *left[5];
            size_t count = 0, at[5];
            for (size_t k = 0; k < 5; k++)
                if (works[k]) at[count] = k, left[count++] = works[k];
            int64_t began = tern__now_ns();
            int status = tern_work_wait_any(left, count, RANKS_TIMEOUT_S, &index, &err);
            RANK_CHECK_OK(rank, err);
            RANK_CHECK(rank, status == TERN_OK && index < count && (int)at[index] == turn[i]);
            RANK_CHECK(rank, seconds_since(began) < RANKS_SOON_S);
            RANK_CHECK(rank,
                       tern_work_wait(works[turn[i]], &err) == TERN_OK && data[turn[i]] == (float)i + 1);
            works[turn[i]] = NULL;
            atomic_fetch_add(seen, 1);
        }
    }
    RANK_CHECK(rank, tern_work_wait_any(works, 1, 1, NULL, NULL) == TERN_E_INVALID);
    RANK_CHECK(rank, tern_work_wait_any(NULL, 0, 1, NULL, NULL) == TERN_E_INVALID);
    tern_group_close(group);
    RANK_CHECK_OK(rank, err);
    return 0;
}

static void the_first_work_that_is_done_ends_a_wait_for_any(void **state)
{
    (void)state;
    atomic_int *seen = share_memory(sizeof(*seen));
    assert_ranks_ok(ranks_run(2, wait_for_any, seen));
}

/* ---- deadlocks ---- */

/* Rank 0 waits for a call that rank 1 makes only after a wait for a message that rank 0 sends even later. */
static int call_between_waits(int rank, const tern__bootstrap *boot, void *arg)
{
    const double limit_s = *(const double *)arg;
    tern_error err = {0};
    float sum = rank + 1, message = rank ? 0 : 5;
    tern_group *group = open_group(boot, &err);
    tern_work *receives = rank ? tern_irecv(group, &message, 1, TERN_F32, 0, 7, &err) : NULL;
    RANK_CHECK_OK(rank, err);
    if (rank) RANK_CHECK(rank, tern_work_wait_for(receives, limit_s, &err) == TERN_PENDING);
    if (rank) RANK_CHECK(rank, tern_work_wait_any(&receives, 1, limit_s, NULL, &err) == TERN_PENDING);
    tern_all_reduce(group, &sum, 1, TERN_F32, TERN_SUM, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) tern_send(group, &message, 1, TERN_F32, 1, 7, &err);
    if (rank) tern_work_wait(receives, &err);
    RANK_CHECK_OK(rank, err);
    RANK_CHECK(rank, sum == 3 && message == 5);
    tern_group_close(group);
    return 0;
}

static void a_wait_that_may_end_is_no_part_of_a_deadlock(void **state)
{
    (void)state;
    double limit_s = 1; /* a deadlock is found sooner */
    assert_ranks_ok(ranks_run(2, call_between_waits, &limit_s));
}

/* ---- time-outs ---- */

static int time_out(int rank, const tern__bootstrap *boot, void *arg)
{
    const late *l = arg;
    tern_error err = {0}, set = {0};
    float *data = calloc(MANY, sizeof(*data));
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) {
        int64_t began = tern__now_ns();
        int status = TERN_PENDING;
        tern_work *work = post_work(group, l, data, &err);
        RANK_CHECK(rank, tern_work_timeout_set(work, 0, &set) == TERN_E_RANGE);
        set = (tern_error){0};
        RANK_CHECK(rank, tern_work_timeout_set(NULL, 1, &set) == TERN_E_INVALID);
        tern_work_timeout_set(work, 0.6, &err);
        while (l->way && status == TERN_PENDING) status = tern_work_wait_for(work, 0.1, &err);
        tern_error last = {0};
        int waited = tern_work_wait(work, l->way ? &last : &err);
        if (!l->way) status = waited;
        double took = seconds_since(began);
        RANK_CHECK(rank, waited < 0);
        if (status != TERN_E_TIMEOUT || !strstr(err.text, "waited 0.6 s") || took < 0.5 ||
            took > RANKS_SOON_S) {
            fprintf(stderr, "%s: %s (%.1f s)\n", tern_status_name(status), err.text, took);
            return 1;
        }
    } else { /* it comes too late */
        usleep(2000000);
        tern_barrier(group, &err);
        RANK_CHECK(rank, err.code == TERN_E_TIMEOUT);
    }
    tern_group_close(group);
    free(data);
    return 0;
}

/* In one wait, and in many short ones. */
static void a_work_may_have_a_time_out_of_its_own(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        late l = {.is_message = i % 2, .way = i / 2};
        assert_ranks_ok(ranks_run(2, time_out, &l));
    }
}

/* ---- what a peer learns ---- */

typedef struct pauses {
    double wait_s;
    unsigned pause_us; /* after each wait */
    atomic_int ended;
} pauses;

/* Rank 0 waits for a message in parts, and rank 1 in a barrier, until its time-out. */
static int time_out_beside_parts(int rank, const tern__bootstrap *boot, void *arg)
{
    pauses *p = arg;
    tern_error err = {0};
    float x;
    tern_group *group = open_group(boot, &err);
    RANK_CHECK_OK(rank, err);
    if (rank == 0) {
        tern_work *work = tern_irecv(group, &x, 1, TERN_F32, 1, 7, &err);
        while (!err.code && tern_work_wait_for(work, p->wait_s, &err) == TERN_PENDING) {
            atomic_fetch_add(&p->ended, 1);
            usleep(p->pause_us);
        }
        tern_work_wait(work, NULL);
    } else {
        RANK_CHECK(rank, await_count(&p->ended, 1));
        if (p->pause_us > 1000000) usleep(300000);
        group->opts.timeout_s = 0.4;
        tern_barrier(group, &err);
    }
    bool is_waiting = strstr(err.text, "which waits in recv of 1 f32") != NULL;
    if (err.code != TERN_E_TIMEOUT || is_waiting != (p->pause_us < 1000000)) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
        return 1;
    }
    tern_group_close(group);
    return 0;
}

/* A rank that waits in parts waits between them, too, but not if it computes for long. */
static void a_peer_learns_of_a_wait_in_parts(void **state)
{
    (void)state;
    pauses *p = share_memory(sizeof(*p));
    *p = (pauses){.wait_s = 0.06, .pause_us = 60000};
    assert_ranks_ok(ranks_run(2, time_out_beside_parts, p));
    *p = (pauses){.wait_s = 0.2, .pause_us = 2000000};
    assert_ranks_ok(ranks_run(2, time_out_beside_parts, p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_ends_by_time_thread_or_signal_and_goes_on),
        cmocka_unit_test(the_first_work_that_is_done_ends_a_wait_for_any),
        cmocka_unit_test(a_wait_that_may_end_is_no_part_of_a_deadlock),
        cmocka_unit_test(a_work_may_have_a_time_out_of_its_own),
        cmocka_unit_test(a_peer_learns_of_a_wait_in_parts),
    };
    unsetenv("LOCAL_WORLD_SIZE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
