/* banner.h - what a run says before its first step. */
#ifndef TERN_EXAMPLES_BANNER_H
#define TERN_EXAMPLES_BANNER_H

#include "trainer.h"

/* Prints model, data, ranks, batch, rate, precision and folder. */
void banner_print(const trainer *t, int64_t steps_per_epoch);

#endif
