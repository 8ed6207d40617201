/* error.c - errors and status codes. */
#include "base/base.h"
#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#ifndef TERN_VERSION
#define TERN_VERSION "unknown"
#endif

const char *tern_version(void)
{
    return TERN_VERSION;
}

const char *tern_status_name(int status)
{
    switch (status) {
#define X(name, value, text)                                                                                 \
    case value: return #name;
        TERN_STATUS_LIST(X)
#undef X
    }
    return "?";
}

const char *tern_status_text(int status)
{
    switch (status) {
#define X(name, value, text)                                                                                 \
    case value: return text;
        TERN_STATUS_LIST(X)
#undef X
    }
    return "?";
}

int tern__error_vset(tern_error *err, const char *func, int code, int native, const char *fmt, va_list args)
{
    if (!err || err->code != TERN_OK) return code;
    err->code = code;
    err->native = native;
    err->func = func;
    tern__message_vformat(err->text, sizeof(err->text), fmt, args);
    return code;
}

int tern__error_set(tern_error *err, const char *func, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    tern__error_vset(err, func, code, 0, fmt, args);
    va_end(args);
    return code;
}

int tern__need(const void *argument, const char *name, const char *func, tern_error *err)
{
    return argument ? TERN_OK : tern__error_set(err, func, TERN_E_INVALID, "the %s is NULL", name);
}

int tern_error_set(tern_error *err, const char *func, int code, const char *format, ...)
{
    if (code >= 0) code = TERN_E_INVALID;
    va_list args;
    va_start(args, format);
    tern__error_vset(err, func, code, 0, format, args);
    va_end(args);
    return code;
}

int tern__error_errno(tern_error *err, const char *func, int code, const char *fmt, ...)
{
    int native = errno;
    if (!err || err->code != TERN_OK) return code;
    char text[TERN_ERROR_TEXT];
    const char *reason = strerror(native);
    va_list args;
    va_start(args, fmt);
    tern__message_vformat(text, sizeof(text) - strlen(": ") - strlen(reason), fmt, args);
    va_end(args);
    tern__error_set(err, func, code, "%s: %s", text, reason);
    err->native = native;
    return code;
}

bool tern__is_shortage(int native)
{
    return native == EMFILE || native == ENFILE || native == ENOBUFS || native == ENOMEM;
}

int tern_error_print(const tern_error *err)
{
    if (!err || err->code == TERN_OK) return 0;
    char line[TERN__MESSAGE_MOST]; /* a callback may have written the text itself */
    tern__message_format(line, sizeof(line), "%s%s%s", err->func ? err->func : "", err->func ? ": " : "",
                         err->text);
    fflush(stdout);
    fprintf(stderr, "tern: %s\n", line);
    return 1;
}
