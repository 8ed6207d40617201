/* npy_header.c - reads the header of a .npy file: a magic, a version, the length of the rest, and the rest, a
 * Python dictionary with three known keys.
 *
 * NumPy evaluates the dictionary as Python does, so other programs write it in many ways. Read is what they
 * write: strings in either quotes, spaces and comments anywhere, integers in Python's notations, and what
 * Python 2 wrote, u'..' and 10L. What numpy.load refuses, as (40) for (40,) or 010, is refused. */
#include "data/volume/npy.h"

#include "base/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 32 /* bytes of the longest key or dtype, with a 0 */, SHOWN = 20 };

typedef struct reading {
    const tern__gzip_file *file;
    const char *at, *end; /* the rest of the dictionary; *end is 0 */
    bool has_longs;       /* 10L is allowed                        */
    tern__npy_array *array;
    tern_error *err;
} reading;

static int header_refuse(const reading *r)
{
    char quote[TERN__QUOTE_TEXT];
    bool is_end = r->at == r->end;
    return tern__error_set(r->err, TERN__NPY_LOAD, TERN_E_FORMAT, "%s: the header cannot be parsed at %s",
                           r->file->path,
                           is_end ? "its end" : tern__excerpt(r->at, (size_t)(r->end - r->at), SHOWN, quote));
}

/* ---- Python's tokens ---- */

static void skip_spaces(reading *r)
{
    while (*r->at && strchr(" \t\n\r\f#", *r->at)) {
        if (*r->at == '#') r->at += strcspn(r->at, "\n");
        if (*r->at) r->at++;
    }
}

/* Skips spaces, and `text` if it comes next. Returns whether it did. */
static bool token_skip(reading *r, const char *text)
{
    skip_spaces(r);
    if (strncmp(r->at, text, strlen(text)) != 0) return false;
    r->at += strlen(text);
    return true;
}

/* Reads a string without escapes. Returns false, and stays where it is, if there is none. */
static bool string_read(reading *r, char word[WORD])
{
    skip_spaces(r);
    const char *from = r->at + (*r->at && strchr("uUrR", *r->at)), quote[] = {*from, '\\', '\n', '\0'};
    if (*from != '\'' && *from != '"') return false;
    size_t length = strcspn(++from, quote);
    if (from[length] != *quote || length >= WORD) return false;
    memcpy(word, from, length);
    word[length] = '\0';
    r->at = from + length + 1;
    return true;
}

/* Copies the digits of an integer without its underscores, of which one may stand between two digits. Returns
 * the bytes read; 0: it is none. */
static size_t copy_digits(const char *from, const char *allowed, char *digits, size_t room)
{
    size_t used = 0, count = 0;
    for (; from[used] && strchr(allowed, from[used]); used++) {
        if (from[used] == '_' && (!used || from[used - 1] == '_' || !isxdigit((unsigned char)from[used + 1])))
            return 0;
        if (from[used] != '_' && count + 1 < room) digits[count++] = from[used];
    }
    digits[count] = '\0';
    return used;
}

/* Reads an integer: 12, 1_000, 0x10, 0o17, 0b1, 12L. One that is too large becomes INT64_MAX. */
static bool integer_read(reading *r, int64_t *value)
{
    static const struct {
        const char *prefix, *digits;
        int base;
    } notations[] = {{"xX", "0123456789abcdefABCDEF_", 16}, {"oO", "01234567_", 8}, {"bB", "01_", 2}};
    const char *allowed = "0123456789_";
    char digits[80];
    int base = 10;
    token_skip(r, "+");
    skip_spaces(r);
    const char *from = r->at;
    for (size_t i = 0; i < TERN__COUNT(notations); i++)
        if (*from == '0' && from[1] && strchr(notations[i].prefix, from[1])) {
            allowed = notations[i].digits;
            base = notations[i].base;
        }
    if (base != 10) from += 2 + (from[2] == '_'); /* 0x_10 */
    size_t used = copy_digits(from, allowed, digits, sizeof(digits));
    if (!used || (base == 10 && *digits == '0' && strspn(digits, "0") != strlen(digits))) return false;
    *value = used < sizeof(digits) ? strtoll(digits, NULL, base) : INT64_MAX;
    r->at = from + used;
    if (r->has_longs) token_skip(r, "L");
    return true;
}

