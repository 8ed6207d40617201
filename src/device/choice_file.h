/* choice_file.h - the file that keeps measured choices for later processes, one per line:
 * $XDG_CACHE_HOME/tern/conv.jsonl, else ~/.cache/tern/conv.jsonl, or the path in TERN_CONV_CACHE ("off":
 * none). */
#ifndef TERN_SRC_DEVICE_CHOICE_FILE_H
#define TERN_SRC_DEVICE_CHOICE_FILE_H

#include "base/base.h"

#include <cjson/cJSON.h>

/* The most cases that a device learns, measured or from the file. A step of DenseNet-201 has at most 600. */
#define TERN__CHOICE_CASES 1024

#define TERN__CHOICE_LINE     2048              /* bytes; longer lines are ignored */
#define TERN__CHOICE_FILE_MAX ((size_t)4 << 20) /* bytes; a larger file is renamed to *.old */

/* Writes the path of the file; false: there is none. */
bool tern__choices_path(char *path, size_t size);

/* Called with a line, without its newline. */
typedef void tern__choice_taker(void *ctx, const char *line, size_t bytes);

/* Prints the object as a line with its newline, and frees it. Returns the number of bytes; 0: too many, or
 * the object is NULL. */
size_t tern__choice_line_print(cJSON *line, char text[TERN__CHOICE_LINE]);
/* Calls `take` with each line of a text. */
void tern__choice_lines_take(const char *text, size_t bytes, tern__choice_taker *take, void *ctx);
/* Reads all lines of the file, oldest first: the last line of a case counts. */
void tern__choice_file_read(tern__choice_taker *take, void *ctx);
/* `line` ends with a newline. */
void tern__choice_file_append(const char *line, size_t bytes);

#endif
