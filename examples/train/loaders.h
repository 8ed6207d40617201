/* loaders.h - the samples of a training: of epochs, of evaluations, and of the statistics of batch norms. */
#ifndef TERN_EXAMPLES_LOADERS_H
#define TERN_EXAMPLES_LOADERS_H

#include "trainer.h"

/* Opens the task's data sets in the order of --seed, each rank's share: t->train, t->test if there is a test,
 * and t->update with --update-bn. */
void loaders_open(trainer *t, tern_error *err);
void loaders_close(trainer *t);

#endif
