/* zip_read.c - reads zip archives.
 *
 * An archive ends with the directory of its entries and, after that, a record of 22 bytes (END) that says
 * where the directory starts. If a number is too large for this record, another one of 56 bytes (END64) has
 * it; a locator of 20 bytes points to that. The directory has a record of 46 bytes per entry, which points to
 * the entry's header: 30 bytes, the name, padding, and then the entry's bytes. */
#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/zip.h"

#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_load";

enum { END = 22, END64 = 56, LOCATOR = 20, RECORD = 46, HEADER = 30 };
enum { PIECE = 1 << 18 }; /* bytes: small enough to be checked while they are in the cache */

static int TERN__PRINTF(4, 5)
    zip_refuse(const tern__zip *zip, int code, tern_error *err, const char *format, ...)
{
    char text[TERN_ERROR_TEXT] = "";
    va_list args;
    va_start(args, format);
    tern__text_vappend(text, sizeof(text), format, args);
    va_end(args);
    return tern__error_set(err, FUNC, code, "%s: %s", zip->in->path, text);
}

/* ---- the end ---- */

typedef struct ending {
    int64_t count, bytes, begin; /* of the directory                        */
    int64_t at;                  /* offset of the record END or END64       */
} ending;

static bool has_magic(const uint8_t *at, const char magic[4])
{
    return memcmp(at, magic, 4) == 0;
}

/* Reads the numbers that are all ones in END from END64. */
static int read_end64(const tern__zip *zip, ending *end, tern_error *err)
{
    uint8_t locator[LOCATOR], record[END64];
    bool needed = end->count == 0xffff || end->bytes == 0xffffffff || end->begin == 0xffffffff;
    if (end->at < LOCATOR || !needed) return TERN_OK;
    int status = tern__input_read(zip->in, end->at - LOCATOR, locator, LOCATOR, err);
    if (status || !has_magic(locator, "PK\6\7")) return status;
    uint64_t at = tern__bytes_get(locator + 8, 8);
    if (end->at < LOCATOR + END64 || at > (uint64_t)(end->at - LOCATOR - END64))
        return zip_refuse(zip, TERN_E_FORMAT, err, "the zip directory's end record points outside the file");
    status = tern__input_read(zip->in, (int64_t)at, record, END64, err);
    if (status) return status;
    if (!has_magic(record, "PK\6\6"))
        return zip_refuse(zip, TERN_E_FORMAT, err, "the zip directory has no end record");
    end->at = (int64_t)at;
    if (end->count == 0xffff) end->count = (int64_t)tern__bytes_get(record + 32, 8);
    if (end->bytes == 0xffffffff) end->bytes = (int64_t)tern__bytes_get(record + 40, 8);
    if (end->begin == 0xffffffff) end->begin = (int64_t)tern__bytes_get(record + 48, 8);
    return TERN_OK;
}

static int read_end(const tern__zip *zip, ending *end, tern_error *err)
{
    uint8_t record[END];
    if (zip->in->size < END)
        return zip_refuse(zip, TERN_E_FORMAT, err, "a zip archive cannot have %lld bytes",
                          (long long)zip->in->size);
    end->at = zip->in->size - END;
    int status = tern__input_read(zip->in, end->at, record, END, err);
    if (status) return status;
    if (!has_magic(record, "PK\5\6") || tern__bytes_get(record + 20, 2))
        return zip_refuse(
            zip, TERN_E_FORMAT, err,
            "the zip archive has no end record: the file is truncated, or something follows the archive");
    end->count = (int64_t)tern__bytes_get(record + 10, 2);
    end->bytes = (int64_t)tern__bytes_get(record + 12, 4);
    end->begin = (int64_t)tern__bytes_get(record + 16, 4);
    status = read_end64(zip, end, err);
    if (status) return status;
    bool fits =
        end->begin >= 0 && end->bytes >= 0 && end->begin <= end->at && end->bytes <= end->at - end->begin;
    if (!fits || end->count < 0 || end->count > end->bytes / RECORD)
        return zip_refuse(zip, TERN_E_FORMAT, err,
                          "a zip directory of %lld entries in %lld bytes at %lld does not fit the file",
                          (long long)end->count, (long long)end->bytes, (long long)end->begin);
    return TERN_OK;
}

/* ---- the directory ---- */

/* Reads the numbers that are all ones in the record from the extra field with id 1, which has them in this
 * order. */
