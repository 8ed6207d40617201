/* safetensors_load.c - reads an untrusted safetensors file.
 *
 * The header is walked twice, without building a tree. The first walk checks each entry by itself and adds up
 * the memory that its objects will take; that must fit the budget before anything is allocated. The second
 * walk fills a table of the tensors. Sorted by offset, the table shows gaps and overlaps. Then all data is
 * read into one block, in which each tensor starts at a cache line. */
#include "checkpoint/safetensors.h"

#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/json.h"
#include "checkpoint/dtypes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FUNC[] = "tern_load";

/* A tensor's entry in the header. */
typedef struct entry {
    tern__json_slice name;
    tern__json_slice dtype_name;
    const tern__file_dtype *dtype;
    int64_t ndim;
    int64_t shape[TERN_NDIM_MAX];
    size_t shape_at;     /* where the header has the whole shape */
    int64_t product;     /* of the sizes that are not 0 */
    bool fits, is_empty; /* the product does; one size is 0 */
    int64_t place[2];    /* start and end in the data */
    int64_t place_count;
    unsigned seen; /* bits of the fields that occurred */
} entry;

typedef struct header {
    tern__input *in;
    char *text;
    size_t bytes;
    int64_t data_bytes;
    int64_t cost;   /* bytes of memory that the result will take */
    entry *entries; /* NULL on the first walk  */
    int64_t count;
    bool records;
    bool has_metadata;
    tern_object *metadata; /* NULL on the first walk */
} header;

/* The memory that a tensor takes beside its name and data: its row in the table, qsort's copy of that, the
 * handle, two nodes, their place in the dict, and the rest of the last cache line. PAIR_COST is that of a
 * pair of strings in the metadata. */
#define TENSOR_COST                                                                                          \
    (sizeof(entry) + 2 * sizeof(void *) + tern__align_up(sizeof(tern_tensor), TERN__LINE) + TERN__LINE +     \
     2 * TERN__OBJECT_BYTES + TERN__OBJECT_PAIR_BYTES + TERN__LINE)
#define PAIR_COST (2 * TERN__OBJECT_BYTES + TERN__OBJECT_PAIR_BYTES)
/* What a record of a tensor takes beyond that. */
#define RECORD_COST(ndim)                                                                                    \
    (TERN__TENSOR_RECORD_BYTES + TERN__OBJECT_BYTES + (ndim) * (TERN__OBJECT_BYTES + TERN__OBJECT_ITEM_BYTES))

/* ---- errors ---- */

#define REFUSE(header, entry, ...) safetensors_refuse(header, entry, TERN_E_FORMAT, err, __VA_ARGS__)

/* Fails with the text `FILE: "conv.weight" ..`. */
static int TERN__PRINTF(5, 6)
    safetensors_refuse(const header *h, const entry *e, int code, tern_error *err, const char *format, ...)
{
    char quote[TERN__QUOTE_TEXT], text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return tern__error_set(err, FUNC, code, "%s: %s %s", h->in->path,
                           tern__quote(e->name.text, e->name.bytes, quote), text);
}

/* ---- one entry ---- */

enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };

static int read_dimension(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    (void)key;
    entry *e = ctx;
    int64_t size;
    int status = tern__json_count(json, &size, err);
    if (status) return status;
    if (e->ndim < TERN_NDIM_MAX) e->shape[e->ndim] = size;
    e->ndim++;
    e->is_empty = e->is_empty || size == 0;
    e->fits = e->fits && !__builtin_mul_overflow(e->product, TERN__MAX(size, 1), &e->product);
    return TERN_OK;
}

static int read_offset(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    (void)key;
    entry *e = ctx;
    int64_t offset;
    int status = tern__json_count(json, &offset, err);
    if (!status && e->place_count < 2) e->place[e->place_count] = offset;
    e->place_count++;
    return status;
}

typedef struct reading {
    const header *header;
    entry *entry;
} reading;

