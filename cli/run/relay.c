/* relay.c - copies the ranks' output to the launcher's streams, line by line.
 *
 * A *source* is a pipe of a rank and the unfinished line read from it. A *sink* is one of the launcher's two
 * streams and the finished lines that wait for it. A source is read only while its sink has room for the
 * largest output that one read can produce, so a flood of output stops in the rank's pipe and memory is
 * bounded. Lines are passed on whole; one of more than LINE_BYTES is cut between two characters. Only a
 * progress bar of rank 0, an unfinished line with a carriage return in it, is passed on as it moves, with the
 * prefix at the start of each of its states; lines of other ranks begin on a new line then.
 *
 * A sink is written only when poll reports it writable, at most PIPE_BUF bytes at a time and up to the end of
 * a line if there is one in them. Such a write does not block, and on a pipe it does not mix with what rank 0
 * writes there directly.
 *
 * A line never begins behind an unfinished one. Where rank 0 writes through the relay, the sink knows of it.
 * At a terminal that rank 0 writes itself, nobody can know, so each write begins with as many blanks as the
 * terminal has columns and a carriage return: behind an unfinished line they wrap into the next line, and at
 * the start of a line they end where they began (shells find a line for their prompt in this way). */
#include "run/relay.h"

#include "comm/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define LINE_BYTES   (1 << 20) /* a longer line is split into lines of this size                       */
#define READ_BYTES   8192
#define READ_ROOM    ((READ_BYTES + 1) * (TERN__PREFIX_BYTES + 2)) /* a read of nothing but newlines   */
#define SINK_BYTES   (2 * (LINE_BYTES + READ_ROOM))
#define TAIL_BYTES   2048 /* at least so many last bytes are kept                                      */
#define TAIL_LINES   10
#define NOTE_BYTES   (1 << 16) /* fits into READ_ROOM */
#define COLUMNS_MOST 1000

typedef struct source source;

typedef struct sink {
    int fd; /* the relay's own descriptor of the stream; -1 once its reader is gone */
    bool has_lost_lines;
    bool is_shared;     /* a terminal that rank 0 writes itself            */
    bool is_inside;     /* what was written last did not end its line      */
    source *open;       /* whose unfinished line is the last; NULL: nobody's */
    bool lacks_newline; /* the last line is unfinished and its writer is gone */
    size_t head, tail;
    char data[SINK_BYTES];
} sink;

struct source {
    int fd;
    int log_fd; /* -1: none */
    size_t prefix_bytes;
    char prefix[TERN__PREFIX_BYTES]; /* "[3] " */
    bool ended; /* the rank is dead, and `left` bytes of its output are still in the pipe */
    size_t left;
    sink *to; /* NULL: not shown */
    bool keeps_tail;
    size_t tail_bytes;
    char tail[2 * TAIL_BYTES];
    bool is_live;  /* progress bars are passed on as they move */
    bool is_fresh; /* the next character of the bar needs the prefix before it */
    bool was_cut;  /* a line was longer than LINE_BYTES, which is said once */
    size_t used, room;
    char *line; /* [room] */
};

struct tern__relay {
    int count; /* of sources: two per rank */
    source *sources;
    sink sinks[2];
    sink *out, *err; /* the same sink if stdout and stderr are the same file */
    size_t noted;
    char notes[NOTE_BYTES]; /* the launcher's lines, printed after the last lines of dead ranks */
};

/* ---- sinks ---- */

static bool is_waiting(const sink *s)
{
    return s->fd >= 0 && s->tail > s->head;
}

static bool has_room(const sink *s, size_t bytes)
{
    return !s || s->fd < 0 || s->tail - s->head + bytes <= SINK_BYTES;
}

static void sink_append(sink *s, const char *data, size_t bytes)
{
    if (s->tail + bytes > SINK_BYTES) {
        memmove(s->data, s->data + s->head, s->tail - s->head);
        s->tail -= s->head;
        s->head = 0;
    }
    memcpy(s->data + s->tail, data, bytes);
    s->tail += bytes;
}

