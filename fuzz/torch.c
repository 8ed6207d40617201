/* torch.c - fuzzes the reader of torch.save archives. This build accepts any checksum (zip_read.c), or else
 * no mutated input would reach the pickle. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_load(data, size, 0);
    fuzz_load(data, size, 1);
    return 0;
}
