/* plugin.h - loads optional parts at run time, so that the library does not depend on them. */
#ifndef TERN_SRC_PLUGIN_H
#define TERN_SRC_PLUGIN_H

#include "base/base.h"

/* Loads `file` and returns the address of `symbol` in it; it stays loaded. Looks in $TERN_PLUGIN_PATH if that
 * is set; else in the folder of the running library or program, in tern/ there, and where plug-ins are
 * installed relative to programs. NULL: E_UNSUPPORTED, saying what is missing
 * and the command that brings it. */
const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err);

#endif
