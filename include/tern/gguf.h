/* gguf.h - writes a folder of Hugging Face as GGUF, the format of llama.cpp and the programs built on it.
 * `tern convert FOLDER OUT.gguf` does it from the command line.
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
    tern_gguf_type type; /* of matrices; norms, biases and GPT-2's positions are f32; default TERN_GGUF_F16 */
    const char *name;    /* general.name; default NULL: the folder's name                                   */
    const char *adapter; /* a folder whose low-rank adapters are merged into the weights (tern_lora_open);
                          * default NULL: none                                                             */
} tern_gguf_opts;
TERN_API tern_gguf_opts tern_gguf_defaults(void);

/* Writes the GPT-2 or Llama of a folder (tern_pretrained_open) with its tokenizer (tern_tokenizer_open) to
 * `path`: metadata, vocabulary and tensors with the names of llama.cpp's convert_hf_to_gguf.py. Tensors
 * are in the order of the model's parameters. A matrix whose rows are no multiple of 32 is f16 in place of
 * q8_0, whose bytes are those of ggml's quantize_row_q8_0_ref. Beside the model this takes a few MB, and
 * the vocabulary. The file gets its name when it is complete.
 *
 * The tokenizer is byte-level BPE with an expression that llama.cpp knows (GPT-2, Llama 3, Qwen 2,
 * SmolLM), or one that was made of a SentencePiece model (Llama 2), whose scores follow from the order of
 * its merges. llama.cpp puts such a model's first blank also after special tokens, as Llama 2's files do;
 * files with Metaspace's prepend_scheme "first" do it at the start alone.
 *
 * The errors of tern_lora_open and tern_lora_merge. E_IO; E_FORMAT: a file is damaged, or the tokenizer has
 * more tokens than the model; E_UNSUPPORTED: another model, or an option of model or tokenizer that
 * llama.cpp does not have, which is named (activation_function relu, rope_type longrope, an added token
 * with lstrip); E_RANGE: a number that is too large for f16 or not finite, `type`; E_MEMORY. */
TERN_API int tern_gguf_save(const char *folder, const char *path, const tern_gguf_opts *opts,
                            tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
