/* transport.c - loads a transport plug-in by name and checks its version. */
#include "comm/move/transport/transport.h"

#include "base/plugin.h"
#include "comm/bootstrap/mpi.h"
#include "comm/move/backend.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const tern_transport *transport_load(const char *name, tern_error *err)
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

/* True for those of the back ends, and for the two that "mpi" stands for. */
static bool is_transport(const char *name)
{
    bool is_known = !strcmp(name, "openmpi") || !strcmp(name, "mpich");
    for (int i = 0; i < tern__comm_row_count && !is_known; i++)
        is_known = tern__comm_rows[i].kind == TERN__COMM_MOVER && !strcmp(name, tern__comm_rows[i].transport);
    return is_known;
}

const tern_transport *tern__transport_find(const char *name, tern_error *err)
{
    if (!strcmp(name, "mpi")) return tern__mpi_transport(err);
    if (is_transport(name)) return transport_load(name, err);
    tern__error_set(err, __func__, TERN_E_INVALID, "there is no transport \"%s\"", name);
    return NULL;
}
