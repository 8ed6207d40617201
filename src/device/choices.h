/* choices.h - the algorithms that a device has chosen by measuring, so that not every process and every rank
 * measures them again: a map from a case to the name of the choice. The kernels that choose define both
 * strings (kernels/cpu/conv/choice.c, cuda/cudnn/conv_plan.cc, cuda/cublas/).
 *
 * The device that measures a case keeps the choice. It goes to the user's file (device/choice_file.h), to the
 * other ranks of a job, and to other devices. A choice from another rank or device takes precedence over the
 * file's. The file's choices only count on a device that may measure itself, since another rank may not have
 * the file. A choice is a hint: kernels follow it only if they have that algorithm and the device's rules
 * (tern_device_conv_opts) allow it. A device learns at most TERN__CHOICE_CASES cases, by measuring or from
 * the file; for further cases it only uses the choices of others.
 *
 * Threads: only the thread that may run kernels on a device reads or changes its choices. */
#ifndef TERN_SRC_DEVICE_CHOICES_H
#define TERN_SRC_DEVICE_CHOICES_H

#include "device/device.h"

/* The most cases that a device learns, measured or from the file. A step of DenseNet-201 has at most 600. */
#define TERN__CHOICE_CASES 1024

/* A plug-in cannot call the library, so it reaches these functions through its device. */
struct tern__choices {
    /* Returns the choice for a case, or NULL. The string stays valid until another choice is heard for the
     * case. */
    const char *(*find)(tern_device *device, const char *what);
    void (*keep)(tern_device *device, const char *what, const char *name);
    uint64_t heard;  /* counts news from others; while unchanged, earlier answers of `find` hold */
    uint64_t serial; /* counts what was learned */
    struct tern__choice *buckets[256], *learned; /* all choices by hash; the learned ones, newest first */
    int learned_count;
    /* Tells whether the device may measure now: not if it follows another rank, not once it knows so many
     * cases that every step seems to have new ones, and not while the program is asked to stop. A
     * measurement asks again between its runs; one that is cut short is not kept. */
    bool (*may_measure)(const tern_device *device);
    bool is_full; /* so many cases are known */
    bool has_read_file;
};

/* Nothing is measured on any device from tern__choices_pause until as many calls of tern__choices_resume. A
 * program that is asked to stop has to end its step soon. A signal handler may call them. */
void tern__choices_pause(void);
void tern__choices_resume(void);

int tern__choices_open(tern_device *device, tern_error *err);
void tern__choices_close(tern_device *device);

/* A counter of what the device has learned; while unchanged, there is no news. */
uint64_t tern__choices_serial(const tern_device *device);
/* Writes what the device has learned as lines, newest first, as many as fit, and a final 0. Returns the
 * number of bytes before the 0. */
size_t tern__choices_write(const tern_device *device, char *text, size_t size);
/* Takes choices from lines that another rank wrote (read), or this program in an earlier run (restore): then
 * only those of this machine. Other lines are ignored. */
void tern__choices_read(tern_device *device, const char *text, size_t bytes);
void tern__choices_restore(tern_device *device, const char *text, size_t bytes);
/* Copies what `from` has learned since serial `since`, if `to` is a device of the same kind. */
void tern__choices_copy(const tern_device *from, uint64_t since, tern_device *to);

/* The number of cases that the file has for this processor. */
int tern__choices_count(void);

/* ---- devices as one: those that a model is computed on ---- */

typedef struct tern__choosers {
    tern_device *device[16]; /* each once; further ones are ignored */
    int count;
} tern__choosers;

/* Adds a device unless it is NULL. */
void tern__choosers_add(tern__choosers *list, tern_device *device);
uint64_t tern__choosers_serial(const tern__choosers *list);
size_t tern__choosers_write(const tern__choosers *list, char *text, size_t size);

#endif
