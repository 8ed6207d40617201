/* file.c - the format (ggml's docs/gguf.md): a header, the keys, descriptions of the tensors, and their data,
 * each at a multiple of 32 bytes. All of it is little-endian. A tensor is converted in parts of some rows, so
 * that a file needs little memory beside its model. */
#include "gguf/gguf.h"

#include "base/file.h"
#include "base/half.h"

#include <math.h>
#include <string.h>

#define ALIGNMENT   32
#define Q8_0_VALUES 32 /* of a block */

typedef struct q8_0_block {
    uint16_t scale; /* f16 */
    int8_t values[Q8_0_VALUES];
} q8_0_block;

/* ---- keys ---- */

static void add_bytes(const tern__gguf *g, tern_text *to, const void *data, size_t bytes)
{
    if (!tern__is_set(g->err)) tern__text_add(to, data, bytes, g->func, g->err);
}

static void key_bytes(tern__gguf *g, const void *data, size_t bytes)
{
    add_bytes(g, &g->keys, data, bytes);
}

void tern__gguf_item_string(tern__gguf *g, const char *text, size_t bytes)
{
    uint64_t length = bytes;
    key_bytes(g, &length, sizeof(length));
    key_bytes(g, text, bytes);
}

void tern__gguf_item_i32(tern__gguf *g, int32_t value)
{
    key_bytes(g, &value, sizeof(value));
}

void tern__gguf_item_f32(tern__gguf *g, float value)
{
    key_bytes(g, &value, sizeof(value));
}

static void key_begin(tern__gguf *g, const char *key, tern__gguf_kind kind)
{
    const char *prefix = *key == '.' ? g->architecture : "";
    uint64_t length = strlen(prefix) + strlen(key);
    uint32_t number = kind;
    key_bytes(g, &length, sizeof(length));
    key_bytes(g, prefix, strlen(prefix));
    key_bytes(g, key, strlen(key));
    key_bytes(g, &number, sizeof(number));
    g->key_count++;
}

void tern__gguf_u32(tern__gguf *g, const char *key, int64_t value)
{
    uint32_t number = (uint32_t)value;
    if ((value < 0 || value > UINT32_MAX) && !tern__is_set(g->err))
        tern__error_set(g->err, g->func, TERN_E_RANGE, "%s%s is %lld, expected 0 to 2^32 - 1",
                        *key == '.' ? g->architecture : "", key, (long long)value);
    key_begin(g, key, TERN__GGUF_U32);
    key_bytes(g, &number, sizeof(number));
}

void tern__gguf_f32(tern__gguf *g, const char *key, double value)
{
    key_begin(g, key, TERN__GGUF_F32);
    tern__gguf_item_f32(g, (float)value);
}

void tern__gguf_bool(tern__gguf *g, const char *key, bool value)
{
    uint8_t byte = value;
    key_begin(g, key, TERN__GGUF_BOOL);
    key_bytes(g, &byte, sizeof(byte));
}

void tern__gguf_string(tern__gguf *g, const char *key, const char *text)
{
    key_begin(g, key, TERN__GGUF_STRING);
    tern__gguf_item_string(g, text, strlen(text));
}

void tern__gguf_array(tern__gguf *g, const char *key, tern__gguf_kind kind, int64_t count)
{
    uint32_t number = kind;
    uint64_t items = (uint64_t)count;
    key_begin(g, key, TERN__GGUF_ARRAY);
    key_bytes(g, &number, sizeof(number));
    key_bytes(g, &items, sizeof(items));
}

/* ---- tensors ---- */

/* The numbers of a row of the file, and the rows. A vector has rows of one number, which is its shape. */
static int64_t row_length(const tern__gguf_tensor *t)
{
    return t->shape[t->order != TERN__GGUF_COLUMNS || t->ndim == 1];
}

static int64_t row_count(const tern__gguf_tensor *t)
{
    return t->shape[t->order == TERN__GGUF_COLUMNS && t->ndim == 2];
}

static size_t row_bytes(const tern__gguf_tensor *t)
{
    size_t length = (size_t)row_length(t);
    switch (t->type) {
    case TERN_GGUF_F32: return length * sizeof(float);
    case TERN_GGUF_F16: return length * sizeof(uint16_t);
    case TERN_GGUF_Q8_0: return length / Q8_0_VALUES * sizeof(q8_0_block);
    }
    return 0;
}

