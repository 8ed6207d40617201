/* trace.c - counts a program's calls of CUDA's driver by name, with NVIDIA's callbacks (CUPTI):
 *
 *     cc -shared -fPIC -I$CUDA/include trace.c -o libtrace.so -L$CUDA/lib64 -lcupti
 *     CUDA_INJECTION64_PATH=$PWD/libtrace.so TRACE_FILE=calls.txt program
 *
 * When the program exits, it writes a line "count name" for each function that was called. */
#include <cupti.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { FUNCTIONS = 4096 };

static struct {
    _Atomic long calls;
    const char *_Atomic name;
} functions[FUNCTIONS];

static void CUPTIAPI count(void *user, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    const CUpti_CallbackData *call = data;
    (void)user, (void)domain;
    if (call->callbackSite != CUPTI_API_ENTER || id >= FUNCTIONS) return;
    functions[id].name = call->functionName;
    functions[id].calls++;
}

static void write_counts(void)
{
    const char *path = getenv("TRACE_FILE");
    FILE *file = path ? fopen(path, "we") : NULL;
    if (!file) return;
    for (int id = 0; id < FUNCTIONS; id++)
        if (functions[id].calls) fprintf(file, "%ld %s\n", (long)functions[id].calls, functions[id].name);
    fclose(file);
}

/* The driver calls this function when the program starts to use CUDA. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    CUpti_SubscriberHandle subscriber;
    if (cuptiSubscribe(&subscriber, count, NULL) != CUPTI_SUCCESS ||
        cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) != CUPTI_SUCCESS) {
        fputs("trace: CUPTI cannot subscribe to driver calls\n", stderr);
        return 0;
    }
    atexit(write_counts);
    return 1;
}
