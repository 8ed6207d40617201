/* device.c - opening, setting and closing a device. */
#include "device/backend.h"
#include "base/opts.h"
#include "device/choices.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- OpenMP's team of the calling thread ---- */

/* Pauses all devices. Asking for the host's number alone would make libgomp load its offloading libraries,
 * and NVIDIA's initialises CUDA, which then does not work in a forked child. */
static void end_team(void)
{
#ifdef _OPENMP
    omp_pause_resource_all(omp_pause_soft);
#endif
}

void tern__device_rest(const tern_device *device)
{
    if (!device->worker && device->threads > 1) end_team();
}

/* A forked child lacks the team's threads and would wait for them forever. So the team is ended before a
 * fork, and parent and child each start a new one. */
static int forks_error;

static void watch_forks_once(void)
{
    forks_error = pthread_atfork(end_team, NULL, NULL);
}

static int watch_forks(tern_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks_once);
    if (!forks_error) return TERN_OK;
    errno = forks_error;
    return tern__error_errno(err, "tern_device_open", TERN_E_SYSTEM, "cannot watch for forks");
}

/* ---- opening ---- */

/* OMP_NUM_THREADS may list a number for each level of nesting: kernels run on the first level. */
static int default_threads(int *threads, tern_error *err)
{
    int first, share;
    long wanted;
    int status = tern__device_share(&first, &share, err);
    if (status) return status;
    status = tern__env_first_int("OMP_NUM_THREADS", 1, 1 << 16, share, &wanted, err);
    if (status) return status;
    *threads = (int)wanted;
    return TERN_OK;
}

/* Returns the list of cores in "cpu:0-3"; NULL: the name has none. */
static const char *core_list(const char *name)
{
    size_t length = strlen(name);
    bool is_list = !strncmp(name, "cpu:", 4) && name[4] && length < TERN__DEVICE_NAME;
    return is_list && strspn(name + 4, "0123456789,-") == length - 4 ? name + 4 : NULL;
}

/* A group of cores has one thread per core. "cpu" has the process's share of the machine. */
static int device_fill(tern_device *device, const char *name, tern_error *err)
{
    const char *list = core_list(name);
    if (tern__device_is_plugged(name)) return tern__device_plug(device, name, err);
    device->reference = !strcmp(name, "cpu:reference");
    if (!list && !device->reference && strcmp(name, "cpu") != 0)
        return tern__error_set(err, "tern_device_open", TERN_E_UNSUPPORTED,
                               "device \"%s\": expected \"cpu\", \"cpu:reference\", a group of cores as "
                               "\"cpu:0\" or \"cpu:0-3\", \"cuda\" or \"cuda:0\"",
                               name);
    snprintf(device->name, sizeof(device->name), "%s", name);
    if (!list) return default_threads(&device->threads, err);
    device->worker = tern__worker_new(list, &device->threads, err);
    return device->worker ? TERN_OK : err->code;
}

static bool is_set(const char *name)
{
    const char *value = tern__env(name);
    return value && !strcmp(value, "1");
}

/* is_set takes anything but "1" for off, so "yes" must be refused. */
static int check_switches(tern_error *err)
{
    static const char *const names[] = {"TERN_EXACT_CONV", "TERN_DETERMINISTIC", "TERN_GRAPHS"};
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        const char *value = tern__env(names[i]);
        if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
            return tern__error_set(err, "tern_device_open", TERN_E_ENV, "%s=\"%s\": expected 0 or 1",
                                   names[i], value);
    }
    return TERN_OK;
}

static int check_device(const tern_device *device, const char *func, tern_error *err)
{
    return tern__is_set(err) ? err->code : tern__need(device, "device", func, err);
}

tern_device *tern_device_open(const char *name, tern_error *err)
{
    tern_error why = {0};
    if (tern__is_set(err)) return NULL;
    if (!name) name = tern__env("TERN_DEVICE");
    tern_device *device = tern__alloc(sizeof(*device), __func__, err);
    if (!device) return NULL;
    device->workspace = (size_t)64 << 20;
    if (check_switches(&why) == TERN_OK && watch_forks(&why) == TERN_OK &&
        tern__choices_open(device, &why) == TERN_OK &&
        device_fill(device, name ? name : "cpu", &why) == TERN_OK) {
        pthread_mutex_init(&device->lock, NULL);
        tern_device_conv_set(device, NULL, err);
        device->graphs = device->backend && is_set("TERN_GRAPHS");
        return device;
    }
    tern__choices_close(device);
    tern__free(device);
    tern__error_set(err, __func__, why.code, "%s", why.text);
    return NULL;
}

const char *tern_device_name(const tern_device *device)
{
    return device ? device->name : "";
}

int tern_device_threads_get(const tern_device *device)
{
    return device ? device->threads : 0;
}

int tern_device_threads_set(tern_device *device, int n, tern_error *err)
{
    int status = check_device(device, __func__, err);
    if (status) return status;
    if (n < 1) return tern__error_set(err, __func__, TERN_E_RANGE, "expected at least 1 thread, got %d", n);
    device->threads = n;
    return TERN_OK;
}

/* ---- graphs ---- */

bool tern_device_graphs_get(const tern_device *device)
{
    return device && device->graphs;
}

int tern_device_graphs_set(tern_device *device, bool on, tern_error *err)
{
    int status = check_device(device, __func__, err);
    if (status) return status;
    status = tern__device_flush(device, err);
    device->graphs = on && device->backend;
    return status;
}

int tern__device_flush(tern_device *device, tern_error *err)
{
    return device->backend ? device->backend->flush(device, err) : TERN_OK;
}

/* ---- convolutions ---- */

tern_device_conv_opts tern_device_conv_defaults(void)
{
    return (tern_device_conv_opts){.size = sizeof(tern_device_conv_opts),
                                   .exact = is_set("TERN_EXACT_CONV"),
                                   .deterministic = is_set("TERN_DETERMINISTIC")};
}

int tern_device_conv_set(tern_device *device, const tern_device_conv_opts *opts, tern_error *err)
{
    tern_device_conv_opts o = tern_device_conv_defaults();
    int status = check_device(device, __func__, err);
    if (!status) status = tern__opts_read(&o, sizeof(o), opts, __func__, err);
    if (status) return status;
    device->conv = o;
    if (!o.workspace) device->conv.workspace = device->workspace;
    return TERN_OK;
}

/* ---- closing ---- */

void tern_device_close(tern_device *device)
{
    if (!device) return;
    tern__worker_free(device->worker);
    for (int slot = TERN__SLOT_COUNT - 1; slot >= 0; slot--)
        if (device->slots[slot].data) device->slots[slot].free(device->slots[slot].data);
    tern__device_scratch_free(device, -1);
    tern__device_unplug(device);
    tern__choices_close(device);
    tern__device_cache_empty(device);
    pthread_mutex_destroy(&device->lock);
    tern__free(device);
}
