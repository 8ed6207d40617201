/* tokenizer.h - a tokenizer as its file describes it, in the order in which a text passes through it: added
 * tokens are cut out, the rest is normalized and split into words, the model makes tokens of each word, and
 * the post_processor puts others around them. */
#ifndef TERN_SRC_TEXT_TOKENIZER_H
#define TERN_SRC_TEXT_TOKENIZER_H

#include "checkpoint/json.h"
#include "data/scratch_pool.h"
#include "text/bytes.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

#include <cjson/cJSON.h>

/* ---- added tokens (added_tokens.c) ---- */

typedef struct tern__added_token {
    int32_t id;
    char *content; /* as text has it: what has been normalized, if the token is */
    size_t bytes;
    bool is_special, single_word, lstrip, rstrip, normalized;
} tern__added_token;

typedef struct tern__added_tokens {
    tern__added_token *tokens; /* sorted by their first byte, then longest first */
    size_t count, room;
    uint32_t first[257]; /* of the tokens with each first byte */
} tern__added_tokens;

/* ---- normalizers (normalize.c, charsmap.c) ---- */

typedef enum tern__normalizer_kind {
    TERN__NORMALIZER_PREPEND,
    TERN__NORMALIZER_REPLACE,
    TERN__NORMALIZER_STRIP,
    TERN__NORMALIZER_NMT,
    TERN__NORMALIZER_FORM, /* NFC, NFD, NFKC, NFKD */
    TERN__NORMALIZER_LOWERCASE,
    TERN__NORMALIZER_STRIP_ACCENTS,
    TERN__NORMALIZER_BERT,
    TERN__NORMALIZER_PRECOMPILED
} tern__normalizer_kind;

#define TERN__DROPPED ((char)0x80) /* no character of ASCII */

typedef struct tern__charsmap tern__charsmap;

typedef struct tern__normalizer {
    tern__normalizer_kind kind;
    tern__regex *regex; /* what is replaced; NULL: `from` */
    tern_text from, to;
    const tern_unicode_backend *unicode; /* NULL: the kind asks nothing about characters */
    tern_unicode_form form;
    bool strip_left, strip_right;
    bool clean_text, handle_chinese_chars, strip_accents, lowercase; /* BertNormalizer's steps */
    char ascii[128];                                                 /* what they make; or TERN__DROPPED */
    tern__charsmap *charsmap;                                        /* of Precompiled */
} tern__normalizer;

/* ---- pre-tokenizers (split.c) ---- */

typedef enum tern__split_kind {
    TERN__SPLIT_REGEX,
    TERN__SPLIT_BYTE_LEVEL,
    TERN__SPLIT_METASPACE
} tern__split_kind;
typedef enum tern__split_behavior {
    TERN__SPLIT_REMOVED,
    TERN__SPLIT_ISOLATED,
    TERN__SPLIT_MERGED_WITH_PREVIOUS,
    TERN__SPLIT_MERGED_WITH_NEXT,
    TERN__SPLIT_CONTIGUOUS
} tern__split_behavior;
typedef enum tern__prepend_scheme {
    TERN__PREPEND_NEVER,
    TERN__PREPEND_FIRST,
    TERN__PREPEND_ALWAYS
} tern__prepend_scheme;

/* Where a blank follows a letter of ASCII, may a text be cut before the blank, and the parts be split
 * alone? */
typedef enum tern__split_cut {
    TERN__CUT_UNKNOWN,
    TERN__CUT_PASSED, /* what happens before the place does not depend on what follows it, nor the reverse */
    TERN__CUT_SURE    /* the same, and a word ends there */
} tern__split_cut;

/* Expressions of whole families of tokenizers. */
#define TERN__LLAMA3_WORDS                                                                                   \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"  \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TERN__QWEN2_WORDS                                                                                    \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"       \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct tern__split {
    tern__split_kind kind;
    tern__split_cut cut;
    tern__regex *regex; /* NULL: the text is not split */
    tern__split_behavior behavior;
    bool invert;
    tern__prepend_scheme prepend; /* of a space or of `replacement` */
    tern_text replacement;        /* of spaces, by Metaspace */
} tern__split;

/* ---- the model (model.c, bpe.c, wordpiece.c, unigram.c) ---- */

typedef enum tern__model_kind {
    TERN__MODEL_BPE,
    TERN__MODEL_WORDPIECE,
    TERN__MODEL_UNIGRAM
} tern__model_kind;

typedef struct tern__merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
    uint32_t rank;
    int32_t id; /* of the token that the pair becomes */
} tern__merge;

typedef struct tern__bpe {
    tern__merge *merges; /* a hash table */
    size_t merge_slots;  /* a power of two */
    bool byte_level, fuse_unk, ignore_merges;
    tern_text prefix, suffix; /* of each symbol but a word's first one, of its last one */
} tern__bpe;

