/* secret.c - reads the job's secret from text, and takes it out of the environment. No error shows it. */
#include "comm/bootstrap/bootstrap.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

bool tern__secret_parse(char *text, uint8_t key[TERN__SECRET_BYTES])
{
    size_t bytes = 0;
    const char *end = NULL;
    bool is_hex = sodium_hex2bin(key, TERN__SECRET_BYTES, text, strlen(text), NULL, &bytes, &end) == 0;
    bool all = is_hex && bytes == TERN__SECRET_BYTES && end[strspn(end, " \r\n")] == '\0';
    sodium_memzero(text, strlen(text));
    return all;
}

/* Parsing erases the value itself, too, since /proc/PID/environ shows it. */
int tern__secret_take(uint8_t key[TERN__SECRET_BYTES], bool *found, const char *func, tern_error *err)
{
    char *text = getenv(TERN__ENV_SECRET);
    *found = text != NULL;
    if (!text) return TERN_OK;
    bool parsed = tern__secret_parse(text, key);
    unsetenv(TERN__ENV_SECRET);
    if (parsed) return TERN_OK;
    return tern__error_set(err, func, TERN_E_ENV,
                           TERN__ENV_SECRET " is not %d hex digits (its value is not shown)",
                           2 * TERN__SECRET_BYTES);
}
