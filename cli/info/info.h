/* info.h - the parts of `tern info`. */
#ifndef TERN_CLI_INFO_INFO_H
#define TERN_CLI_INFO_INFO_H

#include "cli.h"

/* A row is its name and its value. It is printed at once, or as JSON with all others at the end. */
void tern__info_begin(bool as_json);
void tern__info_row(const char *name, const char *value);
void tern__info_end(void);

/* ---- devices.c ---- */

/* Prints the names of all devices and a row for each GPU, or the reason why there is none. */
void tern__info_devices(void);

/* ---- plugins.c ---- */

/* Prints the communication back ends that TERN_BACKEND may name on this machine. */
void tern__info_back_ends(void);
/* Prints a row for each plug-in: what it is, or why it cannot be loaded. */
void tern__info_plugins(void);

#endif
