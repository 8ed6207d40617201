/* run_dir.c - finds the folder of a run. */
#include "run_dir.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static time_t changed(const char *path)
{
    struct stat info;
    return stat(path, &info) ? 0 : info.st_mtime;
}

/* Finds the folder of this program with the newest checkpoint; leaves `dir` unchanged if there is none. */
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

void run_dir_find(const flags *f, char *dir, size_t size)
{
    *dir = 0;
    if (f->log_dir)
        snprintf(dir, size, "%s", f->log_dir);
    else if (f->resume && !strcmp(f->resume, "latest"))
        find_newest(f, dir, size);
}
