/* snapshot_dir.c - the directory of a run's snapshots: lists them, marks the latest, removes old ones.
 *
 * tern_save writes a snapshot under another name and renames it, so a file named step-N.pt is complete.
 * `latest` is a symbolic link that is replaced in the same way. */
#include "checkpoint/snapshot.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern_snapshot", latest[] = "latest";

void tern__snapshot_name(int64_t step, char name[TERN__SNAPSHOT_NAME])
{
    snprintf(name, TERN__SNAPSHOT_NAME, "step-%lld.pt", (long long)step);
}

/* Returns the step in a name made by tern__snapshot_name; -1 for any other name. */
static int64_t step_of(const char *name)
{
    char again[TERN__SNAPSHOT_NAME];
    long long step;
    if (sscanf(name, "step-%lld.pt", &step) != 1 || step < 0) return -1;
    tern__snapshot_name(step, again);
    return strcmp(again, name) ? -1 : step;
}

/* ---- opening ---- */

static bool ends_in(const char *name, size_t bytes, const char *suffix)
{
    size_t length = strlen(suffix);
    return bytes > length && memcmp(name + bytes - length, suffix, length) == 0;
}

/* Is it a checkpoint, such as "step-3.pt" or the job's own "best.pth", or "latest"? */
static bool is_ours(const char *name, size_t bytes, const void *ctx)
{
    static const char *const suffixes[] = {".pt", ".pth", ".safetensors"};
    (void)ctx;
    bool is = bytes == strlen(latest) && memcmp(name, latest, bytes) == 0;
    for (size_t i = 0; i < TERN__COUNT(suffixes); i++) is |= ends_in(name, bytes, suffixes[i]);
    return is;
}

static int snapshot_dir_cannot_read(const char *dir, const char *func, tern_error *err)
{
    return tern__error_errno(err, func, TERN_E_IO, "cannot read the directory %s", dir);
}

/* Returns the next name, or NULL at the end; then errno is 0 unless reading failed. */
static const char *next_name(DIR *stream)
{
    errno = 0;
    const struct dirent *entry = readdir(stream);
    return entry ? entry->d_name : NULL;
}

int tern__snapshot_dir_open(const char *dir, tern__snapshot_lock **lock, tern_error *err)
{
    int status = tern__folder_make(dir, 0777, "tern_snapshot_new", err);
    if (status) return status;
    *lock = tern__snapshot_lock_open(dir, err);
    return *lock ? tern__folder_tidy(dir, is_ours, NULL, "tern_snapshot_new", err) : TERN_E_IO;
}

/* ---- latest ---- */

int tern__snapshot_publish(const char *dir, const char *name, tern_error *err)
{
    char temp[64];
    snprintf(temp, sizeof(temp), "%s.%ld.tmp", latest, (long)getpid());
    char *from = tern__path_join(dir, temp, FUNC, err), *to = tern__path_join(dir, latest, FUNC, err);
    int status = from && to ? TERN_OK : TERN_E_MEMORY;
    if (!status) unlink(from);
    if (!status && (symlink(name, from) || rename(from, to))) {
        status = tern__error_errno(err, "tern_snapshot_save", TERN_E_IO, "cannot make %s the latest: %s",
                                   name, to);
        unlink(from);
    }
    if (!status) status = tern__folder_sync(dir, "tern_snapshot_save", err);
    tern__free(from);
    tern__free(to);
    return status;
}

/* Returns the step that `latest` names; -1: none. */
static int64_t latest_step(const char *dir)
{
    char name[TERN__SNAPSHOT_NAME];
    char *path = tern__path_join(dir, latest, FUNC, NULL);
    ssize_t length = path ? readlink(path, name, sizeof(name) - 1) : -1;
    tern__free(path);
    if (length < 0) return -1;
    name[length] = '\0';
    return step_of(name);
}

/* ---- listing ---- */

static int downwards(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int snapshot_dir_append(int64_t **steps, int count, int64_t step, tern_error *err)
{
    size_t size = sizeof(**steps), used = (size_t)count;
    void *grown = tern__realloc_array(*steps, used * size, (used + 1) * size, FUNC, err);
    if (!grown) return TERN_E_MEMORY;
    *steps = grown;
    (*steps)[count] = step;
    return TERN_OK;
}

/* Half a list would pass for a whole one, so a failure to read on is an error. */
static int read_steps(DIR *stream, const char *dir, int64_t **steps, int *count, tern_error *err)
{
    for (const char *name; (name = next_name(stream));) {
        int64_t step = step_of(name);
        if (step < 0) continue;
        if (snapshot_dir_append(steps, *count, step, err)) return TERN_E_MEMORY;
        ++*count;
    }
    return errno ? snapshot_dir_cannot_read(dir, "tern_snapshot_load", err) : TERN_OK;
}

/* Lists all steps in descending order. */
static int list_down(const char *dir, int64_t **steps, tern_error *err)
{
    int count = 0;
    *steps = NULL;
    DIR *stream = opendir(dir);
    if (!stream) return snapshot_dir_cannot_read(dir, "tern_snapshot_load", err);
    int status = read_steps(stream, dir, steps, &count, err);
    closedir(stream);
    if (!status && count) qsort(*steps, (size_t)count, sizeof(**steps), downwards);
    if (!status) return count;
    tern__free(*steps);
    *steps = NULL;
    return status;
}

int tern__snapshot_list(const char *dir, int64_t **steps, tern_error *err)
{
    int count = list_down(dir, steps, err), above = 0;
    int64_t newest = latest_step(dir);
    if (count <= 0 || newest < 0) return count;
    while (above < count && (*steps)[above] > newest) above++;
    int64_t *turned = tern__alloc((size_t)count * sizeof(*turned), FUNC, err);
    if (turned) {
        memcpy(turned, *steps + above, (size_t)(count - above) * sizeof(*turned));
        memcpy(turned + (count - above), *steps, (size_t)above * sizeof(*turned));
    }
    tern__free(*steps);
    *steps = turned;
    return turned ? count : TERN_E_MEMORY;
}

void tern__snapshot_prune(const char *dir, int64_t step, int keep)
{
    int64_t *steps;
    tern_error why = {0};
    int count = list_down(dir, &steps, &why), kept = 0;
    if (count < 0) tern__log(TERN_LOG_WARN, "old snapshots are not removed: %s", why.text);
    for (int i = 0; i < count; i++) {
        char name[TERN__SNAPSHOT_NAME];
        if (steps[i] > step || kept++ < keep) continue;
        tern__snapshot_name(steps[i], name);
        char *path = tern__path_join(dir, name, FUNC, NULL);
        if (!path || unlink(path))
            tern__log(TERN_LOG_WARN, "cannot remove the old snapshot %s/%s", dir, name);
        tern__free(path);
    }
    tern__free(steps);
}
