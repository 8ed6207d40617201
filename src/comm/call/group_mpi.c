/* group_mpi.c - tern_group_from_mpi: opens a group for the ranks of an MPI communicator. */
#include <tern/mpi.h>

#include "comm/bootstrap/inner.h"
#include "comm/move/backend.h"
#include "comm/bootstrap/mpi.h"

#include <sodium.h>

static const tern_mpi *find_comm(tern_error *err)
{
    const tern_mpi *mpi = tern__mpi_find(err);
    if (!mpi || mpi->is_running()) return mpi;
    tern__error_set(err, "tern_group_from_mpi", TERN_E_STATE,
                    "%s is not running: call this between MPI_Init and MPI_Finalize", mpi->name);
    return NULL;
}

static tern_group *open_group(int comm, const tern_group_opts *user, tern_error *err)
{
    tern__bootstrap boot;
    tern_group_opts opts;
    const tern_mpi *mpi = find_comm(err);
    if (!mpi || tern__group_opts_read(&opts, user, err) || tern__boot_start(&boot, err) ||
        tern__mpi_start(mpi, opts.connect_timeout_s, err) ||
        tern__mpi_meet(mpi, comm, opts.connect_timeout_s, &boot, err))
        return NULL;
    tern__mpi_warn_alone(mpi);
    tern_group *group = tern__group_open_boot(&boot, &opts, err);
    sodium_memzero(&boot, sizeof(boot));
    return group;
}

tern_group *tern_group_from_mpi(int comm, const tern_group_opts *opts, tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err)) return NULL;
    tern_group *group = open_group(comm, opts, &why);
    why.func = __func__;
    if (!group && err) *err = why;
    return group;
}
