/* torch.h - the files of torch.save. */
#ifndef TERN_SRC_CHECKPOINT_TORCH_H
#define TERN_SRC_CHECKPOINT_TORCH_H

#include "checkpoint/pickle.h"
#include "checkpoint/zip.h"

int tern__torch_save(tern__output *out, const tern_object *object, tern_error *err);
/* A zip archive, since PyTorch 1.6. */
tern_object *tern__torch_load(tern__input *in, bool records, tern_error *err);
/* What came before it. */
tern_object *tern__legacy_load(tern__input *in, bool records, tern_error *err);
/* Whether the file begins as one of those. */
bool tern__legacy_is(const tern__input *in);
/* Bytes of bools are 0 or 1: another is none in C. */
int tern__bools_check(const tern__input *in, const void *data, int64_t bytes, tern_error *err);

/* tern_save, with or without waiting for the disk. */
int tern__save_file(const char *path, const tern_object *object, bool sync, tern_error *err);

#endif