/* Skips unknown fields, as safetensors does. */
static int read_field(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    const reading *r = ctx;
    unsigned field = tern__json_is(key, "dtype")          ? DTYPE
                     : tern__json_is(key, "shape")        ? SHAPE
                     : tern__json_is(key, "data_offsets") ? OFFSETS
                                                          : 0;
    if (r->entry->seen & field)
        return REFUSE(r->header, r->entry, "has \"%.*s\" twice", (int)key.bytes, key.text);
    r->entry->seen |= field;
    switch (field) {
    case DTYPE: return tern__json_string(json, &r->entry->dtype_name, err);
    case SHAPE: r->entry->shape_at = json->at; return tern__json_array(json, read_dimension, r->entry, err);
    case OFFSETS: return tern__json_array(json, read_offset, r->entry, err);
    default: return tern__json_skip(json, err);
    }
}

#define AS_RECORD "; tern_load_opts.records loads it as a record"

static int check_dtype(const header *h, entry *e, tern_error *err)
{
    char quote[TERN__QUOTE_TEXT];
    for (const tern__file_dtype *d = tern__file_dtypes; d < tern__file_dtypes + TERN__FILE_DTYPES; d++)
        if (d->safetensors && tern__json_is(e->dtype_name, d->safetensors)) e->dtype = d;
    if (!e->dtype)
        return REFUSE(h, e, "has dtype %s, which does not exist",
                      tern__quote(e->dtype_name.text, e->dtype_name.bytes, quote));
    if (e->dtype->dtype != TERN_DTYPE_NONE || h->records) return TERN_OK;
    return safetensors_refuse(h, e, TERN_E_UNSUPPORTED, err,
                              "has dtype %s, which tern does not support" AS_RECORD, e->dtype->safetensors);
}

/* Is it loaded as a record? */
static bool is_record(const entry *e)
{
    return e->dtype->dtype == TERN_DTYPE_NONE || e->ndim > TERN_NDIM_MAX;
}

/* Even if a dimension is 0, the product of the others must fit, since strides are computed from it. */
static int count_bytes(const header *h, const entry *e, int64_t *bytes, tern_error *err)
{
    int bits = e->dtype->bits;
    int64_t rest = e->product % 8 * bits;
    bool fits = e->fits && !__builtin_mul_overflow(e->product / 8, (int64_t)bits, bytes) &&
                !__builtin_add_overflow(*bytes, rest / 8, bytes);
    if (!fits) return REFUSE(h, e, "has too many elements: they take more than 2^63 bytes");
    if (e->is_empty) *bytes = 0;
    if (e->is_empty || rest % 8 == 0) return TERN_OK;
    return REFUSE(h, e, "ends inside a byte: it has %lld elements of %d bits", (long long)e->product, bits);
}

static int check_place(const header *h, const entry *e, tern_error *err)
{
    long long begin = e->place[0], end = e->place[1];
    int64_t bytes = 0;
    if (e->place_count != 2)
        return REFUSE(h, e, "has %lld data_offsets, expected 2", (long long)e->place_count);
    if (begin > end)
        return REFUSE(h, e, "has data_offsets [%lld, %lld], which end before they start", begin, end);
    if (end > h->data_bytes)
        return REFUSE(h, e, "has data_offsets [%lld, %lld], but the file has %lld bytes of data", begin, end,
                      (long long)h->data_bytes);
    int status = count_bytes(h, e, &bytes, err);
    if (!status && bytes != end - begin)
        return REFUSE(h, e, "takes %lld bytes by shape and dtype, but data_offsets [%lld, %lld] span %lld",
                      (long long)bytes, begin, end, end - begin);
    return status;
}

static int safetensors_check_entry(const header *h, entry *e, tern_error *err)
{
    if (!(e->seen & DTYPE)) return REFUSE(h, e, "has no dtype");
    if (!(e->seen & SHAPE)) return REFUSE(h, e, "has no shape");
    if (!(e->seen & OFFSETS)) return REFUSE(h, e, "has no data_offsets");
    int status = check_dtype(h, e, err);
    if (!status && e->ndim > TERN_NDIM_MAX && !h->records)
        return safetensors_refuse(h, e, TERN_E_UNSUPPORTED, err,
                                  "has %lld dimensions, tern supports at most %d" AS_RECORD,
                                  (long long)e->ndim, TERN_NDIM_MAX);
    return status ? status : check_place(h, e, err);
}

/* ---- the header ---- */

/* Makes a string object of a key or a value, and decodes its escapes. */
static tern_object *string_of(tern__json_slice slice, tern_error *err)
{
    char *plain = tern__alloc_raw(slice.bytes, 1);
    if (!plain) {
        tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: %zu bytes", slice.bytes);
        return NULL;
    }
    tern_object *string = tern__object_string(plain, tern__json_unescape(slice, plain), err);
    tern__free(plain);
    return string;
}

