/* board.h - a key-value board in shared memory, through which the ranks of a transport test find each other,
 * and the loading of a plug-in under test. Create the board before the ranks are forked. */
#ifndef TERN_TESTS_COMM_BOARD_H
#define TERN_TESTS_COMM_BOARD_H

#include "check.h"

#include "base/plugin.h"

#include <tern/backend/transport.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct board_note {
    char key[64];
    unsigned char value[1024];
    size_t bytes;
} board_note;

typedef struct board {
    pthread_mutex_t lock;
    pthread_cond_t news;
    double timeout_s; /* how long board_get waits */
    size_t count;
    board_note notes[256];
} board;

static inline board *board_new(void)
{
    board *b = share_memory(sizeof(*b));
    pthread_mutexattr_t lock;
    pthread_condattr_t news;
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&b->lock, &lock);
    pthread_condattr_init(&news);
    pthread_condattr_setpshared(&news, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&b->news, &news);
    b->timeout_s = 20;
    return b;
}

static inline void board_free(board *b)
{
    munmap(b, sizeof(*b));
}

static inline int board_set(void *store, const char *key, const void *value, size_t bytes, char *why,
                            size_t why_size)
{
    board *b = store;
    pthread_mutex_lock(&b->lock);
    bool fits = b->count < 256 && bytes <= sizeof(b->notes->value);
    if (fits) {
        board_note *note = &b->notes[b->count++];
        snprintf(note->key, sizeof(note->key), "%s", key);
        memcpy(note->value, value, bytes);
        note->bytes = bytes;
        pthread_cond_broadcast(&b->news);
    }
    pthread_mutex_unlock(&b->lock);
    if (!fits) snprintf(why, why_size, "the board has no room for %s", key);
    return fits ? TERN_OK : TERN_E_MEMORY;
}

static inline const board_note *board_find(const board *b, const char *key)
{
    for (size_t i = 0; i < b->count; i++)
        if (!strcmp(b->notes[i].key, key)) return &b->notes[i];
    return NULL;
}

static inline int board_get(void *store, const char *key, void *value, size_t cap, size_t *bytes, char *why,
                            size_t why_size)
{
    board *b = store;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    int64_t ns = end.tv_nsec + (int64_t)(b->timeout_s * 1e9);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&b->lock);
    const board_note *note = board_find(b, key);
    while (!note && pthread_cond_timedwait(&b->news, &b->lock, &end) != ETIMEDOUT) note = board_find(b, key);
    if (note && cap) memcpy(value, note->value, note->bytes < cap ? note->bytes : cap);
    if (note) *bytes = note->bytes;
    pthread_mutex_unlock(&b->lock);
    if (!note) snprintf(why, why_size, "nobody has set %s", key);
    return note ? TERN_OK : TERN_E_TIMEOUT;
}

static inline tern_transport_place board_place(board *b, int rank, int world)
{
    static const int hosts[64];
    return (tern_transport_place){.size = sizeof(tern_transport_place),
                                  .rank = rank,
                                  .world = world,
                                  .timeout_s = b->timeout_s,
                                  .address = "127.0.0.1",
                                  .hosts = hosts,
                                  .native = -1,
                                  .store = b,
                                  .set = board_set,
                                  .get = board_get};
}

/* Returns a plug-in from the build folder. NULL, with the reason on
 * stderr, if it cannot be loaded. */
static inline const tern_transport *board_plugin(const char *file)
{
    if (choose_plugins()) return NULL;
    tern_error err = {0};
    const tern_transport *plugin = tern__plugin_open(file, TERN_TRANSPORT_SYMBOL, &err);
    if (!plugin) fprintf(stderr, "%s\n", err.text);
    return plugin;
}

#endif
