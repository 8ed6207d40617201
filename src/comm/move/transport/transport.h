/* transport.h - finds the plug-in that moves bytes between ranks without shared memory
 * (tern/backend/transport.h). */
#ifndef TERN_SRC_COMM_MOVE_TRANSPORT_TRANSPORT_H
#define TERN_SRC_COMM_MOVE_TRANSPORT_TRANSPORT_H

#include "base/base.h"

#include <tern/backend/transport.h>

/* Returns the transport "mpi" (the job's own MPI, see mpi.h), "openmpi", "mpich" or "gloo". On error NULL:
 * E_INVALID for another name; E_UNSUPPORTED, saying what is missing. */
const tern_transport *tern__transport_find(const char *name, tern_error *err);

#endif
