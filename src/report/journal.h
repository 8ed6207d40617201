/* journal.h - appends whole records to a file, a few at a time.
 *
 * Records wait in memory until it is time to write them. Records that cannot be written are lost: the file is
 * truncated to its last whole record, so that it stays readable and can be continued. */
#ifndef TERN_SRC_REPORT_JOURNAL_H
#define TERN_SRC_REPORT_JOURNAL_H

#include "base/base.h"

#include <sys/types.h>

typedef struct tern__journal {
    int fd;
    char *path;
    uint8_t *bytes; /* waiting records */
    size_t used, room;
    int waiting;
    int64_t since; /* ns; when the first waiting record came  */
    off_t whole;   /* the file's length in whole records      */
    int64_t lost;  /* records, since the last write that worked */
    bool failing;
} tern__journal;

/* Opens a new file (`fresh`; E_IO with native EEXIST if it exists), or continues a file of lines, from which
 * it removes an incomplete last line. After a failure there is nothing to close. */
int tern__journal_open(tern__journal *journal, const char *path, bool fresh, const char *func,
                       tern_error *err);
/* Drops the waiting records. Warns if a network file system reports only now that the disk is full. */
void tern__journal_close(tern__journal *journal);

/* `room` returns memory for a record of at most `bytes`; `add` appends the bytes that the caller has filled
 * in. */
void *tern__journal_room(tern__journal *journal, size_t bytes, const char *func, tern_error *err);
void tern__journal_add(tern__journal *journal, size_t bytes);

/* Returns true if `queue` records wait, or more than 1 MiB, or one for at least `ns`. */
bool tern__journal_is_due(const tern__journal *journal, int queue, int64_t ns);
/* Writes the waiting records. E_IO: that failed, and `journal->failing` is set until a write works again. */
int tern__journal_write(tern__journal *journal, const char *func, tern_error *err);

#endif