/* ---- the entries ---- */

/* NumPy's names of dtypes. The letters may follow a byte order. */
static const struct {
    const char *name;
    char kind;
    int bytes;
} names[] = {{"?", 'b', 1},           {"b", 'i', 1},         {"B", 'u', 1},          {"h", 'i', 2},
             {"H", 'u', 2},           {"i", 'i', 4},         {"I", 'u', 4},          {"l", 'i', 8},
             {"L", 'u', 8},           {"p", 'i', 8},         {"P", 'u', 8},          {"q", 'i', 8},
             {"Q", 'u', 8},           {"e", 'f', 2},         {"f", 'f', 4},          {"d", 'f', 8},
             {"g", 'f', 16},          {"F", 'c', 8},         {"D", 'c', 16},         {"bool", 'b', 1},
             {"bool_", 'b', 1},       {"bool8", 'b', 1},     {"int8", 'i', 1},       {"byte", 'i', 1},
             {"uint8", 'u', 1},       {"ubyte", 'u', 1},     {"int16", 'i', 2},      {"short", 'i', 2},
             {"uint16", 'u', 2},      {"ushort", 'u', 2},    {"int32", 'i', 4},      {"intc", 'i', 4},
             {"uint32", 'u', 4},      {"uintc", 'u', 4},     {"int64", 'i', 8},      {"int", 'i', 8},
             {"int_", 'i', 8},        {"intp", 'i', 8},      {"long", 'i', 8},       {"longlong", 'i', 8},
             {"uint64", 'u', 8},      {"uint", 'u', 8},      {"uintp", 'u', 8},      {"ulong", 'u', 8},
             {"ulonglong", 'u', 8},   {"float16", 'f', 2},   {"half", 'f', 2},       {"float32", 'f', 4},
             {"single", 'f', 4},      {"float64", 'f', 8},   {"double", 'f', 8},     {"float", 'f', 8},
             {"int0", 'i', 8},        {"uint0", 'u', 8},     {"float_", 'f', 8},     {"float128", 'f', 16},
             {"longdouble", 'f', 16}, {"complex64", 'c', 8}, {"complex128", 'c', 16}};

/* Reads a dtype as numpy.dtype does: '<f4', 'f4', '>i', '?', 'float32'. */
static bool parse_dtype(const char *text, tern__npy_array *a)
{
    bool has_order = *text && strchr("<>|=", *text);
    const char *name = text + has_order;
    a->swapped = *text == '>';
    for (size_t i = 0; i < TERN__COUNT(names); i++)
        if (!strcmp(name, names[i].name) && (!has_order || !name[1])) {
            a->kind = names[i].kind;
            a->bytes = names[i].bytes;
            return true;
        }
    char *end;
    if (!isalpha((unsigned char)*name) || !isdigit((unsigned char)name[1])) return false;
    long bytes = strtol(name + 1, &end, 10);
    a->kind = *name;
    a->bytes = (int)TERN__MIN(bytes, (long)INT32_MAX);
    return !*end;
}

static int read_descr(reading *r)
{
    char word[WORD], quote[TERN__QUOTE_TEXT];
    skip_spaces(r);
    const char *from = r->at;
    bool is_string = string_read(r, word);
    if (is_string && parse_dtype(word, r->array)) return TERN_OK;
    return tern__error_set(r->err, TERN__NPY_LOAD, TERN_E_UNSUPPORTED,
                           "%s: dtype %s, expected one like \"<f4\"", r->file->path,
                           is_string ? tern__quote(word, strlen(word), quote)
                                     : tern__excerpt(from, (size_t)(r->end - from), SHOWN, quote));
}

