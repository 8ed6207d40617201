/* journal.h - a file to whose end whole records are written, a few at a time.
 *
 * Records wait in memory until it is time to write them. What could not be written is lost, and the file is
 * cut back to its last whole record, so that it can be read and gone on with. */
#ifndef TERN_SRC_REPORT_JOURNAL_H
#define TERN_SRC_REPORT_JOURNAL_H

#include "base/base.h"

#include <sys/types.h>

typedef struct tern__journal {
    int fd;
    char *path;
    uint8_t *bytes; /* records that wait */
    size_t used, room;
    int waiting;
    int64_t since; /* ns; when the first of them came */
    off_t whole;   /* the file's length               */
    int64_t lost;  /* records, since it last worked   */
    bool failing;
} tern__journal;

/* A new file (`fresh`; E_IO with native EEXIST if there is one), or one of lines that is gone on with: a line
 * that was cut off is taken away. After a failure nothing is to be closed. */
int tern__journal_open(tern__journal *journal, const char *path, bool fresh, const char *func,
                       tern_error *err);
/* Without writing what waits. */
void tern__journal_close(tern__journal *journal);

/* Room for a record behind those that wait, and how much of it was filled. */
void *tern__journal_room(tern__journal *journal, size_t bytes, const char *func, tern_error *err);
void tern__journal_add(tern__journal *journal, size_t bytes);

/* More records than `queue` wait, or more than a MiB, or one for longer than `ns`. */
bool tern__journal_is_due(const tern__journal *journal, int queue, int64_t ns);
/* Writes what waits. E_IO if it could not; `journal->failing` says so until it works again. */
int tern__journal_write(tern__journal *journal, const char *func, tern_error *err);

#endif
