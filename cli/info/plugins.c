/* plugins.c - which plug-ins can be loaded, and if not, why; and the communication back ends that result. */
#include "info/info.h"

#include "base/plugin.h"
#include "comm/move/backend.h"
#include "comm/move/nccl/plugin.h"

#include <tern/backend/figure.h>
#include <tern/backend/image.h>
#include <tern/backend/mpi.h>
#include <tern/backend/nifti.h>
#include <tern/backend/topology.h>
#include <tern/backend/transport.h>

#include <stdio.h>
#include <string.h>

typedef struct plugin {
    const char *name, *file, *symbol;
    bool is_transport;
} plugin;

static const plugin plugins[] = {
    {"figure", "tern_figure.so", TERN_FIGURE_SYMBOL, false},
    {"jpeg", "tern_jpeg.so", TERN_IMAGE_SYMBOL, false},
    {"png", "tern_png.so", TERN_IMAGE_SYMBOL, false},
    {"tiff", "tern_tiff.so", TERN_IMAGE_SYMBOL, false},
    {"nifti", "tern_nifti.so", TERN_NIFTI_SYMBOL, false},
    {"topology", "tern_topology.so", TERN_TOPOLOGY_SYMBOL, false},
    {"openmpi", "tern_openmpi.so", TERN_TRANSPORT_SYMBOL, true},
    {"mpich", "tern_mpich.so", TERN_TRANSPORT_SYMBOL, true},
    {"gloo", "tern_gloo.so", TERN_TRANSPORT_SYMBOL, true},
};

static const plugin *find_plugin(const char *name)
{
    const plugin *found = plugins;
    while (strcmp(found->name, name) != 0) found++;
    return found;
}

static bool is_here(const char *name)
{
    return tern__plugin_open(find_plugin(name)->file, find_plugin(name)->symbol, NULL) != NULL;
}

static void print_plugin(const plugin *p)
{
    char text[TERN_ERROR_TEXT + 64];
    tern_error why = {0};
    const void *found = tern__plugin_open(p->file, p->symbol, &why);
    if (!found)
        snprintf(text, sizeof(text), "no: %s", why.text);
    else if (p->is_transport)
        ((const tern_transport *)found)->version(text, sizeof(text));
    else
        snprintf(text, sizeof(text), "%s", p->file);
    tern__info_row(p->name, text);
}

/* Writes "NCCL 2.28.9", or what is missing. Returns whether NCCL is there. */
static bool describe_nccl(char *text, size_t size)
{
    tern_error why = {0};
    const tern__nccl_plugin *found = tern__plugin_open("tern_nccl.so", TERN__NCCL_SYMBOL, &why);
    if (found)
        found->describe(text, size);
    else
        snprintf(text, size, "no: %s", why.text);
    return found;
}

void tern__info_back_ends(void)
{
    static const struct {
        const char *name, *transport;
    } all[] = {
        {"native", ""}, {"mpi", "mpi"}, {"gloo", "gloo"}, {"native+mpi", "mpi"}, {"native+gloo", "gloo"}};
    char text[192], nccl[TERN_ERROR_TEXT + 64];
    size_t used = (size_t)snprintf(text, sizeof(text), "self");
    bool has_mpi = is_here("openmpi") || is_here("mpich"), has_gloo = is_here("gloo");
    for (size_t i = 0; i < TERN__COUNT(all); i++) {
        bool lacks = (all[i].transport[0] == 'm' && !has_mpi) || (all[i].transport[0] == 'g' && !has_gloo);
        if (lacks || tern__comm_check(all[i].name, __func__, NULL)) continue;
        used += (size_t)snprintf(text + used, sizeof(text) - used, ", %s", all[i].name);
    }
    snprintf(text + used, sizeof(text) - used, "%s; debug+ before any",
             describe_nccl(nccl, sizeof(nccl)) ? "; nccl+ before any" : "");
    tern__info_row("collectives", text);
}

void tern__info_plugins(void)
{
    char nccl[TERN_ERROR_TEXT + 64];
    for (size_t i = 0; i < TERN__COUNT(plugins); i++) print_plugin(&plugins[i]);
    describe_nccl(nccl, sizeof(nccl));
    tern__info_row("nccl", nccl);
}