/* A full disk loses lines but does not end the job. */
static void lose_lines(tern__relay *relay, sink *s, int native)
{
    s->head = s->tail = 0;
    if (!s->has_lost_lines)
        tern__relay_say(relay, "tern run: output of the ranks is lost because it cannot be written: %s",
                        strerror(native));
    s->has_lost_lines = true;
}

/* Call it before lines of anybody but `owner`. */
static void end_open_line(sink *s, const source *owner)
{
    if (!s->lacks_newline && (!s->open || s->open == owner)) return;
    sink_append(s, "\n", 1);
    s->open = NULL;
    s->lacks_newline = false;
}

/* Writes what brings a terminal's cursor to the start of an empty line, and clears the inner bars below.
 * Without a width the unfinished line is erased. */
static int sink_line_start(const sink *s, char text[COLUMNS_MOST + 8])
{
    struct winsize size = {0};
    const char *kind = getenv("TERM");
    if (!s->is_shared || s->is_inside || !kind || !strcmp(kind, "dumb")) return 0;
    bool has_size = ioctl(s->fd, TIOCGWINSZ, &size) == 0 && size.ws_col <= COLUMNS_MOST;
    return snprintf(text, COLUMNS_MOST + 8, "%*s\r\033[J", has_size ? size.ws_col : 0, "");
}

static void write_some(tern__relay *relay, sink *s)
{
    char first[COLUMNS_MOST + 8];
    size_t bytes = TERN__MIN(s->tail - s->head, (size_t)PIPE_BUF), before = (size_t)sink_line_start(s, first);
    const char *start = s->data + s->head, *newline = memrchr(start, '\n', bytes);
    if (newline) bytes = (size_t)(newline - start) + 1;
    const struct iovec parts[] = {{first, before}, {s->data + s->head, bytes}};
    ssize_t wrote = writev(s->fd, parts, TERN__COUNT(parts));
    if (wrote > (ssize_t)before) {
        s->head += (size_t)wrote - before;
        s->is_inside = s->data[s->head - 1] != '\n';
    } else if (wrote >= 0)
        return;
    else if (errno == EPIPE)
        tern__close(&s->fd);
    else if (errno != EINTR && errno != EAGAIN)
        lose_lines(relay, s, errno);
}

/* Opens a sink for one of the launcher's streams. A write may block although poll reported the stream
 * writable: a terminal held with Ctrl-S takes only a part, and rank 0 may fill the pipe in between. A blocked
 * launcher could not supervise the ranks, and rank 0's descriptor must stay blocking. So a pipe or terminal
 * is opened again, non-blocking. A file never blocks, and a second open would write it from its start, so it
 * is duplicated. */
static int open_sink(int fd)
{
    char path[32];
    struct stat at;
    int own = -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fstat(fd, &at) == 0 && (S_ISFIFO(at.st_mode) || S_ISCHR(at.st_mode)))
        own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own >= 0 ? own
                    : fcntl(fd, F_DUPFD_CLOEXEC, 0); /* another user's terminal cannot be opened again */
}

/* ---- sources ---- */

/* Appends to the tail; drops its older half if there is no room. */
static void keep_tail(source *s, const char *data, size_t bytes)
{
    size_t more = TERN__MIN(bytes, (size_t)TAIL_BYTES);
    if (!s->keeps_tail) return;
    if (s->tail_bytes + more > sizeof(s->tail)) {
        memmove(s->tail, s->tail + s->tail_bytes - TAIL_BYTES, TAIL_BYTES);
        s->tail_bytes = TAIL_BYTES;
    }
    memcpy(s->tail + s->tail_bytes, data + bytes - more, more);
    s->tail_bytes += more;
}

static void say_log_ends(tern__relay *relay, const source *s, int native)
{
    int i = (int)(s - relay->sources);
    tern__relay_say(relay, "tern run: %s.log of local rank %d ends here because it cannot be written: %s",
                    i % 2 ? "stderr" : "stdout", i / 2, strerror(native));
}

