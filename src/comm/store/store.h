/* store.h - what the stores share. A store is one function, `ask`, from the bytes of a query (wire.h) to
 * those of its answer: the TCP store sends them to its server, the hash store runs them on its table, the
 * file store on its copy of the file. Everything else, keys with their prefixes, encoding and decoding, is
 * the same for all and stands in store.c. A prefix store asks its root: it is nothing but a prefix. */
#ifndef TERN_SRC_COMM_STORE_H
#define TERN_SRC_COMM_STORE_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/buffer.h"

#include <tern/store.h>

typedef struct tern__store_ops {
    /* Appends the answer of store->root to store->answer. A query that must wait does so until `deadline`:
     * E_TIMEOUT without words, which the caller has. */
    int (*ask)(tern_store *root, tern__bytes query, int64_t deadline, tern__buffer *answer, const char *func,
               tern_error *err);
    tern_store *(*clone)(tern_store *root, tern_error *err);
    void (*close)(tern_store *root); /* what is the kind's own; the caller frees */
    bool has_barrier;                /* knows BARRIER                            */
} tern__store_ops;

struct tern_store {
    const tern__store_ops *ops; /* NULL: a prefix store                                   */
    tern_store *root;           /* who is asked: itself, or what a prefix store is made of */
    bool owns_root;             /* a clone of a prefix store                              */
    char *prefix;               /* before every key                                       */
    size_t prefix_bytes;
    double timeout_s;
    tern__buffer query, answer, values; /* of the last call */
    int port;                           /* a TCP store's, or 0 */
    char where[320];                    /* "the store at 10.0.0.1 port 29500", a root's     */
};

/* Fills what the kinds share. `where` is for errors. */
int tern__store_init(tern_store *store, const tern__store_ops *ops, const char *prefix, const char *func,
                     tern_error *err);

/* ---- a job's own store ---- */

/* Rank 0: binds addr:port (or takes the inherited descriptor) and serves. All: connect, retrying until the
 * deadline, with the job's secret. Errors: E_SYSTEM "port 29500 is taken", E_TIMEOUT with address and last
 * errno, E_PEER if the hello is refused. Rank 0's server lives until its tern_store_close. */
tern_store *tern__store_open(const tern__bootstrap *boot, double timeout_s, tern_error *err);
/* Rank 0, once all have come: its server accepts nobody any more, so who calls at the same place means the
 * next meeting there. The others': nothing. */
void tern__store_stop_listening(tern_store *store);
/* Hangs up and calls again. */
int tern__store_redial(tern_store *store, int64_t deadline, tern_error *err);
/* 1 if the key exists, 0 if not, negative on error. */
int tern__store_has(tern_store *store, const char *key, tern_error *err);
/* E_TIMEOUT "2 of 4 ranks came; missing: ranks 1, 3": those from `first` on that have no key `name`RANK yet;
 * TERN_OK, and no error, if none is missing any more. Takes a second at most, unless the store fails. */
int tern__store_fail_missing(tern_store *store, const char *name, int first, int world, tern_error *err);
/* Waits until `key` exists; copies at most `cap` bytes, *bytes = its size. */
int tern__store_read(tern_store *store, const char *key, void *value, size_t cap, size_t *bytes,
                     double timeout_s, tern_error *err);

#endif
