/* memory.h - the list of open devices with memory of their own, which finds the device of an address. */
#ifndef TERN_SRC_DEVICE_MEMORY_H
#define TERN_SRC_DEVICE_MEMORY_H

#include "device/device.h"

/* Adds a device whose `memory` is set. E_RANGE: too many devices are open. */
int tern__memory_add(tern_device *device, tern_error *err);
void tern__memory_remove(tern_device *device);
/* False: no such device was ever open, as in most programs. */
bool tern__memory_any(void);

#endif
