/* run_dir.c - finds the folder of a run and keeps its record, run.json. */
#include "run_dir.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECORD      "run.json"
#define RECORD_MOST (1 << 20) /* bytes; far more than a run's starts need */
#define PATH        (FLAGS_DIR + 16)

/* ---- the record ---- */

static cJSON *flag_json(const flag *row)
{
    char text[512];
    flags_text(row, text, sizeof(text));
    switch (row->kind) {
    case FLAG_COUNT: return cJSON_CreateNumber((double)*(int64_t *)row->value);
    case FLAG_NUMBER: return cJSON_CreateNumber(*(double *)row->value);
    case FLAG_SWITCH: return cJSON_CreateBool(*(bool *)row->value);
    case FLAG_TEXT:
        return *(char **)row->value ? cJSON_CreateString(*(char **)row->value) : cJSON_CreateNull();
    default: return cJSON_CreateString(text);
    }
}

static cJSON *start_json(const flags *f, const run_start *start)
{
    char host[256] = "", when[32];
    time_t now = time(NULL);
    struct tm utc;
    gethostname(host, sizeof(host) - 1);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    cJSON *json = cJSON_CreateObject(), *given;
    cJSON_AddStringToObject(json, "program", f->program);
    cJSON_AddStringToObject(json, "version", tern_version());
    cJSON_AddStringToObject(json, "time", when);
    cJSON_AddStringToObject(json, "host", host);
    cJSON_AddNumberToObject(json, "ranks", start->ranks);
    cJSON_AddNumberToObject(json, "threads", start->threads);
    cJSON_AddStringToObject(json, "backend", start->backend);
    cJSON_AddStringToObject(json, "device", start->device);
    cJSON_AddNumberToObject(json, "step", (double)start->step);
    given = cJSON_AddObjectToObject(json, "flags");
    for (int i = 0; i < f->count; i++) cJSON_AddItemToObject(given, f->rows[i].name, flag_json(&f->rows[i]));
    return json;
}

/* Returns the folder's record; NULL if there is none, or no JSON in it. The caller deletes it. */
static cJSON *read_record(const char *dir)
{
    char path[PATH];
    snprintf(path, sizeof(path), "%s/%s", dir, RECORD);
    FILE *file = fopen(path, "r");
    char *text = file ? malloc(RECORD_MOST) : NULL;
    cJSON *record = text ? cJSON_ParseWithLength(text, fread(text, 1, RECORD_MOST, file)) : NULL;
    free(text);
    if (file) fclose(file);
    return record;
}

/* The file gets its name when it is complete and on the disk. */
static void write_record(const char *dir, const cJSON *record, tern_error *err)
{
    char path[PATH], part[PATH + 8];
    snprintf(path, sizeof(path), "%s/%s", dir, RECORD);
    snprintf(part, sizeof(part), "%s.part", path);
    char *text = cJSON_Print(record);
    FILE *file = text ? fopen(part, "w") : NULL;
    bool written = file && fprintf(file, "%s\n", text) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    written &= file && fclose(file) == 0;
    if (!written || rename(part, path))
        tern_error_set(err, "train", TERN_E_IO, "cannot write %s: %s", path, strerror(errno));
    cJSON_free(text);
}

bool run_dir_record(const char *dir, const flags *f, const run_start *start, bool resumed, tern_error *err)
{
    cJSON *record = resumed ? read_record(dir) : NULL, *now = start_json(f, start);
    bool is_new = !cJSON_IsObject(record);
    if (err->code) return false;
    if (!is_new) {
        cJSON *later = cJSON_GetObjectItemCaseSensitive(record, "resumed");
        if (!later) later = cJSON_AddArrayToObject(record, "resumed");
        cJSON_AddItemToArray(later, now);
    }
    write_record(dir, is_new ? now : record, err);
    if (is_new) cJSON_Delete(now);
    cJSON_Delete(record);
    return is_new;
}

static void add_hparam(tern_object *hparams, const cJSON *item, tern_error *err)
{
    tern_object *value = cJSON_IsBool(item)     ? tern_object_bool(cJSON_IsTrue(item), err)
                         : cJSON_IsNumber(item) ? tern_object_float(item->valuedouble, err)
                         : cJSON_IsString(item) ? tern_object_string(item->valuestring, err)
                                                : NULL;
    if (value) tern_object_set(hparams, item->string, value, err);
}

tern_object *run_dir_hparams(const flags *f, const run_start *start, tern_error *err)
{
    static const char *const others[] = {"program", "version", "host",  "ranks",
                                         "threads", "backend", "device"};
    cJSON *json = start_json(f, start), *item;
    tern_object *hparams = tern_object_dict(err);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(json, "flags")) add_hparam(hparams, item, err);
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        add_hparam(hparams, cJSON_GetObjectItemCaseSensitive(json, others[i]), err);
    cJSON_Delete(json);
    return hparams;
}

/* ---- is a folder this run's? ---- */

bool run_dir_has(const char *dir, const char *file)
{
    char path[PATH];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    return access(path, F_OK) == 0;
}

static bool is_same_value(const cJSON *a, const cJSON *b)
{
    struct stat files[2];
    if (cJSON_Compare(a, b, true)) return true;
    return cJSON_IsString(a) && cJSON_IsString(b) && stat(a->valuestring, &files[0]) == 0 &&
           stat(b->valuestring, &files[1]) == 0 && files[0].st_dev == files[1].st_dev &&
           files[0].st_ino == files[1].st_ino;
}

