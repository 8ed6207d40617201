/* test_divergence.c - ranks with different numbers of synchronised backwards that do not announce it: the
 * others get an error, whatever the odd rank does next. */
#include "ddp_fixture.h"

typedef enum ending {
    IN_BARRIER,
    IN_ALL_REDUCE,
    FREES_DDP,
    CLOSES_GROUP,
    SYNCHRONISES,
    COMPUTES,
    STOPS
} ending;

/* The odd rank, one of `world`, makes `alone` backwards in no_sync, after 2 that all have synchronised. */
typedef struct divergence {
    const char *name;
    int alone, world, odd;
    ending ending;
    int window; /* the others are in no_sync as well, except in every window-th backward */
    int code;   /* the others' error code */
    const char *text, *hint;
} divergence;

static const divergence divergences[] = {
    {"no_sync for good, then a barrier", 3, 2, 1, IN_BARRIER, 1, TERN_E_MISMATCH, "waits in barrier (work ",
     ": rank 1 has done 5 backwards, the last 3 in no_sync (tern_ddp_sync_set)"},
    {"no_sync for good, then an all_reduce", 1, 3, 0, IN_ALL_REDUCE, 1, TERN_E_MISMATCH,
     "waits in all_reduce of 1 f32, sum (work ",
     ": rank 0 has done 3 backwards, the last 1 in no_sync (tern_ddp_sync_set)"},
    {"no_sync for good, then no ddp", 4, 3, 1, FREES_DDP, 1, TERN_E_PEER, ") has freed its ddp while rank ",
     ": rank 1 has done 6 backwards, the last 4 in no_sync (tern_ddp_sync_set)"},
    {"no_sync for good, then no group", 2, 4, 3, CLOSES_GROUP, 1, TERN_E_PEER, " waits in all_reduce of ",
     ": rank 3 has done 4 backwards, the last 2 in no_sync (tern_ddp_sync_set)"},
    {"no_sync for a while", 2, 3, 2, SYNCHRONISES, 1, TERN_E_MISMATCH, "backward 3, bucket 0, 1 folded)",
     "; one was in no_sync (tern_ddp_sync_set) where the other was not"},
    {"no_sync for good", 3, 3, 1, COMPUTES, 1, TERN_E_TIMEOUT, "; not called by rank 1 (",
     ": rank 1 has done 5 backwards, the last 3 in no_sync (tern_ddp_sync_set)"},
    {"stopped", 0, 3, 1, STOPS, 1, TERN_E_TIMEOUT,
     "), which is stopped (by SIGSTOP or a debugger), whose last there was ",
     ": rank 1 has done 2 backwards"},
    {"fewer batches, then a barrier", 0, 2, 0, IN_BARRIER, 1, TERN_E_MISMATCH, "waits in barrier (work ",
     ": rank 0 has done 2 backwards: has it run out of inputs (tern_ddp_join), or do some ranks skip that "
     "call?"},
    {"fewer batches, then no ddp", 0, 2, 1, FREES_DDP, 1, TERN_E_PEER,
     ") has freed its ddp while rank 0 waits in all_reduce of ",
     ": rank 1 has done 2 backwards: has it run out of inputs (tern_ddp_join)?"},
    {"fewer batches, then no group", 0, 3, 1, CLOSES_GROUP, 1, TERN_E_PEER, " waits in all_reduce of ",
     ": rank 1 has done 2 backwards: has it run out of inputs (tern_ddp_join)?"},
    {"fewer batches in the midst of no_sync", 2, 2, 1, IN_BARRIER, 4, TERN_E_MISMATCH,
     "backward 6, bucket 0, 4 folded)",
     ": rank 1 has done 4 backwards, the last 2 in no_sync "
     "(tern_ddp_sync_set): has it run out of inputs (tern_ddp_join), or do some ranks skip that call?"},
};

static int compute_until_told(const fixture *f)
{
    int64_t deadline = tern__now_ns() + INT64_C(20000000000);
    while (tern__control_is_healthy(f->world->control)) {
        RANK_CHECK(f->rank, tern__now_ns() < deadline);
        usleep(100);
    }
    return 0;
}

