/* extension.cc - the whole extension as one translation unit. A compiler spends most of its time on PyTorch's headers,
 * which it so reads once. */
#include "group.cc"

#include "backend.cc"
#include "store.cc"
