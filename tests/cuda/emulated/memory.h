/* memory.h - the device's memory: pages that are closed to the host but while the device works. */
#ifndef TERN_TESTS_CUDA_MEMORY_H
#define TERN_TESTS_CUDA_MEMORY_H

void emulated_memory_open();
void emulated_memory_close();
/* Is it the device's? */
bool emulated_memory_has(const void *data);

#endif
