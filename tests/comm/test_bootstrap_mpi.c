/* test_bootstrap_mpi.c - the variables of an mpirun, without MPI itself; tests/mpi runs real ones. */
#include "check.h"

#include <tern/mpi.h>

#include "comm/bootstrap/mpi.h"
#include "comm/move/transport/transport.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",   "PMI_SIZE", "MPI_LOCALNRANKS", "RANK",
    "WORLD_SIZE",           "MASTER_ADDR",          "MASTER_PORT"};

/* Values in the order of `names`; NULL: unset. */
typedef struct environment {
    const char *values[TERN__COUNT(names)];
    int rank, world;
    const char *source; /* the source, or part of the error if the world is 0 */
} environment;

static void apply(const environment *env)
{
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        unsetenv(names[i]);
        if (env->values[i]) setenv(names[i], env->values[i], 1);
    }
}

static const environment table[] = {
    {{"2", "4"}, 2, 4, "MPI"},
    {{NULL, NULL, "1", "3", "3"}, 1, 3, "MPI"},
    {{NULL, NULL, "1", "3"}, 0, 1, "alone"}, /* srun --mpi=pmi2 sets these, too */
    {{"0", "1"}, 0, 1, "MPI"},
    {{"2"}, 0, 1, "alone"},
    {{"2", "4", NULL, NULL, NULL, "1", "2", "127.0.0.1", "1234"}, 1, 2, "RANK/WORLD_SIZE"},
    {{"2", "4", "1", "3", "3"}, 2, 4, "MPI"},
    {{"4", "4"}, 0, 0, "OMPI_COMM_WORLD_RANK=4"},
    {{"-1", "4"}, 0, 0, "OMPI_COMM_WORLD_RANK=-1"},
    {{"x", "4"}, 0, 0, "OMPI_COMM_WORLD_RANK=\"x\""},
    {{"0", "0"}, 0, 0, "OMPI_COMM_WORLD_SIZE=0"},
    {{"0", ""}, 0, 0, "OMPI_COMM_WORLD_SIZE=\"\""},
    {{NULL, NULL, "0", "5000000000", "1"}, 0, 0, "PMI_SIZE=5000000000"},
};

static void who_this_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < TERN__COUNT(table); i++) {
        const environment *row = &table[i];
        tern_error err = {0};
        tern__bootstrap boot;
        apply(row);
        int status = tern__bootstrap_from_env(&boot, &err);
        if (!row->world) {
            if (status != TERN_E_ENV || !strstr(err.text, row->source)) fail_msg("row %zu: %s", i, err.text);
            assert_int_equal(tern_launched_rank(), 0);
            continue;
        }
        assert_ok(err);
        bool is_mpi = !strcmp(row->source, "MPI");
        if (boot.rank != row->rank || boot.world != row->world || strcmp(boot.source, row->source) != 0)
            fail_msg("row %zu: rank %d of %d by %s", i, boot.rank, boot.world, boot.source);
        assert_int_equal(boot.by_mpi, is_mpi && row->world > 1);
        assert_int_equal(tern_launched_rank(), strcmp(row->source, "alone") ? row->rank : -1);
    }
}

/* ---- plug-ins ---- */

static void check_missing(const char *first, const char *second)
{
    tern_error err = {0};
    tern_group *group = tern_group_open(NULL, &err);
    assert_null(group);
    if (err.code != TERN_E_UNSUPPORTED || !strstr(err.text, first) || !strstr(err.text, second))
        fail_msg("%s", err.text);
    assert_null(tern__transport_find("mpi", NULL));
}

/* The plug-in is not where it is looked for. */
static void a_missing_plug_in_is_named(void **state)
{
    (void)state;
    setenv("TERN_PLUGIN_PATH", "/nowhere", 1);
    apply(&table[0]);
    check_missing(
        "Open MPI has started this process (OMPI_COMM_WORLD_SIZE=4), but the plug-in tern_openmpi.so "
        "cannot be loaded: /nowhere has no such file; ",
        "`make extras` in tern's sources installs libopenmpi-dev and builds it");
    apply(&table[1]);
    check_missing("MPICH has started this process (PMI_SIZE=3), but the plug-in tern_mpich.so",
                  "installs libmpich-dev and builds it");
    unsetenv("TERN_PLUGIN_PATH");
}

/* mpirun with one rank needs no MPI. */
static void one_rank_is_alone(void **state)
{
    (void)state;
    tern_error err = {0};
    setenv("TERN_PLUGIN_PATH", "/nowhere", 1);
    apply(&table[3]);
    tern_group *group = tern_group_open(NULL, &err);
    assert_ok(err);
    assert_int_equal(tern_group_size(group), 1);
    tern_group_close(group);
    unsetenv("TERN_PLUGIN_PATH");
}

static void a_job_without_mpi_has_no_transport(void **state)
{
    (void)state;
    tern_error err = {0};
    apply(&(environment){0});
    assert_null(tern__transport_find("mpi", &err));
    assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "the program has no MPI, and no mpirun has started it"));
    err = (tern_error){0};
    assert_null(tern__transport_find("nccl", &err));
    assert_int_equal(err.code, TERN_E_INVALID);
    assert_non_null(strstr(err.text, "transport \"nccl\""));
    err = (tern_error){0};
    assert_null(tern_group_from_mpi(0, NULL, &err));
    assert_int_equal(err.code, TERN_E_UNSUPPORTED);
    assert_string_equal(err.func, "tern_group_from_mpi");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_this_is),
        cmocka_unit_test(a_missing_plug_in_is_named),
        cmocka_unit_test(one_rank_is_alone),
        cmocka_unit_test(a_job_without_mpi_has_no_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
