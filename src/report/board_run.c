/* board_run.c - event files: their folders, their names, and the records in them. */
#include "report/board.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILE_VERSION "brain.Event:2"
#define RECORD_HEAD  12 /* bytes before the event */
#define RECORD_TAIL  4

double tern__wall_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- records ---- */

static uint32_t masked_crc(const void *data, size_t bytes)
{
    uint32_t crc = tern__crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

/* A record (TensorFlow's TFRecord) is the event's length, the length's CRC, the event, and the event's CRC,
 * all little-endian. CRCs are masked, because the CRC of data that contains its own CRC is a weak check. */
static void frame_record(uint8_t *record, uint64_t bytes)
{
    memcpy(record, &bytes, 8);
    uint32_t head = masked_crc(record, 8), tail = masked_crc(record + RECORD_HEAD, bytes);
    memcpy(record + 8, &head, 4);
    memcpy(record + RECORD_HEAD + bytes, &tail, 4);
}

static int add_event(tern__event_file *run, Tern__Pb__Event *event, const char *func, tern_error *err)
{
    event->wall_time = tern__wall_time();
    size_t bytes = tern__pb__event__get_packed_size(event);
    uint8_t *record = tern__journal_room(&run->events, RECORD_HEAD + bytes + RECORD_TAIL, func, err);
    if (!record) return TERN_E_MEMORY;
    tern__pb__event__pack(event, record + RECORD_HEAD);
    frame_record(record, bytes);
    tern__journal_add(&run->events, RECORD_HEAD + bytes + RECORD_TAIL);
    return TERN_OK;
}

int tern__board_settle(const tern_board *board, tern__journal *journal, const char *func, tern_error *err)
{
    tern_error why = {0};
    bool is_known = journal->failing;
    if (!tern__journal_is_due(journal, board->opts.queue, (int64_t)(1e9 * board->opts.flush_seconds)))
        return TERN_OK;
    if (!tern__journal_write(journal, func, &why) || is_known) return TERN_OK;
    *err = why;
    return why.code;
}

int tern__board_put(const tern_board *board, tern__event_file *run, Tern__Pb__Value *value, int64_t step,
                    const char *func, tern_error *err)
{
    Tern__Pb__Summary summary = TERN__PB__SUMMARY__INIT;
    Tern__Pb__Event event = TERN__PB__EVENT__INIT;
    summary.n_value = 1;
    summary.value = &value;
    event.step = step;
    event.what_case = TERN__PB__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    if (add_event(run, &event, func, err)) return err->code;
    return tern__board_settle(board, &run->events, func, err);
}

/* ---- runs ---- */

#define FILE_NAME "events.out.tfevents."

/* Returns the latest time in the names of a folder's event files; 0 if there are none. */
static long long latest_file(const char *dir)
{
    long long latest = 0, at;
    DIR *entries = opendir(dir);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (sscanf(entry->d_name, FILE_NAME "%lld.", &at) == 1) latest = TERN__MAX(latest, at);
    if (entries) closedir(entries);
    return latest;
}

/* The name has the time, the host and the process; the last number tells the files of one process apart.
 * TensorBoard reads a folder's files in the order of their names and never goes back. So a new file gets a
 * later time than all files there, even if a run starts twice in a second or the clock was set back. */
static int open_events(tern__event_file *run, const char *dir, const char *func, tern_error *err)
{
    static int files;
    char host[256] = "localhost", path[1400];
    gethostname(host, sizeof(host) - 1);
    long long now = TERN__MAX((long long)time(NULL), latest_file(dir) + 1);
    snprintf(path, sizeof(path), "%s/" FILE_NAME "%010lld.%s.%d.%d", dir, now, host, (int)getpid(),
             __atomic_fetch_add(&files, 1, __ATOMIC_RELAXED));
    return tern__journal_open(&run->events, path, true, func, err);
}

/* A file starts with its version and, after a resume, with the step from which older files are to be ignored.
 */
static int add_heading(const tern_board *board, tern__event_file *run, const char *func, tern_error *err)
{
    Tern__Pb__SessionLog start = TERN__PB__SESSION_LOG__INIT;
    Tern__Pb__Event event = TERN__PB__EVENT__INIT;
    event.what_case = TERN__PB__EVENT__WHAT_FILE_VERSION;
    event.file_version = FILE_VERSION;
    int status = add_event(run, &event, func, err);
    if (!status && board->opts.purge_step >= 0) {
        start.status = 1;
        event.step = board->opts.purge_step;
        event.what_case = TERN__PB__EVENT__WHAT_SESSION_LOG;
        event.session_log = &start;
        status = add_event(run, &event, func, err);
    }
    return status ? status : tern__journal_write(&run->events, func, err);
}

static void free_run(tern__event_file *run)
{
    tern__journal_close(&run->events);
    tern__free(run->name);
    tern__free(run);
}

static int open_run(const tern_board *board, tern__event_file *run, const char *func, tern_error *err)
{
    char dir[1024], quote[TERN__QUOTE_TEXT];
    const char *name = run->name;
    if (!name) return TERN_E_MEMORY;
    if (snprintf(dir, sizeof(dir), *name ? "%s/%s" : "%s%s", board->dir, name) > (int)sizeof(dir) - 320)
        return tern__error_set(err, func, TERN_E_RANGE, "the folder's name is too long: %s",
                               tern__excerpt(name, strlen(name), 64, quote));
    int status = tern__folder_make(dir, 0777, func, err);
    if (!status) status = open_events(run, dir, func, err);
    return status ? status : add_heading(board, run, func, err);
}

tern__event_file *tern__board_run(tern_board *board, const char *name, const char *func, tern_error *err)
{
    tern__event_file **end = &board->runs;
    for (; *end; end = &(*end)->next)
        if (!strcmp((*end)->name, name)) return *end;
    tern__event_file *run = tern__alloc(sizeof(*run), func, err);
    if (!run) return NULL;
    *run = (tern__event_file){.name = tern__strdup(name, func, err), .events = {.fd = -1}};
    if (open_run(board, run, func, err)) {
        free_run(run);
        return NULL;
    }
    *end = run;
    return run;
}

void tern__event_files_free(tern__event_file *runs)
{
    while (runs) {
        tern__event_file *next = runs->next;
        free_run(runs);
        runs = next;
    }
}
