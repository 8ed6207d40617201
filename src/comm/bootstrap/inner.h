/* inner.h - the sources that a bootstrap is read from, one file each.
 *
 * When a source is called, `out` is set to rank 0 of 1, without an address, and has the secret already. A
 * source that does not apply to this process sets *found to false and leaves `out` as it is. Errors are E_ENV
 * and name the variable and its value. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_INNER_H
#define TERN_SRC_COMM_BOOTSTRAP_INNER_H

#include "comm/bootstrap/bootstrap.h"

extern const char tern__boot_func[]; /* "tern_group_open", for errors */

/* ---- bootstrap.c ---- */

/* Sets `out` to rank 0 of 1, with the job's secret if there is one. Every source starts from this. */
int tern__boot_start(tern__bootstrap *out, tern_error *err);
/* Removes TERN_LISTEN_FD from the environment and keeps its descriptor. This group and later ones at the same
 * port get a copy of it. If `status` is an error, returns it with the text of `why`. */
int tern__boot_finish(int status, tern__bootstrap *boot, const tern_error *why, tern_error *err);
/* ---- env.c: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; and what all sources share ---- */

/* Copies `bytes` of a host's name to out->addr. `name` is the variable or argument that it came from, for the
 * error. */
int tern__boot_addr(tern__bootstrap *out, const char *name, const char *text, size_t bytes, tern_error *err);
/* Reads LOCAL_RANK and LOCAL_WORLD_SIZE. Without them all ranks count as one host until they have met. */
int tern__boot_local(tern__bootstrap *out, tern_error *err);

int tern__bootstrap_from_ranks(tern__bootstrap *out, bool *found, tern_error *err);
/* env://: the same, but a rank or world >= 0 takes precedence over its variable. It is an error if neither is
 * given. */
int tern__bootstrap_env_method(tern__bootstrap *out, int rank, int world, tern_error *err);

/* True if torchrun's agent serves a store at boot's address. */
bool tern__boot_is_agents(const tern__bootstrap *boot);

/* ---- slurm.c: SLURM_STEP_*, which srun sets for the tasks of a step ---- */

int tern__bootstrap_from_slurm(tern__bootstrap *out, bool *found, tern_error *err);
/* For a process that is alone: warns once if it is in a Slurm job of several tasks but was not started by
 * srun. */
void tern__bootstrap_warn_slurm(void);

/* ---- meet.c ---- */

/* If there are other ranks and a store, a file or an agent is given: rank 0 listens on a free port
 * (listen_fd) and publishes it in the store. Fills in addr, port and, unless the user gave one, the secret.
 * Errors: E_TIMEOUT names the ranks that did not come, E_ENV names two processes with the same rank, E_PEER
 * has rank 0's failure; and the store's errors. */
int tern__boot_meet(tern__bootstrap *boot, double timeout_s, tern_error *err);
/* Listens on a free port: on the loopback if all ranks are on this machine, otherwise on the interface that
 * leads to boot->addr. Fills in listen_fd, addr and port. */
int tern__boot_listen(tern__bootstrap *boot, bool is_one_machine, tern_error *err);

/* ---- mpi.c: mpirun, or a program that has initialised MPI ---- */

/* Does not start MPI: a bootstrap with by_mpi set is complete after tern__mpi_meet_world. */
int tern__bootstrap_from_mpi(tern__bootstrap *out, bool *found, tern_error *err);

#endif
