/* snapshot_lock.c - keeps a second job out of a snapshot folder.
 *
 * The job that saves there holds a lock (flock) on the file DIR/.lock, in which it says who it is. The kernel
 * frees the lock of a process that is killed, so a file that stays behind keeps nobody out. The holder
 * removes the file at the end; so whoever gets the lock checks that the file is still the one of that name. A
 * process is one job: its snapshots of a folder share the lock. */
#include "checkpoint/snapshot.h"

#include "base/file.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static const char FUNC[] = "tern_snapshot_new";

struct tern__snapshot_lock {
    char *path;
    dev_t device; /* of the folder */
    ino_t inode;
    int fd; /* -1: the folder cannot be written, or its file system has no locks */
    int users;
    pid_t owner; /* in a forked child the lock is still its parent's */
    tern__snapshot_lock *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static tern__snapshot_lock *locks; /* of this process */

/* ---- who has it ---- */

static void write_owner(int fd)
{
    char text[512] = "", host[128] = "", since[32] = "";
    const char *job = getenv("SLURM_JOB_ID");
    time_t now = time(NULL);
    struct tm local;
    gethostname(host, sizeof(host) - 1);
    strftime(since, sizeof(since), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    tern__text_append(text, sizeof(text), "%.100s, process %d on %s, since %s", program_invocation_short_name,
                      (int)getpid(), host, since);
    if (job) tern__text_append(text, sizeof(text), ", Slurm job %.20s", job);
    if (ftruncate(fd, 0) || pwrite(fd, text, strlen(text), 0) < 0)
        tern__log(TERN_LOG_INFO, "%s: the lock does not name this job: %s", FUNC, strerror(errno));
}

static int lock_refuse(int fd, const char *dir, tern_error *err)
{
    char text[300] = "", shown[400];
    ssize_t bytes = pread(fd, text, sizeof(text), 0);
    tern__escape(text, bytes > 0 ? (size_t)bytes : 0, shown, sizeof(shown));
    int status = tern__error_set(err, FUNC, TERN_E_IO,
                                 "%s is in use by another job%s%s: two jobs cannot save into one folder", dir,
                                 *shown ? ": " : "", shown);
    if (err && !err->native) err->native = EBUSY;
    return status;
}

/* ---- the file ---- */

static bool is_named(int fd, const char *path)
{
    struct stat file, named;
    return !fstat(fd, &file) && !lstat(path, &named) && file.st_dev == named.st_dev &&
           file.st_ino == named.st_ino;
}

/* The file of another user can be locked and removed, but not written. */
static int lock_open_file(const char *path, bool *writes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    *writes = fd >= 0;
    return fd >= 0 || errno != EACCES ? fd : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* Sets lock->fd. */
static int lock_file(tern__snapshot_lock *lock, const char *dir, tern_error *err)
{
    for (;;) {
        bool writes;
        int fd = lock_open_file(lock->path, &writes);
        bool is_locked = fd >= 0 && !TEMP_FAILURE_RETRY(flock(fd, LOCK_EX | LOCK_NB));
        if (fd >= 0 && !is_locked && errno == EWOULDBLOCK) {
            int status = lock_refuse(fd, dir, err);
            close(fd);
            return status;
        }
        if (!is_locked) {
            tern__log(TERN_LOG_INFO, "%s: cannot lock %s: %s", FUNC, lock->path, strerror(errno));
            if (fd >= 0) close(fd);
            return TERN_OK;
        }
        if (!writes) unlink(lock->path);
        if (writes && is_named(fd, lock->path)) {
            write_owner(fd);
            lock->fd = fd;
            return TERN_OK;
        }
        close(fd);
    }
}

/* ---- the locks of this process ---- */

static tern__snapshot_lock *lock_new(const char *dir, const struct stat *folder, tern_error *err)
{
    tern__snapshot_lock *lock = tern__alloc(sizeof(*lock), FUNC, err);
    if (!lock) return NULL;
    *lock = (tern__snapshot_lock){.path = tern__path_join(dir, ".lock", FUNC, err),
                                  .device = folder->st_dev,
                                  .inode = folder->st_ino,
                                  .fd = -1,
                                  .owner = getpid()};
    if (lock->path && !lock_file(lock, dir, err)) return lock;
    tern__free(lock->path);
    tern__free(lock);
    return NULL;
}

tern__snapshot_lock *tern__snapshot_lock_open(const char *dir, tern_error *err)
{
    struct stat folder;
    if (stat(dir, &folder))
        return tern__error_errno(err, FUNC, TERN_E_IO, "cannot read the directory %s", dir), NULL;
    pthread_mutex_lock(&mutex);
    tern__snapshot_lock *lock = locks;
    while (lock && (lock->device != folder.st_dev || lock->inode != folder.st_ino)) lock = lock->next;
    if (!lock) {
        lock = lock_new(dir, &folder, err);
        if (lock) lock->next = locks, locks = lock;
    }
    if (lock) lock->users++;
    pthread_mutex_unlock(&mutex);
    return lock;
}

void tern__snapshot_lock_close(tern__snapshot_lock *lock)
{
    if (!lock) return;
    pthread_mutex_lock(&mutex);
    if (--lock->users == 0) {
        tern__snapshot_lock **at = &locks;
        while (*at != lock) at = &(*at)->next;
        *at = lock->next;
        if (lock->fd >= 0 && lock->owner == getpid()) unlink(lock->path);
        if (lock->fd >= 0) close(lock->fd);
        tern__free(lock->path);
        tern__free(lock);
    }
    pthread_mutex_unlock(&mutex);
}
