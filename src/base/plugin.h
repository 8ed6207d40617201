/* plugin.h - finding optional parts at run time, so that the library itself needs none of them. */
#ifndef TERN_SRC_PLUGIN_H
#define TERN_SRC_PLUGIN_H

#include "base/base.h"

/* Opens `file` from $TERN_PLUGIN_PATH, or from the folder of the running library or program, its tern/, or
 * the place where plug-ins are installed as seen from the programs, and returns the address of `symbol` in
 * it; it stays loaded. NULL: E_UNSUPPORTED saying what is missing. */
const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err);

#endif
