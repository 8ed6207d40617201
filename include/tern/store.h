/* store.h - key-value stores by which processes find each other, compatible with PyTorch's.
 *
 * A TCP store is served by one process and used by any number. A file store is a file on a file system that
 * all processes see. A hash store is in this process's memory. A prefix store is a part of another store. A
 * custom store is a table of your own functions. A key is any text of at most TERN_STORE_KEY_MAX bytes;
 * prefixes count, and so does the "/" that TCP and file stores put before each key, as PyTorch's do. A
 * value is any bytes, at most TERN_STORE_VALUE_MAX.
 *
 * Bytes that a call returns belong to the store, have a zero byte after them, and are valid until the next
 * call on the same store. A call that waits does so for at most the store's time-out
 * (tern_store_timeout_set; default 300 s), and then fails with E_TIMEOUT; the store can still be used.
 * After E_PEER, a lost connection, all calls fail.
 *
 * Threads: a store and the prefix stores made from it belong to one thread at a time; give another thread a
 * tern_store_clone. Processes: a forked child opens its own. */
#ifndef TERN_STORE_H
#define TERN_STORE_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_STORE_KEY_MAX   8192
#define TERN_STORE_VALUE_MAX 8388608

typedef struct tern_store tern_store;

/* A value: its bytes and their number. */
typedef struct tern_store_value {
    const void *data; /* never NULL */
    size_t bytes;
} tern_store_value;

/* ---- opening a store; each one is yours: tern_store_close ------------------------------------------- */

typedef struct tern_store_tcp_opts {
    size_t size;
    bool is_server;        /* this process serves the store, on a thread of its own; default false          */
    int listen_fd;         /* server: a socket that is bound to the port, which the store takes over; default
                            * -1: none                                                                      */
    int world;             /* number of processes that open the store, server included; default 0: unknown  */
    bool wait_for_workers; /* count the processes that open it; the server waits for `world`; default true */
    double timeout_s;      /* seconds until it must be open, then the store's time-out; default 300         */
    const uint8_t *secret; /* 32 bytes that all who open it share; default NULL: none                       */
} tern_store_tcp_opts;
/* Returns the default options. */
TERN_API tern_store_tcp_opts tern_store_tcp_defaults(void);

/* Opens a store at a host's port, as its server or as a client. Both speak PyTorch's wire protocol: clients
 * of PyTorch 1.13 and 2 may use this server, and this client finds out the version of PyTorch's server. With
 * a secret, the server accepts only clients that prove that they know it, which PyTorch's cannot. Without
 * one, everybody who can reach the port may read and write.
 *
 * The server listens only on the address of `host`: with "127.0.0.1" or "localhost", this machine alone can
 * connect. It listens on all addresses if this machine resolves `host` to its loopback only (Debian's
 * 127.0.1.1), since other machines resolve it to an address of the network. Port 0 takes any free port, which
 * tern_store_port returns.
 *
 * NULL on error: E_INVALID (a malformed option; a listen_fd that is no TCP socket, is bound to another
 * port, or cannot listen: it remains yours), E_SYSTEM (the port is taken: native EADDRINUSE; no descriptor
 * is left: EMFILE), E_TIMEOUT (nobody listens, or not all of `world` came), E_PEER (not a store, or
 * another secret). torch.distributed.TCPStore. */
TERN_API tern_store *tern_store_tcp_open(const char *host, int port, const tern_store_tcp_opts *opts,
                                         tern_error *err);
/* Returns the port of a TCP store, or of the TCP store that a prefix store is a part of; 0 for others. */
TERN_API int tern_store_port(const tern_store *store);

/* Opens a store in a file, which is created if it is missing. The format is PyTorch's, so its FileStores may
 * use the same file. When the last of `world` users closes the store, the file is removed. If `world` is
 * negative it stays, and the next run must take another path. A clone counts as a user. The file system needs
 * working locks. Any call on it may fail with E_IO, or with E_FORMAT if the file ends within a record, is not
 * a store's, or was truncated or replaced meanwhile; the text names the byte. torch.distributed.FileStore. */
