/* topology.h - what a topology plug-in offers: one const struct in a shared object of its own, found beside
 * the library. It knows which CPUs are one core and which cores are near each other.
 *
 * Threads: all calls come from one. */
#ifndef TERN_BACKEND_TOPOLOGY_H
#define TERN_BACKEND_TOPOLOGY_H

#include <stddef.h>

#define TERN_TOPOLOGY_ABI    1
#define TERN_TOPOLOGY_SYMBOL "tern_topology_plugin"

typedef struct tern_topology_backend {
    int abi;     /* TERN_TOPOLOGY_ABI */
    size_t size; /* sizeof(tern_topology_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* The machine's CPUs, near ones near each other (those of a core, then of a cache, of a memory) and the
     * number of each one's core: cpus[i] as the kernel numbers them, cores[i] ascending. Returns how many
     * there are, of which at most `room` are written; negative: they cannot be known. */
    int (*cpus)(int *cpus, int *cores, int room);
} tern_topology_backend;

#endif
