/* run_options.c - the table of `tern run`'s options and the functions that parse their values. */
#include "run/run_options.h"

#include "run/options.h"
#include "run/secret.h"

#include "device/device.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static int take_int(const char *text, long low, long high, int *out, tern_error *err)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected a whole number from %ld to %ld, got \"%s\"", low, high, text);
    *out = (int)value;
    return TERN_OK;
}

static int take_seconds(const char *text, double *out, tern_error *err)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= 1e6))
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected seconds above 0, got \"%s\"", text);
    *out = value;
    return TERN_OK;
}

/* Counts the devices that the driver shows (/dev/nvidia0, /dev/nvidia1, ..), limited by CUDA_VISIBLE_DEVICES.
 */
static int count_gpus(void)
{
    char path[32];
    int count = 0, named = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (FILE *file; count < 64; fclose(file), count++) {
        snprintf(path, sizeof(path), "/dev/nvidia%d", count);
        if (!(file = fopen(path, "re"))) break;
    }
    if (!visible) return count;
    for (const char *at = visible; *at && strncmp(at, "-1", 2); named++) {
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return TERN__MIN(named, count);
}

static int take_gpus(int *ranks, tern_error *err)
{
    *ranks = count_gpus();
    if (*ranks) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                           "\"gpu\" starts one rank per GPU, but this machine has none (/dev/nvidia0, "
                           "CUDA_VISIBLE_DEVICES): give a number or \"cpu\"");
}

static int take_ranks(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    int *ranks = &job->launch.ranks;
    if (!strcmp(text, "gpu")) return take_gpus(ranks, err);
    if (strcmp(text, "auto") && strcmp(text, "cpu")) return take_int(text, 1, TERN__LAUNCH_RANKS, ranks, err);
    *ranks = tern__device_cores();
    return TERN_OK;
}

static int take_nodes(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    const char *colon = strchr(text, ':');
    if (!colon) return take_int(text, 1, TERN__LAUNCH_RANKS, &job->launch.nodes, err);
    if (strlen(colon + 1) == (size_t)(colon - text) && !strncmp(text, colon + 1, (size_t)(colon - text)))
        return take_int(colon + 1, 1, TERN__LAUNCH_RANKS, &job->launch.nodes, err);
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                           "\"%s\": the number of hosts cannot change during a job: give one number", text);
}

static int take_node(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_int(text, 0, TERN__LAUNCH_RANKS - 1, &job->launch.node, err);
}

static int take_text(const char *text, const char **out, tern_error *err)
{
    *out = text;
    if (*text) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a value, got an empty one");
}

/* Removes the brackets of [::1], which torchrun accepts but getaddrinfo does not. */
static int take_addr(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    static char bare[256];
    size_t length = strlen(text);
    job->launch.addr = text;
    if (length > 2 && length < sizeof(bare) && text[0] == '[' && text[length - 1] == ']') {
        memcpy(bare, text + 1, length - 2);
        job->launch.addr = bare;
    }
    return take_text(job->launch.addr, &job->launch.addr, err);
}

static int take_port(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_int(text, 0, 65535, &job->launch.port, err);
}

static int take_endpoint(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    static char host[256];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (!length || length >= sizeof(host))
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected HOST or HOST:PORT, got \"%s\"", text);
    memcpy(host, text, length);
    int status = take_addr(host, job, err);
    return status || !colon ? status : take_port(colon + 1, job, err);
}

/* Accepts one of the values that torchrun knows and that change nothing here; NULL ends the list. */
static int take_known(const char *text, const char *const *known, const char *expected, tern_error *err)
{
    for (; *known; known++)
        if (!strcmp(text, *known)) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "\"%s\": %s", text, expected);
}

/* The meeting is the same for both. */
static int take_rdzv_backend(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    static const char *const known[] = {"static", "c10d", NULL};
    job->meeting.is_c10d = !strcmp(text, "c10d");
    return take_known(text, known,
                      "expected static or c10d: --node-rank numbers the hosts, and they meet at node 0", err);
}

