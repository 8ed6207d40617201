/* test_bootstrap_slurm.c - a task of a Slurm step finds its rank and its peers. A process outside a step
 * runs alone, with a warning. */
#include "check.h"

#include "base/local.h"
#include "comm/bootstrap/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOB,
    STEP,
    TASKS,
    PROCID,
    NODEID,
    LOCALID,
    PER_NODE,
    NODES,
    LIST,
    NTASKS,
    JOB_NODES,
    ADDR,
    PORT,
    OURS,
    RANK,
    WORLD,
    COUNT
};
static const char *const names[COUNT] = {"SLURM_JOB_ID",
                                         "SLURM_STEP_ID",
                                         "SLURM_STEP_NUM_TASKS",
                                         "SLURM_PROCID",
                                         "SLURM_NODEID",
                                         "SLURM_LOCALID",
                                         "SLURM_STEP_TASKS_PER_NODE",
                                         "SLURM_STEP_NUM_NODES",
                                         "SLURM_STEP_NODELIST",
                                         "SLURM_NTASKS",
                                         "SLURM_JOB_NUM_NODES",
                                         "MASTER_ADDR",
                                         "MASTER_PORT",
                                         "TERN_PORT",
                                         "RANK",
                                         "WORLD_SIZE"};

/* Task 5 of 9 of a step on three nodes: the second task on the second node. */
static const char *const task[COUNT] = {"1234",    "2", "9",          "5", "1", "1",
                                        "4(x2),1", "3", "n[008-010]", "9", "3"};

static void apply(const char *const values[COUNT])
{
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    for (int i = 0; i < COUNT; i++) {
        unsetenv(names[i]);
        if (values[i]) setenv(names[i], values[i], 1);
    }
}

static tern__bootstrap read_good(void)
{
    tern_error err = {0};
    tern__bootstrap boot;
    tern__bootstrap_from_env(&boot, &err);
    assert_ok(err);
    assert_int_equal(tern_launched_rank(), strcmp(boot.source, "alone") ? boot.rank : -1);
    return boot;
}

static void a_task_knows_its_place(void **state)
{
    (void)state;
    apply(task);
    tern__bootstrap boot = read_good();
    assert_int_equal(boot.rank, 5);
    assert_int_equal(boot.world, 9);
    assert_int_equal(boot.local_rank, 1);
    assert_int_equal(boot.local_world, 4);
    assert_string_equal(boot.addr, "n008");
    assert_int_equal(boot.port, 20000 + (1234 * 31 + 2) % 12763);
    assert_string_equal(boot.source, "SLURM_PROCID");
    setenv("SLURM_NODEID", "2", 1);
    setenv("SLURM_LOCALID", "0", 1);
    assert_int_equal(read_good().local_world, 1);
}

static void a_step_on_one_node_stays_inside_of_it(void **state)
{
    (void)state;
    apply(task);
    setenv("SLURM_STEP_NUM_NODES", "1", 1);
    assert_string_equal(read_good().addr, "127.0.0.1");
}

static void the_meeting_point_can_be_chosen(void **state)
{
    (void)state;
    apply(task);
    setenv("MASTER_ADDR", "10.0.0.7", 1);
    setenv("MASTER_PORT", "4000", 1);
    tern__bootstrap boot = read_good();
    assert_string_equal(boot.addr, "10.0.0.7");
    assert_int_equal(boot.port, 4000);
    setenv("TERN_PORT", "4001", 1);
    assert_int_equal(read_good().port, 4001);
}

/* A hundred jobs in a row with thirty steps each get different ports, none of which the kernel assigns
 * itself. */
static void neighbours_have_different_ports(void **state)
{
    (void)state;
    static bool taken[65536];
    apply(task);
    for (int job = 77000; job < 77100; job++) {
        for (int step = 0; step < 30; step++) {
            char text[16];
            snprintf(text, sizeof(text), "%d", job);
            setenv("SLURM_JOB_ID", text, 1);
            snprintf(text, sizeof(text), "%d", step);
            setenv("SLURM_STEP_ID", text, 1);
            int port = read_good().port;
            assert_in_range(port, 20000, 32767);
            assert_false(taken[port]);
            taken[port] = true;
        }
    }
}

