/* legacy.c - fuzzes the reader of torch.save files before 1.6; prepends the magic number to inputs without
 * it. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t magic[] = {0x80, 2,    0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.'};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t missing = size >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0 ? 0 : sizeof(magic);
    uint8_t *file = malloc(missing + size + 1);
    if (!file) return 0;
    memcpy(file, magic, missing);
    memcpy(file + missing, data, size);
    fuzz_load(file, missing + size, 0);
    fuzz_load(file, missing + size, 1);
    free(file);
    return 0;
}
