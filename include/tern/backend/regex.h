/* regex.h - the interface of the plug-in for regular expressions: one const struct in a shared object that is
 * installed beside the library.
 *
 * Threads: any; an expression may be used by several at once, each with a matcher of its own. */
#ifndef TERN_BACKEND_REGEX_H
#define TERN_BACKEND_REGEX_H

#include <tern/base.h>

#define TERN_REGEX_ABI    1
#define TERN_REGEX_SYMBOL "tern_regex_plugin"

typedef struct tern_regex_backend {
    int abi;     /* TERN_REGEX_ABI */
    size_t size; /* sizeof(tern_regex_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Compiles an expression in Perl's syntax on UTF-8, whose ^ and $ are the ends of lines. Returns NULL
     * with a reason in why[0..why_size). */
    void *(*compile)(const char *pattern, size_t bytes, char *why, size_t why_size);
    void (*free)(void *expression);
    void *(*matcher_new)(void); /* returns NULL if there is no memory */
    void (*matcher_free)(void *matcher);
    /* Looks for the first match at `from` or after it in text[0..bytes), which is UTF-8. Returns 1 and sets
     * at[0] and at[1] to its begin and end; 0 if there is none; or a negative tern_status with a reason. */
    int (*find)(const void *expression, void *matcher, const char *text, size_t bytes, size_t from,
                size_t at[2], char *why, size_t why_size);
} tern_regex_backend;

#endif
