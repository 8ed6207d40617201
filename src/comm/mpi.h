/* mpi.h - the job's MPI, if it has one: its plug-in (tern/backend/mpi.h), and how ranks meet by it. */
#ifndef TERN_SRC_COMM_MPI_H
#define TERN_SRC_COMM_MPI_H

#include "comm/bootstrap/bootstrap.h"

#include <tern/backend/mpi.h>

/* An MPI that there is a plug-in for. */
typedef struct tern__mpi_flavour {
    const char *name, *text;        /* `text` is in what MPI_Get_library_version says             */
    const char *file, *package;     /* the plug-in; where Debian and Ubuntu have the library      */
    const char *rank, *size, *mark; /* variables that its mpirun sets; Slurm's PMI knows only two */
} tern__mpi_flavour;

/* Whose mpirun started this process; NULL if none did. */
const tern__mpi_flavour *tern__mpi_launcher(void);
/* This process has an MPI library, linked or loaded by the program. */
bool tern__mpi_is_linked(void);
/* The plug-in for the MPI that the program has or, if it has none, for the one whose mpirun started it.
 * E_UNSUPPORTED naming what was found and what is missing. */
const tern_mpi *tern__mpi_find(tern_error *err);
/* The same plug-in's transport. */
const tern_transport *tern__mpi_transport(tern_error *err);

/* ---- bootstrap/mpi.c ---- */

/* Starts `mpi` for a group of its own, which tern__mpi_finish ends. E_STATE: MPI cannot be used here. */
int tern__mpi_start(const tern_mpi *mpi, double timeout_s, tern_error *err);
/* Fills `out` for the ranks of the communicator `comm`: who this is, and where rank 0 listens. Collective
 * over comm; `mpi` was started, and is finished here if that fails. */
int tern__mpi_meet(const tern_mpi *mpi, int comm, double timeout_s, tern__bootstrap *out, tern_error *err);
/* The same for a bootstrap that is by_mpi: the job's MPI, and all of its ranks. */
int tern__mpi_meet_world(tern__bootstrap *boot, double timeout_s, tern_error *err);
/* A program may well be alone; where its launcher speaks of several processes, of which MPI does not know,
 * it was started by the wrong one: says so, once. MPI is running. */
void tern__mpi_warn_alone(const tern_mpi *mpi);

/* When the group of that bootstrap is closed. */
static inline void tern__mpi_finish(const tern__bootstrap *boot, bool failed)
{
    if (boot->mpi) boot->mpi->finish(failed);
}

#endif
