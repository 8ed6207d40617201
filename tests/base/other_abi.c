/* other_abi.c - the structs with which plug-ins begin, as of a build with other interfaces. */
#include <tern/backend/figure.h>
#include <tern/backend/image.h>
#include <tern/backend/nifti.h>
#include <tern/backend/regex.h>
#include <tern/backend/topology.h>
#include <tern/backend/unicode.h>

#define PLUGIN(type, symbol, abi_here)                                                                       \
    TERN_API extern const type symbol;                                                                       \
    const type symbol = {.abi = (abi_here) + 1, .size = sizeof(type), .name = "other"};

PLUGIN(tern_figure_backend, tern_figure_plugin, TERN_FIGURE_ABI)
PLUGIN(tern_image_codec, tern_image_plugin, TERN_IMAGE_ABI)
PLUGIN(tern_nifti_backend, tern_nifti_plugin, TERN_NIFTI_ABI)
PLUGIN(tern_regex_backend, tern_regex_plugin, TERN_REGEX_ABI)
PLUGIN(tern_topology_backend, tern_topology_plugin, TERN_TOPOLOGY_ABI)
PLUGIN(tern_unicode_backend, tern_unicode_plugin, TERN_UNICODE_ABI)
