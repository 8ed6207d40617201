/* files.h - the files below a folder, in an order that is the same everywhere. */
#ifndef TERN_SRC_DATA_FILES_H
#define TERN_SRC_DATA_FILES_H

#include "base/base.h"

typedef struct tern__file {
    char *path;
    size_t folder; /* length of what stands before the name's slash */
    int64_t label; /* for whoever wants to note one                 */
} tern__file;

typedef struct tern__files {
    tern__file *file;
    int64_t count, room;
} tern__files;

/* Appends the files below `folder` whose names are wanted, links followed: folders in the order of their
 * paths' bytes, names in the order of theirs. E_IO naming what cannot be read, or a link that leads back to a
 * folder that it is in, E_MEMORY. */
int tern__files_walk(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err);
/* The same of the files in `folder` itself alone. */
int tern__files_list(tern__files *files, const char *folder, bool (*wanted)(const char *name),
                     const char *func, tern_error *err);
/* The same of the folders in it. */
int tern__folders_list(tern__files *files, const char *folder, const char *func, tern_error *err);
void tern__files_free(tern__files *files);

/* Case does not count. */
bool tern__ends_with(const char *name, const char *end);

#endif
