/* backend.c - the native back end: ranks of one host that reduce in memory which they share. */
#include "comm/move/window/mailbox.h"

#include <sched.h>
#include <unistd.h>

/* The control thread calls this after an event; it wakes the sleeping ranks. */
static void wake(void *state)
{
    const tern__native *native = state;
    tern__lobby_ring(native->lobby);
}

/* Adds this rank's CPUs to the lobby. Spinning pays off only if the ranks' CPUs together are enough for one
 * per rank. */
static void publish_cpus(const tern__native *native)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set)) return;
    for (int cpu = 0; cpu < TERN__MIN(CPU_SETSIZE, TERN__LOBBY_CPUS); cpu++)
        if (CPU_ISSET(cpu, &set)) atomic_fetch_or(&native->lobby->cpus[cpu / 64], UINT64_C(1) << cpu % 64);
}

static int count_cpus(const tern__native *native)
{
    int count = 0;
    for (size_t i = 0; i < TERN__COUNT(native->lobby->cpus); i++)
        count += __builtin_popcountll(atomic_load(&native->lobby->cpus[i]));
    return count;
}

static int choose_spins(const tern__native *root)
{
    return count_cpus(root) >= root->world ? TERN__SPINS_MAX : 0;
}

static int make_circle(tern__circle *circle, int world, tern_error *err)
{
    circle->ranks = tern__alloc((size_t)world * sizeof(*circle->ranks), "tern_group_open", err);
    circle->turns = tern__alloc((size_t)world * sizeof(*circle->turns), "tern_group_open", err);
    circle->known = tern__alloc((size_t)world * sizeof(*circle->known), "tern_group_open", err);
    circle->missing = tern__alloc((size_t)world * sizeof(*circle->missing), "tern_group_open", err);
    return circle->ranks && circle->turns && circle->known && circle->missing ? TERN_OK : TERN_E_MEMORY;
}

/* The lobby counts each rank twice: when it has mapped the lobby, and when it has published its CPUs. */
static int enter_lobby(tern__native *native, tern_error *err)
{
    void *lobby;
    int status = tern__shared_open(native, tern__lobby_bytes(native->world), &lobby, err);
    if (status) return status;
    tern__shared_head *head = &native->lobby->head;
    tern__goal goal = {.is_met = tern__shared_is_joined, .head = head, .seq = 2 * (uint64_t)native->world};
    publish_cpus(native);
    atomic_fetch_add(&head->joined, 1);
    tern__lobby_ring(native->lobby);
    status = tern__native_await(native, &goal, err);
    native->spins = choose_spins(native);
    return status;
}

/* Bell, sleepers and the first failure belong to the family, because a rank that sleeps in one group must
 * wake for the works of another. */
static void use_lobby(tern__native *native, tern__native *root)
{
    native->root = root;
    native->lobby = root->lobby;
    native->spins = choose_spins(root);
}

static void leave_lobby(const tern__native *native)
{
    if (native->pid == getpid()) tern__control_wake_set(native->control, NULL, NULL);
    tern__shared_close(native, native->lobby, tern__lobby_bytes(native->world));
    native->group->root->native = NULL;
    tern__free(native->circle.ranks);
    tern__free(native->circle.turns);
    tern__free(native->circle.known);
    tern__free(native->circle.missing);
}

static void native_close(void *state)
{
    tern__native *native = state;
    for (uint32_t i = 0; i < native->window_count; i++) tern__window_close(native, i);
    if (native->root == native) leave_lobby(native);
    tern__free(native->windows);
    tern__free(native);
}

static void *native_open(tern_group *group, tern_error *err)
{
    tern__native *native = tern__alloc(sizeof(*native), "tern_group_open", err);
    if (!native) return NULL;
    *native = (tern__native){.group = group,
                             .root = native,
                             .control = group->control,
                             .rank = group->boot.rank,
                             .world = group->boot.world,
                             .late_s = 0.05,
                             .pid = getpid()};
    tern__group_in_text(group, native->where, sizeof(native->where));
    if (group->root->native) {
        use_lobby(native, group->root->native);
        return native;
    }
    group->root->native = native;
    if (make_circle(&native->circle, native->world, err) || enter_lobby(native, err)) {
        native_close(native);
        return NULL;
    }
    tern__control_wake_set(native->control, wake, native);
    return native;
}

const tern__comm_backend tern__comm_native = {
    .name = "native",
    .keeps_parts = true,
    .open = native_open,
    .close = native_close,
    .window_open = tern__window_open,
    .window_base = tern__window_base,
    .window_peer = tern__window_peer,
    .window_close = tern__window_close,
    .channel_open = tern__channel_open,
    .channel_close = tern__channel_close,
    .post = tern__channel_post,
    .progress = tern__channel_progress,
    .test = tern__channel_test,
    .wait = tern__channel_wait,
    .mark = tern__channel_mark,
    .tally = tern__channel_tally,
    .mailbox_open = tern__mailbox_open,
    .mailbox_close = tern__mailbox_close,
    .start = tern__mailbox_start,
    .carry = tern__mailbox_carry,
    .await = tern__mailbox_await,
    .drop = tern__mailbox_drop,
};
