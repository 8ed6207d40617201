/* registry.c - the communication back ends. */
#include "comm/backend.h"

const tern__comm_backend *tern__comm_pick(int world)
{
    return world == 1 ? &tern__comm_self : &tern__comm_native;
}
