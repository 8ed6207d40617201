/* rank_info.c - makes, publishes and reads a rank's info: its process, its host, its cores and its back
 * end. */
#include "comm/bootstrap/rank_info.h"

#include "base/cores.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char func[] = "tern_group_open";

static int read_boot_id(char *text, size_t size, tern_error *err)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot open %s", path);
    ssize_t got = read(fd, text, size - 1);
    int saved = errno;
    tern__close(&fd);
    errno = saved;
    if (got < 0) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot read %s", path);
    text[got] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return TERN_OK;
}

static int read_inode(const char *path, uint64_t *inode, tern_error *err)
{
    struct stat info;
    if (stat(path, &info)) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot stat %s", path);
    *inode = info.st_ino;
    return TERN_OK;
}

static void name_host(tern__rank_info *info, const char *id)
{
    char name[TERN__HOST_BYTES] = {0};
    if (gethostname(name, sizeof(name) - 1)) snprintf(name, sizeof(name), "unknown host");
    if (id)
        snprintf(info->host, sizeof(info->host), "%.40s/%.20s", name, id);
    else
        memcpy(info->host, name, sizeof(name));
}

/* If the affinity cannot be read, any core may be used. */
static void name_cores(tern__rank_info *info)
{
    if (tern__cores_get(&info->cores)) memset(&info->cores, 0xff, sizeof(info->cores));
}

/* An abstract socket exists within one network namespace of one running kernel, so the host key is made of
 * both. TERN_HOST_ID lets the user split a host further. */
int tern__rank_info_make(tern__rank_info *info, const tern__bootstrap *boot, tern_error *err)
{
    char boot_id[64];
    uint64_t net_space = 0;
    const char *id = boot->host_id ? boot->host_id : tern__env("TERN_HOST_ID");
    *info = (tern__rank_info){.world = boot->world, .pid = getpid(), .choice = boot->choice};
    name_host(info, id);
    name_cores(info);
    randombytes_buf(info->epoch, sizeof(info->epoch));
    if (read_boot_id(boot_id, sizeof(boot_id), err) || read_inode("/proc/self/ns/net", &net_space, err) ||
        read_inode("/proc/self/ns/pid", &info->pid_space, err))
        return TERN_E_SYSTEM;
    int used = snprintf(info->host_key, sizeof(info->host_key), "%s/%llu/%s", boot_id,
                        (unsigned long long)net_space, id ? id : "");
    if (used >= (int)sizeof(info->host_key))
        return tern__error_set(err, func, TERN_E_ENV,
                               "TERN_HOST_ID=\"%.32s...\" has %zu characters, at most %d fit", id, strlen(id),
                               (int)sizeof(info->host_key) - 1 - used + (int)strlen(id));
    return TERN_OK;
}

/* Compares boot id and network namespace, the first two parts of the host key. */
bool tern__rank_info_is_same_machine(const tern__rank_info *one, const tern__rank_info *other)
{
    const char *end = strchr(one->host_key, '/');
    end = end ? strchr(end + 1, '/') : NULL;
    return end && !strncmp(one->host_key, other->host_key, (size_t)(end - one->host_key) + 1);
}

/* A process of another pid namespace or machine cannot be seen from here, and counts as alive. */
bool tern__rank_info_is_gone(const tern__rank_info *info, const tern__rank_info *own)
{
    size_t boot_id = strcspn(own->host_key, "/") + 1;
    return info->pid_space == own->pid_space && !strncmp(info->host_key, own->host_key, boot_id) &&
           kill(info->pid, 0) && errno == ESRCH;
}

int tern__rank_info_publish(const tern__rank_info *info, const char *name, int rank, tern_store *store,
                            tern_error *err)
{
    char key[32];
    snprintf(key, sizeof(key), "%s%d", name, rank);
    return tern_store_set(store, key, info, sizeof(*info), err);
}

bool tern__rank_info_is_same_process(const tern__rank_info *one, const tern__rank_info *other)
{
    return one->pid == other->pid && one->pid_space == other->pid_space &&
           !strcmp(one->host_key, other->host_key);
}

static bool is_sound(const tern__rank_info *info, size_t bytes)
{
    return bytes == sizeof(*info) && memchr(info->host, 0, sizeof(info->host)) &&
           memchr(info->host_key, 0, sizeof(info->host_key)) &&
           memchr(info->choice.on_one_host, 0, TERN__BACKEND_NAME) &&
           memchr(info->choice.on_several, 0, TERN__BACKEND_NAME) && info->name_bytes <= sizeof(info->name);
}

bool tern__rank_info_read(tern__rank_info *info, const void *data, size_t bytes)
{
    if (bytes != sizeof(*info)) return false;
    memcpy(info, data, bytes);
    return is_sound(info, bytes);
}

int tern__rank_info_get(tern__rank_info *info, const char *name, int rank, tern_store *store,
                        double timeout_s, tern_error *err)
{
    char key[32];
    size_t bytes;
    snprintf(key, sizeof(key), "%s%d", name, rank);
    int status = tern__store_read(store, key, info, sizeof(*info), &bytes, timeout_s, err);
    if (status) return status;
    if (is_sound(info, bytes)) return TERN_OK;
    return tern__error_set(err, func, TERN_E_PEER,
                           "rank %d published a malformed info of %zu bytes, expected %zu", rank, bytes,
                           sizeof(*info));
}

void tern__rank_info_describe(const tern__rank_info *info, int rank, char *text, size_t size)
{
    snprintf(text, size, "rank %d (%s, pid %d)", rank, info->host, (int)info->pid);
}
