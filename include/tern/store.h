/* store.h - keys and values in which processes find each other: PyTorch's stores, and able to talk to them.
 *
 * A TCP store is served by one process and asked by any number, a file store lies in a file on a file system
 * that all see, a hash store in this process's memory, and a prefix store is a part of another one. A key is
 * any text, a value any bytes, of at most TERN_STORE_KEY_MAX and TERN_STORE_VALUE_MAX bytes; prefixes count,
 * and the "/" that TCP and file stores put before each key, as PyTorch's do.
 *
 * Bytes that a call returns are the store's, with a zero behind them, until the next call on the same store.
 * Calls that wait do so for the store's timeout_s (tern_store_timeout_set; default 300), and then fail with
 * E_TIMEOUT, after which the store goes on as before. After E_PEER, a lost connection, all calls fail.
 *
 * Threads: a store and the prefix stores made from it belong to one thread at a time; another one takes a
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

typedef struct tern_store_value {
    const void *data; /* never NULL */
    size_t bytes;
} tern_store_value;

/* ---- opening; yours: tern_store_close --------------------------------------------------------------- */

typedef struct tern_store_tcp_opts {
    size_t size;
    bool is_server;        /* serve it from a thread of this process; default false                         */
    int listen_fd;         /* server: listens already, and is the store's from now on; default -1           */
    int world;             /* how many open it, the server included; 0, the default: nobody knows           */
    bool wait_for_workers; /* count those who open it; the server returns when `world` have; default true */
    double timeout_s;      /* until it is open, and then the store's; default 300                           */
    const uint8_t *secret; /* 32 bytes that all who open it share, or NULL, the default                     */
} tern_store_tcp_opts;
TERN_API tern_store_tcp_opts tern_store_tcp_defaults(void);

/* A store at a host's port, over PyTorch's wire protocol, in both directions: clients of PyTorch 1.13 and 2
 * may ask this server, and this client asks theirs and finds out of which version they are. With a secret
 * only those are served that prove that they know it, which PyTorch's clients cannot; without one whoever
 * reaches the port may read and write. The server listens on the address of `host` only: of this machine
 * alone if that is "127.0.0.1" or "localhost"; but on all addresses if it is a name for which this machine
 * has only its loopback (Debian's 127.0.1.1), as others have an address of the network for it. Port 0 is any
 * free one, which tern_store_port tells.
 *
 * Errors: E_SYSTEM (the port is taken, native EADDRINUSE; no descriptor is left, EMFILE), E_TIMEOUT (nobody
 * listens; some of `world` did not come), E_PEER (it is no store, or wants another secret).
 * torch.distributed.TCPStore. */
TERN_API tern_store *tern_store_tcp_open(const char *host, int port, const tern_store_tcp_opts *opts,
                                         tern_error *err);
/* Of a TCP store or a part of one; 0 of others. */
TERN_API int tern_store_port(const tern_store *store);

/* A store in a file, which is made if it is missing, in PyTorch's format: its FileStores may use the file
 * too. The last of `world` users to close it removes the file; below 0 nobody does, so a later run must take
 * another path. A clone counts as a user. It needs a file system with working locks. Errors, of every call:
 * E_IO, and E_FORMAT for a file that ends within a record, is none of a store's, or was cut or replaced
 * meanwhile; the text names the byte. torch.distributed.FileStore. */
TERN_API tern_store *tern_store_file_open(const char *path, int world, tern_error *err);

/* A store in this process, which only its clones share. torch.distributed.HashStore. */
TERN_API tern_store *tern_store_hash_new(tern_error *err);

/* The part of `base` whose keys begin with "prefix/". Its timeout is its own, at first that of `base`, which
 * is borrowed and closed later. torch.distributed.PrefixStore. */
TERN_API tern_store *tern_store_prefix_new(const char *prefix, tern_store *base, tern_error *err);

/* Another handle on the same store, for another thread: of a TCP store a connection of its own, of a prefix
 * store a clone of what it is a part of. It may outlive `store`, but no server outlives the store that
 * serves. */
