/* transport.c - loads a transport plug-in by name and checks its version. */
#include "comm/move/transport/transport.h"

#include "base/plugin.h"
#include "comm/bootstrap/mpi.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const tern_transport *load(const char *name, tern_error *err)
{
    char file[64];
    snprintf(file, sizeof(file), "tern_%s.so", name);
    const tern_transport *transport = tern__plugin_open(file, TERN_TRANSPORT_SYMBOL, err);
    if (!transport ||
        (transport->abi == TERN_TRANSPORT_ABI && transport->size >= offsetof(tern_transport, wait)))
        return transport;
    tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                    "the plug-in %s is from another build of tern: its interface has version %d and %zu "
                    "bytes, expected %d "
                    "and %zu",
                    file, transport->abi, transport->size, TERN_TRANSPORT_ABI,
                    offsetof(tern_transport, wait));
    return NULL;
}

const tern_transport *tern__transport_find(const char *name, tern_error *err)
{
    static const char *const files[] = {"openmpi", "mpich", "gloo"};
    if (!strcmp(name, "mpi")) return tern__mpi_transport(err);
    for (size_t i = 0; i < TERN__COUNT(files); i++)
        if (!strcmp(name, files[i])) return load(name, err);
    tern__error_set(err, __func__, TERN_E_INVALID, "transport \"%s\": expected mpi, openmpi, mpich or gloo",
                    name);
    return NULL;
}
