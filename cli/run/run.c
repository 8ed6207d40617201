/* run.c - `tern run`: starts a program as the ranks of a job, with torchrun's options and environment. Its
 * table of options is here, with the functions that parse their values. */
#include "cli.h"
#include "run/binding.h"
#include "run/options.h"
#include "run/supervise.h"
#include "run/value.h"

#include "base/file.h"
#include "device/device.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORT_MOST 65535

static tern__job job;

/* ---- values ---- */

static int read_int(const char *text, long low, long high, int *out, tern_error *err)
{
    long value;
    if (!tern__number_read(text, low, high, &value))
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected a whole number from %ld to %ld, got \"%s\"", low, high, text);
    *out = (int)value;
    return TERN_OK;
}

static int read_seconds(const char *text, double *out, tern_error *err)
{
    double value;
    if (!tern__real_read(text, &value) || !(value > 0 && value <= 1e6))
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected seconds above 0, got \"%s\"", text);
    *out = value;
    return TERN_OK;
}

static int take_int(const tern__cli_option *option, const char *text, tern_error *err)
{
    return read_int(text, 0, option->most, option->to, err);
}

static int take_seconds(const tern__cli_option *option, const char *text, tern_error *err)
{
    return read_seconds(text, option->to, err);
}

static int take_text(const tern__cli_option *option, const char *text, tern_error *err)
{
    *(const char **)option->to = text;
    if (*text) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a value, got an empty one");
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

static int take_ranks(const tern__cli_option *option, const char *text, tern_error *err)
{
    int *ranks = option->to;
    bool is_gpu = !strcmp(text, "gpu");
    if (!is_gpu && strcmp(text, "auto") && strcmp(text, "cpu"))
        return read_int(text, 1, TERN__LAUNCH_RANKS, ranks, err);
    *ranks = is_gpu ? count_gpus() : tern__device_cores();
    if (*ranks) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                           "\"gpu\" starts one rank per GPU, but this machine has none (/dev/nvidia0, "
                           "CUDA_VISIBLE_DEVICES): give a number or \"cpu\"");
}

/* torchrun's range "2:2" is one number. */
static int take_nodes(const tern__cli_option *option, const char *text, tern_error *err)
{
    const char *colon = strchr(text, ':');
    if (!colon) return read_int(text, 1, TERN__LAUNCH_RANKS, option->to, err);
    if (strlen(colon + 1) == (size_t)(colon - text) && !strncmp(text, colon + 1, (size_t)(colon - text)))
        return read_int(colon + 1, 1, TERN__LAUNCH_RANKS, option->to, err);
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                           "\"%s\": the number of hosts cannot change during a job: give one number", text);
}

/* Removes the brackets of [::1], which torchrun accepts but getaddrinfo does not. */
static int take_addr(const tern__cli_option *option, const char *text, tern_error *err)
{
    static char bare[256];
    size_t length = strlen(text);
    bool has_brackets = length > 2 && length < sizeof(bare) && text[0] == '[' && text[length - 1] == ']';
    if (has_brackets) snprintf(bare, sizeof(bare), "%.*s", (int)length - 2, text + 1);
    return take_text(option, has_brackets ? bare : text, err);
}

static int take_endpoint(const tern__cli_option *option, const char *text, tern_error *err)
{
    static char host[256];
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (!length || length >= sizeof(host))
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected HOST or HOST:PORT, got \"%s\"", text);
    memcpy(host, text, length);
    int status = take_addr(option, host, err);
    return status || !colon ? status : read_int(colon + 1, 0, PORT_MOST, &job.launch.port, err);
}

/* Takes one of the values that torchrun knows and that change nothing here: the row lists them, and `to` is
 * the message for others. */
static int take_known(const tern__cli_option *option, const char *text, tern_error *err)
{
    char word[32];
    for (const char *rest = option->value; (rest = tern__option_next_word(rest, word));)
        if (!strcmp(text, word)) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED, "\"%s\": %s", text, (const char *)option->to);
}

/* The meeting is the same for both. */
static int take_rdzv_backend(const tern__cli_option *option, const char *text, tern_error *err)
{
    job.meeting.is_c10d = !strcmp(text, "c10d");
    return take_known(option, text, err);
}

static int take_run_id(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (strchr(text, '/') || strlen(text) > 127)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "expected at most 127 bytes without a slash, got \"%s\"", text);
    return take_text(option, text, err);
}

static int take_role(const tern__cli_option *option, const char *text, tern_error *err)
{
    if (strlen(text) > 31)
        return tern__error_set(err, __func__, TERN_E_INVALID, "expected at most 31 bytes, got \"%s\"", text);
    return take_text(option, text, err);
}

