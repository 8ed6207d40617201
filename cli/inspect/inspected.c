/* inspected.c - loads a file for `tern inspect` and adds up its tensors. */
#include "inspect/inspect.h"

#include <stdio.h>
#include <sys/stat.h>
#include <xxhash.h>

static int look_at(tern__inspected *file, tern_error *err)
{
    struct stat status;
    uint8_t head[2] = {0};
    FILE *opened = fopen(file->path, "re");
    size_t got = opened ? fread(head, 1, sizeof(head), opened) : 0;
    if (got == sizeof(head) && fstat(fileno(opened), &status) == 0) file->bytes = status.st_size;
    if (opened) fclose(opened);
    if (got < sizeof(head))
        return tern__error_set(err, "tern inspect", TERN_E_IO, "cannot read %s again", file->path);
    file->format = head[0] == 'P' && head[1] == 'K' ? "PyTorch"
                   : head[0] == 0x80                ? "PyTorch before 1.6"
                                                    : "safetensors";
    return TERN_OK;
}

int tern__inspected_open(tern__inspected *file, const char *path, const tern_load_opts *opts, tern_error *err)
{
    *file = (tern__inspected){.path = path, .object = tern_load(path, opts, err)};
    int status = file->object ? look_at(file, err) : err->code;
    return status ? status : tern__content_list(&file->content, file->object, err);
}

void tern__inspected_close(tern__inspected *file)
{
    tern__content_free(&file->content);
    tern_object_free(file->object);
}

void tern__inspect_add(tern__values *total, const tern__content_item *item, const tern__values *values)
{
    total->count += values->count;
    total->nan += values->nan;
    total->inf += values->inf;
    total->checksum += XXH3_64bits_withSeed(item->name, item->name_bytes, values->checksum);
}
