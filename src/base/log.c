/* log.c - log messages: to the user's function or to standard error. */
#include "base/base.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static tern_log_fn user_fn;
static void *user_ctx;

void tern_log_set(tern_log_fn fn, void *ctx)
{
    user_fn = fn;
    user_ctx = ctx;
}

static tern_log_level default_bar(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *name = tern__env("TERN_LOG");
    for (int level = 0; name && level < (int)TERN__COUNT(level_names); level++)
        if (!strcmp(name, level_names[level])) return (tern_log_level)level;
    if (name && !atomic_flag_test_and_set(&told))
        fprintf(stderr, "tern: warn: TERN_LOG=\"%s\": expected error, warn, info or debug\n", name);
    return TERN_LOG_WARN;
}

void tern__log(tern_log_level level, const char *fmt, ...)
{
    if (!user_fn && level > default_bar()) return;
    char text[TERN__MESSAGE_MOST];
    va_list args;
    va_start(args, fmt);
    tern__message_vformat(text, sizeof(text), fmt, args);
    va_end(args);
    if (user_fn)
        user_fn(level, text, user_ctx);
    else
        fprintf(stderr, "tern: %s: %s\n", level_names[level], text);
}
