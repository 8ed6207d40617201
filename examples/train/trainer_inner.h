/* trainer_inner.h - what the loop (trainer.c) and its opening (trainer_open.c) have in common. */
#ifndef TERN_EXAMPLES_TRAINER_INNER_H
#define TERN_EXAMPLES_TRAINER_INNER_H

#include "trainer.h"

/* Prints on rank 0. */
void trainer_print(const trainer *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens what the task and the flags ask for, and resumes. */
void trainer_open_all(trainer *t, tern_error *err);
void trainer_close_all(trainer *t);

/* Batches that do not fill a step are left out. */
int64_t trainer_steps_per_epoch(const trainer *t);
void trainer_schedules_step(trainer *t);

#endif
