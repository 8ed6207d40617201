/* plugin.c - loads plug-ins. */
#include "base/plugin.h"

#include <tern/backend/figure.h>
#include <tern/backend/image.h>
#include <tern/backend/nifti.h>
#include <tern/backend/regex.h>
#include <tern/backend/topology.h>
#include <tern/backend/unicode.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

/* What all plug-ins are called, and the package of Debian and Ubuntu with which each is built and which
 * brings its library. For tern__plugin_get also what its struct is, and what `whose` wants it for. */
static const struct {
    const char *file, *package, *symbol;
    int abi;
    const char *purpose;
} plugins[] = {
    [TERN__PLUGIN_FIGURE] = {"tern_figure.so", "libcairo2-dev", TERN_FIGURE_SYMBOL, TERN_FIGURE_ABI, ""},
    [TERN__PLUGIN_JPEG] = {"tern_jpeg.so", "libjpeg-dev", TERN_IMAGE_SYMBOL, TERN_IMAGE_ABI, "JPEG: "},
    [TERN__PLUGIN_PNG] = {"tern_png.so", "libpng-dev", TERN_IMAGE_SYMBOL, TERN_IMAGE_ABI, "PNG: "},
    [TERN__PLUGIN_TIFF] = {"tern_tiff.so", "libtiff-dev", TERN_IMAGE_SYMBOL, TERN_IMAGE_ABI, "TIFF: "},
    [TERN__PLUGIN_NIFTI] = {"tern_nifti.so", "libnifti-dev", TERN_NIFTI_SYMBOL, TERN_NIFTI_ABI, ""},
    [TERN__PLUGIN_REGEX] = {"tern_regex.so", "libpcre2-dev", TERN_REGEX_SYMBOL, TERN_REGEX_ABI,
                            "regular expression: "},
    [TERN__PLUGIN_UNICODE] = {"tern_unicode.so", "libutf8proc-dev", TERN_UNICODE_SYMBOL, TERN_UNICODE_ABI,
                              "normalizer: "},
    [TERN__PLUGIN_TOPOLOGY] = {"tern_topology.so", "libhwloc-dev", TERN_TOPOLOGY_SYMBOL, TERN_TOPOLOGY_ABI,
                               ""},
    {.file = "tern_openmpi.so", .package = "libopenmpi-dev"},
    {.file = "tern_mpich.so", .package = "libmpich-dev"},
    {.file = "tern_gloo.so", .package = "libgloo-dev"},
};

static const char *package_of(const char *file)
{
    for (size_t i = 0; i < TERN__COUNT(plugins); i++)
        if (!strcmp(file, plugins[i].file)) return plugins[i].package;
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

/* Of the places that there are, the last is named in errors: the folder of the installed plug-ins rather than
 * that of the programs. */
const void *tern__plugin_open(const char *file, const char *symbol, tern_error *err)
{
    static const char *const places[] = {"%s", "%s/tern", "%s/" TERN_PLUGINS_FROM_BIN};
    char own[1024], folder[1152], path[1280], named[1152] = "", why[256] = "";
    const char *chosen = tern__env("TERN_PLUGIN_PATH");
    if (!chosen) own_folder(own, sizeof(own));
    for (size_t i = 0; i < (chosen ? 1 : TERN__COUNT(places)); i++) {
        struct stat at;
        snprintf(folder, sizeof(folder), places[i], chosen ? chosen : own);
        snprintf(path, sizeof(path), "%s/%s", folder, file);
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const void *found = handle ? dlsym(handle, symbol) : NULL;
        if (found) return found;
        if (handle || !access(path, F_OK)) snprintf(why, sizeof(why), "%s", dlerror());
        if (!i || (!stat(folder, &at) && S_ISDIR(at.st_mode))) memcpy(named, folder, sizeof(named));
    }
    tell_missing(file, named, why, err);
    return NULL;
}

const char *tern__plugin_file(tern__plugin which)
{
    return plugins[which].file;
}

/* Every plug-in's struct begins with its ABI. */
const void *tern__plugin_get(tern__plugin which, const char *whose, const char *func, tern_error *err)
{
    static const int *_Atomic opened[TERN__PLUGIN_COUNT];
    const int *abi = atomic_load(&opened[which]);
    tern_error why = {0};
    if (abi) return abi;
    abi = tern__plugin_open(plugins[which].file, plugins[which].symbol, &why);
    if (abi && *abi != plugins[which].abi)
        tern__error_set(&why, func, TERN_E_UNSUPPORTED, "the plug-in %s has ABI %d, expected %d",
                        plugins[which].file, *abi, plugins[which].abi);
    if (!why.code) {
        atomic_store(&opened[which], abi);
        return abi;
    }
    if (whose)
        tern__error_set(err, func, why.code, "%s: %s%s", whose, plugins[which].purpose, why.text);
    else
        tern__error_set(err, func, why.code, "%s", why.text);
    return NULL;
}
