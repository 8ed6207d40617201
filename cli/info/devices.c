/* devices.c - the devices on which kernels can run: the CPU's, and the GPUs of the CUDA plug-in. */
#include "info/info.h"

#include "device/backend.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the number of GPUs; writes the versions of the CUDA libraries into text, or why there are no GPUs.
 */
static int count_cuda(const tern__device_backend **cuda, char *text, size_t size)
{
    tern_error why = {0};
    *cuda = tern__device_backend_open("cuda", &why);
    int count = *cuda ? (*cuda)->count(&why) : TERN_E_UNSUPPORTED;
    if (count < 0)
        snprintf(text, size, "no: %s", why.text);
    else
        (*cuda)->libraries(text, size);
    return count;
}

static void print_names(int cuda)
{
    char text[512];
    size_t used = (size_t)snprintf(text, sizeof(text), "cpu, cpu:reference");
    for (int i = 0; i < cuda && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, ", cuda:%d", i);
    tern__info_row("devices", text);
}

static void print_variable(const char *row, const char *name)
{
    char text[512];
    const char *value = getenv(name);
    snprintf(text, sizeof(text), "%s=%s", name, value ? value : "");
    if (value) tern__info_row(row, text);
}

void tern__info_devices(void)
{
    char text[TERN_ERROR_TEXT + 8], name[32];
    const tern__device_backend *cuda;
    int count = count_cuda(&cuda, text, sizeof(text));
    print_names(count);
    tern__info_row("cuda", text);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "cuda:%d", i);
        cuda->describe(i, text, sizeof(text));
        tern__info_row(name, text);
    }
    print_variable("visible", "CUDA_VISIBLE_DEVICES");
    print_variable("without", "TERN_CUDA_WITHOUT");
}
