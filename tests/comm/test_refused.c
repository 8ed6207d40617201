/* test_refused.c - calls that the collectives refuse: a wrong call of one rank, of which the others are
 * told, and calls of two ranks that do not match, for which all get the same error. */
#include "comm/meet/shm.h"
#include "group_fixture.h"

#include <math.h>
#include <stdarg.h>

typedef struct memory {
    char *x, *y, *window; /* 2048 bytes each, the window 4096 */
} memory;

typedef int (*call)(tern_group *group, memory m, tern_error *err);

/* ---- wrong calls, on two ranks ---- */

#define CALL(name, ...)                                                                                      \
    static int name(tern_group *group, memory m, tern_error *err)                                            \
    {                                                                                                        \
        (void)m;                                                                                             \
        return __VA_ARGS__;                                                                                  \
    }

static const size_t twos[] = {2, 2}, two_three[] = {2, 3}, huge[] = {SIZE_MAX / 4, 1};
static const size_t much[] = {SIZE_MAX / 8, SIZE_MAX / 8};

CALL(reduce_null, tern_reduce(group, NULL, 4, TERN_F32, TERN_SUM, 0, err))
CALL(reduce_root, tern_reduce(group, m.x, 4, TERN_F32, TERN_SUM, 2, err))
CALL(reduce_negative, tern_reduce(group, m.x, 4, TERN_F32, TERN_SUM, -1, err))
CALL(reduce_mean, tern_reduce(group, m.x, 4, TERN_I64, TERN_AVG, 0, err))
CALL(mean_of_bytes, tern_all_reduce(group, m.x, 4, TERN_I8, TERN_AVG, err))
CALL(factor_of_shorts, tern_all_reduce_premul(group, m.x, 4, TERN_I16, 2, err))
CALL(bits_of_floats, tern_all_reduce(group, m.x, 4, TERN_BF16, TERN_BXOR, err))
CALL(no_factor, tern_all_reduce(group, m.x, 4, TERN_F32, TERN_PREMUL_SUM, err))
CALL(no_operation, tern_reduce(group, m.x, 4, TERN_F32, (tern_reduce_op)9, 0, err))
CALL(infinite_factor, tern_all_reduce_premul(group, m.x, 4, TERN_F32, INFINITY, err))
CALL(whole_factor, tern_reduce_premul(group, m.x, 4, TERN_I32, 2, 0, err))
CALL(gather_null, tern_gather(group, m.x, NULL, 4, TERN_F32, 1, err))
CALL(gather_root, tern_gather(group, m.x, m.y, 4, TERN_F32, 7, err))
CALL(gather_overlap, tern_gather(group, m.x, m.x, 4, TERN_F32, 1, err))
CALL(scatter_null, tern_scatter(group, NULL, m.y, 4, TERN_F32, 1, err))
CALL(scatter_overlap, tern_scatter(group, m.x, m.x + 4, 4, TERN_F32, 1, err))
CALL(scatter_huge, tern_scatter(group, m.x, m.y, SIZE_MAX / 4, TERN_F32, 1, err))
CALL(exchange_dtype, tern_all_to_all(group, m.x, m.y, 4, (tern_dtype)99, err))
CALL(exchange_in_place, tern_all_to_all(group, m.x, m.x, 4, TERN_F32, err))
CALL(exchange_window, tern_all_to_all(group, m.window, m.y, 4096, TERN_U8, err))
CALL(split_null, tern_all_to_all_v(group, m.x, NULL, m.y, twos, TERN_F32, err))
CALL(split_no_buffer, tern_all_to_all_v(group, NULL, twos, m.y, twos, TERN_F32, err))
CALL(split_overlap, tern_all_to_all_v(group, m.x, twos, m.x + 4, twos, TERN_F32, err))
CALL(split_huge, tern_all_to_all_v(group, m.x, huge, m.y, twos, TERN_F32, err))
CALL(split_much, tern_all_to_all_v(group, m.x, much, m.y, twos, TERN_F64, err))
CALL(lists_null, tern_all_gather_v(group, m.x, 4, NULL, TERN_F32, err))
CALL(coalesced_null, tern_all_reduce_coalesced(group, NULL, 3, TERN_F32, TERN_SUM, err))
CALL(coalesced_outs, tern_all_gather_coalesced(group, &(tern_span){m.x, 4}, NULL, 1, TERN_F32, err))
CALL(coalesced_buffer, tern_broadcast_coalesced(group, &(tern_span){NULL, 4}, 1, TERN_F32, 0, err))
CALL(coalesced_huge,
     tern_all_reduce_coalesced(group, (tern_span[]){{m.x, SIZE_MAX / 16}, {m.x, SIZE_MAX / 16}}, 2, TERN_F32,
                               TERN_SUM, err))
