/* hanging_open.c - preloaded into a training program: from the n-th image on, opening a .jpg hangs, as on a
 * file server that does not answer. HANGS_RANK names the rank and HANGS_AFTER is n; the file HANGS_MARK is
 * made when it hangs. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void hang_if_due(const char *path)
{
    static atomic_int opened;
    const char *rank = getenv("RANK"), *chosen = getenv("HANGS_RANK"), *after = getenv("HANGS_AFTER");
    size_t length = strlen(path);
    if (!chosen || !after || strcmp(rank ? rank : "0", chosen)) return;
    if (length < 4 || strcmp(path + length - 4, ".jpg") || atomic_fetch_add(&opened, 1) < atoi(after)) return;
    mkdir(getenv("HANGS_MARK"), 0700);
    for (;;) pause();
}

static int open_next(const char *name, const char *path, int flags, mode_t mode)
{
    int (*next)(const char *, int, ...);
    *(void **)&next = dlsym(RTLD_NEXT, name);
    hang_if_due(path);
    return next(path, flags, mode);
}

#define OPEN(name)                                                                                           \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...);                       \
    int name(const char *path, int flags, ...)                                                               \
    {                                                                                                        \
        va_list list;                                                                                        \
        va_start(list, flags);                                                                               \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;                              \
        va_end(list);                                                                                        \
        return open_next(#name, path, flags, mode);                                                          \
    }
OPEN(open)
OPEN(open64)
