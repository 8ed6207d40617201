/* unicode.h - the interface of the plug-in that knows Unicode's characters: one const struct in a shared
 * object that is installed beside the library.
 *
 * Threads: any. A code is a character's number, not of a surrogate and at most U+10FFFF. */
#ifndef TERN_BACKEND_UNICODE_H
#define TERN_BACKEND_UNICODE_H

#include <tern/base.h>

#define TERN_UNICODE_ABI    1
#define TERN_UNICODE_SYMBOL "tern_unicode_plugin"

/* Unicode's normal forms (Standard Annex 15). */
typedef enum tern_unicode_form {
    TERN_UNICODE_NFC,
    TERN_UNICODE_NFD,
    TERN_UNICODE_NFKC,
    TERN_UNICODE_NFKD
} tern_unicode_form;

typedef struct tern_unicode_backend {
    int abi;     /* TERN_UNICODE_ABI */
    size_t size; /* sizeof(tern_unicode_backend) of the plug-in's build: members beyond it are absent */
    const char *name;
    /* Returns the two letters of the general category: "Mn". */
    const char *(*category)(uint32_t code);
    /* Returns the lower case, where that is a single character, else the character itself. */
    uint32_t (*lower)(uint32_t code);
    /* Returns whether a grapheme cluster (Standard Annex 29) ends between two characters that follow each
     * other. *state is 0 at the begin of a text, and is changed. */
    bool (*is_grapheme_end)(uint32_t before, uint32_t after, int32_t *state);
    /* Puts text[0..bytes), which is UTF-8, into a form. The result, UTF-8, begins at codes[0], and *made is
     * its length in bytes. Returns 0; or how many codes there have to be if there are too few; or a negative
     * tern_status. */
    ptrdiff_t (*normalize)(tern_unicode_form form, const char *text, size_t bytes, int32_t *codes,
                           size_t room, size_t *made);
} tern_unicode_backend;

#endif
