/* tokenizer.h - text to tokens and back, with the files and the ids of Hugging Face's `tokenizers`.
 *
 *     tern_tokenizer *tokenizer = tern_tokenizer_open("gpt2", &err);
 *     tern_token_ids ids = {0};
 *     tern_tokenizer_encode(tokenizer, text, strlen(text), NULL, &ids, &err);
 *
 * Files of token ids, and the dataset that a language model is trained on: token_data.h.
 *
 * Threads: a tokenizer does not change, and any number of threads may use it at once. A stream, and the
 * memory of ids and text, belong to one thread at a time. */
#ifndef TERN_TOKENIZER_H
#define TERN_TOKENIZER_H

#include <tern/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- opening, training, saving ------------------------------------------------------------------------ */

typedef struct tern_tokenizer tern_tokenizer;

/* Opens `path`: a tokenizer.json, a folder that has one, or a folder with GPT-2's vocab.json and merges.txt.
 * Which tokens begin and end a text and fill a batch is read from the tokenizer_config.json or the
 * special_tokens_map.json beside it.
 *
 * Models: BPE (Sennrich et al. 2016), on bytes (GPT-2, Llama 3) or on characters with byte_fallback (Llama
 * 2); WordPiece (BERT, MiniLM); Unigram (Kudo 2018; T5, XLM-R). docs/text.md lists the normalizers,
 * pre_tokenizers, post_processors and decoders; truncation and padding are for the caller. E_IO; E_FORMAT:
 * the file is damaged, or has a part that tern does not have, which is named ("decoder CTC");
 * E_UNSUPPORTED: this build has no PCRE2, or no utf8proc for a normalizer that needs it, or a regular
 * expression that cannot be translated. Yours: tern_tokenizer_free. tokenizers.Tokenizer.from_file. */
TERN_API tern_tokenizer *tern_tokenizer_open(const char *path, tern_error *err);

typedef struct tern_tokenizer_train_opts {
    size_t size;
    const char *const *texts; /* UTF-8; bytes that are not are read as U+FFFD; default none          */
    const size_t *text_bytes; /* of each text; NULL: each ends with a 0                               */
    int64_t text_count;       /* default 0                                                            */
    const char *const *files; /* paths; each file is one more text; default none                      */
    int64_t file_count;       /* default 0                                                            */
    int64_t vocab_size;       /* tokens, with the special ones and the 256 of single bytes; default 30000 */
    int64_t min_frequency;    /* a pair that is rarer becomes no token; default 0                     */
    const char *const *special_tokens; /* get the first ids, in this order; default none               */
    int64_t special_count;             /* default 0                                                    */
} tern_tokenizer_train_opts;
/* Returns the options of tokenizers.trainers.BpeTrainer, without texts. */
TERN_API tern_tokenizer_train_opts tern_tokenizer_train_defaults(void);

/* Learns GPT-2's byte-level BPE. Vocabulary and merges are those of BpeTrainer(initial_alphabet =
 * ByteLevel.alphabet()) with the pre-tokenizer ByteLevel(add_prefix_space = False) for the same texts
 * (train_from_iterator). E_RANGE: a vocabulary below 256 and the special tokens, or above 2^22, a negative
 * count; E_INVALID: a text, path or token that is NULL, a token that is empty or not UTF-8; E_UNSUPPORTED:
 * this build has no PCRE2; E_IO: a file; E_MEMORY. Yours: tern_tokenizer_free. */
TERN_API tern_tokenizer *tern_tokenizer_train(const tern_tokenizer_train_opts *opts, tern_error *err);

/* Writes a tokenizer.json: byte for byte the one that was opened, or what was trained or read from
 * vocab.json and merges.txt. E_IO. tokenizers.Tokenizer.save. */
TERN_API int tern_tokenizer_save(const tern_tokenizer *tokenizer, const char *path, tern_error *err);
TERN_API void tern_tokenizer_free(tern_tokenizer *tokenizer);

/* ---- text to tokens ----------------------------------------------------------------------------------- */

/* Token ids. Begin with zeros, `tern_token_ids ids = {0};`. A call replaces what is there and lets the memory
 * grow where it is too small, so that ids used again and again allocate nothing. */
typedef struct tern_token_ids {
    int32_t *ids;
    int64_t count, room;
} tern_token_ids;
TERN_API void tern_token_ids_free(tern_token_ids *ids);

