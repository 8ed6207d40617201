/* lora.h - low-rank adapters (LoRA, Hu et al. 2021): a model is fine-tuned by two small matrices beside each
 * chosen linear, y = W x + b + scale B A x, while its own weights stay as they are. Files are those of PEFT.
 *
 *     tern_lora_opts opts = tern_lora_defaults();
 *     tern_lora_add(model, &opts, rng, &err);                before tern_ddp_new and the optimizer
 *     ..                                                     train
 *     tern_lora_save(model, "adapter", "gpt2", &err);
 *
 * Threads: as modules (nn.h). */
#ifndef TERN_LORA_H
#define TERN_LORA_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_lora_opts {
    size_t size;
    int64_t r;                         /* the rank: rows of A and columns of B; default 8                 */
    double lora_alpha;                 /* scale = lora_alpha / r; default 8                               */
    bool use_rslora;                   /* scale = lora_alpha / sqrt(r); default false                     */
    double lora_dropout;               /* of x before A, in training, in [0, 1); default 0                */
    const char *const *target_modules; /* names of linears: "c_attn" or the end of a path, "attn.c_proj"; one
                                        * name "all-linear" is every linear but the head; default NULL: c_attn
                                        * of GPT-2, q_proj and v_proj of Llama, query and value of BERT   */
    int target_count;                  /* default 0                                                       */
} tern_lora_opts;
/* Returns the defaults of peft.LoraConfig. */
TERN_API tern_lora_opts tern_lora_defaults(void);

/* Adds adapters to linears (tern_linear_new, and GPT-2's with a weight (in, out)), in every tree of modules.
 * A linear gets the parameters lora_A.weight (r, in), drawn as PEFT draws it, bit for bit, and lora_B.weight
 * (out, r), of zeros, behind its own; all other parameters of the tree require no gradient from then on. The
 * linear's own names and values stay. With a NULL rng both are 0, to be loaded. Adapters are of the weight's
 * dtype, beside 16-bit weights of f32, as PEFT's. Call it before the seal and amp (E_STATE): then optimizers
 * keep no state for the other parameters, and ddps do not reduce them. E_INVALID: a target that matches no
 * linear, a module that has adapters already, or no targets for such a model; E_RANGE: options; E_MEMORY.
 * peft.get_peft_model. */
TERN_API int tern_lora_add(tern_module *model, const tern_lora_opts *opts, tern_rng *rng, tern_error *err);

/* Adds scale B A to the weight of each linear and switches the adapters off, so that the model is as fast as
 * before and may be saved with tern_pretrained_save, which leaves the adapters out; they require no gradient
 * any more. Also after the seal. E_INVALID: no adapters, or merged ones; a weight that another layer shares,
 * such as a tied head's, with nothing changed; E_MEMORY. peft's merge_and_unload. */
TERN_API int tern_lora_merge(tern_module *model, tern_error *err);

/* Writes adapter_model.safetensors and adapter_config.json into a folder, which is made if there is none, for
 * PeftModel.from_pretrained and tern_lora_open. `base` is the name or folder of the model that the adapters
 * belong to (base_model_name_or_path); it may be NULL. target_modules are the shortest ends of names that
 * mean these linears alone. E_INVALID: no adapters, or merged ones; E_IO, E_MEMORY. */
TERN_API int tern_lora_save(const tern_module *model, const char *folder, const char *base, tern_error *err);

/* Adds the adapters of a folder to a model, with their weights. Only with `trains` do they require gradients;
 * without, the model is in evaluation mode from then on, as PEFT's. Call it as tern_lora_add. A regular
 * expression in target_modules stands for the linears that the file has. A targeted head's own weight, which
 * PEFT saves, too, replaces the model's. After an error other than E_MEMORY the model is as it was.
 *
 * E_IO; E_FORMAT; E_UNSUPPORTED: a field of adapter_config.json that tern does not have (DoRA, rank_pattern),
 * which is named; E_INVALID, E_SHAPE, E_DTYPE: adapters of another model, missing or unexpected names; the
 * errors of tern_lora_add. PeftModel.from_pretrained(model, folder, is_trainable). */
TERN_API int tern_lora_open(tern_module *model, const char *folder, bool trains, tern_error *err);

/* Returns whether the model has adapters, merged ones included. */
TERN_API bool tern_lora_has(const tern_module *model);

#ifdef __cplusplus
}
#endif
#endif
