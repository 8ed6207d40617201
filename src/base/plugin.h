/* plugin.h - loads optional parts at run time, so that the library does not depend on them. */
#ifndef TERN_SRC_PLUGIN_H
#define TERN_SRC_PLUGIN_H

#include "base/base.h"

/* Loads `file` and returns the address of `symbol` in it; it stays loaded. Looks in $TERN_PLUGIN_PATH if that
 * is set; else in the folder of the running library or program, in tern/ there, and where plug-ins are
 * installed relative to programs. NULL: E_UNSUPPORTED, saying what is missing and the command that brings
 * it. */
const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err);

/* Plug-ins of one interface each, include/tern/backend/NAME.h. Others have loaders of their own: transports,
 * the two MPIs, CUDA and NCCL. */
typedef enum tern__plugin {
    TERN__PLUGIN_FIGURE,
    TERN__PLUGIN_JPEG,
    TERN__PLUGIN_PNG,
    TERN__PLUGIN_TIFF,
    TERN__PLUGIN_NIFTI,
    TERN__PLUGIN_REGEX,
    TERN__PLUGIN_UNICODE,
    TERN__PLUGIN_TOPOLOGY,
    TERN__PLUGIN_COUNT
} tern__plugin;

/* Returns "tern_png.so". */
const char *tern__plugin_file(tern__plugin which);

/* Returns the plug-in's struct, and loads it on first use; any thread. NULL: E_UNSUPPORTED, since it is
 * missing or has another ABI. The text begins with `whose`, the file that asks for it, unless that is
 * NULL. */
const void *tern__plugin_get(tern__plugin which, const char *whose, const char *func, tern_error *err);

#endif
