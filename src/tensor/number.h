/* number.h - numbers (f64) that stay in a device's memory, because to look at one is to wait for the device.
 *
 * A number is known by its address, which tells whose memory it is in. The host looks at what is in its own;
 * what is away it hands to the next kernel as an operand. */
#ifndef TERN_SRC_TENSOR_NUMBER_H
#define TERN_SRC_TENSOR_NUMBER_H

#include "tensor/view.h"

/* In a device's own memory. */
bool tern__number_is_away(const void *at);
/* The operand f64 (), and `count` of them, one after the other. */
tern__view tern__number_view(const double *at);
tern__view tern__numbers_view(const double *at, int64_t count);
/* `view` becomes the operand of a number that is away; NULL for another one, and for NULL. */
const tern__view *tern__number_operand(const double *at, tern__view *view);
/* Brings those of the host into the device's memory, if it has any: *numbers is where they are then. */
int tern__numbers_follow(void **numbers, size_t bytes, tern_device *device, const char *func,
                         tern_error *err);

#endif
