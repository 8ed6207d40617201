/* bootstrap.c - reads the bootstrap from the environment, and keeps the job's secret and its listening
 * socket. */
#include "comm/bootstrap/inner.h"

#include "base/file.h"
#include "comm/store/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the secret ---- */

/* The first group removes the secret from the environment, but this process may open more groups. So the
 * secret is kept here, like the socket below; nothing else of the environment is kept. */
static struct {
    pthread_mutex_t lock;
    bool is_known;
    uint8_t bytes[TERN__SECRET_BYTES];
} job_secret = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void remember_secret(tern__bootstrap *out)
{
    pthread_mutex_lock(&job_secret.lock);
    if (out->has_secret) memcpy(job_secret.bytes, out->secret, sizeof(job_secret.bytes));
    job_secret.is_known |= out->has_secret;
    if (job_secret.is_known) memcpy(out->secret, job_secret.bytes, sizeof(out->secret));
    out->has_secret = job_secret.is_known;
    pthread_mutex_unlock(&job_secret.lock);
}

int tern__boot_start(tern__bootstrap *out, tern_error *err)
{
    *out = (tern__bootstrap){.world = 1, .local_world = 1, .listen_fd = -1, .source = "alone"};
    int status = tern__secret_take(out->secret, &out->has_secret, tern__boot_func, err);
    if (!status) status = tern__standard_hold(tern__boot_func, err);
    if (!status) remember_secret(out);
    return status;
}

/* ---- the sources, in their order ---- */

/* The innermost launcher takes precedence. tern run, torchrun and tern_spawn set RANK and may themselves be
 * started by MPI or Slurm. mpirun inside a Slurm job starts its ranks through steps of its own, whose numbers
 * are not the ranks'. */
static int (*const sources[])(tern__bootstrap *out, bool *found, tern_error *err) = {
    tern__bootstrap_from_ranks,
    tern__bootstrap_from_mpi,
    tern__bootstrap_from_slurm,
};

static int read_sources(tern__bootstrap *out, bool *found, tern_error *err)
{
    int status = TERN_OK;
    *found = false;
    for (size_t i = 0; i < TERN__COUNT(sources) && !*found && !status; i++)
        status = sources[i](out, found, err);
    return status;
}

/* The launcher's socket; each group gets a copy. It keeps listening between two groups, so a rank that opens
 * the next group before rank 0 does waits in its backlog, and no other process can take the port. */
static struct {
    pthread_mutex_t lock;
    int fd;
} job_listener = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static int copy_listener(tern__bootstrap *boot, tern_error *err)
{
    boot->listen_fd = fcntl(job_listener.fd, F_DUPFD_CLOEXEC, 0);
    if (boot->listen_fd >= 0) return TERN_OK;
    return tern__error_errno(err, tern__boot_func, TERN_E_SYSTEM, "cannot duplicate the listening socket");
}

static int remember_listener(tern__bootstrap *boot, tern_error *err)
{
    int status = TERN_OK;
    if (boot->rank || boot->world == 1) return TERN_OK;
    pthread_mutex_lock(&job_listener.lock);
    if (boot->listen_fd >= 0) job_listener.fd = boot->listen_fd;
    if (tern__listens_at(job_listener.fd, boot->port)) status = copy_listener(boot, err);
    pthread_mutex_unlock(&job_listener.lock);
    return status;
}

int tern__boot_finish(int status, tern__bootstrap *boot, const tern_error *why, tern_error *err)
{
    unsetenv(TERN__ENV_LISTEN_FD);
    if (status) return tern__error_set(err, tern__boot_func, status, "%s", why->text);
    status = remember_listener(boot, err);
    if (status) return status;
    tern__log(TERN_LOG_INFO, "rank %d of %d, by %s", boot->rank, boot->world, boot->source);
    return TERN_OK;
}

int tern__bootstrap_from_env(tern__bootstrap *out, tern_error *err)
{
    tern_error why = {0};
    bool found = false;
    int status = tern__boot_start(out, &why);
    if (!status) status = read_sources(out, &found, &why);
    if (!status && !found) tern__bootstrap_warn_slurm();
    return tern__boot_finish(status, out, &why, err);
}

int tern_launched_rank(void)
{
    tern_error why = {0};
    bool found = false;
    tern__bootstrap boot = {.world = 1, .local_world = 1, .listen_fd = -1};
    if (read_sources(&boot, &found, &why)) return 0;
    return found ? boot.rank : -1;
}