/* Ids have 32 bits without a sign: in a federation of clusters the upper ones tell which cluster it is. */
static void ids_are_unsigned(void **state)
{
    (void)state;
    static const char *const jobs[] = {"2147483647", "2147483648", "4294967295"};
    static const char *const steps[] = {"2147483648", "4294967280"}; /* the last of srun's */
    for (size_t i = 0; i < TERN__COUNT(jobs); i++)
        for (size_t k = 0; k < TERN__COUNT(steps); k++) {
            apply(task);
            setenv("SLURM_JOB_ID", jobs[i], 1);
            setenv("SLURM_STEP_ID", steps[k], 1);
            tern__bootstrap boot = read_good();
            uint64_t job = strtoull(jobs[i], NULL, 10), step = strtoull(steps[k], NULL, 10);
            assert_int_equal(boot.rank, 5);
            assert_int_equal(boot.port, 20000 + (job * 31 + step) % 12763);
        }
}

/* slurm.h's SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT, SLURM_PENDING_STEP, and the ids
 * that are reserved: nothing in such a step has peers, with or without the variables of a task. */
static void a_step_of_the_job_itself_has_no_ranks(void **state)
{
    (void)state;
    static const char *const outside[COUNT] = {[JOB] = "3", [PROCID] = "0"};
    for (uint32_t id = 0xfffffff1; id; id++)
        for (int i = 0; i < 2; i++) {
            char text[16];
            tern_error err = {0};
            tern__local local;
            apply(i ? outside : task);
            snprintf(text, sizeof(text), "%u", id);
            setenv("SLURM_STEP_ID", text, 1);
            unsetenv("SLURM_NTASKS"); /* no warning */
            unsetenv("SLURM_JOB_NUM_NODES");
            assert_string_equal(read_good().source, "alone");
            assert_int_equal(tern__local_read(&local, &err), TERN_OK);
            assert_int_equal(local.world, 1);
        }
}

/* ---- other launchers ---- */

static void rank_goes_before_slurm(void **state)
{
    (void)state;
    apply(task);
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    tern__bootstrap boot = read_good();
    assert_int_equal(boot.rank, 1);
    assert_int_equal(boot.world, 2);
    assert_int_equal(boot.port, 29500);
    assert_string_equal(boot.source, "RANK/WORLD_SIZE");
}

/* Slurm has started mpirun's daemons as a step of their own, with one task per node. */
static void mpirun_goes_before_slurm(void **state)
{
    (void)state;
    static const char *const ranks[][3] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}};
    for (size_t i = 0; i < TERN__COUNT(ranks); i++) {
        apply(task);
        setenv(ranks[i][0], "2", 1);
        setenv(ranks[i][1], "3", 1);
        setenv(ranks[i][2], "3", 1);
        tern__bootstrap boot = read_good();
        assert_true(boot.by_mpi);
        assert_int_equal(boot.rank, 2);
        assert_int_equal(boot.world, 3);
        assert_string_equal(boot.source, "MPI");
        setenv("RANK", "0", 1);
        setenv("WORLD_SIZE", "1", 1);
        assert_string_equal(read_good().source, "RANK/WORLD_SIZE");
        for (int k = 0; k < 3; k++) unsetenv(ranks[i][k]);
    }
}

/* srun --mpi=pmi2 sets two of MPICH's three variables, also for programs without MPI. */
static void a_process_manager_of_srun_is_no_mpirun(void **state)
{
    (void)state;
    apply(task);
    setenv("PMI_RANK", "5", 1);
    setenv("PMI_SIZE", "9", 1);
    assert_string_equal(read_good().source, "SLURM_PROCID");
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
}

static void an_init_method_asks_slurm_for_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    tern__bootstrap boot;
    tern_group_opts opts = tern_group_defaults();
    opts.init_method = "tcp://localhost:7?rank=0&world_size=2";
    apply(task);
    assert_int_equal(tern__bootstrap_read(&boot, &opts, &err), TERN_OK);
    assert_int_equal(boot.world, 2);
    opts.init_method = "env://";
    assert_int_equal(tern__bootstrap_read(&boot, &opts, &err), TERN_E_ENV);
    assert_string_equal(err.text, "RANK is not set, but init_method env:// needs it");
}

/* ---- outside a step ---- */

static char said[512];
static int times;

static void hear(tern_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != TERN_LOG_WARN) return;
    times++;
    snprintf(said, sizeof(said), "%s", text);
}

/* The variables that sbatch gives its script: SLURM_PROCID=0, but no step. */
static void who_has_forgotten_srun_is_told_once(void **state)
{
    (void)state;
    static const char *const script[COUNT] = {[JOB] = "3", [PROCID] = "0", [NODEID] = "0", [LOCALID] = "0"};
    tern_log_set(hear, NULL);
    apply(script);
    assert_string_equal(read_good().source, "alone");
    setenv("SLURM_NTASKS", "1", 1);
    setenv("SLURM_JOB_NUM_NODES", "1", 1);
    assert_string_equal(read_good().source, "alone");
    assert_int_equal(times, 0);
    setenv("SLURM_NTASKS", "2", 1);
    for (int i = 0; i < 3; i++) {
        tern__bootstrap boot = read_good();
        assert_int_equal(boot.world, 1);
        assert_string_equal(boot.source, "alone");
    }
    tern_log_set(NULL, NULL);
    assert_int_equal(times, 1);
    assert_string_equal(said,
                        "SLURM_NTASKS=2, but this process, which trains alone, was not started by a Slurm "
                        "step: inside sbatch or salloc, start it with srun");
}

