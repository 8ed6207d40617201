/* hosts.h - shared declarations of the mover `transport`, which serves a group that spans hosts.
 *
 * Inside a host, ranks meet as in any group (meet/meeting.h) and reach each other's windows through a local
 * mover, `window` or `self`. Between hosts, messages go over a transport, MPI or gloo. A group that uses
 * the transport alone counts every rank as a host of its own.
 *
 *     backend.c                  opening, closing, windows
 *     map.c                      which ranks are on which host
 *     link.c                     the transport of a family of groups
 *     messages.c                 the messages in flight for one purpose
 *     channel.c                  the stages of a work
 *     headers.c                    the headers that hosts exchange before a work
 *     exchange.c                 the transfer of a work's elements
 *     region.c                   which elements a rank transfers
 *     partial.c                  their sums
 *     moves.c                    the transfer of a move's elements
 *     vote.c                     agreement while something is opened
 *     mailbox.c, mailbox_life.c  messages between two ranks
 */
#ifndef TERN_SRC_COMM_MOVE_TRANSPORT_HOSTS_H
#define TERN_SRC_COMM_MOVE_TRANSPORT_HOSTS_H

#include "comm/meet/failure.h"
#include "comm/meet/meeting.h"
#include "comm/move/backend.h"

#include <tern/backend/transport.h>

typedef struct tern__hosts tern__hosts;
typedef struct tern__hosts_channel tern__hosts_channel;

/* ---- map.c ---- */

