/* tokenize.c - `tern tokenize`: trains a tokenizer, and writes the tokens of text files.
 *
 * Text is read in pieces of some megabytes, which are cut into documents. When there is enough of it, all
 * threads encode the documents, and the tokens are written in their order. */
#include "cli.h"
#include "flags.h"

#include "base/file.h"
#include "text/bytes.h"

#include <tern.h>

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern tokenize";

enum { AT_ONCE = 4 << 20 /* bytes that are read */, ENOUGH = 16 << 20 /* bytes that are encoded together */ };

typedef struct settings {
    const char *tokenizer, *out, *eot, *separator;
    long train, min_frequency, threads;
    bool lines, no_eot, encode_special_tokens;
} settings;

static settings chosen;

/* ---- documents ---- */

typedef struct document {
    size_t begin, bytes; /* in the text that was read */
} document;

typedef struct job {
    tern_tokenizer *tokenizer;
    tern_token_writer *writer;
    tern_progress *bar;
    tern_encode_opts opts;
    int32_t eot; /* -1: none */
    tern_text text;
    size_t taken; /* bytes of the text that are in documents */
    document *documents;
    tern_token_ids *ids;
    const char **texts;
    size_t *bytes;
    size_t count, document_room, ids_room, texts_room, bytes_room;
    int64_t all_documents, all_bytes, all_tokens;
} job;

/* An empty document is none. */
static int document_add(job *j, size_t begin, size_t bytes, tern_error *err)
{
    if (!bytes) return TERN_OK;
    if (tern__array_reserve(&j->documents, &j->document_room, j->count + 1, sizeof(*j->documents), FUNC, err))
        return TERN_E_MEMORY;
    j->documents[j->count++] = (document){begin, bytes};
    return TERN_OK;
}

/* Cuts what was read into documents, at the end of a file to its last byte. */
static int documents_cut(job *j, bool is_end, tern_error *err)
{
    const char *separator = chosen.lines ? "\n" : chosen.separator;
    size_t length = separator ? strlen(separator) : 0;
    int status = TERN_OK;
    while (separator && !status) {
        const char *from = j->text.text + j->taken;
        const char *found = memmem(from, j->text.bytes - j->taken, separator, length);
        if (!found) break;
        size_t bytes = (size_t)(found - from);
        bool has_return = chosen.lines && bytes && found[-1] == '\r';
        status = document_add(j, j->taken, bytes - has_return, err);
        j->taken += bytes + length;
    }
    if (status || !is_end) return status;
    status = document_add(j, j->taken, j->text.bytes - j->taken, err);
    j->taken = j->text.bytes;
    return status;
}

/* ---- encoding ---- */

static int arrays_reserve(job *j, tern_error *err)
{
    if (tern__array_reserve(&j->ids, &j->ids_room, j->count, sizeof(*j->ids), FUNC, err))
        return TERN_E_MEMORY;
    if (tern__array_reserve(&j->texts, &j->texts_room, j->count, sizeof(*j->texts), FUNC, err))
        return TERN_E_MEMORY;
    return tern__array_reserve(&j->bytes, &j->bytes_room, j->count, sizeof(*j->bytes), FUNC, err);
}

/* Encodes and writes the documents that were cut, and keeps the rest of the text. */
static int documents_write(job *j, tern_error *err)
{
    int status = arrays_reserve(j, err);
    for (size_t i = 0; i < j->count && !status; i++) {
        j->texts[i] = j->text.text + j->documents[i].begin;
        j->bytes[i] = j->documents[i].bytes;
    }
    if (!status)
        status = tern_tokenizer_encode_batch(j->tokenizer, j->texts, j->bytes, (int64_t)j->count, &j->opts,
                                             j->ids, err);
    for (size_t i = 0; i < j->count && !status; i++) {
        status = tern_token_writer_write(j->writer, j->ids[i].ids, j->ids[i].count, err);
        if (!status && j->eot >= 0) status = tern_token_writer_write(j->writer, &j->eot, 1, err);
        j->all_tokens += j->ids[i].count + (j->eot >= 0);
        j->all_bytes += (int64_t)j->documents[i].bytes;
    }
    j->all_documents += (int64_t)j->count;
    j->count = 0;
    if (j->taken) memmove(j->text.text, j->text.text + j->taken, j->text.bytes - j->taken);
    tern_progress_update(j->bar, (int64_t)j->taken);
    j->text.bytes -= j->taken;
    j->taken = 0;
    return status;
}

