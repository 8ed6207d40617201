/* vote.c - lets all ranks of a group agree while they open something: each rank sends every other a number
 * and waits for theirs. */
#include "comm/move/transport/hosts.h"

#include <stdio.h>
#include <string.h>

static const char func[] = "tern_group_open";

typedef struct ballot {
    tern__goal goal; /* that all ranks' numbers are here */
    tern__messages messages;
    const char *what;     /* the purpose      */
    uint64_t own, *votes; /* [world]          */
    int status;
    tern_error *err;
} ballot;

static int vote_begin(ballot *b, int rank)
{
    int status = tern__messages_send(&b->messages, rank, 0, &b->own, sizeof(b->own), b->err);
    if (status) return status;
    return tern__messages_recv(&b->messages, rank, 0, &b->votes[rank], sizeof(*b->votes), b->err);
}

/* An error ends the wait, too. */
static bool is_counted(const tern__goal *goal)
{
    ballot *b = (ballot *)(uintptr_t)goal;
    int status = tern__messages_test(&b->messages, b->err);
    b->status = TERN__MIN(status, 0);
    return status != TERN_PENDING;
}

static bool vote_awaits(const tern__goal *goal, int rank)
{
    return tern__messages_awaits(&((const ballot *)goal)->messages, rank);
}

static void vote_describe(const tern__goal *goal, bool *ranks, char *what, size_t size)
{
    const ballot *b = (const ballot *)goal;
    snprintf(what, size, "%s", b->what);
    for (int rank = 0; rank < b->messages.hosts->group->boot.world; rank++)
        ranks[rank] = vote_awaits(goal, rank);
}

static int find_gone(const tern__goal *goal)
{
    return tern__hosts_find_gone(((const ballot *)goal)->messages.hosts, goal, vote_awaits);
}

static int vote_run(ballot *b, tern__hosts *hosts)
{
    tern_group *group = hosts->group;
    int status = TERN_OK;
    b->votes[group->boot.rank] = b->own;
    for (int i = 1; i < group->boot.world && !status; i++)
        status = vote_begin(b, (group->boot.rank + i) % group->boot.world);
    if (!status) status = tern__wait(group, &b->goal, b->err);
    return status ? status : b->status;
}

int tern__hosts_vote(tern__hosts *hosts, const char *what, uint64_t own, uint64_t *votes, tern_error *err)
{
    tern_error why = {0};
    ballot b = {.goal = {.is_met = is_counted, .describe = vote_describe, .find_gone = find_gone},
                .what = what,
                .own = own,
                .votes = votes,
                .err = &why};
    int status = tern__messages_open(&b.messages, hosts, &why);
    if (!status) status = vote_run(&b, hosts);
    tern__messages_close(&b.messages);
    return status ? tern__error_set(err, func, status, "%s", why.text) : TERN_OK;
}

/* The first tag is the largest of the ranks' next unused tags. */
int tern__hosts_tags(tern__hosts *hosts, int count, int *tag, tern_error *err)
{
    int world = hosts->group->boot.world;
    uint64_t *votes = tern__alloc((size_t)world * sizeof(*votes), func, err),
             next = (uint64_t)hosts->link->next_tag;
    if (!votes) return TERN_E_MEMORY;
    int status = tern__hosts_vote(hosts, "the opening of a channel", next, votes, err);
    for (int rank = 0; rank < world && !status; rank++) next = TERN__MAX(next, votes[rank]);
    tern__free(votes);
    if (status) return status;
    if (next + (uint64_t)count > TERN_TRANSPORT_TAGS)
        return tern__error_set(err, func, TERN_E_RANGE, "more channels were opened than there are tags (%d)",
                               TERN_TRANSPORT_TAGS);
    *tag = (int)next;
    hosts->link->next_tag = (int)next + count;
    return TERN_OK;
}
