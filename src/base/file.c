/* file.c - opens, reads and writes files, and makes folders. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define AT_ONCE ((size_t)1 << 30) /* a system call transfers less than 2 GiB */
#define BUFFER  ((size_t)1 << 16)

/* ---- paths and folders ---- */

char *tern__path_join(const char *folder, const char *name, const char *func, tern_error *err)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = tern__alloc(bytes, func, err);
    if (path) snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}

int tern__folder_make(const char *path, mode_t mode, const char *func, tern_error *err)
{
    int status = TERN_OK;
    char *folder = tern__strdup(path, func, err), *end = folder, was;
    if (!folder) return TERN_E_MEMORY;
    do {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        was = *end;
        *end = '\0';
        if (mkdir(folder, mode) && errno != EEXIST)
            status = tern__error_errno(err, func, TERN_E_IO, "cannot make the folder \"%s\"", folder);
        *end = was;
    } while (was && !status);
    tern__free(folder);
    return status;
}

static int sync_open(int fd)
{
    return TEMP_FAILURE_RETRY(fsync(fd));
}

/* Some file systems have no fsync for folders (EINVAL); they write names in their own time. */
int tern__folder_sync(const char *path, const char *func, tern_error *err)
{
    int fd = TEMP_FAILURE_RETRY(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    bool is_synced = fd >= 0 && (!sync_open(fd) || errno == EINVAL);
    int status =
        is_synced ? TERN_OK : tern__error_errno(err, func, TERN_E_IO, "cannot sync the folder %s", path);
    if (fd >= 0) close(fd);
    return status;
}

/* ---- what killed processes leave ---- */

/* Returns the process that wrote "step-3.pt.4711.tmp", and the bytes before its number; -1: no such name. */
static long writer_of(const char *name, size_t *bytes)
{
    long pid = -1;
    int end = 0;
    size_t length = strlen(name), at = length > 4 ? length - 4 : 0;
    if (strcmp(name + at, ".tmp") != 0) return -1;
    while (at > 0 && name[at - 1] != '.') at--;
    if (at < 2 || sscanf(name + at, "%ld.tmp%n", &pid, &end) != 1 || !end || name[at + (size_t)end])
        return -1;
    *bytes = at - 1;
    return pid;
}

/* Does the process `pid` not write the file any more? Its number may have been given to this process, and the
 * file may be of another host's process, which then holds the lock. */
static bool is_left(int folder, const char *name, long pid)
{
    if (pid <= 0 || (pid != getpid() && (!kill((pid_t)pid, 0) || errno != ESRCH))) return false;
    int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool is_written = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return !is_written;
}

int tern__folder_tidy(const char *path, tern__name_fn *is_ours, const void *ctx, const char *func,
                      tern_error *err)
{
    DIR *folder = opendir(path);
    if (!folder) return tern__error_errno(err, func, TERN_E_IO, "cannot read the directory %s", path);
    for (const struct dirent *entry; (entry = readdir(folder));) {
        size_t bytes = 0;
        long pid = writer_of(entry->d_name, &bytes);
        bool is_stale =
            pid > 0 && is_ours(entry->d_name, bytes, ctx) && is_left(dirfd(folder), entry->d_name, pid);
        if (is_stale) unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    return TERN_OK;
}

/* ---- opening ---- */

static const char *file_kind_of(mode_t mode)
{
    if (S_ISDIR(mode)) return "directory";
    if (S_ISFIFO(mode)) return "pipe";
    return S_ISSOCK(mode) ? "socket" : "device";
}

static int file_check_kind(int fd, const char *path, struct stat *about, const char *func, tern_error *err)
{
    if (fstat(fd, about)) return tern__error_errno(err, func, TERN_E_IO, "cannot stat %s", path);
    if (S_ISREG(about->st_mode)) return TERN_OK;
    return tern__error_set(err, func, TERN_E_IO, "%s is a %s, expected a regular file", path,
                           file_kind_of(about->st_mode));
}

/* Avoids descriptors 0 to 2: if standard error is closed, a file with its number would receive the error
 * messages. */
static int open_above(const char *path, int flags, mode_t mode)
{
    int fd = TEMP_FAILURE_RETRY(open(path, flags | O_CLOEXEC, mode));
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), saved = errno;
    close(fd);
    errno = saved;
    return above;
}

/* O_NONBLOCK: opening a pipe that has no other end must not wait. */
int tern__file_open(const char *path, int flags, mode_t mode, struct stat *about, const char *func,
                    tern_error *err)
{
    struct stat own;
    int fd = open_above(path, flags | O_NONBLOCK | O_NOCTTY, mode);
    if (fd < 0) return tern__error_errno(err, func, TERN_E_IO, "cannot open %s", path), -1;
    if (!file_check_kind(fd, path, about ? about : &own, func, err)) return fd;
    close(fd);
    return -1;
}

int tern__standard_hold(const char *func, tern_error *err)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) /* open takes the lowest free number */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR | O_CLOEXEC) < 0)
            return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot open /dev/null");
    return TERN_OK;
}

