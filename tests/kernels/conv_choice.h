/* conv_choice.h - runs a convolution on a device that may measure, and reads and writes the file of choices.
 */
#ifndef TERN_TESTS_KERNELS_CONV_CHOICE_H
#define TERN_TESTS_KERNELS_CONV_CHOICE_H

#include "ledger.h"

#include "device/choice_file.h"
#include "device/choices.h"
#include "kernels/cpu/conv/choice.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a convolution of random numbers ---- */

typedef struct problem {
    tern__view x, w, y;
    tern__call call;
} problem;

static tern__conv_attr attr = {{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1};

static inline void fill(tern__view *view, tern_dtype dtype, tern__layout layout, const int64_t *shape,
                        uint32_t seed)
{
    *view = tern__view_make(dtype, layout, 4, shape);
    view->data = aligned_alloc(TERN__LINE, tern__align_up(tern__view_bytes(view), TERN__LINE));
    assert_non_null(view->data);
    int64_t count = tern__view_count(view);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        tern__view_set(view, i, (double)(int32_t)(seed & ~255u) * 0x1p-31);
    }
}

static inline problem problem_new(tern__kernel kernel, tern_dtype dtype, int64_t channels, int64_t size)
{
    problem p;
    tern__layout layout = dtype == TERN_F64 ? TERN__PLAIN : TERN__BLOCKED16;
    fill(&p.x, dtype, layout, (int64_t[]){2, channels, size, size}, 1);
    fill(&p.w, dtype, TERN__PLAIN, (int64_t[]){32, channels, 3, 3}, 2);
    fill(&p.y, dtype, layout, (int64_t[]){2, 32, size, size}, 3);
    p.call = (tern__call){.kernel = kernel, .attr = &attr};
    return p;
}

static inline void problem_free(problem *p)
{
    free(p->x.data);
    free(p->w.data);
    free(p->y.data);
}

static inline void place(problem *p)
{
    const tern__view *in[][2] = {{&p->x, &p->w}, {&p->y, &p->w}, {&p->y, &p->x}};
    const tern__view *out[] = {&p->y, &p->x, &p->w};
    int k = (int)p->call.kernel - TERN__CONV;
    p->call.in[0] = in[k][0];
    p->call.in[1] = in[k][1];
    p->call.out[0] = out[k];
}

static inline const char *run_of(tern_device *device, tern__kernel kernel, tern_dtype dtype, int64_t channels,
                                 int64_t size)
{
    tern_error err = {0};
    problem p = problem_new(kernel, dtype, channels, size);
    place(&p);
    p.call.device = device;
    p.call.err = &err;
    device->algorithm = NULL;
    assert_int_equal(tern__kernel_run(&p.call), TERN_OK);
    assert_ok(err);
    problem_free(&p);
    return device->algorithm;
}

/* Runs the convolution and returns the name of the algorithm that computed it. */
static inline const char *run(tern_device *device, tern__kernel kernel, int64_t channels)
{
    return run_of(device, kernel, TERN_F32, channels, 16);
}

/* Opens a device with these rules, whatever the environment of the tests says: by default it forbids to
 * measure. */
static inline tern_device *open_device(bool exact, bool deterministic)
{
    tern_error err = {0};
    tern_device *device = tern_device_open("cpu", &err);
    tern_device_conv_opts rules = tern_device_conv_defaults();
    rules.exact = exact;
    rules.deterministic = deterministic;
    tern_device_conv_set(device, &rules, &err);
    tern_device_threads_set(device, 1, &err);
    assert_ok(err);
    return device;
}

/* Returns the index of another algorithm than 0 that takes these cases. Skips the test if this machine has
 * none. */
static inline int find_alternative(void)
{
    tern_device *device = open_device(false, true);
    const char *name = run(device, TERN__CONV, 32);
    int found = 0;
    for (int i = 0; tern__conv_algorithms[i]; i++)
        if (!strcmp(tern__conv_algorithms[i]->name, name)) found = i;
    tern_device_close(device);
    if (!found) skip_test("this CPU has no other algorithm than the first");
    return found;
}

/* ---- files ---- */

typedef struct folder {
    char name[64], file[128];
} folder;

static inline void folder_open(folder *f)
{
    strcpy(f->name, "/tmp/tern-choice-XXXXXX");
    assert_non_null(mkdtemp(f->name));
    snprintf(f->file, sizeof(f->file), "%s/a/b/conv.jsonl", f->name);
    setenv("TERN_CONV_CACHE", f->file, 1);
}

static inline void folder_close(folder *f)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", f->name);
    assert_int_equal(system(command), 0);
    setenv("TERN_CONV_CACHE", "off", 1);
}

static inline size_t load(const char *name, char *text, size_t size)
{
    FILE *file = fopen(name, "re");
    size_t bytes = file ? fread(text, 1, size - 1, file) : 0;
    if (file) fclose(file);
    text[bytes] = '\0';
    return bytes;
}

static inline void store(const folder *f, const char *text, size_t bytes)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/a", f->name);
    mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/a/b", f->name);
    mkdir(path, 0700);
    FILE *file = fopen(f->file, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline int lines_in(const folder *f)
{
    static char text[1 << 16];
    int lines = 0;
    load(f->file, text, sizeof(text));
    for (char *at = text; (at = strchr(at, '\n')); at++) lines++;
    return lines;
}

/* Writes the case that run() computes, as this device names it. */
static inline void case_of(tern_device *device, int64_t channels, char what[TERN__CONV_CASE])
{
    problem p = problem_new(TERN__CONV, TERN_F32, channels, 16);
    place(&p);
    p.call.device = device;
    tern__conv c = {.call = &p.call, .attr = &attr};
    c.op[TERN__CONV_X].view = &p.x;
    c.op[TERN__CONV_W].view = &p.w;
    c.op[TERN__CONV_Y].view = &p.y;
    tern__conv_case(&c, what);
    problem_free(&p);
}

static inline size_t line_of(tern_device *device, int64_t channels, int chosen, char line[TERN__CHOICE_LINE])
{
    const tern__choice_machine machine = tern__choice_machine_of(device);
    char what[TERN__CONV_CASE];
    case_of(device, channels, what);
    return tern__choice_print(&machine, what, tern__conv_algorithms[chosen]->name, line);
}

static inline void store_choice(const folder *f, int chosen)
{
    char line[TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    store(f, line, line_of(device, 32, chosen, line));
    tern_device_close(device);
}

#endif
