/* card.c - makes, publishes and reads a rank's card: its process, its host, its cores and its back end. */
#include "comm/bootstrap/card.h"

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

static void name_host(tern__card *card, const char *id)
{
    char name[TERN__HOST_BYTES] = {0};
    if (gethostname(name, sizeof(name) - 1)) snprintf(name, sizeof(name), "unknown host");
    if (id)
        snprintf(card->host, sizeof(card->host), "%.40s/%.20s", name, id);
    else
        memcpy(card->host, name, sizeof(name));
}

/* If the affinity cannot be read, any core may be used. */
static void name_cores(tern__card *card)
{
    if (tern__cores_get(&card->cores)) memset(&card->cores, 0xff, sizeof(card->cores));
}

/* An abstract socket exists within one network namespace of one running kernel, so the host key is made of
 * both. TERN_HOST_ID lets the user split a host further. */
int tern__card_make(tern__card *card, const tern__bootstrap *boot, tern_error *err)
{
    char boot_id[64];
    uint64_t net_space = 0;
    const char *id = boot->host_id ? boot->host_id : tern__env("TERN_HOST_ID");
    *card = (tern__card){.world = boot->world, .pid = getpid(), .choice = boot->choice};
    name_host(card, id);
    name_cores(card);
    randombytes_buf(card->epoch, sizeof(card->epoch));
    if (read_boot_id(boot_id, sizeof(boot_id), err) || read_inode("/proc/self/ns/net", &net_space, err) ||
        read_inode("/proc/self/ns/pid", &card->pid_space, err))
        return TERN_E_SYSTEM;
    int used = snprintf(card->host_key, sizeof(card->host_key), "%s/%llu/%s", boot_id,
                        (unsigned long long)net_space, id ? id : "");
    if (used >= (int)sizeof(card->host_key))
        return tern__error_set(err, func, TERN_E_ENV,
                               "TERN_HOST_ID=\"%.32s...\" has %zu characters, at most %d fit", id, strlen(id),
                               (int)sizeof(card->host_key) - 1 - used + (int)strlen(id));
    return TERN_OK;
}

/* Compares boot id and network namespace, the first two parts of the host key. */
bool tern__card_is_same_machine(const tern__card *one, const tern__card *other)
{
    const char *end = strchr(one->host_key, '/');
    end = end ? strchr(end + 1, '/') : NULL;
    return end && !strncmp(one->host_key, other->host_key, (size_t)(end - one->host_key) + 1);
}

/* A process of another pid namespace or machine cannot be seen from here, and counts as alive. */
bool tern__card_is_gone(const tern__card *card, const tern__card *own)
{
    size_t boot_id = strcspn(own->host_key, "/") + 1;
    return card->pid_space == own->pid_space && !strncmp(card->host_key, own->host_key, boot_id) &&
           kill(card->pid, 0) && errno == ESRCH;
}

int tern__card_publish(const tern__card *card, const char *name, int rank, tern_store *store, tern_error *err)
{
    char key[32];
    snprintf(key, sizeof(key), "%s%d", name, rank);
    return tern_store_set(store, key, card, sizeof(*card), err);
}

bool tern__card_is_same_process(const tern__card *one, const tern__card *other)
{
    return one->pid == other->pid && one->pid_space == other->pid_space &&
           !strcmp(one->host_key, other->host_key);
}

static bool is_sound(const tern__card *card, size_t bytes)
{
    return bytes == sizeof(*card) && memchr(card->host, 0, sizeof(card->host)) &&
           memchr(card->host_key, 0, sizeof(card->host_key)) &&
           memchr(card->choice.on_one_host, 0, TERN__BACKEND_NAME) &&
           memchr(card->choice.on_several, 0, TERN__BACKEND_NAME) && card->name_bytes <= sizeof(card->name);
}

int tern__card_get(tern__card *card, const char *name, int rank, tern_store *store, double timeout_s,
                   tern_error *err)
{
    char key[32];
    size_t bytes;
    snprintf(key, sizeof(key), "%s%d", name, rank);
    int status = tern__store_read(store, key, card, sizeof(*card), &bytes, timeout_s, err);
    if (status) return status;
    if (is_sound(card, bytes)) return TERN_OK;
    return tern__error_set(err, func, TERN_E_PEER,
                           "rank %d published a malformed card of %zu bytes, expected %zu", rank, bytes,
                           sizeof(*card));
}

void tern__card_describe(const tern__card *card, int rank, char *text, size_t size)
{
    snprintf(text, size, "rank %d (%s, pid %d)", rank, card->host, (int)card->pid);
}
