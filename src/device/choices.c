/* choices.c - a device's measured choices, by case: in memory, in the user's file, and as lines for others.
 */
#include "device/choices.h"
#include "base/hash.h"
#include "device/choice_file.h"

#include <stdatomic.h>
#include <string.h>

typedef struct tern__choice {
    struct tern__choice *next, *before; /* next in the bucket; next older among the learned */
    uint64_t serial; /* number when it was learned; 0: only read from the file, not used yet */
    bool told;       /* by another rank or device, not by the file or by measuring */
    char *name;      /* of what was chosen */
    char what[];
} choice;

/* ---- the table ---- */

static choice **choices_bucket_of(struct tern__choices *choices, const char *what)
{
    return &choices->buckets[tern__fnv(TERN__FNV, what, strlen(what)) % TERN__COUNT(choices->buckets)];
}

static choice *choices_find(struct tern__choices *choices, const char *what)
{
    choice *one = *choices_bucket_of(choices, what);
    while (one && strcmp(one->what, what) != 0) one = one->next;
    return one;
}

static choice *choices_add(struct tern__choices *choices, const char *what)
{
    size_t bytes = strlen(what) + 1;
    choice **bucket = choices_bucket_of(choices, what),
           *one = tern__alloc(sizeof(*one) + bytes, __func__, NULL);
    if (!one) return NULL;
    memcpy(one->what, what, bytes);
    one->next = *bucket;
    return *bucket = one;
}

static void choices_take_out(struct tern__choices *choices, const choice *one)
{
    choice **at = &choices->learned;
    while (*at != one) at = &(*at)->before;
    *at = one->before;
}

static void choices_learn(struct tern__choices *choices, choice *one)
{
    if (one->serial)
        choices_take_out(choices, one);
    else
        choices->learned_count++;
    one->before = choices->learned;
    choices->learned = one;
    one->serial = ++choices->serial;
    choices->is_full = choices->learned_count >= TERN__CHOICE_CASES;
}

/* Learns a choice that this device measured or found in the file. */
static void learn_itself(struct tern__choices *choices, choice *one)
{
    bool was_full = choices->is_full;
    choices_learn(choices, one);
    if (choices->is_full && !was_full)
        tern__log(TERN_LOG_INFO,
                  "%d cases of convolutions and products are known: further ones are not measured "
                  "(docs/conv.md)",
                  TERN__CHOICE_CASES);
}

static choice *choices_put(struct tern__choices *choices, const char *what, const char *name)
{
    choice *one = choices_find(choices, what);
    if (!one) one = choices_add(choices, what);
    char *copy = one ? tern__strdup(name, __func__, NULL) : NULL;
    if (!copy) return NULL;
    tern__free(one->name);
    one->name = copy;
    one->told = false;
    return one;
}

/* Takes the choice of another rank or device. What this device has learned itself is only confirmed. */
static void choices_hear(struct tern__choices *choices, const char *what, const char *name)
{
    choice *one = choices_find(choices, what);
    bool is_same = one && one->name && !strcmp(one->name, name);
    if (is_same && one->told) return;
    if (!is_same) one = choices_put(choices, what, name);
    if (!one) return;
    one->told = true;
    choices->heard++;
    if (!is_same || !one->serial) choices_learn(choices, one);
}

/* ---- the file, and lines of others ---- */

/* Takes a line of the file. What was told, or used already, stays. */
static void take_kept(void *ctx, const char *what, const char *name)
{
    struct tern__choices *choices = ctx;
    const choice *one = choices_find(choices, what);
    if (!one || !one->serial) choices_put(choices, what, name);
}

static void take_told(void *ctx, const char *what, const char *name)
{
    choices_hear(ctx, what, name);
}

static const char *find_choice(tern_device *device, const char *what)
{
    struct tern__choices *choices = device->choices;
    if (!device->follows && !choices->has_read_file) {
        const tern__choice_machine machine = tern__choice_machine_of(device);
        choices->has_read_file = true;
        tern__choice_file_read(&machine, take_kept, choices);
    }
    choice *one = choices_find(choices, what);
    if (!one || !one->name || (device->follows && !one->told)) return NULL;
    if (!one->serial && choices->is_full) return NULL;
    if (!one->serial) learn_itself(choices, one);
    return one->name;
}

