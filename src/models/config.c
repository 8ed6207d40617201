/* config.c - a config.json and its fields. */
#include "models/config.h"
#include "base/file.h"
#include "base/text.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MOST (64 << 20)

char *tern__config_load(const char *path, size_t *bytes, const char *func, tern_error *err)
{
    struct stat about;
    char *text = NULL;
    int fd = tern__file_open(path, O_RDONLY, 0, &about, func, err);
    if (fd < 0) return NULL;
    if (about.st_size > CONFIG_MOST)
        tern__error_set(err, func, TERN_E_FORMAT, "%s has %lld bytes, expected at most %d", path,
                        (long long)about.st_size, CONFIG_MOST);
    else
        text = tern__alloc((size_t)about.st_size + 1, func, err);
    *bytes = (size_t)about.st_size;
    if (text && tern__file_read(fd, path, 0, text, *bytes, func, err)) {
        tern__free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

cJSON *tern__config_parse(const char *text, size_t bytes, const char *path, const char *func, tern_error *err)
{
    const char *end = text;
    cJSON *object =
        tern__utf8_check(text, bytes) < 0 ? cJSON_ParseWithLengthOpts(text, bytes + 1, &end, true) : NULL;
    if (!object)
        tern__error_set(err, func, TERN_E_FORMAT, "%s is not JSON (byte %lld)", path,
                        (long long)(end - text));
    else if (!cJSON_IsObject(object)) {
        tern__error_set(err, func, TERN_E_FORMAT, "%s is not a JSON object", path);
        cJSON_Delete(object);
        object = NULL;
    }
    return object;
}

cJSON *tern__config_read(const char *path, const char *func, tern_error *err)
{
    size_t bytes;
    char *text = tern__config_load(path, &bytes, func, err);
    cJSON *object = text ? tern__config_parse(text, bytes, path, func, err) : NULL;
    tern__free(text);
    return object;
}

int tern__config_write(const char *folder, const char *name, const cJSON *object, const char *func,
                       tern_error *err)
{
    tern__output out;
    char *text = cJSON_Print(object), *path = tern__path_join(folder, name, func, err);
    int status = text && path ? tern__output_open(&out, path, func, err) : TERN_E_MEMORY;
    if (!status) {
        status = tern__output_write(&out, text, strlen(text), err);
        if (!status) status = tern__output_write(&out, "\n", 1, err);
        status = tern__output_close(&out, status, true, err);
    }
    if (!text) tern__error_set(err, func, TERN_E_MEMORY, "no memory for %s", name);
    tern__free(path);
    cJSON_free(text);
    return status;
}

/* Returns the field, NULL if it is missing or null. */
static const cJSON *config_field(const tern__config *config, const char *name, bool needed)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(config->object, name);
    if (cJSON_IsNull(field)) field = NULL;
    if (!field && needed && !tern__is_set(config->err))
        tern__error_set(config->err, config->func, TERN_E_FORMAT, "%s: \"%s\" is missing", config->path,
                        name);
    return field;
}

static void config_fail(const tern__config *config, const char *name, const char *expected)
{
    if (!tern__is_set(config->err))
        tern__error_set(config->err, config->func, TERN_E_FORMAT, "%s: \"%s\" is not %s", config->path, name,
                        expected);
}

void tern__config_int(const tern__config *config, const char *name, bool needed, int64_t *to)
{
    const cJSON *field = config_field(config, name, needed);
    if (!field) return;
    double value = cJSON_IsNumber(field) ? field->valuedouble : NAN;
    if (value == floor(value) && fabs(value) <= 0x1p53)
        *to = (int64_t)value;
    else
        config_fail(config, name, "an integer");
}

void tern__config_count(const tern__config *config, const char *name, bool needed, int *to)
{
    int64_t value = *to;
    tern__config_int(config, name, needed, &value);
    if (value >= INT_MIN && value <= INT_MAX)
        *to = (int)value;
    else
        config_fail(config, name, "a number of layers");
}

void tern__config_real(const tern__config *config, const char *name, double *to)
{
    const cJSON *field = config_field(config, name, false);
    if (!field) return;
    if (cJSON_IsNumber(field))
        *to = field->valuedouble;
    else
        config_fail(config, name, "a number");
}

double *tern__config_reals(const tern__config *config, const char *name, int64_t count)
{
    const cJSON *field = config_field(config, name, true), *item;
    char expected[48];
    int64_t i = 0;
    snprintf(expected, sizeof(expected), "a list of %lld numbers", (long long)count);
    if (!field) return NULL;
    bool fits = cJSON_IsArray(field) && cJSON_GetArraySize(field) == count;
    cJSON_ArrayForEach(item, field) fits = fits && cJSON_IsNumber(item);
    if (!fits) config_fail(config, name, expected);
    double *values =
        fits ? tern__alloc((size_t)TERN__MAX(count, 1) * sizeof(*values), config->func, config->err) : NULL;
    if (values) cJSON_ArrayForEach(item, field) values[i++] = item->valuedouble;
    return values;
}

void tern__config_need(const tern__config *config, const char *name)
{
    config_field(config, name, true);
}

void tern__config_bool(const tern__config *config, const char *name, bool *to)
{
    const cJSON *field = config_field(config, name, false);
    if (!field) return;
    if (cJSON_IsBool(field))
        *to = cJSON_IsTrue(field);
    else
        config_fail(config, name, "true or false");
}

const char *tern__config_text(const tern__config *config, const char *name)
{
    const cJSON *field = config_field(config, name, false);
    if (field && !cJSON_IsString(field)) config_fail(config, name, "a string");
    return cJSON_GetStringValue(field);
}

void tern__config_refuse(const tern__config *config, const char *name, const char *value)
{
    if (!tern__is_set(config->err))
        tern__error_set(config->err, config->func, TERN_E_UNSUPPORTED,
                        "%s: \"%s\" is %s, which tern does not have", config->path, name, value);
}
