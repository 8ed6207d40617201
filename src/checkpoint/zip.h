/* zip.h - the zip archives of torch.save: entries that are stored, not compressed, with a CRC-32 each.
 *
 * By hand and not by libzip, for what a reader of strangers' files promises: libzip keeps 290 bytes for each
 * entry, whatever their number, and reads the directory anew for every place in the last 64 KiB that looks
 * like its end, so neither memory nor time has a bound (docs/files.md has figures). */
#ifndef TERN_SRC_CHECKPOINT_ZIP_H
#define TERN_SRC_CHECKPOINT_ZIP_H

#include "base/file.h"
#include "checkpoint/input.h"

typedef struct tern__zip_entry {
    const char *name; /* in the directory's text, not ended by 0 */
    size_t name_bytes;
    int64_t offset; /* of its header */
    int64_t bytes;
    unsigned method; /* 0: stored */
    uint32_t crc;
    bool is_checked; /* has been read, and the CRC was right */
} tern__zip_entry;

typedef struct tern__zip {
    tern__input *in;
    char *directory;
    int64_t begin; /* where the directory begins and so the entries end */
    tern__zip_entry *entries;
    int64_t count;    /* sorted by name */
    char prefix[272]; /* "archive/": the first entry's folder, and every one's in a file of torch.save */
} tern__zip;

/* E_FORMAT, E_UNSUPPORTED, E_MEMORY, E_IO; close it also after a failure. */
int tern__zip_open(tern__zip *zip, tern__input *in, tern_error *err);
void tern__zip_close(tern__zip *zip);
/* The entry prefix + name; NULL if there is none. */
tern__zip_entry *tern__zip_find(const tern__zip *zip, const char *name);
/* Where the entry's bytes begin; they end inside the file. E_UNSUPPORTED for one that is compressed. */
int tern__zip_place(const tern__zip *zip, const tern__zip_entry *entry, int64_t *offset, tern_error *err);
/* Reads all of it into `out`, or with NULL only checks it. */
int tern__zip_read(const tern__zip *zip, tern__zip_entry *entry, void *out, tern_error *err);
/* Where an entry is read to. */
typedef struct tern__zip_read_to {
    tern__zip_entry *entry;
    void *out;
} tern__zip_read_to;

/* Reads them all, a large sum of bytes by several threads, which are gone when it returns. */
int tern__zip_read_all(const tern__zip *zip, const tern__zip_read_to *reads, int64_t count, tern_error *err);
/* Whether `crc`, of all its bytes, is right: sets is_checked, or E_FORMAT. */
int tern__zip_crc_check(const tern__zip *zip, tern__zip_entry *entry, uint32_t crc, tern_error *err);
/* Checks all entries that nobody has read. */
int tern__zip_check(const tern__zip *zip, tern_error *err);

/* ---- writing ---- */

typedef struct tern__zip_writer {
    tern__output *out;
    const char *prefix;
    char *directory; /* grows with the entries */
    size_t bytes, room;
    int64_t count;
} tern__zip_writer;

/* An entry whose bytes begin at a multiple of 64. */
int tern__zip_add(tern__zip_writer *zip, const char *name, const void *data, size_t bytes, tern_error *err);
/* The directory; frees what the writer holds, also after a failure with `status`, which is returned then. */
int tern__zip_end(tern__zip_writer *zip, int status, tern_error *err);

#endif
