/* notes.c - a back end's measured choices, by case: in memory, in the user's file, and as lines for
 * others. */
#include "device/notes.h"
#include "base/hash.h"
#include "device/backend.h"
#include "device/choice_file.h"

#include <cjson/cJSON.h>
#include <string.h>

typedef struct tern__note {
    struct tern__note *next, *before; /* next in the bucket; next older among the learned */
    uint64_t serial; /* number when it was learned; 0: only read from the file, not used yet */
    bool told;       /* by another rank or device, not by the file or by measuring */
    char *choice;
    char what[];
} note;

/* ---- the table ---- */

static note **bucket_of(struct tern__notes *notes, const char *what)
{
    return &notes->buckets[tern__fnv(TERN__FNV, what, strlen(what)) % TERN__COUNT(notes->buckets)];
}

static note *find(struct tern__notes *notes, const char *what)
{
    note *one = *bucket_of(notes, what);
    while (one && strcmp(one->what, what) != 0) one = one->next;
    return one;
}

static note *add(struct tern__notes *notes, const char *what)
{
    size_t bytes = strlen(what) + 1;
    note **bucket = bucket_of(notes, what), *one = tern__alloc(sizeof(*one) + bytes, __func__, NULL);
    if (!one) return NULL;
    memcpy(one->what, what, bytes);
    one->next = *bucket;
    return *bucket = one;
}

static void take_out(struct tern__notes *notes, const note *one)
{
    note **at = &notes->learned;
    while (*at != one) at = &(*at)->before;
    *at = one->before;
}

static void learn(struct tern__notes *notes, note *one)
{
    if (one->serial)
        take_out(notes, one);
    else
        notes->learned_count++;
    one->before = notes->learned;
    notes->learned = one;
    one->serial = ++notes->serial;
    notes->is_full = notes->learned_count >= TERN__CHOICE_CASES;
}

/* Learns a choice that this device measured or found in the file. */
static void learn_itself(struct tern__notes *notes, note *one)
{
    bool was_full = notes->is_full;
    learn(notes, one);
    if (notes->is_full && !was_full)
        tern__log(TERN_LOG_INFO,
                  "%d cases of convolutions and products are known: further ones are not measured and use "
                  "the first algorithm that runs (docs/conv.md)",
                  TERN__CHOICE_CASES);
}

static note *put(struct tern__notes *notes, const char *what, const char *choice, bool told)
{
    note *one = find(notes, what);
    if (!one) one = add(notes, what);
    char *copy = one ? tern__strdup(choice, __func__, NULL) : NULL;
    if (!copy) return NULL;
    tern__free(one->choice);
    one->choice = copy;
    one->told = told;
    return one;
}

/* Takes the choice of another rank or device if it is new. */
static void hear(struct tern__notes *notes, const char *what, const char *choice)
{
    note *one = find(notes, what);
    if (one && one->told && !strcmp(one->choice, choice)) return;
    one = put(notes, what, choice, true);
    if (!one) return;
    learn(notes, one);
    notes->heard++;
}

/* ---- lines ---- */

typedef struct machine {
    char device[128], libraries[128];
} machine;

static machine machine_of(const tern_device *device)
{
    machine m = {0};
    device->backend->describe(device->index, m.device, sizeof(m.device));
    device->backend->libraries(m.libraries, sizeof(m.libraries));
    return m;
}

static bool is_same(const machine *a, const machine *b)
{
    return !strcmp(a->device, b->device) && !strcmp(a->libraries, b->libraries);
}

/* Prints the note as a line with a newline and a final 0. Returns the number of bytes before the 0; 0: out
 * of memory, or too long. */
static size_t print(const note *one, const machine *m, char text[TERN__CHOICE_LINE])
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "tern", tern_version());
    cJSON_AddStringToObject(line, "device", m->device);
    cJSON_AddStringToObject(line, "libraries", m->libraries);
    cJSON_AddStringToObject(line, "case", one->what);
    cJSON_AddStringToObject(line, "choice", one->choice);
    return tern__choice_line_print(line, text);
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

