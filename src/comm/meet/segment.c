/* segment.c - memory shared by ranks: a memfd that is passed by descriptor. Its pages are allocated before it
 * is mapped, so that no access can fail, and it is sealed against shrinking. It has no name that could
 * collide or be left behind.
 *
 * Mapping populates the page tables: page faults would cost a first reduction more than the reduction itself.
 * A page behind the data, which is not mapped, holds a note: the size, and where the creator has mapped the
 * memory.
 *
 * A sparse segment is address space: it has no pages until its creator commits a part of it. */
#include "comm/meet/meeting.h"

#include "base/pages.h"
#include "base/text.h"
#include "base/thread.h"
#include "comm/meet/failure.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* The public callers are tern_group_mem_alloc, tern_ddp_new and tern_optim_shard. */
static const char func[] = "tern_group";

typedef struct note {
    uint64_t bytes, base;
} note;

size_t tern__segment_mapped(size_t bytes)
{
    return tern__align_up(bytes, tern__page_bytes());
}

static size_t file_bytes(size_t bytes)
{
    return tern__segment_mapped(bytes) + tern__page_bytes();
}

/* ---- creating ---- */

static int write_all(int fd, const void *data, size_t bytes, size_t offset)
{
    const char *from = data;
    while (bytes) {
        ssize_t written = pwrite(fd, from, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return -1;
        from += written;
        offset += (size_t)written;
        bytes -= (size_t)written;
    }
    return 0;
}

/* Returns the sum of two lines of /proc/meminfo; SIZE_MAX: it cannot be read. */
static size_t meminfo_sum(const char *one, const char *other)
{
    char line[128], name[32];
    unsigned long long kib, all = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return SIZE_MAX;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "%31[^:]: %llu", name, &kib) == 2 && (!strcmp(name, one) || !strcmp(name, other)))
            all += kib;
    fclose(file);
    return (size_t)all << 10;
}

/* Returns the bytes of memory and swap that the machine can still provide. Shared memory belongs to no
 * process: if it ran out, the kernel would kill other processes first. So tern never asks for more than
 * this. */
static size_t bytes_available(void)
{
    return meminfo_sum("MemAvailable", "SwapFree");
}

/* In older kernels a signal makes fallocate free all pages again. With a timer or a profiler that ticks
 * faster than it allocates, it would never end. */
static int fill_pages(int fd, size_t offset, size_t bytes)
{
    const size_t large = (size_t)64 << 20; /* smaller segments are not checked */
    sigset_t before;
    int status;
    if (bytes > large && bytes > bytes_available()) {
        errno = ENOMEM;
        return -1;
    }
    tern__signals_block(&before);
    do status = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
    while (status && errno == EINTR); /* stopped and continued */
    tern__signals_restore(&before);
    return status;
}

static int fail_segment(int fd, const char *what, size_t bytes, tern_error *err)
{
    int code = errno == ENOMEM || errno == ENOSPC ? TERN_E_MEMORY : TERN_E_SYSTEM;
    tern__error_errno(err, func, code, "cannot %s %zu bytes of shared memory", what, bytes);
    tern__close(&fd);
    return code;
}

/* Maps a segment: with all of its pages, or a sparse one as address space that no core dump contains. */
static void *map_segment(void *base, size_t mapped, int fd, bool is_sparse)
{
    int flags = MAP_SHARED | (is_sparse ? MAP_NORESERVE : MAP_POPULATE) | (base ? MAP_FIXED : 0);
    void *at = mmap(base, mapped, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at != MAP_FAILED && is_sparse) madvise(at, mapped, MADV_DONTDUMP);
    return at;
}

