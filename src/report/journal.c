/* journal.c - appends whole records to a file; truncates the file when a write fails. */
#include "report/journal.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MUCH ((size_t)1 << 20)

/* Returns the offset after the file's last newline; -1 if the file cannot be read. */
static off_t last_line_end(int fd, off_t length)
{
    char text[512];
    while (length > 0) {
        off_t from = TERN__MAX(length - (off_t)sizeof(text), 0);
        ssize_t got = TEMP_FAILURE_RETRY(pread(fd, text, (size_t)(length - from), from));
        if (got < 0) return -1;
        char *end = memrchr(text, '\n', (size_t)got);
        if (end) return from + (end - text) + 1;
        length = from;
    }
    return 0;
}

static int cut_file(tern__journal *journal, off_t length, const char *func, tern_error *err)
{
    journal->whole = last_line_end(journal->fd, length);
    if (journal->whole < 0 || (length > journal->whole && ftruncate(journal->fd, journal->whole)))
        return tern__error_errno(err, func, TERN_E_IO, "cannot continue \"%s\"", journal->path);
    return TERN_OK;
}

int tern__journal_open(tern__journal *journal, const char *path, bool fresh, const char *func,
                       tern_error *err)
{
    struct stat about;
    *journal = (tern__journal){.fd = -1};
    int flags = O_RDWR | O_CREAT | O_APPEND | (fresh ? O_EXCL : 0);
    journal->path = tern__strdup(path, func, err);
    if (!journal->path) return TERN_E_MEMORY;
    journal->fd = tern__file_open(path, flags, 0666, &about, func, err);
    int status = journal->fd < 0 ? TERN_E_IO : cut_file(journal, about.st_size, func, err);
    if (status) tern__journal_close(journal);
    return status;
}

void tern__journal_close(tern__journal *journal)
{
    if (journal->fd >= 0 && close(journal->fd))
        tern__log(TERN_LOG_WARN, "the last records of \"%s\" may be lost: %s", journal->path,
                  strerror(errno));
    tern__free(journal->bytes);
    tern__free(journal->path);
    *journal = (tern__journal){.fd = -1};
}

void *tern__journal_room(tern__journal *journal, size_t bytes, const char *func, tern_error *err)
{
    if (tern__array_reserve(&journal->bytes, &journal->room, journal->used + bytes, 1, func, err))
        return NULL;
    return journal->bytes + journal->used;
}

void tern__journal_add(tern__journal *journal, size_t bytes)
{
    if (!journal->waiting) journal->since = tern__now_ns();
    journal->used += bytes;
    journal->waiting++;
}

bool tern__journal_is_due(const tern__journal *journal, int queue, int64_t ns)
{
    return journal->waiting &&
           (journal->waiting >= queue || journal->used > MUCH || tern__now_ns() - journal->since >= ns);
}

/* Writes all bytes. Returns 0, or -1 with errno set. */
static int write_all(int fd, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = TEMP_FAILURE_RETRY(write(fd, bytes, count));
        if (written < 0) return -1;
        bytes += written;
        count -= (size_t)written;
    }
    return 0;
}

static int cut_back(const tern__journal *journal)
{
    return ftruncate(journal->fd, journal->whole);
}

static int lose_records(tern__journal *journal, const char *func, tern_error *err)
{
    int status = tern__error_errno(err, func, TERN_E_IO, "cannot write to \"%s\", %d records are lost",
                                   journal->path, journal->waiting);
    journal->failing = true;
    journal->lost += journal->waiting;
    cut_back(journal); /* now, so that readers see whole records; if that fails, the next write tries again */
    return status;
}

static void keep_records(tern__journal *journal)
{
    journal->whole += (off_t)journal->used;
    if (journal->failing)
        tern__log(TERN_LOG_WARN, "\"%s\" can be written again; %lld records are missing", journal->path,
                  (long long)journal->lost);
    journal->failing = false;
    journal->lost = 0;
}

int tern__journal_write(tern__journal *journal, const char *func, tern_error *err)
{
    int status = TERN_OK;
    if (!journal->waiting) return TERN_OK;
    if ((journal->failing && cut_back(journal)) || write_all(journal->fd, journal->bytes, journal->used))
        status = lose_records(journal, func, err);
    else
        keep_records(journal);
    journal->used = 0;
    journal->waiting = 0;
    return status;
}
