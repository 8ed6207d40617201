/* mailbox.h - the point-to-point messages of a group that spans hosts; shared by mailbox.c (sending and
 * receiving) and mailbox_life.c (opening, waiting, closing). */
#ifndef TERN_SRC_COMM_MOVE_TRANSPORT_MAILBOX_H
#define TERN_SRC_COMM_MOVE_TRANSPORT_MAILBOX_H

#include "comm/move/transport/hosts.h"
#include "comm/move/match.h"

enum {
    TERN__MAIL_SHORT =
        2 << 10, /* a body of up to this many bytes is sent right behind its envelope, ungranted */
    TERN__MAIL_KEPT = 1 << 20, /* bytes kept of one sender's messages that no receive has asked for yet */
};

/* One transport message, in flight if `busy`. */
typedef struct tern__parcel_slot {
    tern_transport_message message;
    bool busy;
} tern__parcel_slot;

typedef struct tern__mail_out {
    tern__transfer *current; /* the transfer whose envelope and short body are in flight */
    tern__transfer *body;    /* the transfer whose long body is being sent             */
    tern__envelope envelope;
    uint64_t granted;
    tern__parcel_slot envelopes, shorts, grants, bodies;
} tern__mail_out;

typedef struct tern__mail_in {
    tern__envelope envelope;
    uint64_t grant;
    bool asked; /* the grant for the first granted receive has been sent   */
    bool gone;  /* the sender has closed its group: no envelope will come  */
    tern__parcel_slot envelopes, shorts, grants, bodies;
    char data[TERN__MAIL_SHORT];
} tern__mail_in;

struct tern__hosts_mailbox {
    tern__progress_hook hook;         /* first: its function casts it back */
    struct tern__hosts_mailbox *next; /* in link->asking */
    tern__hosts *hosts;
    tern__matcher matcher;
    tern__mail_out *out; /* [world] */
    tern__mail_in *in;   /* [world] */
};

/* Makes progress on the messages to and from all ranks. */
int tern__mail_progress(tern__progress_hook *mailbox, tern_error *err);
#endif
