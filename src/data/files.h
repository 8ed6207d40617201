/* files.h - lists the files below a folder, in an order that is the same on every machine. */
#ifndef TERN_SRC_DATA_FILES_H
#define TERN_SRC_DATA_FILES_H

#include "base/base.h"

typedef struct tern__file {
    char *path;
    size_t folder; /* length of the path before the slash of the name */
    int64_t label; /* for the caller's use                            */
} tern__file;

typedef struct tern__files {
    tern__file *file;
    int64_t count;
    size_t room;
} tern__files;

/* Appends the files below `folder` whose names are wanted, and follows links. Sorts by the folders' paths,
 * then by the names, byte by byte. Fails with E_MEMORY, or E_IO naming what cannot be read or a link that
 * leads back to a folder that contains it. */
int tern__files_walk(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err);
/* The same for the files in `folder` only, without its subfolders. */
int tern__files_list(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err);
/* The same for the folders in `folder`. */
int tern__folders_list(tern__files *files, const char *folder, const char *func, tern_error *err);
void tern__files_free(tern__files *files);

/* Ignores case. */
bool tern__ends_with(const char *name, const char *end);

#endif
