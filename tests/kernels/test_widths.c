/* test_widths.c - one variable holds the kernels of oneDNN and of tern to an instruction set. Whether it does
 * is found once in a process, so each case has a process of its own. */
#include "check.h"

#include "kernels/cpu/amx.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/cpu/widths.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define AVX512 (dnnl_cpu_isa_avx512_core & ~dnnl_cpu_isa_avx2)

static void set_limits(const char *name, const char *older)
{
    unsetenv("ONEDNN_MAX_CPU_ISA");
    unsetenv("DNNL_MAX_CPU_ISA");
    if (name) setenv("ONEDNN_MAX_CPU_ISA", name, 1);
    if (older) setenv("DNNL_MAX_CPU_ISA", older, 1);
}

static void what_the_name_allows(void **unused)
{
    (void)unused;
    static const struct {
        const char *name, *older;
        bool wide, amx;
    } cases[] = {
        {NULL, NULL, true, true},
        {"ALL", "AVX2", true, true},
        {"default", NULL, true, true},
        {NULL, "ALL", true, true},
        {"AVX2", NULL, false, false},
        {"avx2", NULL, false, false},
        {NULL, "AVX2", false, false},
        {"AVX2", "ALL", false, false},
        {"SSE41", NULL, false, false},
        {"AVX512_CORE", NULL, true, false},
        {NULL, "AVX512_CORE", true, false},
        {"AVX512_CORE_AMX", NULL, true, true},
        {"avx512_core_amx", "SSE41", true, true},
    };
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        set_limits(cases[i].name, cases[i].older);
        assert_int_equal(tern__isa_allows("AVX512"), cases[i].wide);
        assert_int_equal(tern__isa_allows("AMX"), cases[i].amx);
        assert_int_equal(tern__isa_is_named(), cases[i].name || cases[i].older);
    }
}

/* Whether tern and oneDNN use AVX-512 in a process with these limits: bits 0 and 1; AMX: bit 2. */
static int used_with(const char *name, const char *older)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        set_limits(name, older);
        int used = tern__is_wide() | tern__amx_has() << 2;
        _exit(used | ((dnnl_get_effective_cpu_isa() & AVX512) != 0) << 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void both_are_held(void **unused)
{
    (void)unused;
    assert_int_equal(used_with("AVX2", NULL), 0);
    assert_int_equal(used_with(NULL, "AVX2"), 0);
    assert_int_equal(used_with("SSE41", "ALL"), 0);
    assert_in_set(used_with("AVX512_CORE", NULL), ((uintmax_t[]){0, 3}), 2);
    assert_in_set(used_with(NULL, NULL), ((uintmax_t[]){0, 3, 7}), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_name_allows),
        cmocka_unit_test(both_are_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
