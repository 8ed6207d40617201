/* zip_write.c - writes archives as torch.save does. Each entry has a header, padding in an extra field that
 * readers skip, the bytes, and then the sizes and the CRC, which are not known before. The directory comes at
 * the end. Sizes and offsets always use the 64-bit form, so that large files need no code of their own. */
#include "checkpoint/bytes.h"
#include "checkpoint/zip.h"
#include "device/device.h"

#include <libdeflate.h>
#include <string.h>

static const char FUNC[] = "tern_save";

enum { ALIGN = 64, HEADER = 30, EXTRA = 24, RECORD = 46, EXTRA64 = 28, LONG_FORM = 45, FLAGS = 0x0808 };
enum { PIECE = 1 << 18 };
#define ONES 0xffffffff

/* A small part of the file that is being composed. */
typedef struct part {
    char bytes[128];
    char *end;
} part;

static void zip_put(part *p, uint64_t value, int bytes)
{
    p->end = tern__bytes_put(p->end, value, bytes);
}

static part *zip_begin(part *p, uint32_t magic)
{
    p->end = tern__bytes_put(p->bytes, magic, 4);
    return p;
}

/* Adds what headers and records share: version, flags (UTF-8, sizes after the data), method, time, CRC,
 * sizes, and the name's length. */
static void put_common(part *p, uint32_t crc, uint32_t sizes, size_t name)
{
    zip_put(p, LONG_FORM, 2);
    zip_put(p, FLAGS, 2);
    zip_put(p, 0, 2);
    zip_put(p, 0, 2);
    zip_put(p, 0x21, 2); /* 1980-01-01, so that the same state gives the same file */
    zip_put(p, crc, 4);
    zip_put(p, sizes, 4);
    zip_put(p, sizes, 4);
    zip_put(p, name, 2);
}

static int write_part(const tern__zip_writer *zip, const part *p, tern_error *err)
{
    return tern__output_write(zip->out, p->bytes, (size_t)(p->end - p->bytes), err);
}

/* ---- an entry ---- */

/* The extra fields are the 64-bit sizes, 0 here, and the padding, with the id that PyTorch uses. */
static int write_header(const tern__zip_writer *zip, const char *name, tern_error *err)
{
    static const char zeros[ALIGN];
    size_t prefix = strlen(zip->prefix), length = strlen(name);
    int64_t end = zip->out->offset + HEADER + (int64_t)(prefix + length) + EXTRA;
    size_t padding = (size_t)(-end & (ALIGN - 1));
    part p, extra = {.end = extra.bytes};
    put_common(zip_begin(&p, 0x04034b50), 0, ONES, prefix + length);
    zip_put(&p, EXTRA + padding, 2);
    zip_put(&extra, 1, 2);
    zip_put(&extra, 16, 2);
    zip_put(&extra, 0, 8);
    zip_put(&extra, 0, 8);
    zip_put(&extra, 'F' | 'B' << 8, 2);
    zip_put(&extra, padding, 2);
    int status = write_part(zip, &p, err);
    if (!status) status = tern__output_write(zip->out, zip->prefix, prefix, err);
    if (!status) status = tern__output_write(zip->out, name, length, err);
    if (!status) status = write_part(zip, &extra, err);
    return status ? status : tern__output_write(zip->out, zeros, padding, err);
}

/* Computes the CRC of a piece and writes it while it is in the cache; a piece in a device's memory is copied
 * first. */
static int write_data(const tern__zip_writer *zip, const char *data, size_t bytes, uint32_t *crc,
                      tern_error *err)
{
    int status = TERN_OK;
    bool on_device = tern__memory_device(data) != NULL;
    char *fetched = on_device ? tern__alloc(PIECE, FUNC, err) : NULL;
    if (on_device && !fetched) return TERN_E_MEMORY;
    *crc = 0;
    for (size_t at = 0; !status && at < bytes; at += PIECE) {
        size_t piece = TERN__MIN(bytes - at, (size_t)PIECE);
        if (on_device) status = tern__memory_copy(fetched, data + at, piece, err);
        if (status) break;
        const char *here = on_device ? fetched : data + at;
        *crc = libdeflate_crc32(*crc, here, piece);
        status = tern__output_write(zip->out, here, piece, err);
    }
    tern__free(fetched);
    return status;
}

