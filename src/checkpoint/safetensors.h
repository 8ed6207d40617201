/* safetensors.h - Hugging Face's format: the length of a header (8 bytes, little endian), the header in JSON
 * (of each tensor name, dtype, shape and place), the tensors' bytes without gaps. Metadata are strings by
 * name, under the header's key "__metadata__". */
#ifndef TERN_SRC_CHECKPOINT_SAFETENSORS_H
#define TERN_SRC_CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "checkpoint/input.h"
#include "tensor/object.h"

#define TERN__SAFETENSORS_SUFFIX     ".safetensors"
#define TERN__SAFETENSORS_METADATA   "__metadata__"
#define TERN__SAFETENSORS_HEADER_MAX 100000000 /* safetensors' own cap */

/* Does the path end in ".safetensors"? */
bool tern__safetensors_is_path(const char *path);
/* By the path's suffix, or because a header begins where one should: both, since each may be missing. */
bool tern__safetensors_is(const tern__input *in);

/* A dict name -> tensor, in the order of the data; the tensors lie in one block of memory. With `metadata`
 * also
 * "__metadata__" -> a dict of strings. Everything is checked that safetensors checks, and that no name is
 * there twice; what memory it takes is charged to `in`. E_FORMAT, E_UNSUPPORTED (a dtype or a rank that tern
 * has not), E_IO, E_MEMORY. */
tern_object *tern__safetensors_load(tern__input *in, bool metadata, tern_error *err);

/* Writes a dict of tensors and, under "__metadata__", a dict of strings, as safetensors does: by falling size
 * of the element, then by name, the data at a multiple of 8. Tensors that share memory are written once each.
 * E_UNSUPPORTED: the object is something else; the error names the first path. E_IO, E_MEMORY. */
int tern__safetensors_save(tern__output *out, const tern_object *object, tern_error *err);

/* "BF16"; NULL for a dtype that does not exist. */
const char *tern__safetensors_dtype(tern_dtype dtype);

#endif
