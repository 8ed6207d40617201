/* lora_files.c - PEFT's folder of an adapter: adapter_model.safetensors, whose names are "base_model.model.",
 * the name of a linear, and ".lora_A.weight" or ".lora_B.weight"; and adapter_config.json. */
#include "base/file.h"
#include "base/text.h"
#include "models/language_model.h"
#include "models/lora.h"

#include <tern/checkpoint.h>
#include <tern/state_dict.h>

#include <stdio.h>
#include <string.h>

#define WEIGHTS "adapter_model.safetensors"
#define CONFIG  "adapter_config.json"
#define PREFIX  "base_model.model."

enum { A, B, MATRICES };
static const char *const suffixes[MATRICES] = {".lora_A.weight", ".lora_B.weight"};

#define KEY_TEXT (sizeof(((tern__lora_linear *)NULL)->name) + 64)

/* Writes the name in files of one of a linear's matrices. */
static const char *matrix_key(const tern__lora_linear *entry, int matrix, char text[KEY_TEXT])
{
    snprintf(text, KEY_TEXT, PREFIX "%s%s", entry->name, suffixes[matrix]);
    return text;
}

/* ---- saving ---- */

/* Marks the linears with adapters. Returns the first one, or NULL with the error. */
static const tern__lora *saved_adapters(const tern__lora_linears *linears)
{
    const tern__lora *first = NULL;
    for (int i = 0; i < linears->count; i++) {
        const tern__lora *lora = &linears->list[i].linear->lora;
        if (!lora->a) continue;
        linears->list[i].is_target = true;
        if (!first || lora->is_merged) first = lora;
    }
    if (!first || first->is_merged)
        tern__error_set(linears->err, linears->func, TERN_E_INVALID, "%s%s",
                        first ? "the adapters are merged into the weights of " : "there are no adapters in ",
                        linears->model->kind);
    return first && !first->is_merged ? first : NULL;
}

static void write_matrices(const tern__lora_linears *linears, const char *folder)
{
    char key[KEY_TEXT];
    tern_object *file = tern_object_dict(linears->err), *metadata = tern_object_dict(linears->err);
    for (int i = 0; i < linears->count && !tern__is_set(linears->err); i++) {
        const tern__lora_linear *entry = &linears->list[i];
        for (int m = A; m < MATRICES && entry->is_target; m++) {
            const tern__linear *matrix = m == A ? entry->linear->lora.a : entry->linear->lora.b;
            tern_object *state = tern_module_state_dict(&matrix->base, linears->err);
            const tern_tensor *weight = tern_object_to_tensor(tern_object_get(state, "weight"));
            tern_object_set(file, matrix_key(entry, m, key), tern_object_tensor(weight, linears->err),
                            linears->err);
            tern_object_free(state);
        }
    }
    tern_object_set(metadata, "format", tern_object_string("pt", linears->err), linears->err);
    tern_object_set(file, "__metadata__", metadata, linears->err);
    char *path = tern__path_join(folder, WEIGHTS, linears->func, linears->err);
    if (path) tern_save(path, file, linears->err);
    tern__free(path);
    tern_object_free(file);
}

/* True if a linear without an adapter has this name, or one that ends with it after a dot. */
static bool means_others(const tern__lora_linears *linears, const char *end)
{
    size_t length = strlen(end);
    for (int i = 0; i < linears->count; i++) {
        const char *name = linears->list[i].name;
        size_t whole = strlen(name);
        if (linears->list[i].is_target || whole < length || strcmp(name + whole - length, end)) continue;
        if (whole == length || name[whole - length - 1] == '.') return true;
    }
    return false;
}

/* Returns the shortest end of a linear's name that means only linears with adapters: "c_attn", or
 * "attn.c_proj" if "mlp.c_proj" has none. */
