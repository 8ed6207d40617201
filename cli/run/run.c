/* run.c - `tern run`: starts a program as the ranks of a job, with torchrun's options and environment. */
#include "run/binding.h"
#include "cli.h"
#include "run/run_options.h"
#include "run/supervise.h"

#include "base/file.h"

#include <stdio.h>

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
        if (wants_help) {
            tern__page_print("tern run", &tern__run_page);
            return tern__cli_flush("tern run");
        }
        code = run_job(&job, &err);
    }
    if (err.code) fprintf(stderr, "tern run: %s\n", err.text);
    if (code == TERN__EXIT_USAGE && err.code) fprintf(stderr, "Try `tern run --help`.\n");
    return code;
}
