/* tern run - starts a program as N ranks of one job on this host, with torchrun's options and environment. */
#include "cli.h"
#include "supervise.h"

#include "comm/sys.h"
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPT_ADDR = 256, OPT_PORT, OPT_GRACE, OPT_NO_PYTHON, OPT_NODES, OPT_NODE_RANK, OPT_STANDALONE };

/* torchrun takes both spellings. '+' below: everything from the program on is the program's. */
static const struct option options[] = {
    {"nproc-per-node", required_argument, NULL, 'n'},
    {"nproc_per_node", required_argument, NULL, 'n'},
    {"master-addr", required_argument, NULL, OPT_ADDR},
    {"master_addr", required_argument, NULL, OPT_ADDR},
    {"master-port", required_argument, NULL, OPT_PORT},
    {"master_port", required_argument, NULL, OPT_PORT},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"no-python", no_argument, NULL, OPT_NO_PYTHON},
    {"no_python", no_argument, NULL, OPT_NO_PYTHON},
    {"nnodes", required_argument, NULL, OPT_NODES},
    {"node-rank", required_argument, NULL, OPT_NODE_RANK},
    {"node_rank", required_argument, NULL, OPT_NODE_RANK},
    {"standalone", no_argument, NULL, OPT_STANDALONE},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static const char help[] =
    "usage: tern run [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts PROGRAM as N ranks on this host. Rank 0 has this terminal; lines of the other ranks have\n"
    "\"[RANK] \" before them. When a rank fails, it is named, the others are ended and its exit code\n"
    "(128 + signal) is the job's. What a rank itself starts is the rank's to end. SIGUSR1 and SIGUSR2, with\n"
    "which batch systems warn, are passed on and end nothing here.\n"
    "\n"
    "  -n, --nproc-per-node N   ranks, or \"auto\": one for each core that may be used (default 1)\n"
    "      --master-addr ADDR   address of this host at which rank 0 meets the others (default 127.0.0.1)\n"
    "      --master-port PORT   port there, kept for the program's own use (default 0: a free one)\n"
    "      --grace SECONDS      time from SIGTERM, or a signal that is passed on, to SIGKILL\n"
    "                           (default 5 after a rank failed, 30 after a signal to tern run)\n"
    "      --no-python          accepted for torchrun's sake: a program is never taken for a Python script\n"
    "      --standalone, --nnodes 1, --node-rank 0\n"
    "                           accepted for torchrun's sake: a job is on one host\n"
    "  -h, --help               this text\n"
    "\n"
    "Environment of a rank: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the rest of "
    "torchrun's,\n"
    "and OMP_NUM_THREADS (cores / N) unless it is set.\n";

/* ---- options ---- */

static int parse_int(const char *option, const char *text, long low, long high, int *out, tern_error *err)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return tern__error_set(err, __func__, TERN_E_INVALID,
                               "%s: expected a whole number from %ld to %ld, got \"%s\"", option, low, high,
                               text);
    *out = (int)value;
    return TERN_OK;
}

static int parse_ranks(const char *text, tern__job *job, tern_error *err)
{
    if (strcmp(text, "auto") && strcmp(text, "cpu"))
        return parse_int("--nproc-per-node", text, 1, TERN__LAUNCH_RANKS, &job->launch.ranks, err);
    job->launch.ranks = tern__device_cores();
    return TERN_OK;
}

static int parse_grace(const char *text, tern__job *job, tern_error *err)
{
    char *end;
    job->grace = strtod(text, &end);
    if (end != text && !*end && job->grace > 0 && job->grace <= 1e6) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "--grace: expected seconds above 0, got \"%s\"",
                           text);
}

/* The one thing that is the case: one node, whose rank is 0. */
static int parse_node(const char *option, const char *only, tern_error *err)
{
    if (!strcmp(optarg, only)) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_UNSUPPORTED,
                           "%s %s: this version of tern starts jobs of one host only, which is %s %s", option,
                           optarg, option, only);
}

static int parse_option(int option, const char *word, tern__job *job, tern_error *err)
{
    switch (option) {
    case 'n': return parse_ranks(optarg, job, err);
    case OPT_ADDR: job->launch.addr = optarg; return TERN_OK;
    case OPT_PORT: return parse_int("--master-port", optarg, 0, 65535, &job->launch.port, err);
    case OPT_GRACE: return parse_grace(optarg, job, err);
    case OPT_NODES: return parse_node("--nnodes", "1", err);
    case OPT_NODE_RANK: return parse_node("--node-rank", "0", err);
    case OPT_NO_PYTHON:
    case OPT_STANDALONE: return TERN_OK;
    case ':': return tern__error_set(err, __func__, TERN_E_INVALID, "%s: expected a value after it", word);
    default: return tern__error_set(err, __func__, TERN_E_INVALID, "unknown option \"%s\"", word);
    }
}

static int parse_options(int argc, char **argv, tern__job *job, bool *wants_help, tern_error *err)
{
    int option, status = TERN_OK;
    const char *word = argv[optind]; /* kept: getopt_long stays on a word that has letters left */
    opterr = 0;
    while (!status && (option = getopt_long(argc, argv, "+:n:h", options, NULL)) != -1) {
        *wants_help = option == 'h';
        if (*wants_help) return TERN_OK;
        status = parse_option(option, word, job, err);
        word = argv[optind];
    }
    if (status) return status;
    job->argv = argv + optind;
    if (*job->argv) return TERN_OK;
    return tern__error_set(err, __func__, TERN_E_INVALID, "expected a program to run after the options");
}

/* ---- the job ---- */

static int open_launch(tern__launch *launch, tern_error *err)
{
    tern_error inner = {0};
    if (!tern__launch_open(launch, &inner)) return TERN_OK;
    if (inner.native == EADDRINUSE && launch->port)
        return tern__error_set(err, __func__, TERN_E_SYSTEM,
                               "port %d of %s is taken: leave --master-port away and a free one is found",
                               launch->port, launch->addr);
    return tern__error_set(err, __func__, inner.code, "--master-addr: %s", inner.text);
}

/* Closed when tern run was started, 0, 1 or 2 would become one of our own descriptors and then a rank's. */
static int hold_standard_descriptors(tern_error *err)
{
    int fd;
    do fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= 2);
    if (fd < 0) return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot open /dev/null");
    tern__close(&fd);
    return TERN_OK;
}

static int run_job(tern__job *job, tern_error *err)
{
    int code = TERN__EXIT_FAILED;
    int status = hold_standard_descriptors(err);
    if (!status) status = open_launch(&job->launch, err);
    if (!status) status = tern__job_supervise(job, &code, err);
    tern__launch_close(&job->launch);
    return status ? TERN__EXIT_FAILED : code;
}

int tern__cli_run(int argc, char **argv)
{
    tern_error err = {0};
    tern__job job = {.launch = tern__launch_local(1), .started_ns = tern__now_ns()};
    bool wants_help = false;
    int code = TERN__EXIT_USAGE;
    if (!parse_options(argc, argv, &job, &wants_help, &err)) {
        if (wants_help) return fputs(help, stdout) < 0;
        code = run_job(&job, &err);
    }
    if (err.code) fprintf(stderr, "tern run: %s\n", err.text);
    if (code == TERN__EXIT_USAGE && err.code) fprintf(stderr, "Try `tern run --help`.\n");
    return code;
}