/* Sets a key that must be new. Drops the caller's reference to `item`. */
static int set_new(const header *h, tern_object *dict, tern__json_slice name, tern_object *item,
                   tern_error *err)
{
    tern_object *key = string_of(name, err);
    int64_t before = tern_object_count(dict);
    int status = key && item ? tern__object_set(dict, key, item, err) : TERN_E_MEMORY;
    if (!status && tern_object_count(dict) == before)
        status = REFUSE(h, &(entry){.name = name}, "occurs twice");
    tern__object_drop(key);
    tern__object_drop(item);
    return status;
}

static int read_pair(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    header *h = ctx;
    tern__json_slice value;
    int status = tern__json_string(json, &value, err);
    if (status) return status;
    if (h->metadata) return set_new(h, h->metadata, key, string_of(value, err), err);
    if (!h->entries) h->cost += (int64_t)(PAIR_COST + key.bytes + value.bytes);
    return TERN_OK;
}

static int read_metadata(tern__json *json, header *h, tern__json_slice key, tern_error *err)
{
    if (!h->entries && h->has_metadata) return REFUSE(h, &(entry){.name = key}, "occurs twice");
    if (tern__json_take_null(json)) return TERN_OK; /* the same as none */
    h->has_metadata = true;
    return tern__json_object(json, read_pair, h, err);
}

static int read_member(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    header *h = ctx;
    entry e = {.name = key, .product = 1, .fits = true};
    if (tern__json_is(key, TERN__SAFETENSORS_METADATA)) return read_metadata(json, h, key, err);
    int status = tern__json_object(json, read_field, &(reading){h, &e}, err);
    if (!status) status = safetensors_check_entry(h, &e, err);
    if (!status && h->entries) h->entries[h->count] = e;
    if (!h->entries) h->cost += (int64_t)(TENSOR_COST + key.bytes);
    if (!h->entries && !status && is_record(&e)) h->cost += RECORD_COST(e.ndim);
    h->count++;
    return status;
}

static int safetensors_walk(header *h, tern_error *err)
{
    char what[TERN_ERROR_TEXT] = "";
    tern__text_append(what, sizeof(what), "%s: header", h->in->path);
    tern__json json = {.text = h->text, .bytes = h->bytes, .what = what, .func = FUNC};
    h->count = 0;
    int status = tern__json_object(&json, read_member, h, err);
    return status ? status : tern__json_end(&json, err);
}

/* ---- the offsets ---- */

static int compare_places(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    for (int i = 0; i < 2; i++)
        if (x->place[i] != y->place[i]) return x->place[i] < y->place[i] ? -1 : 1;
    return 0;
}

static bool is_sorted(const header *h)
{
    for (int64_t i = 1; i < h->count; i++)
        if (compare_places(&h->entries[i - 1], &h->entries[i]) > 0) return false;
    return true;
}