typedef struct tern__wordpiece {
    tern_text prefix;   /* of each token but a word's first one */
    int64_t most_chars; /* a longer word is unknown             */
    size_t longest;     /* token, in bytes                      */
} tern__wordpiece;

typedef struct tern__trie_node {
    uint32_t child; /* the first one; they follow each other */
    uint32_t children;
    int32_t id; /* of the token that ends here; -1: none */
} tern__trie_node;

typedef struct tern__unigram {
    tern__trie_node *nodes; /* of the tokens; the first one is the root  */
    uint8_t *bytes;         /* by which each node is reached             */
    double *scores;         /* of each token: the log of its probability */
    double unk_score;
} tern__unigram;

/* ---- decoders (decode.c) ---- */

/* What an id is as text, without its neighbours. */
typedef struct tern__decoded {
    char *text; /* NULL: no token */
    uint32_t bytes;
    bool is_byte, is_special; /* is_byte: a byte of a character that has no token */
} tern__decoded;

typedef enum tern__decoder_kind {
    TERN__DECODER_BYTE_LEVEL,
    TERN__DECODER_REPLACE,
    TERN__DECODER_BYTE_FALLBACK,
    TERN__DECODER_METASPACE,
    TERN__DECODER_WORDPIECE,
    TERN__DECODER_BPE
} tern__decoder_kind;

/* Where a token is, for decoders that ask: bits. */
enum { TERN__TOKEN_FIRST = 1, TERN__TOKEN_LAST = 2, TERN__TOKEN_PLACES = 4 };

/* What is done to each token. */
typedef struct tern__decoder_step {
    tern__decoder_kind kind;
    tern_text from, to;
    bool cleanup;  /* WordPiece: no blank before punctuation */
    unsigned asks; /* places at which it does something else */
} tern__decoder_step;

typedef struct tern__decoder {
    tern__decoder_step *steps;
    size_t step_count, step_room;
    unsigned asks;                             /* of all steps                                              */
    tern__decoded *pieces[TERN__TOKEN_PLACES]; /* by place, and by id; NULL: no step asks for it */
    bool byte_level;                           /* characters may begin in one token and end in the next     */
    bool has_blanks;                           /* a blank between two tokens: there is no decoder           */
    bool fuses;                                /* what follows is for the text as a whole                   */
    tern_text strip;                           /* removed where the text begins, up to `strip_most` times   */
    int64_t strip_most;
} tern__decoder;

/* ---- all of it ---- */

struct tern_tokenizer {
    char *json; /* the file, which is saved again */
    size_t json_bytes;
    tern__vocabulary model, all;        /* the model's tokens; with the added ones */
    tern__added_tokens raw, normalized; /* are found in the text; in what the normalizers make of it */
    tern__normalizer *normalizers;
    size_t normalizer_count, normalizer_room;
    tern__split *splits;
    size_t split_count, split_room;
    size_t part_bytes; /* by encode_batch texts are cut into parts of at least so many; SIZE_MAX: never */
    tern__model_kind kind;
    int32_t unk;           /* -1: none */
    int32_t byte_ids[256]; /* of a byte's character, or of <0x..>; -1: none */
    bool byte_fallback;    /* a character without a token is its bytes */
    tern__bpe bpe;
    tern__wordpiece wordpiece;
    tern__unigram unigram;
    tern_token_ids before, after; /* what the post_processor puts around a text */
    tern__decoder decoder;
    int32_t special[TERN_TOKEN_COUNT];
    tern__regex *word_begin, *word_end; /* for added tokens that are single words; NULL: there is none */
    tern__scratch_pool pool;
};

/* What one call to encode uses. */
typedef struct tern__encoding {
    tern__scratch_entry entry;
    const tern_tokenizer *tokenizer;
    bool special_is_text;          /* encode_special_tokens */
    tern__regex_matcher *matcher;  /* NULL: no part has a regular expression */
    struct tern__kept_word *words; /* a cache of words and their ids */
    struct tern__symbol *symbols;
    size_t symbol_room;
    uint64_t *heap;
    size_t heap_room;
    struct tern__path_node *path; /* by the begin of each character of a word */
    size_t path_room;
    tern_text repaired, normalized, spare, written;
    tern_text stretch; /* that is being normalized */
    tern__codes codes;
    tern_text *prepended; /* [split_count] texts that a pre-tokenizer has put a mark before */
    tern_token_ids *ids;  /* the caller's */
    const char *func;
    tern_error *err;
} tern__encoding;

/* Makes a tokenizer of a tokenizer.json, which it takes over. `path` is for errors. */
tern_tokenizer *tern__tokenizer_parse(char *json, size_t bytes, const char *path, const char *func,
                                      tern_error *err);