static int create_segment(void **base, size_t bytes, bool is_sparse, int *out, tern_error *err)
{
    size_t mapped = tern__segment_mapped(bytes);
    int fd = memfd_create("tern", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return fail_segment(fd, "create", bytes, err);
    if (is_sparse ? ftruncate(fd, (off_t)file_bytes(bytes)) : fill_pages(fd, 0, file_bytes(bytes)))
        return fail_segment(fd, "reserve", bytes, err);
    if (*base && write_all(fd, *base, bytes, 0)) return fail_segment(fd, "fill", bytes, err);
    void *at = map_segment(*base, mapped, fd, is_sparse);
    if (at == MAP_FAILED) return fail_segment(fd, "map", bytes, err);
    note of = {.bytes = bytes, .base = (uint64_t)(uintptr_t)at};
    bool sealed = !write_all(fd, &of, sizeof(of), mapped) &&
                  !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (!sealed) {
        int code = fail_segment(fd, "seal", bytes, err);
        if (*base)
            tern__segment_privatize(*base, mapped, NULL);
        else
            munmap(at, mapped);
        return code;
    }
    *base = at;
    *out = fd;
    return TERN_OK;
}

int tern__segment_create(void **base, size_t bytes, int *fd, tern_error *err)
{
    return create_segment(base, bytes, false, fd, err);
}

/* ---- sparse segments ---- */

/* All mappings of a process together take as much address space as the machine has memory, or half of what
 * the process may map. A file may be no larger than the limit of files. */
size_t tern__segment_sparse_bytes(int ranks)
{
    size_t most = meminfo_sum("MemTotal", "MemTotal"), page = tern__page_bytes();
    struct rlimit limit;
    if (most == SIZE_MAX) most = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    most /= (size_t)ranks;
    if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        most = TERN__MIN(most, limit.rlim_cur / 2 / (size_t)ranks);
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY)
        most = TERN__MIN(most, limit.rlim_cur - TERN__MIN(limit.rlim_cur, 2 * page));
    return TERN__MAX(most / page, (size_t)1) * page;
}

int tern__segment_create_sparse(void **base, size_t bytes, int *fd, tern_error *err)
{
    *base = NULL;
    return create_segment(base, bytes, true, fd, err);
}

int tern__segment_create_alone(void **base, size_t bytes, bool is_sparse, int *fd, tern_error *err)
{
    if (is_sparse) return tern__segment_create_sparse(base, bytes, fd, err);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return tern__error_errno(err, "tern_group_mem_alloc", TERN_E_MEMORY, "cannot map %zu bytes", bytes);
    *base = at;
    return TERN_OK;
}

/* The page tables are filled as well, where the kernel can do so (Linux 5.14). */
int tern__segment_commit(int fd, char *base, size_t offset, size_t bytes, bool has_pages, tern_error *err)
{
#ifdef MADV_POPULATE_WRITE
    const int populate = MADV_POPULATE_WRITE;
#else
    const int populate = 23;
#endif
    if (!has_pages) {
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
        return TERN_OK;
    }
    if (fill_pages(fd, offset, bytes)) {
        int code = errno == ENOMEM || errno == ENOSPC ? TERN_E_MEMORY : TERN_E_SYSTEM;
        return tern__error_errno(err, func, code, "cannot reserve %zu bytes of shared memory", bytes);
    }
    madvise(base + offset, bytes, populate);
    return TERN_OK;
}

int tern__segment_privatize(void *base, size_t bytes, tern_error *err)
{
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return tern__error_errno(err, func, TERN_E_MEMORY, "cannot map %zu bytes to replace a window", bytes);
    memcpy(copy, base, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base) != MAP_FAILED) return TERN_OK;
    int code = tern__error_errno(err, func, TERN_E_SYSTEM, "cannot replace %zu bytes of a window", bytes);
    munmap(copy, bytes);
    return code;
}

/* ---- attaching ---- */

/* Fails for all ranks with the same text, whichever rank finds the difference first. */
static int fail_size(const tern__shm_group *of, int peer, size_t theirs, size_t own, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    snprintf(text, sizeof(text), "rank %d opens a window of %zu bytes, rank %d one of %zu",
             tern_group_world_rank(of->group, of->rank), own, tern_group_world_rank(of->group, peer), theirs);
    return tern__failure_set_in(of->group, TERN_E_MISMATCH, text, err);
}

