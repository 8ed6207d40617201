/* quota.c - the CPU time that cgroups grant a process. The limits of its own group and of every group
 * above apply, as far as they are visible: in a container the own group may appear as the root. */
#include "device/device.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define UNIFIED "/sys/fs/cgroup"     /* mount point of cgroup version 2 */
#define CPU     "/sys/fs/cgroup/cpu" /* and of version 1's cpu controller */

/* Reads up to two numbers from the start of the group's file. Returns how many it has read. */
static int read_numbers(const char *group, const char *name, long numbers[2])
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof(path), "%s/%s", group, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int count = fscanf(file, "%ld %ld", &numbers[0], &numbers[1]);
    fclose(file);
    return count;
}

/* Returns the group's limit in cores. Version 2 has quota and period in one file, with "max" for no limit;
 * version 1 has two files, with -1 for no limit. */
static int cores_of(const char *group)
{
    long limit[2], period[2]; /* microseconds */
    if (read_numbers(group, "cpu.max", limit) != 2) {
        if (read_numbers(group, "cpu.cfs_quota_us", limit) < 1) return INT_MAX;
        if (read_numbers(group, "cpu.cfs_period_us", period) < 1) return INT_MAX;
        limit[1] = period[0];
    }
    if (limit[0] <= 0 || limit[1] <= 0) return INT_MAX;
    return (int)TERN__MAX(1, TERN__MIN((long)INT_MAX, limit[0] / limit[1]));
}

static int cores_up_from(const char *root, const char *path)
{
    char group[PATH_MAX];
    int cores = INT_MAX;
    if (snprintf(group, sizeof(group), "%s%s", root, path) >= (int)sizeof(group)) return cores_of(root);
    for (char *end = group + strlen(group); end; end = strrchr(group + strlen(root), '/')) {
        *end = '\0';
        int here = cores_of(group);
        cores = TERN__MIN(cores, here);
    }
    return cores;
}

static bool has_cpu(const char *controllers)
{
    for (const char *at = controllers;; at++) {
        size_t length = strcspn(at, ",");
        if (length == 3 && !strncmp(at, "cpu", length)) return true;
        at += length;
        if (!*at) return false;
    }
}

/* "0::/path" belongs to version 2, "4:cpu,cpuacct:/path" to version 1. */
static int cores_of_line(char *line)
{
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return INT_MAX;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (!*++controllers) return cores_up_from(UNIFIED, path);
    return has_cpu(controllers) ? cores_up_from(CPU, path) : INT_MAX;
}

int tern__device_quota(void)
{
    char line[PATH_MAX + 64];
    int cores = INT_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof(line), file)) {
        int here = cores_of_line(line);
        cores = TERN__MIN(cores, here);
    }
    if (file) fclose(file);
    return cores;
}
