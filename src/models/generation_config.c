/* generation_config.c - what a folder of Hugging Face says about generation: the fields of
 * generation_config.json that tern has, an error for those that it has not and that would change the text,
 * and no word about those that say how to compute it. */
#include "base/file.h"
#include "models/config.h"
#include "models/generate.h"

#include <string.h>
#include <unistd.h>

static const char FUNC[] = "tern_generation_config_open";

/* ---- fields that tern does not have ---- */

typedef struct foreign_field {
    const char *name;
    double neutral;  /* a number that changes nothing; lists and objects are to be empty */
    bool is_drawing; /* it matters only where tokens are drawn */
} foreign_field;

static const foreign_field foreign[] = {
    {"num_beams", 1, false},
    {"num_beam_groups", 1, false},
    {"num_return_sequences", 1, false},
    {"min_length", 0, false},
    {"min_new_tokens", 0, false},
    {"max_time", 0, false},
    {"penalty_alpha", 0, false},
    {"encoder_repetition_penalty", 1, false},
    {"no_repeat_ngram_size", 0, false},
    {"encoder_no_repeat_ngram_size", 0, false},
    {"guidance_scale", 1, false},
    {"diversity_penalty", 0, false},
    {"min_p", 0, true},
    {"top_h", 0, true},
    {"typical_p", 1, true},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
    {"forced_bos_token_id", -1, false},
    {"forced_eos_token_id", -1, false},
    {"bad_words_ids", 0, false},
    {"force_words_ids", 0, false},
    {"constraints", 0, false},
    {"suppress_tokens", 0, false},
    {"begin_suppress_tokens", 0, false},
    {"sequence_bias", 0, false},
    {"exponential_decay_length_penalty", 0, false},
    {"watermarking_config", 0, false},
    {"stop_strings", 0, false},
    {"dola_layers", 0, false},
    {"token_healing", 0, false},
};

static bool is_neutral(const cJSON *field, double neutral)
{
    if (!field || cJSON_IsNull(field) || cJSON_IsFalse(field)) return true;
    if (cJSON_IsNumber(field)) return field->valuedouble == neutral;
    return (cJSON_IsArray(field) || cJSON_IsObject(field)) && !field->child;
}

static void foreign_refuse(const tern__config *config, bool draws)
{
    for (size_t i = 0; i < TERN__COUNT(foreign) && !tern__is_set(config->err); i++) {
        const cJSON *field = cJSON_GetObjectItemCaseSensitive(config->object, foreign[i].name);
        if ((foreign[i].is_drawing && !draws) || is_neutral(field, foreign[i].neutral)) continue;
        char *value = cJSON_PrintUnformatted(field);
        tern__error_set(config->err, FUNC, TERN_E_UNSUPPORTED,
                        "%s: \"%s\" is %.64s, which tern does not have", config->path, foreign[i].name,
                        value ? value : "something");
        cJSON_free(value);
    }
}

/* ---- fields that it has ---- */

/* Reads one id or a list of them, unless there are some. */
static void eos_read(const tern__config *file, tern_generation_config *to)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(file->object, "eos_token_id"), *item;
    int count = cJSON_IsArray(field) ? cJSON_GetArraySize(field) : 1;
    if (to->eos_ids || tern__is_set(file->err) || !field || cJSON_IsNull(field) || !count) return;
    to->eos_ids = tern__alloc((size_t)count * sizeof(*to->eos_ids), FUNC, file->err);
    for (int i = 0; i < count && to->eos_ids; i++) {
        item = cJSON_IsArray(field) ? cJSON_GetArrayItem(field, i) : field;
        double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (!(id >= 0 && id <= INT32_MAX && id == (double)(int32_t)id)) {
            tern__error_set(file->err, FUNC, TERN_E_FORMAT,
                            "%s: \"eos_token_id\" is not a token's id or a list of them", file->path);
            return;
        }
        to->eos_ids[i] = (int32_t)id;
    }
    to->opts.eos_ids = to->eos_ids;
    to->opts.eos_count = to->eos_ids ? count : 0;
}

/* max_new_tokens comes before max_length, as in transformers. */
static void generation_fields_read(const tern__config *file, tern_generation_config *to)
{
    tern_generate_opts *o = &to->opts, checked;
    int64_t new_tokens = 0;
    tern__config_int(file, "max_new_tokens", false, &new_tokens);
    tern__config_int(file, "max_length", false, &o->max_length);
    if (new_tokens) {
        o->max_new_tokens = new_tokens;
        o->max_length = 0;
    }
    tern__config_bool(file, "do_sample", &o->do_sample);
    tern__config_real(file, "temperature", &o->temperature);
    tern__config_int(file, "top_k", false, &o->top_k);
    tern__config_real(file, "top_p", &o->top_p);
    tern__config_real(file, "repetition_penalty", &o->repetition_penalty);
    eos_read(file, to);
    foreign_refuse(file, o->do_sample);
    tern_error wrong = {0};
    if (!tern__is_set(file->err) && tern__generate_opts_read(&checked, o, FUNC, &wrong))
        tern__error_set(file->err, FUNC, wrong.code, "%s: %s", file->path, wrong.text);
}

/* ---- files ---- */

/* Lets `read` read a file of the folder, if it is there. */
static void file_read(const char *folder, const char *name,
                      void (*read)(const tern__config *file, tern_generation_config *to),
                      tern_generation_config *to, tern_error *err)
{
    char *path = tern__is_set(err) ? NULL : tern__path_join(folder, name, FUNC, err);
    cJSON *object = path && !access(path, F_OK) ? tern__config_read(path, FUNC, err) : NULL;
    if (object) read(&(tern__config){.object = object, .path = path, .func = FUNC, .err = err}, to);
    cJSON_Delete(object);
    tern__free(path);
}

int tern_generation_config_open(const char *folder, tern_generation_config *config, tern_error *err)
{
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err)) return err->code;
    if (tern__need(folder, "folder", FUNC, err) || tern__need(config, "config", FUNC, err)) return err->code;
    *config = (tern_generation_config){.opts = tern_generate_defaults()};
    file_read(folder, "generation_config.json", generation_fields_read, config, err);
    file_read(folder, "config.json", eos_read, config, err);
    if (err->code) tern_generation_config_free(config);
    return err->code;
}

void tern_generation_config_free(tern_generation_config *config)
{
    if (!config) return;
    tern__free(config->eos_ids);
    *config = (tern_generation_config){.opts = tern_generate_defaults()};
}
