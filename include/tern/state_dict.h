/* state_dict.h - what the parts of a run remember, as nested objects (object.h) in the form that PyTorch
 * gives them: what checkpoints are made of (checkpoint.h, snapshot.h).
 *
 * A _state_dict function makes a new object, yours: tern_object_free. Its tensors share the memory of the
 * live ones, so it is a picture of now only until the next step, and what it is of must outlive it. A _load
 * function checks everything before it changes anything, copies, and leaves the object as it is; its errors
 * say the place, state[3]["exp_avg"]. All return NULL or a status if *err is set already.
 *
 * Threads: each belongs to the thread of what it is of. */
#ifndef TERN_STATE_DICT_H
#define TERN_STATE_DICT_H

#include <tern/data.h>
#include <tern/object.h>
#include <tern/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- modules ---- */

/* torch.nn.Module.state_dict: a dict of the module's parameters and buffers, in its order. One that was made
 * before the seal is freed before it: sealed parameters move. E_INVALID: no module; E_MEMORY. */
TERN_API tern_object *tern_module_state_dict(const tern_module *module, tern_error *err);

typedef struct tern_module_load_opts {
    size_t size;
    bool strict; /* names that are missing or too many are errors; default true */
} tern_module_load_opts;
TERN_API tern_module_load_opts tern_module_load_defaults(void);

/* torch.nn.Module.load_state_dict, before the seal and after it. A tensor of another dtype is converted, but
 * not a floating one to integers; of another shape it is an error also if not strict. "module." goes from the
 * names if all of them begin so, as what was saved of a DistributedDataParallel, and the model's do not. If
 * `report` is not NULL it gets a new object, yours, also after an error in `state`: {"missing_keys": [..],
 * "unexpected_keys": [..], "mismatched_keys": [..]}. Errors name the keys, in torch's words: E_INVALID (no
 * module, no dict, missing and unexpected names), E_SHAPE, E_DTYPE, E_MEMORY. */
TERN_API int tern_module_state_dict_load(tern_module *module, const tern_object *state,
                                         const tern_module_load_opts *opts, tern_object **report,
                                         tern_error *err);

/* ---- optimizers ---- */

/* torch.optim.Optimizer.state_dict: {"state": {0: {"step": .., "exp_avg": ..}, ..}, "param_groups": [{"lr":
 * .., "betas": .., "params": [0, ..]}, ..]}. Parameters are numbered group by group, in the order of the
 * module's state dict; "lr" is the rate as the next step uses it, and while there are schedules "initial_lr"
 * is the one that they multiply. Of a sharded optimizer it is collective, and rank `root` gets it, all if
 * that is -1, the others NULL without an error, as of tern_optim_state_gather; its tensors are copies then.
 * E_INVALID: no optimizer; E_RANGE: no such root; E_MEMORY, E_PEER. */
TERN_API tern_object *tern_optim_state_dict(tern_optim *optim, int root, tern_error *err);

/* torch.optim.Optimizer.load_state_dict: state and options of the groups as they were saved, by this library
 * or by torch. A group's rate is the saved one: "initial_lr" where there are schedules, which are loaded
 * by themselves, else "lr". "step" may be a tensor, an int or a float, or the group's, as apex's; keys of the
 * groups that this library does not know are ignored; tensors are converted to the dtype of the state. Not
 * collective; all ranks the same. E_INVALID: other groups, a number of parameters or a name that does not
 * fit; E_SHAPE, E_DTYPE, E_RANGE: a tensor or an option that does not; E_MEMORY. */
TERN_API int tern_optim_state_dict_load(tern_optim *optim, const tern_object *state, tern_error *err);

/* ---- random numbers ---- */

/* torch.Generator.get_state: a tensor (TERN_RNG_STATE_BYTES), u8, which torch.set_rng_state takes. A copy. */
TERN_API tern_object *tern_rng_state_dict(const tern_rng *rng, tern_error *err);
/* torch.Generator.set_state. E_DTYPE: no u8 tensor; E_SHAPE: of another size; E_FORMAT: no such state. */
TERN_API int tern_rng_state_dict_load(tern_rng *rng, const tern_object *state, tern_error *err);

/* {"seed": .., "step": ..} of tern_scope_seed, with the number of the step that comes next: the same before
 * and after the tern_scope_end of a step. */
TERN_API tern_object *tern_scope_state_dict(const tern_scope *scope, tern_error *err);
TERN_API int tern_scope_state_dict_load(tern_scope *scope, const tern_object *state, tern_error *err);

/* ---- data ---- */

/* {"epoch": .., "position": .., "length": .., "seed": .., "shuffle": ..}: the epoch of the pass, and how many
 * samples of its order all ranks together have been handed in it, which is the same on all of them if all
 * took equally many batches. What was fetched ahead does not count. */
TERN_API tern_object *tern_loader_state_dict(const tern_loader *loader, tern_error *err);
/* The next batch is the one after those: a pass is taken up where it was left, a finished one ends at once.
 * Sets epoch and seed of the loader's sampler, and gives up the pass that is under way. With another number
 * of ranks or batch size every sample still comes once, as far as the position divides by the ranks; the rest
 * of the division comes twice. E_INVALID: a data set of another length, shuffled or not; E_DTYPE, E_RANGE: no
 * such state. */
TERN_API int tern_loader_state_dict_load(tern_loader *loader, const tern_object *state, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
