/* run.c - `tern run`: starts a program as the ranks of a job, with torchrun's options and environment. */
#include "run/binding.h"
#include "cli.h"
#include "run/run_options.h"
#include "run/supervise.h"

#include "base/file.h"

#include <stdio.h>

static const char usage[] =
    "usage: tern run [OPTIONS] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts PROGRAM as N ranks on this host, or on each of several hosts. Rank 0 uses this terminal; lines "
    "of\n"
    "the other ranks start with \"[RANK] \". If a rank fails, tern run reports it, ends the other ranks and "
    "exits\n"
    "with its exit code (128 + signal). Processes that a rank leaves behind are killed only after a "
    "failure.\n"
    "SIGUSR1 and SIGUSR2, which batch systems send as a warning, are passed on to the ranks and do not end "
    "the\n"
    "job.\n"
    "\n"
    "    tern run -n 4 ./train                                     one host\n"
    "    tern run -n 8 --nnodes 2 --node-rank 0 --master-addr node0 ./train   on node0\n"
    "    tern run -n 8 --nnodes 2 --node-rank 1 --master-addr node0 ./train   on the other\n"
    "\n"
    "Option names may be written with - or _. Options that are not given are read from the environment, for\n"
    "example PET_NPROC_PER_NODE=4. Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,\n"
    "MASTER_ADDR, MASTER_PORT ..), and OMP_NUM_THREADS = cores / N unless it is set; ${local_rank} in its\n"
    "arguments is replaced by its local rank.\n";

static int print_help(void)
{
    fputs(usage, stdout);
    tern__run_options_print();
    return tern__cli_flush("tern run");
}

static int run_job(tern__job *job, tern_error *err)
{
    int code = TERN__EXIT_FAILED;
    int status = tern__standard_hold(__func__, err);
    if (!status) status = tern__job_supervise(job, &code, err);
    tern__launch_close(&job->launch);
    return status ? TERN__EXIT_FAILED : code;
}

int tern__cli_run(int argc, char **argv)
{
    tern_error err = {0};
    tern__job job = {
        .launch = tern__launch_local(1),
        .meeting = {.timeout_s = 900, .keep_alive_s = 5, .keep_alive_max = 3},
        .logs = {.redirects = "0", .tee = "0", .shown = ""},
        .started_ns = tern__now_ns(),
    };
    job.launch.port = -1;
    bool wants_help = false;
    int code = TERN__EXIT_USAGE;
    (void)argc;
    tern__binding_undo_openmp();
    if (!tern__run_options_read(argv, &job, &wants_help, &err)) {
        if (wants_help) return print_help();
        code = run_job(&job, &err);
    }
    if (err.code) fprintf(stderr, "tern run: %s\n", err.text);
    if (code == TERN__EXIT_USAGE && err.code) fprintf(stderr, "Try `tern run --help`.\n");
    return code;
}
