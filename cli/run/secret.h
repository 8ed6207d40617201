/* secret.h - the secret that a user gives to the launchers of all hosts: 64 hex digits. */
#ifndef TERN_CLI_RUN_SECRET_H
#define TERN_CLI_RUN_SECRET_H

#include "comm/bootstrap/bootstrap.h"

/* From a file that only its owner may read. E_INVALID, E_SYSTEM; no error shows what is in it. */
int tern__secret_read(const char *path, uint8_t key[TERN__SECRET_BYTES], tern_error *err);
/* Takes TERN_SECRET out of the environment; *found = whether it was there. E_ENV. */
int tern__secret_take(uint8_t key[TERN__SECRET_BYTES], bool *found, tern_error *err);

#endif
