/* info.h - the parts of `tern info`. */
#ifndef TERN_CLI_INFO_H
#define TERN_CLI_INFO_H

#include "cli.h"

void tern__info_row(const char *name, const char *value);

/* ---- info_plugins.c ---- */

void tern__info_back_ends(void);
/* A row for each: what it is, or why it cannot be loaded. */
void tern__info_plugins(void);

#endif
