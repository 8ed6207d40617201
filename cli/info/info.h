/* info.h - the parts of `tern info`. */
#ifndef TERN_CLI_INFO_INFO_H
#define TERN_CLI_INFO_INFO_H

#include "cli.h"

/* Prints a row: its name and its value. */
void tern__info_row(const char *name, const char *value);

/* ---- devices.c ---- */

/* Prints the names of all devices and a row for each GPU, or the reason why there is none. */
void tern__info_devices(void);

/* ---- plugins.c ---- */

/* Prints the communication back ends that TERN_BACKEND may name on this machine. */
void tern__info_back_ends(void);
/* Prints a row for each plug-in: what it is, or why it cannot be loaded. */
void tern__info_plugins(void);

#endif
