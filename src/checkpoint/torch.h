/* torch.h - saves and loads files of torch.save. */
#ifndef TERN_SRC_CHECKPOINT_TORCH_H
#define TERN_SRC_CHECKPOINT_TORCH_H

#include "checkpoint/pickle.h"
#include "checkpoint/zip.h"

int tern__torch_save(tern__output *out, const tern_object *object, tern_error *err);
/* Loads the zip archive of PyTorch 1.6 and later. */
tern_object *tern__torch_load(tern__input *in, bool records, tern_error *err);
/* Loads the format before that. */
tern_object *tern__legacy_load(tern__input *in, bool records, tern_error *err);
/* Returns true if the file starts as one of the older format. */
bool tern__legacy_is(const tern__input *in);
/* Checks that all bytes are 0 or 1, as bools must be in C. */
int tern__bools_check(const tern__input *in, const void *data, int64_t bytes, tern_error *err);

#endif
