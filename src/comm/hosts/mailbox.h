/* mailbox.h - a group's messages between two ranks, as the files mailbox.c (sending and receiving) and
 * mailbox_life.c (opening, waiting, closing) share them. */
#ifndef TERN_SRC_COMM_HOSTS_MAILBOX_H
#define TERN_SRC_COMM_HOSTS_MAILBOX_H

#include "comm/hosts/hosts.h"
#include "comm/match.h"

enum {
    TERN__MAIL_SHORT = 2 << 10, /* bytes that are sent behind the letter, whether they are wanted or not */
    TERN__MAIL_KEPT = 1 << 20,  /* of one sender, for which there is no receive yet                      */
};

/* One message of the transport's that may be under way. */
typedef struct tern__parcel_slot {
    tern_transport_message message;
    bool busy;
} tern__parcel_slot;

typedef struct tern__mail_out {
    uint64_t serial;         /* of the last letter                            */
    tern__queue waiting;     /* for their letters to be sent                  */
    tern__queue posted;      /* long ones, to be granted                      */
    tern__transfer *current; /* whose letter is under way, with a short body  */
    tern__transfer *body;    /* whose body is                                 */
    tern__letter letter;
    uint64_t granted;
    tern__parcel_slot letters, shorts, grants, bodies;
} tern__mail_out;

typedef struct tern__mail_in {
    tern__queue granted; /* receives that have met their letters, whose bodies come in this order */
    tern__letter letter;
    uint64_t grant;
    bool asked; /* the first of `granted` is   */
    bool gone;  /* it has closed its group: no letter will come */
    size_t kept;
    tern__parcel_slot letters, shorts, grants, bodies;
    char data[TERN__MAIL_SHORT];
} tern__mail_in;

struct tern__hosts_mailbox {
    struct tern__hosts_mailbox *next; /* in the link */
    tern__hosts *hosts;
    tern__match match;
    int pending;         /* transfers */
    uint64_t ended;      /* that are done */
    tern__mail_out *out; /* [world] */
    tern__mail_in *in;   /* [world] */
};

/* Of all its ranks. */
int tern__mail_progress(struct tern__hosts_mailbox *mailbox, tern_error *err);
int tern__mail_take_kept(struct tern__hosts_mailbox *mailbox, tern__kept *kept, tern__transfer *t,
                         tern_error *err);

#endif