CALL(coalesced_length,
     tern_all_reduce_coalesced(group, &(tern_span){m.x, 4}, SIZE_MAX / 2, TERN_F32, TERN_SUM, err))
CALL(coalesced_window,
     tern_all_reduce_coalesced(group, &(tern_span){m.window, 4097}, 1, TERN_U8, TERN_SUM, err))
CALL(bytes_null, tern_all_gather_bytes(group, NULL, 4, (tern_bytes *)m.y, err))
CALL(bytes_nowhere, tern_all_gather_bytes(group, m.x, 4, NULL, err))
CALL(bytes_huge, tern_gather_bytes(group, m.x, (size_t)TERN_BYTES_MAX + 1, (tern_bytes *)m.y, 0, err))
CALL(bytes_root, tern_broadcast_bytes(group, (tern_bytes *)memset(m.y, 0, 16), 2, err))
CALL(bytes_of_nobody, tern_broadcast_bytes(group, NULL, 0, err))
CALL(bytes_ins, tern_scatter_bytes(group, NULL, (tern_bytes *)m.y, 1, err))
CALL(bytes_out, tern_scatter_bytes(group, NULL, NULL, 0, err))
CALL(bytes_outs, tern_gather_bytes(group, m.x, 4, NULL, 1, err))
CALL(no_time, tern_monitored_barrier(group, 0, true, err))
CALL(no_number, tern_monitored_barrier(group, NAN, false, err))

static const struct {
    call call;
    int code;
} wrongs[] = {
    {reduce_null, TERN_E_INVALID},    {reduce_root, TERN_E_RANGE},         {reduce_negative, TERN_E_RANGE},
    {reduce_mean, TERN_E_DTYPE},      {bits_of_floats, TERN_E_DTYPE},      {no_factor, TERN_E_INVALID},
    {no_operation, TERN_E_INVALID},   {infinite_factor, TERN_E_RANGE},     {whole_factor, TERN_E_DTYPE},
    {gather_null, TERN_E_INVALID},    {gather_root, TERN_E_RANGE},         {gather_overlap, TERN_E_INVALID},
    {scatter_null, TERN_E_INVALID},   {scatter_overlap, TERN_E_INVALID},   {scatter_huge, TERN_E_RANGE},
    {exchange_dtype, TERN_E_DTYPE},   {exchange_in_place, TERN_E_INVALID}, {exchange_window, TERN_E_RANGE},
    {split_null, TERN_E_INVALID},     {split_no_buffer, TERN_E_INVALID},   {split_overlap, TERN_E_INVALID},
    {split_huge, TERN_E_RANGE},       {split_much, TERN_E_RANGE},          {lists_null, TERN_E_INVALID},
    {coalesced_null, TERN_E_INVALID}, {coalesced_outs, TERN_E_INVALID},    {coalesced_buffer, TERN_E_INVALID},
    {coalesced_huge, TERN_E_RANGE},   {coalesced_length, TERN_E_RANGE},    {coalesced_window, TERN_E_RANGE},
    {bytes_null, TERN_E_INVALID},     {bytes_nowhere, TERN_E_INVALID},     {bytes_huge, TERN_E_RANGE},
    {bytes_root, TERN_E_RANGE},       {bytes_of_nobody, TERN_E_INVALID},   {bytes_ins, TERN_E_INVALID},
    {bytes_out, TERN_E_INVALID},      {bytes_outs, TERN_E_INVALID},        {no_time, TERN_E_RANGE},
    {no_number, TERN_E_RANGE},        {mean_of_bytes, TERN_E_DTYPE},       {factor_of_shorts, TERN_E_DTYPE},
};