/* Reads a part of the file: a field of `object` into the tokenizer. */
int tern__normalizer_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                           tern_error *err);
int tern__split_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                      tern_error *err);
int tern__model_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                      tern_error *err);
int tern__bpe_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                    tern_error *err);
int tern__wordpiece_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                          tern_error *err);
int tern__unigram_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                        tern_error *err);
/* Reads a Precompiled's table. */
int tern__charsmap_parse(tern__normalizer *n, const cJSON *part, const char *path, const char *func,
                         tern_error *err);
int tern__decoder_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                        tern_error *err);
int tern__added_parse(tern_tokenizer *t, const cJSON *list, const char *path, const char *func,
                      tern_error *err);
int tern__post_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                     tern_error *err);

/* Reads one of the model's lists, "vocab" or "merges": an object, or an array if `is_array`. cJSON's
 * strings end at U+0000, so the file is read once more. */
int tern__model_list(tern_tokenizer *t, const char *name, bool is_array, tern__json_member *member, void *ctx,
                     const char *path, const char *func, tern_error *err);
/* Decodes a string of the file. */
int tern__slice_read(tern__json_slice slice, tern_text *to, const char *func, tern_error *err);
/* Reads the vocabulary of an object. */
int tern__vocab_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                      tern_error *err);
/* Finds unk_token, if the model has one. E_FORMAT: the vocabulary lacks it. */
int tern__unk_parse(tern_tokenizer *t, const cJSON *model, const char *path, const char *func,
                    tern_error *err);

/* "type" of a part, or "". */
const char *tern__part_type(const cJSON *part);
bool tern__part_bool(const cJSON *part, const char *name, bool fallback);
/* A string of a part, or NULL. */
const char *tern__part_string(const cJSON *part, const char *name);
/* E_FORMAT "PATH: normalizer NFKC: tern does not have it"; `problem` may be another one. */
int tern__part_refuse(const char *path, const char *kind, const cJSON *part, const char *problem,
                      const char *func, tern_error *err);
/* Compiles the "pattern" of a part, {"Regex": ..} or {"String": ..}; a string may become *plain instead. */
int tern__pattern_parse(const cJSON *part, const char *kind, tern__regex **regex, tern_text *plain,
                        const char *path, const char *func, tern_error *err);

int tern__ids_add(tern_token_ids *ids, int32_t id, const char *func, tern_error *err);

/* The stages of a call. Each fails with the encoding's error. */
int tern__added_split(tern__encoding *e, const tern__added_tokens *added, bool special_is_text,
                      const char *text, size_t bytes,
                      int (*rest)(tern__encoding *e, const char *text, size_t bytes, bool is_first),
                      bool is_first);
int tern__normalize(tern__encoding *e, const char **text, size_t *bytes);
int tern__charsmap_apply(tern__encoding *e, const tern__normalizer *n, const char *text, size_t bytes,
                         tern_text *out);
/* Whether what the normalizers make of a text is what they make of its parts, if it is cut before a blank
 * that follows a letter of ASCII. */
bool tern__normalizer_may_cut(const tern_tokenizer *t);
bool tern__charsmap_may_cut(const tern__charsmap *map);
/* Whether the ids of a text are those of its parts, one after the other, if it is cut at such places. */
bool tern__split_may_cut(const tern_tokenizer *t);
/* Returns the next place where a text may be cut, from `from` on; `bytes`: there is none. */
size_t tern__split_place(const char *text, size_t bytes, size_t from);
int tern__split_text(tern__encoding *e, size_t step, const char *text, size_t bytes, bool is_first);
int tern__model_encode(tern__encoding *e, const char *word, size_t bytes);
int tern__words_new(tern__encoding *e);
/* Appends the ids of a word. */
int tern__bpe_encode(tern__encoding *e, const char *word, size_t bytes);
int tern__wordpiece_encode(tern__encoding *e, const char *word, size_t bytes);
int tern__unigram_encode(tern__encoding *e, const char *word, size_t bytes);
int tern__ids_reserve(tern__encoding *e, size_t more);

/* Gets and gives back what a call uses. */
tern__encoding *tern__encoding_open(const tern_tokenizer *t, const char *func, tern_error *err);
void tern__encoding_close(tern__encoding *e);
void tern__encoding_free(tern__encoding *e);
int tern__decoder_make(tern_tokenizer *t, const char *func, tern_error *err);

void tern__added_free(tern__added_tokens *added);
void tern__normalizers_free(tern_tokenizer *t);
void tern__charsmap_free(tern__charsmap *map);
void tern__splits_free(tern_tokenizer *t);
void tern__model_free(tern_tokenizer *t);
void tern__decoder_free(tern_tokenizer *t);

#endif
