/* gpt2.c - a tokenizer.json from a vocabulary and merges. */
#include "text/gpt2.h"

#include <stdio.h>
#include <string.h>

const char tern__gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

int tern__text_add_format(tern_text *text, const char *func, tern_error *err, const char *format, ...)
{
    char piece[128];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(piece, sizeof(piece), format, args);
    va_end(args);
    return tern__text_add(text, piece, (size_t)bytes, func, err);
}

int tern__json_add_string(tern_text *json, const char *text, size_t bytes, const char *func, tern_error *err)
{
    int status = tern__text_add(json, "\"", 1, func, err);
    for (size_t i = 0; i < bytes && !status; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c == '"' || c == '\\')
            status = tern__text_add_format(json, func, err, "\\%c", c);
        else if (c < 0x20)
            status = tern__text_add_format(json, func, err, "\\u%04x", c);
        else
            status = tern__text_add(json, text + i, 1, func, err);
    }
    return status ? status : tern__text_add(json, "\"", 1, func, err);
}

static int specials_write(const tern__gpt2_parts *parts, tern_text *json, const char *func, tern_error *err)
{
    static const char rest[] =
        ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}";
    int status = TERN_OK;
    for (int64_t i = 0; i < parts->special_count && !status; i++) {
        const char *text = parts->specials[i];
        status = tern__text_add_format(json, func, err, "%s\n{\"id\":%lld,\"content\":", i ? "," : "",
                                       (long long)parts->special_ids[i]);
        if (!status) status = tern__json_add_string(json, text, strlen(text), func, err);
        if (!status) status = tern__text_add(json, rest, sizeof(rest) - 1, func, err);
    }
    return status;
}

static int merges_write(const tern__gpt2_parts *parts, tern_text *json, const char *func, tern_error *err)
{
    bool has_one = false;
    int status = TERN_OK;
    for (size_t at = 0; at < parts->merges_bytes && !status;) {
        const char *line = parts->merges + at, *end = memchr(line, '\n', parts->merges_bytes - at);
        size_t bytes = end ? (size_t)(end - line) : parts->merges_bytes - at;
        bool is_title = !at && bytes >= 8 && !memcmp(line, "#version", 8);
        at += bytes + 1;
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (is_title || !bytes) continue;
        status = tern__text_add(json, ",\n", has_one ? 2 : 0, func, err);
        if (!status) status = tern__json_add_string(json, line, bytes, func, err);
        has_one = true;
    }
    return status;
}

int tern__gpt2_json(const tern__gpt2_parts *parts, tern_text *json, const char *func, tern_error *err)
{
    static const char begin[] =
        "{\n\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n\"added_tokens\":[";
    static const char middle[] =
        "],\n\"normalizer\":null,\n"
        "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_"
        "regex\":true},\n"
        "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_"
        "regex\":true},\n"
        "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":"
        "true},\n"
        "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
        "\n\"vocab\":";
    static const char merges[] = ",\n\"merges\":[", end[] = "]}\n}\n";
    int status = tern__text_add(json, begin, sizeof(begin) - 1, func, err);
    if (!status) status = specials_write(parts, json, func, err);
    if (!status) status = tern__text_add(json, middle, sizeof(middle) - 1, func, err);
    if (!status) status = tern__text_add(json, parts->vocab, parts->vocab_bytes, func, err);
    if (!status) status = tern__text_add(json, merges, sizeof(merges) - 1, func, err);
    if (!status) status = merges_write(parts, json, func, err);
    return status ? status : tern__text_add(json, end, sizeof(end) - 1, func, err);
}