/* Two tensors of one name overlap, too, or leave a gap; the name says what is wrong with the file. */
static int check_names(const header *h, tern_error *err)
{
    tern_object *names = tern_object_dict(err), *none = tern_object_none(err);
    int status = names && none ? TERN_OK : TERN_E_MEMORY;
    for (int64_t i = 0; !status && i < h->count; i++)
        status = set_new(h, names, h->entries[i].name, tern__object_hold(none), err);
    tern__object_drop(names);
    tern__object_drop(none);
    return status;
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static int check_cover(header *h, tern_error *err)
{
    long long end = 0;
    if (!is_sorted(h)) qsort(h->entries, (size_t)h->count, sizeof(*h->entries), compare_places);
    for (const entry *e = h->entries; e < h->entries + h->count; e++) {
        if (e->place[0] < end)
            return REFUSE(h, e, "starts at byte %lld of the data, inside a tensor that ends at %lld",
                          (long long)e->place[0], end);
        if (e->place[0] > end)
            return REFUSE(h, e, "starts at byte %lld of the data, but the tensors before it end at %lld",
                          (long long)e->place[0], end);
        end = e->place[1];
    }
    if (end == h->data_bytes) return TERN_OK;
    return tern__error_set(err, FUNC, TERN_E_FORMAT,
                           "%s: the tensors end at byte %lld of the data, but the data has %lld", h->in->path,
                           end, (long long)h->data_bytes);
}

/* ---- reading ---- */

static void *safetensors_make_room(size_t bytes, tern_error *err)
{
    void *room = tern__alloc_raw(bytes, TERN__LINE);
    if (!room) tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: %zu bytes", bytes);
    return room;
}

static int read_length(header *h, tern_error *err)
{
    uint8_t head[8] = {0};
    int64_t left = h->in->size - (int64_t)sizeof(head);
    if (left < 0)
        return tern__error_set(err, FUNC, TERN_E_FORMAT,
                               "%s has %lld bytes, expected a length of 8 bytes and a header", h->in->path,
                               (long long)h->in->size);
    int status = tern__input_read(h->in, 0, head, sizeof(head), err);
    uint64_t length = tern__bytes_get(head, sizeof(head));
    if (!status && (length < 2 || length > TERN__SAFETENSORS_HEADER_MAX))
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: its header has %llu bytes, expected 2 to %d",
                               h->in->path, (unsigned long long)length, TERN__SAFETENSORS_HEADER_MAX);
    if (!status && (int64_t)length > left)
        return tern__error_set(err, FUNC, TERN_E_FORMAT,
                               "%s is truncated: expected a header of %llu bytes, got %lld", h->in->path,
                               (unsigned long long)length, (long long)left);
    h->bytes = (size_t)length;
    h->data_bytes = left - (int64_t)length;
    return status;
}

static int read_header(header *h, tern_error *err)
{
    int status = read_length(h, err);
    if (!status) status = tern__input_charge(h->in, (int64_t)h->bytes, err);
    if (status) return status;
    h->text = safetensors_make_room(h->bytes, err);
    if (!h->text) return TERN_E_MEMORY;
    status = tern__input_read(h->in, 8, h->text, h->bytes, err);
    ssize_t bad = status ? -1 : tern__utf8_check(h->text, h->bytes);
    if (bad >= 0)
        return tern__error_set(err, FUNC, TERN_E_FORMAT, "%s: its header is not UTF-8 at byte %zd",
                               h->in->path, bad);
    if (!status) status = safetensors_walk(h, err);
    return status ? status : tern__input_charge(h->in, h->cost + h->data_bytes, err);
}

/* The second walk. */
static int fill_table(header *h, tern_error *err)
{
    h->entries = safetensors_make_room((size_t)h->count * sizeof(*h->entries), err);
    if (!h->entries) return TERN_E_MEMORY;
    h->metadata = tern_object_dict(err);
    if (!h->metadata) return TERN_E_MEMORY;
    tern_error why = {0};
    int status = safetensors_walk(h, err);
    if (status || !check_cover(h, &why)) return status;
    status = check_names(h, err);
    return status ? status : tern__error_set(err, FUNC, why.code, "%s", why.text);
}

/* ---- the tensors ---- */

static size_t safetensors_bytes_of(const entry *e)
{
    return (size_t)(e->place[1] - e->place[0]);
}

/* In C a bool must be 0 or 1. */
static int check_bools(const header *h, const entry *e, const uint8_t *data, tern_error *err)
{
    for (size_t i = 0; e->dtype->dtype == TERN_BOOL && i < safetensors_bytes_of(e); i++)
        if (data[i] > 1) return REFUSE(h, e, "has dtype BOOL, but its byte %zu is %d", i, data[i]);
    return TERN_OK;
}

static void release_block(void *ctx)
{
    tern__storage *block = ctx;
    tern__free(block->data);
    tern__free(block);
}

/* Allocates memory for all data; each tensor starts at a cache line. */
static tern__storage *block_new(const header *h, tern_error *err)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < h->count; i++)
        bytes += tern__align_up(safetensors_bytes_of(&h->entries[i]), TERN__LINE);
    tern__storage *block = tern__alloc(sizeof(*block), FUNC, err);
    if (!block) return NULL;
    *block = (tern__storage){
        .refs = 1, .data = safetensors_make_room(bytes, err), .release = release_block, .ctx = block};
    if (block->data) return block;
    tern__free(block);
    return NULL;
}

