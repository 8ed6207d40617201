/* config.h - reads the fields of a config.json of transformers, and writes one. The first error stays, and
 * reading goes on. */
#ifndef TERN_SRC_MODELS_CONFIG_H
#define TERN_SRC_MODELS_CONFIG_H

#include "base/base.h"

#include <cjson/cJSON.h>

typedef struct tern__config {
    const cJSON *object;
    const char *path, *func; /* for errors */
    tern_error *err;
} tern__config;

/* Returns the text of a file of up to 64 MiB with a 0 at its end; the caller frees it (tern__free). NULL:
 * E_IO, E_FORMAT: it is longer. */
char *tern__config_load(const char *path, size_t *bytes, const char *func, tern_error *err);
/* Reads a text, which has a 0 at its end, as a JSON object; the caller frees it (cJSON_Delete). NULL:
 * E_FORMAT. */
cJSON *tern__config_parse(const char *text, size_t bytes, const char *path, const char *func,
                          tern_error *err);
/* Both together. */
cJSON *tern__config_read(const char *path, const char *func, tern_error *err);

/* Read a field into *to. One that is missing or null leaves *to as it is, or is E_FORMAT if `needed`. A field
 * of another kind is E_FORMAT. */
void tern__config_int(const tern__config *config, const char *name, bool needed, int64_t *to);
void tern__config_count(const tern__config *config, const char *name, bool needed, int *to);
void tern__config_real(const tern__config *config, const char *name, double *to);
void tern__config_bool(const tern__config *config, const char *name, bool *to);
/* Returns the numbers of a list of `count`, for the caller to free. NULL: there is no such list, E_FORMAT. */
double *tern__config_reals(const tern__config *config, const char *name, int64_t count);
/* E_FORMAT if the field is missing or null. */
void tern__config_need(const tern__config *config, const char *name);
/* Returns the text of a field, or NULL. */
const char *tern__config_text(const tern__config *config, const char *name);
/* Writes an object into a folder's file. E_IO, E_MEMORY. */
int tern__config_write(const char *folder, const char *name, const cJSON *object, const char *func,
                       tern_error *err);
/* Fails with E_UNSUPPORTED: a field has a value that tern does not have. */
void tern__config_refuse(const tern__config *config, const char *name, const char *value);

#endif
