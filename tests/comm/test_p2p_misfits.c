/* test_p2p_misfits.c - messages that do not match: both sides get both descriptions. Also between hosts. */
#include "meeting.h"
#include "message.h"

#include <tern.h>

enum { long_bytes = 2 << 20 };

typedef struct misfit {
    const char *name, *sent, *received;
    size_t send_count, recv_count;
    tern_dtype send_dtype, recv_dtype;
    bool keeps;      /* the receiver first receives a later message */
    int sends_bytes; /* 1: the sender's (receiver's) message is a byte string */
    int receives_bytes;
} misfit;

static const misfit misfits[] = {
    {"counts", "rank 0: send of 5 f32 to rank 1, tag 3", "rank 1: recv of 7 f32 from rank 0, tag 3", 5, 7,
     TERN_F32, TERN_F32, false, 0, 0},
    {"dtypes", "rank 0: send of 5 f32 to rank 1, tag 3", "rank 1: recv of 5 i32 from rank 0, tag 3", 5, 5,
     TERN_F32, TERN_I32, true, 0, 0},
    {"bytes", "rank 0: send of 4 u8 to rank 1, tag 3", "rank 1: recv of 1 f32 from rank 0, tag 3", 4, 1,
     TERN_U8, TERN_F32, false, 0, 0},
    {"long", "rank 0: send of 300000 f32 to", "recv of 300001 f32 from", 300000, 300001, TERN_F32, TERN_F32,
     true, 0, 0},
    {"long and short", "send of 300000 f32 to", "recv of 3 f32 from", 300000, 3, TERN_F32, TERN_F32, false, 0,
     0},
    {"short and long", "send of 3 f32 to", "recv of 300000 f32 from", 3, 300000, TERN_F32, TERN_F32, false, 0,
     0},
    {"a string", "rank 0: send of a byte string to rank 1, tag 3", "rank 1: recv of 1 i64 from rank 0, tag 3",
     9, 1, TERN_U8, TERN_I64, false, 1, 0},
    {"no string", "rank 0: send of 1 i64 to rank 1, tag 3",
     "rank 1: recv of a byte string from rank 0, tag 3", 1, 0, TERN_I64, TERN_U8, false, 0, 1},
};

static void send_misfit(fixture *f, const misfit *m)
{
    if (m->sends_bytes)
        tern_send_bytes(f->group, f->plain, m->send_count, 1, 3, &f->err);
    else if (m->keeps) {
        tern_work *work = tern_isend(f->group, f->plain, m->send_count, m->send_dtype, 1, 3, &f->err);
        tern_send(f->group, f->plain, 1, TERN_U8, 1, 4, &f->err);
        if (work) tern_work_wait(work, &f->err);
    } else
        tern_send(f->group, f->plain, m->send_count, m->send_dtype, 1, 3, &f->err);
}

static void receive_misfit(fixture *f, const misfit *m)
{
    tern_bytes bytes;
    if (m->keeps) tern_recv(f->group, f->plain, 1, TERN_U8, 0, 4, NULL, &f->err);
    if (m->receives_bytes)
        tern_recv_bytes(f->group, &bytes, 0, 3, NULL, &f->err);
    else
        tern_recv(f->group, f->plain, m->recv_count, m->recv_dtype, 0, 3, NULL, &f->err);
}

static int misfit_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const misfit *m = arg;
    fixture f;
    if (open_together(&f, rank, boot, long_bytes)) return 1;
    if (rank == 0) send_misfit(&f, m);
    if (rank == 1) receive_misfit(&f, m);
    tern_barrier(f.group, &f.err);
    if (f.err.code != TERN_E_MISMATCH) fprintf(stderr, "%s: %d: %s\n", m->name, f.err.code, f.err.text);
    RANK_CHECK(rank, f.err.code == TERN_E_MISMATCH);
    RANK_CHECK(rank, strstr(f.err.text, m->sent) && strstr(f.err.text, m->received));
    return fixture_close(&f);
}

static void test_misfits(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(misfits); i++) {
        assert_ranks_ok(meeting_run(2 + (int)i % 2, misfit_body, (void *)&misfits[i]));
        if (i == 0) assert_ranks_ok(meeting_run_threads(3, misfit_body, (void *)&misfits[i]));
    }
}

/* A receive that met a mismatch fails with its group, and may be waited for afterwards. */
static int misfit_work_body(int rank, const tern__bootstrap *boot, void *arg)
{
    (void)arg;
    fixture f;
    if (open_together(&f, rank, boot, 64)) return 1;
    tern_work *work = rank == 1 ? tern_irecv(f.group, f.plain, 2, TERN_F32, 0, 0, &f.err) : NULL;
    if (rank == 0) tern_send(f.group, f.plain, 1, TERN_F32, 1, 0, &f.err);
    while (rank == 1 && !f.err.code) tern_work_test(work, &f.err);
    if (rank == 0) tern_barrier(f.group, &f.err);
    RANK_CHECK(rank, f.err.code == TERN_E_MISMATCH);
    tern_group_close(f.group);
    f.group = NULL;
    RANK_CHECK(rank, !work || tern_work_wait(work, NULL) == TERN_E_STATE);
    return fixture_close(&f);
}

static void test_misfits_of_works(void **state)
{
    (void)state;
    assert_ranks_ok(meeting_run(2, misfit_work_body, NULL));
    assert_ranks_ok(meeting_run_threads(2, misfit_work_body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_misfits_of_works),
    };
    return cmocka_run_group_tests(tests, meeting_setup, NULL);
}
