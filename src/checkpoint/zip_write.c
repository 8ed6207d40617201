/* zip_write.c - an archive as torch.save's: each entry a header, padding in a field that readers pass over,
 * the bytes, and behind them sizes and CRC, which are known only then; the directory at the end. Sizes and
 * places are always in the long form, so that what is rare is not another way through the code. */
#include "checkpoint/bytes.h"
#include "checkpoint/zip.h"
#include "device/device.h"

#include <libdeflate.h>
#include <string.h>

static const char FUNC[] = "tern_save";

enum { ALIGN = 64, HEADER = 30, EXTRA = 24, RECORD = 46, EXTRA64 = 28, LONG_FORM = 45, FLAGS = 0x0808 };
enum { PIECE = 1 << 18 };
#define ONES 0xffffffff

/* One part of the file as it is put together. */
typedef struct part {
    char bytes[128];
    char *end;
} part;

static void put(part *p, uint64_t value, int bytes)
{
    p->end = tern__bytes_put(p->end, value, bytes);
}

static part *begin(part *p, uint32_t magic)
{
    p->end = tern__bytes_put(p->bytes, magic, 4);
    return p;
}

/* What a header and a record share: version, flags (UTF-8, sizes behind), method, time, CRC, sizes, name. */
static void put_common(part *p, uint32_t crc, uint32_t sizes, size_t name)
{
    put(p, LONG_FORM, 2);
    put(p, FLAGS, 2);
    put(p, 0, 2);
    put(p, 0, 2);
    put(p, 0x21, 2); /* 1980-01-01: the same state is the same file */
    put(p, crc, 4);
    put(p, sizes, 4);
    put(p, sizes, 4);
    put(p, name, 2);
}

static int write_part(const tern__zip_writer *zip, const part *p, tern_error *err)
{
    return tern__output_write(zip->out, p->bytes, (size_t)(p->end - p->bytes), err);
}

/* ---- an entry ---- */

/* The long form of sizes that stand behind, and padding under the name that PyTorch uses. */
static int write_header(const tern__zip_writer *zip, const char *name, tern_error *err)
{
    static const char zeros[ALIGN];
    size_t prefix = strlen(zip->prefix), length = strlen(name);
    int64_t end = zip->out->offset + HEADER + (int64_t)(prefix + length) + EXTRA;
    size_t padding = (size_t)(-end & (ALIGN - 1));
    part p, extra = {.end = extra.bytes};
    put_common(begin(&p, 0x04034b50), 0, ONES, prefix + length);
    put(&p, EXTRA + padding, 2);
    put(&extra, 1, 2);
    put(&extra, 16, 2);
    put(&extra, 0, 8);
    put(&extra, 0, 8);
    put(&extra, 'F' | 'B' << 8, 2);
    put(&extra, padding, 2);
    int status = write_part(zip, &p, err);
    if (!status) status = tern__output_write(zip->out, zip->prefix, prefix, err);
    if (!status) status = tern__output_write(zip->out, name, length, err);
    if (!status) status = write_part(zip, &extra, err);
    return status ? status : tern__output_write(zip->out, zeros, padding, err);
}

static int write_piece(const tern__zip_writer *zip, const char *data, size_t bytes, uint32_t *crc,
                       tern_error *err)
{
    *crc = libdeflate_crc32(*crc, data, bytes);
    return tern__output_write(zip->out, data, bytes, err);
}

/* A piece is summed up and written while it is in the cache; one in a device's memory is fetched before. */
static int write_data(const tern__zip_writer *zip, const char *data, size_t bytes, uint32_t *crc,
                      tern_error *err)
{
    int status = TERN_OK;
    bool away = tern__memory_device(data) != NULL;
    char *fetched = away ? tern__alloc(PIECE, FUNC, err) : NULL;
    if (away && !fetched) return TERN_E_MEMORY;
    *crc = 0;
    for (size_t at = 0; !status && at < bytes; at += PIECE) {
        size_t piece = TERN__MIN(bytes - at, (size_t)PIECE);
        if (away) status = tern__memory_copy(fetched, data + at, piece, err);
        if (!status) status = write_piece(zip, away ? fetched : data + at, piece, crc, err);
    }
    tern__free(fetched);
    return status;
}

static int write_sizes(const tern__zip_writer *zip, uint32_t crc, size_t bytes, tern_error *err)
{
    part p;
    put(begin(&p, 0x08074b50), crc, 4);
    put(&p, bytes, 8);
    put(&p, bytes, 8);
    return write_part(zip, &p, err);
}

static int make_room(tern__zip_writer *zip, size_t bytes, tern_error *err)
{
    if (zip->room - zip->bytes >= bytes) return TERN_OK;
    size_t room = 2 * zip->room + bytes + 4096;
    char *grown = tern__realloc_array(zip->directory, zip->bytes, room, FUNC, err);
    if (!grown) return TERN_E_MEMORY;
    zip->directory = grown;
    zip->room = room;
    return TERN_OK;
}

static void keep(tern__zip_writer *zip, const void *data, size_t bytes)
{
    memcpy(zip->directory + zip->bytes, data, bytes);
    zip->bytes += bytes;
}

static int add_record(tern__zip_writer *zip, const char *name, int64_t offset, uint32_t crc, size_t bytes,
                      tern_error *err)
{
    size_t prefix = strlen(zip->prefix), length = strlen(name);
    if (make_room(zip, RECORD + prefix + length + EXTRA64, err)) return TERN_E_MEMORY;
    part p, extra = {.end = extra.bytes};
    put(begin(&p, 0x02014b50), LONG_FORM, 2);
    put_common(&p, crc, ONES, prefix + length);
    put(&p, EXTRA64, 2);
    put(&p, 0, 2 + 2); /* comment, disk */
    put(&p, 0, 2 + 4); /* attributes    */
    put(&p, ONES, 4);
    put(&extra, 1, 2);
    put(&extra, EXTRA64 - 4, 2);
    put(&extra, bytes, 8);
    put(&extra, bytes, 8);
    put(&extra, (uint64_t)offset, 8);
    keep(zip, p.bytes, (size_t)(p.end - p.bytes));
    keep(zip, zip->prefix, prefix);
    keep(zip, name, length);
    keep(zip, extra.bytes, (size_t)(extra.end - extra.bytes));
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
    put(begin(&p, 0x06064b50), 44, 8); /* bytes that follow */
    put(&p, LONG_FORM, 2);
    put(&p, LONG_FORM, 2);
    put(&p, 0, 8);
    put(&p, (uint64_t)zip->count, 8);
    put(&p, (uint64_t)zip->count, 8);
    put(&p, zip->bytes, 8);
    put(&p, (uint64_t)begins, 8);
    put(&p, 0x07064b50, 4); /* where those begin */
    put(&p, 0, 4);
    put(&p, (uint64_t)ends, 8);
    put(&p, 1, 4);
    put(&p, 0x06054b50, 4); /* the short form: look there */
    put(&p, 0, 4);
    put(&p, ONES, 4);
    put(&p, ONES, 4);
    put(&p, ONES, 4);
    put(&p, 0, 2);
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