/* Reads "77 (test) T .." from /proc: ranks of a job can see each other's state here. */
static bool is_stopped(pid_t pid)
{
    char path[64], state = '?';
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    bool is_read = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    if (file) fclose(file);
    return is_read && state == 'T';
}

static pid_t pid_of(const fixture *f, int rank, tern_error *err)
{
    int64_t own = getpid(), all[8];
    tern_all_gather(f->world, &own, all, 1, TERN_I64, err);
    return (pid_t)all[rank];
}

static int end_alone(fixture *f, ending how, tern_error *err)
{
    float one = 1;
    switch (how) {
    case IN_BARRIER: tern_barrier(f->world, err); break;
    case IN_ALL_REDUCE: tern_all_reduce(f->world, &one, 1, TERN_F32, TERN_SUM, err); break;
    case FREES_DDP:
        tern_ddp_free(f->ddp);
        f->ddp = NULL;
        return compute_until_told(f);
    case COMPUTES: return compute_until_told(f);
    case STOPS: raise(SIGSTOP); break;
    case CLOSES_GROUP: break;
    case SYNCHRONISES:
        tern_ddp_sync_set(f->ddp, true);
        fixture_step(f, 0, 0, 8, err);
        break;
    }
    return 0;
}

static int run_odd(fixture *f, const divergence *d, tern_error *err)
{
    tern_ddp_sync_set(f->ddp, false);
    for (int i = 0; i < d->alone; i++) {
        fixture_backward(f, 2 + i, 0, 8);
        tern_scope_end(f->s, err);
    }
    if (d->ending == COMPUTES) tern_barrier(f->world, err);
    return end_alone(f, d->ending, err);
}

static void run_others(fixture *f, const divergence *d, pid_t odd, tern_error *err)
{
    if (d->ending == COMPUTES) tern_barrier(f->world, err);
    while (d->ending == STOPS && !is_stopped(odd)) usleep(100);
    if (d->code == TERN_E_TIMEOUT) f->world->opts.timeout_s = 0.3;
    for (int i = 1; i <= 8 && !err->code; i++) {
        tern_ddp_sync_set(f->ddp, i % d->window == 0);
        fixture_backward(f, 1 + i, 0, 8);
        tern_scope_end(f->s, err);
    }
}

static int diverge_body(int rank, const tern__bootstrap *boot, void *arg)
{
    const divergence *d = arg;
    bool is_odd = rank == d->odd, is_told = !is_odd || d->code == TERN_E_MISMATCH;
    tern_error err = {0};
    fixture f;
    fixture_open(&f, boot, NULL, NULL, &err);
    for (int step = 0; step < 2; step++) fixture_step(&f, step, 0, 8, &err);
    pid_t odd = pid_of(&f, d->odd, &err);
    if (is_odd)
        RANK_CHECK_OK(rank, err); /* another rank may be told of the end before it has finished the second */
    if (is_odd && run_odd(&f, d, &err)) return 1;
    if (!is_odd) run_others(&f, d, odd, &err);
    if (d->ending == STOPS) kill(odd, SIGCONT);
    RANK_CHECK(rank, err.code == (is_told ? d->code : TERN_OK));
    bool asks = strstr(err.text, "tern_ddp_join"), may_ask = strstr(d->hint, "tern_ddp_join");
    bool is_right = !is_told || (strstr(err.text, d->text) && strstr(err.text, d->hint) && asks == may_ask);
    if (!is_right) fprintf(stderr, "%s: %s\n", d->name, err.text);
    RANK_CHECK(rank, is_right);
    fixture_close(&f);
    return 0;
}

static void test_divergence_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(divergences); i++) {
        divergence d = divergences[i];
        ranks r = ranks_run(d.world, diverge_body, &d);
        for (int rank = 0; rank < d.world; rank++)
            if (r.status[rank]) fail_msg("%s: rank %d", d.name, rank);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_divergence_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
