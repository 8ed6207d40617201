/* cores.c - finds the CPUs that this process may use. */
#include "base/cores.h"

#ifdef _OPENMP
#include <omp.h>

static void add_place(cpu_set_t *cores, int place)
{
    int cpus[CPU_SETSIZE], count = omp_get_place_num_procs(place);
    if (count > CPU_SETSIZE) return;
    omp_get_place_proc_ids(place, cpus);
    for (int i = 0; i < count; i++) CPU_SET(cpus[i], cores);
}

/* Returns false if the places are useless because they have CPUs that the process may not use, which
 * GOMP_CPU_AFFINITY permits. */
static bool read_places(cpu_set_t *cores)
{
    CPU_ZERO(cores);
    for (int place = 0; place < omp_get_num_places(); place++) add_place(cores, place);
    return CPU_COUNT(cores) <= omp_get_num_procs();
}

bool tern__cores_are_placed(void)
{
    return omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0;
}
#else
static bool read_places(cpu_set_t *cores)
{
    (void)cores;
    return false;
}

bool tern__cores_are_placed(void)
{
    return false;
}
#endif

int tern__cores_get(cpu_set_t *cores)
{
    if (tern__cores_are_placed() && read_places(cores)) return 0;
    return sched_getaffinity(0, sizeof(*cores), cores);
}