static int file_read_documents(job *j, const char *path, tern_error *err)
{
    struct stat about;
    int status = TERN_OK, fd = tern__file_open(path, O_RDONLY, 0, &about, FUNC, err);
    if (fd < 0) return TERN_E_IO;
    for (int64_t at = 0; at < about.st_size && !status;) {
        size_t some = (size_t)TERN__MIN((int64_t)AT_ONCE, about.st_size - at);
        status = tern__text_reserve(&j->text, some, FUNC, err);
        if (!status) status = tern__file_read(fd, path, at, j->text.text + j->text.bytes, some, FUNC, err);
        if (status) break;
        j->text.bytes += some;
        at += (int64_t)some;
        status = documents_cut(j, at == about.st_size, err);
        if (!status && j->text.bytes >= ENOUGH && j->count) status = documents_write(j, err);
    }
    close(fd);
    return status;
}

/* ---- the job ---- */

static int64_t files_bytes(int count, char **files)
{
    struct stat about;
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += stat(files[i], &about) ? 0 : about.st_size;
    return bytes;
}

static tern_tokenizer *tokenizer_train(int count, char **files, tern_error *err)
{
    const char *eot = chosen.eot ? chosen.eot : "<|endoftext|>";
    tern_tokenizer_train_opts opts = tern_tokenizer_train_defaults();
    opts.files = (const char *const *)files;
    opts.file_count = count;
    opts.vocab_size = chosen.train;
    opts.min_frequency = chosen.min_frequency;
    opts.special_tokens = &eot;
    opts.special_count = 1;
    tern_tokenizer *made = tern_tokenizer_train(&opts, err);
    if (made) tern_tokenizer_save(made, chosen.tokenizer, err);
    if (made && !err->code)
        printf("%s: %lld tokens\n", chosen.tokenizer, (long long)tern_tokenizer_size(made));
    return made;
}

/* Finds the token that ends a document. */
static int eot_find(job *j, tern_error *err)
{
    j->eot = -1;
    if (chosen.no_eot) return TERN_OK;
    j->eot = chosen.eot ? tern_tokenizer_id(j->tokenizer, chosen.eot)
                        : tern_tokenizer_special(j->tokenizer, TERN_TOKEN_EOS);
    if (j->eot >= 0) return TERN_OK;
    if (chosen.eot)
        return tern__error_set(err, FUNC, TERN_E_INVALID, "%s has no token \"%s\"", chosen.tokenizer,
                               chosen.eot);
    return tern__error_set(err, FUNC, TERN_E_INVALID,
                           "%s does not say which token ends a text: give --eot TOKEN, or --no-eot",
                           chosen.tokenizer);
}

static void summary_print(const job *j, double seconds)
{
    double bytes = (double)j->all_bytes, tokens = (double)j->all_tokens;
    printf("%s: %lld documents, %lld tokens, %.2f bytes/token, %.1f MB/s\n", chosen.out,
           (long long)j->all_documents, (long long)j->all_tokens, tokens > 0 ? bytes / tokens : 0,
           bytes / 1e6 / seconds);
}

static int files_encode(job *j, int count, char **files, tern_error *err)
{
    tern_progress_opts bar = tern_progress_defaults();
    bar.unit = "B";
    bar.unit_scale = true;
    bar.leave = false;
    int64_t start = tern__now_ns();
    j->writer = tern_token_writer_open(chosen.out, tern_tokenizer_size(j->tokenizer), err);
    j->bar = j->writer ? tern_progress_new("tokenize", files_bytes(count, files), NULL, &bar, err) : NULL;
    int status = j->bar ? TERN_OK : TERN_E_IO;
    for (int i = 0; i < count && !status; i++) status = file_read_documents(j, files[i], err);
    if (!status) status = documents_write(j, err);
    if (!status && !j->all_documents)
        status = tern__error_set(err, FUNC, TERN_E_INVALID, "there is no text in the files");
    tern_progress_free(j->bar);
    status = tern_token_writer_close(j->writer, err);
    if (!status && !err->code) summary_print(j, (double)(tern__now_ns() - start) * 1e-9);
    return status;
}

