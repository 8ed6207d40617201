/* memory.h - the device's clock, the state of capturing, and the device's memory: pages that the host
 * cannot access except while the device works. */
#ifndef TERN_TESTS_CUDA_MEMORY_H
#define TERN_TESTS_CUDA_MEMORY_H

#include <cstddef>

/* The simulated clock of this thread's device: a block of threads takes a microsecond, a copied byte and
 * an operation of a product a nanosecond, a convolution the time of its engine. */
extern thread_local double emulated_ms;

/* Whether this thread captures a stream. */
extern thread_local bool emulated_captures;

/* Ends the test. */
[[noreturn]] void emulated_stop(const char *what);

void emulated_memory_open();
void emulated_memory_close();
/* Whether the address is device memory. */
bool emulated_memory_has(const void *data);
/* Whether the range is within one allocation of the driver's. */
bool emulated_memory_is_one(const void *data, size_t bytes);
/* Whether the GPU that owns `to` has access to `from`. */
bool emulated_memory_joined(const void *to, const void *from);
/* The free memory of a device. */
size_t emulated_memory_left(int index);

#define EMULATED_MEMORY ((size_t)2 << 30) /* of each device */

#endif
