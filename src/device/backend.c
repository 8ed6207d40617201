/* backend.c - finds a device's plug-in and the device's index, and opens and closes the device. */
#include "device/backend.h"
#include "base/local.h"
#include "base/plugin.h"
#include "device/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"cuda"};

/* Returns the back end's name with which `name` begins, or NULL. */
static const char *backend_of(const char *name)
{
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        size_t length = strlen(names[i]);
        if (!strncmp(name, names[i], length) && (!name[length] || name[length] == ':')) return names[i];
    }
    return NULL;
}

bool tern__device_is_plugged(const char *name)
{
    return backend_of(name) != NULL;
}

const tern__device_backend *tern__device_backend_open(const char *name, tern_error *err)
{
    char file[32];
    snprintf(file, sizeof(file), "tern_%s.so", name);
    const tern__device_backend *backend = tern__plugin_open(file, TERN__DEVICE_SYMBOL, err);
    if (!backend) return NULL;
    if (!strcmp(backend->version, tern_version()) && backend->device_size == sizeof(tern_device))
        return backend;
    tern__error_set(err, "tern_device_open", TERN_E_UNSUPPORTED,
                    "the plug-in %s (tern %s) was not built together with this library (tern %s): install "
                    "both from one build",
                    file, backend->version, tern_version());
    return NULL;
}

/* This rank's index on its host. mpirun and srun may show each rank only its own GPU. */
static int index_of_rank(int count, long *index, tern_error *err)
{
    tern__local local;
    if (getenv("LOCAL_RANK")) return tern__env_int("LOCAL_RANK", 0, 1 << 20, 0, index, err);
    int status = tern__local_read(&local, err);
    *index = count == 1 ? 0 : local.rank;
    return status;
}

static int index_of(const char *name, int count, long *index, tern_error *err)
{
    const char *number = strchr(name, ':');
    char end;
    if (!number) return index_of_rank(count, index, err);
    if (strspn(number + 1, "0123456789") == strlen(number + 1) &&
        sscanf(number + 1, "%6ld%c", index, &end) == 1)
        return TERN_OK;
    return tern__error_set(err, "tern_device_open", TERN_E_INVALID,
                           "device \"%s\": expected a number after the colon", name);
}

/* Finds the device's index: the number after the colon, or this rank's index on its host. */
static int find_index(const tern__device_backend *backend, const char *name, long *index, tern_error *err)
{
    int count = backend->count(err);
    int status = count < 0 ? count : index_of(name, count, index, err);
    if (status || *index < count) return status;
    return tern__error_set(
        err, "tern_device_open", TERN_E_RANGE,
        "device \"%s\": there is no device %ld, this process can use %d (CUDA_VISIBLE_DEVICES); if ranks "
        "share a device, or each sees only its own, name it: \"%s:0\"",
        name, *index, count, backend->name);
}

int tern__device_plug(tern_device *device, const char *name, tern_error *err)
{
    const tern__device_backend *backend = tern__device_backend_open(backend_of(name), err);
    long index = 0;
    int status = backend ? find_index(backend, name, &index, err) : TERN_E_UNSUPPORTED;
    if (status) return status;
    snprintf(device->name, sizeof(device->name), "%s:%ld", backend->name, index);
    device->threads = 1;
    device->index = (int)index;
    status = backend->open(device, device->index, err);
    if (status) return status;
    device->backend = backend;
    device->host = tern_device_open("cpu:reference", err);
    status = device->host ? tern__memory_add(device, err) : TERN_E_MEMORY;
    if (status) tern__device_unplug(device);
    return status;
}

void tern__device_unplug(tern_device *device)
{
    if (!device->backend) return;
    for (tern__close_listener *listener; (listener = device->listeners);) {
        device->listeners = listener->next;
        listener->closing(listener);
    }
    tern__memory_remove(device);
    device->backend->close(device);
    tern_device_close(device->host);
    device->backend = NULL;
}

void tern__device_listen(tern_device *device, tern__close_listener *listener)
{
    listener->next = device->listeners;
    device->listeners = listener;
}

void tern__device_unlisten(tern_device *device, tern__close_listener *listener)
{
    tern__close_listener **link = &device->listeners;
    while (*link && *link != listener) link = &(*link)->next;
    if (*link) *link = listener->next;
}
