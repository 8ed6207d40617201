/* memory.c - finds the device of an address, and copies between the memories of devices. */
#include "device/backend.h"
#include "device/memory.h"

#include <string.h>

/* Open devices with memory of their own. Entries change under the lock and are read without it: a caller
 * that asks for an address keeps its device open. */
#define PLACES 64

static tern_device *places[PLACES];
static int used; /* places ever used; 0 in most programs */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool memory_change(tern_device *from, tern_device *to)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PLACES && !found; i++) {
        found = places[i] == from;
        if (!found) continue;
        __atomic_store_n(&places[i], to, __ATOMIC_RELEASE);
        __atomic_store_n(&used, TERN__MAX(used, i + 1), __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int tern__memory_add(tern_device *device, tern_error *err)
{
    if (memory_change(NULL, device)) return TERN_OK;
    return tern__error_set(err, "tern_device_open", TERN_E_RANGE, "%s: more than %d devices are open",
                           device->name, PLACES);
}

void tern__memory_remove(tern_device *device)
{
    memory_change(device, NULL);
}

bool tern__memory_any(void)
{
    return __atomic_load_n(&used, __ATOMIC_ACQUIRE) > 0;
}

tern_device *tern__memory_device(const void *data)
{
    for (int i = 0, count = __atomic_load_n(&used, __ATOMIC_ACQUIRE); i < count; i++) {
        tern_device *device = __atomic_load_n(&places[i], __ATOMIC_ACQUIRE);
        if (device && (size_t)((const char *)data - device->memory.base) < device->memory.bytes)
            return device;
    }
    return NULL;
}

int tern__memory_copy(void *to, const void *from, size_t bytes, tern_error *err)
{
    tern_device *target = tern__memory_device(to), *source = tern__memory_device(from);
    if (!bytes) return TERN_OK;
    if (!target && !source) {
        memcpy(to, from, bytes);
        return TERN_OK;
    }
    if (!target || !source || target == source)
        return (target ? target : source)->backend->copy(target ? target : source, to, from, bytes, err);
    return target->backend->copy_from(target, to, source, from, bytes, err);
}

int tern__memory_zero(void *to, size_t bytes, tern_error *err)
{
    tern_device *device = tern__memory_device(to);
    if (device) return device->backend->zero(device, to, bytes, err);
    memset(to, 0, bytes);
    return TERN_OK;
}

void *tern__memory_new(tern_device *device, size_t bytes, const char *func, tern_error *err)
{
    if (!device || !device->backend) return tern__alloc(bytes, func, err);
    void *data = tern__device_alloc(device, bytes);
    if (!data)
        tern__error_set(err, func, TERN_E_MEMORY, "%s is out of memory: %zu bytes", device->name, bytes);
    return data;
}

void tern__memory_free(void *data)
{
    tern_device *device = tern__memory_device(data);
    if (device)
        tern__device_free(device, data);
    else
        tern__free(data);
}
