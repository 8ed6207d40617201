#include "comm/control_inner.h"

#include <errno.h>
#include <fcntl.h>
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
    if (stat(path, &info)) return tern__error_errno(err, func, TERN_E_SYSTEM, "cannot look at %s", path);
    *inode = info.st_ino;
    return TERN_OK;
}

/* Abstract sockets belong to a network namespace of a running kernel; TERN_HOST_ID tells apart what the user
 * wants to be told apart. */
int tern__card_make(tern__card *card, int world, tern_error *err)
{
    char boot_id[64];
    uint64_t net_space = 0;
    *card = (tern__card){.world = world, .pid = getpid()};
    if (gethostname(card->host, sizeof(card->host) - 1))
        snprintf(card->host, sizeof(card->host), "unknown host");
    if (read_boot_id(boot_id, sizeof(boot_id), err) || read_inode("/proc/self/ns/net", &net_space, err) ||
        read_inode("/proc/self/ns/pid", &card->pid_space, err))
        return TERN_E_SYSTEM;
    const char *id = tern__env("TERN_HOST_ID");
    int used = snprintf(card->host_key, sizeof(card->host_key), "%s/%llu/%s", boot_id,
                        (unsigned long long)net_space, id ? id : "");
    if (used >= (int)sizeof(card->host_key))
        return tern__error_set(err, func, TERN_E_ENV,
                               "TERN_HOST_ID=\"%.32s...\" has %zu characters, at most %d fit", id, strlen(id),
                               (int)sizeof(card->host_key) - 1 - used + (int)strlen(id));
    return TERN_OK;
}

static void key_of(int rank, char *key, size_t size)
{
    snprintf(key, size, "control/%d", rank);
}

int tern__card_publish(const tern__card *card, int rank, tern__store *store, tern_error *err)
{
    char key[32];
    key_of(rank, key, sizeof(key));
    return tern__store_set(store, key, card, sizeof(*card), err);
}

int tern__card_get(tern__card *card, int rank, tern__store *store, double timeout_s, tern_error *err)
{
    char key[32];
    size_t bytes;
    key_of(rank, key, sizeof(key));
    int status = tern__store_get(store, key, card, sizeof(*card), &bytes, timeout_s, err);
    if (status) return status;
    bool sound = bytes == sizeof(*card) && memchr(card->host, 0, sizeof(card->host)) &&
                 memchr(card->host_key, 0, sizeof(card->host_key)) && card->name_bytes <= sizeof(card->name);
    if (sound) return TERN_OK;
    return tern__error_set(err, func, TERN_E_PEER,
                           "rank %d published a malformed card of %zu bytes, expected %zu", rank, bytes,
                           sizeof(*card));
}

void tern__card_describe(const tern__card *card, int rank, char *text, size_t size)
{
    snprintf(text, size, "rank %d (%s, pid %d)", rank, card->host, (int)card->pid);
}