/* A full disk ends the log but not the job. */
static void save_log(tern__relay *relay, source *s, const char *data, size_t bytes)
{
    while (bytes && s->log_fd >= 0) {
        ssize_t wrote = write(s->log_fd, data, bytes);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            say_log_ends(relay, s, errno);
            tern__close(&s->log_fd);
            return;
        }
        data += wrote;
        bytes -= (size_t)wrote;
    }
}

/* Passes on a part of a progress bar; its states begin after carriage returns. */
static void pass_bar(source *s, const char *text, size_t bytes)
{
    if (s->to->open != s) s->is_fresh = true;
    for (const char *end = text + bytes; text < end;) {
        if (s->is_fresh && *text != '\r') {
            sink_append(s->to, s->prefix, s->prefix_bytes);
            s->is_fresh = false;
        }
        const char *state_end = memchr(text, '\r', (size_t)(end - text));
        size_t length = state_end ? (size_t)(state_end - text) + 1 : (size_t)(end - text);
        sink_append(s->to, text, length);
        s->is_fresh |= state_end != NULL;
        text += length;
    }
    s->to->open = s;
}

/* Without a prefix the bytes stay unchanged: an unfinished line gets a newline only if another line follows.
 */
static void pass_line(source *s, const char *text, size_t bytes, bool is_whole)
{
    if (!s->to || s->to->fd < 0) return;
    end_open_line(s->to, s);
    if (s->to->open == s || (s->is_live && memchr(text, '\r', bytes))) {
        pass_bar(s, text, bytes);
    } else {
        sink_append(s->to, s->prefix, s->prefix_bytes);
        sink_append(s->to, text, bytes);
    }
    bool is_ended = is_whole || s->prefix_bytes;
    if (is_ended) sink_append(s->to, "\n", 1);
    s->to->open = is_ended ? NULL : s;
}

/* Returns the length of the longest beginning that ends with a character. Bytes that are no UTF-8 are
 * characters of their own. */
static size_t whole_characters(const char *text, size_t bytes)
{
    for (size_t back = 1; back <= 4 && back <= bytes; back++) {
        unsigned char lead = (unsigned char)text[bytes - back];
        if (lead >> 6 == 2) continue; /* not the first byte of a character */
        size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
        return length > back ? bytes - back : bytes;
    }
    return bytes;
}

static void cut_line(tern__relay *relay, source *s)
{
    int i = (int)(s - relay->sources);
    size_t bytes = whole_characters(s->line, s->used);
    pass_line(s, s->line, bytes, false);
    memmove(s->line, s->line + bytes, s->used - bytes);
    s->used -= bytes;
    if (s->was_cut || !s->prefix_bytes || !s->to) return;
    s->was_cut = true;
    tern__relay_say(relay,
                    "tern run: a line of more than %zu bytes on %s of local rank %d is shown in pieces",
                    s->room, i % 2 ? "stderr" : "stdout", i / 2);
}

/* Makes room for a read; without memory for it, the line will be cut where it is. Returns the room. */
static size_t make_room(source *s)
{
    size_t room = TERN__MAX(2 * s->room, (size_t)READ_BYTES);
    if (s->room - s->used >= READ_BYTES / 2 || s->room >= LINE_BYTES) return s->room - s->used;
    char *line = tern__alloc(room, __func__, NULL);
    if (!line) return s->room - s->used;
    if (s->used) memcpy(line, s->line, s->used);
    tern__free(s->line);
    s->line = line;
    s->room = room;
    return s->room - s->used;
}

