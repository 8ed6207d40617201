/* notes.h - the choices that a back end made by measuring, so that not every process and every rank measures
 * them again: a map from a case to the name of the choice. The back end defines both strings.
 *
 * The device that measures a case notes the choice. The note goes to the user's file
 * (device/choice_file.h) and to other ranks and devices (kernels/choices.h). A note from another rank or
 * device takes precedence over the file's. The file's notes only count on a device that may measure
 * itself, since another rank may not have the file. Lines name the device and its libraries; lines of
 * other devices or libraries are ignored, whether from the file or from a rank. A note is a hint: the back
 * end follows it only if it has that algorithm and its rules allow it. A device learns at most
 * TERN__CHOICE_CASES cases, by measuring or from the file; for further cases it only uses the notes of
 * others.
 *
 * Threads: as the device. */
#ifndef TERN_SRC_DEVICE_NOTES_H
#define TERN_SRC_DEVICE_NOTES_H

#include "device/device.h"

/* The plug-in cannot call the library, so it reaches these functions through its device. */
struct tern__notes {
    /* Returns the choice for a case, or NULL. The string stays valid until another choice is heard for the
     * case. */
    const char *(*find)(tern_device *device, const char *what);
    void (*keep)(tern_device *device, const char *what, const char *choice);
    uint64_t heard;  /* counts news from others; while unchanged, earlier answers of `find` hold */
    uint64_t serial; /* counts what was learned */
    struct tern__note *buckets[256], *learned; /* all notes by hash; the learned ones, newest first */
    int learned_count;
    bool is_full; /* too many cases: nothing more is measured */
    bool has_read_file;
};

/* The device's back end must be open. */
int tern__notes_open(tern_device *device, tern_error *err);
void tern__notes_close(tern_device *device);

/* kernels/choices.h */
uint64_t tern__notes_serial(const tern_device *device);
size_t tern__notes_write(const tern_device *device, char *text, size_t size);
void tern__notes_read(tern_device *device, const char *text, size_t bytes);
void tern__notes_copy(const tern_device *from, uint64_t since, tern_device *to);

#endif