static int take_start_method(const char *text, void *to, tern_error *err)
{
    static const char *const known[] = {"spawn", "fork", "forkserver", NULL};
    (void)to;
    return take_known(text, known, "expected spawn, fork or forkserver", err);
}

static int take_event_handler(const char *text, void *to, tern_error *err)
{
    static const char *const known[] = {"null", NULL};
    (void)to;
    return take_known(text, known, "expected null: there are no event logs; events are reported on stderr",
                      err);
}

static int take_logs_specs(const char *text, void *to, tern_error *err)
{
    static const char *const known[] = {"default", NULL};
    (void)to;
    return take_known(text, known, "expected default: any other name is a Python class's", err);
}

static int take_run_id(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    if (strchr(text, '/') || strlen(text) > 127)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected at most 127 bytes without a slash, got \"%s\"", text);
    return take_text(text, &job->launch.run_id, err);
}

static int take_role(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    if (strlen(text) > 31)
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected at most 31 bytes, got \"%s\"", text);
    return take_text(text, &job->launch.role, err);
}

/* The last ones belong to torchrun's stores and its elastic rendezvous, of which there is neither here. */
static int take_conf_pair(const char *name, const char *value, tern__job *job, tern_error *err)
{
    static const char *const ignored[] = {
        "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout",
        "is_host",           "store_type",    "use_libuv",         NULL};
    tern__rendezvous *meeting = &job->meeting;
    if (!strcmp(name, "timeout") || !strcmp(name, "join_timeout"))
        return take_seconds(value, &meeting->timeout_s, err);
    if (!strcmp(name, "keep_alive_interval")) return take_int(value, 1, 3600, &meeting->keep_alive_s, err);
    if (!strcmp(name, "keep_alive_max_attempt"))
        return take_int(value, 1, 100, &meeting->keep_alive_max, err);
    return take_known(
        name, ignored,
        "not one of timeout, join_timeout, keep_alive_interval, keep_alive_max_attempt, or "
        "torchrun's last_call_timeout, close_timeout, heartbeat_timeout, read_timeout, is_host, "
        "store_type and use_libuv, which change nothing",
        err);
}

static int take_conf(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    char all[512], *rest = all;
    snprintf(all, sizeof(all), "%s", text);
    for (char *pair; (pair = strsep(&rest, ","));) {
        char *value = strchr(pair, '=');
        if (!*pair) continue;
        if (!value || strlen(text) >= sizeof(all))
            return tern__error_set(err, __func__, TERN_E_INVALID, "expected NAME=VALUE,.., got \"%s\"", text);
        *value++ = '\0';
        int status = take_conf_pair(pair, value, job, err);
        if (status) return status;
    }
    return TERN_OK;
}

static int take_local_addr(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_text(text, &job->launch.at_addr, err);
}

static int take_restarts(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_int(text, 0, 1000000, &job->launch.max_restarts, err);
}

static int take_grace(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_seconds(text, &job->grace, err);
}

static int take_interval(const char *text, void *to, tern_error *err)
{
    (void)to;
    double seconds;
    return take_seconds(text, &seconds, err);
}

static int take_dir(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_text(text, &job->logs.dir, err);
}

static int take_streams(const char *text, const char **out, tern_error *err)
{
    *out = text;
    if (tern__streams_of(text, 0) >= 0) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID,
                           "expected 0 (nothing), 1 (stdout), 2 (stderr), 3 (both) or a list as 0:3,1:1, "
                           "got \"%s\"",
                           text);
}

static int take_redirects(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_streams(text, &job->logs.redirects, err);
}

static int take_tee(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    return take_streams(text, &job->logs.tee, err);
}

static int take_shown(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    job->logs.shown = text;
    if (tern__list_holds(text, 0) >= 0) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected local ranks as 0,2, got \"%s\"", text);
}

