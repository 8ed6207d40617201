/* choice_line.c - writes a choice as a line of JSON and parses it. */
#include "kernels/cpu/conv/choice.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The numbers of tern__conv_key by name; those not listed have their own names below. */
typedef struct field {
    const char *name;
    int first, least, most; /* how many numbers there are */
    int64_t low;
} field;

enum { X_SHAPE = 0, W_SHAPE = 5, X_LAYOUT = 20, HAS_BIAS = 22, DTYPES = 24 };

static const field fields[] = {
    {"x", X_SHAPE, 4, 5, 1},        {"weight", W_SHAPE, 4, 5, 1},    {"stride", 10, 3, 3, 1},
    {"padding", 13, 3, 3, 0},       {"dilation", 16, 3, 3, 1},       {"groups", 19, 1, 1, 1},
    {"weight_offset", 28, 1, 1, 0}, {"weight_strides", 29, 3, 3, 0},
};

static const char *const layouts[] = {[TERN__PLAIN] = "plain", [TERN__BLOCKED16] = "blocked16"};
static const char *const operands[] = {
    [TERN__CONV_X] = "x", [TERN__CONV_W] = "weight", [TERN__CONV_Y] = "y", [TERN__CONV_B] = "bias"};

tern__choice_machine tern__choice_machine_get(void)
{
    tern__choice_machine machine;
    if (!tern__device_cpu_name(machine.cpu, sizeof(machine.cpu)))
        snprintf(machine.cpu, sizeof(machine.cpu), "unknown");
    tern__kernel_choices(machine.kernels, sizeof(machine.kernels));
    return machine;
}

/* ---- writing ---- */

static cJSON *numbers(const int64_t *from, int count)
{
    double values[5];
    for (int i = 0; i < count; i++) values[i] = (double)from[i];
    return cJSON_CreateDoubleArray(values, count);
}

static void add_case(cJSON *line, const tern__prim_key *key)
{
    const int64_t *number = key->number;
    cJSON_AddStringToObject(line, "kernel", tern__kernel_name((tern__kernel)key->kernel));
    cJSON_AddNumberToObject(line, "threads", key->threads);
    for (size_t i = 0; i < TERN__COUNT(fields); i++) {
        const field *f = &fields[i];
        int count = f->least < f->most && !number[f->first + 4] ? f->least : f->most;
        cJSON_AddItemToObject(line, f->name, numbers(number + f->first, count));
    }
    cJSON_AddStringToObject(line, "x_layout", layouts[number[X_LAYOUT]]);
    cJSON_AddStringToObject(line, "y_layout", layouts[number[X_LAYOUT + 1]]);
    cJSON *dtypes = cJSON_AddObjectToObject(line, "dtypes");
    for (int i = 0; i < TERN__CONV_OPERANDS; i++)
        if (i != TERN__CONV_B || number[HAS_BIAS])
            cJSON_AddStringToObject(dtypes, operands[i], tern_dtype_name((tern_dtype)number[DTYPES + i]));
}

static void add_times(cJSON *line, const tern__choice *choice)
{
    cJSON *ns = cJSON_AddObjectToObject(line, "ns");
    for (int i = 0; tern__conv_algorithms[i]; i++) {
        const char *name = tern__conv_algorithms[i]->name;
        if (choice->ns[i] == TERN__CHOICE_FAILED)
            cJSON_AddNullToObject(ns, name);
        else if (choice->ns[i])
            cJSON_AddNumberToObject(ns, name, (double)choice->ns[i]);
    }
    cJSON_AddStringToObject(line, "choice", tern__conv_algorithms[choice->chosen]->name);
}

size_t tern__choice_print(const tern__choice *choice, const tern__choice_machine *machine,
                          char text[TERN__CHOICE_LINE])
{
    cJSON *line = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "tern", tern_version());
    cJSON_AddStringToObject(line, "cpu", machine->cpu);
    cJSON_AddStringToObject(line, "kernels", machine->kernels);
    add_case(line, &choice->key);
    add_times(line, choice);
    return tern__choice_line_print(line, text);
}

/* ---- reading ---- */