static void job_free(job *j)
{
    for (size_t i = 0; i < j->ids_room; i++) tern_token_ids_free(&j->ids[i]);
    tern__free(j->documents);
    tern__free(j->ids);
    tern__free(j->texts);
    tern__free(j->bytes);
    tern_text_free(&j->text);
    tern_tokenizer_free(j->tokenizer);
}

static int tokenize_files(int count, char **files, tern_error *err)
{
    job j = {.opts = tern_encode_defaults()};
    j.opts.add_special_tokens = false;
    j.opts.encode_special_tokens = chosen.encode_special_tokens;
    j.opts.threads = (int)chosen.threads;
    j.tokenizer =
        chosen.train ? tokenizer_train(count, files, err) : tern_tokenizer_open(chosen.tokenizer, err);
    if (j.tokenizer && chosen.out && !err->code && !eot_find(&j, err)) files_encode(&j, count, files, err);
    job_free(&j);
    return err->code ? TERN__EXIT_FAILED : tern__cli_flush(FUNC);
}

/* ---- options ---- */

static const tern__cli_option options[] = {
    {"tokenizer", .value = "PATH", .text = &chosen.tokenizer,
     .help = "a tokenizer.json, or a folder with one or with GPT-2's vocab.json and merges.txt; with --train "
             "it is written"},
    {"train", .value = "N", .number = &chosen.train, .most = 1 << 22,
     .help = "train a byte-level BPE of N tokens on the files, as GPT-2's, and write it"},
    {"min-frequency", .value = "N", .number = &chosen.min_frequency, .most = 1L << 40,
     .help = "of a pair of tokens that may become one in training"},
    {"output", 'o', .value = "FILE", .text = &chosen.out,
     .help = "write the tokens: .npy, or with any other suffix llm.c's .bin"},
    {"lines", .on = &chosen.lines, .help = "each line is a document; default: each file"},
    {"separator", .value = "TEXT", .text = &chosen.separator, .help = "this text is between documents"},
    {"eot", .value = "TOKEN", .text = &chosen.eot,
     .help = "ends each document; default: the tokenizer's end of a text, in training \"<|endoftext|>\""},
    {"no-eot", .on = &chosen.no_eot, .help = "nothing is written between documents"},
    {"encode-special-tokens", .on = &chosen.encode_special_tokens,
     .help = "special tokens that are written in a text are text"},
    {"threads", .value = "N", .number = &chosen.threads, .most = 256, .help = "default: one for each core"},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__tokenize_page = {
    "FILE...",
    "Writes the tokens of text files, for tern_token_dataset_open, numpy or llm.c, and prints how many "
    "documents and tokens "
    "there are. Empty documents are left out. Bytes that are not UTF-8 are read as U+FFFD.\n",
    options,
};

static int options_check(int files)
{
    const char *problem = !chosen.tokenizer                  ? "expected --tokenizer PATH"
                          : !chosen.out && !chosen.train     ? "expected --output FILE"
                          : files < 1                        ? "expected text files"
                          : chosen.lines && chosen.separator ? "--lines and --separator: expected one of them"
                          : chosen.separator && !*chosen.separator ? "--separator is empty"
                                                                   : NULL;
    if (!problem) return TERN__EXIT_OK;
    tern__cli_complain(FUNC, "%s", problem);
    return TERN__EXIT_USAGE;
}

int tern__cli_tokenize(int argc, char **argv)
{
    tern_error err = {0};
    int status = tern__flags_read(&tern__tokenize_page, FUNC, argc, argv);
    if (!status) status = options_check(argc - optind);
    if (status) return status < 0 ? tern__cli_flush(FUNC) : status;
    int exit = tokenize_files(argc - optind, argv + optind, &err);
    tern_error_print(&err);
    return exit;
}
