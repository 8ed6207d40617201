/* transport.h - finding the plug-in that moves bytes between ranks which share no memory
 * (tern/backend/transport.h). */
#ifndef TERN_SRC_COMM_TRANSPORT_H
#define TERN_SRC_COMM_TRANSPORT_H

#include "base/base.h"

#include <tern/backend/transport.h>

/* "mpi" (the job's own, see mpi.h), "openmpi", "mpich" or "gloo". E_INVALID for another name, E_UNSUPPORTED
 * saying what is missing. */
const tern_transport *tern__transport_find(const char *name, tern_error *err);

#endif
