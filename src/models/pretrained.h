/* pretrained.h - the models of transformers that tern_pretrained_open and tern_pretrained_save know. */
#ifndef TERN_SRC_MODELS_PRETRAINED_H
#define TERN_SRC_MODELS_PRETRAINED_H

#include "models/config.h"
#include "nn/nn.h"

#define TERN__NAME_PARTS 3
#define TERN__NAME_TEXT  128
typedef char tern__part_names[TERN__NAME_PARTS][TERN__NAME_TEXT];

/* One of transformers' classes. */
typedef struct tern__pretrained_kind {
    const char *model_type, *architecture; /* in config.json: "gpt2", "GPT2LMHeadModel" */
    const char *body;                      /* of a language model: the prefix of all names but the head's */
    const tern__call_kind *call;           /* of a language model: of its body                            */
    const char *const *lora_targets;       /* PEFT's usual target_modules, NULL-terminated; NULL: none    */
    const char *lora_task;                 /* PEFT's task_type; NULL: none                                */
    const char *const *needless;           /* ends of the names of tensors in files, which tern does not need;
                                            * NULL-terminated                                             */
    tern_module *(*open)(tern__config *config, tern_rng *rng, tern_error *err);
    void (*write)(const tern_module *model, cJSON *config);
    /* Writes transformers' name of tern's parameter, or the names of the tensors whose rows it has one after
     * the other. Returns how many; 0: transformers has none. NULL: all names are the same. */
    int (*names)(const char *name, tern__part_names theirs);
    /* Sees the name of each weight before any is read: parts that only some files have. May be NULL. */
    void (*see_name)(tern_module *model, const char *name, tern_error *err);
} tern__pretrained_kind;

extern const tern__pretrained_kind tern__vit_kind;
bool tern__module_is_vit(const tern_module *module);

/* Returns the kind that a config.json names. NULL: E_FORMAT, E_UNSUPPORTED. */
const tern__pretrained_kind *tern__pretrained_kind_find(const tern__config *config);
/* Returns the kind of a model, or NULL if transformers has no such. */
const tern__pretrained_kind *tern__pretrained_kind_of(const tern_module *module);
/* kind->names, if it has this function. */
int tern__pretrained_names(const tern__pretrained_kind *kind, const char *name, tern__part_names theirs);

#endif
