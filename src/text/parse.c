/* parse.c - reads a tokenizer.json. */
#include "text/tokenizer.h"

#include "base/text.h"
#include "models/config.h"

#include <string.h>

/* ---- parts ---- */

const char *tern__part_string(const cJSON *part, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(part, name));
}

const char *tern__part_type(const cJSON *part)
{
    const char *type = tern__part_string(part, "type");
    return type ? type : "";
}

bool tern__part_bool(const cJSON *part, const char *name, bool fallback)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(part, name);
    return cJSON_IsBool(field) ? cJSON_IsTrue(field) : fallback;
}

int tern__part_refuse(const char *path, const char *kind, const cJSON *part, const char *problem,
                      const char *func, tern_error *err)
{
    const char *type = tern__part_type(part);
    if (tern__is_set(err)) return err->code;
    return tern__error_set(err, func, TERN_E_FORMAT, "%s: %s %.64s: tern does not have %s", path, kind,
                           *type ? type : "without a type", problem ? problem : "it");
}

int tern__pattern_parse(const cJSON *part, const char *kind, tern__regex **regex, tern_text *plain,
                        const char *path, const char *func, tern_error *err)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(part, "pattern");
    const char *expression = tern__part_string(pattern, "Regex"),
               *text = tern__part_string(pattern, "String");
    if (cJSON_IsString(pattern)) text = cJSON_GetStringValue(pattern);
    if (text && plain) return tern__text_add(plain, text, strlen(text), func, err);
    if (expression)
        *regex = tern__regex_new(expression, strlen(expression), path, func, err);
    else if (text && *text)
        *regex = tern__regex_new_text(text, strlen(text), path, func, err);
    else
        return tern__part_refuse(path, kind, part, "this pattern", func, err);
    return *regex ? TERN_OK : TERN_E_FORMAT;
}

/* ---- the post_processor ---- */

/* Puts ids before the text's first ones, or after its last ones. */
static int post_add(tern_token_ids *to, const int32_t *ids, int64_t count, bool in_front, const char *func,
                    tern_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (tern__ids_add(to, ids[i], func, err)) return TERN_E_MEMORY;
    for (int64_t i = to->count - 1; in_front && i >= 0; i--)
        to->ids[i] = i < count ? ids[i] : to->ids[i - count];
    return TERN_OK;
}

/* Reads the ids of a special token of a TemplateProcessing. */
static int template_token(const cJSON *tokens, const char *name, tern_token_ids *to, const char *func,
                          tern_error *err)
{
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(tokens, name),
                *ids = cJSON_GetObjectItemCaseSensitive(token, "ids");
    if (!cJSON_IsArray(ids)) return TERN_E_FORMAT;
    for (const cJSON *id = ids->child; id; id = id->next)
        if (!cJSON_IsNumber(id) || tern__ids_add(to, id->valueint, func, err)) return TERN_E_FORMAT;
    return TERN_OK;
}

/* Of a sequence of post_processors each one surrounds what the ones before it have made. */
static int template_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                          tern_error *err)
{
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(part, "single"),
                *tokens = cJSON_GetObjectItemCaseSensitive(part, "special_tokens");
    tern_token_ids around[2] = {{0}, {0}};
    int texts = 0, status = cJSON_IsArray(single) ? TERN_OK : TERN_E_FORMAT;
    for (const cJSON *piece = status ? NULL : single->child; piece && !status; piece = piece->next) {
        const char *name = tern__part_string(cJSON_GetObjectItemCaseSensitive(piece, "SpecialToken"), "id");
        if (name)
            status = template_token(tokens, name, &around[texts > 0], func, err);
        else if (cJSON_HasObjectItem(piece, "Sequence"))
            texts++;
        else
            status = TERN_E_FORMAT;
    }
    if (!status && texts == 1) {
        status = post_add(&t->before, around[0].ids, around[0].count, true, func, err);
        if (!status) status = post_add(&t->after, around[1].ids, around[1].count, false, func, err);
    } else
        status = tern__part_refuse(path, "post_processor", part, "this template", func, err);
    tern_token_ids_free(&around[0]);
    tern_token_ids_free(&around[1]);
    return status;
}