static const char *shortest_target(const tern__lora_linears *linears, const char *name)
{
    const char *end = name + strlen(name);
    while (end > name) {
        do end--;
        while (end > name && end[-1] != '.');
        if (!means_others(linears, end)) break;
    }
    return end;
}

static cJSON *targets_json(const tern__lora_linears *linears)
{
    cJSON *list = cJSON_CreateArray(), *item;
    for (int i = 0; i < linears->count; i++) {
        if (!linears->list[i].is_target) continue;
        const char *target = shortest_target(linears, linears->list[i].name);
        bool is_listed = false;
        cJSON_ArrayForEach(item, list) is_listed |= !strcmp(cJSON_GetStringValue(item), target);
        if (!is_listed) cJSON_AddItemToArray(list, cJSON_CreateString(target));
    }
    return list;
}

static void add_text(cJSON *config, const char *name, const char *text)
{
    if (text)
        cJSON_AddStringToObject(config, name, text);
    else
        cJSON_AddNullToObject(config, name);
}

/* Writes the fields of LoraConfig that older versions of PEFT know, too; for the others it has defaults. */
static void write_config(const tern__lora_linears *linears, const tern__lora *lora, const char *folder,
                         const char *base)
{
    static const char *const empty[] = {"auto_mapping", "layers_pattern", "layers_to_transform",
                                        "modules_to_save", "revision"};
    const tern__pretrained_kind *kind = tern__pretrained_kind_of(linears->model);
    bool is_turned = false;
    for (int i = 0; i < linears->count; i++)
        is_turned |= linears->list[i].is_target && linears->list[i].linear->is_turned;
    cJSON *config = cJSON_CreateObject();
    cJSON_AddStringToObject(config, "peft_type", "LORA");
    add_text(config, "task_type", kind ? kind->lora_task : NULL);
    add_text(config, "base_model_name_or_path", base);
    cJSON_AddItemToObject(config, "target_modules", targets_json(linears));
    cJSON_AddNumberToObject(config, "r", (double)lora->a->weight->view.shape[0]);
    cJSON_AddNumberToObject(config, "lora_alpha", lora->lora_alpha);
    cJSON_AddNumberToObject(config, "lora_dropout", lora->dropout);
    cJSON_AddBoolToObject(config, "use_rslora", lora->use_rslora);
    cJSON_AddBoolToObject(config, "use_dora", false);
    cJSON_AddStringToObject(config, "bias", "none");
    cJSON_AddBoolToObject(config, "fan_in_fan_out", is_turned);
    cJSON_AddBoolToObject(config, "inference_mode", true);
    cJSON_AddBoolToObject(config, "init_lora_weights", true);
    cJSON_AddObjectToObject(config, "rank_pattern");
    cJSON_AddObjectToObject(config, "alpha_pattern");
    for (size_t i = 0; i < TERN__COUNT(empty); i++) cJSON_AddNullToObject(config, empty[i]);
    tern__config_write(folder, CONFIG, config, linears->func, linears->err);
    cJSON_Delete(config);
}

int tern_lora_save(const tern_module *model, const char *folder, const char *base, tern_error *err)
{
    tern__lora_linears linears = {0};
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err) || tern__need(folder, "folder", __func__, err) ||
        tern__lora_linears_open(&linears, model, __func__, err))
        return err->code;
    const tern__lora *lora = saved_adapters(&linears);
    if (lora && !tern__folder_make(folder, 0777, __func__, err)) write_matrices(&linears, folder);
    if (!tern__is_set(err)) write_config(&linears, lora, folder, base);
    tern__free(linears.list);
    return err->code;
}

/* ---- the config ---- */

/* Fields that change nothing once there are weights, whatever they hold. */
static const char *const needless[] = {
    "auto_mapping",      "base_model_name_or_path",
    "eva_config",        "fan_in_fan_out",
    "inference_mode",    "loftq_config",
    "megatron_core",     "peft_version",
    "qalora_group_size", "revision",
    "runtime_config",    "task_type",
};
/* Fields that are read. */
static const char *const known[] = {"bias", "init_lora_weights", "lora_alpha", "lora_dropout", "peft_type",
                                    "r",    "target_modules",    "use_rslora"};

