/* flags.h - what a training program is told on its command line. What all programs have is `flags`; what one
 * has beside it are rows of a table of its own. */
#ifndef TERN_EXAMPLES_FLAGS_H
#define TERN_EXAMPLES_FLAGS_H

#include <tern.h>

#define FLAGS_DIR 512 /* bytes of --log-dir, with the 0 at its end */

typedef enum flag_kind {
    FLAG_COUNT,  /* int64_t *: a whole number in [low, high]              */
    FLAG_NUMBER, /* double *: a number in [low, high]                     */
    FLAG_TEXT,   /* const char **                                         */
    FLAG_CHOICE, /* int *: the place among the words of `wants`, "O0|O1"  */
    FLAG_LIST,   /* flag_list *: rising whole numbers, "25,50,75"         */
    FLAG_SWITCH, /* bool *: becomes true, or with =off false               */
} flag_kind;

typedef struct flag_list {
    int64_t items[16];
    int count;
} flag_list;

typedef struct flag {
    const char *name; /* without the dashes; NULL ends a table                          */
    int letter;       /* -j; 0: none                                                    */
    flag_kind kind;
    void *value;       /* what it holds before is the default                           */
    const char *wants; /* in --help: "N", "FILE"; the words of a choice                  */
    const char *help;
    double low, high;
} flag;

typedef struct flags {
    const char *program, *about; /* its name, and a sentence for --help                  */
    int64_t workers;             /* threads of the loader, a rank                         */
    int64_t batch;               /* samples a rank and step                               */
    int64_t epochs, start_epoch;
    double lr, momentum, weight_decay;
    bool lr_given;        /* --lr was on the command line                               */
    double warm_up;       /* epochs in which the rate rises to lr                        */
    flag_list milestones; /* epochs from which on the rate is gamma times as large        */
    double gamma;
    int opt_level, half;    /* places among O0|O1|O2|O3 and bf16|f16                         */
    bool sync_bn, skip_bad; /* skip_bad: samples that cannot be read are left out, else they end the run */
    const char *backend;    /* NULL: what fits, or TERN_BACKEND                             */
    const char *device;     /* NULL: TERN_DEVICE, or the CPU                            */
    int64_t threads;        /* of kernels, a rank; 0: as the device decides                      */
    bool exact_conv, deterministic; /* tern_device_conv_opts                                     */
    const char *data, *resume, *log_dir;
    int64_t seed;
} flags;

/* Defaults of a classifier; a program changes what it wants before it reads. */
flags flags_defaults(const char *program, const char *about);

/* Reads the command line into `f` and into what the rows of `own` point at (NULL: no rows). --help and wrong
 * input end the program, with exit code 0 and 2, after rank 0 has said what there is to say. */
void flags_read(flags *f, const flag *own, int argc, char **argv);

/* Ends the program as flags_read does, for what only the program can tell to be wrong. */
_Noreturn void flags_wrong(const flags *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
