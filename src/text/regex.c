/* regex.c - translates Oniguruma's expressions into PCRE2's, and finds matches.
 *
 * Both know \p{L}, (?i:..), look-around and possessive repeats. They differ in what the short classes mean
 * beyond ASCII, so these are written out: \s is Unicode's White_Space, \w is letters, marks, decimal digits,
 * connectors and Latin-1's fractions and superscripts, \d is decimal digits, \h is a hexadecimal digit.
 * \p{Han} is the script itself, while PCRE2 would also take characters that several scripts share. A class
 * in a class, an intersection (&&) and a repeat of a counted repeat ({1,3}+) have other meanings in PCRE2
 * and are refused. */
#include "text/regex.h"

#include "base/plugin.h"
#include "base/text.h"

#include <tern/backend/regex.h>

#include <string.h>

#define WORD_CLASS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define WORD_SPACE "\\t-\\r\\x{85}\\p{Z}"

struct tern__regex {
    const tern_regex_backend *plugin;
    void *expression;
};

struct tern__regex_matcher {
    const tern_regex_backend *plugin;
    void *own;
};

/* ---- translating ---- */

typedef struct translation {
    const char *from;
    size_t bytes, at;
    bool in_class;
    char *out; /* has room for whatever any character becomes */
    size_t wrote;
    const char *refused; /* what has no translation; NULL: nothing */
} translation;

enum { GROWTH = 80 /* bytes that one character of an expression may become */ };

static void translation_write(translation *t, const char *text, size_t bytes)
{
    memcpy(t->out + t->wrote, text, bytes);
    t->wrote += bytes;
}

static void translation_text(translation *t, const char *text)
{
    translation_write(t, text, strlen(text));
}

/* Unicode's long names that are not scripts, and what PCRE2 calls them. */
static const struct {
    const char *name, *short_name;
} properties[] = {
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"Format", "Cf"},
    {"Alphabetic", "Alphabetic"},
    {"Lowercase", "Lowercase"},
    {"Uppercase", "Uppercase"},
    {"White_Space", "White_Space"},
    {"Any", "Any"},
    {"Emoji", "Emoji"},
};

/* Translates \p{..} or \P{..}, whose letter is at at[1]. */
static void translate_property(translation *t)
{
    char name[32];
    const char *open = t->from + t->at + 2, *close = NULL;
    if (t->at + 2 < t->bytes && *open == '{') close = memchr(open, '}', t->bytes - t->at - 2);
    size_t length = close ? (size_t)(close - open) - 1 : 0;
    translation_write(t, t->from + t->at, 2);
    t->at += 2;
    if (!length || length >= sizeof(name)) return;
    memcpy(name, open + 1, length);
    name[length] = '\0';
    const char *sign = *name == '^' ? "^" : "", *word = name + (*name == '^'),
               *found = strlen(word) <= 2 ? word : NULL;
    for (size_t i = 0; i < TERN__COUNT(properties); i++)
        if (!strcmp(word, properties[i].name)) found = properties[i].short_name;
    translation_text(t, "{");
    translation_text(t, sign);
    if (!found) translation_text(t, "sc:"); /* a script */
    translation_text(t, found ? found : word);
    translation_text(t, "}");
    t->at += length + 2;
}

/* Translates what begins with a backslash. */
static void translate_escape(translation *t)
{
    static const struct {
        char letter;
        const char *in_class, *outside; /* NULL: none */
    } classes[] = {
        {'s', WORD_SPACE, "[" WORD_SPACE "]"}, {'S', NULL, "[^" WORD_SPACE "]"},
        {'w', WORD_CLASS, "[" WORD_CLASS "]"}, {'W', NULL, "[^" WORD_CLASS "]"},
        {'d', "\\p{Nd}", "\\p{Nd}"},           {'D', "\\P{Nd}", "\\P{Nd}"},
        {'h', "0-9a-fA-F", "[0-9a-fA-F]"},     {'H', NULL, "[^0-9a-fA-F]"},
    };
    char letter = t->at + 1 < t->bytes ? t->from[t->at + 1] : '\0';
    for (size_t i = 0; i < TERN__COUNT(classes); i++) {
        if (classes[i].letter != letter) continue;
        const char *text = t->in_class ? classes[i].in_class : classes[i].outside;
        if (text) translation_text(t, text);
        if (!text) t->refused = "\\S, \\W or \\H in a class";
        t->at += 2;
        return;
    }
    if (letter == 'p' || letter == 'P')
        translate_property(t);
    else if (letter == 'u' && t->bytes - t->at >= 6) {
        translation_text(t, "\\x{");
        translation_write(t, t->from + t->at + 2, 4);
        translation_text(t, "}");
        t->at += 6;
    } else {
        size_t used = TERN__MIN((size_t)2, t->bytes - t->at);
        translation_write(t, t->from + t->at, used);
        t->at += used;
    }
}

