/* mailbox.h - the point-to-point messages of a group that spans hosts; shared by mailbox.c (sending and
 * receiving) and mailbox_life.c (opening, waiting, closing). */
#ifndef TERN_SRC_COMM_MOVE_TRANSPORT_MAILBOX_H
#define TERN_SRC_COMM_MOVE_TRANSPORT_MAILBOX_H

#include "comm/move/transport/hosts.h"
#include "comm/move/match.h"

enum {
    TERN__MAIL_SHORT =
        2 << 10, /* a body of up to this many bytes is sent right behind its letter, ungranted */
    TERN__MAIL_KEPT = 1 << 20, /* bytes kept from one sender that no receive has asked for yet */
};

/* One transport message, in flight if `busy`. */
typedef struct tern__parcel_slot {
    tern_transport_message message;
    bool busy;
} tern__parcel_slot;

typedef struct tern__mail_out {
    uint64_t serial;         /* of the last letter                                     */
    tern__queue waiting;     /* transfers whose letters are not sent yet               */
    tern__queue posted;      /* long transfers that wait for a grant                   */
    tern__transfer *current; /* the transfer whose letter and short body are in flight */
    tern__transfer *body;    /* the transfer whose long body is being sent             */
    tern__letter letter;
    uint64_t granted;
    tern__parcel_slot letters, shorts, grants, bodies;
} tern__mail_out;

typedef struct tern__mail_in {
    tern__queue granted; /* receives that matched a long letter; their bodies arrive in this order */
    tern__letter letter;
    uint64_t grant;
    bool asked;  /* the grant for the first of `granted` has been sent       */
    bool gone;   /* the sender has closed its group: no letter will come     */
    size_t kept; /* bytes kept from this sender, see TERN__MAIL_KEPT         */
    tern__parcel_slot letters, shorts, grants, bodies;
    char data[TERN__MAIL_SHORT];
} tern__mail_in;

struct tern__hosts_mailbox {
    tern__party party;                /* first: its function casts it back */
    struct tern__hosts_mailbox *next; /* in link->asking */
    tern__hosts *hosts;
    tern__match match;
    int pending;         /* unfinished transfers */
    uint64_t ended;      /* finished transfers */
    tern__mail_out *out; /* [world] */
    tern__mail_in *in;   /* [world] */
};

static inline void tern__mail_pending_add(struct tern__hosts_mailbox *mailbox, int more)
{
    mailbox->pending += more;
    mailbox->hosts->link->transfers += more;
}

/* Makes progress on the messages to and from all ranks. */
int tern__mail_progress(tern__party *mailbox, tern_error *err);
/* Gives the letter `kept` to the receive `t` that matches it, and frees it. */
int tern__mail_take_kept(struct tern__hosts_mailbox *mailbox, tern__kept *kept, tern__transfer *t,
                         tern_error *err);

#endif
