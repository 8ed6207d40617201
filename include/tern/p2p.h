/* p2p.h - messages from one rank of a group to another.
 *
 * Matching: a message has a tag, any number from 0. A receive takes the oldest message with its tag from its
 * source, or, with TERN_ANY_SOURCE, from any rank. Messages with the same source and tag are received in the
 * order in which they were sent. Tags match exactly, as in PyTorch: a receive cannot take any tag. Sender and
 * receiver must give the same dtype and count; if not, all ranks get an error that shows both (E_MISMATCH),
 * as with collectives. On one host tern also finds, within a second, ranks that wait for each other: two that
 * both receive, or one that receives while the other is in a barrier.
 *
 * Completion: a send is done when its buffer may be written again; that does not mean that the message was
 * received. On one host a message of up to 16 KiB is done at once, unless the receiver has not yet taken 128
 * KiB of earlier messages. A longer message waits for its receive, and is done when all but its last 256 KiB
 * have been taken. So a program in which all ranks send before they receive needs tern_isend for long
 * messages. Messages with tags that nobody has asked for are kept: up to 1 MiB of short ones from each
 * source, while the data of long ones stay with the sender. Beyond that the source waits.
 *
 * Progress: messages move only while a rank is inside a function of tern. A rank that computes neither sends
 * nor receives meanwhile.
 *
 * Memory: the first message to a rank sets up the connection to it, which takes 384 KiB. After that no
 * message allocates memory, except those that are kept.
 *
 * Devices: buffers may be in a device's memory. A send waits until the device has reached it and takes a
 * copy; received data are there for whatever the device is given to do next. With the back end "nccl", a
 * message of more than 16 KiB between two GPUs goes directly from one to the other, and is done on each side
 * when that GPU has finished it. The ranks tell each other whether both buffers are on GPUs.
 *
 * Errors end the family, as those of collectives do: E_INVALID (a message to or from oneself, no buffer),
 * E_RANGE (no such rank, a negative tag, a size beyond memory), E_DTYPE, E_MISMATCH, E_PEER (the other rank
 * has died, failed or closed its group), E_TIMEOUT (names the other rank and what it did last), E_MEMORY. A
 * call that is given an error already set ends the family too: its peers get E_PEER. Arguments give ranks as
 * numbers in the group, errors as numbers in the world.
 *
 * torch.distributed.send, recv, isend, irecv, batch_isend_irecv; MPI_Send and MPI_Recv.
 *
 * Threads: as the group (comm.h). */
#ifndef TERN_P2P_H
#define TERN_P2P_H

#include <tern/collectives.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A receive's `src` that takes a message from any rank. */
#define TERN_ANY_SOURCE (-1)

/* Send `count` elements to rank `dst`; receive `count` elements from rank `src`. They block until the buffer
 * may be used again, and return TERN_OK or a negative status, which is also in *err. tern_recv stores the
 * sender's rank in *source, unless `source` is NULL. */
TERN_API int tern_send(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst, int tag,
                       tern_error *err);
TERN_API int tern_recv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag,
                       int *source, tern_error *err);

/* Start a send or a receive, which tern_work_test or tern_work_wait finishes, in any order. The buffer
 * belongs to the work until then. NULL on error. */
TERN_API tern_work *tern_isend(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst,
                               int tag, tern_error *err);
TERN_API tern_work *tern_irecv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag,
                               tern_error *err);
/* Waits until a receive is done, and returns the rank that sent the message, or a negative status. The work
 * still has to be freed by tern_work_wait. E_INVALID: the work is not a receive. */
TERN_API int tern_work_source(tern_work *work, tern_error *err);

typedef enum tern_direction { TERN_SEND, TERN_RECV } tern_direction;

/* One message of a batch. */
typedef struct tern_p2p {
    tern_direction direction;
    void *buf; /* a send only reads it */
    size_t count;
    tern_dtype dtype;
    int peer; /* the destination or source; for a receive also TERN_ANY_SOURCE */
    int tag;
} tern_p2p;

/* Starts the messages ops[0..count) and stores their works in works[0..count); finish each with
 * tern_work_wait. If one of ops is invalid, none is started. On error all of works are NULL. `count` may be
 * 0. */
TERN_API int tern_batch_isend_irecv(tern_group *group, const tern_p2p *ops, int count, tern_work **works,
                                    tern_error *err);

/* Send and receive a byte string whose length the receiver need not know. tern_recv_bytes stores it in
 * *bytes, with memory of its own and a zero byte after it; yours: tern_bytes_free. Only tern_recv_bytes
 * receives what tern_send_bytes has sent. E_RANGE: more than TERN_BYTES_MAX bytes. */
TERN_API int tern_send_bytes(tern_group *group, const void *bytes, size_t count, int dst, int tag,
                             tern_error *err);
TERN_API int tern_recv_bytes(tern_group *group, tern_bytes *bytes, int src, int tag, int *source,
                             tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
