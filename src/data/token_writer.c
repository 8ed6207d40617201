/* token_writer.c - writes files of tokens. The header has the number of ids, which is known at the end: it is
 * written then, over the place that was kept for it. */
#include "base/file.h"
#include "data/token_file.h"

#include <stdio.h>
#include <unistd.h>

#include <tern/token_data.h>

#define FUNC "tern_token_writer_open"

struct tern_token_writer {
    tern__output out;
    char *path;
    int64_t vocab_size, count;
    int bytes; /* of an id */
    bool is_npy;
    int status; /* of the first error */
};

static size_t header_bytes(const tern_token_writer *w)
{
    return w->is_npy ? TERN__TOKEN_NPY : TERN__TOKEN_HEADER;
}

static void header_write(const tern_token_writer *w, char header[TERN__TOKEN_HEADER])
{
    memset(header, 0, TERN__TOKEN_HEADER);
    if (w->is_npy) {
        char text[TERN__TOKEN_NPY];
        int length =
            snprintf(text, sizeof(text), "{'descr': '<u%d', 'fortran_order': False, 'shape': (%lld,), }",
                     w->bytes, (long long)w->count);
        memset(header, ' ', TERN__TOKEN_NPY);
        memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10); /* version 1, and the 118 bytes that follow */
        memcpy(header + 10, text, (size_t)length);
        header[TERN__TOKEN_NPY - 1] = '\n';
        return;
    }
    int32_t words[3] = {w->bytes == 2 ? TERN__TOKEN_U16 : TERN__TOKEN_U32, w->bytes == 2 ? 1 : 7,
                        (int32_t)w->count};
    memcpy(header, words, sizeof(words));
}

tern_token_writer *tern_token_writer_open(const char *path, int64_t vocab_size, tern_error *err)
{
    char header[TERN__TOKEN_HEADER] = {0};
    if (tern__is_set(err) || tern__need(path, "path", FUNC, err)) return NULL;
    if (vocab_size < 1 || vocab_size > INT64_C(1) << 31) {
        tern__error_set(err, FUNC, TERN_E_RANGE, "vocab_size is %lld, expected 1 to 2^31",
                        (long long)vocab_size);
        return NULL;
    }
    tern_token_writer *w = tern__alloc(sizeof(*w), FUNC, err);
    if (!w) return NULL;
    *w = (tern_token_writer){.vocab_size = vocab_size,
                             .bytes = vocab_size <= 1 << 16 ? 2 : 4,
                             .path = tern__strdup(path, FUNC, err)};
    int status = w->path ? tern__output_tidy(path, FUNC, err) : TERN_E_MEMORY;
    if (!status) status = tern__output_open(&w->out, w->path, FUNC, err);
    if (status) {
        tern__free(w->path);
        tern__free(w);
        return NULL;
    }
    w->is_npy = tern__token_path_is_npy(path);
    w->status = tern__output_write(&w->out, header, header_bytes(w), err);
    if (!w->status) return w;
    tern_token_writer_close(w, NULL);
    return NULL;
}

static int ids_write(tern_token_writer *w, const int32_t *ids, int64_t count, tern_error *err)
{
    enum { AT_ONCE = 4096 };
    uint16_t narrow[AT_ONCE];
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= w->vocab_size)
            return tern__error_set(err, "tern_token_writer_write", TERN_E_RANGE,
                                   "%s: token %lld is %d, expected 0 to %lld", w->path,
                                   (long long)(w->count + i), ids[i], (long long)w->vocab_size - 1);
    if (w->bytes == 4) return tern__output_write(&w->out, ids, (size_t)count * 4, err);
    for (int64_t from = 0; from < count; from += AT_ONCE) {
        int64_t some = TERN__MIN(count - from, AT_ONCE);
        for (int64_t i = 0; i < some; i++) narrow[i] = (uint16_t)ids[from + i];
        if (tern__output_write(&w->out, narrow, (size_t)some * 2, err)) return TERN_E_IO;
    }
    return TERN_OK;
}

int tern_token_writer_write(tern_token_writer *writer, const int32_t *ids, int64_t count, tern_error *err)
{
    static const char func[] = "tern_token_writer_write";
    if (tern__is_set(err)) return err->code;
    if (tern__need(writer, "writer", func, err)) return TERN_E_INVALID;
    if (writer->status)
        return tern__error_set(err, func, TERN_E_STATE, "%s: an earlier call failed", writer->path);
    if (count && tern__need(ids, "ids", func, err))
        writer->status = TERN_E_INVALID;
    else if (count < 0)
        writer->status = tern__error_set(err, func, TERN_E_RANGE, "%lld ids", (long long)count);
    else
        writer->status = ids_write(writer, ids, count, err);
    writer->count += writer->status ? 0 : count;
    return writer->status;
}

/* Writes the header over the place that was kept for it. */
static int header_finish(tern_token_writer *w, tern_error *err)
{
    char header[TERN__TOKEN_HEADER];
    if (!w->is_npy && w->count > INT32_MAX)
        return tern__error_set(err, "tern_token_writer_close", TERN_E_RANGE,
                               "%s: %lld tokens, but an llm.c file counts at most 2^31 - 1: write an .npy",
                               w->path, (long long)w->count);
    header_write(w, header);
    int status = tern__output_flush(&w->out, err);
    size_t bytes = header_bytes(w);
    if (!status && pwrite(w->out.fd, header, bytes, 0) != (ssize_t)bytes)
        status = tern__error_errno(err, "tern_token_writer_close", TERN_E_IO, "cannot write %s", w->path);
    return status;
}

int tern_token_writer_close(tern_token_writer *writer, tern_error *err)
{
    if (!writer) return TERN_OK;
    int status = tern__is_set(err) ? err->code : writer->status;
    if (!status) status = header_finish(writer, err);
    status = tern__output_close(&writer->out, status, true, err);
    tern__free(writer->path);
    tern__free(writer);
    return status;
}
