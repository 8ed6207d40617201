/* hosts.h - what the files of the back end `hosts` share: backend.c (the struct, windows), map.c (which ranks
 * are on which host), link.c (messages between ranks of other hosts), messages.c (those that are under way),
 * channel.c (the way of a work), heads.c (what hosts say of one), exchange.c (how its elements go), region.c
 * (which elements), partial.c (their sums).
 *
 * The back end of a group that spans hosts. Inside a host, ranks reach each other's windows through a back
 * end of their own, native or self (`here`). Between hosts, messages go over a transport, MPI or gloo. A
 * group that is to use the transport alone counts every rank as a host. */
#ifndef TERN_SRC_COMM_HOSTS_H
#define TERN_SRC_COMM_HOSTS_H

#include "comm/group.h"
#include "comm/native/layout.h"

#include <tern/backend/transport.h>

typedef struct tern__hosts tern__hosts;
typedef struct tern__hosts_channel tern__hosts_channel;
struct tern__goal; /* native/native.h */

/* ---- map.c ---- */

/* Hosts are numbered in the order of their first ranks; the ranks of a host ascend. */
typedef struct tern__host_map {
    int count;      /* of hosts                                         */
    int own, place; /* this rank's host, and its number there           */
    int flows;  /* ranks of the smallest host: so many talk to those of the other hosts, each of a share */
    int most;   /* ranks of the largest                             */
    int *host;  /* [world] of a rank                                */
    int *ranks; /* [world] one host after the other                 */
    int *first; /* [count + 1] where a host begins in `ranks`       */
} tern__host_map;

int tern__host_map_make(tern__host_map *map, const tern_group *group, bool flat, tern_error *err);
void tern__host_map_release(tern__host_map *map);

static inline int tern__host_size(const tern__host_map *map, int host)
{
    return map->first[host + 1] - map->first[host];
}

static inline int tern__host_rank(const tern__host_map *map, int host, int place)
{
    return map->ranks[map->first[host] + place];
}

/* ---- link.c ---- */

/* A family's messages between hosts. The transport knows ranks of the root. */
typedef struct tern__link {
    const tern_transport *transport;
    void *state; /* NULL: given up after a failure */
    tern_group *root;
    int next_tag;
    tern__hosts_channel *channels;         /* of all groups of the family */
    struct tern__hosts_mailbox *mailboxes; /* the same                    */
    struct tern__hosts_mailbox *asking;    /* closed, with a receive that the transport still holds */
    int pending;                           /* messages that are under way                                */
    tern_transport_message *awaited;       /* was looked at last, and is the next that is needed; or NULL */
} tern__link;

/* Collective over the root, which is `group`. */
tern__link *tern__link_open(tern_group *group, const tern_transport *transport, tern_error *err);
void tern__link_close(tern__link *link);
/* Moves on the works of all channels of the family. */
int tern__link_progress(tern__link *link, tern_error *err);
/* From here on no buffer of a message is touched. */
void tern__link_give_up(tern__link *link);
/* To and from a rank of `group`. */
int tern__link_send(tern__link *link, const tern_group *group, int rank, int tag, const void *data,
                    size_t bytes, tern_transport_message *message, tern_error *err);
int tern__link_recv(tern__link *link, const tern_group *group, int rank, int tag, void *data, size_t bytes,
                    tern_transport_message *message, tern_error *err);
int tern__link_test(tern__link *link, tern_transport_message *message, tern_error *err);
/* True if no message is under way and no mailbox waits for one. */
bool tern__link_is_quiet(const tern__link *link);
/* Sleeps until the awaited message may have come, or for a moment. False if the transport cannot tell when
 * that is. */
bool tern__link_doze(const tern__link *link);

/* ---- messages.c ---- */

/* At most one message to each rank of the group and one from each. */
typedef struct tern__messages {
    const tern__hosts *hosts;
    tern_transport_message *handles; /* [2 * world]: from each, to each */
    bool *is_begun;                  /* [2 * world]: are under way      */
} tern__messages;

/* Into zeros; close it after an error, too. */
int tern__messages_open(tern__messages *messages, const tern__hosts *hosts, tern_error *err);
/* If messages are still under way, gives up the link with them. */
void tern__messages_close(tern__messages *messages);
/* Both do nothing for 0 bytes. */
int tern__messages_send(tern__messages *messages, int rank, int tag, const void *data, size_t bytes,
                        tern_error *err);
int tern__messages_recv(tern__messages *messages, int rank, int tag, void *data, size_t bytes,
                        tern_error *err);
/* TERN_OK when all are over, or TERN_PENDING: then the link awaits the first that is not. */
int tern__messages_test(tern__messages *messages, tern_error *err);
/* True if a message from `rank` is still to come. */
bool tern__messages_awaits(const tern__messages *messages, int rank);

/* ---- vote.c ---- */

/* votes[r] = what rank r says. Collective over the group, for `what`: "the opening of a channel". */
int tern__hosts_vote(tern__hosts *hosts, const char *what, uint64_t own, uint64_t *votes, tern_error *err);
/* Reserves `count` tags from *tag on that no rank of the group has used. Collective. */
int tern__hosts_tags(tern__hosts *hosts, int count, int *tag, tern_error *err);

