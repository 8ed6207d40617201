/* memory.h - the device's clock, whether it is captured, and its memory: pages that are closed to the host
 * but while the device works. */
#ifndef TERN_TESTS_CUDA_MEMORY_H
#define TERN_TESTS_CUDA_MEMORY_H

#include <cstddef>

/* The clock of the device that this thread drives, which is no real one: a block of threads takes a
 * microsecond, a byte that is copied and an operation of a product a nanosecond, a convolution what its
 * engine says. */
extern thread_local double emulated_ms;

/* Does this thread capture a stream? */
extern thread_local bool emulated_captures;

void emulated_memory_open();
void emulated_memory_close();
/* Is it the device's? */
bool emulated_memory_has(const void *data);
/* Has the driver given it out as one? */
bool emulated_memory_is_one(const void *data, size_t bytes);
/* May the GPU whose memory `to` is read `from`? */
bool emulated_memory_joined(const void *to, const void *from);
/* What nobody has of a device's. */
size_t emulated_memory_left(int index);

#define EMULATED_MEMORY ((size_t)2 << 30) /* of a device */

#endif