/* Only the last `got` bytes are new: what was there before has no newline. */
static void pass_lines(tern__relay *relay, source *s, size_t got)
{
    char *at = s->line, *end = s->line + s->used, *from = end - got, *newline;
    while ((newline = memchr(from, '\n', (size_t)(end - from)))) {
        pass_line(s, at, (size_t)(newline - at), true);
        from = at = newline + 1;
    }
    s->used = (size_t)(end - at);
    memmove(s->line, at, s->used);
    bool is_shown = s->to && s->to->fd >= 0 && s->used;
    if (is_shown && s->is_live && (s->to->open == s || memchr(s->line, '\r', s->used))) {
        end_open_line(s->to, s);
        pass_bar(s, s->line, s->used);
        s->used = 0;
    }
    if (s->used == s->room && !make_room(s)) cut_line(relay, s);
}

static void source_finish(source *s)
{
    bool is_open = s->to && s->to->open == s;
    if (s->used || (is_open && s->prefix_bytes)) pass_line(s, s->line, s->used, false);
    if (s->to && s->to->open == s) {
        s->to->open = NULL;
        s->to->lacks_newline = true;
    }
    s->used = s->room = 0;
    tern__free(s->line);
    s->line = NULL;
    tern__close(&s->fd);
    tern__close(&s->log_fd);
}

/* Call it only if there is something to read, according to poll or `left`. */
static void read_some(tern__relay *relay, source *s)
{
    size_t want = TERN__MIN(make_room(s), (size_t)READ_BYTES);
    if (s->ended) want = TERN__MIN(want, s->left);
    ssize_t got = want ? read(s->fd, s->line + s->used, want) : 0;
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
        source_finish(s);
        return;
    }
    save_log(relay, s, s->line + s->used, (size_t)got);
    keep_tail(s, s->line + s->used, (size_t)got);
    s->used += (size_t)got;
    if (s->ended) s->left -= (size_t)got;
    pass_lines(relay, s, (size_t)got);
}

static bool may_read(const source *s)
{
    return s->fd >= 0 && has_room(s->to, s->used + READ_ROOM);
}

/* ---- the relay ---- */

bool tern__relay_joins(void)
{
    struct stat out, err;
    return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
           out.st_ino == err.st_ino;
}

tern__relay *tern__relay_new(int ranks, tern_error *err)
{
    tern__relay *relay = tern__alloc(sizeof(*relay), __func__, err);
    if (!relay) return NULL;
    relay->count = 2 * ranks;
    relay->sources = tern__alloc((size_t)relay->count * sizeof(source), __func__, err);
    if (!relay->sources) {
        tern__free(relay);
        return NULL;
    }
    for (int i = 0; i < relay->count; i++) relay->sources[i].fd = relay->sources[i].log_fd = -1;
    relay->sinks[0].fd = open_sink(STDOUT_FILENO);
    relay->sinks[1].fd = open_sink(STDERR_FILENO);
    if (relay->sinks[0].fd < 0 || relay->sinks[1].fd < 0) {
        tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot reopen standard output and standard error");
        tern__relay_free(relay);
        return NULL;
    }
    relay->out = &relay->sinks[0];
    relay->err = tern__relay_joins() ? relay->out : &relay->sinks[1];
    return relay;
}

void tern__relay_free(tern__relay *relay)
{
    if (!relay) return;
    for (int i = 0; i < relay->count; i++) {
        tern__close(&relay->sources[i].fd);
        tern__close(&relay->sources[i].log_fd);
        tern__free(relay->sources[i].line);
    }
    for (size_t i = 0; i < TERN__COUNT(relay->sinks); i++) tern__close(&relay->sinks[i].fd);
    tern__free(relay->sources);
    tern__free(relay);
}

static void source_open(source *s, const tern__cli_output *output, sink *to)
{
    s->ended = false;
    s->used = s->tail_bytes = 0;
    s->is_live = output->is_live;
    s->was_cut = false;
    s->fd = output->fd;
    s->log_fd = output->file_fd;
    s->to = output->shows ? to : NULL;
    s->keeps_tail = output->keeps_tail && s->fd >= 0;
    to->is_shared |= output->is_own && isatty(to->fd);
    s->prefix_bytes = strlen(output->prefix);
    memcpy(s->prefix, output->prefix, s->prefix_bytes);
}

