/* trace.c - writes events as JSON lines to a file that all ranks append to.
 *
 * The file is an array: "[", the first event, and then the others, each after a comma. So it may be cut after
 * any line, and lenient readers still accept it. The last rank writes "]". Every rank holds a shared lock
 * (flock) on the file while it has it open, and a rank that closes it tries to get the exclusive lock, which
 * only the last one can get. A rank that was killed holds no lock. */
#include "base/trace.h"

#include "base/file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum {
    event_room = 8192,    /* events collected before they are written */
    text_room = 64 << 10, /* bytes of one write                       */
    line_room = 512,      /* bytes of an event, without its name      */
    name_room = 512,      /* different names                          */
};

typedef struct quoted {
    const char *name;
    char *text; /* allocated by cJSON */
} quoted;

struct tern__trace {
    pthread_mutex_t lock; /* guards all fields below */
    int fd, rank, pid;
    char *path;
    tern__trace_event *events;
    int event_count;
    char *text;
    size_t text_used;
    quoted *names; /* hashed by address */
    uint64_t lost; /* events that could not be written */
};

/* ---- the file ---- */

/* Returns true if no rank holds the file: then it is an older job's, and rank 0 has not created this job's.
 */
static bool is_abandoned(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

static int trace_open_file(const char *path, int rank, tern_error *err)
{
    tern_error why = {0};
    int flags = O_RDWR | O_APPEND | (rank ? 0 : O_CREAT | O_TRUNC);
    int fd = tern__file_open(path, flags, 0666, NULL, "tern_group_open", &why);
    if (fd < 0) {
        tern__error_set(err, why.func, why.code, "no timeline: %s", why.text);
        err->native = why.native;
    } else if (rank && is_abandoned(fd))
        tern__error_set(
            err, "tern_group_open", TERN_E_IO,
            "no timeline of rank %d: rank 0 has not created \"%s\"; is TERN_TRACE set for all ranks?", rank,
            path);
    else if (TEMP_FAILURE_RETRY(flock(fd, LOCK_SH)))
        tern__error_errno(err, "tern_group_open", TERN_E_IO, "no timeline: cannot lock \"%s\"", path);
    if (!tern__is_set(err)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Two ranks may be last, one after the other. */
static bool is_ended(int fd)
{
    char last = 0;
    return pread(fd, &last, 1, lseek(fd, 0, SEEK_END) - 1) == 1 && last == '\n';
}

static void end_file(int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) || is_ended(fd)) return;
    if (write(fd, "\n]\n", 3) != 3)
        tern__log(TERN_LOG_WARN, "the timeline is not closed with a bracket: the last write failed");
}

/* ---- text ---- */

static void trace_give_up(tern__trace *trace)
{
    tern_error why = {0};
    tern__error_errno(&why, "tern_scope_end", TERN_E_IO, "the timeline of rank %d in \"%s\" ends here",
                      trace->rank, trace->path);
    tern__log(TERN_LOG_WARN, "%s", why.text);
    close(trace->fd);
    trace->fd = -1;
}

static void write_text(tern__trace *trace)
{
    size_t done = 0;
    while (done < trace->text_used && trace->fd >= 0) {
        ssize_t written = TEMP_FAILURE_RETRY(write(trace->fd, trace->text + done, trace->text_used - done));
        if (written < 0)
            trace_give_up(trace);
        else
            done += (size_t)written;
    }
    trace->text_used = 0;
}

/* Lines are written whole. */
static void trace_make_room(tern__trace *trace, size_t bytes)
{
    if (trace->text_used + bytes > text_room) write_text(trace);
}

static void trace_put(tern__trace *trace, const char *fmt, ...) TERN__PRINTF(2, 3);
static void trace_put(tern__trace *trace, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t room = text_room - trace->text_used;
    int length = vsnprintf(trace->text + trace->text_used, room, fmt, args);
    va_end(args);
    trace->text_used += TERN__MIN((size_t)length, room);
}

/* ---- names as JSON strings ---- */

static const char *quote(tern__trace *trace, const char *name)
{
    uintptr_t place = (uintptr_t)name;
    for (int tries = 0; tries < name_room; tries++) {
        quoted *q = &trace->names[(place + (place >> 9) + (uintptr_t)tries) % name_room];
        if (q->name == name) return q->text;
        if (q->name) continue;
        cJSON *string = cJSON_CreateString(name);
        char *text = cJSON_PrintUnformatted(string);
        cJSON_Delete(string);
        if (text) *q = (quoted){name, text};
        return text ? text : "\"?\"";
    }
    return "\"?\"";
}

/* ---- events ---- */

/* Not 0: Perfetto takes process and thread 0 for the kernel's idle threads. A thread with its process's
 * number would be the main thread, which Perfetto draws elsewhere. */
static int process_of(const tern__trace *trace)
{
    return trace->rank + 1;
}

static int thread_of(const tern__trace *trace, tern__track track)
{
    return TERN__TRACE_THREADS * process_of(trace) + 1 + (int)track;
}

/* Writes microseconds with three decimals. */
static void put_us(tern__trace *trace, const char *key, int64_t ns)
{
    trace_put(trace, ",\"%s\":%lld.%03lld", key, (long long)(ns / 1000), (long long)(ns % 1000));
}

static void put_event(tern__trace *trace, const tern__trace_event *event)
{
    const char *name = quote(trace, event->name);
    trace_make_room(trace, strlen(name) + line_room);
    trace_put(trace, ",\n{\"name\":%s,\"pid\":%d,\"tid\":%d", name, process_of(trace),
              thread_of(trace, event->track));
    put_us(trace, "ts", event->began);
    if (event->ended) put_us(trace, "dur", event->ended - event->began);
    trace_put(trace, event->ended ? ",\"ph\":\"X\"" : ",\"ph\":\"i\",\"s\":\"t\"");
    for (int i = 0; i < TERN__TRACE_ARGS && event->args[i].key; i++)
        trace_put(trace, "%s\"%s\":%lld", i ? "," : ",\"args\":{", event->args[i].key,
                  (long long)event->args[i].value);
    trace_put(trace, event->args[0].key ? "}}" : "}");
}

/* Writes a line that gives a process or a track its name or its sort index. */
static void put_label(tern__trace *trace, const char *what, tern__track track, const char *name, int place)
{
    cJSON *line = cJSON_CreateObject(), *args;
    cJSON_AddStringToObject(line, "name", what);
    cJSON_AddStringToObject(line, "ph", "M");
    cJSON_AddNumberToObject(line, "pid", process_of(trace));
    cJSON_AddNumberToObject(line, "tid", thread_of(trace, track));
    args = cJSON_AddObjectToObject(line, "args");
    if (name)
        cJSON_AddStringToObject(args, "name", name);
    else
        cJSON_AddNumberToObject(args, "sort_index", place);
    char *text = cJSON_PrintUnformatted(line);
    cJSON_Delete(line);
    if (text) trace_put(trace, "%s%s", trace->text_used || trace->rank ? ",\n" : "[\n", text);
    cJSON_free(text);
}

static void put_labels(tern__trace *trace)
{
    static const char *const tracks[] = {
        [TERN__TRACK_COMPUTE] = "compute",
        [TERN__TRACK_BUCKETS] = "buckets",
        [TERN__TRACK_REDUCE] = "reduce",
        [TERN__TRACK_WAIT] = "wait",
    };
    char host[64] = "?", name[128];
    gethostname(host, sizeof(host) - 1);
    snprintf(name, sizeof(name), "rank %d (%s, pid %d)", trace->rank, host, trace->pid);
    put_label(trace, "process_name", TERN__TRACK_COMPUTE, name, 0);
    put_label(trace, "process_sort_index", TERN__TRACK_COMPUTE, NULL, trace->rank);
    for (int track = 0; track < TERN__TRACK_COUNT; track++) {
        put_label(trace, "thread_name", (tern__track)track, tracks[track], 0);
        put_label(trace, "thread_sort_index", (tern__track)track, NULL, track);
    }
    write_text(trace);
}

static void write_events(tern__trace *trace)
{
    bool is_own = trace->pid == getpid();
    for (int i = 0; i < trace->event_count && trace->fd >= 0 && is_own; i++)
        put_event(trace, &trace->events[i]);
    write_text(trace);
    if (trace->fd < 0) trace->lost += (uint64_t)trace->event_count;
    trace->event_count = 0;
}

void tern__trace_flush(tern__trace *trace)
{
    if (!trace) return;
    pthread_mutex_lock(&trace->lock);
    if (trace->event_count) write_events(trace);
    pthread_mutex_unlock(&trace->lock);
}

void tern__trace_add(tern__trace *trace, const tern__trace_event *event)
{
    if (!trace) return;
    pthread_mutex_lock(&trace->lock);
    if (trace->event_count == event_room) write_events(trace);
    trace->events[trace->event_count++] = *event;
    pthread_mutex_unlock(&trace->lock);
}

/* ---- open and close ---- */

static void trace_release(tern__trace *trace)
{
    if (trace->fd >= 0) close(trace->fd);
    for (int i = 0; trace->names && i < name_room; i++) cJSON_free(trace->names[i].text);
    pthread_mutex_destroy(&trace->lock);
    tern__free(trace->names);
    tern__free(trace->text);
    tern__free(trace->events);
    tern__free(trace->path);
    tern__free(trace);
}

static tern__trace *trace_make(const char *path, int rank, tern_error *err)
{
    tern__trace *trace = tern__alloc(sizeof(*trace), "tern_group_open", err);
    if (!trace) return NULL;
    *trace = (tern__trace){.fd = -1, .rank = rank, .pid = getpid()};
    pthread_mutex_init(&trace->lock, NULL);
    trace->path = tern__strdup(path, "tern_group_open", err);
    trace->events = tern__alloc(event_room * sizeof(*trace->events), "tern_group_open", err);
    trace->text = tern__alloc(text_room, "tern_group_open", err);
    trace->names = tern__alloc(name_room * sizeof(*trace->names), "tern_group_open", err);
    if (!tern__is_set(err)) trace->fd = trace_open_file(path, rank, err);
    if (!tern__is_set(err)) return trace;
    trace_release(trace);
    return NULL;
}

tern__trace *tern__trace_open(const char *path, int rank)
{
    tern_error err = {0};
    tern__trace *trace = trace_make(path, rank, &err);
    bool is_told = rank && err.native == ENOENT; /* rank 0 has warned that it could not create the file */
    if (trace)
        put_labels(trace);
    else
        tern__log(is_told ? TERN_LOG_INFO : TERN_LOG_WARN, "%s", err.text);
    return trace;
}

void tern__trace_close(tern__trace *trace)
{
    if (!trace) return;
    tern__trace_flush(trace);
    if (trace->lost)
        tern__log(TERN_LOG_WARN, "up to %llu events of rank %d are missing in \"%s\"",
                  (unsigned long long)trace->lost, trace->rank, trace->path);
    if (trace->pid == getpid() && trace->fd >= 0) end_file(trace->fd);
    trace_release(trace);
}
