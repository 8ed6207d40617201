/* topology.h - the interface of a topology plug-in: one const struct in a shared object that is installed
 * beside the library. The plug-in knows which CPUs belong to one core, and which cores are near each other.
 *
 * Threads: all calls come from one thread. */
#ifndef TERN_BACKEND_TOPOLOGY_H
#define TERN_BACKEND_TOPOLOGY_H

#include <stddef.h>

#define TERN_TOPOLOGY_ABI    1
#define TERN_TOPOLOGY_SYMBOL "tern_topology_plugin"

typedef struct tern_topology_backend {
    int abi;     /* TERN_TOPOLOGY_ABI */
    size_t size; /* sizeof(tern_topology_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Lists the machine's CPUs in cpus[i], with the kernel's numbers, and the number of each one's core in
     * cores[i], ascending. Neighbours in the list are near each other: first CPUs of one core, then of one
     * cache, then of one memory. Returns the number of CPUs, of which at most `room` are written; negative if
     * they cannot be found out. */
    int (*cpus)(int *cpus, int *cores, int room);
} tern_topology_backend;

#endif