void tern__relay_add(tern__relay *relay, int local, const tern__cli_output outputs[2])
{
    source_open(&relay->sources[2 * local], &outputs[0], relay->out);
    source_open(&relay->sources[2 * local + 1], &outputs[1], relay->err);
}

nfds_t tern__relay_poll_count(const tern__relay *relay)
{
    return (nfds_t)relay->count + TERN__COUNT(relay->sinks);
}

static void pass_notes(tern__relay *relay)
{
    for (int i = 0; i < relay->count; i++)
        if (relay->sources[i].ended && relay->sources[i].fd >= 0) return;
    if (!relay->noted || !has_room(relay->err, READ_ROOM)) return;
    end_open_line(relay->err, NULL);
    sink_append(relay->err, relay->notes, relay->noted);
    relay->noted = 0;
}

static bool has_lost_reader(const source *s)
{
    return s->to && s->to->fd < 0 && s->log_fd < 0;
}

/* Closes a rank's pipe if the reader of its sink is gone: the rank's next write raises SIGPIPE, as it would
 * without the launcher in between. */
void tern__relay_prepare(tern__relay *relay, struct pollfd *polls)
{
    for (int i = 0; i < relay->count; i++) {
        source *s = &relay->sources[i];
        if (s->fd >= 0 && has_lost_reader(s)) tern__close(&s->fd);
        polls[i] = (struct pollfd){.fd = may_read(s) ? s->fd : -1, .events = POLLIN};
    }
    pass_notes(relay);
    for (size_t i = 0; i < TERN__COUNT(relay->sinks); i++) {
        const sink *s = &relay->sinks[i];
        polls[(size_t)relay->count + i] =
            (struct pollfd){.fd = is_waiting(s) ? s->fd : -1, .events = POLLOUT};
    }
}

void tern__relay_handle(tern__relay *relay, const struct pollfd *polls)
{
    for (int i = 0; i < relay->count; i++) {
        source *s = &relay->sources[i];
        if ((polls[i].revents || s->ended) && may_read(s)) read_some(relay, s);
    }
    for (size_t i = 0; i < TERN__COUNT(relay->sinks); i++)
        if (polls[(size_t)relay->count + i].revents && is_waiting(&relay->sinks[i]))
            write_some(relay, &relay->sinks[i]);
}

static void end_source(tern__relay *relay, source *s)
{
    int bytes = 0;
    if (s->fd < 0) return;
    s->ended = true;
    s->left = ioctl(s->fd, FIONREAD, &bytes) == 0 ? (size_t)bytes : 0;
    while (may_read(s)) read_some(relay, s);
}

void tern__relay_end(tern__relay *relay, int local)
{
    end_source(relay, &relay->sources[2 * local]);
    end_source(relay, &relay->sources[2 * local + 1]);
}

const char *tern__relay_tail(const tern__relay *relay, int local, size_t *bytes)
{
    const source *both = &relay->sources[2 * local], *s = both->keeps_tail ? both : both + 1;
    *bytes = s->keeps_tail ? s->tail_bytes : 0;
    return s->tail;
}

void tern__relay_say(tern__relay *relay, const char *fmt, ...)
{
    size_t room = NOTE_BYTES - relay->noted;
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(relay->notes + relay->noted, room, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= room)
        return; /* there may be thousands of ranks: the first lines suffice */
    relay->noted += (size_t)length;
    relay->notes[relay->noted++] = '\n';
}

bool tern__relay_is_drained(const tern__relay *relay)
{
    for (int i = 0; i < relay->count; i++)
        if (relay->sources[i].fd >= 0 && !has_lost_reader(&relay->sources[i])) return false;
    return true;
}

bool tern__relay_is_idle(const tern__relay *relay)
{
    return tern__relay_is_drained(relay) && !is_waiting(&relay->sinks[0]) && !is_waiting(&relay->sinks[1]) &&
           (!relay->noted || relay->err->fd < 0);
}
