/* regex.c - the plug-in for regular expressions, with PCRE2. */
#include <tern/backend/regex.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

enum { STACK_FIRST = 32 << 10, STACK_MOST = 8 << 20 /* bytes, of compiled expressions */ };

typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} matcher;

static void reason_write(int code, char *why, size_t why_size)
{
    if (pcre2_get_error_message(code, (PCRE2_UCHAR *)why, why_size) < 0)
        snprintf(why, why_size, "PCRE2's error %d", code);
}

/* The new line is always \n, whatever PCRE2 was built for. Where the processor has no compiler in PCRE2, its
 * interpreter finds the same. */
static void *expression_compile(const char *pattern, size_t bytes, char *why, size_t why_size)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context || pcre2_set_newline(context, PCRE2_NEWLINE_LF)) {
        snprintf(why, why_size, "out of memory");
        pcre2_compile_context_free(context);
        return NULL;
    }
    pcre2_code *made =
        pcre2_compile((PCRE2_SPTR)pattern, bytes,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                      &code, &at, context);
    pcre2_compile_context_free(context);
    if (made)
        pcre2_jit_compile(made, PCRE2_JIT_COMPLETE);
    else
        reason_write(code, why, why_size);
    return made;
}

static void expression_free(void *expression)
{
    pcre2_code_free(expression);
}

static void matcher_free(void *given)
{
    matcher *m = given;
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static void *matcher_new(void)
{
    matcher *m = calloc(1, sizeof(*m));
    if (!m) return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MOST, NULL);
    if (m->data && m->context && m->stack) {
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        return m;
    }
    matcher_free(m);
    return NULL;
}

static int expression_find(const void *expression, void *given, const char *text, size_t bytes, size_t from,
                           size_t at[2], char *why, size_t why_size)
{
    matcher *m = given;
    int found =
        pcre2_match(expression, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (found == PCRE2_ERROR_NOMATCH) return 0;
    if (found < 0) {
        reason_write(found, why, why_size);
        return found == PCRE2_ERROR_NOMEMORY ? TERN_E_MEMORY : TERN_E_FORMAT;
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->data);
    at[0] = place[0];
    at[1] = place[1];
    return 1;
}

TERN_API extern const tern_regex_backend tern_regex_plugin;
const tern_regex_backend tern_regex_plugin = {.abi = TERN_REGEX_ABI,
                                              .size = sizeof(tern_regex_backend),
                                              .name = "PCRE2",
                                              .compile = expression_compile,
                                              .free = expression_free,
                                              .matcher_new = matcher_new,
                                              .matcher_free = matcher_free,
                                              .find = expression_find};