/* ---- reading ---- */

int tern__file_read(int fd, const char *path, int64_t offset, void *out, size_t bytes, const char *func,
                    tern_error *err)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(fd, (char *)out + got, TERN__MIN(bytes - got, AT_ONCE), offset + (int64_t)got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return tern__error_errno(err, func, TERN_E_IO, "cannot read %s", path);
        if (n == 0)
            return tern__error_set(err, func, TERN_E_IO,
                                   "%s became shorter while it was read: expected %lld bytes, got %lld", path,
                                   (long long)(offset + (int64_t)bytes), (long long)(offset + (int64_t)got));
        got += (size_t)n;
    }
    return TERN_OK;
}

/* ---- writing ---- */

static int failed(const tern__output *out, const char *what, tern_error *err)
{
    return tern__error_errno(err, out->func, TERN_E_IO, "cannot %s %s", what, out->temp);
}

static void file_release(tern__output *out)
{
    tern__free(out->temp);
    tern__free(out->buffer);
}

int tern__output_open(tern__output *out, const char *path, const char *func, tern_error *err)
{
    struct stat old;
    *out = (tern__output){.path = path, .func = func, .fd = -1};
    if (stat(path, &old) == 0 && !S_ISREG(old.st_mode))
        return tern__error_set(err, func, TERN_E_IO, "%s exists and is not a regular file", path);
    size_t room = strlen(path) + 32;
    out->temp = tern__alloc(room, func, err);
    out->buffer = out->temp ? tern__alloc_raw(BUFFER, TERN__LINE) : NULL;
    if (!out->buffer) {
        tern__free(out->temp);
        return tern__error_set(err, func, TERN_E_MEMORY, "out of memory: %zu bytes", BUFFER);
    }
    snprintf(out->temp, room, "%s.%d.tmp", path, (int)getpid());
    out->fd = open_above(out->temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);
    if (out->fd >= 0) flock(out->fd, LOCK_EX | LOCK_NB);
    if (out->fd >= 0) return TERN_OK;
    int status = failed(out, "create", err);
    file_release(out);
    return status;
}

static int file_write_all(tern__output *out, const char *data, size_t bytes, tern_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(out->fd, data + done, TERN__MIN(bytes - done, AT_ONCE));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(out, "write", err);
        done += (size_t)n;
    }
    return TERN_OK;
}

int tern__output_flush(tern__output *out, tern_error *err)
{
    size_t bytes = out->buffered;
    out->buffered = 0;
    return file_write_all(out, out->buffer, bytes, err);
}

int tern__output_write(tern__output *out, const void *data, size_t bytes, tern_error *err)
{
    out->offset += (int64_t)bytes;
    if (out->buffered + bytes > BUFFER && tern__output_flush(out, err)) return TERN_E_IO;
    if (bytes > BUFFER) return file_write_all(out, data, bytes, err);
    if (bytes) memcpy(out->buffer + out->buffered, data, bytes);
    out->buffered += bytes;
    return TERN_OK;
}

/* Closes the file before renaming it: on a network file system, only close may report that the disk is full.
 */
int tern__output_close(tern__output *out, int status, bool sync, tern_error *err)
{
    if (!status) status = tern__output_flush(out, err);
    if (!status && sync && sync_open(out->fd)) status = failed(out, "sync", err);
    if (close(out->fd) && !status) status = failed(out, "close", err);
    if (!status && rename(out->temp, out->path)) status = failed(out, "rename", err);
    if (status)
        unlink(out->temp);
    else if (sync) /* the new name is on the disk once the folder is synced */
        status = tern__folder_sync(dirname(out->temp), out->func, err);
    file_release(out);
    return status;
}

static bool is_same_name(const char *name, size_t bytes, const void *wanted)
{
    return bytes == strlen(wanted) && memcmp(name, wanted, bytes) == 0;
}

int tern__output_tidy(const char *path, const char *func, tern_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = tern__strdup(path, func, err);
    if (!folder) return TERN_E_MEMORY;
    tern__folder_tidy(dirname(folder), is_same_name, slash ? slash + 1 : path, func, NULL);
    tern__free(folder);
    return TERN_OK;
}
