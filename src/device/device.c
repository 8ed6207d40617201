#include "device/backend.h"
#include "base/pages.h"
#include "base/opts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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

/* A forked child lacks the team's threads and would wait for them for ever. So the team ends before a fork,
 * and parent and child each start a new one. */
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

/* OpenMP has a number for each level of nesting: kernels run on the first. */
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

/* "cpu:0-3": the list, or NULL. */
static const char *core_list(const char *name)
{
    size_t length = strlen(name);
    bool is_list = !strncmp(name, "cpu:", 4) && name[4] && length < TERN__DEVICE_NAME;
    return is_list && strspn(name + 4, "0123456789,-") == length - 4 ? name + 4 : NULL;
}

/* Threads: one a core of a group, else the process's share of the machine. */
static int fill(tern_device *device, const char *name, tern_error *err)
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

/* A switch that says "yes" would be taken for off. */
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
    return device ? TERN_OK : tern__error_set(err, func, TERN_E_INVALID, "the device is NULL");
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
        fill(device, name ? name : "cpu", &why) == TERN_OK) {
        pthread_mutex_init(&device->lock, NULL);
        tern_device_conv_set(device, NULL, err);
        device->graphs = device->backend && is_set("TERN_GRAPHS");
        return device;
    }
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

bool tern__device_cpuinfo(const char *key, char *value, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    bool found = false, begins = true; /* a line may be longer than the buffer */
    while (file && !found && fgets(value, (int)size, file)) {
        const char *colon = begins && !strncmp(value, key, strlen(key)) ? strchr(value, ':') : NULL;
        begins = strchr(value, '\n') != NULL;
        if (!colon) continue;
        value[strcspn(value, "\n")] = '\0';
        colon += 1 + strspn(colon + 1, " ");
        memmove(value, colon, strlen(colon) + 1);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

bool tern__device_cpu_name(char *name, size_t size)
{
    char maker[64], part[64]; /* for the whole line */
    if (tern__device_cpuinfo("model name", name, size)) return true;
    if (!tern__device_cpuinfo("CPU implementer", maker, sizeof(maker)) ||
        !tern__device_cpuinfo("CPU part", part, sizeof(part)))
        return false;
    snprintf(name, size, "ARM, maker %s, part %s", maker, part);
    return true;
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

/* ---- block cache ----
 *
 * A block is a header of one cache line and the caller's bytes. Sizes are rounded up to a class, four to each
 * power of two, so that at most a fifth is wasted and shapes that differ a little share blocks. Each class
 * keeps its free blocks in a stack: the block freed last is the one still in the CPU's cache. */

struct tern__block {
    int bin;
    size_t bytes;
    struct tern__block *next;
} __attribute__((aligned(TERN__LINE)));

#define SMALLEST 64
#define LARGEST  ((size_t)1 << 53) /* for which there is a class, here and in the plug-in */

static int bin_of(size_t bytes, size_t *rounded)
{
    size_t base = SMALLEST;
    int bin = 0;
    while (base * 2 <= bytes) {
        base *= 2;
        bin += 4;
    }
    int quarter = 0;
    while (base + base / 4 * (size_t)quarter < bytes) quarter++;
    *rounded = base + base / 4 * (size_t)quarter;
    return bin + quarter;
}

static void empty_cache(tern_device *device)
{
    for (int bin = 0; bin < TERN__DEVICE_BINS; bin++) {
        struct tern__block *block = device->bins[bin];
        device->bins[bin] = NULL;
        while (block) {
            struct tern__block *next = block->next;
            device->bytes -= block->bytes;
            tern__free(block);
            block = next;
        }
    }
}

static struct tern__block *new_block(tern_device *device, int bin, size_t bytes)
{
    struct tern__block *block = tern__alloc_raw(sizeof(*block) + bytes, TERN__LINE);
    if (!block) {
        empty_cache(device);
        block = tern__alloc_raw(sizeof(*block) + bytes, TERN__LINE);
    }
    if (!block) return NULL;
    tern__pages_enlarge(block, bytes);
    *block = (struct tern__block){.bin = bin, .bytes = bytes};
    device->bytes += bytes;
    return block;
}

void *tern__device_alloc(tern_device *device, size_t bytes)
{
    if (bytes > LARGEST) return NULL;
    if (device->backend) return device->backend->alloc(device, TERN__MAX(bytes, (size_t)1));
    size_t rounded;
    int bin = bin_of(TERN__MAX(bytes, (size_t)SMALLEST), &rounded);
    pthread_mutex_lock(&device->lock);
    struct tern__block *block = device->bins[bin];
    if (block)
        device->bins[bin] = block->next;
    else
        block = new_block(device, bin, rounded);
    pthread_mutex_unlock(&device->lock);
    return block ? block + 1 : NULL;
}

void tern__device_free(tern_device *device, void *data)
{
    if (!data) return;
    if (device->backend) {
        device->backend->free(device, data);
        return;
    }
    struct tern__block *block = (struct tern__block *)data - 1;
    pthread_mutex_lock(&device->lock);
    block->next = device->bins[block->bin];
    device->bins[block->bin] = block;
    pthread_mutex_unlock(&device->lock);
}

/* malloc keeps a block that it did not map by itself, and takes larger and larger ones from its heap once it
 * has seen such freed: 40 MB of ResNet-18's 400. So the pages go first. */
static void drop_pages(struct tern__block *block)
{
    uintptr_t page = tern__page_bytes();
    uintptr_t begin = tern__align_up((uintptr_t)(block + 1), page);
    uintptr_t end = ((uintptr_t)(block + 1) + block->bytes) / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void tern__device_release(tern_device *device, void *data)
{
    if (!data) return;
    if (device->backend) {
        device->backend->free(device, data);
        return;
    }
    struct tern__block *block = (struct tern__block *)data - 1;
    pthread_mutex_lock(&device->lock);
    device->bytes -= block->bytes;
    pthread_mutex_unlock(&device->lock);
    drop_pages(block);
    tern__free(block);
}

size_t tern__device_bytes(tern_device *device)
{
    if (device->backend) return device->backend->bytes(device);
    pthread_mutex_lock(&device->lock);
    size_t bytes = device->bytes;
    pthread_mutex_unlock(&device->lock);
    return bytes;
}

void *tern__device_scratch(tern_device *device, int which, size_t bytes)
{
    if (!device->scratch[which].data || device->scratch[which].bytes < bytes) {
        tern__device_release(device, device->scratch[which].data);
        device->scratch[which].data = tern__device_alloc(device, bytes);
        device->scratch[which].bytes = device->scratch[which].data ? bytes : 0;
    }
    return device->scratch[which].data;
}

void tern__device_scratch_free(tern_device *device)
{
    for (int i = 0; i < TERN__SCRATCH_COUNT; i++) {
        tern__device_release(device, device->scratch[i].data);
        device->scratch[i].data = NULL;
        device->scratch[i].bytes = 0;
    }
}

void tern_device_close(tern_device *device)
{
    if (!device) return;
    tern__worker_free(device->worker);
    for (int slot = TERN__SLOT_COUNT - 1; slot >= 0; slot--)
        if (device->slots[slot].data) device->slots[slot].free(device->slots[slot].data);
    tern__device_scratch_free(device);
    tern__device_unplug(device);
    empty_cache(device);
    pthread_mutex_destroy(&device->lock);
    tern__free(device);
}