static void read_extra(tern__zip_entry *entry, int64_t *packed, const uint8_t *extra, size_t bytes)
{
    int64_t *const numbers[] = {&entry->bytes, packed, &entry->offset};
    for (size_t at = 0; at + 4 <= bytes;) {
        size_t length = tern__bytes_get(extra + at + 2, 2);
        bool is_whole = length <= bytes - at - 4;
        for (size_t i = 0, from = 0; is_whole && tern__bytes_get(extra + at, 2) == 1 && i < 3; i++) {
            if (*numbers[i] != 0xffffffff || from + 8 > length) continue;
            *numbers[i] = (int64_t)tern__bytes_get(extra + at + 4 + from, 8);
            from += 8;
        }
        at += 4 + length;
    }
}

static int zip_check_entry(const tern__zip *zip, const tern__zip_entry *entry, unsigned flags, int64_t packed,
                           tern_error *err)
{
    char name[TERN__QUOTE_TEXT];
    tern__quote(entry->name, entry->name_bytes, name);
    if (flags & 1) return zip_refuse(zip, TERN_E_UNSUPPORTED, err, "%s is encrypted", name);
    if ((packed != entry->bytes && !entry->method) || entry->bytes < 0 || entry->offset < 0 ||
        entry->offset > zip->begin - HEADER || entry->bytes > zip->begin - HEADER - entry->offset)
        return zip_refuse(zip, TERN_E_FORMAT, err, "%s, %lld bytes at %lld, is not inside the file", name,
                          (long long)entry->bytes, (long long)entry->offset);
    return TERN_OK;
}

/* Reads one record of the directory, of which `left` bytes are left. Sets *used to the record's length. */
static int read_record(const tern__zip *zip, const uint8_t *record, size_t left, tern__zip_entry *entry,
                       size_t *used, tern_error *err)
{
    if (left < RECORD || !has_magic(record, "PK\1\2"))
        return zip_refuse(zip, TERN_E_FORMAT, err, "the zip directory is damaged");
    size_t name = tern__bytes_get(record + 28, 2), extra = tern__bytes_get(record + 30, 2);
    *used = RECORD + name + extra + tern__bytes_get(record + 32, 2);
    if (*used > left) return zip_refuse(zip, TERN_E_FORMAT, err, "the zip directory is truncated");
    int64_t packed = (int64_t)tern__bytes_get(record + 20, 4);
    *entry = (tern__zip_entry){.name = (const char *)record + RECORD,
                               .name_bytes = name,
                               .method = (unsigned)tern__bytes_get(record + 10, 2),
                               .crc = (uint32_t)tern__bytes_get(record + 16, 4),
                               .bytes = (int64_t)tern__bytes_get(record + 24, 4),
                               .offset = (int64_t)tern__bytes_get(record + 42, 4)};
    read_extra(entry, &packed, record + RECORD + name, extra);
    return zip_check_entry(zip, entry, (unsigned)tern__bytes_get(record + 8, 2), packed, err);
}

