/* choice.h - chooses the algorithm for a case of a convolution: the fastest that the device's rules allow
 * (tern_device_conv_opts), measured at the case's first use on this machine; or what another rank has
 * chosen, if the device follows one; or a fixed table's, if results must not depend on timing. */
#ifndef TERN_SRC_KERNELS_CPU_CHOICE_H
#define TERN_SRC_KERNELS_CPU_CHOICE_H

#include "kernels/cpu/conv/conv.h"

extern const tern__conv_algorithm *const tern__conv_algorithms[]; /* ends with NULL */

#define TERN__CONV_CASE 1024 /* 33 numbers of at most 20 digits, and names */

/* Writes the name under which the device's choices keep the case (device/choices.h). */
void tern__conv_case(const tern__conv *c, char text[TERN__CONV_CASE]);

/* E_UNSUPPORTED, without an error set: no algorithm takes the case and pays. */
int tern__conv_choose(const tern__conv *c, const tern__conv_algorithm **chosen);

#endif
