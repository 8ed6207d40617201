/* safetensors.h - Hugging Face's format: the header's length (8 bytes, little-endian), the header in JSON
 * (each tensor's name, dtype, shape and offsets), and the tensors' bytes without gaps. Metadata is a map from
 * strings to strings under the header's key "__metadata__". */
#ifndef TERN_SRC_CHECKPOINT_SAFETENSORS_H
#define TERN_SRC_CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "checkpoint/input.h"
#include "tensor/object.h"

#define TERN__SAFETENSORS_SUFFIX     ".safetensors"
#define TERN__SAFETENSORS_METADATA   "__metadata__"
#define TERN__SAFETENSORS_HEADER_MAX 100000000 /* safetensors' own cap */

/* Returns true if the path ends in ".safetensors". */
bool tern__safetensors_is_path(const char *path);
/* Returns true if the path has the suffix, or if a header starts where it should: either may be missing. */
bool tern__safetensors_is(const tern__input *in);

/* Is the key the one of the metadata, with no zero byte after it? */
bool tern__safetensors_is_metadata(const tern_object *key);

/* Returns a dict name -> tensor, in the order of the data; the tensors share one block of memory. With
 * `metadata`, also
 * "__metadata__" -> a dict of strings. With `records`, a tensor of a dtype or number of dimensions that tern
 * does not have is a record (dtypes.h). Checks everything that safetensors checks, and that each name
 * occurs once. Charges its memory to `in`. E_FORMAT, E_UNSUPPORTED (without `records`), E_IO, E_MEMORY. */
tern_object *tern__safetensors_load(tern__input *in, bool records, bool metadata, tern_error *err);

/* Writes a dict of tensors, or of records of tensors, and, under "__metadata__", a dict of strings, as
 * safetensors does: sorted by descending element size, then by name, with the data at a multiple of 8.
 * Tensors that share memory are each written in full. E_UNSUPPORTED: the object is something else, and the
 * error names the first wrong path. E_IO, E_MEMORY. */
int tern__safetensors_save(tern__output *out, const tern_object *object, tern_error *err);

#endif
