/* secret.c - reads the secret from a file or from the environment, without leaving copies in memory. */
#include "run/secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { digits = 2 * TERN__SECRET_BYTES };

/* Accepts exactly the digits, with optional white space after them. Erases `text`. */
static bool parse(char *text, uint8_t *key)
{
    size_t bytes = 0;
    const char *end = NULL;
    bool is_hex = sodium_hex2bin(key, TERN__SECRET_BYTES, text, strlen(text), NULL, &bytes, &end) == 0;
    bool all = is_hex && bytes == TERN__SECRET_BYTES && end[strspn(end, " \r\n")] == '\0';
    sodium_memzero(text, strlen(text));
    return all;
}

static int check_mode(int fd, const char *path, tern_error *err)
{
    struct stat at;
    if (fstat(fd, &at))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot check the mode of \"%s\"", path);
    if (!(at.st_mode & 077)) return TERN_OK;
    return tern__error_set(
        err, __func__, TERN_E_INVALID,
        "other users can access \"%s\" (mode %03o): a secret must be its owner's only (chmod 600)", path,
        at.st_mode & 0777);
}

int tern__secret_read(const char *path, uint8_t key[TERN__SECRET_BYTES], tern_error *err)
{
    char text[digits + 16] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot open \"%s\"", path);
    int status = check_mode(fd, path, err);
    if (!status && read(fd, text, sizeof(text) - 1) < 0)
        status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot read \"%s\"", path);
    close(fd);
    if (status || parse(text, key)) return status;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected %d hex digits in \"%s\"", digits, path);
}

int tern__secret_take(uint8_t key[TERN__SECRET_BYTES], bool *found, tern_error *err)
{
    char *text = getenv(TERN__ENV_SECRET);
    *found = text != NULL;
    if (!text) return TERN_OK;
    bool parsed = parse(text, key);
    unsetenv(TERN__ENV_SECRET);
    if (parsed) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_ENV,
                           TERN__ENV_SECRET " is not %d hex digits (its value is not shown)", digits);
}
