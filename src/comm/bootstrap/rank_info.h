/* rank_info.h - what a rank publishes about itself in the store: its process, its host, its cores and its
 * back end. */
#ifndef TERN_SRC_COMM_BOOTSTRAP_RANK_INFO_H
#define TERN_SRC_COMM_BOOTSTRAP_RANK_INFO_H

#include "comm/bootstrap/bootstrap.h"
#include "comm/store/store.h"
#include "comm/sys.h"

#include <sched.h>

#define TERN__HOST_BYTES     64
#define TERN__HOST_KEY_BYTES 160

/* What a rank publishes about itself in the store, under "control/RANK". */
typedef struct tern__rank_info {
    int32_t world, pid;
    uint64_t pid_space; /* inode of `pid`'s pid namespace */
    char host[TERN__HOST_BYTES];
    char host_key[TERN__HOST_KEY_BYTES]; /* equal on ranks whose Unix sockets can reach each other */
    tern__comm_choice choice;
    cpu_set_t cores;                   /* the cores that it may use */
    uint8_t epoch[TERN__SECRET_BYTES]; /* random; rank 0's identifies this meeting */
    uint32_t name_bytes;
    char name[32]; /* of its abstract socket, without the leading zero byte */
} tern__rank_info;

/* Makes this rank's info, except for the name of its socket, which the caller adds. */
int tern__rank_info_make(tern__rank_info *info, const tern__bootstrap *boot, tern_error *err);
/* Sets key `name`RANK to the info. */
int tern__rank_info_publish(const tern__rank_info *info, const char *name, int rank, tern_store *store,
                            tern_error *err);
/* Reads an info that somebody has stored; false if it is malformed. */
bool tern__rank_info_read(tern__rank_info *info, const void *data, size_t bytes);
/* Waits for `rank`'s info. */
int tern__rank_info_get(tern__rank_info *info, const char *name, int rank, tern_store *store,
                        double timeout_s, tern_error *err);
/* True if both ranks run on one machine, whatever TERN_HOST_ID says. */
bool tern__rank_info_is_same_machine(const tern__rank_info *one, const tern__rank_info *other);
bool tern__rank_info_is_same_process(const tern__rank_info *one, const tern__rank_info *other);
/* True if the info's process has ended, as far as the process with the info `own` can see. */
bool tern__rank_info_is_gone(const tern__rank_info *info, const tern__rank_info *own);
/* "rank 1 (host, pid 77)". */
void tern__rank_info_describe(const tern__rank_info *info, int rank, char *text, size_t size);

#endif
