/* topology.c - the topology plug-in, with hwloc. Detecting the topology takes tens of milliseconds, so it is
 * called only where processes are to be bound to cores. */
#include <tern/backend/topology.h>

#include <hwloc.h>

static int list(hwloc_topology_t topology, int *cpus, int *cores, int room)
{
    int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    for (int i = 0; i < count && i < room; i++) {
        hwloc_obj_t pu = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, pu);
        cpus[i] = (int)pu->os_index;
        cores[i] = core ? (int)core->logical_index : i;
    }
    return count;
}

static int read_cpus(int *cpus, int *cores, int room)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return -1;
    int count = hwloc_topology_load(topology) ? -1 : list(topology, cpus, cores, room);
    hwloc_topology_destroy(topology);
    return count;
}

__attribute__((visibility("default"))) const tern_topology_backend tern_topology_plugin = {
    .abi = TERN_TOPOLOGY_ABI, .size = sizeof(tern_topology_backend), .name = "hwloc", .cpus = read_cpus};
