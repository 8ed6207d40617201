/* info.c - `tern info`: prints what this build contains and what this machine offers. */
#include "info/info.h"
#include "cli.h"
#include "flags.h"

#include "comm/bootstrap/bootstrap.h"
#include "device/device.h"
#include "device/choice_file.h"
#include "device/choices.h"

#include <cjson/cJSON.h>
#include <getopt.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>
#ifndef TERN_WITHOUT_DNNL
#include <oneapi/dnnl/dnnl.h>
#endif

/* ---- rows ---- */

static cJSON *object; /* NULL: text */

void tern__info_begin(bool as_json)
{
    object = as_json ? cJSON_CreateObject() : NULL;
}

void tern__info_row(const char *name, const char *value)
{
    if (object)
        cJSON_AddStringToObject(object, name, value);
    else
        printf("%-14s %s\n", name, value);
}

void tern__info_end(void)
{
    char *text = object ? cJSON_Print(object) : NULL;
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(object);
    object = NULL;
}

/* ---- the processor ---- */

/* Is `word` one of the words in `text`, which are separated by spaces? */
static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at += length)
        if ((at == text || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
    return false;
}

/* Prints the processor's flags ("features" on ARM) for which oneDNN or tern has a code path. */
static void print_features(void)
{
    static const char *const wanted[] = {"avx2",     "fma",      "avx512f", "avx512_bf16",
                                         "amx_tile", "amx_bf16", "asimd",   "sve"};
    char flags[8192], found[256] = "none that tern uses";
    size_t used = 0;
    bool known = tern__device_cpuinfo("flags", flags, sizeof(flags)) ||
                 tern__device_cpuinfo("Features", flags, sizeof(flags));
    for (size_t i = 0; i < TERN__COUNT(wanted); i++)
        if (known && has_word(flags, wanted[i]))
            used += (size_t)snprintf(found + used, sizeof(found) - used, "%s%s", used ? " " : "", wanted[i]);
    tern__info_row("features", found);
}

static void print_machine(void)
{
    char text[64], model[128];
    tern__info_row("processor", tern__device_cpu_name(model, sizeof(model)) ? model : "unknown");
    print_features();
    snprintf(text, sizeof(text), "%d usable, %ld online", tern__device_cores(),
             sysconf(_SC_NPROCESSORS_ONLN));
    tern__info_row("cores", text);
    snprintf(text, sizeof(text), "%ld bytes", sysconf(_SC_PAGESIZE));
    tern__info_row("page", text);
}

/* ---- this build ---- */

static void print_libraries(void)
{
    char text[64];
#ifdef TERN_WITHOUT_DNNL
    tern__info_row("oneDNN", "none");
#else
    const dnnl_version_t *dnnl = dnnl_version();
    snprintf(text, sizeof(text), "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
    tern__info_row("oneDNN", text);
#endif
    tern__info_row("zlib", zlibVersion());
    tern__info_row("libsodium", sodium_version_string());
    unsigned xxhash = XXH_versionNumber();
    snprintf(text, sizeof(text), "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
    tern__info_row("xxHash", text);
    tern__info_row("cJSON", cJSON_Version());
#ifdef _OPENMP
    snprintf(text, sizeof(text), "specification %d", _OPENMP);
    tern__info_row("OpenMP", text);
#else
    tern__info_row("OpenMP", "not built in");
#endif
}

/* Prints the file of measured convolution algorithms and how many cases it has for this processor. */
static void print_choices(void)
{
    char path[PATH_MAX], text[PATH_MAX + 32];
    bool is_kept = tern__choices_path(path, sizeof(path));
    int count = is_kept ? tern__choices_count() : 0;
    snprintf(text, sizeof(text), "%s, %d case%s", path, count, count == 1 ? "" : "s");
    tern__info_row("convolutions", is_kept ? text : "choices are not saved");
}

/* ---- this process ---- */

/* Prints the rank that tern_group_open would take from the environment. */
static int print_start(void)
{
    char text[512];
    tern_error err = {0};
    tern__bootstrap boot;
    if (tern__bootstrap_from_env(&boot, &err)) return tern_error_print(&err);
    int used = snprintf(text, sizeof(text), "%s, rank %d of %d", boot.source, boot.rank, boot.world);
    if (boot.world > 1 && boot.port)
        snprintf(text + used, sizeof(text) - (size_t)used, ", %s %s port %d",
                 boot.by_agent ? "by torchrun's agent at" : "at", boot.addr, boot.port);
    tern__info_row("launcher", boot.world > 1 || strcmp(boot.source, "alone") ? text : "none");
    sodium_memzero(&boot, sizeof(boot));
    return TERN__EXIT_OK;
}

static bool wants_json;

static const tern__cli_option options[] = {
    {"json", .help = "print the rows as one JSON object instead of text", .on = &wants_json},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__info_page = {
    NULL,
    "Prints what this build contains and what this machine offers: the processor, devices, communication "
    "back ends, libraries, plug-ins (or why one cannot be loaded), the file of measured convolution "
    "algorithms, and the rank that the launcher's variables give.\n",
    options,
};

int tern__cli_info(int argc, char **argv)
{
    int status = tern__flags_read(&tern__info_page, "tern info", argc, argv);
    if (status) return status < 0 ? tern__cli_flush("tern info") : status;
    if (optind < argc) {
        tern__cli_complain("tern info", "expected no arguments, got \"%s\"", argv[optind]);
        return TERN__EXIT_USAGE;
    }
    tern__info_begin(wants_json);
    tern__info_row("tern", tern_version());
    print_machine();
    tern__info_devices();
    tern__info_back_ends();
    print_libraries();
    tern__info_plugins();
    print_choices();
    status = print_start();
    tern__info_end();
    int written = tern__cli_flush("tern info");
    return written ? written : status;
}