static void print_value(const cJSON *value, char *text, size_t size)
{
    char *number = cJSON_IsNumber(value) ? cJSON_PrintUnformatted(value) : NULL;
    snprintf(text, size, "%s",
             cJSON_IsString(value) ? value->valuestring
             : number              ? number
             : cJSON_IsTrue(value) ? "on"
             : cJSON_IsNull(value) ? "not given"
                                   : "off");
    cJSON_free(number);
}

/* Writes the flags that the run was begun with and that are different now, "--lr was 0.05, now 0.1"; "" if
 * there are none. A flag that the record does not know is new, and has not changed. */
static void compare_flags(const flags *f, const cJSON *record, char *text, size_t size)
{
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(record, "flags");
    size_t used = 0;
    *text = 0;
    for (int i = 0; i < f->count && used < size; i++) {
        char was[128], is[128];
        const cJSON *then = cJSON_GetObjectItemCaseSensitive(given, f->rows[i].name);
        cJSON *now = flag_json(&f->rows[i]);
        if (then && !flags_may_change(&f->rows[i]) && !is_same_value(then, now)) {
            print_value(then, was, sizeof(was));
            print_value(now, is, sizeof(is));
            used += (size_t)snprintf(text + used, size - used, "%s--%s was %s, now %s", used ? "; " : "",
                                     f->rows[i].name, was, is);
        }
        cJSON_Delete(now);
    }
}

static const char *program_of(const cJSON *record)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(record, "program"));
    return name ? name : "";
}

/* ---- an earlier run's models ---- */

static int entry_remove(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)about;
    (void)kind;
    (void)place;
    return remove(path);
}

void run_dir_clear(const char *dir, tern_error *err)
{
    static const char *const names[] = {"best", "last", "best.pth", "last.pth"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char path[PATH];
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        if (run_dir_has(dir, names[i]) && nftw(path, entry_remove, 8, FTW_DEPTH | FTW_PHYS))
            tern_error_set(err, "train", TERN_E_IO, "cannot remove %s: %s", path, strerror(errno));
    }
}

/* ---- finding it ---- */

static struct timespec changed(const char *path)
{
    struct stat info;
    return stat(path, &info) ? (struct timespec){0} : info.st_mtim;
}

static bool is_later(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* Finds the folder in runs/ with the newest checkpoint among those of this run; leaves `dir` unchanged if
 * there is none. Then `note` says what is different in the newest of this program. */
static void find_newest(const flags *f, char *dir, size_t size, char note[RUN_NOTE])
{
    glob_t found = {0};
    struct timespec newest[2] = {{0}, {0}}; /* of other runs of the program, and of this one */
    glob("runs/*/latest", 0, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char candidate[FLAGS_DIR], differences[RUN_NOTE / 4];
        struct timespec when = changed(found.gl_pathv[i]);
        size_t length = strlen(found.gl_pathv[i]) - strlen("/latest");
        snprintf(candidate, sizeof(candidate), "%.*s", (int)length, found.gl_pathv[i]);
        cJSON *record = length < sizeof(candidate) ? read_record(candidate) : NULL;
        if (!strcmp(program_of(record), f->program)) {
            compare_flags(f, record, differences, sizeof(differences));
            bool is_this = !*differences;
            if (is_later(when, newest[is_this])) {
                newest[is_this] = when;
                if (is_this)
                    snprintf(dir, size, "%s", candidate);
                else
                    snprintf(note, RUN_NOTE, "no run in runs/ has these flags (%s: %s)", candidate,
                             differences);
            }
        }
        if (!record && strstr(candidate, f->program) && !*note)
            snprintf(note, RUN_NOTE, "%s has no " RECORD "; --log-dir %s resumes it", candidate, candidate);
        cJSON_Delete(record);
    }
    globfree(&found);
    if (*dir) *note = 0;
}

/* Compares the flags with the record of --log-dir. */
static void check_log_dir(const flags *f, bool resumes, char note[RUN_NOTE], tern_error *err)
{
    char differences[RUN_NOTE / 4];
    cJSON *record = read_record(f->log_dir);
    const char *program = program_of(record);
    if (resumes && *program && strcmp(program, f->program))
        tern_error_set(err, "train", TERN_E_MISMATCH, "--resume latest: %s is a run of %s", f->log_dir,
                       program);
    compare_flags(f, record, differences, sizeof(differences));
    if (resumes && *differences)
        snprintf(note, RUN_NOTE, "%s was begun with other flags (%s)", f->log_dir, differences);
    if (!f->resume && run_dir_has(f->log_dir, "latest"))
        snprintf(note, RUN_NOTE,
                 "%s has checkpoints of an earlier run, which this one replaces; --resume latest would go on",
                 f->log_dir);
    cJSON_Delete(record);
}

void run_dir_find(const flags *f, char *dir, size_t size, char note[RUN_NOTE], tern_error *err)
{
    bool resumes = f->resume && !strcmp(f->resume, "latest");
    *dir = *note = 0;
    if (f->log_dir) {
        snprintf(dir, size, "%s", f->log_dir);
        check_log_dir(f, resumes, note, err);
    } else if (resumes) {
        find_newest(f, dir, size, note);
    }
}