/* The last ones belong to torchrun's stores and its elastic rendezvous, of which there is neither here. */
static int read_conf_pair(const char *name, const char *value, tern__rendezvous *meeting, tern_error *err)
{
    static const char *const ignored[] = {"last_call_timeout", "close_timeout", "heartbeat_timeout",
                                          "read_timeout",      "is_host",       "store_type",
                                          "use_libuv"};
    if (!strcmp(name, "timeout") || !strcmp(name, "join_timeout"))
        return read_seconds(value, &meeting->timeout_s, err);
    if (!strcmp(name, "keep_alive_interval")) return read_int(value, 1, 3600, &meeting->keep_alive_s, err);
    if (!strcmp(name, "keep_alive_max_attempt"))
        return read_int(value, 1, 100, &meeting->keep_alive_max, err);
    for (size_t i = 0; i < TERN__COUNT(ignored); i++)
        if (!strcmp(name, ignored[i])) return TERN_OK;
    return tern__error_set(
        err, __func__, TERN_E_UNSUPPORTED,
        "\"%s\": not one of timeout, join_timeout, keep_alive_interval, keep_alive_max_attempt, or "
        "torchrun's last_call_timeout, close_timeout, heartbeat_timeout, read_timeout, is_host, store_type "
        "and use_libuv, which change nothing",
        name);
}

static int take_conf(const tern__cli_option *option, const char *text, tern_error *err)
{
    char all[512], *rest = all;
    snprintf(all, sizeof(all), "%s", text);
    for (char *pair; (pair = strsep(&rest, ","));) {
        char *value = strchr(pair, '=');
        if (!*pair) continue;
        if (!value || strlen(text) >= sizeof(all))
            return tern__error_set(err, __func__, TERN_E_INVALID, "expected NAME=VALUE,.., got \"%s\"", text);
        *value++ = '\0';
        int status = read_conf_pair(pair, value, option->to, err);
        if (status) return status;
    }
    return TERN_OK;
}

static int take_streams(const tern__cli_option *option, const char *text, tern_error *err)
{
    *(const char **)option->to = text;
    if (tern__streams_of(text, 0) >= 0) return TERN_OK;
    return tern__error_set(
        err, __func__, TERN_E_INVALID,
        "expected 0 (nothing), 1 (stdout), 2 (stderr), 3 (both) or a list as 0:3,1:1, got \"%s\"", text);
}

static int take_shown(const tern__cli_option *option, const char *text, tern_error *err)
{
    *(const char **)option->to = text;
    if (tern__list_holds(text, 0) >= 0) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected local ranks as 0,2, got \"%s\"", text);
}

static int take_bind(const tern__cli_option *option, const char *text, tern_error *err)
{
    static const char *const names[] = {"none", "core", "auto"};
    for (size_t i = 0; i < TERN__COUNT(names); i++) {
        *(tern__bind *)option->to = (tern__bind)i;
        if (!strcmp(text, names[i])) return TERN_OK;
    }
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected none, core or auto, got \"%s\"", text);
}

static int check_secret_mode(int fd, const char *path, tern_error *err)
{
    struct stat at;
    if (fstat(fd, &at))
        return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot check the mode of \"%s\"", path);
    if (!(at.st_mode & 077)) return TERN_OK;
    return tern__error_set(
        err, __func__, TERN_E_INVALID,
        "other users can access \"%s\" (mode %03o): a secret must be its owner's only (chmod 600)", path,
        at.st_mode & 0777);
}

/* Reads the secret that authenticates the launchers of a job to each other. No message shows it, and no copy
 * stays in memory. */
static int take_secret_file(const tern__cli_option *option, const char *path, tern_error *err)
{
    char text[2 * TERN__SECRET_BYTES + 16] = "";
    job.meeting.has_key = true;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot open \"%s\"", path);
    int status = check_secret_mode(fd, path, err);
    if (!status && read(fd, text, sizeof(text) - 1) < 0)
        status = tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot read \"%s\"", path);
    close(fd);
    if (status || tern__secret_parse(text, option->to)) return status;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected %d hex digits in \"%s\"",
                           2 * TERN__SECRET_BYTES, path);
}

/* ---- the table ---- */

/* Of options that change nothing. */
static bool ignored;
static double ignored_seconds;