static bool is_open(const tern__shm_group *of)
{
    return of->shm && of->shm->state;
}

/* Checks a peer's descriptor, which may be too short to map or not sealed against shrinking. */
static int read_note(const tern__shm_group *of, int peer, int fd, size_t bytes, note *found, tern_error *err)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    bool sound =
        seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(fd, &info) && info.st_size > 0 &&
        pread(fd, found, sizeof(*found), info.st_size - (off_t)tern__page_bytes()) == (ssize_t)sizeof(*found);
    if (!sound || (size_t)info.st_size != file_bytes(found->bytes))
        return tern__error_set(err, func, TERN_E_PEER,
                               "rank %d passed a descriptor that is not one of tern's windows",
                               tern_group_world_rank(of->group, peer));
    if (found->bytes == bytes) return TERN_OK;
    if (is_open(of)) return fail_size(of, peer, found->bytes, bytes, err);
    return tern__error_set(err, func, TERN_E_MISMATCH, "rank %d runs another version of tern", peer);
}

int tern__segment_attach(const tern__shm_group *of, int peer, int fd, size_t bytes, bool is_sparse,
                         char **base, bool *borrowed, tern_error *err)
{
    note found;
    int status = read_note(of, peer, fd, bytes, &found, err);
    if (status) return status;
    *borrowed = tern__group_is_same_process(of->group, peer);
    if (*borrowed) {
        *base = (char *)(uintptr_t)found.base;
        return TERN_OK;
    }
    void *at = map_segment(NULL, tern__segment_mapped(bytes), fd, is_sparse);
    if (at == MAP_FAILED)
        return tern__error_errno(err, func, TERN_E_MEMORY, "cannot map %zu bytes of rank %d's window", bytes,
                                 peer);
    *base = at;
    return TERN_OK;
}

/* ---- passing ---- */

/* If a failure is known, it explains better why a peer cannot be reached. */
static int explain_errno(const tern__shm_group *of, const tern_error *why, tern_error *err)
{
    int status = is_open(of) ? tern__failure_check(of->group, err) : TERN_OK;
    return status ? status : tern__error_set(err, func, why->code, "%s", why->text);
}

int tern__segment_send(tern__shm_group *of, int peer, uint32_t serial, int fd, tern_error *err)
{
    tern_error why = {0};
    int status = tern__group_send_fd(of->group, peer, serial, fd, &why);
    tern__shm_act(of->shm);
    if (is_open(of)) tern__deadlock_tell_sent(of->shm);
    return status ? explain_errno(of, &why, err) : TERN_OK;
}

/* What a rank waits for that opens a segment: a descriptor, or all ranks. */
typedef struct goal {
    tern__goal goal;
    tern__shm_group *of;
    int peer, fd; /* whose descriptor; -1 until it is here */
    uint32_t serial;
    tern_error *why;               /* why it cannot come */
    const tern__shared_head *head; /* of a segment that `count` ranks join; NULL: a descriptor */
    uint64_t count;
} goal;

static int fail_awaiting(const tern__shm_group *of, int peer, bool has_left, tern_error *err)
{
    char who[128], last[256];
    int name = tern_group_world_rank(of->group, of->rank);
    tern__group_describe(of->group, peer, who, sizeof(who));
    tern__meeting_last(of, peer, last, sizeof(last));
    if (has_left)
        return tern__error_set(err, func, TERN_E_PEER, "%s has closed its group while rank %d opens a window",
                               who, name);
    return tern__error_set(err, func, TERN_E_TIMEOUT, "rank %d waited %g s for %s%s, to open the same window",
                           name, of->group->opts.timeout_s, who, last);
}

static void describe_opening(const tern__goal *until, bool *ranks, char *what, size_t size)
{
    const goal *g = (const goal *)until;
    snprintf(what, size, "the opening of a window or channel");
    for (int rank = 0; rank < g->of->world; rank++)
        ranks[rank] =
            g->head ? rank < TERN__SHARED_RANKS && !(atomic_load(&g->head->here[rank / 64]) >> rank % 64 & 1)
                    : rank == g->peer;
}

