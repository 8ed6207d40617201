/* store.h - the interface between store.c and the kinds of stores. A kind is one function, `ask`, from the
 * bytes of a query (wire.h) to those of its answer: the TCP store sends them to its server, the hash store
 * runs them on its table, the file store on its copy of the file. The rest is the same for all kinds and is
 * in store.c: keys and prefixes, encoding and decoding. A prefix store only adds its prefix and asks its
 * root. */
#ifndef TERN_SRC_COMM_STORE_STORE_H
#define TERN_SRC_COMM_STORE_STORE_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/buffer.h"

#include <tern/store.h>

typedef struct tern__store_ops {
    /* Appends the answer to `answer`. A query that must wait does so until `deadline`, and then returns
     * E_TIMEOUT without setting *err: the caller writes the text. */
    int (*ask)(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer, const char *func,
               tern_error *err);
    tern_store *(*clone)(tern_store *root, tern_error *err);
    void (*close)(tern_store *root); /* releases the kind's own members; the caller frees the store */
    bool has_barrier;                /* has the query BARRIER */
} tern__store_ops;

struct tern_store {
    const tern__store_ops *ops; /* NULL: a prefix store                                */
    tern_store *root;           /* the store that answers; of a prefix store its base  */
    bool owns_root;             /* true for a clone of a prefix store                  */
    char *prefix;               /* put in front of every key                           */
    size_t prefix_bytes;
    double timeout_s;
    tern__buffer query, answer, values; /* of the last call                                        */
    /* A wait of a TCP store for an answer calls `look` ten times a second with the time of its beginning,
     * unless it is NULL. A negative errno ends the wait. */
    int (*look)(void *ctx, int64_t since);
    void *look_ctx;
    int port;        /* of a TCP store, else 0                                  */
    char where[320]; /* a root's name for errors: "the store at 10.0.0.1 port 29500" */
};

/* Fills the members that all kinds share, but for `where`. */
int tern__store_init(tern_store *store, const tern__store_ops *ops, const char *prefix, const char *func,
                     tern_error *err);

/* ---- a file that holds a job's secret ---- */

/* Opens a file store that only this user may read and write: creates the file with mode 0600, and refuses
 * (E_IO) one that belongs to another user, that others may open, or that a symbolic link leads to. */
tern_store *tern__store_file_private(const char *path, int world, const char *func, tern_error *err);
/* The last user of the file that closes it removes it, although not all of the world came. */
void tern__store_file_abandon(tern_store *store);

/* ---- a job's own store ---- */

/* Rank 0 binds addr:port, or takes the inherited descriptor, and starts the server. Then every rank connects
 * with the job's secret, retrying until the deadline. Errors: E_SYSTEM "port 29500 is taken", E_TIMEOUT with
 * address and last errno, E_PEER if the hello is refused. Rank 0's server lives until its tern_store_close.
 */
tern_store *tern__store_open(const tern__bootstrap *boot, double timeout_s, tern_error *err);
/* On rank 0, once all ranks have joined: the server accepts no more clients, so that later ones at the same
 * address reach the next meeting there. Does nothing on other ranks. */
void tern__store_stop_listening(tern_store *store);
/* Closes the connection and connects again. */
int tern__store_redial(tern_store *store, int64_t deadline, tern_error *err);
/* Returns 1 if the key exists, 0 if not, a negative status on error. */
int tern__store_has(tern_store *store, const char *key, tern_error *err);
/* Reports the ranks from `first` on that have no key `name`RANK yet: E_TIMEOUT "2 of 4 ranks joined; missing:
 * ranks 1, 3". Returns TERN_OK if none is missing any more. Takes a second at most, unless the store fails.
 */
int tern__store_fail_missing(tern_store *store, const char *name, int first, int world, tern_error *err);
/* ---- ranks of one host that wait for rank 0 ---- */

/* Makes a mark that other ranks of this host see while the returned descriptor is open; -1: it cannot. While
 * rank 0 is not there, nor its store, ranks learn only this of each other. */
int tern__mark_make(const tern__bootstrap *boot);
/* True if `rank` has made its mark. */
bool tern__mark_is_made(const tern__bootstrap *boot, int rank);
/* Returns a descriptor that gives this rank the right to warn of `rank`, as long as it is open; -1, and
 * EADDRINUSE in errno: another rank of this host has it. */
int tern__mark_claim(const tern__bootstrap *boot, int rank);
/* Writes which ranks do not wait here: "; ranks 1, 3 have not come either", or "" if all do. False if another
 * rank of this host, a lower one, is to report. */
bool tern__mark_missing(const tern__bootstrap *boot, char *text, size_t size);

/* Waits until `key` exists, and copies at most `cap` bytes of its value. *bytes = the value's size. */
int tern__store_read(tern_store *store, const char *key, void *value, size_t cap, size_t *bytes,
                     double timeout_s, tern_error *err);

#endif
