/* link.c - the transport of a family of groups. Tag 0 is for votes (vote.c), which all ranks of a group
 * hold in the same order. Channels and mailboxes reserve tags of their own. */
#include "comm/move/transport/hosts.h"

#include "comm/meet/wait.h"
#include "comm/sys.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char func[] = "tern_group_open";

enum { WHY = 256 };

/* ---- notes: how the transports of two ranks find each other ---- */

static int set_note(void *store, const char *key, const void *value, size_t bytes, char *why, size_t why_size)
{
    tern_error err = {0};
    char name[256];
    snprintf(name, sizeof(name), "transport/%s", key);
    int status = tern_store_set(store, name, value, bytes, &err);
    snprintf(why, why_size, "%s", err.text);
    return status;
}

typedef struct notes {
    tern_store *store;
    tern__control *control;
    double timeout_s;
} notes;

static int notes_set(void *of, const char *key, const void *value, size_t bytes, char *why, size_t why_size)
{
    return set_note(((notes *)of)->store, key, value, bytes, why, why_size);
}

/* A failure of a rank ends a wait for the store, and is its reason. */
static int heard_or(tern__control *control, tern_error *err)
{
    tern_error heard = {0};
    if (tern__control_check(control, func, &heard)) *err = heard;
    return err->code;
}

/* Reads it once it is there, or fails as soon as a rank has. */
static int read_note(const notes *n, const char *name, void *value, size_t cap, size_t *bytes,
                     tern_error *err)
{
    const double look_s = 0.5;
    double left_s = n->timeout_s;
    int status;
    do {
        *err = (tern_error){0};
        status = tern__control_check(n->control, func, err);
        if (status) return status;
        status = tern__store_read(n->store, name, value, cap, bytes, TERN__MIN(left_s, look_s), err);
        if (status == TERN_E_PEER) status = heard_or(n->control, err);
        left_s -= look_s;
    } while (status == TERN_E_TIMEOUT && left_s > 0);
    return status;
}

static int notes_get(void *of, const char *key, void *value, size_t cap, size_t *bytes, char *why,
                     size_t why_size)
{
    const notes *n = of;
    tern_error err = {0};
    char name[256];
    snprintf(name, sizeof(name), "transport/%s", key);
    int status = read_note(n, name, value, cap, bytes, &err);
    if (status == TERN_E_TIMEOUT)
        snprintf(why, why_size, "nobody set \"%s\" in the store within %.3g s", name, n->timeout_s);
    else
        snprintf(why, why_size, "%s", err.text);
    return status;
}

/* ---- what a rank that waits does with it ---- */

static int link_progress(tern__incoming *incoming, tern_error *err)
{
    tern__link *link = (tern__link *)incoming;
    link->awaited = NULL;
    return tern__progress_hooks_run(link->hooks, err);
}

static bool is_quiet(tern__incoming *incoming)
{
    const tern__link *link = (tern__link *)incoming;
    return !link->pending && !link->transfers;
}

/* Blocks until the awaited message may have arrived. Transfers need polling: the link awaits no single
 * message of theirs. */
static bool sleep_in_transport(tern__incoming *incoming)
{
    const tern__link *link = (tern__link *)incoming;
    const tern_transport *transport = link->transport;
    bool can = transport->size > offsetof(tern_transport, wait) && transport->wait;
    if (!can || !link->state || !link->awaited || link->transfers) return false;
    transport->wait(link->state, link->awaited);
    return true;
}

static void incoming_stop(tern__incoming *incoming)
{
    tern__link_give_up((tern__link *)incoming);
}

/* ---- life ---- */

/* The transport's own waits warn of nobody. So the control thread looks meanwhile which ranks hold it up.
 */
typedef struct opening {
    const tern_group *root;
    bool *others; /* [world] */
    char what[64];
} opening;

static void say_opening(void *ctx)
{
    const opening *o = ctx;
    tern__wait_say(o->root, o->what, o->others, false);
}

static int opening_begin(opening *o, const tern_group *root, const char *transport, tern_error *err)
{
    *o = (opening){.root = root,
                   .others = tern__alloc((size_t)root->boot.world * sizeof(*o->others), func, err)};
    if (!o->others) return TERN_E_MEMORY;
    for (int rank = 0; rank < root->boot.world; rank++) o->others[rank] = rank != root->boot.rank;
    snprintf(o->what, sizeof(o->what), "the opening of %s", transport);
    tern__control_tick_set(root->control, say_opening, o);
    return TERN_OK;
}