/* True if the descriptor has not come and is not on its way. Without shared memory only the peer's goodbye
 * says that it has left, and that comes behind all of its descriptors. */
static bool sender_lacks_fd(const goal *g)
{
    if (is_open(g->of)) return tern__deadlock_lacks_fd(g->of->shm, g->of->group, g->peer, g->serial);
    return tern__group_lacks_fd(g->of->group, g->peer, g->serial, 0);
}

/* Misses the sender, unless its descriptor may still be on its way: then it returns false. */
static bool miss_sender(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    const tern_group *group = g->of->group;
    uint64_t acts = tern__deadlock_acts(g->of->shm, group, g->peer);
    if (!sender_lacks_fd(g)) return false;
    tern__deadlock_miss(g->of->shm, group, g->peer, acts);
    return true;
}

/* A descriptor that cannot come ends the wait, too. */
static bool has_fd(const tern__goal *until)
{
    goal *g = (goal *)until;
    tern_error why = {0};
    if (g->fd >= 0 || g->why->code) return true;
    int status = tern__group_recv_fd(g->of->group, g->peer, g->serial, 0, &g->fd, &why);
    if (status && status != TERN_E_TIMEOUT) *g->why = why;
    return status != TERN_E_TIMEOUT;
}

/* What a peer sent before it left may still arrive. */
static int check_sender(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    bool is_gone = tern__shm_has_left(g->of, g->peer) && sender_lacks_fd(g);
    return is_gone ? fail_awaiting(g->of, g->peer, true, err) : TERN_OK;
}

static int fail_sender_late(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    return fail_awaiting(g->of, g->peer, tern__shm_has_left(g->of, g->peer), err);
}

/* Without shared memory nobody wakes this rank. */
int tern__segment_recv(tern__shm_group *of, int peer, uint32_t serial, int *fd, tern_error *err)
{
    tern_error why = {0};
    goal until = {.goal = {.is_met = has_fd,
                           .describe = describe_opening,
                           .check = check_sender,
                           .fail_late = fail_sender_late,
                           .miss = miss_sender,
                           .stays_met = true,
                           .is_polled = !is_open(of)},
                  .of = of,
                  .peer = peer,
                  .fd = -1,
                  .serial = serial,
                  .why = &why};
    int status = tern__wait(of->group, &until.goal, err);
    if (!status && why.code) status = explain_errno(of, &why, err);
    if (status) tern__close(&until.fd);
    *fd = until.fd;
    return status;
}

/* ---- one segment for all ranks ---- */

/* Serials begin again after four thousand million segments; those of long ago have been fetched. */
uint32_t tern__segment_serial(tern__shm_group *of)
{
    if (of->serial == TERN__SERIAL_OTHER) of->serial = 0;
    return of->serial++;
}

static bool are_joined(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    return atomic_load(&g->head->joined) >= g->count;
}

/* A rank that has left without joining will never join. */
static int check_joining(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    for (int rank = 0; rank < g->of->world; rank++) {
        if (rank == g->of->rank || !tern__shm_has_left(g->of, rank) || are_joined(until)) continue;
        char who[128];
        tern__group_describe(g->of->group, rank, who, sizeof(who));
        return tern__error_set(err, func, TERN_E_PEER,
                               "%s has closed its group while rank %d opens a channel", who,
                               tern_group_world_rank(g->of->group, g->of->rank));
    }
    return TERN_OK;
}

