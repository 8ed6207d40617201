/* plugin.c - loads plug-ins. */
#include "base/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Finds the folder of the file that contains this function: the shared library's or, if that name has no
 * folder, the program's, which the shell may have found in its PATH. */
static void own_folder(char *folder, size_t size)
{
    Dl_info info;
    bool is_named = dladdr((const void *)own_folder, &info) && info.dli_fname && strchr(info.dli_fname, '/');
    ssize_t length = is_named ? 0 : readlink("/proc/self/exe", folder, size - 1);
    if (is_named) snprintf(folder, size, "%s", info.dli_fname);
    if (!is_named) folder[TERN__MAX(length, 0)] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
}

const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err)
{
    static const char *const places[] = {"%s/%s", "%s/tern/%s", "%s/" TERN_PLUGINS_FROM_BIN "/%s"};
    char folder[1024], path[1280], why[256] = "";
    const char *chosen = tern__env("TERN_PLUGIN_PATH");
    own_folder(folder, sizeof(folder));
    for (size_t i = 0; i < TERN__COUNT(places); i++) {
        snprintf(path, sizeof(path), places[i], chosen ? chosen : folder, file);
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const void *found = handle ? dlsym(handle, symbol) : NULL;
        if (found) return found;
        if (!i || handle) snprintf(why, sizeof(why), "%s", dlerror());
    }
    tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "the plug-in %s cannot be loaded: %s", file, why);
    return NULL;
}
