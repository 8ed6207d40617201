/* torch.c - archives of torch.save. Checksums are taken as right in this build (zip_read.c), or nothing that
 * was changed would come as far as the pickle. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_load(data, size, 0);
    fuzz_load(data, size, 1);
    return 0;
}
