/* files.c - walks folders and sorts the paths of the files in them. */
#include "data/files.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

bool tern__ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcasecmp(name + length - tail, end);
}

static int files_append(tern__files *files, char *path, const char *func, tern_error *err)
{
    if (tern__array_reserve(&files->file, &files->room, files->count + 1, sizeof(tern__file), func, err))
        return TERN_E_MEMORY;
    files->file[files->count++] = (tern__file){.path = path, .folder = (size_t)(strrchr(path, '/') - path)};
    return TERN_OK;
}

typedef struct walk {
    tern__files *files;
    bool (*wanted)(const char *name); /* NULL: list folders, not files */
    bool deep;                        /* subfolders, too */
    const char *func;
    tern_error *err;
    const struct walk *above; /* the walk of the parent folder */
    dev_t device;
    ino_t inode;
} walk;

static int walk_folder(const walk *w, const char *folder);

/* A dangling link counts as a file: opening it reports the error. Sets *kept if the list took the path. */
static int visit(const walk *w, char *path, const char *name, bool *kept)
{
    struct stat about;
    bool is_there = !stat(path, &about);
    if (!is_there && errno != ENOENT && errno != ELOOP)
        return tern__error_errno(w->err, w->func, TERN_E_IO, "cannot read %s", path);
    bool is_folder = is_there && S_ISDIR(about.st_mode);
    if (is_folder && w->wanted) return w->deep ? walk_folder(w, path) : TERN_OK;
    *kept = w->wanted ? w->wanted(name) : is_folder;
    return *kept ? files_append(w->files, path, w->func, w->err) : TERN_OK;
}

static int visit_name(const walk *w, const char *folder, const char *name)
{
    bool kept = false;
    if (!strcmp(name, ".") || !strcmp(name, "..")) return TERN_OK;
    char *path = tern__path_join(folder, name, w->func, w->err);
    if (!path) return TERN_E_MEMORY;
    int status = visit(w, path, name, &kept);
    if (!kept || status) tern__free(path);
    return status;
}

/* Links are followed, so a link to a parent folder would never end. */
static int check_way(const walk *w, const char *folder)
{
    for (const walk *above = w->above; above; above = above->above)
        if (above->inode == w->inode && above->device == w->device)
            return tern__error_set(w->err, w->func, TERN_E_IO,
                                   "%s is a link to a folder that contains it: remove the link", folder);
    return TERN_OK;
}

static int files_cannot_read(const walk *w, const char *folder)
{
    return tern__error_errno(w->err, w->func, TERN_E_IO, "cannot read the folder %s", folder);
}

static int visit_all(const walk *w, DIR *dir, const char *folder)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) return errno ? files_cannot_read(w, folder) : TERN_OK;
        int status = visit_name(w, folder, entry->d_name);
        if (status) return status;
    }
}

static int walk_opened(const walk *above, DIR *dir, const char *folder)
{
    struct stat about;
    walk w = *above;
    if (fstat(dirfd(dir), &about)) return files_cannot_read(above, folder);
    w.above = above;
    w.device = about.st_dev;
    w.inode = about.st_ino;
    int status = check_way(&w, folder);
    return status ? status : visit_all(&w, dir, folder);
}

static int walk_folder(const walk *w, const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) return files_cannot_read(w, folder);
    int status = walk_opened(w, dir, folder);
    closedir(dir);
    return status;
}

/* Compares the folders' paths, then the names, byte by byte. */
static int files_compare(const void *a, const void *b)
{
    const tern__file *x = a, *y = b;
    int order = memcmp(x->path, y->path, TERN__MIN(x->folder, y->folder));
    if (!order) order = (x->folder > y->folder) - (x->folder < y->folder);
    return order ? order : strcmp(x->path + x->folder, y->path + y->folder);
}

static int walk_sorted(const walk *w, const char *folder)
{
    tern__files *files = w->files;
    int64_t from = files->count;
    int status = walk_folder(w, folder);
    if (files->count > from)
        qsort(files->file + from, (size_t)(files->count - from), sizeof(tern__file), files_compare);
    return status;
}

int tern__files_walk(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err)
{
    return walk_sorted(&(walk){files, wanted, .deep = true, .func = func, .err = err}, folder);
}

int tern__files_list(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err)
{
    return walk_sorted(&(walk){files, wanted, .func = func, .err = err}, folder);
}

int tern__folders_list(tern__files *files, const char *folder, const char *func, tern_error *err)
{
    return walk_sorted(&(walk){files, .func = func, .err = err}, folder);
}

void tern__files_free(tern__files *files)
{
    for (int64_t i = 0; i < files->count; i++) tern__free(files->file[i].path);
    tern__free(files->file);
    *files = (tern__files){0};
}
