/* checkpoint.h - nested objects (object.h) in files that PyTorch can write and read; no Python is needed.
 *
 *     tern_object *state = tern_load("resnet18.pth", NULL, &err);
 *     const tern_object *weight = tern_object_get(state, "conv1.weight");
 *
 * Threads: any, each with files and objects of its own. */
#ifndef TERN_CHECKPOINT_H
#define TERN_CHECKPOINT_H

#include <tern/object.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes an object to a file as torch.save does. torch.load(path, weights_only=True) reads it from PyTorch 2
 * on; older versions read it only if it contains no float outside its tensors (an optimizer's state does). If
 * the path ends in ".safetensors", writes that format instead, from a dict of tensors by name. Tensors that
 * share memory share it in the file, except in safetensors, where each is written.
 *
 * The file is first written under another name in the same directory (PATH.PID.tmp), synced and renamed, and
 * the directory is synced. So PATH is always the complete old file or the complete new one, whatever happens.
 * Permissions follow the umask. If PATH is a symbolic link, the link is replaced, not followed.
 *
 * What a process that was killed has left of PATH is removed first. A record of a tensor (tern_load_opts) is
 * written as the tensor that it stands for, row-major.
 *
 * Errors: E_INVALID (no path or object), E_UNSUPPORTED (another record, or an object that the format cannot
 * hold; the text names its place, as state["a"][3]), E_RANGE (nested more than 500 deep), E_IO (the old file
 * is still there). */
TERN_API int tern_save(const char *path, const tern_object *object, tern_error *err);

typedef struct tern_load_opts {
    size_t size;
    bool records;  /* load what tern does not have as records, see below; default false */
    size_t memory; /* bytes that the objects may take beyond the size of the file; default 16 MiB */
    bool metadata; /* load "__metadata__" of safetensors too, a dict of strings, which tern_save accepts;
                    * default false */
} tern_load_opts;
TERN_API tern_load_opts tern_load_defaults(void);

/* Reads a file that torch.save (PyTorch 1.6 or newer, or its older format) or safetensors has written; the
 * file's content tells which. Nothing in the file is executed: tern makes the tensors, numbers, strings and
 * containers itself. Tensors that shared memory share it again. All tensors are in main memory, wherever they
 * were saved from. Python types that tern does not have become the nearest kind: torch.Size a tuple, sets
 * lists, torch.device and torch.dtype strings ("cuda:0", "torch.float32"), bytearrays bytes, numpy's scalars
 * numbers and strings, a defaultdict a dict. Attributes of tensors and dicts (a state dict's _metadata) are
 * left out. Yours: tern_object_free.
 *
 * What tern cannot hold is E_UNSUPPORTED, with its place in the text, as state["rng"]["state"]; or, with
 * `records`, a record that does nothing:
 * - an instance of a class: its name, arguments and state; so are numpy's arrays, its complex numbers, times
 *   and long doubles, and integers of its u64 from 2^63 on ("numpy.core.multiarray.scalar");
 * - an int of more than 64 bits: "builtins.int" with the arguments ("0x1f..", 16);
 * - a tensor of another dtype (u16, u32, u64, 8-bit floats, complex numbers) or of more than TERN_NDIM_MAX
 *   dimensions: "torch.Tensor" with the arguments (dtype, shape), such as ("u16", (3, 4)), and as state a u8
 *   tensor of its bytes in row-major order;
 * - a storage without a tensor: its class, and as state a u8 tensor of its bytes.
 *
 * With `records`, a key that no dict of tern's has, such as a tuple, becomes a text.
 *
 * The file may come from an untrusted source: every length and checksum in it is checked, and the memory used
 * stays below the file's size plus `memory` (16 MiB is enough for 8000 small tensors).
 *
 * NULL on error: E_IO (cannot be read, not a regular file, or became shorter), E_FORMAT (damaged, or not such
 * a file), E_UNSUPPORTED (valid, but with something that tern does not have, which the text names: see above,
 * and a file of another byte order, a compressed entry, a newer version), E_MEMORY (no memory, or more than
 * `memory` allows), E_INVALID (no path). */
TERN_API tern_object *tern_load(const char *path, const tern_load_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