TERN_API tern_store *tern_store_clone(tern_store *store, tern_error *err);
/* NULL is allowed. */
TERN_API void tern_store_close(tern_store *store);

/* How long calls wait: seconds > 0, INFINITY for ever. Errors: E_INVALID. */
TERN_API int tern_store_timeout_set(tern_store *store, double timeout_s, tern_error *err);

/* ---- values ----------------------------------------------------------------------------------------- */

TERN_API int tern_store_set(tern_store *store, const char *key, const void *value, size_t bytes,
                            tern_error *err);
/* Waits until `key` exists; *bytes may be NULL. NULL on error. */
TERN_API const void *tern_store_get(tern_store *store, const char *key, size_t *bytes, tern_error *err);
/* Adds to a counter, a value in decimal digits that begins at 0; *sum = what it is now. Errors: a value that
 * is no number or overflows costs a TCP client its connection (E_PEER), and is E_INVALID elsewhere. */
TERN_API int tern_store_add(tern_store *store, const char *key, int64_t delta, int64_t *sum, tern_error *err);
/* Sets the key to `desired` if its value is `expected`, or if it does not exist and `expected` is empty. *now
 * = the value after that; of a key that does not exist, `expected`. */
TERN_API int tern_store_compare_set(tern_store *store, const char *key, tern_store_value expected,
                                    tern_store_value desired, tern_store_value *now, tern_error *err);
/* Writes behind the value, which is empty at first. Errors: E_UNSUPPORTED from a server that cannot
 * (PyTorch 1). */
TERN_API int tern_store_append(tern_store *store, const char *key, const void *value, size_t bytes,
                               tern_error *err);
/* 1 if the key was there, 0 if not, negative on error. */
TERN_API int tern_store_delete(tern_store *store, const char *key, tern_error *err);

/* ---- several keys ----------------------------------------------------------------------------------- */

/* 1 if all keys exist, 0 if not, negative on error. */
TERN_API int tern_store_check(tern_store *store, const char *const *keys, size_t count, tern_error *err);
/* Returns when all keys exist; waits for timeout_s, or for the store's own if that is negative. */
TERN_API int tern_store_wait(tern_store *store, const char *const *keys, size_t count, double timeout_s,
                             tern_error *err);
/* values[i] = the value of keys[i]; waits until all exist. */
TERN_API int tern_store_multi_get(tern_store *store, const char *const *keys, size_t count,
                                  tern_store_value *values, tern_error *err);
TERN_API int tern_store_multi_set(tern_store *store, const char *const *keys, const tern_store_value *values,
                                  size_t count, tern_error *err);
/* The number of keys in the whole store, whatever the prefix; a TCP store's counter of its clients and a file
 * store's of its users are among them, as in PyTorch. Negative on error. */
TERN_API int64_t tern_store_num_keys(tern_store *store, tern_error *err);
/* The keys under the store's prefix, without it, in no order: *count of them, each of which is text and
 * belongs to the store. NULL on error. E_UNSUPPORTED: the server cannot (PyTorch before 2.10). */
TERN_API const tern_store_value *tern_store_list_keys(tern_store *store, size_t *count, tern_error *err);

/* ---- queues and barriers ---------------------------------------------------------------------------- */

/* A queue has a name as a key has, and may be waited for: it exists while something is in it. E_UNSUPPORTED:
 * a file store, or a server that cannot (PyTorch before 2.7, and without libuv). */
TERN_API int tern_store_queue_push(tern_store *store, const char *key, const void *value, size_t bytes,
                                   tern_error *err);
/* The oldest value, which leaves the queue. Of an empty one: waits if `block`, else returns NULL without an
 * error. */
TERN_API const void *tern_store_queue_pop(tern_store *store, const char *key, bool block, size_t *bytes,
                                          tern_error *err);
/* Negative on error. */
TERN_API int64_t tern_store_queue_len(tern_store *store, const char *key, tern_error *err);
/* Returns when `world` callers have come to the barrier of this name, and later ones at once: each name
 * serves one time. */
TERN_API int tern_store_barrier(tern_store *store, const char *key, int64_t world, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
