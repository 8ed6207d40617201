/* mirror.h - what lies in other devices' memory, copied to a device once for all of its kernels that read it.
 *
 * An operand from elsewhere is otherwise brought anew by each kernel (kernels/away.h), and each time after
 * all that the other device was asked for before. One thread. */
#ifndef TERN_SRC_DEVICE_MIRROR_H
#define TERN_SRC_DEVICE_MIRROR_H

#include "device/device.h"

/* [begin, end) of another device, and its copy here. */
typedef struct tern__mirror {
    char *begin, *end, *copy;
} tern__mirror;

typedef struct tern__mirrors {
    tern_device *device;
    tern__mirror *list, *wanted; /* [room], of which there are so many: */
    int count, wanted_count, room;
} tern__mirrors;

/* These bytes are to be in the next fill, if they are another device's. On the host none are: its kernels
 * look for no mirrors. */
int tern__mirrors_want(tern__mirrors *m, void *begin, size_t bytes, tern_error *err);
/* What was wanted since the last time is copied, in the order of both devices' work, and nothing else is
 * there. What is the same places again keeps its memory. */
int tern__mirrors_fill(tern__mirrors *m, tern_error *err);
void tern__mirrors_free(tern__mirrors *m);

/* Its kernels find what m has, until another is lent, or NULL. */
void tern__mirrors_lend(tern_device *device, const tern__mirrors *m);
/* Where [begin, end) stands in what was lent to the device, or NULL. */
char *tern__mirror_of(const tern_device *device, const char *begin, const char *end);

#endif
