/* mpi.c - finds out which MPI the job uses, and loads the plug-in for it. */
#include "comm/bootstrap/mpi.h"

#include "base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef tern__mpi_flavour flavour;

static const flavour flavours[] = {
    {"Open MPI", "Open MPI", "tern_openmpi.so", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_RANK"},
    {"MPICH", "MPICH", "tern_mpich.so", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
};

const flavour *tern__mpi_launcher(void)
{
    for (size_t i = 0; i < TERN__COUNT(flavours); i++)
        if (getenv(flavours[i].rank) && getenv(flavours[i].size) && getenv(flavours[i].mark))
            return &flavours[i];
    return NULL;
}

/* ---- the program's own MPI ---- */

typedef int version_fn(char *text, int *length);

static version_fn *linked_mpi(void)
{
    version_fn *ask;
    void *found = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    memcpy(&ask, &found, sizeof(ask));
    return ask;
}

bool tern__mpi_is_linked(void)
{
    return linked_mpi() != NULL;
}

/* Returns the flavour of the program's MPI. MPI_Get_library_version may be called before MPI_Init. */
static const flavour *of_program(char *text, size_t size)
{
    static const int room = 8192; /* MPICH's MPI_MAX_LIBRARY_VERSION_STRING; Open MPI's is smaller */
    char *full = tern__alloc((size_t)room + 1, __func__, NULL);
    const flavour *found = NULL;
    int length = 0;
    if (!full) return NULL;
    linked_mpi()(full, &length);
    for (size_t i = 0; i < TERN__COUNT(flavours) && !found; i++)
        if (strstr(full, flavours[i].text)) found = &flavours[i];
    snprintf(text, size, "the program's MPI is %.*s", (int)strcspn(full, "\n,"), full);
    tern__free(full);
    return found;
}

/* Returns the flavour to load, or NULL, and writes the reason to `text`. */
static const flavour *choose_plugin(char *text, size_t size)
{
    const flavour *f = tern__mpi_launcher();
    if (tern__mpi_is_linked()) return of_program(text, size);
    if (f)
        snprintf(text, size, "%s has started this process (%s=%s)", f->name, f->size, getenv(f->size));
    else
        snprintf(text, size, "the program has no MPI, and no mpirun has started it");
    return f;
}

static const tern_mpi *load_plugin(const flavour *f, const char *text, tern_error *err)
{
    tern_error why = {0};
    const tern_mpi *mpi = tern__plugin_open(f->file, TERN_MPI_SYMBOL, &why);
    if (mpi && mpi->abi == TERN_MPI_ABI && mpi->size >= sizeof(*mpi)) return mpi;
    if (mpi)
        tern__error_set(&why, __func__, TERN_E_UNSUPPORTED, "the plug-in %s is from another build of tern",
                        f->file);
    tern__error_set(err, "tern_group_open", TERN_E_UNSUPPORTED, "%s, but %s", text, why.text);
    return NULL;
}

const tern_mpi *tern__mpi_find(tern_error *err)
{
    char text[192];
    const flavour *f = choose_plugin(text, sizeof(text));
    if (f) return load_plugin(f, text, err);
    tern__error_set(err, "tern_group_open", TERN_E_UNSUPPORTED,
                    "no MPI for this job: %s; there are plug-ins for Open MPI and MPICH", text);
    return NULL;
}

const tern_transport *tern__mpi_transport(tern_error *err)
{
    const tern_mpi *mpi = tern__mpi_find(err);
    return mpi ? mpi->transport : NULL;
}
