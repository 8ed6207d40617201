/* gguf.h - writes a folder of Hugging Face as GGUF, the format of llama.cpp and the programs built on it.
 *
 * Threads: any number of them, for different files. */
#ifndef TERN_GGUF_H
#define TERN_GGUF_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tern_gguf_type {
    TERN_GGUF_F32,
    TERN_GGUF_F16,
    TERN_GGUF_Q8_0 /* blocks of 32 int8 with a scale of f16 */
} tern_gguf_type;

typedef struct tern_gguf_opts {
    size_t size;
    tern_gguf_type type; /* of matrices; norms, biases and positions are f32; default TERN_GGUF_F16 */
    const char *name;    /* general.name; default NULL: the folder's name                           */
} tern_gguf_opts;
TERN_API tern_gguf_opts tern_gguf_defaults(void);

/* Writes the GPT-2 or Llama of a folder (config.json, weights, tokenizer) to `path`: metadata, vocabulary and
 * tensors with the names and the order of llama.cpp's convert_hf_to_gguf.py. The file gets its name when it is
 * complete. E_IO; E_FORMAT; E_UNSUPPORTED: another model, or a tokenizer or an option that GGUF or llama.cpp
 * has no word for, which is named; E_RANGE; E_MEMORY. */
TERN_API int tern_gguf_save(const char *folder, const char *path, const tern_gguf_opts *opts,
                            tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