TERN_API tern_store *tern_store_file_open(const char *path, int world, tern_error *err);

/* Makes a store in this process's memory, which only its clones share. torch.distributed.HashStore. */
TERN_API tern_store *tern_store_hash_new(tern_error *err);

/* What a custom store does: your functions. Each gets the `ctx` of tern_store_custom_new. It returns
 * TERN_OK, or reports an error with tern_error_set and returns its code. Keys contain the prefixes of
 * prefix stores, and belong to the caller. A function is called by the thread that uses the store; threads
 * that use clones may be in several at the same time. */
typedef struct tern_store_answer tern_store_answer;
typedef struct tern_store_methods {
    size_t size; /* sizeof(tern_store_methods) */
    int (*set)(void *ctx, const char *key, const void *value, size_t bytes, tern_error *err);
    /* Waits until `key` exists, for timeout_s seconds (E_TIMEOUT; INFINITY: for ever), and passes its value
     * to tern_store_answer_set. */
    int (*get)(void *ctx, const char *key, double timeout_s, tern_store_answer *value, tern_error *err);
    int (*add)(void *ctx, const char *key, int64_t delta, int64_t *sum, tern_error *err);
    /* Returns 1 if all keys exist, 0 if not, negative on error. */
    int (*check)(void *ctx, const char *const *keys, size_t count, tern_error *err);
    /* Waits until all keys exist, as `get` does. */
    int (*wait)(void *ctx, const char *const *keys, size_t count, double timeout_s, tern_error *err);
    /* Deletes a key: returns 1 if it existed, 0 if not, negative on error. */
    int (*remove)(void *ctx, const char *key, tern_error *err);

    /* These may be NULL; then the calls that need them fail with E_UNSUPPORTED. */
    int (*compare_set)(void *ctx, const char *key, tern_store_value expected, tern_store_value desired,
                       tern_store_answer *now, tern_error *err);
    int (*append)(void *ctx, const char *key, const void *value, size_t bytes, tern_error *err);
    int64_t (*num_keys)(void *ctx, tern_error *err);
    /* Called when the store and all its clones are closed. */
    void (*close)(void *ctx);
} tern_store_methods;
/* Passes a value to tern, which copies it. */
TERN_API int tern_store_answer_set(tern_store_answer *answer, const void *value, size_t bytes,
                                   tern_error *err);
/* Makes a store of your own functions, which are copied: a way to meet through a store that tern does not
 * know. `name` stands in errors: "the store of my scheduler". Keys cannot be listed, and there are no
 * queues (E_UNSUPPORTED). E_INVALID: a function that may not be NULL is. */
TERN_API tern_store *tern_store_custom_new(const char *name, const tern_store_methods *methods, void *ctx,
                                           tern_error *err);

/* Makes a store that is the part of `base` whose keys begin with "prefix/". It has its own time-out, at first
 * that of `base`. Borrows `base`: close it later. torch.distributed.PrefixStore. */
TERN_API tern_store *tern_store_prefix_new(const char *prefix, tern_store *base, tern_error *err);

/* Makes another handle on the same store, for another thread. A clone of a TCP store has its own connection;
 * a clone of a prefix store clones its base too. A clone may outlive `store`, but not the store that
 * serves. */
TERN_API tern_store *tern_store_clone(tern_store *store, tern_error *err);
/* Closes a store. NULL is allowed. */
TERN_API void tern_store_close(tern_store *store);

/* Sets how long calls wait, in seconds: above 0 (E_INVALID), INFINITY for ever. */
TERN_API int tern_store_timeout_set(tern_store *store, double timeout_s, tern_error *err);

/* ---- values ----------------------------------------------------------------------------------------- */

/* Sets the value of `key` to the `bytes` bytes at `value`. */
TERN_API int tern_store_set(tern_store *store, const char *key, const void *value, size_t bytes,
                            tern_error *err);