static tern_object *tensor_over(tern__storage *block, void *data, tern_dtype dtype, int ndim,
                                const int64_t *shape, tern_error *err)
{
    tern_tensor *tensor = tern__alloc(sizeof(*tensor), FUNC, err);
    if (!tensor) return NULL;
    tensor->view = tern__view_make(dtype, TERN__PLAIN, ndim, shape);
    tensor->view.data = data;
    tensor->storage = tern__storage_hold(block);
    tern_object *object = tern__object_tensor_take(tensor, err);
    if (!object) tern_tensor_free(tensor);
    return object;
}

static int append_size(tern__json *json, tern__json_slice key, void *ctx, tern_error *err)
{
    (void)key;
    int64_t size;
    int status = tern__json_count(json, &size, err);
    tern_object *item = status ? NULL : tern_object_int(size, err);
    if (!item) return err->code;
    status = tern__object_append(ctx, item, err);
    tern__object_drop(item);
    return status;
}

/* Makes the record of a tensor that tern does not have, and reads its shape once more. */
static tern_object *record_of(const header *h, const entry *e, tern__storage *block, void *data,
                              tern_error *err)
{
    tern__json json = {.text = h->text, .bytes = h->bytes, .at = e->shape_at, .what = "", .func = FUNC};
    int64_t count = (int64_t)safetensors_bytes_of(e);
    tern_object *shape = tern_object_tuple(err), *record = NULL;
    tern_object *bytes = tensor_over(block, data, TERN_U8, 1, &count, err);
    int status = shape && bytes ? tern__json_array(&json, append_size, shape, err) : TERN_E_MEMORY;
    if (!status) record = tern__tensor_record_new(e->dtype, shape, bytes, err);
    tern__object_drop(shape);
    tern__object_drop(bytes);
    return record;
}

static tern_object *tensor_of(const header *h, const entry *e, tern__storage *block, void *data,
                              tern_error *err)
{
    if (is_record(e)) return record_of(h, e, block, data, err);
    return tensor_over(block, data, e->dtype->dtype, (int)e->ndim, e->shape, err);
}

static int read_tensors(const header *h, tern_object *dict, tern_error *err)
{
    tern__storage *block = block_new(h, err);
    char *data = block ? block->data : NULL;
    int status = block ? TERN_OK : TERN_E_MEMORY;
    for (const entry *e = h->entries; !status && e < h->entries + h->count; e++) {
        status =
            tern__input_read(h->in, 8 + (int64_t)h->bytes + e->place[0], data, safetensors_bytes_of(e), err);
        if (!status) status = check_bools(h, e, (uint8_t *)data, err);
        if (!status) status = set_new(h, dict, e->name, tensor_of(h, e, block, data, err), err);
        data += tern__align_up(safetensors_bytes_of(e), TERN__LINE);
    }
    tern__storage_drop(block);
    return status;
}

static int add_metadata(const header *h, tern_object *dict, tern_error *err)
{
    static const tern__json_slice name = {TERN__SAFETENSORS_METADATA, sizeof(TERN__SAFETENSORS_METADATA) - 1};
    return set_new(h, dict, name, tern__object_hold(h->metadata), err);
}

bool tern__safetensors_is_path(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, TERN__SAFETENSORS_SUFFIX) == 0;
}

bool tern__safetensors_is(const tern__input *in)
{
    char first = 0;
    if (tern__safetensors_is_path(in->path)) return true;
    return in->size > 8 && !tern__input_read(in, 8, &first, 1, NULL) && first == '{';
}

bool tern__safetensors_is_metadata(const tern_object *key)
{
    static const char name[] = TERN__SAFETENSORS_METADATA;
    const char *text = tern_object_to_string(key);
    return text && tern_object_count(key) == sizeof(name) - 1 && !memcmp(text, name, sizeof(name) - 1);
}

tern_object *tern__safetensors_load(tern__input *in, bool records, bool metadata, tern_error *err)
{
    header h = {.in = in, .records = records};
    tern_object *dict = tern_object_dict(err);
    int status = dict ? read_header(&h, err) : TERN_E_MEMORY;
    if (!status) status = fill_table(&h, err);
    if (!status && metadata && h.has_metadata) status = add_metadata(&h, dict, err);
    if (!status) status = read_tensors(&h, dict, err);
    tern__free(h.text);
    tern__free(h.entries);
    tern__object_drop(h.metadata);
    if (!status) return dict;
    tern__object_drop(dict);
    return NULL;
}