/* BertProcessing and RobertaProcessing have "cls" and "sep", each [token, id]. */
static int cls_sep_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                         tern_error *err)
{
    static const char *const names[] = {"cls", "sep"};
    for (int i = 0; i < 2; i++) {
        const cJSON *id = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(part, names[i]), 1);
        if (!cJSON_IsNumber(id))
            return tern__part_refuse(path, "post_processor", part, "this form of it", func, err);
        int32_t value = id->valueint;
        if (post_add(i ? &t->after : &t->before, &value, 1, !i, func, err)) return TERN_E_MEMORY;
    }
    return TERN_OK;
}

int tern__post_parse(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                     tern_error *err)
{
    const char *type = tern__part_type(part);
    if (!part || cJSON_IsNull(part) || !strcmp(type, "ByteLevel")) return TERN_OK;
    if (!strcmp(type, "TemplateProcessing")) return template_parse(t, part, path, func, err);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        return cls_sep_parse(t, part, path, func, err);
    if (strcmp(type, "Sequence") != 0)
        return tern__part_refuse(path, "post_processor", part, NULL, func, err);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(part, "processors");
    for (const cJSON *p = list ? list->child : NULL; p; p = p->next)
        if (tern__post_parse(t, p, path, func, err)) return TERN_E_FORMAT;
    return TERN_OK;
}

/* ---- the file ---- */

enum { PART_BYTES = 1 << 18 };

static int all_fill(tern_tokenizer *t, const char *path, const char *func, tern_error *err)
{
    for (int64_t i = 0; i < t->model.size; i++) {
        const tern__token *token = &t->model.tokens[i];
        if (!token->text) continue;
        if (tern__vocabulary_add(&t->all, token->text, token->bytes, i, path, func, err))
            return TERN_E_FORMAT;
        if (tern__vocabulary_find(&t->model, token->text, token->bytes) == i)
            tern__vocabulary_prefer(&t->all, i);
    }
    return TERN_OK;
}

/* Ids outside of the vocabulary would make a model read outside of its embedding. */
static int ids_check(const tern_tokenizer *t, const tern_token_ids *ids, const char *path, const char *func,
                     tern_error *err)
{
    for (int64_t i = 0; i < ids->count; i++)
        if (!tern_tokenizer_token(t, ids->ids[i]))
            return tern__error_set(err, func, TERN_E_FORMAT, "%s: post_processor: no token has id %d", path,
                                   ids->ids[i]);
    return TERN_OK;
}

/* Reads the parts in the order in which they need each other. */
static int parts_parse(tern_tokenizer *t, const cJSON *root, const char *path, const char *func,
                       tern_error *err)
{
    static const struct {
        const char *name;
        int (*parse)(tern_tokenizer *t, const cJSON *part, const char *path, const char *func,
                     tern_error *err);
    } parts[] = {{"normalizer", tern__normalizer_parse},
                 {"pre_tokenizer", tern__split_parse},
                 {"model", tern__model_parse},
                 {"decoder", tern__decoder_parse},
                 {"post_processor", tern__post_parse}};
    int status = TERN_OK;
    for (size_t i = 0; i < TERN__COUNT(parts) && !status; i++)
        status = parts[i].parse(t, cJSON_GetObjectItemCaseSensitive(root, parts[i].name), path, func, err);
    if (!status) status = all_fill(t, path, func, err);
    if (!status)
        status =
            tern__added_parse(t, cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), path, func, err);
    if (!status) status = ids_check(t, &t->before, path, func, err);
    if (!status) status = ids_check(t, &t->after, path, func, err);
    if (!status) status = tern__decoder_make(t, func, err);
    t->part_bytes = tern__split_may_cut(t) ? PART_BYTES : SIZE_MAX;
    return status;
}

tern_tokenizer *tern__tokenizer_parse(char *json, size_t bytes, const char *path, const char *func,
                                      tern_error *err)
{
    cJSON *root = tern__config_parse(json, bytes, path, func, err);
    tern_tokenizer *t = root ? tern__alloc(sizeof(*t), func, err) : NULL;
    if (!t) {
        cJSON_Delete(root);
        tern__free(json);
        return NULL;
    }
    *t = (tern_tokenizer){
        .json = json, .json_bytes = bytes, .unk = -1, .pool = TERN__SCRATCH_POOL_INITIALIZER};
    for (int i = 0; i < TERN_TOKEN_COUNT; i++) t->special[i] = -1;
    tern_error own = {0}; /* the caller may not want to know why, but the parts do */
    int status = parts_parse(t, root, path, func, &own);
    cJSON_Delete(root);
    if (!status) return t;
    tern__error_set(err, func, own.code ? own.code : status, "%s", own.text);
    tern_tokenizer_free(t);
    return NULL;
}