/* Waits until `key` exists and returns its value, and its length in *bytes unless `bytes` is NULL. NULL on
 * error. */
TERN_API const void *tern_store_get(tern_store *store, const char *key, size_t *bytes, tern_error *err);
/* Adds `delta` to a counter and stores the sum in *sum. A counter is a value in decimal digits, 0 at first.
 * If the value is not a number or overflows, a TCP client loses its connection (E_PEER); elsewhere it is
 * E_INVALID. */
TERN_API int tern_store_add(tern_store *store, const char *key, int64_t delta, int64_t *sum, tern_error *err);
/* Compare and set: sets `key` to `desired` if its value is `expected`, or if it does not exist and `expected`
 * is empty. Stores in *now the value that the key then has; if it does not exist, `expected`. */
TERN_API int tern_store_compare_set(tern_store *store, const char *key, tern_store_value expected,
                                    tern_store_value desired, tern_store_value *now, tern_error *err);
/* Appends to the value of `key`, which is empty at first. E_UNSUPPORTED: the server cannot (PyTorch 1). */
TERN_API int tern_store_append(tern_store *store, const char *key, const void *value, size_t bytes,
                               tern_error *err);
/* Deletes a key: 1 if it existed, 0 if not, negative on error. */
TERN_API int tern_store_delete(tern_store *store, const char *key, tern_error *err);

/* ---- several keys ----------------------------------------------------------------------------------- */

/* Returns 1 if all keys exist, 0 if not, negative on error. */
TERN_API int tern_store_check(tern_store *store, const char *const *keys, size_t count, tern_error *err);
/* Waits until all keys exist, for timeout_s seconds, or for the store's time-out if timeout_s is negative. */
TERN_API int tern_store_wait(tern_store *store, const char *const *keys, size_t count, double timeout_s,
                             tern_error *err);
/* Waits until all keys exist, and stores the value of keys[i] in values[i]. */
TERN_API int tern_store_multi_get(tern_store *store, const char *const *keys, size_t count,
                                  tern_store_value *values, tern_error *err);
/* Sets keys[i] to values[i]. */
TERN_API int tern_store_multi_set(tern_store *store, const char *const *keys, const tern_store_value *values,
                                  size_t count, tern_error *err);
/* Returns the number of keys in the whole store, whatever the prefix; negative on error. As in PyTorch, it
 * includes a TCP store's counter of clients and a file store's counter of users. */
TERN_API int64_t tern_store_num_keys(tern_store *store, tern_error *err);
/* Returns the keys that begin with the store's prefix, without it, in any order, and their number in *count.
 * Each key is text; all belong to the store. NULL on error; E_UNSUPPORTED: the server cannot (PyTorch before
 * 2.10). */
TERN_API const tern_store_value *tern_store_list_keys(tern_store *store, size_t *count, tern_error *err);

/* ---- queues and barriers ---------------------------------------------------------------------------- */

/* Appends a value to the queue `key`. A queue is named as a key is, and exists, for tern_store_wait too,
 * while it has values. E_UNSUPPORTED for all queue functions: a file store, or a server that cannot (PyTorch
 * before 2.7, or without libuv). */
TERN_API int tern_store_queue_push(tern_store *store, const char *key, const void *value, size_t bytes,
                                   tern_error *err);
/* Removes the oldest value from a queue and returns it. If the queue is empty, waits if `block` is true, else
 * returns NULL without an error. */
TERN_API const void *tern_store_queue_pop(tern_store *store, const char *key, bool block, size_t *bytes,
                                          tern_error *err);
/* Returns the number of values in a queue; negative on error. */
TERN_API int64_t tern_store_queue_len(tern_store *store, const char *key, tern_error *err);
/* Waits until `world` callers have reached the barrier of this name; callers after that return at once. A
 * name serves one barrier. */
TERN_API int tern_store_barrier(tern_store *store, const char *key, int64_t world, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
