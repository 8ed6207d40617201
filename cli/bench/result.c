/* result.c - what every bench does with its figures: takes medians and prints lines of JSON. */
#include "bench/bench.h"

#include <tern/device.h>

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tern__bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

void tern__bench_print(cJSON *line)
{
    char *text = cJSON_PrintUnformatted(line);
    if (text) puts(text);
    cJSON_free(text);
    cJSON_Delete(line);
}

void tern__bench_print_oversubscribed(int threads)
{
    int sharers, cores = tern_device_cores(&sharers);
    if (sharers * threads <= cores) return;
    printf("oversubscribed: %d rank%s x %d thread%s take turns on %d core%s\n", sharers,
           sharers == 1 ? "" : "s", threads, threads == 1 ? "" : "s", cores, cores == 1 ? "" : "s");
}
