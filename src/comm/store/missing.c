/* missing.c - finds the ranks that did not join a meeting. It looks for each rank's key, for a second at
 * most: with a world of millions, written by mistake, the ranks after that count as missing without a look.
 *
 * If rank 0 has not come, there is no store with keys. Ranks that wait for it then bind Unix sockets with
 * names made of the meeting's address and their rank, so that ranks of the same host can look for each
 * other. In the meeting that follows, too, a rank that waits for long has such a mark, and one that warns of
 * another rank claims that with a name, so that no other rank of its host does. The names are for these looks
 * only: nothing is sent. Anybody may take such a name, and only a warning would be missing then. */
#include "comm/store/store.h"
#include "comm/sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static const double asking_s = 1;

typedef struct roll {
    int missing;
    size_t used;
    bool is_full;
    char text[256];
} roll;

static void missing_add(roll *r, int rank)
{
    size_t room = sizeof(r->text) - r->used;
    r->missing++;
    if (r->is_full) return;
    r->is_full = room < sizeof(", 2147483647, ..");
    int used = r->is_full ? snprintf(r->text + r->used, room, ", ..")
                          : snprintf(r->text + r->used, room, "%s%d", r->used ? ", " : "", rank);
    r->used += (size_t)used;
}

int tern__store_fail_missing(tern_store *store, const char *name, int first, int world, tern_error *err)
{
    roll r = {0};
    int64_t end = tern__deadline(asking_s);
    for (int rank = first; rank < world; rank++) {
        char key[32];
        snprintf(key, sizeof(key), "%.16s%d", name, rank);
        int has = tern__now_ns() < end ? tern__store_has(store, key, err) : 0;
        if (has < 0) return has;
        if (!has) missing_add(&r, rank);
    }
    if (!r.missing) return TERN_OK;
    return tern__error_set(err, "tern_group_open", TERN_E_TIMEOUT,
                           "%d of %d ranks joined; missing: rank%s %s", world - r.missing, world,
                           r.missing > 1 ? "s" : "", r.text);
}

/* ---- ranks of one host that wait for rank 0 ---- */

/* Returns a socket and fills in the abstract name of a rank's mark, or of the claim to warn of it. */
static int mark_socket(const tern__bootstrap *boot, int rank, const char *claim, struct sockaddr_un *at,
                       socklen_t *size)
{
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    int used = snprintf(at->sun_path + 1, sizeof(at->sun_path) - 1, "tern/%.60s/%d/%d%s", boot->addr,
                        boot->port, rank, claim);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

int tern__mark_make(const tern__bootstrap *boot)
{
    struct sockaddr_un at;
    socklen_t size;
    int fd = mark_socket(boot, boot->rank, "", &at, &size);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, size)) tern__close(&fd);
    return fd;
}

int tern__mark_claim(const tern__bootstrap *boot, int rank)
{
    struct sockaddr_un at;
    socklen_t size;
    int fd = mark_socket(boot, rank, "/claim", &at, &size);
    if (fd < 0 || !bind(fd, (struct sockaddr *)&at, size)) return fd;
    int native = errno;
    tern__close(&fd);
    errno = native;
    return -1;
}

bool tern__mark_is_made(const tern__bootstrap *boot, int rank)
{
    struct sockaddr_un at;
    socklen_t size;
    int fd = mark_socket(boot, rank, "", &at, &size);
    bool is_there = fd >= 0 && !connect(fd, (struct sockaddr *)&at, size);
    tern__close(&fd);
    return is_there;
}

/* The launcher numbers the ranks of a host one after the other. Without its numbers any rank may be here. */
bool tern__mark_missing(const tern__bootstrap *boot, char *text, size_t size)
{
    roll r = {0};
    int first = boot->is_placed ? boot->rank - boot->local_rank : 0;
    int end = boot->is_placed ? first + boot->local_world : boot->world;
    int64_t until = tern__deadline(asking_s);
    for (int rank = TERN__MAX(first, 1); rank < end; rank++) {
        bool is_here = rank == boot->rank || (tern__now_ns() < until && tern__mark_is_made(boot, rank));
        if (is_here && rank < boot->rank) return false;
        if (!is_here) missing_add(&r, rank);
    }
    snprintf(text, size, "%s%s%s%s", r.missing ? (r.missing > 1 ? "; ranks " : "; rank ") : "", r.text,
             r.missing > 1 ? " have"
             : r.missing   ? " has"
                           : "",
             !r.missing        ? ""
             : boot->is_placed ? " not come either"
                               : " not come to this host either");
    return true;
}
