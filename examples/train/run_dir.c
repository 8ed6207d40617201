#include "run_dir.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static time_t changed(const char *path)
{
    struct stat info;
    return stat(path, &info) ? 0 : info.st_mtime;
}

/* That of this program in which something was saved last; "" if there is none. */
static void find_newest(const flags *f, char *dir, size_t size)
{
    char pattern[256];
    glob_t found = {0};
    time_t newest = 0;
    snprintf(pattern, sizeof(pattern), "runs/*_%s/latest", f->program);
    glob(pattern, 0, NULL, &found);
    snprintf(pattern, sizeof(pattern), "runs/*_%s_[0-9]*/latest", f->program);
    glob(pattern, GLOB_APPEND, NULL, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        time_t when = changed(found.gl_pathv[i]);
        if (when <= newest) continue;
        newest = when;
        snprintf(dir, size, "%.*s", (int)(strlen(found.gl_pathv[i]) - strlen("/latest")), found.gl_pathv[i]);
    }
    globfree(&found);
}

/* runs/Nov21_17-05-59_<host>_<program>, as TensorBoard's users know it; of this job alone: where several
 * begin in one second, the later ones have "_2" and so on behind it. */
static void make_by_date(const flags *f, char *dir, size_t size)
{
    char when[32], host[64] = "";
    time_t now = time(NULL);
    strftime(when, sizeof(when), "%b%d_%H-%M-%S", localtime(&now));
    gethostname(host, sizeof(host) - 1);
    mkdir("runs", 0777);
    size_t used = (size_t)snprintf(dir, size, "runs/%s_%s_%s", when, host, f->program);
    for (int number = 2; mkdir(dir, 0777) && errno == EEXIST; number++)
        snprintf(dir + used, size - used, "_%d", number);
}

void run_dir_choose(const flags *f, char *dir, size_t size)
{
    *dir = 0;
    if (f->log_dir)
        snprintf(dir, size, "%s", f->log_dir);
    else if (f->resume && !strcmp(f->resume, "latest"))
        find_newest(f, dir, size);
    if (!*dir) make_by_date(f, dir, size);
}
