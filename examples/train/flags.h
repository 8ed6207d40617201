/* flags.h - the command line of a training program. `flags` holds the options of all programs; a program adds
 * its own as rows of a table. */
#ifndef TERN_EXAMPLES_FLAGS_H
#define TERN_EXAMPLES_FLAGS_H

#include <tern.h>

#define FLAGS_DIR 512 /* bytes of --log-dir, including the terminating 0 */

typedef enum flag_kind {
    FLAG_COUNT,  /* int64_t *: a whole number in [low, high]              */
    FLAG_NUMBER, /* double *: a number in [low, high]                     */
    FLAG_TEXT,   /* const char **                                         */
    FLAG_CHOICE, /* int *: the index of a word of `wants`, "O0|O1"         */
    FLAG_LIST,   /* flag_list *: increasing whole numbers, "25,50,75"     */
    FLAG_SWITCH, /* bool *: becomes true, or false with =off               */
} flag_kind;

typedef struct flag_list {
    int64_t items[16];
    int count;
} flag_list;

typedef struct flag {
    const char *name; /* without the dashes; NULL ends a table                          */
    int letter;       /* -j; 0: none                                                    */
    flag_kind kind;
    void *value;       /* its initial content is the default                            */
    const char *wants; /* "N" or "FILE" in --help; the words of a choice                 */
    const char *help;
    double low, high;
} flag;

#define FLAGS_MAX 64 /* of a program */

#define FLAGS_SCHEDULES "milestones|cosine"
enum { FLAGS_MILESTONES, FLAGS_COSINE };

typedef struct flags {
    const char *program, *about; /* the program's name, and a sentence for --help        */
    int64_t workers;             /* loader threads per rank                               */
    int64_t batch;               /* samples per rank and batch                            */
    int64_t accumulate;          /* batches whose gradients are added for a step          */
    int64_t microbatches;        /* batches of a step over all ranks; 0: ranks x accumulate */
    int64_t epochs, start_epoch;
    int64_t save_every, evaluate_every, max_steps; /* steps; 0: only after epochs, and no limit */
    double lr, momentum, weight_decay;
    double clip;          /* the largest norm of the gradients; 0: any                  */
    double warm_up;       /* epochs during which the rate rises to lr                    */
    int schedule;         /* index into FLAGS_SCHEDULES                                  */
    flag_list milestones; /* epochs after which the rate is multiplied by gamma          */
    double gamma;
    double min_lr;          /* to which a cosine falls                                    */
    bool shard;             /* each rank has a slice of the optimizer's state             */
    int opt_level, half;    /* indices into O0|O1|O2|O3 and bf16|f16                         */
    bool sync_bn, skip_bad; /* skip_bad: skip unreadable samples instead of failing */
    int64_t
        update_bn; /* batches from which an evaluation's batch norm statistics are; 0: of all steps so far */
    const char *backend;            /* NULL: TERN_BACKEND, or chosen automatically                  */
    const char *device;             /* NULL: TERN_DEVICE, or the CPU                            */
    int64_t threads;                /* kernel threads per rank; 0: the device decides                    */
    bool exact_conv, deterministic; /* as in tern_device_conv_opts                               */
    const char *data, *resume, *log_dir;
    int64_t seed;
    flag rows[FLAGS_MAX];  /* all flags of the program, filled in by flags_read */
    bool given[FLAGS_MAX]; /* the row's flag was on the command line            */
    int count;
} flags;

/* Returns the defaults of a classifier; a program may change them before it calls flags_read. */
flags flags_defaults(const char *program, const char *about);

/* Reads the command line into `f` and into the values of the rows of `own` (NULL: none). After --help or
 * wrong input, rank 0 prints the help or the error and the program exits with code 0 or 2. */
void flags_read(flags *f, const flag *own, int argc, char **argv);

/* Was a flag on the command line? */
bool flags_given(const flags *f, const char *name);

/* Writes the value of a flag as it would be given: "0.05", "O1", "5,8", "on"; "" if it has none. */
void flags_text(const flag *row, char *text, size_t size);

/* May the flag differ when a run resumes? So it is with those that choose where and for how long it computes,
 * not what. */
bool flags_may_change(const flag *row);

/* Exits with an error message as flags_read does, for input that only the program can check. */
_Noreturn void flags_wrong(const flags *f, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes `text` as the "message" of the file that TORCHELASTIC_ERROR_FILE names, if it is set. If all ranks
 * fail alike, only one prints the error, but another may be the first to exit: so every rank writes the file.
 */
void error_file_write(const char *text);

#endif
