/* choice_file.h - the file in which choices outlive the process, a line each:
 * $XDG_CACHE_HOME/tern/conv.jsonl, else ~/.cache/tern/conv.jsonl, or what TERN_CONV_CACHE names ("off":
 * none). */
#ifndef TERN_SRC_DEVICE_CHOICE_FILE_H
#define TERN_SRC_DEVICE_CHOICE_FILE_H

#include "base/base.h"

#include <cjson/cJSON.h>

/* That a device learns, by clocks or from the file. A step of DenseNet-201 has at most 600. */
#define TERN__CHOICE_CASES 1024

#define TERN__CHOICE_LINE     2048              /* bytes; longer ones are none of ours */
#define TERN__CHOICE_FILE_MAX ((size_t)4 << 20) /* bytes; a larger file is put aside   */

/* Where it is, or false: there is none. */
bool tern__choices_path(char *path, size_t size);

/* Of a line, without the newline. */
typedef void tern__choice_taker(void *ctx, const char *line, size_t bytes);

/* The object as a line with its newline, and frees it. Its bytes; 0: too many, or the object is NULL. */
size_t tern__choice_line_print(cJSON *line, char text[TERN__CHOICE_LINE]);
/* Hands over the lines of a text. */
void tern__choice_lines_take(const char *text, size_t bytes, tern__choice_taker *take, void *ctx);
/* All lines of the file, the oldest first: of several of a case the last one counts. */
void tern__choice_file_read(tern__choice_taker *take, void *ctx);
/* `line` ends with a newline. */
void tern__choice_file_append(const char *line, size_t bytes);

#endif
