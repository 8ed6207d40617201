/* terminal.h - who reads the terminal: rank 0, as the terminal's foreground process group, or the shell's
 * job. */
#ifndef TERN_CLI_RUN_TERMINAL_H
#define TERN_CLI_RUN_TERMINAL_H

#include "base/base.h"

#include <sys/types.h>

typedef struct tern__terminal {
    int fd;        /* the controlling terminal; -1: there is none       */
    bool is_given; /* rank 0's group reads it, or will after the next fg */
    bool is_asked; /* rank 0 has stopped because it wants to read it    */
    pid_t group;   /* rank 0's; 0: it is gone, or on another host       */
    pid_t watcher; /* tells tern run of the keys; 0: there is none      */
} tern__terminal;

void tern__terminal_open(tern__terminal *terminal);
void tern__terminal_close(tern__terminal *terminal);

/* In rank 0, before it runs the program: takes the terminal if tern run has it and stdin is one. It does not
 * if stdout is a pipe, whose reader may be a pager, which reads the terminal too. */
void tern__terminal_enter(const tern__terminal *terminal, pid_t launcher);
/* Rank 0, which leads the group `leader`, has been forked; it has ended. */
void tern__terminal_begin(tern__terminal *terminal, pid_t leader);
void tern__terminal_end(tern__terminal *terminal);

/* Call it after SIGCHLD. Is rank 0 stopped because it wants the terminal? Then it gets it if tern run has it,
 * and false is returned; true: tern run is in the background. */
bool tern__terminal_lacks(tern__terminal *terminal);
/* Gives rank 0 the terminal if it should have it and tern run has it: after fg. */
void tern__terminal_give(tern__terminal *terminal);

#endif
