/* inspected.c - loads a file for `tern inspect` and adds up its tensors. */
#include "inspect/inspect.h"

#include "checkpoint/torch.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Sets the size and the format of a file that tern_load has read. */
static int look_at(tern__inspected *file, tern_error *err)
{
    tern__input in;
    uint8_t head[4];
    if (tern__input_open(&in, file->path, 0, err)) return err->code;
    file->bytes = in.size;
    if (!tern__input_read(&in, 0, head, sizeof(head), err))
        file->format = memcmp(head, "PK\3\4", sizeof(head)) == 0 ? "PyTorch"
                       : tern__legacy_is(&in)                    ? "PyTorch before 1.6"
                                                                 : "safetensors";
    tern__input_close(&in);
    return err->code;
}

int tern__inspected_open(tern__inspected *file, const char *path, const tern_load_opts *opts, tern_error *err)
{
    *file = (tern__inspected){.path = path, .object = tern__content_load(path, opts, err)};
    int status = file->object ? look_at(file, err) : err->code;
    return status ? status : tern__content_list(&file->content, file->object, err);
}

void tern__inspected_close(tern__inspected *file)
{
    tern__content_free(&file->content);
    tern_object_free(file->object);
}

int tern__inspect_measure(tern__values *values, const tern__content_item *item, tern__totals *sum,
                          tern_error *err)
{
    tern__tensor_info info;
    if (!tern__tensor_info_get(&info, item->value)) return TERN_OK;
    if (tern__values_measure(values, info.tensor, err)) return err->code;
    values->count = info.count;
    if (!info.has_values) values->min = values->mean = values->max = values->std = NAN;
    sum->tensors++;
    sum->bytes += (int64_t)tern__view_bytes(&info.tensor->view);
    sum->values += info.count;
    sum->nan += values->nan;
    sum->inf += values->inf;
    sum->checksum += XXH3_64bits_withSeed(item->name, item->name_bytes, values->checksum);
    return TERN_OK;
}