static bool is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

/* True for null, false, [], {} and "": the defaults of all other fields, also of versions to come. */
static bool is_nothing(const cJSON *field)
{
    bool is_empty = (cJSON_IsArray(field) || cJSON_IsObject(field)) && !field->child;
    return is_empty || cJSON_IsNull(field) || cJSON_IsFalse(field) ||
           (cJSON_IsString(field) && !*field->valuestring);
}

static void refuse_field(const tern__config *config, const cJSON *field)
{
    char *text = cJSON_PrintUnformatted(field), quoted[TERN__QUOTE_TEXT];
    size_t length = text ? strlen(text) : 0;
    tern__excerpt(text ? text : "", length, 60, quoted);
    tern__config_refuse(config, field->string, quoted);
    cJSON_free(text);
}

/* Some initial values are no product that is 0, and have changed the base model's weights, too. */
static bool keeps_base(const cJSON *init)
{
    static const char *const drawn[] = {"gaussian", "orthogonal", "eva"};
    const char *text = cJSON_GetStringValue(init);
    return !init || cJSON_IsNull(init) || cJSON_IsBool(init) ||
           (text && is_among(text, drawn, TERN__COUNT(drawn)));
}

static void check_fields(const tern__config *config)
{
    const cJSON *field;
    const char *type = tern__config_text(config, "peft_type"), *bias = tern__config_text(config, "bias");
    if (!type) tern__config_need(config, "peft_type");
    if (type && strcmp(type, "LORA")) tern__config_refuse(config, "peft_type", type);
    if (bias && strcmp(bias, "none")) tern__config_refuse(config, "bias", bias);
    cJSON_ArrayForEach(field, config->object)
    {
        bool is_read = is_among(field->string, known, TERN__COUNT(known)),
             is_needless = is_among(field->string, needless, TERN__COUNT(needless));
        if (!is_read && !is_needless && !is_nothing(field)) refuse_field(config, field);
    }
    field = cJSON_GetObjectItemCaseSensitive(config->object, "init_lora_weights");
    if (!keeps_base(field)) refuse_field(config, field);
}

/* Marks the linears of a list of targets, or of "all-linear". Those of a regular expression are the ones that
 * the file has. */
static void read_targets(const tern__config *config, const tern__lora_linears *linears)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(config->object, "target_modules"), *item;
    const char *text = cJSON_GetStringValue(field);
    bool is_list = cJSON_IsArray(field) && field->child;
    cJSON_ArrayForEach(item, field) is_list = is_list && cJSON_IsString(item);
    if (text && !strcmp(text, "all-linear")) tern__lora_target(linears, text);
    if (is_list) cJSON_ArrayForEach(item, field) tern__lora_target(linears, item->valuestring);
    if (!text && !is_list && !tern__is_set(config->err))
        tern__error_set(config->err, config->func, TERN_E_FORMAT,
                        "%s: \"target_modules\" is not a list of names or a string", config->path);
}

static int read_config(const tern__lora_linears *linears, const char *folder, tern_lora_opts *o)
{
    char *path = tern__path_join(folder, CONFIG, linears->func, linears->err);
    cJSON *object = path ? tern__config_read(path, linears->func, linears->err) : NULL;
    tern__config config = {object, path, linears->func, linears->err};
    if (object) {
        tern__config_int(&config, "r", true, &o->r);
        tern__config_real(&config, "lora_alpha", &o->lora_alpha);
        tern__config_real(&config, "lora_dropout", &o->lora_dropout);
        tern__config_bool(&config, "use_rslora", &o->use_rslora);
        check_fields(&config);
        read_targets(&config, linears);
    }
    cJSON_Delete(object);
    tern__free(path);
    return linears->err->code;
}