/* A rank that learns early of the other's mistake gets it in f->err. */
static void begin(fixture *f, const tern__bootstrap *boot, memory *m)
{
    *f = (fixture){.plain = calloc(1, 4096)};
    f->group = open_group(boot, &f->err);
    *m = (memory){f->plain, f->plain + 2048, tern_group_mem_alloc(f->group, 4096, &f->err)};
}

static int wrong_body(int rank, const tern__bootstrap *boot, void *arg)
{
    size_t which = *(const size_t *)arg;
    fixture f;
    memory m;
    begin(&f, boot, &m);
    if (rank == 1) {
        int code = wrongs[which].call(f.group, m, &f.err);
        if (code != wrongs[which].code) fprintf(stderr, "case %zu: %s\n", which, f.err.text);
        RANK_CHECK(rank, code == wrongs[which].code && f.err.code == code);
    } else {
        RANK_CHECK(rank, tern_barrier(f.group, &f.err) == TERN_E_PEER);
        RANK_CHECK(rank, strstr(f.err.text, "rank 1 ("));
    }
    return fixture_close(&f);
}

static void test_wrong_calls_end_the_group(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(wrongs); i++) {
        assert_ranks_ok(ranks_run(2, wrong_body, &i));
        tern_error err = {0};
        char x[256] = {0};
        assert_int_equal(wrongs[i].call(NULL, (memory){x, x, x}, &err), TERN_E_INVALID);
        assert_string_equal(err.text, "group is NULL");
    }
}

/* ---- calls that do not match ---- */

CALL(reduce, tern_reduce(group, m.x, 4, TERN_F32, TERN_SUM, 0, err))
CALL(reduce_to_1, tern_reduce(group, m.x, 4, TERN_F32, TERN_SUM, 1, err))
CALL(reduce_bits, tern_reduce(group, m.x, 4, TERN_I32, TERN_BXOR, 0, err))
CALL(premul, tern_all_reduce_premul(group, m.x, 4, TERN_F32, 2, err))
CALL(all_reduce, tern_all_reduce(group, m.x, 4, TERN_F32, TERN_SUM, err))
CALL(gather, tern_gather(group, m.x, m.y, 4, TERN_F32, 0, err))
CALL(gather_5, tern_gather(group, m.x, m.y, 5, TERN_F32, 0, err))
CALL(scatter, tern_scatter(group, m.x, m.y, 4, TERN_F32, 0, err))
CALL(scatter_from_1, tern_scatter(group, m.x, m.y, 4, TERN_F32, 1, err))
CALL(exchange, tern_all_to_all(group, m.x, m.y, 4, TERN_F32, err))
CALL(exchange_halves, tern_all_to_all(group, m.x, m.y, 4, TERN_BF16, err))
CALL(monitored, tern_monitored_barrier(group, 5, true, err))
CALL(barrier, tern_barrier(group, err))
CALL(list, tern_all_reduce_coalesced(group, (tern_span[]){{m.x, 1}, {m.y, 3}}, 2, TERN_F32, TERN_SUM, err))
CALL(other_list,
     tern_all_reduce_coalesced(group, (tern_span[]){{m.x, 3}, {m.y, 1}}, 2, TERN_F32, TERN_SUM, err))
CALL(split, tern_all_to_all_v(group, m.x, tern_group_size(group) == 3 ? (size_t[]){2, 2, 2} : twos, m.y,
                              (size_t[]){2, 2, 2}, TERN_F32, err))
CALL(split_3, tern_all_to_all_v(group, m.x, (size_t[]){3, 2, 2}, m.y, (size_t[]){2, 2, 2}, TERN_F32, err))
CALL(split_own,
     tern_all_to_all_v(group, m.x, (size_t[]){2, two_three[1], 2}, m.y, (size_t[]){2, 2, 2}, TERN_F32, err))
CALL(lists,
     tern_all_gather_v(group, m.x, 2, (tern_span[]){{m.y, 2}, {m.y + 8, 2}, {m.y + 16, 2}}, TERN_F32, err))
