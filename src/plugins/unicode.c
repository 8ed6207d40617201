/* unicode.c - the plug-in that knows Unicode's characters, with utf8proc. */
#include <tern/backend/unicode.h>

#include <utf8proc.h>

static const char *code_category(uint32_t code)
{
    return utf8proc_category_string((utf8proc_int32_t)code);
}

static uint32_t code_lower(uint32_t code)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
}

static bool is_grapheme_end(uint32_t before, uint32_t after, int32_t *state)
{
    return utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)after, state);
}

/* utf8proc_reencode writes over the codes, and a 0 after them. */
static ptrdiff_t text_normalize(tern_unicode_form form, const char *text, size_t bytes, int32_t *codes,
                                size_t room, size_t *made)
{
    bool composes = form == TERN_UNICODE_NFC || form == TERN_UNICODE_NFKC;
    bool is_compatible = form == TERN_UNICODE_NFKC || form == TERN_UNICODE_NFKD;
    int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (is_compatible) options |= UTF8PROC_COMPAT;
    ptrdiff_t count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, codes,
                                         (utf8proc_ssize_t)room, (utf8proc_option_t)options);
    if (count >= 0 && (size_t)count >= room) return count + 1;
    if (count >= 0) count = utf8proc_reencode(codes, count, (utf8proc_option_t)options);
    if (count < 0) return count == UTF8PROC_ERROR_NOMEM ? TERN_E_MEMORY : TERN_E_FORMAT;
    *made = (size_t)count;
    return 0;
}

TERN_API extern const tern_unicode_backend tern_unicode_plugin;
const tern_unicode_backend tern_unicode_plugin = {.abi = TERN_UNICODE_ABI,
                                                  .size = sizeof(tern_unicode_backend),
                                                  .name = "utf8proc",
                                                  .category = code_category,
                                                  .lower = code_lower,
                                                  .is_grapheme_end = is_grapheme_end,
                                                  .normalize = text_normalize};
