/* plugin.h - finding optional parts at run time, so that the library itself needs none of them. */
#ifndef TERN_SRC_PLUGIN_H
#define TERN_SRC_PLUGIN_H

#include "base/base.h"

/* Opens `file` from $TERN_PLUGIN_PATH, or the folder of the running library or program and that folder's
 * lib/tern, and returns the address of `symbol` in it; it stays loaded. NULL: E_UNSUPPORTED saying what is
 * missing. */
const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err);

#endif
