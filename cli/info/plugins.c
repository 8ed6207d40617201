/* plugins.c - which plug-ins can be loaded, and if not, why; and the communication back ends that result. */
#include "info/info.h"

#include "base/plugin.h"
#include "base/text.h"
#include "comm/move/backend.h"
#include "comm/move/nccl/plugin.h"
#include "comm/move/transport/transport.h"

#include <tern/backend/transport.h>

#include <stdio.h>
#include <string.h>

static void print_missing(const char *name, const tern_error *why)
{
    char text[TERN_ERROR_TEXT + 64];
    snprintf(text, sizeof(text), "no: %s", why->text);
    tern__info_row(name, text);
}

static void print_transport(const char *name)
{
    char version[TERN_ERROR_TEXT];
    tern_error why = {0};
    const tern_transport *transport = tern__transport_find(name, &why);
    if (transport) {
        transport->version(version, sizeof(version));
        tern__info_row(name, version);
    } else
        print_missing(name, &why);
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

/* "mpi" stands for either MPI: a job brings its own. */
static bool has_transport(const char *name)
{
    if (!*name) return true;
    if (strcmp(name, "mpi") != 0) return tern__transport_find(name, NULL);
    return tern__transport_find("openmpi", NULL) || tern__transport_find("mpich", NULL);
}

void tern__info_back_ends(void)
{
    char text[192] = "self", nccl[TERN_ERROR_TEXT + 64];
    bool has_nccl = describe_nccl(nccl, sizeof(nccl));
    for (int i = 0; i < tern__comm_row_count; i++) {
        const tern__comm_row *row = &tern__comm_rows[i];
        bool is_front = row->kind == TERN__COMM_FRONT;
        bool is_there = is_front ? !*row->transport || has_nccl : has_transport(row->transport);
        if (is_there)
            tern__text_append(text, sizeof(text), is_front ? "; %s+ before any" : ", %s", row->name);
    }
    tern__info_row("collectives", text);
}

void tern__info_plugins(void)
{
    char nccl[TERN_ERROR_TEXT + 64];
    for (tern__plugin i = 0; i < TERN__PLUGIN_COUNT; i++) {
        char name[32];
        tern_error why = {0};
        sscanf(tern__plugin_file(i), "tern_%31[a-z]", name);
        if (tern__plugin_get(i, NULL, __func__, &why))
            tern__info_row(name, tern__plugin_file(i));
        else
            print_missing(name, &why);
    }
    print_transport("openmpi");
    print_transport("mpich");
    for (int i = 0; i < tern__comm_row_count; i++) {
        const tern__comm_row *row = &tern__comm_rows[i];
        if (strcmp(row->name, "mpi") != 0 && !strcmp(row->name, row->transport) &&
            row->kind == TERN__COMM_MOVER)
            print_transport(row->name);
    }
    describe_nccl(nccl, sizeof(nccl));
    tern__info_row("nccl", nccl);
}