CALL(lists_9,
     tern_all_gather_v(group, m.x, 2, (tern_span[]){{m.y, 9}, {m.y + 40, 2}, {m.y + 80, 2}}, TERN_F32, err))

static const struct {
    call calls[2]; /* the call of ranks 0 and 2, and that of rank 1 */
    const char *texts[2];
} pairs[] = {
    {{reduce, reduce_to_1}, {"reduce of 4 f32, sum to rank 0", "reduce of 4 f32, sum to rank 1"}},
    {{reduce, reduce_bits}, {"reduce of 4 f32, sum to rank 0", "reduce of 4 i32, bxor to rank 0"}},
    {{all_reduce, premul}, {"all_reduce of 4 f32, sum", "all_reduce of 4 f32, premul_sum"}},
    {{all_reduce, reduce}, {"all_reduce of 4 f32, sum", "reduce of 4 f32, sum to rank 0"}},
    {{gather, gather_5}, {"gather to 12 f32 on rank 0", "gather to 15 f32 on rank 0"}},
    {{gather, scatter}, {"gather to 12 f32 on rank 0", "scatter of 12 f32 from rank 0"}},
    {{scatter, scatter_from_1}, {"scatter of 12 f32 from rank 0", "scatter of 12 f32 from rank 1"}},
    {{exchange, exchange_halves}, {"all_to_all of 12 f32", "all_to_all of 12 bf16"}},
    {{exchange, split}, {"all_to_all of 12 f32", "all_to_all_v of f32"}},
    {{barrier, monitored}, {"rank 0: barrier", "rank 1: monitored_barrier"}},
    {{all_reduce, list}, {"all_reduce of 4 f32, sum (work", "all_reduce of 4 f32, sum in a list (work"}},
    {{list, other_list}, {"all_reduce of 4 f32, sum in a list", "their lists of buffers differ"}},
    {{lists, split}, {"all_gather_v of f32", "all_to_all_v of f32"}},
    {{split, split_3}, {"rank 1 gives 3 elements to rank 0, which takes 2", ""}},
    {{split, split_own}, {"rank 1 gives 3 elements to rank 1, which takes 2", ""}},
    {{lists, lists_9}, {"rank 0 gives 2 elements to rank 1, which takes 9", ""}},
};

static int pair_body(int rank, const tern__bootstrap *boot, void *arg)
{
    size_t which = *(const size_t *)arg;
    fixture f;
    memory m;
    begin(&f, boot, &m);
    pairs[which].calls[rank == 1](f.group, m, &f.err);
    for (int i = 0; i < 2; i++) {
        if (!strstr(f.err.text, pairs[which].texts[i]))
            fprintf(stderr, "case %zu, rank %d: %s\n", which, rank, f.err.text);
        RANK_CHECK(rank, strstr(f.err.text, pairs[which].texts[i]));
    }
    RANK_CHECK(rank, f.err.code == TERN_E_MISMATCH);
    return fixture_close(&f);
}

static void test_mismatches_are_told_to_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(pairs); i++) assert_ranks_ok(ranks_run(3, pair_body, &i));
}

/* ---- a mismatch that nobody waits for at the moment when it is found ---- */

#define LATE_TEXT "rank 0 gives 2 elements to rank 1, which takes 9"

typedef struct late_hook {
    tern__progress_hook hook;
    tern_group *group;
    int rank;
} late_hook;

/* Rank 1 is slow to find the mismatch. Rank 0 finds it when rank 1 has ended the family for it. */
static int late_hook_progress(tern__progress_hook *hook, tern_error *err)
{
    late_hook *late = (late_hook *)hook;
    tern_group *group = late->group;
    if (late->rank == 1)
        usleep(20000);
    else if (!group->backend->test(group->channel, 1, err))
        usleep(100000);
    return TERN_OK;
}

