/* fuzz.h - what every target shares: the input as a file, and the promise on memory. */
#ifndef TERN_FUZZ_H
#define TERN_FUZZ_H

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_PATH = 64 };

/* A file of the bytes: a descriptor to be closed, and the path that opens it. */
int fuzz_file(const uint8_t *data, size_t size, char path[FUZZ_PATH]);

/* Loads the bytes by tern_load, as data or, if `records`, with records, reads all that came of it, and frees
 * it. Aborts if more memory than the size and 16 MiB was alive at once, or some still is. */
void fuzz_load(const uint8_t *data, size_t size, int records);

/* libFuzzer's. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
