/* secret.h - reads from a file the secret that authenticates the launchers of a job to each other. */
#ifndef TERN_CLI_RUN_SECRET_H
#define TERN_CLI_RUN_SECRET_H

#include "comm/bootstrap/bootstrap.h"

/* Reads it from a file that only its owner may access. E_INVALID, E_SYSTEM; no message shows the content. */
int tern__secret_read(const char *path, uint8_t key[TERN__SECRET_BYTES], tern_error *err);

#endif