/* ---- the matrices ---- */

typedef struct adapter_file {
    const tern__lora_linears *linears;
    const char *path;
    const tern_object *state;
    const tern_tensor *(*matrices)[MATRICES]; /* [linears->count] */
    tern_tensor **own; /* [tern_object_count(state)] the model's parameter of that name, or NULL */
    int64_t r;
} adapter_file;

/* Returns the index of the linear that a name belongs to, and which of its matrices; -1: none. */
static int find_matrix(const tern__lora_linears *linears, const char *name, int *matrix)
{
    char key[KEY_TEXT];
    for (int i = 0; i < linears->count; i++)
        for (*matrix = A; *matrix < MATRICES; ++*matrix)
            if (!strcmp(matrix_key(&linears->list[i], *matrix, key), name)) return i;
    return -1;
}

static int check_tensor(const adapter_file *f, const char *name, const tern_tensor *tensor,
                        const tern__view *fits)
{
    char have[TERN__SHAPE_TEXT], want[TERN__SHAPE_TEXT];
    if (!tern__dtype_is_float(tensor->view.dtype))
        return tern__error_set(f->linears->err, f->linears->func, TERN_E_DTYPE,
                               "%s: \"%s\" is of %s, expected floating point", f->path, name,
                               tern_dtype_name(tensor->view.dtype));
    if (tern__view_same_shape(&tensor->view, fits)) return TERN_OK;
    return tern__error_set(f->linears->err, f->linears->func, TERN_E_SHAPE, "%s: \"%s\" is %s, expected %s",
                           f->path, name, tern__shape_text(&tensor->view, have),
                           tern__shape_text(fits, want));
}

static int check_matrix(const adapter_file *f, const char *name, int i, int matrix, const tern_tensor *tensor)
{
    const tern__linear *linear = f->linears->list[i].linear;
    const int64_t *w = linear->weight->view.shape, in = w[linear->is_turned ? 0 : 1],
                  out = w[linear->is_turned ? 1 : 0];
    int64_t shape[] = {matrix == A ? f->r : out, matrix == A ? in : f->r};
    tern__view fits = tern__view_make(TERN_F32, TERN__PLAIN, 2, shape);
    return check_tensor(f, name, tensor, &fits);
}

/* Beside the adapter of a head PEFT saves the head's own weight ("lm_head.base_layer.weight"), and the
 * embedding's. */
static int match_own(const adapter_file *f, int64_t k, const char *name, const tern_tensor *tensor)
{
    static const char part[] = ".base_layer.";
    const char *rest =
        name && tensor && !strncmp(name, PREFIX, strlen(PREFIX)) ? name + strlen(PREFIX) : NULL;
    const char *cut = rest ? strstr(rest, part) : NULL;
    char own[KEY_TEXT] = "";
    if (cut)
        tern__text_append(own, sizeof(own), "%.*s.%s", (int)(cut - rest), rest, cut + strlen(part));
    else if (rest)
        tern__text_append(own, sizeof(own), "%s", rest);
    f->own[k] = tern__state_find(f->linears->model, own, f->linears->err);
    if (!f->own[k])
        return tern__error_set(f->linears->err, f->linears->func, TERN_E_INVALID,
                               "%s: %s has no linear for \"%s\"", f->path, f->linears->model->kind,
                               name ? name : "(no string)");
    return check_tensor(f, name, tensor, &f->own[k]->view);
}

/* Finds what each of the file's tensors is for. A linear with a matrix becomes a target. */
static int match_tensors(const adapter_file *f)
{
    int status = TERN_OK;
    for (int64_t k = 0; k < tern_object_count(f->state) && !status; k++) {
        const char *name = tern_object_to_string(tern_object_key(f->state, k));
        const tern_tensor *tensor = tern_object_to_tensor(tern_object_at(f->state, k));
        int matrix, i = name && tensor ? find_matrix(f->linears, name, &matrix) : -1;
        if (i >= 0) {
            f->linears->list[i].is_target = true;
            f->matrices[i][matrix] = tensor;
        }
        status = i < 0 ? match_own(f, k, name, tensor) : check_matrix(f, name, i, matrix, tensor);
    }
    return status;
}

