/* test_conv_choice.c - how the algorithm of a convolution is chosen: by measuring, by the file, by the
 * choices of others, or by the fixed table. */
#include "kernels/conv_choice.h"

#include "kernels/cpu/amx.h"

#include <tern/preempt.h>

#include <fcntl.h>
#include <math.h>

/* Returns the algorithm that a new device with these rules uses. */
static const char *taken(bool exact, bool deterministic, size_t workspace)
{
    tern_device *device = open_device(exact, deterministic);
    device->conv.workspace = workspace;
    const char *name = run(device, TERN__CONV, 32);
    tern_device_close(device);
    return name;
}

#define ROOM ((size_t)64 << 20)

/* ---- the file ---- */

static void count(void *ctx, const char *what, const char *name)
{
    (void)what;
    *(int *)ctx += *name != 0;
}

static int cases_in_file(void)
{
    int cases = 0;
    tern_device processor = {0};
    const tern__choice_machine machine = tern__choice_machine_of(&processor);
    tern__choice_file_read(&machine, count, &cases);
    return cases;
}

static void a_choice_is_kept_for_the_next_process(void **state)
{
    (void)state;
    folder f;
    find_alternative();
    folder_open(&f);
    struct stat about;
    tern_device *device = open_device(false, false);
    const char *names[3];
    for (int k = 0; k < 3; k++) names[k] = run(device, (tern__kernel)(TERN__CONV + k), 32);
    int cases = lines_in(&f);
    assert_in_range(cases, 1, 3);
    run(device, TERN__CONV, 32);
    tern_device_close(device);
    assert_int_equal(cases_in_file(), cases);
    assert_int_equal(tern__choices_count(), cases);
    device = open_device(false, false);
    for (int k = 0; k < 3; k++)
        assert_string_equal(run(device, (tern__kernel)(TERN__CONV + k), 32), names[k]);
    assert_int_equal(lines_in(&f), cases); /* nothing was measured again */
    tern_device_close(device);
    assert_int_equal(stat(f.file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    *strrchr(f.file, '/') = '\0';
    assert_int_equal(stat(f.file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0700);
    folder_close(&f);
}

static void the_file_decides_within_the_rules(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    const tern__conv_algorithm *fast = tern__conv_algorithms[other];
    folder_open(&f);
    store_choice(&f, 0);
    assert_string_equal(taken(false, false, ROOM), "direct");
    assert_string_equal(taken(false, true, ROOM), fast->name); /* the table's, whatever the file says */
    store_choice(&f, other);
    assert_string_equal(taken(false, false, ROOM), fast->name);
    assert_string_equal(taken(false, true, ROOM), fast->name);
    if (fast->rounds_f32) assert_string_equal(taken(true, false, ROOM), "direct");
    assert_int_equal(lines_in(&f), 1);
    folder_close(&f);
}

/* The file says that Winograd is the fastest; its workspace takes some MiB. */
static void no_algorithm_takes_more_workspace_than_it_may(void **state)
{
    (void)state;
    folder f;
    int winograd = 0;
    while (tern__conv_algorithms[winograd] && strcmp(tern__conv_algorithms[winograd]->name, "winograd"))
        winograd++;
    folder_open(&f);
    store_choice(&f, winograd);
    if (strcmp(taken(false, false, ROOM), "winograd")) skip_test("this CPU has no Winograd of oneDNN's");
    assert_string_not_equal(taken(false, false, 0), "winograd");
    assert_string_not_equal(taken(false, true, 0), "winograd");
    folder_close(&f);
}

/* The fixed table chooses, whatever the rules about f32 are: AMX tiles for bf16 if the CPU has them; Winograd
 * if the image has enough tiles; else oneDNN, which may compute in f32; else taps in f32. */
static void what_computes_16_bits(void **state)
{
    (void)state;
    const char *plain = tern__dnnl_has_convolutions() ? "direct" : "taps";
    tern_device *device = open_device(true, true);
    for (int k = TERN__CONV; k <= TERN__CONV_WEIGHT_GRAD; k++) {
        tern__kernel kernel = (tern__kernel)k;
        bool has_tiles = tern__amx_has();
        assert_string_equal(run_of(device, kernel, TERN_BF16, 32, 16), has_tiles ? "tiles" : "winograd");
        assert_string_equal(run_of(device, kernel, TERN_BF16, 32, 4), has_tiles ? "tiles" : plain);
        assert_string_equal(run_of(device, kernel, TERN_F16, 32, 16), "winograd");
        assert_string_equal(run_of(device, kernel, TERN_F16, 32, 4), plain);
    }
    device->conv.workspace = 0;
    assert_string_not_equal(run_of(device, TERN__CONV, TERN_BF16, 64, 16), "winograd");
    assert_string_equal(run_of(device, TERN__CONV, TERN_F16, 64, 16), "direct");
    tern_device_close(device);
}

/* A case under other rules is another case, with a line of its own. */
static void other_rules_are_measured_anew(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    folder_open(&f);
    store_choice(&f, other);
    assert_string_equal(taken(false, false, ROOM), tern__conv_algorithms[other]->name);
    assert_int_equal(lines_in(&f), 1);
    assert_non_null(taken(false, false, ROOM - 1));
    assert_int_equal(lines_in(&f), 2);
    folder_close(&f);
}

/* The file names an algorithm that tern no longer has, or that does not take the case. */
static void an_algorithm_that_cannot_run_is_measured_anew(void **state)
{
    (void)state;
    folder f;
    find_alternative();
    folder_open(&f);
    char text[2 * TERN__CHOICE_LINE], what[TERN__CONV_CASE];
    tern_device *device = open_device(false, false);
    const tern__choice_machine machine = tern__choice_machine_of(device);
    case_of(device, 32, what);
    store(&f, text, tern__choice_print(&machine, what, "magic", text));
    assert_non_null(run(device, TERN__CONV, 32));
    tern_device_close(device);
    assert_int_equal(lines_in(&f), 2);
    folder_close(&f);
}

static void the_last_line_of_a_case_counts(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    folder_open(&f);
    char text[3 * TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    size_t bytes = line_of(device, 32, other, text);
    bytes += line_of(device, 32, 0, text + bytes);
    store(&f, text, bytes);
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    tern_device_close(device);
    assert_int_equal(tern__choices_count(), 1);
    folder_close(&f);
}

static void every_prefix_of_a_file_is_read(void **state)
{
    (void)state;
    folder f;
    folder_open(&f);
    char text[2 * TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    size_t first = line_of(device, 32, 0, text), all = first + line_of(device, 16, 0, text + first);
    for (size_t cut = 0; cut <= all; cut++) {
        store(&f, text, cut);
        assert_int_equal(cases_in_file(), (cut >= first - 1) + (cut >= all - 1));
    }
    tern_device_close(device);
    folder_close(&f);
}

/* An incomplete line does not damage the next one. */
static void a_half_line_is_closed(void **state)
{
    (void)state;
    folder f;
    find_alternative();
    folder_open(&f);
    char text[TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    store(&f, text, line_of(device, 16, 0, text) / 2);
    run(device, TERN__CONV, 32);
    tern_device_close(device);
    assert_int_equal(cases_in_file(), 1);
    folder_close(&f);
}

/* Replaces the text after `from`, up to `stop`, and returns whether a device takes the line. */
static bool is_taken_with(const char *line, const char *from, char stop, const char *put)
{
    char changed[TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    const char *at = strstr(line, from);
    assert_non_null(at);
    at += strlen(from);
    int bytes = snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - line), line, put, strchr(at, stop));
    tern__choices_restore(device, changed, (size_t)bytes);
    bool taken = tern__choices_serial(device) > 0;
    tern_device_close(device);
    return taken;
}

static void what_is_no_line_of_ours_is_passed_over(void **state)
{
    (void)state;
    static const char *const values[] = {"1", "null", "[1]", "{}", "true"};
    char line[TERN__CHOICE_LINE], deep[TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    line_of(device, 32, 0, line);
    assert_true(is_taken_with(line, "\"choice\":", '}', "\"direct\""));
    for (size_t i = 0; i < TERN__COUNT(values); i++) {
        assert_false(is_taken_with(line, "\"case\":", '}', values[i]));
        assert_false(is_taken_with(line, "\"choice\":", '}', values[i]));
    }
    assert_false(is_taken_with(line, "\"tern\":", ',', "\"0.0.0\""));
    assert_false(is_taken_with(line, "\"device\":", ',', "\"imagined\""));
    assert_false(is_taken_with(line, "\"libraries\":", ',', "\"imagined\""));
    memset(deep, '[', sizeof(deep));
    tern__choices_read(device, deep, sizeof(deep) - 1);
    tern__choices_read(device, deep, sizeof(deep));
    tern__choices_read(device, "", 0);
    assert_int_equal(tern__choices_serial(device), 0);
    tern_device_close(device);
}

/* What another processor measured counts when another rank tells it, but not in the file or in a snapshot. */
static void another_processors_choice_is_followed(void **state)
{
    (void)state;
    char line[TERN__CHOICE_LINE], what[TERN__CONV_CASE];
    tern_device *device = open_device(false, false);
    tern__choice_machine machine = tern__choice_machine_of(device);
    machine.device[0] ^= 1;
    case_of(device, 32, what);
    size_t bytes = tern__choice_print(&machine, what, "direct", line);
    device->follows = true;
    tern__choices_restore(device, line, bytes);
    assert_int_equal(tern__choices_serial(device), 0);
    tern__choices_read(device, line, bytes);
    assert_int_equal(tern__choices_serial(device), 1);
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    tern_device_close(device);
}

/* Changes one byte at any position. The line may still be valid, but can only choose among correct
 * algorithms. */
static void garbage_changes_no_result(void **state)
{
    (void)state;
    char line[TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false);
    size_t bytes = line_of(device, 32, 0, line);
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t at = (seed >> 8) % bytes;
        char was = line[at];
        line[at] = (char)(seed >> 24);
        tern__choices_read(device, line, bytes);
        line[at] = was;
    }
    assert_non_null(run(device, TERN__CONV, 32));
    tern_device_close(device);
}

/* ---- files that are not trusted ---- */

static void only_a_file_of_the_users_own_is_read(void **state)
{
    (void)state;
    folder f;
    char real[160];
    folder_open(&f);
    store_choice(&f, 0);
    assert_int_equal(cases_in_file(), 1);
    if (geteuid() == 0) {
        assert_int_equal(chown(f.file, 12345, -1), 0);
        assert_int_equal(cases_in_file(), 0);
        assert_int_equal(chown(f.file, 0, -1), 0);
    }
    snprintf(real, sizeof(real), "%s.real", f.file);
    assert_int_equal(rename(f.file, real), 0);
    assert_int_equal(symlink(real, f.file), 0);
    assert_int_equal(cases_in_file(), 0);
    assert_int_equal(unlink(f.file), 0);
    assert_int_equal(mkfifo(f.file, 0600), 0);
    assert_int_equal(cases_in_file(), 0);
    assert_int_equal(unlink(f.file), 0);
    assert_int_equal(mkdir(f.file, 0700), 0);
    assert_int_equal(cases_in_file(), 0);
    find_alternative();
    assert_non_null(taken(false, false, ROOM)); /* although the choice cannot be written */
    folder_close(&f);
}

static void a_huge_file_is_put_aside(void **state)
{
    (void)state;
    folder f;
    struct stat about;
    folder_open(&f);
    store_choice(&f, 0);
    assert_int_equal(truncate(f.file, (off_t)TERN__CHOICE_FILE_MAX), 0);
    assert_int_equal(cases_in_file(), 1);
    assert_int_equal(truncate(f.file, (off_t)TERN__CHOICE_FILE_MAX + 1), 0);
    assert_int_equal(cases_in_file(), 0);
    assert_int_not_equal(stat(f.file, &about), 0);
    strcat(f.file, ".old");
    assert_int_equal(stat(f.file, &about), 0);
    folder_close(&f);
}

static void the_file_is_where_the_environment_says(void **state)
{
    (void)state;
    char path[128], small[8];
    setenv("TERN_CONV_CACHE", "off", 1);
    assert_false(tern__choices_path(path, sizeof(path)));
    setenv("TERN_CONV_CACHE", "here", 1);
    assert_true(tern__choices_path(path, sizeof(path)));
    assert_string_equal(path, "here");
    unsetenv("TERN_CONV_CACHE");
    setenv("HOME", "/h", 1);
    setenv("XDG_CACHE_HOME", "/c", 1);
    assert_true(tern__choices_path(path, sizeof(path)));
    assert_string_equal(path, "/c/tern/conv.jsonl");
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_true(tern__choices_path(path, sizeof(path)));
    assert_string_equal(path, "/h/.cache/tern/conv.jsonl");
    assert_false(tern__choices_path(small, sizeof(small)));
    unsetenv("HOME");
    assert_false(tern__choices_path(path, sizeof(path)));
    unsetenv("XDG_CACHE_HOME");
    setenv("TERN_CONV_CACHE", "off", 1);
}

/* ---- choices of other ranks and devices ---- */

static void who_follows_takes_what_it_is_told(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    char line[TERN__CHOICE_LINE];
    folder_open(&f);
    store_choice(&f, 0);
    tern_device *device = open_device(false, false);
    device->follows = true;
    assert_string_equal(run(device, TERN__CONV, 32), tern__conv_algorithms[other]->name); /* the table's */
    assert_string_equal(run(device, TERN__CONV_DATA_GRAD, 32), run(device, TERN__CONV_DATA_GRAD, 32));
    assert_int_equal(tern__choices_serial(device), 0);
    tern__choices_read(device, line, line_of(device, 32, 0, line));
    assert_string_equal(run(device, TERN__CONV, 32), "direct");
    tern__choices_read(device, line, line_of(device, 32, other, line));
    assert_string_equal(run(device, TERN__CONV, 32), tern__conv_algorithms[other]->name);
    tern__choices_read(device, line, line_of(device, 32, 0, line));
    device->conv.deterministic = true;
    assert_string_equal(run(device, TERN__CONV, 32),
                        tern__conv_algorithms[other]->name); /* must not measure */
    assert_int_equal(lines_in(&f), 1);
    tern_device_close(device);
    folder_close(&f);
}

/* As text, with the newest choices first and only whole lines that fit; and as a copy between devices. */
static void what_was_learned_goes_to_another_device(void **state)
{
    (void)state;
    char text[8 * TERN__CHOICE_LINE], line[TERN__CHOICE_LINE];
    find_alternative();
    tern_device *from = open_device(false, false), *to = open_device(false, false),
                *copy = open_device(false, false);
    to->follows = copy->follows = true;
    assert_int_equal(tern__choices_write(from, text, sizeof(text)), 0);
    const char *names[] = {run(from, TERN__CONV, 16), run(from, TERN__CONV, 32)};
    uint64_t serial = tern__choices_serial(from);
    assert_int_equal(serial, 2);
    run(from, TERN__CONV, 32);
    assert_int_equal(tern__choices_serial(from), serial);
    size_t bytes = tern__choices_write(from, text, sizeof(text));
    assert_int_equal(text[bytes - 1], '\n');
    size_t first = (size_t)(strchr(text, '\n') - text) + 1;
    assert_non_null(strstr(text, " x 2,32,"));
    assert_true(strstr(text, " x 2,32,") < text + first);
    assert_int_equal(tern__choices_write(from, line, first), 0);
    assert_int_equal(tern__choices_write(from, line, first + 1), first);
    tern__choices_read(to, text, bytes);
    tern__choices_copy(from, 0, copy);
    tern__choices_copy(from, serial, copy);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(run(to, TERN__CONV, 16 + 16 * i), names[i]);
        assert_string_equal(run(copy, TERN__CONV, 16 + 16 * i), names[i]);
    }
    assert_int_equal(tern__choices_serial(to), 2);
    assert_int_equal(tern__choices_serial(copy), 2);
    tern_device_close(from);
    tern_device_close(to);
    tern_device_close(copy);
}

/* A case that is learned again counts as the newest; a copy has the same order. */
static void the_newest_choices_come_first(void **state)
{
    (void)state;
    const int told[][2] = {{16, 0}, {32, 0}, {16, find_alternative()}};
    char text[8 * TERN__CHOICE_LINE], again[8 * TERN__CHOICE_LINE], line[TERN__CHOICE_LINE];
    tern_device *from = open_device(false, false), *copy = open_device(false, false);
    for (size_t i = 0; i < TERN__COUNT(told); i++)
        tern__choices_read(from, line, line_of(from, told[i][0], told[i][1], line));
    tern__choices_copy(from, 0, copy);
    tern__choices_write(from, text, sizeof(text));
    tern__choices_write(copy, again, sizeof(again));
    assert_string_equal(again, text);
    assert_true(strstr(text, " x 2,16,") < strchr(text, '\n'));
    assert_true(strstr(text, " x 2,32,") > strchr(text, '\n'));
    tern_device_close(from);
    tern_device_close(copy);
}

/* Two devices send each other a choice that neither of them has measured. */
static void what_is_told_is_news_once(void **state)
{
    (void)state;
    char line[TERN__CHOICE_LINE];
    find_alternative();
    tern_device *from = open_device(false, false), *to = open_device(false, false);
    tern__choices_read(from, line, line_of(from, 32, 0, line));
    for (int i = 0; i < 3; i++) {
        tern__choices_copy(from, 0, to);
        tern__choices_copy(to, 0, from);
        tern__choices_copy(from, 0, from);
    }
    assert_int_equal(tern__choices_serial(from), 1);
    assert_int_equal(tern__choices_serial(to), 1);
    assert_string_equal(run(to, TERN__CONV, 32), "direct");
    tern_device_close(from);
    tern_device_close(to);
}

/* ---- results ---- */

static double error_of(const tern__view *computed, const tern__view *exact)
{
    double error = 0, power = 0;
    int64_t number = tern__view_count(exact);
    for (int64_t i = 0; i < number; i++) {
        double e = tern__view_get(exact, i), difference = tern__view_get(computed, i) - e;
        error += difference * difference;
        power += e * e;
    }
    return sqrt(error / power);
}

/* Returns a bound of the error relative to the results' root mean square, for independent numbers. A sum of n
 * products that is rounded to u = 2^-24 after each has an error of at most u sqrt(n). Winograd's F(4x4, 3x3)
 * has some 30 more roundings between operand and result, and amplifies errors: with the matrices of Lavin and
 * Gray, along one axis, the mean over rows p of sum_i A_pi^2 |G_i|^2 |B_i|^2 is 32.3, for a result's 3 (43.1
 * for 4 in a weight's gradient); that makes 10.8 for both axes. Numbers split into two bf16 parts lack the
 * product of the low parts and the bits below the low part, each at most 2^-18 of a product. */
static double bound_of(const tern__conv_algorithm *a, int64_t n)
{
    if (!a->rounds_f32) return 0x1p-24 * sqrt((double)n);
    if (!strcmp(a->name, "tiles")) return 0x1p-24 * sqrt((double)n) + 3 * 0x1p-18;
    return 10.8 * 0x1p-24 * sqrt((double)n + 30);
}

static void every_algorithm_is_as_exact_as_it_says(void **state)
{
    (void)state;
    tern_device *device = open_device(false, true);
    for (int k = 0; k < 3; k++) {
        problem exact = problem_new((tern__kernel)(TERN__CONV + k), TERN_F64, 64, 13);
        place(&exact);
        exact.call.device = device;
        assert_int_equal(tern__reference_kernels[exact.call.kernel](&exact.call), TERN_OK);
        for (int i = 0; tern__conv_algorithms[i]; i++) {
            const tern__conv_algorithm *a = tern__conv_algorithms[i];
            problem p = problem_new((tern__kernel)(TERN__CONV + k), TERN_F32, 64, 13);
            place(&p);
            p.call.device = device;
            int status = tern__conv_run(&p.call, a);
            double error = status ? 0 : error_of(p.call.out[0], exact.call.out[0]);
            double bound = bound_of(a, k == 2 ? 2 * 13 * 13 : (k ? 32 : 64) * 9);
            problem_free(&p);
            if (status == TERN_E_UNSUPPORTED && i) continue;
            assert_int_equal(status, TERN_OK);
            if (!(error < bound)) fail_msg("%s, direction %d: %g, bound %g", a->name, k, error, bound);
        }
        problem_free(&exact);
    }
    tern_device_close(device);
}

/* ---- memory ---- */

static void a_warm_convolution_allocates_nothing(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    tern_device *device = open_device(false, false);
    problem p = problem_new(TERN__CONV, TERN_F32, 32, 8);
    place(&p);
    p.call.device = device;
    for (int i = 0; i < 4; i++) {
        if (i == 2) atomic_store(&books.requests, 0);
        assert_int_equal(tern__kernel_run(&p.call), TERN_OK);
    }
    assert_int_equal(atomic_load(&books.requests), 0);
    tern_device_close(device);
    problem_free(&p);
    ledger_close(&books);
}

/* The workspaces of algorithms that were not chosen and the results of timed runs are freed. */
static void measuring_leaves_no_memory_behind(void **state)
{
    (void)state;
    char text[4 * TERN__CHOICE_LINE];
    tern_device *device = open_device(false, false), *told = open_device(false, false);
    find_alternative();
    run(device, TERN__CONV, 64);
    tern__choices_read(told, text, tern__choices_write(device, text, sizeof(text)));
    run(told, TERN__CONV, 64);
    assert_int_equal(tern__device_bytes(device), tern__device_bytes(told));
    tern_device_close(device);
    tern_device_close(told);
}

/* If measuring runs out of memory the convolution is computed nevertheless, or returns E_MEMORY. */
static void memory_may_run_out(void **state)
{
    (void)state;
    folder f;
    folder_open(&f);
    store_choice(&f, 0);
    for (int number = 1, last = 0; number <= last + 1; number++) {
        ledger books = {0};
        tern_error err = {0};
        ledger_open(&books);
        tern_device *device = open_device(false, false);
        problem p = problem_new(TERN__CONV, TERN_F32, 32, 8);
        place(&p);
        p.call.device = device;
        p.call.err = &err;
        int before = atomic_load(&books.requests);
        books.refuse_at = before + number;
        int status = tern__kernel_run(&p.call);
        if (status) assert_int_equal(err.code, TERN_E_MEMORY);
        last = TERN__MAX(last, atomic_load(&books.requests) - before);
        tern_device_close(device);
        problem_free(&p);
        ledger_close(&books);
    }
    folder_close(&f);
}

/* ---- a request to stop ---- */

static tern_preempt *stopping;
static int blocks_until_asked;

static void *asking_alloc(size_t bytes, size_t align, void *ctx)
{
    (void)ctx;
    if (blocks_until_asked && --blocks_until_asked == 0) tern_preempt_ask(stopping);
    return aligned_alloc(align, tern__align_up(bytes, align));
}

static void asking_free(void *ptr, void *ctx)
{
    (void)ctx;
    free(ptr);
}

/* Before the case is measured (0), or while a trial has its memory. Nothing is kept, and the table's
 * algorithm computes it. */
static void who_is_asked_to_stop_measures_nothing(void **state)
{
    (void)state;
    folder f;
    int other = find_alternative();
    folder_open(&f);
    for (int blocks = 0; blocks <= 1; blocks++) {
        tern_error err = {0};
        tern_device *device = open_device(false, false);
        problem p = problem_new(TERN__CONV, TERN_F32, 32, 16);
        place(&p);
        p.call.device = device;
        p.call.err = &err;
        stopping = tern_preempt_new(NULL, NULL, &err);
        if (!blocks) tern_preempt_ask(stopping);
        blocks_until_asked = blocks;
        tern__allocator_replace(&(tern_allocator){.alloc = asking_alloc, .free = asking_free});
        assert_int_equal(tern__kernel_run(&p.call), TERN_OK);
        tern__allocator_replace(NULL);
        assert_int_equal(tern_preempt_pending(stopping, &err), 1);
        assert_string_equal(device->algorithm, tern__conv_algorithms[other]->name);
        assert_int_equal(tern__choices_serial(device), 0);
        assert_int_equal(lines_in(&f), 0);
        tern_preempt_free(stopping);
        assert_ok(err);
        problem_free(&p);
        run(device, TERN__CONV, 32); /* the request is over */
        assert_int_equal(tern__choices_serial(device), 1);
        tern_device_close(device);
        unlink(f.file);
    }
    folder_close(&f);
}

/* What it gathers (thin.c) is there while algorithms are tried and when the chosen one runs: the call that
 * measures has the bits of the next one. */
static void a_strided_1x1_is_measured_on_its_gathered_operand(void **state)
{
    (void)state;
    static const tern__conv_attr strided = {{1, 2, 2}, {0, 0, 0}, {1, 1, 1}, 1};
    tern_error err = {0};
    folder f;
    folder_open(&f);
    tern_device *device = open_device(false, false);
    for (int k = 0; k < 3; k++) {
        problem p = {.call = {.device = device, .kernel = TERN__CONV + k, .attr = &strided, .err = &err}};
        fill(&p.x, TERN_F32, TERN__BLOCKED16, (int64_t[]){2, 64, 65, 65}, 1);
        fill(&p.w, TERN_F32, TERN__PLAIN, (int64_t[]){32, 64, 1, 1}, 2);
        fill(&p.y, TERN_F32, TERN__BLOCKED16, (int64_t[]){2, 32, 33, 33}, 3);
        place(&p);
        const tern__view *out = p.call.out[0];
        size_t bytes = tern__view_bytes(out);
        char *first = malloc(bytes);
        assert_non_null(first);
        assert_int_equal(tern__kernel_run(&p.call), TERN_OK);
        memcpy(first, out->data, bytes);
        assert_int_equal(tern__kernel_run(&p.call), TERN_OK);
        assert_ok(err);
        assert_memory_equal(out->data, first, bytes);
        free(first);
        problem_free(&p);
    }
    tern_device_close(device);
    folder_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_is_kept_for_the_next_process),
        cmocka_unit_test(a_strided_1x1_is_measured_on_its_gathered_operand),
        cmocka_unit_test(the_file_decides_within_the_rules),
        cmocka_unit_test(no_algorithm_takes_more_workspace_than_it_may),
        cmocka_unit_test(what_computes_16_bits),
        cmocka_unit_test(other_rules_are_measured_anew),
        cmocka_unit_test(an_algorithm_that_cannot_run_is_measured_anew),
        cmocka_unit_test(the_last_line_of_a_case_counts),
        cmocka_unit_test(every_prefix_of_a_file_is_read),
        cmocka_unit_test(a_half_line_is_closed),
        cmocka_unit_test(what_is_no_line_of_ours_is_passed_over),
        cmocka_unit_test(another_processors_choice_is_followed),
        cmocka_unit_test(garbage_changes_no_result),
        cmocka_unit_test(only_a_file_of_the_users_own_is_read),
        cmocka_unit_test(a_huge_file_is_put_aside),
        cmocka_unit_test(the_file_is_where_the_environment_says),
        cmocka_unit_test(who_follows_takes_what_it_is_told),
        cmocka_unit_test(what_was_learned_goes_to_another_device),
        cmocka_unit_test(the_newest_choices_come_first),
        cmocka_unit_test(what_is_told_is_news_once),
        cmocka_unit_test(every_algorithm_is_as_exact_as_it_says),
        cmocka_unit_test(a_warm_convolution_allocates_nothing),
        cmocka_unit_test(measuring_leaves_no_memory_behind),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(who_is_asked_to_stop_measures_nothing),
    };
    setenv("TERN_CONV_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
