/* secret.c - reads the secret from a file, without leaving copies in memory. */
#include "run/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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
    char text[2 * TERN__SECRET_BYTES + 16] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot open \"%s\"", path);
    int status = check_mode(fd, path, err);
    if (!status && read(fd, text, sizeof(text) - 1) < 0)
        status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot read \"%s\"", path);
    close(fd);
    if (status || tern__secret_parse(text, key)) return status;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected %d hex digits in \"%s\"",
                           2 * TERN__SECRET_BYTES, path);
}