static size_t padding_after(size_t bytes)
{
    return tern__align_up(bytes, ALIGNMENT) - bytes;
}

void tern__gguf_add(tern__gguf *g, tern__gguf_tensor tensor)
{
    if (tern__is_set(g->err) ||
        tern__array_reserve(&g->tensors, &g->room, g->count + 1, sizeof(*g->tensors), g->func, g->err))
        return;
    if (tensor.type == TERN_GGUF_Q8_0 && row_length(&tensor) % Q8_0_VALUES) tensor.type = TERN_GGUF_F16;
    g->tensors[g->count++] = tensor;
}

/* Copies rows [from, from + count) of the file. */
static void rows_gather(const tern__gguf_tensor *t, int64_t from, int64_t count, float *out)
{
    int64_t length = row_length(t), half = t->head_rows / 2, stride = t->shape[1];
    if (t->order == TERN__GGUF_COLUMNS && t->ndim == 2) {
        for (int64_t i = 0; i < length; i++)
            for (int64_t r = 0; r < count; r++) out[r * length + i] = t->data[i * stride + from + r];
        return;
    }
    for (int64_t r = from; r < from + count; r++) {
        int64_t row = r, at = t->order == TERN__GGUF_PAIRS ? r % t->head_rows : 0;
        if (t->order == TERN__GGUF_PAIRS) row = r - at + at % 2 * half + at / 2;
        memcpy(out + (r - from) * length, t->data + row * length, (size_t)length * sizeof(*out));
    }
}

/* Returns false if there is a number that f16 does not have. */
static bool rows_to_f16(const float *in, int64_t count, uint16_t *out)
{
    int bad = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = tern__f16_from_f32(in[i]);
        bad |= (out[i] & 0x7c00) == 0x7c00;
    }
    return !bad;
}

/* Rounds halves away from zero, as ggml does. |x| is small. */
static float round_half_away(float x)
{
    float a = fabsf(x), whole = (float)(int)a;
    return copysignf(whole + (a - whole >= 0.5f), x);
}

/* As quantize_row_q8_0_ref of ggml: a block's largest number becomes 127 or -127. Returns false if a scale is
 * no f16, or a number is not finite. Bits of positive floats are in the order of the floats. */
static bool rows_to_q8_0(const float *in, int64_t count, q8_0_block *out)
{
    for (int64_t b = 0; b < count / Q8_0_VALUES; b++, in += Q8_0_VALUES) {
        uint32_t most = 0;
        for (int i = 0; i < Q8_0_VALUES; i++) most = TERN__MAX(most, tern__bits_of(in[i]) & 0x7fffffff);
        float scale = tern__float_of(most) / 127, inverse = scale > 0 ? 1 / scale : 0;
        if (!isfinite(inverse)) inverse = 0; /* the scale rounds to 0 in f16 */
        out[b].scale = tern__f16_from_f32(scale);
        if ((out[b].scale & 0x7c00) == 0x7c00) return false;
        for (int i = 0; i < Q8_0_VALUES; i++) out[b].values[i] = (int8_t)round_half_away(in[i] * inverse);
    }
    return true;
}

static bool rows_convert(tern_gguf_type type, const float *in, int64_t count, void *out)
{
    switch (type) {
    case TERN_GGUF_F32: memcpy(out, in, (size_t)count * sizeof(*in)); return true;
    case TERN_GGUF_F16: return rows_to_f16(in, count, out);
    case TERN_GGUF_Q8_0: return rows_to_q8_0(in, count, out);
    }
    return false;
}

/* ---- the file ---- */

typedef struct gguf_writer {
    const tern__gguf *g;
    tern__output out;
    float *rows;  /* of a part of a tensor */
    void *result; /* the same, converted   */
} gguf_writer;

static int write_zeros(gguf_writer *w, size_t bytes)
{
    static const char zeros[ALIGNMENT];
    return tern__output_write(&w->out, zeros, bytes, w->g->err);
}

