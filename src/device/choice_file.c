/* choice_file.c - the user's file of measured choices, and its lines.
 *
 * When a case has been measured, its line is appended by one write. So processes need no lock, and a
 * killed process leaves no damage. Only a full disk leaves an incomplete line, and the next writer ends
 * it. The file is trusted only if it belongs to the user and is not a symbolic link. Even then it can only
 * choose among correct algorithms. Training works without the file; a problem with it is one warning. */
#include "device/choice_file.h"

#include "base/file.h"
#include "device/backend.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lines ---- */

tern__choice_machine tern__choice_machine_of(const tern_device *device)
{
    tern__choice_machine m = {0};
    if (device->backend) {
        device->backend->describe(device->index, m.device, sizeof(m.device));
        device->backend->libraries(m.libraries, sizeof(m.libraries));
    } else if (!tern__device_cpu_name(m.device, sizeof(m.device))) {
        snprintf(m.device, sizeof(m.device), "unknown");
    }
    return m;
}

bool tern__choice_machine_is_same(const tern__choice_machine *a, const tern__choice_machine *b)
{
    return !strcmp(a->device, b->device) && !strcmp(a->libraries, b->libraries);
}

size_t tern__choice_print(const tern__choice_machine *machine, const char *what, const char *name,
                          char text[TERN__CHOICE_LINE])
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "tern", tern_version());
    cJSON_AddStringToObject(line, "device", machine->device);
    cJSON_AddStringToObject(line, "libraries", machine->libraries);
    cJSON_AddStringToObject(line, "case", what);
    cJSON_AddStringToObject(line, "choice", name);
    bool fits = line && cJSON_PrintPreallocated(line, text, TERN__CHOICE_LINE - 64, false);
    cJSON_Delete(line);
    if (!fits) return 0;
    size_t bytes = strlen(text);
    memcpy(text + bytes, "\n", 2);
    return bytes + 1;
}

static const char *text_of(const cJSON *line, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, name));
}

static bool says(const cJSON *line, const char *name, const char *expected)
{
    const char *text = text_of(line, name);
    return text && !strcmp(text, expected);
}

static bool is_of(const cJSON *line, const tern__choice_machine *m)
{
    return says(line, "tern", tern_version()) && says(line, "libraries", m->libraries) &&
           (m->is_any_device || says(line, "device", m->device));
}

static void take_line(const tern__choice_machine *machine, const char *text, size_t bytes,
                      tern__choice_taker *take, void *ctx)
{
    if (bytes >= TERN__CHOICE_LINE) return;
    cJSON *line = cJSON_ParseWithLength(text, bytes);
    const char *what = text_of(line, "case"), *name = text_of(line, "choice");
    if (what && name && is_of(line, machine)) take(ctx, what, name);
    cJSON_Delete(line);
}

void tern__choice_lines_take(const tern__choice_machine *machine, const char *text, size_t bytes,
                             tern__choice_taker *take, void *ctx)
{
    const char *end = text + bytes;
    for (const char *next; text < end; text = next + 1) {
        next = memchr(text, '\n', (size_t)(end - text));
        if (!next) next = end;
        take_line(machine, text, (size_t)(next - text), take, ctx);
    }
}

/* ---- the path ---- */

bool tern__choices_path(char *path, size_t size)
{
    const char *named = tern__env("TERN_CONV_CACHE"), *cache = tern__env("XDG_CACHE_HOME"),
               *home = tern__env("HOME");
    int length = -1;
    if (named)
        length = strcmp(named, "off") ? snprintf(path, size, "%s", named) : -1;
    else if (cache && *cache == '/') /* relative paths are invalid (XDG Base Directory Specification) */
        length = snprintf(path, size, "%s/tern/conv.jsonl", cache);
    else if (home)
        length = snprintf(path, size, "%s/.cache/tern/conv.jsonl", home);
    return length > 0 && (size_t)length < size;
}

static void make_folder_of(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) return;
    *slash = '\0';
    tern__folder_make(folder, 0700, __func__, NULL); /* opening the file says what is wrong */
}

static void choice_file_warn(const char *path, const char *what)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        tern__log(TERN_LOG_WARN, "%s: %s; every process measures its convolutions again", path, what);
}

/* Opens a regular file that belongs to the user; -1: failed. Warns unless the file does not exist. */
static int open_own(const char *path, int flags, struct stat *about)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        if (errno != ENOENT) choice_file_warn(path, strerror(errno));
        return -1;
    }
    if (!fstat(fd, about) && S_ISREG(about->st_mode) && about->st_uid == geteuid()) return fd;
    choice_file_warn(path, "expected a regular file that belongs to the user");
    close(fd);
    return -1;
}

/* ---- reading ---- */

static size_t choice_file_read_all(int fd, char *text, size_t size)
{
    size_t used = 0;
    for (ssize_t got; used < size && (got = read(fd, text + used, size - used)) != 0;) {
        if (got < 0 && errno != EINTR) break;
        if (got > 0) used += (size_t)got;
    }
    return used;
}

void tern__choice_file_read(const tern__choice_machine *machine, tern__choice_taker *take, void *ctx)
{
    char path[PATH_MAX], *text;
    struct stat about;
    int fd = tern__choices_path(path, sizeof(path)) ? open_own(path, O_RDONLY, &about) : -1;
    if (fd < 0) return;
    if (about.st_size > (off_t)TERN__CHOICE_FILE_MAX) {
        char old[PATH_MAX + 4];
        snprintf(old, sizeof(old), "%s.old", path);
        if (rename(path, old)) choice_file_warn(path, strerror(errno));
    } else if ((text = tern__alloc((size_t)about.st_size + 1, __func__, NULL))) {
        tern__choice_lines_take(machine, text, choice_file_read_all(fd, text, (size_t)about.st_size), take,
                                ctx);
        tern__free(text);
    }
    close(fd);
}

/* ---- writing ---- */

static bool ends_line(int fd, off_t size)
{
    char last = '\n';
    return size == 0 || pread(fd, &last, 1, size - 1) != 1 || last == '\n';
}

void tern__choice_file_append(const tern__choice_machine *machine, const char *what, const char *name)
{
    char path[PATH_MAX], text[TERN__CHOICE_LINE + 1] = "\n";
    struct stat about;
    size_t bytes = tern__choice_print(machine, what, name, text + 1);
    if (!bytes || !tern__choices_path(path, sizeof(path))) return;
    make_folder_of(path);
    int fd = open_own(path, O_RDWR | O_APPEND | O_CREAT, &about);
    if (fd < 0) return;
    bool whole = ends_line(fd, about.st_size);
    if (write(fd, whole ? text + 1 : text, bytes + !whole) < 0) choice_file_warn(path, strerror(errno));
    close(fd);
}