/* Hosts are numbered in the order of their lowest ranks; the ranks of a host are in ascending order. */
typedef struct tern__host_map {
    int count;      /* number of hosts                          */
    int own, place; /* this rank's host, and its index there    */
    int flows;      /* ranks of the smallest host: on every host this many ranks talk to other hosts */
    int most;       /* ranks of the largest host                */
    int *host;      /* [world] each rank's host                 */
    int *ranks;     /* [world] all ranks, host by host          */
    int *first;     /* [count + 1] a host's first index in `ranks` */
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

/* The transport of a family of groups. The transport addresses peers by their rank in the root group. */
typedef struct tern__link {
    tern__incoming incoming; /* first: its functions cast it back */
    const tern_transport *transport;
    void *state; /* NULL: given up after a failure */
    tern_group *root;
    int next_tag;
    tern__progress_hook *hooks;         /* channels and mailboxes of all groups of the family  */
    int transfers;                      /* unfinished ones of mailboxes                         */
    struct tern__hosts_mailbox *asking; /* closed, but the transport still holds one of their receives */
    int pending;                        /* messages in flight                                   */
    tern_transport_message *awaited;    /* the first pending message that progress depends on, or NULL */
} tern__link;

/* Collective over `group`, the root. */
tern__link *tern__link_open(tern_group *group, const tern_transport *transport, tern_error *err);
/* Close the transport. It touches no message's buffer afterwards. */
void tern__link_stop(tern__link *link, bool failed);
void tern__link_give_up(tern__link *link); /* after a failure */
/* `rank` is a rank of `group`. */
int tern__link_send(tern__link *link, const tern_group *group, int rank, int tag, const void *data,
                    size_t bytes, tern_transport_message *message, tern_error *err);
int tern__link_recv(tern__link *link, const tern_group *group, int rank, int tag, void *data, size_t bytes,
                    tern_transport_message *message, tern_error *err);
int tern__link_test(tern__link *link, tern_transport_message *message, tern_error *err);

/* ---- messages.c ---- */

/* At most one message to each rank of the group and one from each. */
typedef struct tern__messages {
    const tern__hosts *hosts;
    tern_transport_message *handles; /* [2 * world]: from each rank, then to each */
    bool *is_begun;                  /* [2 * world]: the message is in flight     */
} tern__messages;

/* *messages must be zeroed. Close it after an error, too. */
int tern__messages_open(tern__messages *messages, const tern__hosts *hosts, tern_error *err);
/* If messages are still in flight, gives up the link. */
void tern__messages_close(tern__messages *messages);
/* Sending or receiving 0 bytes does nothing. */
int tern__messages_send(tern__messages *messages, int rank, int tag, const void *data, size_t bytes,
                        tern_error *err);
int tern__messages_recv(tern__messages *messages, int rank, int tag, void *data, size_t bytes,
                        tern_error *err);
/* TERN_OK when all are complete. On TERN_PENDING, sets link->awaited to the first that is not, unless it is
 * set. */
int tern__messages_test(tern__messages *messages, tern_error *err);
/* True if a message from `rank` has not arrived yet, or if `rank` has not taken one. */
bool tern__messages_awaits(const tern__messages *messages, int rank);
/* Returns a rank that has closed its group and for which awaits(goal, rank) is true, or -1. A rank may
 * leave as soon as its own part is done, while others still wait for each other. */
int tern__hosts_find_gone(const tern__hosts *hosts, const tern__goal *goal,
                          bool (*awaits)(const tern__goal *goal, int rank));

/* ---- vote.c ---- */

/* Gathers the ranks' numbers: votes[r] = rank r's `own`. Collective over the group. `what` names the
 * purpose in messages: "the opening of a channel". */
int tern__hosts_vote(tern__hosts *hosts, const char *what, uint64_t own, uint64_t *votes, tern_error *err);
/* Reserves the tags [*tag, *tag + count), which no rank of the group has used yet. Collective. */
int tern__hosts_tags(tern__hosts *hosts, int count, int *tag, tern_error *err);

/* ---- backend.c ---- */

struct tern__hosts {
    tern_group *group;
    tern__link *link; /* shared by the family */
    tern__host_map map;
    tern_group here;                     /* the group of this host's ranks                          */
    tern__shm_group *ranks;              /* the same, where they meet                               */
    tern__shm_group alone;               /* `ranks`, if this rank is the only one                   */
    const char **in_place;               /* [this host's ranks] scratch: where their elements are   */
    char where[TERN__GROUP_TEXT];        /* " in the group of ranks 0, 2", or "" for the root       */
    size_t small_bytes;                  /* the largest sum of a host that fits behind a header       */
    int mail_tag;                        /* the first of the mailbox's three tags                   */
    struct tern__hosts_mailbox *mailbox; /* NULL until the first message */
};

/* ---- mailbox_life.c ---- */

/* See tern__comm_backend; the first transfer opens the mailbox. */
int tern__hosts_mailbox_start(void *hosts, tern__transfer *transfer, tern_error *err);
int tern__hosts_mailbox_wait(void *hosts, const tern__transfer *transfer, tern_error *err);
bool tern__hosts_mailbox_drop(void *hosts, tern__transfer *transfer, bool if_unmet);
/* No transfer is pending. NULL does nothing. */
void tern__hosts_mailbox_close(struct tern__hosts_mailbox *mailbox);
void tern__mail_free(struct tern__hosts_mailbox *mailbox);

/* ---- channel.c ---- */

/* A work between hosts, as this rank posted it. */
typedef struct tern__hosts_work {
    tern__post post;
    tern__desc desc;
    const tern__desc *said;       /* [this host's ranks] theirs, from `arrive` until it is done  */
    uint64_t count;               /* elements in all extents                                     */
    uint64_t arrive, leave, part; /* its numbers in this host's meetings                */
    bool moves, moved;            /* moves: its messages are in flight; moved: they are complete */
    bool is_small;                /* its sums are sent with the headers                            */
    /* Known once the headers of all hosts are here: */
    tern__tally tally;
    int source;                    /* the rank whose data a broadcast sends; -1: no rank has any */
    bool is_weighted, is_moot;     /* moot: no weight or no rank that wants a result, so nothing is summed */
    uint64_t rounds, begun, ended; /* rounds that transfer its elements  */
    uint64_t each;                 /* elements of a region in one round  */
} tern__hosts_work;

/* ---- headers.c ---- */

#define TERN__SMALL_BYTES ((size_t)2 << 10) /* the largest sum of a host that is sent with the header */

/* The headers of one work, one from each host. */
typedef struct tern__headers {
    const tern__hosts_channel *channel;
    tern__hosts_work *work;
    tern__messages messages;
    char *data;  /* [hosts] headers, including this host's  */
    char **sums; /* [hosts] the sum in each host's header   */
} tern__headers;

/* Returns how many bytes of a host's sum fit behind the header in a message of `short_bytes`, the size up to
 * which the transport sends a message as fast as a shorter one. */
size_t tern__headers_room(const tern__hosts *hosts, size_t short_bytes);
/* *headers must be zeroed. Close it after an error, too. */
int tern__headers_open(tern__headers *headers, tern__hosts_channel *channel, tern_error *err);
void tern__headers_close(tern__headers *headers);
/* Sends this host's header once its ranks have met in the work. `local` is their tally. */
int tern__headers_send(tern__headers *headers, tern__hosts_work *work, const tern__tally *local,
                       tern_error *err);
/* TERN_OK when the headers of all hosts are here and agree on work `seq`, TERN_PENDING, or an error. */
int tern__headers_recv(tern__headers *headers, uint64_t seq, tern_error *err);

/* ---- exchange.c ---- */

enum {
    TERN__HEADERS = 4,
    TERN__ROUNDS = 4,
    TERN__CHANNEL_TAGS = 4
}; /* headers and rounds in flight at a time; tags of a channel, the last one for moves */

/* One round: a part of a work's elements in transfer between the hosts. */
typedef struct tern__round {
    tern__hosts_work *work;
    uint64_t index;
    tern__messages to_join, given, to_end; /* partials received; partials sent; results, both ways */
    char *partials, *arrivals, *results;   /* [hosts] buffers each: to send, received, results     */
    char **parts;                          /* [hosts] each host's partial of this host's region */
    char **landings;                       /* [hosts] where each host's results are received    */
} tern__round;

/* The transfers of a channel's works between this rank and the ranks at the same place of the other hosts.
 */
typedef struct tern__exchange {
    tern__hosts_channel *channel;
    uint64_t headers_sent, headers_received,
        fed; /* works whose header was sent; whose headers are all here; whose rounds have all begun */
    uint64_t begun, joined, ended; /* rounds, counted over all works */
    size_t round_bytes;            /* size of a buffer               */
    tern__headers headers[TERN__HEADERS];
    tern__round rounds[TERN__ROUNDS];
} tern__exchange;

int tern__exchange_open(tern__exchange *exchange, tern__hosts_channel *channel, tern_error *err);
void tern__exchange_close(tern__exchange *exchange);
/* True if the headers of another work can be sent. */
bool tern__exchange_has_room(const tern__exchange *exchange);
/* Sends the header of the next work, in which the host's ranks have met. */
int tern__exchange_send_header(tern__exchange *exchange, tern_error *err);
/* Makes all progress that is possible without waiting. */
int tern__exchange_step(tern__exchange *exchange, tern_error *err);
/* True if the results of this rank's share of work `seq` are in the windows of the host's ranks. */
bool tern__exchange_is_over(const tern__exchange *exchange, uint64_t seq);
/* True if work `seq` waits for a message from or to `rank`, which is on another host. */
bool tern__exchange_awaits(const tern__exchange *exchange, uint64_t seq, int rank);
/* Sets ranks[r] for each rank on another host that work `seq` may be waiting for. */
void tern__exchange_missing(const tern__exchange *exchange, uint64_t seq, bool *ranks);

/* ---- moves.c ---- */

/* Copies the elements that this rank takes from ranks of its own host, and begins the messages to and from
 * ranks of other hosts. */
int tern__moves_begin(tern__messages *messages, int tag, const tern__hosts_work *work, tern_error *err);

struct tern__hosts_channel {
    tern__progress_hook hook; /* first: its function casts it back */
    tern__hosts *hosts;
    int tag; /* the first of TERN__CHANNEL_TAGS */
    uint64_t slots;
    tern__meeting *arrive, *leave, *part; /* of this host's ranks */
    uint32_t board; /* window with one notice per work, for the ranks that do not talk to other hosts */
    bool has_board;
    size_t notice_bytes;
    uint64_t posted, arrived, crossed, done;
    tern__hosts_work *works; /* [slots] */
    bool *shadows;           /* [slots][world], storage for the works' tallies */
    tern__exchange exchange;
    tern__messages moves; /* messages of the move in progress */
};

/* Returns [world] flags, the storage for the shadows of a work's tally. */
static inline bool *tern__hosts_work_shadows(const tern__hosts_channel *channel, const tern__hosts_work *work)
{
    return channel->shadows + (size_t)(work - channel->works) * (size_t)channel->hosts->group->boot.world;
}

void *tern__hosts_channel_open(void *hosts, const tern__channel_opts *opts, tern_error *err);
void tern__hosts_channel_close(void *channel);
int tern__hosts_channel_post(void *channel, const tern__post *post, uint64_t *seq, tern_error *err);
int tern__hosts_channel_test(void *channel, uint64_t seq, tern_error *err);
int tern__hosts_channel_wait(void *channel, uint64_t seq, tern_error *err);
void tern__hosts_channel_note(void *channel, const tern__label *label);
const tern__tally *tern__hosts_channel_tally(void *channel, uint64_t seq);

/* ---- region.c ---- */

/* Returns the number of elements in this rank's share of the region of `host`. */
uint64_t tern__region_count(const tern__hosts *hosts, const tern__hosts_work *work, int host);
/* Copies elements [first, first + count) of the share between a buffer and the window of the rank at
 * `place` of this host. TERN__OWNER: the window of the rank that owns the element. */
#define TERN__OWNER (-1)
void tern__region_read(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                       uint64_t count, int place, char *buffer);
void tern__region_write(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                        uint64_t count, int place, const char *buffer);
/* Returns the elements' address in the window if they are contiguous there, else NULL. */
char *tern__region_at(const tern__hosts *hosts, const tern__hosts_work *work, int host, uint64_t first,
                      uint64_t count, int place);

/* ---- partial.c ---- */

/* Returns the dtype in which a host's partials are sent. */
tern_dtype tern__partial_dtype(const tern__hosts *hosts, const tern__hosts_work *work);
/* True if this host has one rank, whose elements are the partial without conversion or weight. */
bool tern__partial_is_raw(const tern__hosts *hosts, const tern__hosts_work *work);
/* out = the reduction over this host's ranks of elements [first, first + count) of the region of `host`. */
void tern__partial_make(const tern__hosts *hosts, const tern__hosts_work *work, const tern__tally *local,
                        int host, uint64_t first, uint64_t count, char *out);
/* out = the reduction of all hosts' parts, in host order, in the work's dtype. Overwrites `parts`. */
void tern__partial_join(const tern__hosts *hosts, const tern__hosts_work *work, char *const *parts,
                        uint64_t count, char *out);

#endif