static int take_prefix(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    (void)err;
    job->logs.prefix = *text ? text : NULL;
    return TERN_OK;
}

static int take_bind(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    static const char *const names[] = {"none", "core", "auto"};
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        job->bind = (tern__bind)i;
        if (!strcmp(text, names[i])) return TERN_OK;
    }
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected none, core or auto, got \"%s\"", text);
}

static int take_secret_file(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    job->meeting.has_key = true;
    return tern__secret_read(text, job->launch.key, err);
}

static int take_pass(const char *text, void *to, tern_error *err)
{
    tern__job *job = to;
    (void)text;
    (void)err;
    job->passes_local_rank = true;
    return TERN_OK;
}

/* Accepts an option that changes nothing. */
static int take_nothing(const char *text, void *to, tern_error *err)
{
    (void)text;
    (void)to;
    (void)err;
    return TERN_OK;
}

/* ---- the table ---- */

static const tern__cli_option options[] = {
    {.help = "Ranks and hosts"},
    {"nproc-per-node", 'n', "N", .take = take_ranks,
     .help = "ranks on this host (default 1), as mpirun's -np; auto or cpu: one per usable core; gpu: one "
             "per GPU"},
    {"nnodes", 0, "N", .take = take_nodes,
     .help = "hosts (default 1). Start the same command on each, with its own --node-rank; hosts may have "
             "different "
             "numbers of ranks"},
    {"node-rank", 0, "R", .take = take_node, .help = "this host's number, from 0"},
    {"master-addr", 0, "ADDR", .take = take_addr,
     .help = "address of host 0 (default 127.0.0.1), which listens only there; if host 0 resolves this name "
             "to its "
             "loopback address, it listens on all addresses"},
    {"master-port", 0, "PORT", .take = take_port,
     .help = "port at which the hosts meet (default 29500), later free for the program; on one host the "
             "default is a "
             "free port"},
    {"rdzv-endpoint", 0, "ADDR[:PORT]", .take = take_endpoint,
     .help = "--master-addr and --master-port in one"},
    {"local-addr", 0, "ADDR", .take = take_local_addr,
     .help = "on host 0: the address to listen on if it is not --master-addr (NAT); also MASTER_ADDR of its "
             "ranks"},
    {"secret-file", 0, "PATH", .take = take_secret_file,
     .help = "a file of 64 hex digits, the same on all hosts, readable only by its owner; or set TERN_SECRET "
             "in the "
             "environment. Without a secret, a job of several hosts is not authenticated"},
    {"rdzv-conf", 0, "NAME=VALUE,..", .take = take_conf,
     .help =
         "timeout: seconds for all hosts to join (900); keep_alive_interval (5) times keep_alive_max_attempt "
         "(3): seconds of silence after which a host is lost"},
    {"rdzv-id", 0, "ID", .take = take_run_id,
     .help = "TORCHELASTIC_RUN_ID; must be the same on all hosts (default none)"},
    {"run-id", 0, "ID", .take = take_run_id, .help = "same as --rdzv-id"},
    {"role", 0, "NAME", .take = take_role, .help = "ROLE_NAME (default default)"},

    {.help = "Failures"},
    {"max-restarts", 0, "N", .take = take_restarts,
     .help =
         "restart all ranks of all hosts up to N times after a failure (default 0); host 0's value counts"},
    {"grace", 0, "SECONDS", .take = take_grace,
     .help = "time from SIGTERM, or a signal that is passed on, to SIGKILL (default 5 after a rank has "
             "failed, 30 "
             "after a signal to tern run)"},
    {"shutdown-timeout", 0, "SECONDS", .take = take_grace, .help = "same as --grace"},

    {.help = "Output"},
    {"log-dir", 0, "DIR", .take = take_dir,
     .help = "save output under DIR/ID_xxxxxx/attempt_K/LOCAL_RANK: stdout.log, stderr.log, error.json"},
    {"redirects", 'r', "STREAMS", .take = take_redirects,
     .help = "save, but do not show: 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1"},
    {"tee", 't', "STREAMS", .take = take_tee,
     .help = "save and show, with [ROLE LOCAL_RANK]: before each line"},
    {"local-ranks-filter", 0, "LIST", .take = take_shown,
     .help = "local ranks to show, as in 0,2; does not change what is saved"},
    {"log-line-prefix-template", 0, "TEXT", .take = take_prefix,
     .help = "text before each line, with ${role_name}, ${local_rank}, ${rank}, ${hostname}; or set "
             "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},

    {.help = "The program"},
    {"bind", 0, "none|core|auto", .take = take_bind,
     .help =
         "core: bind each rank to its own share of the cores, for a machine that runs only this job; auto: "
         "do so "
         "if there are several ranks, at least one core for each, and no other limit (taskset, a container, "
         "OMP_PLACES, OMP_PROC_BIND). Default none"},
    {"pass-local-rank", 0, NULL, .take = take_pass,
     .help = "give the program --local-rank=N as its first argument"},

    {.help = "Accepted for compatibility with torchrun"},
    {"standalone", 0, NULL, .take = take_nothing, .help = "one host (the default)"},
    {"no-python", 0, NULL, .take = take_nothing, .help = "PROGRAM is never run as a Python script"},
    {"use-env", 0, NULL, .take = take_nothing, .help = "do not pass --local-rank (the default)"},
    {"rdzv-backend", 0, "static|c10d", .take = take_rdzv_backend,
     .help = "no effect: the hosts meet at host 0 in the same way. Unlike torchrun's, c10d numbers hosts by "
             "--node-rank, and their number is fixed"},
    {"monitor-interval", 0, "SECONDS", .take = take_interval, .help = "no effect: deaths are seen at once"},
    {"start-method", 0, "spawn|fork|forkserver", .take = take_start_method,
     .help = "no effect: a program is started with exec"},
    {"event-log-handler", 0, "null", .take = take_event_handler,
     .help = "no effect: there are no event logs"},
    {"logs-specs", 0, "default", .take = take_logs_specs,
     .help = "no effect: the options above say what is logged"},
    {"module", 'm', NULL, .is_refused = true,
     .help = "a program is never run as a Python module: use tern run .. python3 -m MODULE"},
    {"run-path", 0, NULL, .is_refused = true,
     .help = "a program is never run as a Python script: use tern run .. python3 SCRIPT"},
    {"duplicate-stdout-filters", 0, "LIST", .is_refused = true, .help = "use --tee and grep"},
    {"duplicate-stderr-filters", 0, "LIST", .is_refused = true, .help = "use --tee and grep"},
    {"numa-binding", 0, "MODE", .is_refused = true, .help = "use --bind core"},
    {"signals-to-handle", 0, "LIST", .is_refused = true,
     .help =
         "SIGHUP, SIGINT, SIGQUIT and SIGTERM end the job; SIGUSR1 and SIGUSR2 are passed on to the ranks"},
    {"virtual-local-rank", 0, NULL, .is_refused = true,
     .help = "it sets CUDA_VISIBLE_DEVICES, which the program may do itself"},
    TERN__OPTION_HELP,
    {0},
};

const tern__cli_page tern__run_page = {
    "PROGRAM [ARGUMENTS]",
    "Starts PROGRAM as N ranks on this host, or on each of several hosts. Rank 0 uses this terminal; lines "
    "of "
    "the other ranks start with \"[RANK] \". If a rank fails, tern run reports it, ends the other ranks and "
    "exits with its exit code (128 + signal). Processes that a rank leaves behind are killed only after a "
    "failure. SIGUSR1 and SIGUSR2, which batch systems send as a warning, are passed on to the ranks and do "
    "not "
    "end the job.\n"
    "\n"
    "    tern run -n 4 ./train                         one host\n"
    "    tern run -n 4 python3 train.py                a Python program\n"
    "    tern run -n 8 --nnodes 2 --node-rank 0 --master-addr node0 ./train\n"
    "    tern run -n 8 --nnodes 2 --node-rank 1 --master-addr node0 ./train\n"
    "                                                  on node0 and on the other\n"
    "\n"
    "Option names may be written with - or _. Options that are not given are read from the environment, for "
    "example PET_NPROC_PER_NODE=4. Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT ..), and OMP_NUM_THREADS = cores / N unless it is set; ${local_rank} in its "
    "arguments is replaced by its local rank.\n",
    options,
};

/* ---- checks across options ---- */

#define DEFAULT_PORT 29500 /* torchrun's */

static int check_nodes(tern__launch *launch, bool is_standalone, bool lacks_number, tern_error *err)
{
    if (launch->nodes > 1 && lacks_number)
        return tern__error_set(
            err, __func__, TERN_E_INVALID,
            "--rdzv-backend c10d: hosts are not numbered by their arrival here: give each its "
            "--node-rank, 0 to %d; they meet at host 0",
            launch->nodes - 1);
    if (launch->nodes > 1 && is_standalone)
        return tern__error_set(err, __func__, TERN_E_INVALID, "--standalone is for one host, got --nnodes %d",
                               launch->nodes);
    if (launch->node >= launch->nodes)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "--node-rank %d: expected 0 to %d with --nnodes %d", launch->node,
                               launch->nodes - 1, launch->nodes);
    if (launch->nodes > 1 && launch->port == 0)
        return tern__error_set(
            err, __func__, TERN_E_INVALID,
            "--master-port 0: several hosts need a port that all of them know: give the same one on each");
    if (launch->port < 0) launch->port = launch->nodes > 1 ? DEFAULT_PORT : 0;
    return TERN_OK;
}