/* ---- errors ---- */

static void malformed_variables_are_named(void **state)
{
    (void)state;
    static const struct {
        int variable;
        const char *value, *text; /* NULL: unset */
    } rows[] = {
        {STEP, "", "SLURM_STEP_ID=\"\""},
        {STEP, "batch", "SLURM_STEP_ID=\"batch\" is not an integer"},
        {STEP, "-1", "SLURM_STEP_ID=-1"},
        {STEP, "4294967296", "SLURM_STEP_ID=4294967296"},
        {JOB, "4294967296", "SLURM_JOB_ID=4294967296"},
        {JOB, "", "SLURM_JOB_ID=\"\""},
        {JOB, NULL, "SLURM_STEP_ID=\"2\" is set but SLURM_JOB_ID is not"},
        {JOB, "x", "SLURM_JOB_ID=\"x\""},
        {TASKS, NULL, "SLURM_STEP_ID=\"2\" is set but SLURM_STEP_NUM_TASKS is not"},
        {TASKS, "", "SLURM_STEP_NUM_TASKS=\"\""},
        {TASKS, "0", "SLURM_STEP_NUM_TASKS=0"},
        {TASKS, "1048577", "SLURM_STEP_NUM_TASKS=1048577"},
        {TASKS, "5", "SLURM_PROCID=5 is not below SLURM_STEP_NUM_TASKS=5"},
        {PROCID, NULL, "SLURM_STEP_ID=\"2\" is set but SLURM_PROCID is not"},
        {PROCID, "-1", "SLURM_PROCID=-1"},
        {PROCID, "1.5", "SLURM_PROCID=\"1.5\""},
        {NODEID, NULL, "SLURM_NODEID is not"},
        {NODEID, "3", "has no task 1 (SLURM_LOCALID) on node 3 (SLURM_NODEID)"},
        {LOCALID, NULL, "SLURM_LOCALID is not"},
        {LOCALID, "4", "SLURM_STEP_TASKS_PER_NODE=\"4(x2),1\" has no task 4"},
        {PER_NODE, NULL, "SLURM_STEP_TASKS_PER_NODE is not"},
        {PER_NODE, "4(x2", "SLURM_STEP_TASKS_PER_NODE=\"4(x2\" has no task 1"},
        {NODES, NULL, "SLURM_STEP_NUM_NODES is not"},
        {NODES, "none", "SLURM_STEP_NUM_NODES=\"none\""},
        {LIST, NULL, "SLURM_STEP_NODELIST is not"},
        {LIST, "n[1-", "SLURM_STEP_NODELIST=\"n[1-\" is not a list of nodes"},
        {ADDR, "", "MASTER_ADDR=\"\""},
        {PORT, "0", "MASTER_PORT=0"},
        {OURS, "x", "TERN_PORT=\"x\""},
    };
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        tern_error err = {0};
        tern__bootstrap boot;
        apply(task);
        if (rows[i].value)
            setenv(names[rows[i].variable], rows[i].value, 1);
        else
            unsetenv(names[rows[i].variable]);
        int status = tern__bootstrap_from_env(&boot, &err);
        if (status != TERN_E_ENV || !strstr(err.text, rows[i].text))
            fail_msg("row %zu: wanted E_ENV \"%s\", got %s \"%s\"", i, rows[i].text, tern_status_name(status),
                     err.text);
        assert_int_equal(tern_launched_rank(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_task_knows_its_place),
        cmocka_unit_test(a_step_on_one_node_stays_inside_of_it),
        cmocka_unit_test(the_meeting_point_can_be_chosen),
        cmocka_unit_test(neighbours_have_different_ports),
        cmocka_unit_test(ids_are_unsigned),
        cmocka_unit_test(a_step_of_the_job_itself_has_no_ranks),
        cmocka_unit_test(rank_goes_before_slurm),
        cmocka_unit_test(mpirun_goes_before_slurm),
        cmocka_unit_test(a_process_manager_of_srun_is_no_mpirun),
        cmocka_unit_test(an_init_method_asks_slurm_for_nothing),
        cmocka_unit_test(who_has_forgotten_srun_is_told_once),
        cmocka_unit_test(malformed_variables_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
