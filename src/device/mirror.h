/* mirror.h - copies of other devices' memory, made once for all kernels of a device that read it.
 *
 * Without a mirror each kernel copies such an operand anew (kernels/operand_copies.h), and each copy waits
 * for the other device's work. One thread. */
#ifndef TERN_SRC_DEVICE_MIRROR_H
#define TERN_SRC_DEVICE_MIRROR_H

#include "device/device.h"

/* [begin, end) on another device, and its copy on this one. */
typedef struct tern__mirror {
    char *begin, *end, *copy;
} tern__mirror;

typedef struct tern__mirrors {
    tern_device *device;
    tern__mirror *list, *wanted; /* [room], of which these are in use: */
    int count, wanted_count, room;
} tern__mirrors;

/* Asks for these bytes in the next fill, if they are on another device. The host needs none: its kernels
 * do not use mirrors. */
int tern__mirrors_want(tern__mirrors *m, void *begin, size_t bytes, tern_error *err);
/* Copies what was wanted since the last fill, in the order of both devices' work, and drops what was not.
 * If the same places are wanted again, the memory is reused. */
int tern__mirrors_fill(tern__mirrors *m, tern_error *err);
void tern__mirrors_free(tern__mirrors *m);

/* Makes the device's kernels use the copies in m, until called again with others or NULL. */
void tern__mirrors_lend(tern_device *device, const tern__mirrors *m);
/* Returns the copy of [begin, end) in the device's mirrors, or NULL. */
char *tern__mirror_of(const tern_device *device, const char *begin, const char *end);

#endif
