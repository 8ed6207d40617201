/* segment.c - memory shared by ranks: a memfd that is passed by descriptor. Its pages are allocated before it
 * is mapped, so that no access can fail, and it is sealed against shrinking. It has no name that could
 * collide or be left behind.
 *
 * Mapping populates the page tables: page faults would cost a first reduction more than the reduction itself.
 * A page behind the data, which is not mapped, holds a note: the size, and where the creator has mapped the
 * memory. */
#include "comm/move/window/mailbox.h"

#include "base/pages.h"
#include "base/thread.h"
#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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

/* Returns the bytes of memory and swap that the machine can still provide. Shared memory belongs to no
 * process: if it ran out, the kernel would kill other processes first. So tern never asks for more than
 * this. */
static size_t available(void)
{
    char line[128];
    unsigned long long kib, all = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return SIZE_MAX;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1 || sscanf(line, "SwapFree: %llu", &kib) == 1)
            all += kib;
    fclose(file);
    return (size_t)all << 10;
}

/* In older kernels a signal makes fallocate free all pages again. With a timer or a profiler that ticks
 * faster than it allocates, it would never end. */
static int fill(int fd, size_t bytes)
{
    const size_t large = (size_t)64 << 20; /* smaller segments are not checked */
    sigset_t before;
    int status;
    if (bytes > large && bytes > available()) {
        errno = ENOMEM;
        return -1;
    }
    tern__signals_block(&before);
    do status = fallocate(fd, 0, 0, (off_t)bytes);
    while (status && errno == EINTR); /* stopped and continued */
    tern__signals_restore(&before);
    return status;
}

static int fail(int fd, const char *what, size_t bytes, tern_error *err)
{
    int code = errno == ENOMEM || errno == ENOSPC ? TERN_E_MEMORY : TERN_E_SYSTEM;
    tern__error_errno(err, func, code, "cannot %s %zu bytes of shared memory", what, bytes);
    tern__close(&fd);
    return code;
}

