/* choice_file.h - the file that keeps measured choices for later processes, one per line:
 * $XDG_CACHE_HOME/tern/conv.jsonl, else ~/.cache/tern/conv.jsonl, or the path in TERN_CONV_CACHE ("off":
 * none). Other ranks are sent the same lines. A line is an object of JSON: the version of tern, the device
 * and its libraries, the case, and the choice. */
#ifndef TERN_SRC_DEVICE_CHOICE_FILE_H
#define TERN_SRC_DEVICE_CHOICE_FILE_H

#include "device/device.h"

#define TERN__CHOICE_LINE     2048              /* bytes; longer lines are ignored */
#define TERN__CHOICE_FILE_MAX ((size_t)4 << 20) /* bytes; a larger file is renamed to *.old */

/* Writes the path of the file; false: there is none. */
bool tern__choices_path(char *path, size_t size);

/* What a choice is valid for. The processor has no libraries of a back end: its cases name what they depend
 * on (kernels/cpu/conv/choice.c). */
typedef struct tern__choice_machine {
    char device[128], libraries[128];
    bool is_any_device; /* lines of devices with other names count as well */
} tern__choice_machine;

tern__choice_machine tern__choice_machine_of(const tern_device *device);
bool tern__choice_machine_is_same(const tern__choice_machine *a, const tern__choice_machine *b);

/* Prints a line with its newline and a final 0. Returns the number of bytes before the 0; 0: out of memory,
 * or too long. */
size_t tern__choice_print(const tern__choice_machine *machine, const char *what, const char *name,
                          char text[TERN__CHOICE_LINE]);

/* Called with the case and the choice of each line that is valid for the machine. */
typedef void tern__choice_taker(void *ctx, const char *what, const char *name);
void tern__choice_lines_take(const tern__choice_machine *machine, const char *text, size_t bytes,
                             tern__choice_taker *take, void *ctx);
/* Reads the file, oldest line first: the last line of a case counts. */
void tern__choice_file_read(const tern__choice_machine *machine, tern__choice_taker *take, void *ctx);
void tern__choice_file_append(const tern__choice_machine *machine, const char *what, const char *name);

#endif
