/* info.h - the parts of `tern info`. */
#ifndef TERN_CLI_INFO_INFO_H
#define TERN_CLI_INFO_INFO_H

#include "cli.h"

void tern__info_row(const char *name, const char *value);

/* ---- devices.c ---- */

/* Their names, and a row for each of the CUDA plug-in's, or why there are none. */
void tern__info_devices(void);

/* ---- plugins.c ---- */

void tern__info_back_ends(void);
/* A row for each: what it is, or why it cannot be loaded. */
void tern__info_plugins(void);

#endif
