/* mpi.h - groups for programs that use MPI themselves.
 *
 * A program that does not call MPI needs nothing from here. Under mpirun, tern_group_open initialises MPI.
 * When the process exits with 0, MPI is finalised. If static objects own a group, this is after they are
 * destroyed, which is too late for MPICH 4.2 and newer: their launcher kills the other ranks. A rank that
 * exits while a group is open, or after one has failed, ends the job, because MPI_Finalize would wait for the
 * other ranks. A rank that has waited in MPI_Init for connect_timeout_s prints a line on stderr and exits
 * with 1.
 *
 * Threads: as the group (comm.h), where MPI allows that. */
#ifndef TERN_MPI_H
#define TERN_MPI_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a group of the ranks of a communicator, in its order. `comm` is a Fortran handle: MPI_Comm_c2f(comm)
 * in C, the communicator itself with Fortran's mpi module, comm%MPI_VAL with mpi_f08. Collective over comm;
 * other ranks of MPI_COMM_WORLD take no part. Several groups may be open at the same time, over any
 * communicators. Errors give ranks as numbers in the communicator. NULL options are the defaults;
 * init_method, rank and world are ignored. Yours: tern_group_close.
 *
 * The program must have initialised MPI, with any thread level: tern calls MPI only on the threads that use
 * its groups. Below MPI_THREAD_SERIALIZED that must be the thread that initialised MPI. MPI stays the
 * program's: tern duplicates comm, so the program may use comm meanwhile and free it afterwards. Close the
 * group before MPI_Finalize; after it, a group whose messages go over MPI fails (E_STATE). If MPI has one
 * process while the environment says that there are several, a warning says that the launcher may belong to
 * another MPI.
 *
 * NULL on error: E_INVALID (no communicator, or an intercommunicator), E_STATE (MPI is not initialised, is
 * finalised, or must not be called from this thread), E_UNSUPPORTED (no plug-in for this MPI), E_TIMEOUT (not
 * all ranks have come), and those of tern_group_open. */
TERN_API tern_group *tern_group_from_mpi(int comm, const tern_group_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
