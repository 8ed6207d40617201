/* token_file.h - the headers of files of tokens. */
#ifndef TERN_SRC_DATA_TOKEN_FILE_H
#define TERN_SRC_DATA_TOKEN_FILE_H

#include "base/base.h"

#include <string.h>

enum {
    TERN__TOKEN_HEADER = 1024, /* bytes of llm.c's, 256 int32          */
    TERN__TOKEN_NPY = 128,     /* bytes of an .npy header that is written */
    TERN__TOKEN_U16 = 20240520,
    TERN__TOKEN_U32 = 20240801 /* llm.c's magic numbers */
};

static inline bool tern__token_path_is_npy(const char *path)
{
    size_t bytes = strlen(path);
    return bytes >= 4 && !strcmp(path + bytes - 4, ".npy");
}

#endif
