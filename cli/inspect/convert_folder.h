/* convert_folder.h - what `tern convert` makes of a folder of Hugging Face: a file of GGUF, or a folder. */
#ifndef TERN_CLI_INSPECT_CONVERT_FOLDER_H
#define TERN_CLI_INSPECT_CONVERT_FOLDER_H

#include "cli.h"

typedef struct tern__folder_conversion {
    const char *in, *out;
    const char *adapter; /* a folder with PEFT's files; NULL: none */
    const char *dtype;   /* NULL: the default                      */
} tern__folder_conversion;

bool tern__convert_to_gguf(const char *out);
/* Returns TERN__EXIT_USAGE after a message if the dtype is none of OUT's, or IN is no folder. */
int tern__convert_folder_check(const tern__folder_conversion *conversion);
int tern__convert_folder(const tern__folder_conversion *conversion, tern_error *err);

#endif
