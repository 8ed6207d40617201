/* fuzz.h - shared by the targets: passes the input as a file and checks the limit on memory. */
#ifndef TERN_FUZZ_H
#define TERN_FUZZ_H

#include <stddef.h>
#include <stdint.h>

enum { FUZZ_PATH = 64 };

/* Makes a file of the bytes. Returns a descriptor, which the caller closes, and a path that opens it. */
int fuzz_file(const uint8_t *data, size_t size, char path[FUZZ_PATH]);

/* Loads the bytes with tern_load, with or without records, reads all values and frees them. Aborts if more
 * memory than the input's size plus 16 MiB was allocated at any time, or if memory leaks. */
void fuzz_load(const uint8_t *data, size_t size, int records);

/* The entry point of libFuzzer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
