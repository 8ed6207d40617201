/* state_dict.h - the states of a run's parts as nested objects (object.h) in PyTorch's form, from which
 * checkpoints are made (checkpoint.h, snapshot.h).
 *
 * A _state_dict function makes a new object, which is yours: tern_object_free. Its tensors share the memory
 * of the live ones, so it shows the present state only until the next step, and its source must outlive it. A
 * _load function checks everything before it changes anything, copies, and does not change the object; its
 * errors name the place, as state[3]["exp_avg"]. If *err is set already, all of them do nothing and return
 * NULL or its code.
 *
 * Threads: each function is called on the thread that owns its subject. */
#ifndef TERN_STATE_DICT_H
#define TERN_STATE_DICT_H

#include <tern/data.h>
#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- modules ---- */

/* Returns a dict of the module's parameters and buffers, in the module's order: torch.nn.Module.state_dict. A
 * dict made before the seal must be freed before it, since the seal moves parameters. E_INVALID: no module;
 * E_MEMORY. */
TERN_API tern_object *tern_module_state_dict(const tern_module *module, tern_error *err);

typedef struct tern_module_load_opts {
    size_t size;
    bool strict; /* missing and unexpected names are errors; default true */
    const char
        *prefix; /* only the names that begin with it count, without it: "model." loads a part of a larger
                         * model; default NULL: all names, as they are */
} tern_module_load_opts;
/* Returns the default options. */
TERN_API tern_module_load_opts tern_module_load_defaults(void);

/* Loads parameters and buffers, before or after the seal: torch.nn.Module.load_state_dict. A tensor of
 * another dtype is converted, but not a floating-point one to integers. Another shape is an error even if not
 * strict. If all names begin with "module.", as those saved from a DistributedDataParallel, and the model's
 * do not, this prefix is removed. A shared parameter is not missing if one of its names is there: files of
 * Hugging Face have only one. Unless `report` is NULL, *report gets a new object, which is yours, also if
 * `state` has an error: {"missing_keys": [..], "unexpected_keys": [..], "mismatched_keys": [..]}. Errors name
 * the keys, in torch's words: E_INVALID (no module, no dict, missing and unexpected names), E_SHAPE, E_DTYPE,
 * E_MEMORY. */
TERN_API int tern_module_state_dict_load(tern_module *module, const tern_object *state,
                                         const tern_module_load_opts *opts, tern_object **report,
                                         tern_error *err);

/* ---- optimizers ---- */

/* Returns an optimizer's state: torch.optim.Optimizer.state_dict, {"state": {0: {"step": .., "exp_avg": ..},
 * ..}, "param_groups": [{"lr": .., "betas": .., "params": [0, ..]}, ..]}. Parameters are numbered group by
 * group, in the order of the module's state dict. "lr" is the rate that the next step uses; if there are
 * schedules, "initial_lr" is the rate that they multiply.
 *
 * If the optimizer is sharded the call is collective, and rank `root` gets the dict, or all ranks if root is
 * -1; other ranks get NULL without an error, as with tern_optim_state_gather. Its tensors are copies then.
 * E_INVALID: no optimizer; E_RANGE: no such root; E_MEMORY, E_PEER. */
TERN_API tern_object *tern_optim_state_dict(tern_optim *optim, int root, tern_error *err);

/* Loads an optimizer's state and the options of its groups, saved by tern or by torch:
 * torch.optim.Optimizer.load_state_dict. A group's own rate becomes the saved "initial_lr" if there are
 * schedules, which are loaded separately, else "lr". That one has been reduced by torch's plateau already, so
 * plateaus begin anew from it. "step" may be a tensor, an int or a float, or the group's, as apex's. Keys of
 * groups that tern does not know are ignored. Tensors are converted to the dtype of the state. Not
 * collective, but all ranks must do the same. E_INVALID: other groups, a number of parameters or a name that
 * does not fit; E_SHAPE, E_DTYPE, E_RANGE: a tensor or an option that does not fit; E_MEMORY. */
TERN_API int tern_optim_state_dict_load(tern_optim *optim, const tern_object *state, tern_error *err);

/* ---- random numbers ---- */

/* Returns a copy of a generator's state, as torch.Generator.get_state: a u8 tensor (TERN_RNG_STATE_BYTES),
 * which torch.set_rng_state accepts. */
TERN_API tern_object *tern_rng_state_dict(const tern_rng *rng, tern_error *err);
/* Sets a generator's state, as torch.Generator.set_state. E_DTYPE: no u8 tensor; E_SHAPE: another size;
 * E_FORMAT: not a state. */
TERN_API int tern_rng_state_dict_load(tern_rng *rng, const tern_object *state, tern_error *err);

/* Return and load a scope's random stream, {"seed": .., "step": ..} as of tern_scope_seed. "step" is the next
 * step, so the dict is the same before and after the tern_scope_end of a step. */
TERN_API tern_object *tern_scope_state_dict(const tern_scope *scope, tern_error *err);
TERN_API int tern_scope_state_dict_load(tern_scope *scope, const tern_object *state, tern_error *err);

/* ---- data ---- */

/* Returns a loader's position: {"epoch": .., "position": .., "length": .., "seed": .., "shuffle": ..}.
 * "epoch" is that of the pass, and "position" the number of samples in its order that have been handed out to
 * all ranks together; it is the same on all ranks if they have taken the same number of batches. Batches that
 * were only fetched ahead do not count. */
TERN_API tern_object *tern_loader_state_dict(const tern_loader *loader, tern_error *err);
/* Resumes a pass: the next batch is the one after that position; if the pass was finished, it ends at once.
 * Sets epoch and seed of the loader's sampler, and gives up the present pass. With another number of ranks or
 * batch size every sample still comes once, as far as the position is divisible by the number of ranks; the
 * samples of the remainder come twice. E_INVALID: a dataset of another length, or one is shuffled
 * and the other is not; E_DTYPE, E_RANGE: not such a state. */
TERN_API int tern_loader_state_dict_load(tern_loader *loader, const tern_object *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