static int fail_joining(const tern__goal *until, tern_error *err)
{
    const goal *g = (const goal *)until;
    const tern_group *group = g->of->group;
    char text[TERN_ERROR_TEXT], who[192], last[256];
    snprintf(text, sizeof(text), "rank %d waited %g s for all ranks to open a channel",
             tern_group_world_rank(group, g->of->rank), group->opts.timeout_s);
    for (int rank = 0; rank < TERN__MIN(g->of->world, TERN__SHARED_RANKS); rank++) {
        if (atomic_load(&g->head->here[rank / 64]) >> rank % 64 & 1) continue;
        bool is_stopped = tern__rank_text(group, rank, who, sizeof(who));
        tern__meeting_last(g->of, rank, last, sizeof(last));
        tern__text_append(text, sizeof(text), "; %s%s has not joined%s", who, is_stopped ? "," : "", last);
    }
    return tern__error_set(err, func, TERN_E_TIMEOUT, "%s", text);
}

/* Misses all other ranks: those that have joined already are waiting there, too. */
static bool miss_joiners(const tern__goal *until)
{
    const goal *g = (const goal *)until;
    const tern__shm *shm = g->of->shm;
    for (int rank = 0; rank < g->of->world; rank++)
        if (rank != g->of->rank)
            tern__deadlock_miss(shm, g->of->group, rank, tern__deadlock_acts(shm, g->of->group, rank));
    return !are_joined(until);
}

int tern__shared_await(tern__shm_group *of, const tern__shared_head *head, uint64_t count, tern_error *err)
{
    goal until = {.goal = {.is_met = are_joined,
                           .describe = describe_opening,
                           .check = check_joining,
                           .fail_late = fail_joining,
                           .miss = miss_joiners,
                           .stays_met = true},
                  .of = of,
                  .head = head,
                  .count = count};
    return tern__wait(of->group, &until.goal, err);
}

static int create_shared(tern__shm_group *of, uint32_t serial, size_t bytes, void **base, tern_error *err)
{
    int fd;
    int status = tern__segment_create(base, bytes, &fd, err);
    if (status) return status;
    atomic_fetch_add(&((tern__shared_head *)*base)->sharers, 1);
    for (int peer = 1; peer < of->world && !status; peer++)
        status = tern__segment_send(of, peer, serial, fd, err);
    tern__close(&fd);
    return status;
}

static int attach_shared(tern__shm_group *of, uint32_t serial, size_t bytes, void **base, tern_error *err)
{
    int fd;
    bool borrowed;
    char *at;
    int status = tern__segment_recv(of, 0, serial, &fd, err);
    if (status) return status;
    status = tern__segment_attach(of, 0, fd, bytes, false, &at, &borrowed, err);
    tern__close(&fd);
    if (status) return status;
    *base = at;
    if (borrowed) atomic_fetch_add(&((tern__shared_head *)*base)->sharers, 1);
    return TERN_OK;
}

/* Every rank, including the creator, returns only when all have joined, so the creator's mapping is there for
 * the ranks that share it. */
int tern__shared_open(tern__shm_group *of, size_t bytes, void **base, tern_error *err)
{
    uint32_t serial = tern__segment_serial(of);
    *base = NULL;
    int status = of->rank == 0 ? create_shared(of, serial, bytes, base, err)
                               : attach_shared(of, serial, bytes, base, err);
    if (status) return status;
    tern__shared_head *head = *base;
    if (!of->shm->state) {
        of->shm->state = *base;
        of->shm->root->shm = of->shm;
    }
    if (of->rank < TERN__SHARED_RANKS)
        atomic_fetch_or(&head->here[of->rank / 64], UINT64_C(1) << of->rank % 64);
    atomic_fetch_add(&head->joined, 1);
    tern__shm_act(of->shm);
    tern__shm_wake(of->shm);
    return tern__shared_await(of, head, (uint64_t)of->world, err);
}

/* The last of the ranks that share the creator's mapping unmaps it. A forked child unmaps only its own
 * copy. */
void tern__shared_close(const tern__shm_group *of, void *base, size_t bytes)
{
    if (!base) return;
    tern__shared_head *head = base;
    bool is_sharer = of->rank == 0 || tern__group_is_same_process(of->group, 0);
    bool is_last = !is_sharer || of->group->root->pid != getpid() || atomic_fetch_sub(&head->sharers, 1) == 1;
    if (is_last) munmap(base, tern__segment_mapped(bytes));
}