/* Writes the descriptions, innermost dimension first. */
static int write_descriptions(gguf_writer *w)
{
    static const uint32_t numbers[] = {[TERN_GGUF_F32] = 0, [TERN_GGUF_F16] = 1, [TERN_GGUF_Q8_0] = 8};
    const tern__gguf *g = w->g;
    tern_text text = {0};
    uint64_t offset = 0;
    for (size_t i = 0; i < g->count; i++) {
        const tern__gguf_tensor *t = &g->tensors[i];
        uint64_t length = strlen(t->name), dims[2] = {(uint64_t)row_length(t), (uint64_t)row_count(t)};
        uint32_t ndim = (uint32_t)t->ndim;
        size_t bytes = row_bytes(t) * (size_t)row_count(t);
        add_bytes(g, &text, &length, sizeof(length));
        add_bytes(g, &text, t->name, length);
        add_bytes(g, &text, &ndim, sizeof(ndim));
        add_bytes(g, &text, dims + (ndim == 1), ndim * sizeof(*dims));
        add_bytes(g, &text, &numbers[t->type], sizeof(*numbers));
        add_bytes(g, &text, &offset, sizeof(offset));
        offset += bytes + padding_after(bytes);
    }
    int status = g->err->code;
    if (!status) status = tern__output_write(&w->out, text.text, text.bytes, g->err);
    tern_text_free(&text);
    return status;
}

/* Writes everything before the data. */
static int write_head(gguf_writer *w)
{
    const tern__gguf *g = w->g;
    uint32_t version = 3;
    uint64_t counts[2] = {g->count, g->key_count};
    int status = tern__output_write(&w->out, "GGUF", 4, g->err);
    if (!status) status = tern__output_write(&w->out, &version, sizeof(version), g->err);
    if (!status) status = tern__output_write(&w->out, counts, sizeof(counts), g->err);
    if (!status) status = tern__output_write(&w->out, g->keys.text, g->keys.bytes, g->err);
    if (!status) status = write_descriptions(w);
    return status ? status : write_zeros(w, padding_after((size_t)w->out.offset));
}

static int write_tensor(gguf_writer *w, const tern__gguf_tensor *t, int64_t at_once)
{
    const tern__gguf *g = w->g;
    int64_t rows = row_count(t), length = row_length(t);
    int status = TERN_OK;
    for (int64_t r = 0; r < rows && !status; r += at_once) {
        int64_t some = TERN__MIN(at_once, rows - r);
        rows_gather(t, r, some, w->rows);
        if (!rows_convert(t->type, w->rows, some * length, w->result))
            status = tern__error_set(g->err, g->func, TERN_E_RANGE,
                                     "%s of %s has a number that is not finite or too large for %s", t->name,
                                     w->out.path, t->type == TERN_GGUF_F16 ? "f16" : "q8_0");
        else
            status = tern__output_write(&w->out, w->result, (size_t)some * row_bytes(t), g->err);
    }
    return status ? status : write_zeros(w, padding_after(row_bytes(t) * (size_t)rows));
}

/* The rows that are converted together: about a megabyte. */
static int64_t rows_at_once(const tern__gguf_tensor *t)
{
    int64_t some = (1 << 18) / TERN__MAX(row_length(t), 1);
    return TERN__MIN(TERN__MAX(some, 1), row_count(t));
}

static int write_all(gguf_writer *w)
{
    const tern__gguf *g = w->g;
    size_t most = 0;
    for (size_t i = 0; i < g->count; i++) {
        const tern__gguf_tensor *t = &g->tensors[i];
        most = TERN__MAX(most, (size_t)(rows_at_once(t) * row_length(t)));
    }
    w->rows = tern__alloc(TERN__MAX(most, 1) * sizeof(float), g->func, g->err);
    w->result = w->rows ? tern__alloc(TERN__MAX(most, 1) * sizeof(float), g->func, g->err) : NULL;
    int status = w->result ? write_head(w) : TERN_E_MEMORY;
    for (size_t i = 0; i < g->count && !status; i++)
        status = write_tensor(w, &g->tensors[i], rows_at_once(&g->tensors[i]));
    tern__free(w->rows);
    tern__free(w->result);
    return status;
}

int tern__gguf_write(tern__gguf *g, const char *path)
{
    gguf_writer w = {.g = g};
    if (tern__is_set(g->err)) return g->err->code;
    int status = tern__output_tidy(path, g->func, g->err);
    if (!status) status = tern__output_open(&w.out, path, g->func, g->err);
    if (status) return status;
    return tern__output_close(&w.out, write_all(&w), true, g->err);
}

void tern__gguf_free(tern__gguf *g)
{
    tern_text_free(&g->keys);
    tern__free(g->tensors);
}
