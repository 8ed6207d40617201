/* test_p2p_refused.c - calls that send and recv refuse: the rank gets the reason, and its peers are told
 * that it failed. */
#include "meeting.h"
#include "message.h"

#include <tern.h>

typedef struct refusal {
    const char *name;
    int code;
    const char *text;
    void (*call)(fixture *f);
} refusal;

static void send_to(fixture *f, int dst, int tag)
{
    tern_send(f->group, f->plain, 1, TERN_F32, dst, tag, &f->err);
}

static void send_to_self(fixture *f)
{
    send_to(f, f->rank, 0);
}

static void recv_from_self(fixture *f)
{
    tern_recv(f->group, f->plain, 1, TERN_F32, f->rank, 0, NULL, &f->err);
}

static void isend_to_self(fixture *f)
{
    if (tern_isend(f->group, f->plain, 1, TERN_F32, f->rank, 0, &f->err)) f->err.code = 99;
}

static void bytes_to_self(fixture *f)
{
    tern_send_bytes(f->group, "x", 1, f->rank, 0, &f->err);
}

static void send_to_nobody(fixture *f)
{
    send_to(f, f->world, 0);
}

static void send_to_any(fixture *f)
{
    send_to(f, TERN_ANY_SOURCE, 0);
}

static void recv_from_nobody(fixture *f)
{
    tern_recv(f->group, f->plain, 1, TERN_F32, -2, 0, NULL, &f->err);
}

static void send_below_zero(fixture *f)
{
    send_to(f, 1 - f->rank, -1);
}

static void send_null(fixture *f)
{
    tern_send(f->group, NULL, 1, TERN_F32, 1 - f->rank, 0, &f->err);
}

static void send_too_much(fixture *f)
{
    tern_send(f->group, f->plain, SIZE_MAX / 4, TERN_F64, 1 - f->rank, 0, &f->err);
}

static void send_of_no_dtype(fixture *f)
{
    tern_send(f->group, f->plain, 1, TERN_DTYPE_COUNT, 1 - f->rank, 0, &f->err);
}

static void too_many_bytes(fixture *f)
{
    tern_send_bytes(f->group, f->plain, (size_t)TERN_BYTES_MAX + 1, 1 - f->rank, 0, &f->err);
}

static void recv_no_bytes(fixture *f)
{
    tern_recv_bytes(f->group, NULL, 1 - f->rank, 0, NULL, &f->err);
}

/* The first op of the batch is not started either. */
static void batch(fixture *f, tern_p2p second)
{
    tern_work *works[2] = {(tern_work *)f, (tern_work *)f};
    tern_p2p ops[] = {{TERN_SEND, f->plain, 1, TERN_F32, 1 - f->rank, 0}, second};
    int status = tern_batch_isend_irecv(f->group, ops, 2, works, &f->err);
    if (status != f->err.code || works[0] || works[1]) f->err.code = 99;
}

static void batch_with_self(fixture *f)
{
    batch(f, (tern_p2p){TERN_RECV, f->plain, 1, TERN_F32, f->rank, 0});
}

static void batch_of_what(fixture *f)
{
    batch(f, (tern_p2p){(tern_direction)2, f->plain, 1, TERN_F32, 1 - f->rank, 0});
}

static void batch_of_null(fixture *f)
{
    tern_batch_isend_irecv(f->group, NULL, 1, NULL, &f->err);
}