static int write_sizes(const tern__zip_writer *zip, uint32_t crc, size_t bytes, tern_error *err)
{
    part p;
    zip_put(zip_begin(&p, 0x08074b50), crc, 4);
    zip_put(&p, bytes, 8);
    zip_put(&p, bytes, 8);
    return write_part(zip, &p, err);
}

static void zip_keep(tern__zip_writer *zip, const void *data, size_t bytes)
{
    memcpy(zip->directory + zip->bytes, data, bytes);
    zip->bytes += bytes;
}

static int add_record(tern__zip_writer *zip, const char *name, int64_t offset, uint32_t crc, size_t bytes,
                      tern_error *err)
{
    size_t prefix = strlen(zip->prefix), length = strlen(name);
    size_t end = zip->bytes + RECORD + prefix + length + EXTRA64;
    if (tern__array_reserve(&zip->directory, &zip->room, end, 1, FUNC, err)) return TERN_E_MEMORY;
    part p, extra = {.end = extra.bytes};
    zip_put(zip_begin(&p, 0x02014b50), LONG_FORM, 2);
    put_common(&p, crc, ONES, prefix + length);
    zip_put(&p, EXTRA64, 2);
    zip_put(&p, 0, 2 + 2); /* comment, disk */
    zip_put(&p, 0, 2 + 4); /* attributes    */
    zip_put(&p, ONES, 4);
    zip_put(&extra, 1, 2);
    zip_put(&extra, EXTRA64 - 4, 2);
    zip_put(&extra, bytes, 8);
    zip_put(&extra, bytes, 8);
    zip_put(&extra, (uint64_t)offset, 8);
    zip_keep(zip, p.bytes, (size_t)(p.end - p.bytes));
    zip_keep(zip, zip->prefix, prefix);
    zip_keep(zip, name, length);
    zip_keep(zip, extra.bytes, (size_t)(extra.end - extra.bytes));
    zip->count++;
    return TERN_OK;
}

int tern__zip_add(tern__zip_writer *zip, const char *name, const void *data, size_t bytes, tern_error *err)
{
    int64_t offset = zip->out->offset;
    uint32_t crc = 0;
    int status = write_header(zip, name, err);
    if (!status) status = write_data(zip, data, bytes, &crc, err);
    if (!status) status = write_sizes(zip, crc, bytes, err);
    return status ? status : add_record(zip, name, offset, crc, bytes, err);
}

/* ---- the end ---- */

static int write_end(const tern__zip_writer *zip, int64_t begins, tern_error *err)
{
    int64_t ends = zip->out->offset;
    part p;
    zip_put(zip_begin(&p, 0x06064b50), 44, 8); /* bytes that follow */
    zip_put(&p, LONG_FORM, 2);
    zip_put(&p, LONG_FORM, 2);
    zip_put(&p, 0, 8);
    zip_put(&p, (uint64_t)zip->count, 8);
    zip_put(&p, (uint64_t)zip->count, 8);
    zip_put(&p, zip->bytes, 8);
    zip_put(&p, (uint64_t)begins, 8);
    zip_put(&p, 0x07064b50, 4); /* the locator: where those start */
    zip_put(&p, 0, 4);
    zip_put(&p, (uint64_t)ends, 8);
    zip_put(&p, 1, 4);
    zip_put(&p, 0x06054b50, 4); /* the 32-bit form: all ones, see above */
    zip_put(&p, 0, 4);
    zip_put(&p, ONES, 4);
    zip_put(&p, ONES, 4);
    zip_put(&p, ONES, 4);
    zip_put(&p, 0, 2);
    return write_part(zip, &p, err);
}

int tern__zip_end(tern__zip_writer *zip, int status, tern_error *err)
{
    int64_t begins = zip->out->offset;
    if (!status) status = tern__output_write(zip->out, zip->directory, zip->bytes, err);
    if (!status) status = write_end(zip, begins, err);
    tern__free(zip->directory);
    zip->directory = NULL;
    return status;
}
