/* mpi.h - the interface of an MPI plug-in, in addition to its transport: one const struct in a shared object,
 * tern_openmpi.so or tern_mpich.so, that is installed beside the library. The plug-in knows the ranks, and
 * when MPI begins and ends; the library makes them meet.
 *
 * Communicators are named by their Fortran handles (MPI_Comm_c2f), which are integers in every MPI. Functions
 * that return int return 0, or a negative tern_status with a reason in why[0..why_size).
 *
 * Threads: all calls come from the group's thread, except `is_running`, which may come from any. */
#ifndef TERN_BACKEND_MPI_H
#define TERN_BACKEND_MPI_H

#include <tern/backend/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_MPI_ABI    1
#define TERN_MPI_SYMBOL "tern_mpi_plugin"

typedef struct tern_mpi {
    int abi;          /* TERN_MPI_ABI */
    size_t size;      /* sizeof(tern_mpi) of the plug-in's build: members beyond it are absent */
    const char *name; /* "Open MPI", "MPICH" */
    /* Its transport. In the place, `native` is a communicator of all ranks, which `open` duplicates; hosts,
     * address and store are ignored. */
    const tern_transport *transport;

    /* Tells whether MPI is initialised, by the plug-in or the program, and not finalised. */
    bool (*is_running)(void);
    /* Makes MPI ready for the calling thread: initialises it, collectively over the job, or checks that the
     * thread level of an earlier initialisation allows this thread to call MPI. TERN_E_STATE: it does not, or
     * MPI was finalised. MPI_Init cannot be cancelled: if not all ranks have called it within `timeout_s`
     * seconds, this prints a message on stderr and ends the process with 1. */
    int (*start)(double timeout_s, char *why, size_t why_size);
    /* Called once for each start that succeeded, when no further call of MPI follows for it. If `start` has
     * initialised MPI, it is finalised when the process exits with 0, or after the program's static objects
     * are destroyed, as soon as all users have finished, if none has `failed`. Otherwise the job is ended
     * (MPI_Abort), since MPI_Finalize would wait for lost ranks. */
    void (*finish)(bool failed);

    /* Returns the handle of MPI_COMM_WORLD. MPI must be running. */
    int (*world)(void);
    /* Stores this process's rank in `comm` and its number of ranks. TERN_E_INVALID: no communicator, or an
     * intercommunicator. */
    int (*place)(int comm, int *rank, int *world, char *why, size_t why_size);
} tern_mpi;

#ifdef __cplusplus
}
#endif
#endif
