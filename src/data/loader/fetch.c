/* fetch.c - fills a slot with a batch: samples by index, or the next samples of a stream. */
#include "data/loader/loader_inner.h"

static const char FUNC[] = "tern_loader_next";

int tern__label_check(const char *func, const tern_dataset *dataset, const void *y, tern_error *err)
{
    if (dataset->classes == 0 || dataset->target_ndim > 0) return TERN_OK;
    int64_t label = *(const int64_t *)y;
    if (label >= 0 && label < dataset->classes) return TERN_OK;
    return tern__error_set(err, func, TERN_E_RANGE, "label is %lld, expected [0, %d]", (long long)label,
                           dataset->classes - 1);
}

/* In the signature of a dataset's functions x is f32, whatever its dtype is. */
static float *sample_x(const tern_loader *loader, const tern__batch *batch, int64_t i)
{
    return (float *)((char *)batch->x + (size_t)(i * loader->sample_values) * loader->value_bytes);
}

static void *sample_y(const tern_loader *loader, const tern__batch *batch, int64_t i)
{
    return (char *)batch->y + (size_t)i * loader->target_bytes;
}

/* ---- samples by index ---- */

static int get_sample(tern__reader *reader, const tern__batch *batch, int64_t index, float *x, void *y,
                      tern_error *err)
{
    const tern_dataset *dataset = reader->loader->dataset;
    tern__dataset_call_begin(&reader->call, TERN__DATASET_GET, batch->index, index);
    int status = dataset->get(dataset, reader->loader->epoch, index, x, y, err);
    tern__dataset_call_end(&reader->call);
    if (!status && !tern__is_set(err)) return tern__label_check(FUNC, dataset, y, err);
    return tern__error_set(err, FUNC, status < 0 ? status : TERN_E_INVALID, "the dataset's get returned %d",
                           status);
}

static void fetch_indices(tern__reader *reader, tern__loader_slot *slot)
{
    const tern_loader *loader = reader->loader;
    tern__batch *batch = &slot->batch;
    const int64_t *indices = loader->indices + batch->index * loader->opts.batch_size + loader->shift;
    for (int64_t i = 0; i < batch->count && !atomic_load(&loader->stopping); i++) {
        tern_error why = {0};
        if (!get_sample(reader, batch, indices[i], sample_x(loader, batch, i), sample_y(loader, batch, i),
                        &why))
            continue;
        tern_error_set(&slot->error, why.func, why.code, "batch %lld, sample %lld: %s",
                       (long long)batch->index, (long long)indices[i], why.text);
        slot->error.native = why.native;
        return;
    }
}

/* ---- the next samples of a stream ---- */

/* Returns 1: a sample. 0: the end of the stream. Negative: an error. Function, part and sample are for who
 * names a call that does not return. */
static int next_sample(tern__reader *reader, tern__dataset_function function, int64_t part, int64_t sample,
                       float *x, void *y, tern_error *err)
{
    const tern_dataset *dataset = reader->loader->dataset;
    tern__dataset_call_begin(&reader->call, function, part, sample);
    int status = dataset->next(reader->cursor, x, y, err);
    tern__dataset_call_end(&reader->call);
    if (tern__is_set(err) || status < 0 || status > 1)
        return tern__error_set(err, FUNC, status < 0 ? status : TERN_E_INVALID,
                               "the stream's next returned %d", status);
    return status == 1 && tern__label_check(FUNC, dataset, y, err) ? err->code : status;
}

/* Worker w of W on rank r of R reads part r W + w of R W. */
static int64_t fetch_part_of(const tern__reader *reader)
{
    const tern_loader *loader = reader->loader;
    return (int64_t)loader->opts.rank * loader->reader_count + reader->number;
}

/* Opens the reader's part. Reads and drops the samples that a resumed pass has
 * used already. */
static int open_part(tern__reader *reader, const tern__batch *scratch, tern_error *err)
{
    const tern_loader *loader = reader->loader;
    int64_t part = fetch_part_of(reader), parts = (int64_t)loader->opts.ranks * loader->reader_count;
    tern__dataset_call_begin(&reader->call, TERN__DATASET_OPEN, part, 0);
    reader->cursor = loader->dataset->open(loader->dataset, loader->epoch, part, parts, err);
    tern__dataset_call_end(&reader->call);
    if (tern__is_set(err)) return TERN_E_INVALID; /* the code in *err may be any */
    if (!reader->cursor) return tern__error_set(err, FUNC, TERN_E_INVALID, "the stream's open returned NULL");
    int more = 1;
    for (int64_t i = 0; i < reader->skip && more > 0 && !atomic_load(&loader->stopping); i++)
        more = next_sample(reader, TERN__DATASET_SKIP, part, i, scratch->x, scratch->y, err);
    return more;
}

static bool fetch_stream(tern__reader *reader, tern__loader_slot *slot)
{
    const tern_loader *loader = reader->loader;
    tern__batch *batch = &slot->batch;
    tern_error why = {0};
    int64_t size = loader->opts.batch_size;
    int more = reader->cursor ? 1 : open_part(reader, batch, &why);
    for (batch->count = 0; more > 0 && batch->count < size && !atomic_load(&loader->stopping);
         batch->count += more > 0)
        more =
            next_sample(reader, TERN__DATASET_NEXT, batch->index, batch->count,
                        sample_x(loader, batch, batch->count), sample_y(loader, batch, batch->count), &why);
    if (loader->opts.drop_last && batch->count < size) batch->count = 0;
    if (more < 0) {
        tern_error_set(&slot->error, why.func, why.code, "batch %lld, sample %lld: %s",
                       (long long)batch->index, (long long)batch->count, why.text);
        slot->error.native = why.native;
    }
    if (more <= 0) tern__reader_close(reader);
    return more > 0;
}

void tern__reader_close(tern__reader *reader)
{
    const tern_dataset *dataset = reader->loader->dataset;
    if (reader->cursor && dataset->close) {
        tern__dataset_call_begin(&reader->call, TERN__DATASET_CLOSE, fetch_part_of(reader), 0);
        dataset->close(reader->cursor);
        tern__dataset_call_end(&reader->call);
    }
    reader->cursor = NULL;
}

bool tern__loader_fetch(tern__reader *reader, tern__loader_slot *slot)
{
    slot->error = (tern_error){0};
    if (tern__slot_await_copy(reader->loader, slot, &slot->error)) return true;
    if (reader->loader->stream) return fetch_stream(reader, slot);
    fetch_indices(reader, slot);
    return true;
}