/* Reads an integer in [low, 2^53]. */
static bool read_whole(const cJSON *item, int64_t low, int64_t *out)
{
    if (!cJSON_IsNumber(item)) return false;
    double value = item->valuedouble;
    if (!(value >= (double)low && value <= 0x1p53) || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

static bool read_field(const cJSON *line, const field *f, int64_t *number)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(line, f->name);
    int count = cJSON_GetArraySize(list);
    bool fine = cJSON_IsArray(list) && count >= f->least && count <= f->most;
    for (int i = 0; i < count && fine; i++)
        fine = read_whole(cJSON_GetArrayItem(list, i), f->low, &number[f->first + i]);
    return fine;
}

/* Whether the object's member `name` is that text. */
static bool says(const cJSON *object, const char *name, const char *text)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return value && !strcmp(value, text);
}

static bool read_layout(const cJSON *line, const char *name, int64_t *out)
{
    for (size_t i = 0; i < TERN__COUNT(layouts); i++)
        if (says(line, name, layouts[i])) {
            *out = (int64_t)i;
            return true;
        }
    return false;
}

static bool read_dtypes(const cJSON *line, int64_t *number)
{
    const cJSON *dtypes = cJSON_GetObjectItemCaseSensitive(line, "dtypes");
    number[HAS_BIAS] = cJSON_HasObjectItem(dtypes, operands[TERN__CONV_B]);
    for (int i = 0; i < TERN__CONV_OPERANDS; i++) {
        int dtype = 0;
        if (i == TERN__CONV_B && !number[HAS_BIAS]) continue;
        while (dtype < TERN_DTYPE_COUNT && !says(dtypes, operands[i], tern_dtype_name((tern_dtype)dtype)))
            dtype++;
        if (dtype == TERN_DTYPE_COUNT) return false;
        number[DTYPES + i] = dtype;
    }
    return true;
}

static bool read_case(const cJSON *line, tern__prim_key *key)
{
    int64_t threads;
    key->kernel = TERN__CONV;
    while (key->kernel <= TERN__CONV_WEIGHT_GRAD &&
           !says(line, "kernel", tern__kernel_name((tern__kernel)key->kernel)))
        key->kernel++;
    bool fine = key->kernel <= TERN__CONV_WEIGHT_GRAD &&
                read_whole(cJSON_GetObjectItemCaseSensitive(line, "threads"), 1, &threads) &&
                threads <= INT32_MAX;
    for (size_t i = 0; i < TERN__COUNT(fields) && fine; i++) fine = read_field(line, &fields[i], key->number);
    fine = fine && read_layout(line, "x_layout", &key->number[X_LAYOUT]) &&
           read_layout(line, "y_layout", &key->number[X_LAYOUT + 1]) && read_dtypes(line, key->number);
    if (fine) key->threads = (int32_t)threads;
    return fine;
}

/* Unknown algorithms are ignored, unless one was chosen. */
static bool read_times(const cJSON *line, tern__choice *choice)
{
    const cJSON *ns = cJSON_GetObjectItemCaseSensitive(line, "ns");
    choice->chosen = -1;
    for (int i = 0; tern__conv_algorithms[i]; i++) {
        const char *name = tern__conv_algorithms[i]->name;
        const cJSON *time = cJSON_GetObjectItemCaseSensitive(ns, name);
        if (cJSON_IsNull(time)) choice->ns[i] = TERN__CHOICE_FAILED;
        if (time && !cJSON_IsNull(time) && !read_whole(time, 1, &choice->ns[i])) return false;
        if (says(line, "choice", name)) choice->chosen = i;
    }
    return choice->chosen >= 0;
}

static bool is_of(const cJSON *line, const tern__choice_machine *machine)
{
    if (!says(line, "tern", tern_version())) return false;
    return !machine || (says(line, "cpu", machine->cpu) && says(line, "kernels", machine->kernels));
}

bool tern__choice_parse(const char *text, size_t bytes, const tern__choice_machine *machine,
                        tern__choice *choice)
{
    if (bytes >= TERN__CHOICE_LINE) return false;
    cJSON *line = cJSON_ParseWithLength(text, bytes);
    *choice = (tern__choice){0};
    bool fine = cJSON_IsObject(line) && is_of(line, machine) && read_case(line, &choice->key) &&
                read_times(line, choice);
    cJSON_Delete(line);
    return fine;
}