/* ---- backend.c ---- */

struct tern__hosts {
    tern_group *group;
    tern__link *link; /* the family's */
    tern__host_map map;
    tern_group here;              /* this host's ranks of the group            */
    const char **in_place;        /* [its ranks] room for where their elements are */
    bool *missing;                /* [world] room for the ranks that a wait is for */
    char where[TERN__GROUP_TEXT]; /* " in the group of ranks 0, 2", or "" for the root */
    size_t small_bytes;           /* of a host's sum that goes over with a head */
    int mail_tag;                 /* the first of its messages'                */
};

/* TERN_OK as long as nobody failed. */
int tern__hosts_check(const tern__hosts *hosts, tern_error *err);
/* The first failure of the family, for all ranks. Returns it. */
int tern__hosts_fail(const tern__hosts *hosts, int code, const char *text, tern_error *err);
/* Moves all works and messages of the family on. */
int tern__hosts_progress(const tern__hosts *hosts, tern_error *err);
/* What a rank waits for. */
typedef struct tern__hosts_goal {
    bool (*is_met)(const void *arg);
    /* Sets ranks[r], false before, for each rank of the group that may hold this one up, and writes the
     * wait's name: "all_reduce of 8 f32, sum (work 2)". */
    void (*missing)(const void *arg, bool *ranks, char *what, size_t size);
    bool is_message; /* its name has the peer */
    /* A rank that has closed its group, and that `arg` cannot do without, or -1; NULL: all are waited for. */
    int (*find_gone)(const tern__hosts *hosts, const void *arg);
    /* If it waits for ranks of this host: finds the host's work in which they have to meet. NULL: it never
     * does. */
    bool (*find_meeting)(const void *arg, struct tern__goal *meeting);
    const void *arg;
} tern__hosts_goal;

/* Moves all works of the family on until the goal is met, or an error. */
int tern__hosts_await(tern__hosts *hosts, const tern__hosts_goal *goal, tern_error *err);

/* ---- mailbox_life.c ---- */

void *tern__hosts_mailbox_open(void *hosts, tern_error *err);
void tern__hosts_mailbox_close(void *mailbox);
int tern__hosts_mailbox_start(void *mailbox, tern__transfer *transfer, tern_error *err);
int tern__hosts_mailbox_carry(void *mailbox, tern_error *err);
int tern__hosts_mailbox_await(void *mailbox, const tern__transfer *transfer, tern_error *err);
void tern__hosts_mailbox_drop(void *mailbox, tern__transfer *transfer);
void tern__mail_free(struct tern__hosts_mailbox *mailbox);

/* ---- channel.c ---- */

/* A work between hosts, as this rank posted it. */
typedef struct tern__crossing {
    tern__post post;
    tern__desc desc;
    uint64_t count;               /* elements in the extents                                       */
    uint64_t arrive, leave, part; /* its places in the channels of this host            */
    bool moves, moved;            /* moves: its messages are under way; moved: they are over */
    bool is_small;                /* its sums go over with the heads                         */
    /* Once all hosts have said what they mean: */
    tern__tally tally;
    int source; /* of a broadcast; -1: nobody's data                                  */
    bool is_weighted, is_moot;
    uint64_t rounds, begun, ended; /* in which its elements go        */
    uint64_t each;                 /* of a region's elements, in one */
} tern__crossing;

/* ---- heads.c ---- */

#define TERN__SMALL_BYTES ((size_t)2 << 10) /* of a host's sum that goes over with the head, at most */

/* The heads of one work: what each host says about it. */
typedef struct tern__heads {
    const tern__hosts_channel *channel;
    tern__crossing *work;
    tern__messages messages;
    char *said;  /* [hosts] heads: what each says; this one's own too */
    char **sums; /* [hosts] in them                                   */
} tern__heads;

/* Returns how many bytes of a host's sum fit behind the heads in a message of `short_bytes`, which is no
 * slower than a shorter one. */
size_t tern__heads_room(const tern__hosts *hosts, size_t short_bytes);
/* Into zeros; close it after an error, too. */
int tern__heads_open(tern__heads *heads, tern__hosts_channel *channel, tern_error *err);
void tern__heads_close(tern__heads *heads);
/* Sends the heads once the host's ranks have met in the work; `local` is their tally. */
int tern__heads_say(tern__heads *heads, tern__crossing *work, const tern__tally *local, tern_error *err);
/* TERN_OK when all hosts have said the same of work `seq`, TERN_PENDING, or an error. */
int tern__heads_hear(tern__heads *heads, uint64_t seq, tern_error *err);

/* ---- exchange.c ---- */

enum {
    TERN__HEADS = 4,
    TERN__ROUNDS = 4,
    TERN__CHANNEL_TAGS = 4
}; /* under way at a time; the last is moves' */