static int check_missing(const adapter_file *f)
{
    char key[KEY_TEXT];
    int targets = 0;
    for (int i = 0; i < f->linears->count; i++) {
        targets += f->linears->list[i].is_target;
        for (int m = A; m < MATRICES && f->linears->list[i].is_target; m++)
            if (!f->matrices[i][m])
                return tern__error_set(f->linears->err, f->linears->func, TERN_E_INVALID,
                                       "%s: \"%s\" is missing", f->path,
                                       matrix_key(&f->linears->list[i], m, key));
    }
    return targets
               ? TERN_OK
               : tern__error_set(f->linears->err, f->linears->func, TERN_E_INVALID,
                                 "%s has no adapter for a linear of %s", f->path, f->linears->model->kind);
}

/* Writes a value that nothing has used yet. */
static int write_tensor(const adapter_file *f, tern_tensor *to, const tern_tensor *from)
{
    if (to->view.packs) to->view.packs->version++;
    return tern__view_copy(&to->view, &from->view, f->linears->err);
}

static int write_tensors(const adapter_file *f)
{
    int status = TERN_OK;
    for (int64_t k = 0; k < tern_object_count(f->state) && !status; k++)
        if (f->own[k])
            status = write_tensor(f, f->own[k], tern_object_to_tensor(tern_object_at(f->state, k)));
    for (int i = 0; i < f->linears->count; i++) {
        const tern__lora *lora = &f->linears->list[i].linear->lora;
        if (!f->linears->list[i].is_target) continue;
        if (!status) status = write_tensor(f, lora->a->weight, f->matrices[i][A]);
        if (!status) status = write_tensor(f, lora->b->weight, f->matrices[i][B]);
    }
    return status;
}

/* Reads the file, and changes the model only if all of it fits. */
static int read_adapters(const tern__lora_linears *linears, const char *folder, const tern_lora_opts *o,
                         bool trains)
{
    char *path = tern__path_join(folder, WEIGHTS, linears->func, linears->err);
    tern_object *state = path ? tern_load(path, NULL, linears->err) : NULL;
    adapter_file f = {.linears = linears, .path = path, .state = state, .r = o->r};
    size_t tensors = (size_t)tern_object_count(state), count = (size_t)linears->count;
    if (state) f.matrices = tern__alloc(count * sizeof(*f.matrices) + 1, linears->func, linears->err);
    if (f.matrices) f.own = tern__alloc(tensors * sizeof(*f.own) + 1, linears->func, linears->err);
    int status = f.own ? match_tensors(&f) : linears->err->code;
    if (!status) status = check_missing(&f);
    if (!status) status = tern__lora_attach(linears, o, NULL, trains);
    if (!status) status = write_tensors(&f);
    tern__free(f.own);
    tern__free(f.matrices);
    tern_object_free(state);
    tern__free(path);
    return status;
}

int tern_lora_open(tern_module *model, const char *folder, bool trains, tern_error *err)
{
    tern_lora_opts o = tern_lora_defaults();
    tern__lora_linears linears = {0};
    tern_error own = {0};
    if (!err) err = &own;
    if (tern__is_set(err) || tern__need(folder, "folder", __func__, err) ||
        tern__lora_linears_open(&linears, model, __func__, err))
        return err->code;
    int status = tern__lora_check_new(&linears);
    if (!status) status = read_config(&linears, folder, &o);
    if (!status) status = tern__lora_opts_check(&o, __func__, err);
    if (!status) status = read_adapters(&linears, folder, &o, trains);
    if (!status && !trains) tern_eval(model);
    tern__free(linears.list);
    return err->code;
}
