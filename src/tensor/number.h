/* number.h - numbers (f64) that stay in a device's memory, because reading one would wait for the device.
 *
 * A number is known by its address, which tells which memory it is in. The host reads numbers in its own
 * memory. It passes a number in a device's memory to the next kernel as an operand. */
#ifndef TERN_SRC_TENSOR_NUMBER_H
#define TERN_SRC_TENSOR_NUMBER_H

#include "tensor/view.h"

/* Returns true if the number is in a device's own memory. */
bool tern__number_is_on_device(const void *at);
/* Return a view of one number, f64 (), and of `count` consecutive ones, f64 (count). */
tern__view tern__number_view(const double *at);
tern__view tern__numbers_view(const double *at, int64_t count);
/* Returns `view`, set to the operand of a number in a device's memory; NULL for any other number and for
 * NULL. */
const tern__view *tern__number_operand(const double *at, tern__view *view);
/* Moves numbers from the host's to the device's memory, if the device has its own, and updates *numbers. */
int tern__numbers_follow(void **numbers, size_t bytes, tern_device *device, const char *func,
                         tern_error *err);

#endif
