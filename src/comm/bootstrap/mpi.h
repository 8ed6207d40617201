/* mpi.h - the job's MPI, if it has one: its plug-in (tern/backend/mpi.h), and how ranks meet over it. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_MPI_H
#define TERN_SRC_COMM_BOOTSTRAP_MPI_H

#include "comm/bootstrap/bootstrap.h"

#include <tern/backend/mpi.h>

/* An MPI implementation for which tern has a plug-in. */
typedef struct tern__mpi_flavour {
    const char *name, *text;        /* `text` is part of MPI_Get_library_version's answer */
    const char *file;               /* the plug-in */
    const char *rank, *size, *mark; /* variables that its mpirun sets; Slurm's PMI sets only two */
} tern__mpi_flavour;

/* Returns the MPI whose mpirun started this process; NULL if none did. */
const tern__mpi_flavour *tern__mpi_launcher(void);
/* True if the program has linked or loaded an MPI library. */
bool tern__mpi_is_linked(void);
/* Returns the plug-in for the program's MPI or, if it has none, for the MPI whose mpirun started it. On error
 * NULL: E_UNSUPPORTED, with what was found and what is missing. */
const tern_mpi *tern__mpi_find(tern_error *err);
/* Returns the transport of the same plug-in. */
const tern_transport *tern__mpi_transport(tern_error *err);

/* ---- bootstrap/mpi.c ---- */

/* Starts `mpi` for one group; tern__mpi_finish ends it. E_STATE: MPI cannot be used here. */
int tern__mpi_start(const tern_mpi *mpi, double timeout_s, tern_error *err);
/* Fills `out` for the communicator `comm`: this rank's number, and rank 0's address. Collective over comm.
 * `mpi` has been started; on failure this function finishes it. */
int tern__mpi_meet(const tern_mpi *mpi, int comm, double timeout_s, tern__bootstrap *out, tern_error *err);
/* Does the same for a bootstrap that is `by_mpi`, over the job's MPI and all of its ranks. */
int tern__mpi_meet_world(tern__bootstrap *boot, double timeout_s, tern_error *err);
/* Warns once if MPI knows only this process, but the launcher's variables name several: the program was then
 * started by the wrong launcher. MPI must be running. */
void tern__mpi_warn_alone(const tern_mpi *mpi);

/* Call it when the group of that bootstrap is closed. */
static inline void tern__mpi_finish(const tern__bootstrap *boot, bool failed)
{
    if (boot->mpi) boot->mpi->finish(failed);
}

#endif
