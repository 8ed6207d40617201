/* notes.h - what a back end has chosen by a clock, and would have to measure again in every process and on
 * every rank: the name of the choice by that of its case, both in the back end's words.
 *
 * Who measures notes the choice, which goes into the user's file (device/choice_file.h) and to those who are
 * told (kernels/choices.h). What another rank or device tells stands above the file's, and the file's counts
 * only for who may measure: of two ranks only one may have it. Lines name the device and its libraries, and
 * those of others are passed over, in the file and of what is told. What a note says is nobody's order: a
 * back end takes it where it has such a thing and its rules allow it. A device learns TERN__CHOICE_CASES of
 * them, by a clock or from the file; who then asks for another case knows nothing of it, unless others tell.
 *
 * Threads: as the device. */
#ifndef TERN_SRC_DEVICE_NOTES_H
#define TERN_SRC_DEVICE_NOTES_H

#include "device/device.h"

/* A plug-in has these by way of its device, since it cannot call the library. */
struct tern__notes {
    /* What is known of the case, or NULL; stays until something else is heard of it. */
    const char *(*find)(tern_device *device, const char *what);
    void (*keep)(tern_device *device, const char *what, const char *choice);
    uint64_t heard;  /* how often others have told something new: unchanged, what was found before holds */
    uint64_t serial; /* how often something was learned */
    struct tern__note *buckets[256], *learned; /* all; those that count, the newest first */
    int learned_count;
    bool is_full; /* no clock is to be asked any more */
    bool has_read_file;
};

/* Of a device whose back end is open. */
int tern__notes_open(tern_device *device, tern_error *err);
void tern__notes_close(tern_device *device);

/* kernels/choices.h */
uint64_t tern__notes_serial(const tern_device *device);
size_t tern__notes_write(const tern_device *device, char *text, size_t size);
void tern__notes_read(tern_device *device, const char *text, size_t bytes);
void tern__notes_copy(const tern_device *from, uint64_t since, tern_device *to);

#endif