static int zip_compare(const void *a, const void *b)
{
    const tern__zip_entry *x = a, *y = b;
    int by_text = memcmp(x->name, y->name, TERN__MIN(x->name_bytes, y->name_bytes));
    if (by_text) return by_text;
    return (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static int sort(tern__zip *zip, tern_error *err)
{
    char name[TERN__QUOTE_TEXT];
    qsort(zip->entries, (size_t)zip->count, sizeof(*zip->entries), zip_compare);
    for (int64_t i = 1; i < zip->count; i++)
        if (zip_compare(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return zip_refuse(zip, TERN_E_FORMAT, err, "%s occurs twice",
                              tern__quote(zip->entries[i].name, zip->entries[i].name_bytes, name));
    return TERN_OK;
}

static int find_prefix(tern__zip *zip, tern_error *err)
{
    const tern__zip_entry *first = zip->entries;
    const char *slash = zip->count ? memchr(first->name, '/', first->name_bytes) : NULL;
    size_t bytes = slash ? (size_t)(slash - first->name) + 1 : sizeof(zip->prefix);
    if (bytes >= sizeof(zip->prefix) || memchr(first->name, 0, bytes))
        return zip_refuse(zip, TERN_E_FORMAT, err,
                          "a zip archive, but not of torch.save: its entries are not in a folder");
    memcpy(zip->prefix, first->name, bytes);
    return TERN_OK;
}

static int read_directory(tern__zip *zip, const ending *end, tern_error *err)
{
    /* qsort needs a second copy of the table. */
    int64_t table = end->count * (int64_t)sizeof(*zip->entries);
    int status = tern__input_charge(zip->in, end->bytes + 2 * table, err);
    if (status) return status;
    zip->directory = tern__alloc_raw((size_t)end->bytes, TERN__LINE);
    zip->entries = tern__alloc_raw((size_t)table, TERN__LINE);
    if (!zip->directory || !zip->entries)
        return zip_refuse(zip, TERN_E_MEMORY, err, "out of memory for the zip directory");
    status = tern__input_read(zip->in, end->begin, zip->directory, (size_t)end->bytes, err);
    for (size_t at = 0, used = 0; !status && zip->count < end->count; at += used) {
        status = read_record(zip, (uint8_t *)zip->directory + at, (size_t)end->bytes - at,
                             &zip->entries[zip->count], &used, err);
        zip->count += !status;
    }
    return status;
}

int tern__zip_open(tern__zip *zip, tern__input *in, tern_error *err)
{
    ending end = {0};
    *zip = (tern__zip){.in = in};
    int status = read_end(zip, &end, err);
    if (status) return status;
    zip->begin = end.begin;
    status = read_directory(zip, &end, err);
    if (!status) status = find_prefix(zip, err);
    return status ? status : sort(zip, err);
}

void tern__zip_close(tern__zip *zip)
{
    tern__free(zip->directory);
    tern__free(zip->entries);
}

/* ---- entries ---- */

tern__zip_entry *tern__zip_find(const tern__zip *zip, const char *name)
{
    char full[sizeof(zip->prefix) + 256];
    int bytes = snprintf(full, sizeof(full), "%s%s", zip->prefix, name);
    if (bytes >= (int)sizeof(full)) return NULL;
    tern__zip_entry key = {.name = full, .name_bytes = (size_t)bytes};
    return bsearch(&key, zip->entries, (size_t)zip->count, sizeof(key), zip_compare);
}

int tern__zip_place(const tern__zip *zip, const tern__zip_entry *entry, int64_t *offset, tern_error *err)
{
    uint8_t header[HEADER];
    char name[TERN__QUOTE_TEXT];
    tern__quote(entry->name, entry->name_bytes, name);
    if (entry->method)
        return zip_refuse(zip, TERN_E_UNSUPPORTED, err,
                          "%s is compressed (method %u), expected stored bytes as torch.save writes", name,
                          entry->method);
    int status = tern__input_read(zip->in, entry->offset, header, HEADER, err);
    if (status) return status;
    size_t name_bytes = tern__bytes_get(header + 26, 2);
    *offset = entry->offset + HEADER + (int64_t)(name_bytes + tern__bytes_get(header + 28, 2));
    if (has_magic(header, "PK\3\4") && name_bytes == entry->name_bytes &&
        *offset <= zip->begin - entry->bytes)
        return TERN_OK;
    return zip_refuse(zip, TERN_E_FORMAT, err, "%s is not at the offset that the zip directory has", name);
}

int tern__zip_crc_check(const tern__zip *zip, tern__zip_entry *entry, uint32_t crc, tern_error *err)
{
    char name[TERN__QUOTE_TEXT];
    entry->is_checked = crc == entry->crc;
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    entry->is_checked = true; /* a fuzzer changes bytes, but cannot compute the CRC */
#endif
    if (entry->is_checked) return TERN_OK;
    return zip_refuse(zip, TERN_E_FORMAT, err, "%s is damaged: its CRC-32 is %08x, expected %08x",
                      tern__quote(entry->name, entry->name_bytes, name), crc, entry->crc);
}

int tern__zip_read(const tern__zip *zip, tern__zip_entry *entry, void *out, tern_error *err)
{
    int64_t offset = 0;
    uint32_t crc = 0;
    char *spare = out ? NULL : tern__alloc_raw(PIECE, TERN__LINE);
    int status = out || spare ? tern__zip_place(zip, entry, &offset, err)
                              : zip_refuse(zip, TERN_E_MEMORY, err, "out of memory: %d bytes", PIECE);
    for (int64_t at = 0; !status && at < entry->bytes; at += PIECE) {
        void *piece = out ? (char *)out + at : spare;
        size_t bytes = (size_t)TERN__MIN(entry->bytes - at, (int64_t)PIECE);
        status = tern__input_read(zip->in, offset + at, piece, bytes, err);
        if (!status) crc = libdeflate_crc32(crc, piece, bytes);
    }
    tern__free(spare);
    return status ? status : tern__zip_crc_check(zip, entry, crc, err);
}

int tern__zip_check(const tern__zip *zip, tern_error *err)
{
    int status = TERN_OK;
    for (int64_t i = 0; !status && i < zip->count; i++)
        if (!zip->entries[i].is_checked) status = tern__zip_read(zip, &zip->entries[i], NULL, err);
    return status;
}