static bool translation_follows(const translation *t, const char *text)
{
    size_t bytes = strlen(text);
    return t->bytes - t->at >= bytes && !memcmp(t->from + t->at, text, bytes);
}

/* Copies "[", with what may follow it and would else have a meaning of its own. */
static void translate_class_open(translation *t)
{
    t->in_class = true;
    size_t used = 1 + (t->at + 1 < t->bytes && t->from[t->at + 1] == '^');
    if (t->at + used < t->bytes && t->from[t->at + used] == ']') used++;
    translation_write(t, t->from + t->at, used);
    t->at += used;
}

static void translate_next(translation *t)
{
    char c = t->from[t->at];
    if (c == '\\') {
        translate_escape(t);
        return;
    }
    if (!t->in_class && c == '[') {
        translate_class_open(t);
        return;
    }
    if (t->in_class && c == '[' && translation_follows(t, "[:")) {
        const char *end = memchr(t->from + t->at, ']', t->bytes - t->at);
        size_t used = end ? (size_t)(end - t->from) - t->at + 1 : 1;
        translation_write(t, t->from + t->at, used);
        t->at += used;
        return;
    }
    if (t->in_class && c == '[') t->refused = "a class in a class";
    if (t->in_class && translation_follows(t, "&&")) t->refused = "an intersection of classes";
    if (!t->in_class && translation_follows(t, "}+")) t->refused = "a repeat of a counted repeat";
    if (t->in_class && c == ']') t->in_class = false;
    translation_write(t, &c, 1);
    t->at++;
}

tern__regex *tern__regex_new(const char *pattern, size_t bytes, const char *whose, const char *func,
                             tern_error *err)
{
    char quote[TERN__QUOTE_TEXT], why[192] = "";
    const tern_regex_backend *plugin = tern__plugin_get(TERN__PLUGIN_REGEX, whose, func, err);
    translation t = {.from = pattern, .bytes = bytes};
    t.out = plugin ? tern__alloc((bytes + 1) * GROWTH, func, err) : NULL;
    tern__regex *regex = t.out ? tern__alloc(sizeof(*regex), func, err) : NULL;
    while (regex && t.at < t.bytes && !t.refused) translate_next(&t);
    if (regex && t.refused)
        tern__error_set(err, func, TERN_E_UNSUPPORTED, "%s: regular expression %s: tern does not have %s",
                        whose, tern__quote(pattern, bytes, quote), t.refused);
    else if (regex) {
        *regex = (tern__regex){plugin, plugin->compile(t.out, t.wrote, why, sizeof(why))};
        if (!regex->expression)
            tern__error_set(err, func, TERN_E_FORMAT, "%s: regular expression %s: %s", whose,
                            tern__quote(pattern, bytes, quote), why);
    }
    tern__free(t.out);
    if (regex && regex->expression) return regex;
    tern__free(regex);
    return NULL;
}

tern__regex *tern__regex_new_text(const char *text, size_t bytes, const char *whose, const char *func,
                                  tern_error *err)
{
    size_t wrote = 0;
    char *pattern = tern__alloc(2 * bytes + 1, func, err);
    if (!pattern) return NULL;
    for (size_t i = 0; i < bytes; i++) {
        if (strchr("\\^$.[]|()?*+{}-#&", text[i]) && text[i]) pattern[wrote++] = '\\';
        pattern[wrote++] = text[i];
    }
    tern__regex *regex = tern__regex_new(pattern, wrote, whose, func, err);
    tern__free(pattern);
    return regex;
}

void tern__regex_free(tern__regex *regex)
{
    if (regex) regex->plugin->free(regex->expression);
    tern__free(regex);
}

/* ---- finding ---- */

tern__regex_matcher *tern__regex_matcher_new(const char *func, tern_error *err)
{
    const tern_regex_backend *plugin = tern__plugin_get(TERN__PLUGIN_REGEX, "matcher", func, err);
    tern__regex_matcher *matcher = plugin ? tern__alloc(sizeof(*matcher), func, err) : NULL;
    if (!matcher) return NULL;
    *matcher = (tern__regex_matcher){plugin, plugin->matcher_new()};
    if (matcher->own) return matcher;
    tern__free(matcher);
    tern__error_set(err, func, TERN_E_MEMORY, "out of memory: a matcher of %s", plugin->name);
    return NULL;
}

void tern__regex_matcher_free(tern__regex_matcher *matcher)
{
    if (matcher) matcher->plugin->matcher_free(matcher->own);
    tern__free(matcher);
}

int tern__regex_find(const tern__regex *regex, tern__regex_matcher *matcher, const char *text, size_t bytes,
                     size_t from, size_t at[2], const char *func, tern_error *err)
{
    char why[192];
    int found = regex->plugin->find(regex->expression, matcher->own, text, bytes, from, at, why, sizeof(why));
    if (found < 0)
        tern__error_set(err, func, found, "regular expression at byte %zu of a part of %zu bytes: %s", from,
                        bytes, why);
    return found;
}