static const tern__cli_option options[] = {
    {.help = "Ranks and hosts"},
    {"nproc-per-node", 'n', "N", .take = take_ranks, .to = &job.launch.ranks,
     .help = "ranks on this host (default 1), as mpirun's -np; auto or cpu: one per usable core; gpu: one "
             "per GPU"},
    {"nnodes", 0, "N", .take = take_nodes, .to = &job.launch.nodes,
     .help = "hosts (default 1). Start the same command on each, with its own --node-rank; hosts may have "
             "different numbers of ranks"},
    {"node-rank", 0, "R", .take = take_int, .to = &job.launch.node, .most = TERN__LAUNCH_RANKS - 1,
     .help = "this host's number, from 0"},
    {"master-addr", 0, "ADDR", .take = take_addr, .to = &job.launch.addr,
     .help = "address of host 0 (default 127.0.0.1), which listens only there; if host 0 resolves this name "
             "to its loopback address, it listens on all addresses"},
    {"master-port", 0, "PORT", .take = take_int, .to = &job.launch.port, .most = PORT_MOST,
     .help = "port at which the hosts meet (default 29500), later free for the program; on one host the "
             "default is a free port"},
    {"rdzv-endpoint", 0, "ADDR[:PORT]", .take = take_endpoint, .to = &job.launch.addr,
     .help = "--master-addr and --master-port in one"},
    {"local-addr", 0, "ADDR", .take = take_text, .to = &job.launch.at_addr,
     .help = "on host 0: the address to listen on if it is not --master-addr (NAT); also MASTER_ADDR of its "
             "ranks"},
    {"secret-file", 0, "PATH", .take = take_secret_file, .to = job.launch.key,
     .help = "a file of 64 hex digits, the same on all hosts, readable only by its owner; or set TERN_SECRET "
             "in the environment. Without a secret, a job of several hosts is not authenticated"},
    {"rdzv-conf", 0, "NAME=VALUE,..", .take = take_conf, .to = &job.meeting,
     .help = "timeout: seconds for all hosts to join (900); keep_alive_interval (5) times "
             "keep_alive_max_attempt (3): seconds of silence after which a host is lost"},
    {"rdzv-id", 0, "ID", .take = take_run_id, .to = &job.launch.run_id,
     .help = "TORCHELASTIC_RUN_ID; must be the same on all hosts (default none)"},
    {"run-id", 0, "ID", .take = take_run_id, .to = &job.launch.run_id, .help = "same as --rdzv-id"},
    {"role", 0, "NAME", .take = take_role, .to = &job.launch.role, .help = "ROLE_NAME (default default)"},

    {.help = "Failures"},
    {"max-restarts", 0, "N", .take = take_int, .to = &job.launch.max_restarts, .most = 1000000,
     .help =
         "restart all ranks of all hosts up to N times after a failure (default 0); host 0's value counts"},
    {"grace", 0, "SECONDS", .take = take_seconds, .to = &job.grace,
     .help = "time from SIGTERM, or a signal that is passed on, to SIGKILL (default 5 after a rank has "
             "failed, 30 after a signal to tern run)"},
    {"shutdown-timeout", 0, "SECONDS", .take = take_seconds, .to = &job.grace, .help = "same as --grace"},

    {.help = "Output"},
    {"log-dir", 0, "DIR", .take = take_text, .to = &job.logs.dir,
     .help = "save output under DIR/ID_xxxxxx/attempt_K/LOCAL_RANK: stdout.log, stderr.log, error.json"},
    {"redirects", 'r', "STREAMS", .take = take_streams, .to = &job.logs.redirects,
     .help = "save, but do not show: 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1"},
    {"tee", 't', "STREAMS", .take = take_streams, .to = &job.logs.tee,
     .help = "save and show, with [ROLE LOCAL_RANK]: before each line"},
    {"local-ranks-filter", 0, "LIST", .take = take_shown, .to = &job.logs.shown,
     .help = "local ranks to show, as in 0,2; does not change what is saved"},
    {"log-line-prefix-template", 0, "TEXT", .text = &job.logs.prefix,
     .help = "text before each line, with ${role_name}, ${local_rank}, ${rank}, ${hostname}; or set "
             "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},

    {.help = "The program"},
    {"bind", 0, "none|core|auto", .take = take_bind, .to = &job.bind,
     .help = "core: bind each rank to its own share of the cores, for a machine that runs only this job; "
             "auto: do so if there are several ranks, at least one core for each, and no other limit "
             "(taskset, a container, OMP_PLACES, OMP_PROC_BIND). Default none"},
    {"pass-local-rank", 0, NULL, .on = &job.passes_local_rank,
     .help = "give the program --local-rank=N as its first argument"},

    {.help = "Accepted for compatibility with torchrun"},
    {"standalone", 0, NULL, .on = &ignored, .help = "one host (the default)"},
    {"no-python", 0, NULL, .on = &ignored, .help = "PROGRAM is never run as a Python script"},
    {"use-env", 0, NULL, .on = &ignored, .help = "do not pass --local-rank (the default)"},
    {"rdzv-backend", 0, "static|c10d", .take = take_rdzv_backend,
     .to = "expected static or c10d: --node-rank numbers the hosts, and they meet at node 0",
     .help = "no effect: the hosts meet at host 0 in the same way. Unlike torchrun's, c10d numbers hosts by "
             "--node-rank, and their number is fixed"},
    {"monitor-interval", 0, "SECONDS", .take = take_seconds, .to = &ignored_seconds,
     .help = "no effect: deaths are seen at once"},
    {"start-method", 0, "spawn|fork|forkserver", .take = take_known,
     .to = "expected spawn, fork or forkserver", .help = "no effect: a program is started with exec"},
    {"event-log-handler", 0, "null", .take = take_known,
     .to = "expected null: there are no event logs; events are reported on stderr",
     .help = "no effect: there are no event logs"},
    {"logs-specs", 0, "default", .take = take_known,
     .to = "expected default: any other name is a Python class's",
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
    "of the other ranks start with \"[RANK] \". If a rank fails, tern run reports it, ends the other ranks "
    "and exits with its exit code (128 + signal). Processes that a rank leaves behind are killed only after "
    "a failure. SIGUSR1 and SIGUSR2, which batch systems send as a warning, are passed on to the ranks and "
    "do not end the job.\n"
    "\n"
    "    tern run -n 4 ./train                         one host\n"
    "    tern run -n 4 python3 train.py                a Python program\n"
    "    tern run -n 8 --nnodes 2 --node-rank 0 --master-addr node0 ./train\n"
    "    tern run -n 8 --nnodes 2 --node-rank 1 --master-addr node0 ./train\n"
    "                                                  on node0 and on the other\n"
    "\n"
    "Option names may be written with - or _. Options that are not given are read from the environment, for "
    "example PET_NPROC_PER_NODE=4. Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, "
    "MASTER_ADDR, MASTER_PORT ..), and OMP_NUM_THREADS = cores / N unless it is set, and where the cores are "
    "short GOMP_SPINCOUNT = 1000; ${local_rank} in its "
    "arguments is replaced by its local rank.\n",
    options,
};

/* ---- checks across options ---- */

#define DEFAULT_PORT 29500 /* torchrun's */

static int check_nodes(tern__launch *launch, bool is_standalone, bool lacks_number, tern_error *err)
{
    if (launch->nodes > 1 && lacks_number)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "--rdzv-backend c10d: hosts are not numbered by their arrival here: give each "
                               "its --node-rank, 0 to %d; they meet at host 0",
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

static int store_all(tern__cli_words *words, tern_error *err)
{
    int status = tern__secret_take(job.launch.key, &job.meeting.has_key, "tern run", err);
    if (!status) status = tern__words_store(words, err);
    bool lacks_number = job.meeting.is_c10d && !tern__words_say(words, "node-rank");
    if (!status) status = check_nodes(&job.launch, tern__words_say(words, "standalone"), lacks_number, err);
    if (!job.logs.prefix || !*job.logs.prefix)
        job.logs.prefix = tern__env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    return status;
}

/* Fills in the job. */
static int read_options(char **argv, bool *wants_help, tern_error *err)
{
    tern__cli_words words;
    job = (tern__job){
        .launch = tern__launch_local(1),
        .meeting = {.timeout_s = 900, .keep_alive_s = 5, .keep_alive_max = 3},
        .logs = {.redirects = "0", .tee = "0", .shown = ""},
        .started_ns = tern__now_ns(),
    };
    job.launch.port = -1;
    int status = tern__words_read(&words, options, argv + 1, err);
    *wants_help = !status && tern__words_say(&words, "help");
    if (!status && !*wants_help) status = store_all(&words, err);
    if (status || *wants_help) return status;
    job.argv = words.rest;
    if (*job.argv) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a program to run after the options");
}

/* ---- the command ---- */

static int run_job(tern_error *err)
{
    int code = TERN__EXIT_FAILED;
    int status = tern__standard_hold(__func__, err);
    if (!status) status = tern__job_supervise(&job, &code, err);
    tern__launch_close(&job.launch);
    return status ? TERN__EXIT_FAILED : code;
}

int tern__cli_run(int argc, char **argv)
{
    tern_error err = {0};
    bool wants_help = false;
    int code = TERN__EXIT_USAGE;
    (void)argc;
    tern__binding_undo_openmp();
    if (!read_options(argv, &wants_help, &err)) {
        if (wants_help) {
            tern__page_print("tern run", &tern__run_page);
            return tern__cli_flush("tern run");
        }
        code = run_job(&err);
    }
    if (err.code) fprintf(stderr, "tern run: %s\n", err.text);
    if (code == TERN__EXIT_USAGE && err.code) fprintf(stderr, "Try `tern run --help`.\n");
    return code;
}
