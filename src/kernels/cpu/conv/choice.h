/* choice.h - chooses the algorithm for a case of a convolution: the fastest that the device's rules allow
 * (tern_device_conv_opts), measured at the case's first use on this machine; or what another rank has
 * chosen, if the device follows one; or a fixed table's, if results must not depend on timing. */
#ifndef TERN_SRC_KERNELS_CPU_CHOICE_H
#define TERN_SRC_KERNELS_CPU_CHOICE_H

#include "device/choice_file.h"
#include "kernels/cpu/conv/conv.h"

/* The most algorithms; the table of them ends with NULL. */
#define TERN__CHOICE_ALGORITHMS 8
extern const tern__conv_algorithm *const tern__conv_algorithms[TERN__CHOICE_ALGORITHMS + 1];

#define TERN__CHOICE_FAILED INT64_MAX

/* The measurements of a case. Algorithms are indices into the table. */
typedef struct tern__choice {
    tern__prim_key key;
    int64_t ns[TERN__CHOICE_ALGORITHMS]; /* 0: not measured, TERN__CHOICE_FAILED: could not run */
    int chosen;
} tern__choice;

/* E_MEMORY with the call's error set; E_UNSUPPORTED without: no algorithm takes the case and pays. */
int tern__conv_choose(const tern__conv *c, const tern__conv_algorithm **chosen);

/* The functions of kernels/choices.h for the CPU's algorithms. */
uint64_t tern__conv_choices_serial(const tern_device *device);
size_t tern__conv_choices_write(const tern_device *device, char *text, size_t size);
/* tern__choices_read, or tern__choices_restore if lines from `anywhere` do not count. */
void tern__conv_choices_read(tern_device *device, bool anywhere, const char *text, size_t bytes);
void tern__conv_choices_copy(const tern_device *from, uint64_t since, tern_device *to);

/* ---- choice_line.c: a choice as a line of JSON ---- */

/* The machine and build that a measurement is valid for. */
typedef struct tern__choice_machine {
    char cpu[128], kernels[96];
} tern__choice_machine;

tern__choice_machine tern__choice_machine_get(void);
/* Prints a line with a newline and a final 0. Returns the number of bytes before the 0; 0: out of memory. */
size_t tern__choice_print(const tern__choice *choice, const tern__choice_machine *machine,
                          char line[TERN__CHOICE_LINE]);
/* Returns false for an invalid line, or one from another machine than this (NULL: any) or another version
 * of tern. */
bool tern__choice_parse(const char *line, size_t bytes, const tern__choice_machine *machine,
                        tern__choice *choice);

#endif
