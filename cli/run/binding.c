/* binding.c - binds ranks to whole cores: rank r of n gets the cores from r/n to (r+1)/n of the list, with
 * all their CPUs. --bind core takes the list from the topology plug-in (hwloc), which costs tens of
 * milliseconds; --bind auto takes it from /sys. */
#include "run/binding.h"

#include "base/local.h"
#include "base/plugin.h"
#include "device/device.h"

#include <tern/backend/topology.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- OpenMP ---- */

static cpu_set_t mask_at_start;
static int has_mask_at_start;

/* OpenMP's runtime binds the first thread before main, when the library is initialised. This function must
 * save the mask earlier, so it is in .preinit_array. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void keep_mask(void)
{
    has_mask_at_start = sched_getaffinity(0, sizeof(mask_at_start), &mask_at_start) == 0;
}

__attribute__((section(".preinit_array"), used)) static void (*const keep_mask_first)(void) = keep_mask;

void tern__binding_undo_openmp(void)
{
    if (has_mask_at_start) sched_setaffinity(0, sizeof(mask_at_start), &mask_at_start);
}

/* ---- the list of CPUs ---- */

typedef struct place {
    int cpu, package, core;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *one = a, *other = b;
    if (one->package != other->package) return one->package - other->package;
    return one->core != other->core ? one->core - other->core : one->cpu - other->cpu;
}

static int read_topology(int cpu, const char *file, int fallback)
{
    char path[96];
    int value;
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, file);
    FILE *stream = fopen(path, "re");
    if (!stream) return fallback;
    if (fscanf(stream, "%d", &value) != 1 || value < 0) value = fallback;
    fclose(stream);
    return value;
}

static int list_kernel(place *places)
{
    cpu_set_t mask;
    int count = 0;
    if (sched_getaffinity(0, sizeof(mask), &mask)) return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask)) continue;
        places[count++] = (place){.cpu = cpu,
                                  .package = read_topology(cpu, "physical_package_id", 0),
                                  .core = read_topology(cpu, "core_id", cpu)};
    }
    qsort(places, (size_t)count, sizeof(*places), compare_places);
    return count;
}

/* Returns the number of CPUs, 0 without the plug-in. */
static int list_plugin(place *places)
{
    int cpus[CPU_SETSIZE], cores[CPU_SETSIZE];
    const tern_topology_backend *plugin = tern__plugin_get(TERN__PLUGIN_TOPOLOGY, NULL, __func__, NULL);
    int count = plugin ? plugin->cpus(cpus, cores, CPU_SETSIZE) : 0;
    count = TERN__MIN(count, CPU_SETSIZE);
    for (int i = 0; i < count; i++) places[i] = (place){.cpu = cpus[i], .core = cores[i]};
    return TERN__MAX(count, 0);
}

/* Keeps those that this process may use. */
static void fill_binding(tern__binding *binding, const place *places, int count)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof(mask), &mask)) return;
    for (int i = 0, last = -1; i < count; i++) {
        const place *at = &places[i];
        if (at->cpu < 0 || at->cpu >= CPU_SETSIZE || !CPU_ISSET(at->cpu, &mask)) continue;
        bool is_same = last >= 0 && places[last].package == at->package && places[last].core == at->core;
        if (!is_same) binding->cores++;
        binding->cpus[binding->count] = at->cpu;
        binding->core[binding->count++] = binding->cores - 1;
        last = i;
    }
}

/* ---- whether to bind ---- */

/* Has somebody chosen already: a subset of the CPUs, a CPU quota, or places for OpenMP's threads? */
static bool is_chosen(const tern__binding *binding)
{
    static const char *const names[] = {"OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"};
    for (size_t i = 0; i < TERN__COUNT(names); i++)
        if (getenv(names[i])) return true;
    return binding->count < sysconf(_SC_NPROCESSORS_ONLN) || binding->count > tern__device_cores();
}

static bool wants_binding(const tern__binding *binding, const tern__job *job)
{
    if (job->bind == TERN__BIND_CORE) return true;
    return job->launch.ranks > 1 && job->launch.ranks <= binding->cores && !is_chosen(binding);
}

/* A container may forbid to choose CPUs, even those that a process has. */
static bool is_allowed(void)
{
    cpu_set_t mask;
    return !sched_getaffinity(0, sizeof(mask), &mask) && !sched_setaffinity(0, sizeof(mask), &mask);
}

int tern__binding_open(tern__binding *binding, const tern__job *job, tern_error *err)
{
    static place places[CPU_SETSIZE];
    const bool must = job->bind == TERN__BIND_CORE;
    int ranks = job->launch.ranks;
    *binding = (tern__binding){0};
    if (job->bind == TERN__BIND_NONE || (job->bind == TERN__BIND_AUTO && ranks == 1)) return TERN_OK;
    int count = must ? list_plugin(places) : 0;
    fill_binding(binding, places, count ? count : list_kernel(places));
    if (!wants_binding(binding, job)) return TERN_OK;
    if (ranks > binding->cores)
        return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                               "--bind core: %d ranks, but only %d usable core%s", ranks, binding->cores,
                               binding->cores == 1 ? "" : "s");
    if (is_allowed())
        binding->ranks = ranks;
    else if (must)
        return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                               "--bind core: this system does not let a process choose its CPUs: %s",
                               strerror(errno));
    return TERN_OK;
}

/* Sets *mask to the CPUs of local rank `local`. */
static void make_mask(const tern__binding *binding, int local, cpu_set_t *mask)
{
    long first = (long)binding->cores * local / binding->ranks;
    long end = (long)binding->cores * (local + 1) / binding->ranks;
    CPU_ZERO(mask);
    for (int i = 0; i < binding->count; i++)
        if (binding->core[i] >= first && binding->core[i] < end) CPU_SET(binding->cpus[i], mask);
}

int tern__binding_enter(const tern__binding *binding, int local)
{
    cpu_set_t mask;
    if (!binding->ranks) return unsetenv(TERN__ENV_BOUND);
    make_mask(binding, local, &mask);
    return sched_setaffinity(0, sizeof(mask), &mask) || setenv(TERN__ENV_BOUND, "1", 1);
}