static void opening_end(opening *o)
{
    tern__control_tick_set(o->root->control, NULL, NULL);
    tern__wait_forget(o->root);
    tern__free(o->others);
}

static int transport_start(tern__link *link, const int *hosts, tern_error *err)
{
    const tern_group *root = link->root;
    char why[WHY] = "", address[64];
    tern__control_address(root->control, address, sizeof(address));
    int status = TERN_E_SYSTEM;
    notes of = {root->store, root->control, root->opts.connect_timeout_s};
    tern_transport_place place = {.size = sizeof(place),
                                  .rank = root->boot.rank,
                                  .world = root->boot.world,
                                  .timeout_s = root->opts.connect_timeout_s,
                                  .address = address,
                                  .hosts = hosts,
                                  .native = root->boot.mpi ? root->boot.comm : -1,
                                  .store = &of,
                                  .set = notes_set,
                                  .get = notes_get,
                                  .host_timeout_s = root->opts.host_timeout_s};
    opening o;
    if (opening_begin(&o, root, link->transport->name, err)) return err->code;
    link->state = link->transport->open(&place, &status, why, sizeof(why));
    opening_end(&o);
    if (link->state) return TERN_OK;
    return tern__error_set(err, func, status, "%s: %s", link->transport->name, why);
}

tern__link *tern__link_open(tern_group *group, const tern_transport *transport, tern_error *err)
{
    tern__host_map map;
    tern__link *link = tern__alloc(sizeof(*link), func, err);
    if (!link) return NULL;
    *link = (tern__link){.incoming = {.progress = link_progress,
                                      .is_quiet = is_quiet,
                                      .sleep = sleep_in_transport,
                                      .stop = incoming_stop},
                         .transport = transport,
                         .root = group,
                         .next_tag = 1};
    int status = tern__host_map_make(&map, group, false, err);
    if (!status) status = transport_start(link, map.host, err);
    tern__host_map_release(&map);
    if (!status) return link;
    tern__free(link);
    return NULL;
}

/* A forked child has copies of the connections, and must not send on them. */
void tern__link_stop(tern__link *link, bool failed)
{
    if (link->state && link->root->pid == getpid()) link->transport->close(link->state, failed);
    link->state = NULL;
}

void tern__link_give_up(tern__link *link)
{
    tern__link_stop(link, true);
}

/* ---- messages ---- */

/* The transport only sees that a connection closed. The control plane knows why, at most a second later. */
static int link_fail(const tern__link *link, int status, const char *why, tern_error *err)
{
    const tern__control *control = link->root->control;
    int64_t deadline = tern__deadline(1.0);
    while (tern__control_is_healthy(control) && tern__now_ns() < deadline)
        tern__poll(NULL, 0, tern__now_ns() + 1000000);
    int heard = tern__control_check(control, "tern_group", err);
    if (heard) return heard;
    return tern__error_set(err, "tern_group", status, "%s: %s", link->transport->name, why);
}

static int link_check(const tern__link *link, tern_error *err)
{
    return link->state ? TERN_OK : link_fail(link, TERN_E_PEER, "it was given up after a failure", err);
}

int tern__link_send(tern__link *link, const tern_group *group, int rank, int tag, const void *data,
                    size_t bytes, tern_transport_message *message, tern_error *err)
{
    char why[WHY] = "";
    int peer = tern_group_world_rank(group, rank), status = link_check(link, err);
    if (status) return status;
    status = link->transport->send(link->state, peer, tag, data, bytes, message, why, sizeof(why));
    link->pending += !status;
    return status ? link_fail(link, status, why, err) : TERN_OK;
}

int tern__link_recv(tern__link *link, const tern_group *group, int rank, int tag, void *data, size_t bytes,
                    tern_transport_message *message, tern_error *err)
{
    char why[WHY] = "";
    int peer = tern_group_world_rank(group, rank), status = link_check(link, err);
    if (status) return status;
    status = link->transport->recv(link->state, peer, tag, data, bytes, message, why, sizeof(why));
    link->pending += !status;
    return status ? link_fail(link, status, why, err) : TERN_OK;
}

int tern__link_test(tern__link *link, tern_transport_message *message, tern_error *err)
{
    char why[WHY] = "";
    int status = link_check(link, err);
    if (!status) status = link->transport->test(link->state, message, why, sizeof(why));
    link->pending -= !status;
    link->incoming.arrived += !status;
    return status < 0 ? link_fail(link, status, why, err) : status;
}
