/* mpi.h - what an MPI plug-in offers beside its transport: one const struct in a shared object of its own,
 * tern_openmpi.so or tern_mpich.so, found beside the library. It knows who the ranks are and when MPI begins
 * and ends; how they meet is the library's.
 *
 * Communicators are named by their Fortran handles (MPI_Comm_c2f), which are integers in every MPI. Functions
 * that return int return 0, or a negative tern_status with a reason in why[0..why_size).
 *
 * Threads: all calls come from the group's, but for `is_running`, which may come from any. */
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
    /* Its place's `native` is a communicator of all ranks, which `open` duplicates; hosts, address and store
     * are not looked at. */
    const tern_transport *transport;

    /* MPI is initialised, by whomever, and not finalised. */
    bool (*is_running)(void);
    /* Makes MPI ready for the calling thread: initialises it, collectively over the job, or makes sure that
     * the level at which somebody else did allows this thread to call it. TERN_E_STATE: it does not, or MPI
     * was finalised. MPI_Init cannot be called off: where not all ranks have come to it within `timeout_s`,
     * this says so on stderr and ends the process with 1. */
    int (*start)(double timeout_s, char *why, size_t why_size);
    /* Once for each start that succeeded, when nothing more is asked of MPI on its behalf. When the process
     * exits with 0, MPI that `start` has initialised is finalised after the program's static objects are
     * destroyed, if all have finished and none has `failed`; else the job is ended (MPI_Abort), since
     * MPI_Finalize would wait for ranks that are lost. */
    void (*finish)(bool failed);

    /* The handle of MPI_COMM_WORLD; MPI is running. */
    int (*world)(void);
    /* Who this process is in `comm`. TERN_E_INVALID: no communicator, or one between two groups. */
    int (*place)(int comm, int *rank, int *world, char *why, size_t why_size);
} tern_mpi;

#ifdef __cplusplus
}
#endif
#endif
