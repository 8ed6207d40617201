/* p2p.h - messages from one rank of a group to another.
 *
 * A message has a tag, any number from 0, and a receive takes the oldest that its source has sent under its
 * tag, or, from TERN_ANY_SOURCE, that any rank has. Messages of one source and tag are received in the order
 * in which they were sent. Tags match exactly, as PyTorch's do: there is no receive of any tag. Sender and
 * receiver say the same dtype and count: a difference is an error on all ranks that shows both (E_MISMATCH),
 * as for collectives, and so it is on one host, within a second, if ranks wait for each other: two that both
 * receive, or one that receives while the other is in a barrier.
 *
 * A send is done when its buffer may be written again, which says nothing of the receiver. On one host a
 * message of up to 16 KiB is done at once, unless the receiver has left 128 KiB of earlier ones lying; a
 * longer one waits for its receive, and is done when all but its last 256 KiB have been taken. So a program
 * that sends before it receives on all ranks needs tern_isend for the long ones. What came under tags that
 * nobody asks for is kept until it is: up to 1 MiB of short messages from each source, the data of long ones
 * stays with their sender. Beyond that the source waits.
 *
 * Ranks are the group's, in errors the world's. Nothing moves but inside of calls of tern's: a rank that
 * computes neither sends nor receives meanwhile. The first message to a rank makes the way to it, 384 KiB
 * of memory; after that no message allocates, but those that are kept.
 *
 * Buffers may be in the memory of a device: a send waits until the device has come to it and takes a copy,
 * and what is received is there for what the device is asked next. With the back end "nccl" a message of more
 * than 16 KiB between two GPUs goes over from one to the other, and is done on either side when that GPU is
 * through with it; whether both sides are on GPUs the ranks tell each other.
 *
 * Errors, which end the family as those of collectives do: E_INVALID (a message to or from oneself, no
 * buffer), E_RANGE (no such rank, a negative tag, more than memory holds), E_DTYPE, E_MISMATCH, E_PEER (the
 * other rank has died, failed or closed its group), E_TIMEOUT (names the other rank and what it last did),
 * E_MEMORY.
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

#define TERN_ANY_SOURCE (-1)

/* Return when the buffer is the caller's again: TERN_OK or a negative status, also in *err. *source, unless
 * it is NULL, becomes the rank that sent the message. */
TERN_API int tern_send(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst, int tag,
                       tern_error *err);
TERN_API int tern_recv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag,
                       int *source, tern_error *err);

/* The same, started now and finished later by tern_work_test or tern_work_wait, in any order. The buffer
 * belongs to the work until then. NULL on error. */
TERN_API tern_work *tern_isend(tern_group *group, const void *buf, size_t count, tern_dtype dtype, int dst,
                               int tag, tern_error *err);
TERN_API tern_work *tern_irecv(tern_group *group, void *buf, size_t count, tern_dtype dtype, int src, int tag,
                               tern_error *err);
/* Of a tern_irecv: blocks until it is done, and returns the rank that sent the message, or a negative status.
 * The work stays there for tern_work_wait. E_INVALID: a work that is no receive. */
TERN_API int tern_work_source(tern_work *work, tern_error *err);

typedef enum tern_direction { TERN_SEND, TERN_RECV } tern_direction;

typedef struct tern_p2p {
    tern_direction direction;
    void *buf; /* a send only reads it */
    size_t count;
    tern_dtype dtype;
    int peer; /* of a receive also TERN_ANY_SOURCE */
    int tag;
} tern_p2p;

/* Starts ops[0..count), none if one of them is wrong: works[i] becomes the work of ops[i], which is waited
 * for as any. On error all of works is NULL. `count` may be 0. */
TERN_API int tern_batch_isend_irecv(tern_group *group, const tern_p2p *ops, int count, tern_work **works,
                                    tern_error *err);

/* A string of bytes whose length the receiver does not know: *bytes becomes it, in memory of its own (and a
 * zero behind it), yours: tern_bytes_free. Such strings are received by this function only. E_RANGE: more
 * than TERN_BYTES_MAX. */
TERN_API int tern_send_bytes(tern_group *group, const void *bytes, size_t count, int dst, int tag,
                             tern_error *err);
TERN_API int tern_recv_bytes(tern_group *group, tern_bytes *bytes, int src, int tag, int *source,
                             tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
