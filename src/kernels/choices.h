/* choices.h - what a device has found out about its convolutions, for those who keep it or pass it on: a file
 * (TERN_CONV_CACHE), the other ranks of a job, other devices.
 *
 * A choice is a line of JSON: the machine, the case (kernel, threads, shapes, attributes, layouts, dtypes),
 * the nanoseconds of each algorithm, and the one that was chosen; of a device with memory of its own its back
 * end's names of the case and of what was chosen (device/notes.h). Who hears of a choice follows it where its
 * own rules allow (tern_device_conv_opts) and the algorithm takes the case; else the choice counts for
 * nothing.
 *
 * Threads: a device's choices are read and changed by who may run kernels on it. */
#ifndef TERN_SRC_KERNELS_CHOICES_H
#define TERN_SRC_KERNELS_CHOICES_H

#include "device/choice_file.h"
#include "device/device.h"

/* How often the device has learned something: unchanged, there is no news. */
uint64_t tern__choices_serial(const tern_device *device);
/* All that it has learned as lines, the newest first, as many as there is room for, and a 0; the number of
 * bytes before it. */
size_t tern__choices_write(const tern_device *device, char *text, size_t size);
/* Takes the choices of lines that another one wrote, or this one in another life: then only those of this
 * machine and build count. What is no such line is passed over. */
void tern__choices_read(tern_device *device, const char *text, size_t bytes);
void tern__choices_restore(tern_device *device, const char *text, size_t bytes);
/* The same between two devices, of what is newer than serial `since`. */
void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to);

/* All of these devices: those that a model is computed on. */
typedef struct tern__choosers {
    tern_device *device[16]; /* each once; more are left out */
    int count;
} tern__choosers;

/* NULL is no device. */
void tern__choosers_add(tern__choosers *list, tern_device *device);
uint64_t tern__choosers_serial(const tern__choosers *list);
size_t tern__choosers_write(const tern__choosers *list, char *text, size_t size);

/* The cases in the file that are of this machine and build. */
int tern__choices_count(void);

#endif