/* Rank 2, whose counts match, comes last. */
static int late_wait_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    memory m;
    begin(&f, boot, &m);
    late_hook late = {.hook = {.progress = late_hook_progress}, .group = f.group, .rank = rank};
    if (rank == 2) usleep(100000);
    if (rank < 2) tern__progress_hook_add(&f.group->hooks, &late.hook);
    (rank == 1 ? lists_9 : lists)(f.group, m, &f.err);
    if (rank < 2) tern__progress_hook_remove(&f.group->hooks, &late.hook);
    RANK_CHECK(rank, rank == 2 || (f.err.code == TERN_E_MISMATCH && strstr(f.err.text, LATE_TEXT)));
    return fixture_close(&f);
}

/* The test of a work that is done finds that a later work has failed. */
static int late_test_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    memory m;
    begin(&f, boot, &m);
    int status = TERN_PENDING;
    tern_work *done = tern_all_reduce_post(f.group, m.x, 4, TERN_F32, TERN_SUM, &f.err);
    tern_work *failed = tern_all_gather_v_post(
        f.group, m.y, 2, (tern_span[]){{m.y + 64, rank == 1 ? 9 : 2}, {m.y + 128, 2}, {m.y + 192, 2}},
        TERN_F32, &f.err);
    RANK_CHECK(rank, done && failed);
    if (rank == 1) usleep(200000);
    while (rank == 0 && status == TERN_PENDING) status = f.group->backend->test(f.group->channel, 2, &f.err);
    RANK_CHECK(rank, rank || (!status && !tern_work_test(done, &f.err)));
    status = tern_work_wait(failed, &f.err);
    RANK_CHECK(rank, rank == 2 || (status == TERN_E_MISMATCH && strstr(f.err.text, LATE_TEXT)));
    tern_work_wait(done, NULL);
    return fixture_close(&f);
}

static void test_a_mismatch_that_another_wait_finds(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(3, late_wait_body, NULL));
    assert_ranks_ok(ranks_run(3, late_test_body, NULL));
}

/* ---- a failure whose first rank loses its core while it writes it down ---- */

enum { POSTED = 1, WRITING, TOLD };

static _Thread_local atomic_int *slow_steps; /* set on the rank that is slow, in the thread that fails */

__attribute__((format(printf, 3, 4))) int snprintf(char *text, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, size, format, args);
    va_end(args);
    if (!slow_steps || size != TERN_ERROR_TEXT || strcmp(format, "%s")) return length;
    atomic_store(slow_steps, WRITING);
    await_count(slow_steps, TOLD);
    slow_steps = NULL;
    return length;
}

/* Rank 1 posts first, so that rank 0 is the first to see that the calls differ. */
static int slow_body(int rank, const tern__bootstrap *boot, void *arg)
{
    atomic_int *steps = arg;
    fixture f;
    memory m;
    begin(&f, boot, &m);
    if (rank == 0) {
        RANK_CHECK(rank, await_count(steps, POSTED));
        slow_steps = steps;
        tern_all_reduce(f.group, m.x, 4, TERN_F32, TERN_SUM, &f.err);
        RANK_CHECK(rank, !slow_steps);
    } else {
        tern_work *work = tern_all_reduce_post(f.group, m.x, 5, TERN_F32, TERN_SUM, &f.err);
        atomic_store(steps, POSTED);
        RANK_CHECK(rank, work && await_count(steps, WRITING));
        tern_work_wait(work, &f.err);
        atomic_store(steps, TOLD);
    }
    if (f.err.code != TERN_E_MISMATCH) fprintf(stderr, "rank %d: %s\n", rank, f.err.text);
    RANK_CHECK(rank, f.err.code == TERN_E_MISMATCH && strstr(f.err.text, "all_reduce of 5 f32, sum"));
    return fixture_close(&f);
}

static void test_nobody_waits_for_a_failure_to_be_written(void **state)
{
    (void)state;
    atomic_int *steps = share_memory(sizeof(*steps));
    assert_ranks_ok(ranks_run(2, slow_body, steps));
    munmap(steps, sizeof(*steps));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_calls_end_the_group),
        cmocka_unit_test(test_mismatches_are_told_to_all),
        cmocka_unit_test(test_a_mismatch_that_another_wait_finds),
        cmocka_unit_test(test_nobody_waits_for_a_failure_to_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
