/* device.h - where tensors live and kernels run. This build has one kind: "cpu".
 *
 * Threads: a device serves one thread at a time; its memory may be returned from any thread. */
#ifndef TERN_DEVICE_H
#define TERN_DEVICE_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_device tern_device;

/* `name`: "cpu", "cpu:reference" (the plain kernels that every fast one is tested against), or NULL for
 * TERN_DEVICE or "cpu". The number of kernel threads is OMP_NUM_THREADS, or else the cores this process may
 * use (affinity and cgroup quota) divided by LOCAL_WORLD_SIZE, at least 1. Yours: tern_device_close, after
 * everything that lives on it. */
TERN_API tern_device *tern_device_open(const char *name, tern_error *err);
TERN_API void tern_device_close(tern_device *device);

TERN_API const char *tern_device_name(const tern_device *device);
TERN_API int tern_device_threads_get(const tern_device *device);
/* n >= 1; takes effect with the next kernel. */
TERN_API int tern_device_threads_set(tern_device *device, int n, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
