/* memory.h - the list of devices with memory of their own, by which an address tells whose it is. */
#ifndef TERN_SRC_DEVICE_MEMORY_H
#define TERN_SRC_DEVICE_MEMORY_H

#include "device/device.h"

/* A device whose `memory` is known. E_RANGE: too many are open. */
int tern__memory_add(tern_device *device, tern_error *err);
void tern__memory_remove(tern_device *device);
/* False: no such device was ever open, as in most programs. */
bool tern__memory_any(void);

#endif
