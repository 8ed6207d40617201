/* mpi.h - groups of a program that uses MPI itself. One that does not needs none of this: under mpirun
 * tern_group_open initialises MPI, and MPI is finalised when the process exits with 0, after static objects
 * are destroyed, which may own a group. A rank that does so while a group is open, or after one has failed,
 * ends the job, as MPI_Finalize would wait for the others. Who has waited in MPI_Init for connect_timeout_s
 * ends with 1 and a line on stderr.
 *
 * Threads: as the group (comm.h), where MPI allows that. */
#ifndef TERN_MPI_H
#define TERN_MPI_H

#include <tern/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group of the ranks of a communicator, in its order. `comm` is a Fortran handle: MPI_Comm_c2f(comm) in C,
 * the communicator itself in Fortran's mpi module and comm%MPI_VAL in mpi_f08. Collective over comm; ranks of
 * MPI_COMM_WORLD that are not in it take no part. Several groups, over any communicators, may be open at the
 * same time. Errors count ranks as the communicator does.
 *
 * The program has initialised MPI, with any thread level: tern calls MPI only from the threads that use its
 * groups, so below MPI_THREAD_SERIALIZED that has to be the one that initialised MPI. It keeps MPI: it may
 * use comm meanwhile and free it afterwards, and closes the group before MPI_Finalize, after which a group
 * whose messages go over MPI fails (E_STATE). Messages go over a duplicate. Where MPI knows of one process
 * and the environment of several, a warning says that the launcher was perhaps another MPI's.
 *
 * Yours: tern_group_close. NULL opts are the defaults; init_method, rank and world are not looked at. Errors:
 * E_INVALID (no communicator, or one between two groups), E_STATE (MPI is not initialised, or finalised, or
 * may not be called from this thread), E_UNSUPPORTED (no plug-in for this MPI), E_TIMEOUT (not all ranks have
 * come), and those of tern_group_open. */
TERN_API tern_group *tern_group_from_mpi(int comm, const tern_group_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