int tern__segment_create(void **base, size_t bytes, int *out, tern_error *err)
{
    size_t mapped = tern__segment_mapped(bytes);
    int fd = memfd_create("tern", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return fail(fd, "create", bytes, err);
    if (fill(fd, file_bytes(bytes))) return fail(fd, "reserve", bytes, err);
    if (*base && write_all(fd, *base, bytes, 0)) return fail(fd, "fill", bytes, err);
    void *at = mmap(*base, mapped, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE | (*base ? MAP_FIXED : 0), fd, 0);
    if (at == MAP_FAILED) return fail(fd, "map", bytes, err);
    note of = {.bytes = bytes, .base = (uint64_t)(uintptr_t)at};
    bool sealed = !write_all(fd, &of, sizeof(of), mapped) &&
                  !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    if (!sealed) {
        int code = fail(fd, "seal", bytes, err);
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
static int fail_size(const tern__native *native, int peer, size_t theirs, size_t own, tern_error *err)
{
    char text[TERN_ERROR_TEXT];
    snprintf(text, sizeof(text), "rank %d opens a window of %zu bytes, rank %d one of %zu",
             tern_group_world_rank(native->group, native->rank), own,
             tern_group_world_rank(native->group, peer), theirs);
    return tern__native_fail(native, TERN_E_MISMATCH, text, err);
}

/* Checks a peer's descriptor, which may be too short to map or not sealed against shrinking. */
static int read_note(const tern__native *native, int peer, int fd, size_t bytes, note *of, tern_error *err)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    bool sound = seals >= 0 && (seals & F_SEAL_SHRINK) && !fstat(fd, &info) && info.st_size > 0 &&
                 pread(fd, of, sizeof(*of), info.st_size - (off_t)tern__page_bytes()) == (ssize_t)sizeof(*of);
    if (!sound || (size_t)info.st_size != file_bytes(of->bytes))
        return tern__error_set(err, func, TERN_E_PEER,
                               "rank %d passed a descriptor that is not one of tern's windows",
                               tern_group_world_rank(native->group, peer));
    if (of->bytes == bytes) return TERN_OK;
    if (native->lobby) return fail_size(native, peer, of->bytes, bytes, err);
    return tern__error_set(err, func, TERN_E_MISMATCH, "rank %d runs another version of tern", peer);
}

int tern__segment_attach(const tern__native *native, int peer, int fd, size_t bytes, char **base,
                         bool *borrowed, tern_error *err)
{
    note of;
    int status = read_note(native, peer, fd, bytes, &of, err);
    if (status) return status;
    *borrowed = tern__group_is_same_process(native->group, peer);
    if (*borrowed) {
        *base = (char *)(uintptr_t)of.base;
        return TERN_OK;
    }
    void *at =
        mmap(NULL, tern__segment_mapped(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED)
        return tern__error_errno(err, func, TERN_E_MEMORY, "cannot map %zu bytes of rank %d's window", bytes,
                                 peer);
    *base = at;
    return TERN_OK;
}

/* ---- passing ---- */

/* If the lobby has a failure, it explains better why a peer cannot be reached. */
static int explain(const tern__native *native, const tern_error *why, tern_error *err)
{
    int status = native->lobby ? tern__native_check(native, err) : TERN_OK;
    return status ? status : tern__error_set(err, func, why->code, "%s", why->text);
}

int tern__segment_send(tern__native *native, int peer, uint32_t serial, int fd, tern_error *err)
{
    tern_error why = {0};
    int status = tern__group_send_fd(native->group, peer, serial, fd, &why);
    native->root->acts++;
    return status ? explain(native, &why, err) : TERN_OK;
}

static int fail_awaiting(const tern__native *native, int peer, bool has_left, tern_error *err)
{
    char who[128], last[256];
    int name = tern_group_world_rank(native->group, native->rank);
    tern__group_describe(native->group, peer, who, sizeof(who));
    tern__native_last(native, peer, last, sizeof(last));
    if (has_left)
        return tern__error_set(err, func, TERN_E_PEER, "%s has closed its group while rank %d opens a window",
                               who, name);
    return tern__error_set(err, func, TERN_E_TIMEOUT, "rank %d waited %g s for %s%s, to open the same window",
                           name, native->group->opts.timeout_s, who, last);
}

/* Progresses the whole family during the wait. */
static int progress(tern__native *native, tern_error *err)
{
    int status = native->lobby ? tern__native_progress(native, err) : TERN_OK;
    return status ? status : tern__group_progress(native->group, err);
}

/* Tries once. A rank that has waited for long checks for a deadlock. */
static int recv_once(tern__native *native, int peer, uint32_t serial, bool is_late, int *fd, tern_error *err)
{
    const double slice_s = 0.005;
    tern_error why = {0};
    tern__goal goal = {.peer = peer, .serial = serial};
    if (is_late) tern__native_say(native, &goal);
    bool is_said = is_late && tern__deadlock_begin(native, &goal);
    int status = is_said ? tern__deadlock_check(native, err) : TERN_OK, result = TERN_OK;
    if (!status) result = tern__group_recv_fd(native->group, peer, serial, slice_s, fd, &why);
    if (is_said) tern__deadlock_end(native);
    if (status || !result) return status;
    return result == TERN_E_TIMEOUT ? TERN_PENDING : explain(native, &why, err);
}

/* If the peer leaves, waits for one more second: what it sent before may still arrive. */
static int recv_awaited(tern__native *native, int peer, uint32_t serial, int *fd, tern_error *err)
{
    const double left_s = 1.0;
    int64_t late = tern__deadline(native->root->late_s),
            deadline = tern__deadline(native->group->opts.timeout_s);
    bool has_left = false;
    for (;;) {
        int status = recv_once(native, peer, serial, tern__now_ns() >= late, fd, err);
        if (status != TERN_PENDING) return status;
        if (tern__now_ns() >= deadline) return fail_awaiting(native, peer, has_left, err);
        status = progress(native, err);
        if (status) return status;
        if (has_left || !tern__native_has_left(native, peer)) continue;
        has_left = true;
        deadline = TERN__MIN(deadline, tern__deadline(left_s));
    }
}

int tern__segment_recv(tern__native *native, int peer, uint32_t serial, int *fd, tern_error *err)
{
    int status = recv_awaited(native, peer, serial, fd, err);
    if (!status) tern__wait_forget(native->group);
    return status;
}

/* ---- one segment for all ranks ---- */

/* Serials begin again after four thousand million segments; those of long ago have been fetched. */
uint32_t tern__serial_next(tern__native *native)
{
    if (native->serial == TERN__PAIR_SERIAL) native->serial = 0;
    return native->serial++;
}

bool tern__shared_is_joined(const tern__goal *goal)
{
    return atomic_load(&goal->head->joined) >= goal->seq;
}

static int create_shared(tern__native *native, uint32_t serial, size_t bytes, void **base, tern_error *err)
{
    int fd;
    int status = tern__segment_create(base, bytes, &fd, err);
    if (status) return status;
    atomic_fetch_add(&((tern__shared_head *)*base)->sharers, 1);
    for (int peer = 1; peer < native->world && !status; peer++)
        status = tern__segment_send(native, peer, serial, fd, err);
    tern__close(&fd);
    return status;
}

static int attach_shared(tern__native *native, uint32_t serial, size_t bytes, void **base, tern_error *err)
{
    int fd;
    bool borrowed;
    char *at;
    int status = tern__segment_recv(native, 0, serial, &fd, err);
    if (status) return status;
    status = tern__segment_attach(native, 0, fd, bytes, &at, &borrowed, err);
    tern__close(&fd);
    if (status) return status;
    *base = at;
    if (borrowed) atomic_fetch_add(&((tern__shared_head *)*base)->sharers, 1);
    return TERN_OK;
}

/* Every rank, including the creator, returns only when all have joined, so the creator's mapping is there for
 * the ranks that share it. */
int tern__shared_open(tern__native *native, size_t bytes, void **base, tern_error *err)
{
    uint32_t serial = tern__serial_next(native);
    *base = NULL;
    int status = native->rank == 0 ? create_shared(native, serial, bytes, base, err)
                                   : attach_shared(native, serial, bytes, base, err);
    if (status) return status;
    tern__shared_head *head = *base;
    if (!native->lobby) native->lobby = *base;
    if (native->rank < TERN__SHARED_RANKS)
        atomic_fetch_or(&head->here[native->rank / 64], UINT64_C(1) << native->rank % 64);
    atomic_fetch_add(&head->joined, 1);
    native->root->acts++;
    tern__lobby_ring(native->lobby);
    tern__goal goal = {.is_met = tern__shared_is_joined, .head = head, .seq = (uint64_t)native->world};
    return tern__native_await(native, &goal, err);
}

/* The last of the ranks that share the creator's mapping unmaps it. A forked child unmaps only its own
 * copy. */
void tern__shared_close(const tern__native *native, void *base, size_t bytes)
{
    if (!base) return;
    tern__shared_head *head = base;
    bool is_sharer = native->rank == 0 || tern__group_is_same_process(native->group, 0);
    bool is_last = !is_sharer || native->pid != getpid() || atomic_fetch_sub(&head->sharers, 1) == 1;
    if (is_last) munmap(base, tern__segment_mapped(bytes));
}
