/* token_data.h - files of token ids, and the dataset that a language model is trained on.
 *
 * A file is an array of ids without gaps, u16 where the vocabulary has at most 65536 tokens, else u32:
 *
 * - NAME.npy: one dimension, as numpy.save writes it;
 * - any other name: llm.c's .bin. A header of 256 int32: 20240520, 1 and the number of ids for u16; 20240801,
 *   7 and the number for u32. The rest of the header is 0.
 *
 * Threads: a writer belongs to one thread at a time, a dataset to any number of them. */
#ifndef TERN_TOKEN_DATA_H
#define TERN_TOKEN_DATA_H

#include <tern/data.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- writing ------------------------------------------------------------------------------------------ */

typedef struct tern_token_writer tern_token_writer;

/* Begins a file of ids in [0, vocab_size). It gets its name when it is closed, so that no program finds an
 * unfinished one. E_IO; E_RANGE: vocab_size is not in [1, 2^31]. Yours: tern_token_writer_close. */
TERN_API tern_token_writer *tern_token_writer_open(const char *path, int64_t vocab_size, tern_error *err);
/* Appends ids. E_RANGE: an id outside of the vocabulary, with its place in the file; E_IO. After an error the
 * file is not finished. */
TERN_API int tern_token_writer_write(tern_token_writer *writer, const int32_t *ids, int64_t count,
                                     tern_error *err);
/* Finishes the file, unless an error came before or `err` is set: then nothing is left of it. E_IO; E_RANGE:
 * more ids than a .bin can count, 2^31 - 1. */
TERN_API int tern_token_writer_close(tern_token_writer *writer, tern_error *err);

/* ---- the dataset -------------------------------------------------------------------------------------- */

typedef struct tern_token_dataset_opts {
    size_t size;
    int64_t window;     /* tokens of a sample, T; default 1024                                            */
    int64_t stride;     /* from the first token of a window to that of the next one; default 0: `window`  */
    tern_dtype dtype;   /* of a sample and its target: TERN_I64 or TERN_I32; default TERN_I64             */
    int64_t vocab_size; /* an id that is not below it is E_RANGE, with file and place; default 0: any     */
    bool raw;           /* the file is ids of u16 and nothing else, as nanoGPT's; default false           */
    bool shift;         /* the windows of each epoch begin elsewhere, by less than a stride; default false */
} tern_token_dataset_opts;
TERN_API tern_token_dataset_opts tern_token_dataset_defaults(void);

/* Makes a dataset of a file's windows: sample i is the ids [i * stride, i * stride + T), and its target the
 * ids after each of them, [i * stride + 1, i * stride + T + 1), the labels of tern_language_model_loss with
 * `shifted`. With `shift` all of them are up to a stride later, in each epoch another number of ids. Ids
 * after the last whole window are left out. Files are read as samples are asked for, so a file may be larger
 * than memory.
 *
 * Samplers cut it over ranks, and a snapshot resumes it, as any dataset with `get`. E_IO: missing, or not as
 * long as its header says, as an unfinished one is; E_FORMAT: neither llm.c's nor an .npy of one dimension
 * of u16, u32, i32 or i64; E_RANGE: fewer ids than a window needs, options; in `get`, E_RANGE: an id. Yours:
 * tern_dataset_free. */
TERN_API tern_dataset *tern_token_dataset_open(const char *path, const tern_token_dataset_opts *opts,
                                               tern_error *err);
/* The same of `count` ids in memory, which are copied. `raw` is for files. */
TERN_API tern_dataset *tern_token_dataset_new(const int32_t *ids, int64_t count,
                                              const tern_token_dataset_opts *opts, tern_error *err);
/* Returns the number of ids of such a dataset; 0 for another one. */
TERN_API int64_t tern_token_dataset_tokens(const tern_dataset *dataset);

#ifdef __cplusplus
}
#endif
#endif
