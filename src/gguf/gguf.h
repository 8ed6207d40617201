/* gguf.h - a file of GGUF while it is made: keys with their values, and tensors, whose data is converted when
 * the file is written. The first error stays; what follows it does nothing. */
#ifndef TERN_SRC_GGUF_GGUF_H
#define TERN_SRC_GGUF_GGUF_H

#include "models/config.h"
#include "text/bytes.h"

#include <tern/gguf.h>

typedef enum tern__gguf_kind { /* of a value, with GGUF's numbers */
                               TERN__GGUF_U32 = 4,
                               TERN__GGUF_I32 = 5,
                               TERN__GGUF_F32 = 6,
                               TERN__GGUF_BOOL = 7,
                               TERN__GGUF_STRING = 8,
                               TERN__GGUF_ARRAY = 9
} tern__gguf_kind;

/* Which rows of a matrix GGUF has, from first to last. */
typedef enum tern__gguf_order {
    TERN__GGUF_ROWS,    /* its own */
    TERN__GGUF_COLUMNS, /* its columns: that of a linear whose weight is (in, out) */
    TERN__GGUF_PAIRS /* in each head, row i and row i + rows / 2 in turn: rotary positions turn neighbours */
} tern__gguf_order;

typedef struct tern__gguf_tensor {
    char name[64];
    const float *data; /* borrowed */
    int ndim;          /* 1 or 2   */
    int64_t shape[2];  /* that of a vector ends with 1 */
    tern__gguf_order order;
    int64_t head_rows; /* of TERN__GGUF_PAIRS */
    tern_gguf_type type;
} tern__gguf_tensor;

typedef struct tern__gguf {
    const char *architecture, *func; /* borrowed */
    tern_error *err;
    tern_text keys; /* as they are in the file */
    uint64_t key_count;
    tern__gguf_tensor *tensors;
    size_t count, room;
} tern__gguf;

/* Add a key. One that begins with a period gets the architecture before it: ".block_count". */
void tern__gguf_u32(tern__gguf *g, const char *key, int64_t value);
void tern__gguf_f32(tern__gguf *g, const char *key, double value);
void tern__gguf_bool(tern__gguf *g, const char *key, bool value);
void tern__gguf_string(tern__gguf *g, const char *key, const char *text);
/* Begins an array of `count` items, which the caller adds. */
void tern__gguf_array(tern__gguf *g, const char *key, tern__gguf_kind kind, int64_t count);
void tern__gguf_item_string(tern__gguf *g, const char *text, size_t bytes);
void tern__gguf_item_i32(tern__gguf *g, int32_t value);
void tern__gguf_item_f32(tern__gguf *g, float value);

/* Adds a tensor. Rows that are no multiple of 32 long become f16 in place of q8_0. */
void tern__gguf_add(tern__gguf *g, tern__gguf_tensor tensor);

/* Writes the file. E_IO; E_RANGE: a number that a tensor's type does not have; E_MEMORY. */
int tern__gguf_write(tern__gguf *g, const char *path);
void tern__gguf_free(tern__gguf *g);

/* Adds the keys of the folder's tokenizer for a model of `vocab_size` tokens (vocabulary.c). */
void tern__gguf_add_vocabulary(tern__gguf *g, const char *folder, int64_t vocab_size);

#endif