static const refusal refusals[] = {
    {"a send to oneself", TERN_E_INVALID, "the destination rank should not be the rank of the caller",
     send_to_self},
    {"a recv from oneself", TERN_E_INVALID, "the source rank should not be the rank of the caller",
     recv_from_self},
    {"an isend to oneself", TERN_E_INVALID, "destination is 0, this rank itself", isend_to_self},
    {"bytes to oneself", TERN_E_INVALID, "destination is 0, this rank itself", bytes_to_self},
    {"a send to nobody", TERN_E_RANGE, "destination is 2, expected 0 to 1", send_to_nobody},
    {"a send to anybody", TERN_E_RANGE, "destination is -1, expected 0 to 1", send_to_any},
    {"a recv from nobody", TERN_E_RANGE, "source is -2, expected 0 to 1", recv_from_nobody},
    {"a negative tag", TERN_E_RANGE, "tag is -1, expected at least 0", send_below_zero},
    {"no buffer", TERN_E_INVALID, "buffer is NULL, expected 1 f32 (tern_tensor_data is NULL for a view",
     send_null},
    {"too much", TERN_E_RANGE, "are more than memory holds", send_too_much},
    {"no dtype", TERN_E_DTYPE, "is not one of tern's", send_of_no_dtype},
    {"too many bytes", TERN_E_RANGE, "a string of 1073741825 bytes, expected at most 1073741824",
     too_many_bytes},
    {"no place for bytes", TERN_E_INVALID, "bytes is NULL", recv_no_bytes},
    {"a batch with oneself", TERN_E_INVALID, "ops[1]: source is 0, this rank itself", batch_with_self},
    {"a batch of what", TERN_E_INVALID, "ops[1]: direction is 2, expected", batch_of_what},
    {"a batch of nothing", TERN_E_INVALID, "1 ops at NULL", batch_of_null},
};

/* Rank 0 makes a mistake, and rank 1 is told while it waits. */
static int refuse_call_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const refusal *r = arg;
    fixture f;
    if (open_together(&f, rank, boot, 64)) return 1;
    if (rank == 0)
        r->call(&f);
    else
        tern_recv(f.group, f.plain, 1, TERN_F64, 0, 5, NULL, &f.err);
    if (rank == 0 && f.err.code != r->code) fprintf(stderr, "%d: %s\n", f.err.code, f.err.text);
    RANK_CHECK(rank, f.err.code == (rank == 0 ? r->code : TERN_E_PEER));
    RANK_CHECK(rank, strstr(f.err.text, r->text));
    return fixture_close(&f);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(refusals); i++) {
        ranks r = meeting_run(2, refuse_call_body, (void *)&refusals[i]);
        if (r.status[0] || r.status[1]) fail_msg("%s", refusals[i].name);
    }
}

/* A group of one has no peer; also mistakes that need no group. */
static int alone_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    float x = 0;
    for (int i = 0; i < 3; i++) {
        tern_error err = {0};
        tern_group *group = open_group(boot, &err);
        RANK_CHECK_OK(rank, err);
        RANK_CHECK(rank, !tern_batch_isend_irecv(group, NULL, 0, NULL, &err));
        if (i == 0) tern_send(group, &x, 1, TERN_F32, 0, 0, &err);
        if (i == 1) tern_recv(group, &x, 1, TERN_F32, TERN_ANY_SOURCE, 0, NULL, &err);
        if (i == 2) tern_irecv(group, &x, 1, TERN_F32, 1, 0, &err);
        RANK_CHECK(rank, err.code == (i == 2 ? TERN_E_RANGE : TERN_E_INVALID));
        tern_group_close(group);
    }
    tern_error err = {0};
    RANK_CHECK(rank, tern_send(NULL, &x, 1, TERN_F32, 0, 0, &err) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(err.text, "group is NULL"));
    err = (tern_error){0};
    RANK_CHECK(rank, tern_work_source(NULL, &err) == TERN_E_INVALID);
    return 0;
}

static void test_alone(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(1, alone_body, NULL));
}

static int source_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    tern_error err = {0};
    if (fixture_open(&f, rank, boot, 64)) return 1;
    tern_work *work = tern_all_reduce_post(f.group, f.plain, 1, TERN_F32, TERN_SUM, &f.err);
    RANK_CHECK(rank, tern_work_source(work, &err) == TERN_E_INVALID);
    RANK_CHECK(rank, strstr(err.text, "work is tern_all_reduce, expected one of tern_irecv"));
    tern_work_wait(work, &f.err);
    RANK_CHECK_OK(rank, f.err);
    return fixture_close(&f);
}

static void test_only_receives_have_a_source(void **state)
{
    (void)state;
    assert_ranks_ok(ranks_run(2, source_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_only_receives_have_a_source),
    };
    return cmocka_run_group_tests(tests, meeting_setup, NULL);
}
