/* zip_read_all.c - reads many entries with several threads.
 *
 * The operating system takes most of the time of a load, for copies and page faults; with two threads a load
 * takes little more than half the time. So entries are cut into pieces. A free thread takes the next piece,
 * reads it and computes its CRC; at the end the CRCs of an entry's pieces are combined. The threads end
 * before the call returns, so a program may fork its ranks afterwards. */
#include "base/thread.h"
#include "checkpoint/zip.h"
#include "device/device.h"

#include <libdeflate.h>
#include <pthread.h>
#include <zlib.h>

enum { PIECE = 1 << 20, WORTH = 8 << 20, MOST = 4 }; /* bytes per piece, bytes per extra thread, threads */

typedef struct piece {
    int64_t read; /* which of the reads */
    int64_t at, bytes;
    uint32_t crc;
} piece;

typedef struct reading {
    const tern__zip *zip;
    const tern__zip_read_to *reads;
    int64_t *places; /* offsets of the reads in the file */
    piece *pieces;
    int64_t count;
    int64_t next; /* atomic */
    int failed;   /* atomic */
} reading;

typedef struct reader {
    reading *of;
    pthread_t thread;
    bool is_started;
    tern_error err;
} reader;

static void *read_pieces(void *ctx)
{
    reader *me = ctx;
    reading *r = me->of;
    while (!__atomic_load_n(&r->failed, __ATOMIC_RELAXED)) {
        int64_t index = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED);
        if (index >= r->count) break;
        piece *p = &r->pieces[index];
        char *out = (char *)r->reads[p->read].out + p->at;
        if (tern__input_read(r->zip->in, r->places[p->read] + p->at, out, (size_t)p->bytes, &me->err))
            __atomic_store_n(&r->failed, 1, __ATOMIC_RELAXED);
        else
            p->crc = libdeflate_crc32(0, out, (size_t)p->bytes);
    }
    return NULL;
}

static int zip_read_all_run(reading *r, int threads, tern_error *err)
{
    reader readers[MOST] = {0};
    const tern_error *why = NULL;
    for (int i = 0; i < threads; i++) readers[i].of = r;
    /* A thread that cannot be started is not needed. */
    for (int i = 1; i < threads; i++)
        readers[i].is_started = tern__thread_new(&readers[i].thread, NULL, read_pieces, &readers[i]) == 0;
    read_pieces(&readers[0]);
    for (int i = 0; i < threads; i++) {
        if (readers[i].is_started) pthread_join(readers[i].thread, NULL);
        if (readers[i].err.code && !why) why = &readers[i].err;
    }
    if (!why) return TERN_OK;
    if (err && !tern__is_set(err)) *err = *why;
    return why->code;
}

static int zip_read_all_check(const reading *r, tern_error *err)
{
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < r->count;) {
        int64_t read = r->pieces[i].read;
        uLong crc = 0;
        for (; i < r->count && r->pieces[i].read == read; i++)
            crc = crc32_combine(crc, r->pieces[i].crc, r->pieces[i].bytes);
        status = tern__zip_crc_check(r->zip, r->reads[read].entry, (uint32_t)crc, err);
    }
    return status;
}

static int zip_read_all_place(reading *r, int64_t reads, tern_error *err)
{
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < reads; i++) {
        int64_t bytes = r->reads[i].entry->bytes;
        status = tern__zip_place(r->zip, r->reads[i].entry, &r->places[i], err);
        for (int64_t at = 0; at < bytes; at += PIECE)
            r->pieces[r->count++] = (piece){i, at, TERN__MIN(bytes - at, PIECE), 0};
    }
    return status;
}

/* Returns the number of threads: at most one per core of this rank, and fewer for few bytes. */
static int threads_for(int64_t bytes)
{
    int first, cores;
    if (bytes < WORTH || tern__device_share(&first, &cores, NULL)) return 1;
    return (int)TERN__MIN(TERN__MIN((int64_t)cores, (int64_t)MOST), bytes / WORTH + 1);
}

int tern__zip_read_all(const tern__zip *zip, const tern__zip_read_to *reads, int64_t count, tern_error *err)
{
    int64_t bytes = 0, pieces = 0;
    for (int64_t i = 0; i < count; i++) {
        bytes += reads[i].entry->bytes;
        pieces += (reads[i].entry->bytes + PIECE - 1) / PIECE;
    }
    int64_t room = count * (int64_t)sizeof(int64_t) + pieces * (int64_t)sizeof(piece);
    int status = tern__input_charge(zip->in, room, err);
    int64_t *places = status ? NULL : tern__alloc((size_t)room, "tern_load", err);
    if (!places) return status ? status : TERN_E_MEMORY;
    reading r = {.zip = zip, .reads = reads, .places = places, .pieces = (piece *)(places + count)};
    status = zip_read_all_place(&r, count, err);
    if (!status) status = zip_read_all_run(&r, threads_for(bytes), err);
    if (!status) status = zip_read_all_check(&r, err);
    tern__free(places);
    return status;
}