static int take_all(tern__cli_words *words, tern__job *job, tern_error *err)
{
    int status = tern__secret_take(job->launch.key, &job->meeting.has_key, "tern run", err);
    if (!status) status = tern__words_take(words, job, err);
    bool lacks_number = job->meeting.is_c10d && !tern__words_say(words, "node-rank");
    if (!status) status = check_nodes(&job->launch, tern__words_say(words, "standalone"), lacks_number, err);
    if (!job->logs.prefix) job->logs.prefix = tern__env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    return status;
}

int tern__run_options_read(char **argv, tern__job *job, bool *wants_help, tern_error *err)
{
    tern__cli_words words;
    int status = tern__words_read(&words, options, argv + 1, err);
    *wants_help = !status && tern__words_say(&words, "help");
    if (!status && !*wants_help) status = take_all(&words, job, err);
    if (status || *wants_help) return status;
    job->argv = words.rest;
    if (*job->argv) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a program to run after the options");
}

/* ---- lists of local ranks ---- */

/* Reads a number at *at and moves *at behind it. Returns -1 if there is none. */
static int next_number(const char **at)
{
    char *end;
    if (**at < '0' || **at > '9') return -1;
    long value = strtol(*at, &end, 10);
    *at = end;
    return value > INT_MAX ? -1 : (int)value;
}

int tern__streams_of(const char *text, int local)
{
    if (strlen(text) == 1 && *text >= '0' && *text <= '3') return *text - '0';
    int streams = 0;
    for (const char *at = text;; at++) {
        int rank = next_number(&at);
        if (rank < 0 || *at++ != ':' || *at < '0' || *at > '3') return -1;
        if (rank == local) streams = *at - '0';
        if (!*++at) return streams;
        if (*at != ',') return -1;
    }
}

int tern__list_holds(const char *text, int local)
{
    int holds = !*text;
    for (const char *at = text; *at; at += *at == ',') {
        int rank = next_number(&at);
        if (rank < 0 || (*at && (*at != ',' || !at[1]))) return -1;
        holds |= rank == local;
    }
    return holds;
}
