/* processor.c - what /proc/cpuinfo says about the processor. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

bool tern__device_cpuinfo(const char *key, char *value, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    bool found = false,
         begins = true; /* `begins`: at the start of a line, which may be longer than the buffer */
    while (file && !found && fgets(value, (int)size, file)) {
        const char *colon = begins && !strncmp(value, key, strlen(key)) ? strchr(value, ':') : NULL;
        begins = strchr(value, '\n') != NULL;
        if (!colon) continue;
        value[strcspn(value, "\n")] = '\0';
        colon += 1 + strspn(colon + 1, " ");
        memmove(value, colon, strlen(colon) + 1);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

bool tern__device_cpu_name(char *name, size_t size)
{
    char maker[64], part[64]; /* fgets puts the whole line here */
    if (tern__device_cpuinfo("model name", name, size)) return true;
    if (!tern__device_cpuinfo("CPU implementer", maker, sizeof(maker)) ||
        !tern__device_cpuinfo("CPU part", part, sizeof(part)))
        return false;
    snprintf(name, size, "ARM, maker %s, part %s", maker, part);
    return true;
}