/* Reads a tuple of integers: (), (2,), (2, 3). */
static int read_shape(reading *r)
{
    tern__npy_array *a = r->array;
    bool is_tuple = true; /* (2) is an integer */
    if (!token_skip(r, "(")) return header_refuse(r);
    for (a->ndim = 0; !token_skip(r, ")"); a->ndim++) {
        if (a->ndim && !is_tuple) return header_refuse(r);
        if (a->ndim == TERN_NDIM_MAX)
            return tern__error_set(r->err, TERN__NPY_LOAD, TERN_E_UNSUPPORTED, "%s: more than %d dimensions",
                                   r->file->path, TERN_NDIM_MAX);
        if (!integer_read(r, &a->shape[a->ndim])) return header_refuse(r);
        is_tuple = token_skip(r, ",");
    }
    return a->ndim == 1 && !is_tuple ? header_refuse(r) : TERN_OK;
}

static int read_order(reading *r)
{
    r->array->fortran = token_skip(r, "True");
    return r->array->fortran || token_skip(r, "False") ? TERN_OK : header_refuse(r);
}

static int read_entry(reading *r, unsigned *seen)
{
    static const struct {
        const char *key;
        int (*read)(reading *r);
    } entries[] = {{"descr", read_descr}, {"fortran_order", read_order}, {"shape", read_shape}};
    char key[WORD];
    skip_spaces(r);
    const char *from = r->at;
    bool is_entry = string_read(r, key) && token_skip(r, ":");
    for (unsigned i = 0; is_entry && i < TERN__COUNT(entries); i++)
        if (!strcmp(key, entries[i].key)) {
            *seen |= 1u << i;
            return entries[i].read(r);
        }
    r->at = from;
    return header_refuse(r);
}

static int read_dictionary(reading *r)
{
    unsigned seen = 0;
    const char *from = r->at;
    if (!token_skip(r, "{")) return header_refuse(r);
    for (bool goes_on = true; !token_skip(r, "}");) {
        int status = goes_on ? read_entry(r, &seen) : header_refuse(r);
        if (status) return status;
        goes_on = token_skip(r, ",");
    }
    skip_spaces(r);
    if (r->at == r->end && seen == 7) return TERN_OK;
    if (r->at == r->end) r->at = from; /* an entry is missing */
    return header_refuse(r);
}

int tern__npy_header_read(const tern__gzip_file *file, tern__npy_array *array, int64_t *header_bytes,
                          tern_error *err)
{
    uint8_t start[12];
    char text[TERN__NPY_HEADER_MOST + 1];
    int status = tern__gzip_read(file, start, 8, err);
    if (!status && (memcmp(start, "\x93NUMPY", 6) || start[6] < 1 || start[6] > 3 || start[7]))
        return tern__error_set(err, TERN__NPY_LOAD, TERN_E_FORMAT, "%s is not a .npy file of version 1 to 3",
                               file->path);
    size_t wide = start[6] == 1 ? 2 : 4;
    if (!status) status = tern__gzip_read(file, start + 8, wide, err);
    if (status) return status;
    size_t length = start[8] | (size_t)start[9] << 8;
    if (wide == 4) length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    if (length > TERN__NPY_HEADER_MOST)
        return tern__error_set(err, TERN__NPY_LOAD, TERN_E_FORMAT,
                               "%s: the header has %zu bytes, expected at most %d", file->path, length,
                               TERN__NPY_HEADER_MOST);
    *header_bytes = (int64_t)(8 + wide + length);
    status = tern__gzip_read(file, text, length, err);
    if (status) return status;
    text[length] = '\0';
    return read_dictionary(&(reading){file, text, text + length, start[6] < 3, array, err});
}
