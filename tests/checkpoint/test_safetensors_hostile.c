/* test_safetensors_hostile.c - untrusted safetensors files: each malformed file has its error, and no file
 * takes more memory or time than it should. */
#include "checkpoint/safetensors_file.h"
#include "ledger.h"

#include <stdio.h>
#include <time.h>

/* ---- malformed files ---- */

static void expect_error_of(int fd, int code, const char *text)
{
    tern_error err = {0};
    assert_null(load(fd, true, &err));
    if (err.code != code || !strstr(err.text, text))
        fail_msg("expected %s \"%s\", got %s %s", tern_status_name(code), text, tern_status_name(err.code),
                 err.text);
    assert_string_equal(err.func, "tern_load");
    assert_true(strncmp(err.text, "a.safetensors", 13) == 0);
}

static void a_wrong_length_is_an_error(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        const char *text;
    } cases[] = {
        {0, "its header has 0 bytes, expected 2 to 100000000"},
        {1, "its header has 1 bytes"},
        {100000001, "its header has 100000001 bytes"},
        {(uint64_t)1 << 63, "its header has 9223372036854775808 bytes"},
        {UINT64_MAX, "its header has 18446744073709551615 bytes"},
        {3, "is truncated: expected a header of 3 bytes, got 2"},
        {100000000, "is truncated: expected a header of 100000000 bytes, got 2"},
    };
    expect_error_of(make_file("", 0), TERN_E_FORMAT,
                    "has 0 bytes, expected a length of 8 bytes and a header");
    expect_error_of(make_file("1234567", 7), TERN_E_FORMAT, "has 7 bytes");
    for (size_t i = 0; i < TERN__COUNT(cases); i++) {
        uint8_t file[10] = {[8] = '{', [9] = '}'};
        for (int b = 0; b < 8; b++) file[b] = (uint8_t)(cases[i].length >> 8 * b);
        expect_error_of(make_file(file, sizeof(file)), TERN_E_FORMAT, cases[i].text);
    }
}

#define A(dtype, shape, offsets)                                                                             \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define B(name, begin, end)                                                                                  \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" begin "," end "]}"
#define BIG "9223372036854775808"

