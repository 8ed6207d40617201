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

/* Returns the package of Debian and Ubuntu with which a plug-in is built, and which brings its library. */
static const char *package_of(const char *file)
{
    static const struct {
        const char *file, *package;
    } all[] = {
        {"tern_figure.so", "libcairo2-dev"},    {"tern_jpeg.so", "libjpeg-dev"},
        {"tern_png.so", "libpng-dev"},          {"tern_tiff.so", "libtiff-dev"},
        {"tern_nifti.so", "libnifti-dev"},      {"tern_topology.so", "libhwloc-dev"},
        {"tern_openmpi.so", "libopenmpi-dev"},  {"tern_mpich.so", "libmpich-dev"},
        {"tern_gloo.so", "libgloo-dev"},        {"tern_regex.so", "libpcre2-dev"},
        {"tern_unicode.so", "libutf8proc-dev"},
    };
    for (size_t i = 0; i < TERN__COUNT(all); i++)
        if (!strcmp(file, all[i].file)) return all[i].package;
    return NULL;
}

/* `why` is the loader's reason; empty if `folder` has no such file, as where the plug-in was not built. */
static void tell_missing(const char *file, const char *folder, const char *why, tern_error *err)
{
    char advice[128] = "";
    const char *package = package_of(file);
    bool is_there = *why;
    if (package)
        snprintf(advice, sizeof(advice),
                 is_there ? " (apt install %s)"
                          : "; `make extras` in tern's sources installs %s and builds it",
                 package);
    tern__error_set(err, "tern__plugin_open", TERN_E_UNSUPPORTED,
                    "the plug-in %s cannot be loaded: %.255s%s%s", file, is_there ? why : folder,
                    is_there ? "" : " has no such file", advice);
}

const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err)
{
    static const char *const places[] = {"%s/%s", "%s/tern/%s", "%s/" TERN_PLUGINS_FROM_BIN "/%s"};
    char folder[1024], path[1280], why[256] = "";
    const char *chosen = tern__env("TERN_PLUGIN_PATH");
    own_folder(folder, sizeof(folder));
    if (chosen) snprintf(folder, sizeof(folder), "%s", chosen);
    for (size_t i = 0; i < TERN__COUNT(places); i++) {
        snprintf(path, sizeof(path), places[i], folder, file);
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const void *found = handle ? dlsym(handle, symbol) : NULL;
        if (found) return found;
        if (handle || !access(path, F_OK)) snprintf(why, sizeof(why), "%s", dlerror());
    }
    tell_missing(file, folder, why, err);
    return NULL;
}