static void keep_choice(tern_device *device, const char *what, const char *name)
{
    const tern__choice_machine machine = tern__choice_machine_of(device);
    choice *one = choices_put(device->choices, what, name);
    if (!one) return;
    learn_itself(device->choices, one);
    tern__choice_file_append(&machine, what, name);
}

static atomic_int pauses;

void tern__choices_pause(void)
{
    atomic_fetch_add(&pauses, 1);
}

void tern__choices_resume(void)
{
    atomic_fetch_sub(&pauses, 1);
}

static bool may_measure(const tern_device *device)
{
    return !device->follows && !device->choices->is_full && !atomic_load(&pauses);
}

/* ---- life ---- */

int tern__choices_open(tern_device *device, tern_error *err)
{
    device->choices = tern__alloc(sizeof(*device->choices), __func__, err);
    if (!device->choices) return TERN_E_MEMORY;
    device->choices->find = find_choice;
    device->choices->keep = keep_choice;
    device->choices->may_measure = may_measure;
    return TERN_OK;
}

static void free_bucket(choice *one)
{
    for (choice *next; one; one = next) {
        next = one->next;
        tern__free(one->name);
        tern__free(one);
    }
}

void tern__choices_close(tern_device *device)
{
    if (!device->choices) return;
    for (size_t b = 0; b < TERN__COUNT(device->choices->buckets); b++)
        free_bucket(device->choices->buckets[b]);
    tern__free(device->choices);
    device->choices = NULL;
}

/* ---- for other ranks and devices ---- */

uint64_t tern__choices_serial(const tern_device *device)
{
    return device->choices->serial;
}

size_t tern__choices_write(const tern_device *device, char *text, size_t size)
{
    const tern__choice_machine machine = tern__choice_machine_of(device);
    char line[TERN__CHOICE_LINE];
    size_t used = 0;
    for (const choice *one = device->choices->learned; one; one = one->before) {
        size_t bytes = tern__choice_print(&machine, one->what, one->name, line);
        if (used + bytes >= size) break;
        memcpy(text + used, line, bytes);
        used += bytes;
    }
    text[used] = '\0';
    return used;
}

/* The CPU's algorithms are tern's own, so ranks on any processor can follow each other. */
void tern__choices_read(tern_device *device, const char *text, size_t bytes)
{
    tern__choice_machine machine = tern__choice_machine_of(device);
    machine.is_any_device = !device->backend;
    tern__choice_lines_take(&machine, text, bytes, take_told, device->choices);
}

void tern__choices_restore(tern_device *device, const char *text, size_t bytes)
{
    const tern__choice_machine machine = tern__choice_machine_of(device);
    tern__choice_lines_take(&machine, text, bytes, take_told, device->choices);
}

/* Copies the oldest first, so that the newest comes first there as well. */
static void copy_before(const choice *one, uint64_t since, tern_device *to)
{
    if (!one || one->serial <= since) return;
    copy_before(one->before, since, to);
    choices_hear(to->choices, one->what, one->name);
}

void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to)
{
    if (from == to || from->choices->serial <= since) return;
    const tern__choice_machine giver = tern__choice_machine_of(from), taker = tern__choice_machine_of(to);
    if (tern__choice_machine_is_same(&giver, &taker)) copy_before(from->choices->learned, since, to);
}

int tern__choices_count(void)
{
    tern_device processor = {0};
    const tern__choice_machine machine = tern__choice_machine_of(&processor);
    if (tern__choices_open(&processor, NULL)) return 0;
    tern__choice_file_read(&machine, take_told, processor.choices);
    int count = processor.choices->learned_count;
    tern__choices_close(&processor);
    return count;
}

/* ---- devices as one ---- */

void tern__choosers_add(tern__choosers *list, tern_device *device)
{
    for (int i = 0; i < list->count; i++)
        if (list->device[i] == device) return;
    if (device && list->count < (int)TERN__COUNT(list->device)) list->device[list->count++] = device;
}

uint64_t tern__choosers_serial(const tern__choosers *list)
{
    uint64_t sum = 0;
    for (int i = 0; i < list->count; i++) sum += tern__choices_serial(list->device[i]);
    return sum;
}

size_t tern__choosers_write(const tern__choosers *list, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < list->count; i++)
        used += tern__choices_write(list->device[i], text + used, size - used);
    return used;
}
