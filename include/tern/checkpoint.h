/* checkpoint.h - nested objects (object.h) in files that PyTorch writes and reads, without Python.
 *
 *     tern_object *state = tern_load("resnet18.pth", NULL, &err);
 *     const tern_object *weight = tern_object_get(state, "conv1.weight");
 *
 * Threads: any, on different files and objects. */
#ifndef TERN_CHECKPOINT_H
#define TERN_CHECKPOINT_H

#include <tern/object.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes what torch.save writes, which torch.load(path, weights_only=True) reads from PyTorch 2 on (before,
 * only what has no float beside its tensors, as an optimizer's state has); where the path ends in
 * ".safetensors", a dict of tensors by name in that format. Tensors that share memory share it in the file,
 * but in safetensors, where each is written.
 *
 * The file is put together under a name beside it (PATH.PID.tmp), synced and renamed, and the directory is
 * synced: whatever happens meanwhile, PATH is the old file or the new one. Permissions are the umask's; a
 * symbolic link is replaced, not followed. E_INVALID: no path or object. E_UNSUPPORTED: a record, or what the
 * format has not, naming its place as state["a"][3]. E_RANGE: nested more than 500 deep. E_IO: the old file
 * is still there. */
TERN_API int tern_save(const char *path, const tern_object *object, tern_error *err);

typedef struct tern_load_opts {
    size_t size;
    bool records;  /* load instances of classes as records, with nothing of the class but its name */
    size_t memory; /* how many bytes the objects may take beyond the size of the file; 16 MiB      */
    bool metadata; /* of safetensors also "__metadata__", a dict of strings; tern_save takes one   */
} tern_load_opts;
TERN_API tern_load_opts tern_load_defaults(void);

/* Reads a file of torch.save, of PyTorch 1.6 or newer or of the older format, or of safetensors; which of
 * them, its content says. Nothing in the file is executed: tensors, numbers, strings and containers are made
 * by tern, and whatever else a pickle names is refused, or a record. Tensors that shared memory share it
 * again, and lie in main memory, wherever they were saved from. What Python has beside tern's kinds becomes
 * the nearest: torch.Size a tuple, sets lists, torch.device and torch.dtype strings ("cuda:0",
 * "torch.float32"), bytearrays bytes, numpy's scalars numbers; attributes of tensors and dicts (a state
 * dict's _metadata) are left out. Yours: tern_object_free.
 *
 * The file may come from anybody: every length in it is checked first, its checksums are, and memory stays
 * within the file's size and `memory` (16 MiB are enough for 8000 small tensors). E_IO: cannot be read, no
 * regular file, or became shorter. E_FORMAT: damaged, or not such a file. E_UNSUPPORTED: well formed, but
 * holds what tern has not (a class, a dtype, another byte order, a compressed entry, a newer version), named.
 * E_MEMORY: more than there is or than `memory` allows. E_INVALID: no path. */
TERN_API tern_object *tern_load(const char *path, const tern_load_opts *opts, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
