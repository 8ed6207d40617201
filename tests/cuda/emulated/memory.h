/* memory.h - the device's clock, and its memory: pages that are closed to the host but while the device
 * works. */
#ifndef TERN_TESTS_CUDA_MEMORY_H
#define TERN_TESTS_CUDA_MEMORY_H

/* The clock of the device that this thread drives; most of what it does takes no time. */
extern thread_local double emulated_ms;

void emulated_memory_open();
void emulated_memory_close();
/* Is it the device's? */
bool emulated_memory_has(const void *data);

#endif