static const struct {
    const char *header;
    size_t data;
    int code;
    const char *text;
} malformed[] = {
    /* not JSON, or not an object */
    {"  ", 0, TERN_E_FORMAT, "header: at byte 2 expected '{', got the end"},
    {"[]", 0, TERN_E_FORMAT, "at byte 0 expected '{', got \"[]\""},
    {"12", 0, TERN_E_FORMAT, "at byte 0 expected '{'"},
    {"null", 0, TERN_E_FORMAT, "at byte 0 expected '{'"},
    {"\xef\xbb\xbf{}", 0, TERN_E_FORMAT, "at byte 0 expected '{'"},
    {"{\xff}", 0, TERN_E_FORMAT, "header is not UTF-8 at byte 1"},
    {"{\"\xed\xa0\x80\":1}", 0, TERN_E_FORMAT, "header is not UTF-8 at byte 2"},
    {"{}x", 0, TERN_E_FORMAT, "at byte 2 expected the end, got \"x\""},
    {"{,}", 0, TERN_E_FORMAT, "at byte 1 expected a string"},
    {"{" B("a", "0", "4") ",}", 4, TERN_E_FORMAT, "expected a string, got \"}\""},
    {"{" B("a", "0", "4"), 4, TERN_E_FORMAT, "expected ',' or '}', got the end"},
    {"{\"a\" {}}", 0, TERN_E_FORMAT, "at byte 5 expected ':', got \"{}}\""},
    {"{\"a\":1}", 0, TERN_E_FORMAT, "at byte 5 expected '{', got \"1}\""},
    {"{\"a\":[\"U8\",[],[0,1]]}", 1, TERN_E_FORMAT, "at byte 5 expected '{'"},
    {"{\"a", 0, TERN_E_FORMAT, "expected the end of a string, got the end"},
    {"{\"a\n\":{}}", 0, TERN_E_FORMAT, "at byte 3 expected no control character, got \"\\n"},
    {"{\"\\x\":{}}", 0, TERN_E_FORMAT, "at byte 2 expected an escape of a character"},
    {"{\"\\u12", 0, TERN_E_FORMAT, "expected an escape of a character"},
    {"{\"\\u12g4\":{}}", 0, TERN_E_FORMAT, "expected an escape of a character"},
    {"{\"\\ud800\":{}}", 0, TERN_E_FORMAT, "expected an escape of a character"},
    {"{\"\\ud800\\u0041\":{}}", 0, TERN_E_FORMAT, "expected an escape of a character"},
    {"{\"\\udc00\":{}}", 0, TERN_E_FORMAT, "expected an escape of a character"},
    /* fields that an entry lacks or has twice */
    {"{\"a\":{}}", 0, TERN_E_FORMAT, "\"a\" has no dtype"},
    {"{\"a\":{\"dtype\":\"U8\"}}", 0, TERN_E_FORMAT, "\"a\" has no shape"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, TERN_E_FORMAT, "\"a\" has no data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, TERN_E_FORMAT, "\"a\" has \"dtype\" twice"},
    {"{\"a\":{\"shape\":[],\"sh\\u0061pe\":[]}}", 0, TERN_E_FORMAT, "twice"},
    {"{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", 0, TERN_E_FORMAT,
     "\"a\" has \"data_offsets\" twice"},
    {"{" B("a", "0", "4") "," B("\\u0061", "4", "8") "}", 8, TERN_E_FORMAT, "\"\\\\u0061\" occurs twice"},
    {"{\"a\":{\"x\":NaN}}", 0, TERN_E_FORMAT, "expected a value, got \"NaN"},
    {"{\"a\":{\"x\":-Infinity}}", 0, TERN_E_FORMAT, "expected a value, got \"-Inf"},
    {"{\"a\":{\"x\":1.}}", 0, TERN_E_FORMAT, "expected a value, got \"1."},
    {"{\"a\":{\"x\":tru}}", 0, TERN_E_FORMAT, "expected a value, got \"tru"},
    /* dtypes */
    {A("U9", "[1]", "[0,1]"), 1, TERN_E_FORMAT, "\"a\" has dtype \"U9\", which does not exist"},
    {A("u8", "[1]", "[0,1]"), 1, TERN_E_FORMAT, "\"a\" has dtype \"u8\", which does not exist"},
    {A("U16", "[1]", "[0,2]"), 2, TERN_E_UNSUPPORTED, "\"a\" has dtype U16, which tern does not support"},
    {A("F8_E4M3", "[1]", "[0,1]"), 1, TERN_E_UNSUPPORTED, "\"a\" has dtype F8_E4M3"},
    {A("C64", "[1]", "[0,8]"), 8, TERN_E_UNSUPPORTED, "tern_load_opts.records loads it as a record"},
    {"{\"a\":{\"dtype\":8}}", 0, TERN_E_FORMAT, "expected a string, got \"8}}\""},
    /* offsets */
    {A("U8", "[1]", "[-1,1]"), 1, TERN_E_FORMAT,
     "expected an integer from 0 to 9223372036854775807, got \"-1,1"},
    {A("U8", "[1]", "[0.0,1]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("U8", "[1]", "[\"0\",1]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("U8", "[1]", "[0,1e30]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("U8", "[1]", "[00,1]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("U8", "[1]", "[0," BIG "]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("U8", "[1]", "[0]"), 1, TERN_E_FORMAT, "\"a\" has 1 data_offsets, expected 2"},
    {A("U8", "[1]", "[0,1,1]"), 1, TERN_E_FORMAT, "\"a\" has 3 data_offsets, expected 2"},
    {A("U8", "[1]", "[1,0]"), 1, TERN_E_FORMAT, "\"a\" has data_offsets [1, 0], which end before they start"},
    {A("U8", "[2]", "[0,2]"), 1, TERN_E_FORMAT,
     "\"a\" has data_offsets [0, 2], but the file has 1 bytes of data"},
    /* gaps and overlaps */
    {"{" B("a", "0", "4") "," B("b", "2", "6") "}", 6, TERN_E_FORMAT,
     "\"b\" starts at byte 2 of the data, inside a tensor that ends at 4"},
    {"{" B("a", "0", "4") "," B("b", "3", "7") "}", 7, TERN_E_FORMAT,
     "\"b\" starts at byte 3 of the data, inside a tensor that ends at 4"},
    {"{" B("a", "0", "4") "," B("b", "0", "4") "}", 4, TERN_E_FORMAT, "inside a tensor that ends at 4"},
    {"{" B("a", "0", "4") "," B("b", "6", "10") "}", 10, TERN_E_FORMAT,
     "\"b\" starts at byte 6 of the data, but the tensors before it end at 4"},
    {"{" B("a", "1", "5") "}", 5, TERN_E_FORMAT,
     "\"a\" starts at byte 1 of the data, but the tensors before it end at 0"},
    {"{" B("a", "0", "4") "}", 5, TERN_E_FORMAT, "the tensors end at byte 4 of the data, but the data has 5"},
    {"{}", 1, TERN_E_FORMAT, "the tensors end at byte 0 of the data, but the data has 1"},
    {"{" B("a", "0", "4") "," B("b", "4", "8") "," B("a", "0", "4") "}", 8, TERN_E_FORMAT,
     "\"a\" occurs twice"},
    {"{" B("a", "0", "4") "," B("a", "6", "10") "}", 10, TERN_E_FORMAT, "\"a\" occurs twice"},
    /* sizes */
    {A("U8", "[4294967296,4294967296]", "[0,1]"), 1, TERN_E_FORMAT, "\"a\" has too many elements"},
    {A("F64", "[2305843009213693952]", "[0,1]"), 1, TERN_E_FORMAT, "\"a\" has too many elements"},
    {A("U8", "[0,4294967296,4294967296]", "[0,0]"), 0, TERN_E_FORMAT, "\"a\" has too many elements"},
    {A("U8", "[1," BIG "]", "[0,1]"), 1, TERN_E_FORMAT, "expected an integer from 0"},
    {A("F32", "[2]", "[0,7]"), 7, TERN_E_FORMAT,
     "\"a\" takes 8 bytes by shape and dtype, but data_offsets [0, 7] span 7"},
    {A("U8", "[1,1,1,1,1,1,1]", "[0,1]"), 1, TERN_E_UNSUPPORTED,
     "\"a\" has 7 dimensions, tern supports at most 6"},
    /* metadata */
    {"{\"__metadata__\":{\"a\":1}}", 0, TERN_E_FORMAT, "expected a string, got \"1}}\""},
    {"{\"__metadata__\":{\"a\":null}}", 0, TERN_E_FORMAT, "expected a string, got \"null}}\""},
    {"{\"__metadata__\":[]}", 0, TERN_E_FORMAT, "expected '{', got \"[]}\""},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, TERN_E_FORMAT, "\"__metadata__\" occurs twice"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}}", 0, TERN_E_FORMAT, "\"a\" occurs twice"},
    /* names are escaped, never sent raw to the terminal */
    {"{\"../x\\u001b[31m\":{}}", 0, TERN_E_FORMAT, "\"../x\\\\u001b[31m\" has no dtype"},
    {"{\"\xc2\x9b\":{}}", 0, TERN_E_FORMAT, "\"\\u009b\" has no dtype"},
};

