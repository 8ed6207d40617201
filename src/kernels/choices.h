/* choices.h - the algorithms that a device has chosen by measuring, for a file (TERN_CONV_CACHE), the
 * other ranks of a job, and other devices.
 *
 * A choice is a line of JSON: the machine, the case (kernel, threads, shapes, attributes, layouts,
 * dtypes), the nanoseconds of each algorithm, and the algorithm chosen. A device with memory of its own
 * has its back end's names of the case and of the choice instead (device/notes.h). A device follows
 * another's choice if its own rules allow it (tern_device_conv_opts) and the algorithm takes the case;
 * otherwise the choice has no effect.
 *
 * Threads: only the thread that may run kernels on a device reads or changes its choices. */
#ifndef TERN_SRC_KERNELS_CHOICES_H
#define TERN_SRC_KERNELS_CHOICES_H

#include "device/choice_file.h"
#include "device/device.h"

/* A counter of what the device has learned; while unchanged, there is no news. */
uint64_t tern__choices_serial(const tern_device *device);
/* Writes what the device has learned as lines, newest first, as many as fit, and a final 0. Returns the
 * number of bytes before the 0. */
size_t tern__choices_write(const tern_device *device, char *text, size_t size);
/* Takes choices from lines that another device wrote (read), or this program in an earlier run (restore):
 * then only those of this machine and build. Other lines are ignored. */
void tern__choices_read(tern_device *device, const char *text, size_t bytes);
void tern__choices_restore(tern_device *device, const char *text, size_t bytes);
/* Copies what `from` has learned since serial `since`. */
void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to);

/* Devices as one: those that a model is computed on. */
typedef struct tern__choosers {
    tern_device *device[16]; /* each once; further ones are ignored */
    int count;
} tern__choosers;

/* Adds a device unless it is NULL. */
void tern__choosers_add(tern__choosers *list, tern_device *device);
uint64_t tern__choosers_serial(const tern__choosers *list);
size_t tern__choosers_write(const tern__choosers *list, char *text, size_t size);

/* The number of cases in the file for this machine and build. */
int tern__choices_count(void);

#endif