/* A part of a work on its way between the hosts. */
typedef struct tern__round {
    tern__crossing *work;
    uint64_t index;
    tern__messages to_join, given, to_end; /* partials from others; to them; results */
    char *partials, *arrivals, *results;   /* [hosts] buffers each: to every host, from every host, for all */
    char **parts;    /* [hosts] partials of this host's elements: the arrivals, and its own */
    char **landings; /* [hosts] where results go                                           */
} tern__round;

/* The works of a channel between this rank and those of the other hosts that have the same share of them. */
typedef struct tern__exchange {
    tern__hosts_channel *channel;
    uint64_t said, heard, fed;     /* works: their heads are under way, are there; all rounds have begun */
    uint64_t begun, joined, ended; /* rounds of all works                                               */
    size_t round_bytes;            /* of a buffer                                                       */
    tern__heads heads[TERN__HEADS];
    tern__round rounds[TERN__ROUNDS];
} tern__exchange;

int tern__exchange_open(tern__exchange *exchange, tern__hosts_channel *channel, tern_error *err);
void tern__exchange_close(tern__exchange *exchange);
/* True if there is room for another work's heads. */
bool tern__exchange_has_room(const tern__exchange *exchange);
/* Sends the heads of the next work, in which the host's ranks have met. */
int tern__exchange_say(tern__exchange *exchange, tern_error *err);
/* Does what can be done. */
int tern__exchange_step(tern__exchange *exchange, tern_error *err);
/* True if the results of this rank's share of work `seq` are where all ranks of the host see them. */
bool tern__exchange_is_over(const tern__exchange *exchange, uint64_t seq);
/* Sets ranks[r] for each rank of the group on another host that may hold up work `seq`. */
void tern__exchange_missing(const tern__exchange *exchange, uint64_t seq, bool *ranks);

/* ---- moves.c ---- */

/* Copies what this rank takes from ranks of its own host, and begins the messages to and from the others. */
int tern__moves_begin(tern__messages *messages, int tag, const tern__crossing *work, tern_error *err);

struct tern__hosts_channel {
    tern__hosts_channel *next;
    tern__hosts *hosts;
    int tag; /* the first of TERN__CHANNEL_TAGS */
    uint64_t slots;
    void *arrive, *leave, *part; /* this host's channels */
    uint32_t board; /* a window: what the ranks that do not talk to other hosts are told of each work */
    bool has_board;
    size_t notice_bytes; /* of one work on it */
    uint64_t posted, arrived, crossed, done;
    tern__crossing *works; /* [slots] */
    bool *shadows;         /* [slots][world], what tallies point to */
    tern__exchange exchange;
    tern__messages moves; /* of the move that is under way */
};

/* [world] of a work's tally. */
static inline bool *tern__crossing_shadows(const tern__hosts_channel *channel, const tern__crossing *work)
{
    return channel->shadows + (size_t)(work - channel->works) * (size_t)channel->hosts->group->boot.world;
}

void *tern__hosts_channel_open(void *hosts, int slots, tern_error *err);
void tern__hosts_channel_close(void *channel);
int tern__hosts_channel_post(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
int tern__hosts_channel_progress(void *channel, tern_error *err);
int tern__hosts_channel_test(void *channel, uint64_t seq, tern_error *err);
int tern__hosts_channel_wait(void *channel, uint64_t seq, tern_error *err);
void tern__hosts_channel_mark(void *channel, uint64_t backward, uint32_t folded);
const tern__tally *tern__hosts_channel_tally(void *channel, uint64_t seq);

/* ---- region.c ---- */

/* How many elements of a work this rank's share has of what belongs to `host`. */
uint64_t tern__region_count(const tern__hosts *hosts, const tern__crossing *work, int host);
/* Elements [first, first + count) of it, between a buffer and the window of the rank at `place` of this host;
 * TERN__OWNER: of whichever rank an element belongs to. */
#define TERN__OWNER (-1)
void tern__region_read(const tern__hosts *hosts, const tern__crossing *work, int host, uint64_t first,
                       uint64_t count, int place, char *buffer);
void tern__region_write(const tern__hosts *hosts, const tern__crossing *work, int host, uint64_t first,
                        uint64_t count, int place, const char *buffer);
/* Returns the memory itself if the elements are contiguous there, else NULL. */
char *tern__region_at(const tern__hosts *hosts, const tern__crossing *work, int host, uint64_t first,
                      uint64_t count, int place);

/* ---- partial.c ---- */

/* The dtype in which sums of a host's ranks are sent. */
tern_dtype tern__partial_dtype(const tern__hosts *hosts, const tern__crossing *work);
/* True if the elements of this host's only rank are the sum, as they are. */
bool tern__partial_is_raw(const tern__hosts *hosts, const tern__crossing *work);
/* out = the sum (or what the operation is) over this host's ranks of elements of the region of `host`. */
void tern__partial_make(const tern__hosts *hosts, const tern__crossing *work, const tern__tally *local,
                        int host, uint64_t first, uint64_t count, char *out);
/* out = the result of all hosts' parts, in the order of hosts, in the work's dtype. `parts` are changed. */
void tern__partial_join(const tern__hosts *hosts, const tern__crossing *work, char *const *parts,
                        uint64_t count, char *out);

#endif