static void every_malformed_header_has_its_error(void **state)
{
    (void)state;
    ledger books = {0};
    ledger_open(&books);
    for (size_t i = 0; i < TERN__COUNT(malformed); i++) {
        const char *header = malformed[i].header;
        expect_error_of(make_safetensors(header, strlen(header), malformed[i].data), malformed[i].code,
                        malformed[i].text);
    }
    ledger_close(&books);
}

static void what_is_legal_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int64_t count;
    } legal[] = {
        {"{}", 0, 0},
        {" { } \r\n\t ", 0, 0},
        {A("F64", "[]", "[0,8]"), 8, 1},
        {A("F32", "[0]", "[0,0]"), 0, 1},
        {A("U8", "[0,9223372036854775807]", "[0,0]"), 0, 1},
        {"{" B("b", "4", "8") "," B("a", "0", "4") "}", 8, 2}, /* not sorted */
        {"{" B("a", "0", "4") ",\"b\":{\"data_offsets\":[4,12],\"dtype\":\"F64\",\"shape\":[]}}", 12, 2},
        {"{\"a\":{\"dtype\":\"U8\",\"x\":[{\"y\":[-1.5e+3,true,null,\"\\u00e4\"]}],\"shape\":[],\"data_"
         "offsets\":[0,1]}}",
         1, 1},
        {"{\"\":{\"dtype\":\"\\u0055\\u0038\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1},
        {"{\"\\ud83d\\ude00\\u0000\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1},
        {"{\"__metadata__\":{\"\":\"\"}}", 0, 1},
    };
    for (size_t i = 0; i < TERN__COUNT(legal); i++) {
        tern_error err = {0};
        tern_object *dict =
            load(make_safetensors(legal[i].header, strlen(legal[i].header), legal[i].data), true, &err);
        if (err.code) fail_msg("%s: %s", legal[i].header, err.text);
        assert_int_equal(tern_object_count(dict), legal[i].count);
        tern_object_free(dict);
    }
}

static void names_mean_what_their_escapes_say(void **state)
{
    (void)state;
    static const char header[] =
        "{\"\\ud83d\\ude00\\u0000\\\"\\/\\n\\u00e4\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    static const char name[] = "\xf0\x9f\x98\x80\0\"/\n\xc3\xa4";
    tern_error err = {0};
    tern_object *dict = load(make_safetensors(header, sizeof(header) - 1, 1), false, &err);
    assert_ok(err);
    const tern_object *key = tern_object_key(dict, 0);
    assert_int_equal(tern_object_count(key), sizeof(name) - 1);
    assert_memory_equal(tern_object_to_string(key), name, sizeof(name) - 1);
    tern_object_free(dict);
}

static void bools_are_0_or_1(void **state)
{
    (void)state;
    static const char header[] = A("BOOL", "[3]", "[0,3]");
    int fd = make_safetensors(header, sizeof(header) - 1, 3);
    assert_int_equal(pwrite(fd, "\2", 1, (off_t)(8 + sizeof(header) - 1 + 2)), 1);
    expect_error_of(fd, TERN_E_FORMAT, "\"a\" has dtype BOOL, but its byte 2 is 2");
}

/* Truncates the file to every shorter length, and flips every bit of the header: an error, or a file of the
 * same size. */
static void a_file_that_is_cut_or_flipped_is_an_error(void **state)
{
    (void)state;
    static const char header[] = "{" B("a", "0", "4") "," B("b", "4", "8") "}";
    enum { HEADER = sizeof(header) - 1, SIZE = 8 + HEADER + 8 };
    uint8_t file[SIZE] = {HEADER};
    memcpy(file + 8, header, HEADER);
    for (size_t size = 0; size < SIZE; size++)
        expect_error_of(make_file(file, size), TERN_E_FORMAT,
                        size < 8            ? "expected a length of 8 bytes and a header"
                        : size < 8 + HEADER ? "is truncated"
                                            : "but the file has");
    for (size_t bit = 0; bit < 8 * (8 + HEADER); bit++) {
        tern_error err = {0};
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        tern_object *dict = load_records(make_file(file, SIZE), &err);
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(!dict == (err.code == TERN_E_FORMAT || err.code == TERN_E_UNSUPPORTED));
        assert_true(!dict || tern_object_count(dict) == 2);
        tern_object_free(dict);
    }
}

/* A file that is shorter when it is read than when its size was taken. */
static void a_file_that_shrinks_is_an_error(void **state)
{
    (void)state;
    static const char header[] = "{" B("a", "0", "4") "}";
    enum { HEADER = sizeof(header) - 1, SIZE = 8 + HEADER + 4 };
    for (off_t left = 0; left < SIZE; left++) {
        tern_error err = {0};
        int fd = make_safetensors(header, HEADER, 4);
        assert_int_equal(ftruncate(fd, left), 0);
        assert_null(load_sized(fd, SIZE, ROOM, false, &err));
        assert_int_equal(err.code, TERN_E_IO);
        assert_non_null(strstr(err.text, "became shorter while it was read"));
    }
}

static void a_name_of_a_megabyte_is_cut_in_the_error(void **state)
{
    (void)state;
    size_t bytes = (1 << 20) + 8;
    char *header = malloc(bytes);
    memset(header, 'n', bytes);
    memcpy(header, "{\"", 2);
    memcpy(header + bytes - 6, "\":{}}", 6);
    expect_error_of(make_safetensors(header, bytes - 1, 0), TERN_E_FORMAT, "nnn...\" has no dtype");
    free(header);
}

static char *repeat(const char *head, const char *piece, size_t times, const char *tail, size_t *bytes)
{
    size_t length = strlen(piece), used = strlen(head);
    char *text = malloc(used + times * length + strlen(tail) + 1);
    strcpy(text, head);
    for (size_t i = 0; i < times; i++, used += length) memcpy(text + used, piece, length);
    strcpy(text + used, tail);
    *bytes = used + strlen(tail);
    return text;
}

static void a_hundred_thousand_brackets_are_an_error(void **state)
{
    (void)state;
    size_t bytes;
    char *text = repeat("{\"a\":{\"x\":", "[", 100000, "", &bytes);
    expect_error_of(make_safetensors(text, bytes, 0), TERN_E_FORMAT, "nests deeper than 128");
    free(text);
    text = repeat("{\"a\":{\"shape\":[1", ",1", 999, "],\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", &bytes);
    expect_error_of(make_safetensors(text, bytes, 1), TERN_E_UNSUPPORTED,
                    "has 1000 dimensions, tern supports at most 6");
    free(text);
}

/* ---- memory and time ---- */

/* Bytes in use and their peak, with malloc's overhead; each block is preceded by its size. */
typedef struct meter {
    size_t now, peak;
} meter;

static void *meter_alloc(size_t asked, size_t align, void *ctx)
{
    meter *m = ctx;
    size_t head = align < 64 ? 64 : align, bytes = (asked + align - 1) / align * align + 16;
    char *block = aligned_alloc(head, (head + bytes + head - 1) / head * head);
    if (!block) return NULL;
    memcpy(block + head - 16, &head, 8);
    memcpy(block + head - 8, &bytes, 8);
    m->now += bytes;
    if (m->now > m->peak) m->peak = m->now;
    return block + head;
}

static void meter_free(void *ptr, void *ctx)
{
    meter *m = ctx;
    size_t head, bytes;
    memcpy(&head, (char *)ptr - 16, 8);
    memcpy(&bytes, (char *)ptr - 8, 8);
    m->now -= bytes;
    free((char *)ptr - head);
}

/* Makes the header of that many tensors of `data` bytes each, in ascending or descending order of offsets;
 * their names are numbers. */
static int many_tensors(int count, int data, bool backwards)
{
    char *text = malloc((size_t)count * 96 + 16), *end = text;
    *end++ = '{';
    for (int i = 0; i < count; i++) {
        int at = backwards ? count - 1 - i : i;
        end += sprintf(end, "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%lld,%lld]}",
                       i ? "," : "", at, data, (long long)at * data, (long long)(at + 1) * data);
    }
    *end++ = '}';
    int fd = make_safetensors(text, (size_t)(end - text), (size_t)count * (size_t)data);
    free(text);
    return fd;
}

/* Makes the header of that many tensors of no bytes that are loaded as records, each of eight dimensions. */
static int many_records(int count)
{
    char *text = malloc((size_t)count * 96 + 16), *end = text;
    *end++ = '{';
    for (int i = 0; i < count; i++)
        end += sprintf(end, "%s\"%x\":{\"dtype\":\"U16\",\"shape\":[0,1,2,3,4,5,6,7],\"data_offsets\":[0,0]}",
                       i ? "," : "", i);
    *end++ = '}';
    int fd = make_safetensors(text, (size_t)(end - text), 0);
    free(text);
    return fd;
}

/* Makes metadata of that many pairs. */
static int many_pairs(size_t count)
{
    char *text = malloc(count * 16 + 32), *end = text;
    end += sprintf(end, "{\"__metadata__\":{\"x\":\"\"");
    for (size_t i = 0; i < count; i++) end += sprintf(end, ",\"%zx\":\"\"", i);
    end += sprintf(end, "}}");
    int fd = make_safetensors(text, (size_t)(end - text), 0);
    free(text);
    return fd;
}

/* Whatever the file contains, and whether it is loaded or refused: no more memory than its size and the
 * allowance. */
static int status_within_bound(int fd)
{
    meter m = {0};
    tern_error err = {0};
    size_t size = size_of(fd);
    tern__allocator_replace(&(tern_allocator){meter_alloc, meter_free, &m});
    tern_object *dict = load_records(fd, &err);
    tern_object_free(dict);
    tern__allocator_replace(NULL);
    if (m.peak > size + ROOM) fail_msg("%zu bytes for a file of %zu", m.peak, size);
    assert_int_equal(m.now, 0);
    assert_true(err.code == TERN_OK || strstr(err.text, "its contents need more memory than its size"));
    return err.code;
}

static void memory_stays_within_the_file_and_the_room(void **state)
{
    (void)state;
    size_t bytes;
    assert_int_equal(status_within_bound(many_tensors(15000, 0, false)), TERN_OK);
    assert_int_equal(status_within_bound(many_tensors(15000, 1, true)), TERN_OK);
    assert_int_equal(status_within_bound(many_tensors(15000, 65, false)), TERN_OK);
    assert_int_equal(status_within_bound(many_tensors(2, 10000000, false)), TERN_OK);
    assert_int_equal(status_within_bound(many_tensors(1000000, 0, false)),
                     TERN_E_MEMORY); /* a million entries */
    for (int count = 16000; count <= 28000; count += 500) status_within_bound(many_tensors(count, 0, false));
    for (size_t pairs = 50000; pairs <= 220000; pairs += 10000) status_within_bound(many_pairs(pairs));
    assert_int_equal(status_within_bound(many_pairs(2000000)), TERN_E_MEMORY);
    assert_int_equal(status_within_bound(many_records(5000)), TERN_OK);
    for (int count = 6000; count <= 16000; count += 1000) status_within_bound(many_records(count));
    char *text = repeat("{\"a\":{\"shape\":[0", ",0", 5000000, "]}}", &bytes);
    expect_error_of(make_safetensors(text, bytes, 0), TERN_E_FORMAT, "\"a\" has no dtype");
    free(text);
}

/* The shortest of three. */
static double seconds_to_load(int count)
{
    double least = 1e9;
    for (int i = 0; i < 3; i++) {
        struct timespec begin, end;
        tern_error err = {0};
        int fd = many_tensors(count, 1, true);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        tern_object *dict = load_sized(fd, size_of(fd), (size_t)1 << 40, false, &err);
        tern_object_free(dict);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        assert_ok(err);
        double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
        if (seconds < least) least = seconds;
    }
    return least;
}

/* Eight times as many tensors take eight times as long, or twice that if caches overflow, but not 64 times.
 */
static void time_grows_with_the_number_of_tensors(void **state)
{
    (void)state;
    double few = seconds_to_load(10000), many = seconds_to_load(80000);
    if (many > 24 * few) fail_msg("10000 tensors %g s, 80000 %g s", few, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_length_is_an_error),
        cmocka_unit_test(every_malformed_header_has_its_error),
        cmocka_unit_test(what_is_legal_is_read),
        cmocka_unit_test(names_mean_what_their_escapes_say),
        cmocka_unit_test(bools_are_0_or_1),
        cmocka_unit_test(a_file_that_is_cut_or_flipped_is_an_error),
        cmocka_unit_test(a_file_that_shrinks_is_an_error),
        cmocka_unit_test(a_name_of_a_megabyte_is_cut_in_the_error),
        cmocka_unit_test(a_hundred_thousand_brackets_are_an_error),
        cmocka_unit_test(memory_stays_within_the_file_and_the_room),
        cmocka_unit_test(time_grows_with_the_number_of_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
