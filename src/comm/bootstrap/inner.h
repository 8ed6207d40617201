/* inner.h - the sources that a bootstrap is read from, one file each.
 *
 * A source finds `out` alone (rank 0 of 1, no address), with the secret already in it. One that is not how
 * this process was started leaves *found false and `out` as it is. Errors are E_ENV and name variable and
 * value. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_INNER_H
#define TERN_SRC_COMM_BOOTSTRAP_INNER_H

#include "comm/bootstrap/bootstrap.h"

extern const char tern__boot_func[]; /* "tern_group_open", for errors */

/* ---- bootstrap.c ---- */

/* Alone, with the job's secret if there is one; every source starts here. */
int tern__boot_start(tern__bootstrap *out, tern_error *err);
/* Takes TERN_LISTEN_FD out of the environment, keeps its descriptor, of which this group gets a copy and
 * later ones at the same port, too; passes `why` on if `status` is an error. */
int tern__boot_finish(int status, tern__bootstrap *boot, const tern_error *why, tern_error *err);
/* Copies `bytes` of a host's name to out->addr; `name` is what it was called, for the error. */
int tern__boot_addr(tern__bootstrap *out, const char *name, const char *text, size_t bytes, tern_error *err);
/* LOCAL_RANK and LOCAL_WORLD_SIZE; without them all ranks are taken to be on one host, until they have met.
 */
int tern__boot_local(tern__bootstrap *out, tern_error *err);

/* ---- env.c: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT ---- */

int tern__bootstrap_from_ranks(tern__bootstrap *out, bool *found, tern_error *err);
/* env://: the same, where a rank or world >= 0 goes before its variable, and what is in neither is an error.
 */
int tern__bootstrap_env_method(tern__bootstrap *out, int rank, int world, tern_error *err);

/* Is what listens at boot's address torchrun's agent, with a store of its own? */
bool tern__boot_is_agents(const tern__bootstrap *boot);

/* ---- slurm.c: SLURM_STEP_*, which srun gives to the tasks of a step ---- */

int tern__bootstrap_from_slurm(tern__bootstrap *out, bool *found, tern_error *err);
/* This process is alone. Where that is no step of a job of several tasks, somebody has forgotten srun: says
 * so, once. */
void tern__bootstrap_warn_slurm(void);

/* ---- meet.c ---- */

/* Where a store, a file or an agent is named, and there are others: rank 0 listens on a free port (listen_fd)
 * and tells the others in the store. Fills addr, port and, if the user gave none, the secret. Errors:
 * E_TIMEOUT naming the ranks that did not come, E_ENV naming two processes with the same rank, E_PEER for
 * what rank 0 failed with, and those of the store. */
int tern__boot_meet(tern__bootstrap *boot, double timeout_s, tern_error *err);
/* Listens on a free port: on the loopback if all ranks are on this machine, otherwise on the interface that
 * leads to boot->addr. Fills in listen_fd, addr and port. */
int tern__boot_listen(tern__bootstrap *boot, bool is_one_machine, tern_error *err);

/* ---- mpi.c: mpirun, or a program that has initialised MPI ---- */

/* Starts nothing: a bootstrap that is by_mpi is whole after tern__mpi_meet_world. */
int tern__bootstrap_from_mpi(tern__bootstrap *out, bool *found, tern_error *err);

#endif