typedef struct tern_encode_opts {
    size_t size;
    bool add_special_tokens;    /* add what the post_processor puts around a text ("<s>"); default true */
    bool encode_special_tokens; /* special tokens that are written in the text are text, as is safe for
                                 * what strangers wrote; default false: they become these tokens        */
    int threads;                /* of tern_tokenizer_encode_batch; default 0: one for each core         */
} tern_encode_opts;
TERN_API tern_encode_opts tern_encode_defaults(void);

/* Writes the ids of a text. Bytes that are not UTF-8 are read as U+FFFD, one for each part that Python's
 * errors="replace" would replace. E_MEMORY; E_FORMAT: a regular expression needs too many steps for this
 * text, or of WordPiece and Unigram a part has no token and the model has no unknown one.
 * tokenizers.Tokenizer.encode(..).ids. */
TERN_API int tern_tokenizer_encode(const tern_tokenizer *tokenizer, const char *text, size_t bytes,
                                   const tern_encode_opts *opts, tern_token_ids *ids, tern_error *err);
/* The same for `count` texts, on several threads; text i has bytes[i] bytes and gives ids[i]. Long texts
 * are cut where this changes no id (docs/text.md). The error is that of one of the texts.
 * tokenizers.Tokenizer.encode_batch. */
TERN_API int tern_tokenizer_encode_batch(const tern_tokenizer *tokenizer, const char *const *texts,
                                         const size_t *bytes, int64_t count, const tern_encode_opts *opts,
                                         tern_token_ids *ids, tern_error *err);

/* ---- tokens to text ----------------------------------------------------------------------------------- */

/* UTF-8, with a 0 at its end that does not count. Begin with zeros; it grows as tern_token_ids do. */
typedef struct tern_text {
    char *text;
    size_t bytes, room;
} tern_text;
TERN_API void tern_text_free(tern_text *text);

typedef struct tern_decode_opts {
    size_t size;
    bool skip_special_tokens; /* leave out special tokens; default true */
} tern_decode_opts;
TERN_API tern_decode_opts tern_decode_defaults(void);

/* Writes the text of `count` ids. Bytes that make no character become U+FFFD; ids without a token are left
 * out. E_MEMORY. tokenizers.Tokenizer.decode. */
TERN_API int tern_tokenizer_decode(const tern_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                   const tern_decode_opts *opts, tern_text *text, tern_error *err);

/* Text that comes token by token, as from a model that writes. tokenizers.decoders.DecodeStream. */
typedef struct tern_decode_stream tern_decode_stream;
/* Borrows the tokenizer. Yours: tern_decode_stream_free. */
TERN_API tern_decode_stream *tern_decode_stream_new(const tern_tokenizer *tokenizer,
                                                    const tern_decode_opts *opts, tern_error *err);
/* Writes the text that one more token completes: whole characters, and nothing while none is complete. The
 * status is E_MEMORY, or TERN_OK. */
TERN_API int tern_decode_stream_step(tern_decode_stream *stream, int32_t id, tern_text *text,
                                     tern_error *err);
/* Writes what is left, as U+FFFD, and begins a new text. All texts together are tern_tokenizer_decode's,
 * except that where byte tokens make no character the number of U+FFFD may differ. */
TERN_API int tern_decode_stream_end(tern_decode_stream *stream, tern_text *text, tern_error *err);
TERN_API void tern_decode_stream_free(tern_decode_stream *stream);

/* ---- the vocabulary ----------------------------------------------------------------------------------- */

/* Returns the number of ids that a model needs: the highest id and 1; 0 for NULL. */
TERN_API int64_t tern_tokenizer_size(const tern_tokenizer *tokenizer);
/* Returns the id of a token as the file writes it ("\u0120the" for " the" of GPT-2), or -1.
 * tokenizers.Tokenizer.token_to_id. */
TERN_API int32_t tern_tokenizer_id(const tern_tokenizer *tokenizer, const char *token);
/* Returns the token of an id as the file writes it, or NULL. Borrowed. tokenizers.Tokenizer.id_to_token. */
TERN_API const char *tern_tokenizer_token(const tern_tokenizer *tokenizer, int32_t id);

typedef enum tern_special_token {
    TERN_TOKEN_BOS, /* begins a text */
    TERN_TOKEN_EOS, /* ends a text   */
    TERN_TOKEN_UNK, /* unknown       */
    TERN_TOKEN_PAD, /* fills a batch */
    TERN_TOKEN_COUNT
} tern_special_token;
/* Returns the id of a special token, or -1 if the tokenizer does not say which one it is. Without files that
 * say it, "<|endoftext|>" begins and ends texts, as in GPT-2. */
TERN_API int32_t tern_tokenizer_special(const tern_tokenizer *tokenizer, tern_special_token which);

#ifdef __cplusplus
}
#endif
#endif