/* The reader of lines: where they go, and where they came from. */
typedef struct listener {
    struct tern__notes *notes;
    machine machine;
    bool told; /* by another rank, not by the file */
} listener;

static bool is_of(const cJSON *line, const machine *m)
{
    return says(line, "tern", tern_version()) && says(line, "device", m->device) &&
           says(line, "libraries", m->libraries);
}

static void take(void *ctx, const char *text, size_t bytes)
{
    const listener *l = ctx;
    if (bytes >= TERN__CHOICE_LINE) return;
    cJSON *line = cJSON_ParseWithLength(text, bytes);
    const char *what = text_of(line, "case"), *choice = text_of(line, "choice");
    if (what && choice && is_of(line, &l->machine)) {
        note *one = find(l->notes, what);
        if (l->told)
            hear(l->notes, what, choice);
        else if (!one || !one->serial)
            put(l->notes, what, choice, false);
    }
    cJSON_Delete(line);
}

static void read_file(tern_device *device)
{
    listener l = {device->notes, machine_of(device), false};
    device->notes->has_read_file = true;
    tern__choice_file_read(take, &l);
}

/* ---- for the back end ---- */

static const char *find_choice(tern_device *device, const char *what)
{
    struct tern__notes *notes = device->notes;
    if (!device->follows && !notes->has_read_file) read_file(device);
    note *one = find(notes, what);
    if (!one || (device->follows && !one->told)) return NULL;
    if (!one->serial && notes->is_full) return NULL;
    if (!one->serial) learn_itself(notes, one);
    return one->choice;
}

static void keep_choice(tern_device *device, const char *what, const char *choice)
{
    const machine m = machine_of(device);
    char line[TERN__CHOICE_LINE];
    note *one = put(device->notes, what, choice, false);
    if (!one) return;
    learn_itself(device->notes, one);
    tern__choice_file_append(line, print(one, &m, line));
}

int tern__notes_open(tern_device *device, tern_error *err)
{
    device->notes = tern__alloc(sizeof(*device->notes), __func__, err);
    if (!device->notes) return TERN_E_MEMORY;
    device->notes->find = find_choice;
    device->notes->keep = keep_choice;
    return TERN_OK;
}

static void free_bucket(note *one)
{
    for (note *next; one; one = next) {
        next = one->next;
        tern__free(one->choice);
        tern__free(one);
    }
}

void tern__notes_close(tern_device *device)
{
    if (!device->notes) return;
    for (size_t b = 0; b < TERN__COUNT(device->notes->buckets); b++) free_bucket(device->notes->buckets[b]);
    tern__free(device->notes);
    device->notes = NULL;
}

/* ---- for other ranks and devices ---- */

uint64_t tern__notes_serial(const tern_device *device)
{
    return device->notes->serial;
}

size_t tern__notes_write(const tern_device *device, char *text, size_t size)
{
    const machine m = machine_of(device);
    char line[TERN__CHOICE_LINE];
    size_t used = 0;
    for (const note *one = device->notes->learned; one; one = one->before) {
        size_t bytes = print(one, &m, line);
        if (used + bytes >= size) break;
        memcpy(text + used, line, bytes);
        used += bytes;
    }
    text[used] = '\0';
    return used;
}

void tern__notes_read(tern_device *device, const char *text, size_t bytes)
{
    listener l = {device->notes, machine_of(device), true};
    tern__choice_lines_take(text, bytes, take, &l);
}

/* Copies the oldest first, so that the newest comes first there as well. */
static void copy_before(const note *one, uint64_t since, tern_device *to)
{
    if (!one || one->serial <= since) return;
    copy_before(one->before, since, to);
    hear(to->notes, one->what, one->choice);
}

void tern__notes_copy(const tern_device *from, uint64_t since, tern_device *to)
{
    if (from->notes->serial <= since) return;
    const machine giver = machine_of(from), taker = machine_of(to);
    if (is_same(&giver, &taker)) copy_before(from->notes->learned, since, to);
}
