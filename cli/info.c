/* tern info - what this build is and what this machine offers it. */
#include "cli.h"

#include "comm/backend.h"
#include "device/device.h"

#include <cjson/cJSON.h>
#include <oneapi/dnnl/dnnl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

static void print_row(const char *name, const char *value)
{
    printf("%-14s %s\n", name, value);
}

/* ---- the processor, from /proc/cpuinfo's first entry ---- */

/* The value of the first line that begins with `key`, a copy to be freed; NULL if there is none. */
static char *read_cpuinfo(const char *key)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char *line = NULL, *value = NULL;
    size_t size = 0;
    while (file && !value && getline(&line, &size, file) > 0) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key))) continue;
        line[strcspn(line, "\n")] = '\0';
        value = strdup(colon + 1 + strspn(colon + 1, " "));
    }
    free(line);
    if (file) fclose(file);
    return value;
}

/* Whether `word` is one of the words in `text`, which spaces part. */
static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
    return false;
}

/* Those of the processor's flags for which oneDNN or tern's own loops have a path. */
static void print_features(void)
{
    static const char *const wanted[] = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"};
    char *flags = read_cpuinfo("flags"), found[256] = "none of those that tern uses";
    size_t used = 0;
    for (size_t i = 0; i < TERN__COUNT(wanted); i++)
        if (flags && has_word(flags, wanted[i]))
            used += (size_t)snprintf(found + used, sizeof(found) - used, "%s%s", used ? " " : "", wanted[i]);
    print_row("features", found);
    free(flags);
}

static void print_machine(void)
{
    char text[64], *model = read_cpuinfo("model name");
    print_row("processor", model ? model : "unknown");
    free(model);
    print_features();
    snprintf(text, sizeof(text), "%d that may be used, %ld online", tern__device_cores(),
             sysconf(_SC_NPROCESSORS_ONLN));
    print_row("cores", text);
    snprintf(text, sizeof(text), "%ld bytes", sysconf(_SC_PAGESIZE));
    print_row("page", text);
}

/* ---- what this build contains ---- */

static void print_back_ends(void)
{
    char text[64];
    snprintf(text, sizeof(text), "%s, %s", tern__comm_native.name, tern__comm_self.name);
    print_row("devices", "cpu, cpu:reference");
    print_row("collectives", text);
}

static void print_libraries(void)
{
    char text[64];
    const dnnl_version_t *dnnl = dnnl_version();
    snprintf(text, sizeof(text), "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
    print_row("oneDNN", text);
    print_row("zlib", zlibVersion());
    print_row("libsodium", sodium_version_string());
    unsigned xxhash = XXH_versionNumber();
    snprintf(text, sizeof(text), "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
    print_row("xxHash", text);
    print_row("cJSON", cJSON_Version());
#ifdef _OPENMP
    snprintf(text, sizeof(text), "specification %d", _OPENMP);
    print_row("OpenMP", text);
#else
    print_row("OpenMP", "not built in");
#endif
}

int tern__cli_info(int argc, char **argv)
{
    if (argc > 1) {
        fprintf(stderr, "tern info: expected no arguments, got \"%s\"\n", argv[1]);
        return TERN__EXIT_USAGE;
    }
    print_row("tern", tern_version());
    print_machine();
    print_back_ends();
    print_libraries();
    return fflush(stdout) ? TERN__EXIT_FAILED : TERN__EXIT_OK;
}
