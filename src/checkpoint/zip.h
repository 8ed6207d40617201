/* zip.h - reads and writes the zip archives of torch.save: entries are stored, not compressed, and have a
 * CRC-32.
 *
 * tern does not use libzip, because an untrusted file must not cost unlimited memory or time. libzip keeps
 * 290 bytes per entry, whatever their number, and reads the directory again for every place in the last 64
 * KiB that looks like its end (docs/files.md has figures). */
#ifndef TERN_SRC_CHECKPOINT_ZIP_H
#define TERN_SRC_CHECKPOINT_ZIP_H

#include "base/file.h"
#include "checkpoint/input.h"

typedef struct tern__zip_entry {
    const char *name; /* in the directory's memory, without a final 0 */
    size_t name_bytes;
    int64_t offset; /* of its header */
    int64_t bytes;
    unsigned method; /* 0: stored */
    uint32_t crc;
    bool is_checked; /* it has been read, and its CRC was right */
} tern__zip_entry;

typedef struct tern__zip {
    tern__input *in;
    char *directory;
    int64_t begin; /* where the directory starts and the entries end */
    tern__zip_entry *entries;
    int64_t count;    /* sorted by name */
    char prefix[272]; /* "archive/": the first entry's folder, and that of all entries in a torch.save file */
} tern__zip;

/* E_FORMAT, E_UNSUPPORTED, E_MEMORY, E_IO. Close the archive even after a failure. */
int tern__zip_open(tern__zip *zip, tern__input *in, tern_error *err);
void tern__zip_close(tern__zip *zip);
/* Returns the entry prefix + name, or NULL. */
tern__zip_entry *tern__zip_find(const tern__zip *zip, const char *name);
/* Finds the offset of the entry's bytes, and checks that they end inside the file. E_UNSUPPORTED: it is
 * compressed. */
int tern__zip_place(const tern__zip *zip, const tern__zip_entry *entry, int64_t *offset, tern_error *err);
/* Reads and checks an entry; with `out` NULL only checks it. */
int tern__zip_read(const tern__zip *zip, tern__zip_entry *entry, void *out, tern_error *err);

/* An entry, and where to read it to. */
typedef struct tern__zip_read_to {
    tern__zip_entry *entry;
    void *out;
} tern__zip_read_to;

/* Reads several entries; for many bytes with several threads, which have ended when it returns. */
int tern__zip_read_all(const tern__zip *zip, const tern__zip_read_to *reads, int64_t count, tern_error *err);
/* Compares the CRC of all bytes: sets is_checked, or fails with E_FORMAT. */
int tern__zip_crc_check(const tern__zip *zip, tern__zip_entry *entry, uint32_t crc, tern_error *err);
/* Checks all entries that have not been read. */
int tern__zip_check(const tern__zip *zip, tern_error *err);

/* ---- writing ---- */

typedef struct tern__zip_writer {
    tern__output *out;
    const char *prefix;
    char *directory; /* grows with the entries */
    size_t bytes, room;
    int64_t count;
} tern__zip_writer;

/* Adds an entry; its bytes start at a multiple of 64. */
int tern__zip_add(tern__zip_writer *zip, const char *name, const void *data, size_t bytes, tern_error *err);
/* Writes the directory and frees the writer's memory. After a failure, `status`, it only frees, and returns
 * `status`. */
int tern__zip_end(tern__zip_writer *zip, int status, tern_error *err);

#endif
