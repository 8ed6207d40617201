/* store.h - a key-value store over TCP in which ranks find each other. Rank 0 serves it from a thread of its
 * own; every rank, rank 0 too, is a client. The queries and their encoding are PyTorch's TCPStore's (SET,
 * GET, ADD, CHECK, WAIT, CANCEL_WAIT); before them stands a hello of our own, whose first byte is no TCPStore
 * query, authenticated both ways by the job's secret (HMAC-SHA256 over both nonces) before any length is
 * believed.
 *
 * Threads: a client belongs to one thread at a time. */
#ifndef TERN_SRC_COMM_STORE_H
#define TERN_SRC_COMM_STORE_H

#include "comm/bootstrap.h"

typedef struct tern__store tern__store;

#define TERN__STORE_KEY_MAX   8192
#define TERN__STORE_VALUE_MAX (8u << 20)

/* Rank 0: binds addr:port (or takes the inherited descriptor) and serves. All: connect, retrying until the
 * deadline. Errors: E_SYSTEM "port 29500 is taken", E_TIMEOUT with address and last errno, E_PEER if the
 * hello is refused. */
tern__store *tern__store_open(const tern__bootstrap *boot, double timeout_s, tern_error *err);
/* Rank 0's server lives until this; peers that still talk to it get E_PEER. */
void tern__store_close(tern__store *store);

int tern__store_set(tern__store *store, const char *key, const void *value, size_t bytes, tern_error *err);
/* Waits until `key` exists; copies at most `cap` bytes, *bytes = its size. E_TIMEOUT names the key. */
int tern__store_get(tern__store *store, const char *key, void *value, size_t cap, size_t *bytes,
                    double timeout_s, tern_error *err);
/* *sum = the counter after adding. */
int tern__store_add(tern__store *store, const char *key, int64_t delta, int64_t *sum, tern_error *err);
/* 1 if the key exists, 0 if not, negative on error. */
int tern__store_check(tern__store *store, const char *key, tern_error *err);

#endif
