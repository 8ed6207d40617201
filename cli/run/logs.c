/* logs.c - makes the folders and files of the logs and chooses where each stream of a rank goes. */
#include "run/logs.h"

#include "run/relay.h"
#include "run/value.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OUT = 1, ERR = 2 }; /* bits of --redirects and --tee */

/* ---- folders ---- */

/* Makes a folder of a unique name from `path`, which ends in XXXXXX. */
static int make_unique(char *path, tern_error *err)
{
    if (mkdtemp(path)) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot make the folder \"%s\" for logs", path);
}

static int make_base(const tern__log_opts *opts, char *path, size_t size, tern_error *err)
{
    const char *temporary = tern__env("TMPDIR");
    int length = opts->dir ? snprintf(path, size, "%s", opts->dir)
                           : snprintf(path, size, "%s/tern_XXXXXX", temporary ? temporary : "/tmp");
    if (length >= (int)size)
        return tern__error_set(err, __func__, TERN_E_INVALID, "--log-dir: \"%.64s...\" is too long", path);
    return opts->dir ? tern__folder_make(path, 0777, "tern run", err) : make_unique(path, err);
}

static bool saves_something(const tern__log_opts *opts)
{
    return opts->dir || strcmp(opts->redirects, "0") || strcmp(opts->tee, "0");
}

int tern__logs_open(tern__logs *logs, const tern__job *job, tern_error *err)
{
    *logs = (tern__logs){.job = job};
    if (!saves_something(&job->logs)) return TERN_OK;
    char base[sizeof(logs->folder) - 160];
    int status = make_base(&job->logs, base, sizeof(base), err);
    if (status) return status;
    snprintf(logs->folder, sizeof(logs->folder), "%s/%.127s_XXXXXX", base, job->launch.run_id);
    return make_unique(logs->folder, err);
}

bool tern__logs_path(const tern__logs *logs, int local, const char *file, char *path, size_t size)
{
    snprintf(path, size, "%s/attempt_%d/%d/%s", logs->folder, logs->job->launch.attempt, local, file);
    return *logs->folder != '\0';
}

/* ---- streams ---- */

static int open_log(const tern__logs *logs, int local, const char *file, int *fd, tern_error *err)
{
    char path[PATH_MAX];
    tern__logs_path(logs, local, file, path, sizeof(path));
    *fd = TEMP_FAILURE_RETRY(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (*fd >= 0) return TERN_OK;
    return tern__error_errno(err, __func__, TERN_E_SYSTEM, "cannot open log \"%s\"", path);
}

/* The default is torchrun's prefix for a teed stream and the rank's number otherwise; rank 0 has none. */
static void set_prefix(const tern__job *job, int local, bool is_teed, tern__cli_output *output)
{
    char rank[16], local_rank[16], host[64] = "";
    snprintf(rank, sizeof(rank), "%d", job->launch.first + local);
    snprintf(local_rank, sizeof(local_rank), "%d", local);
    gethostname(host, sizeof(host) - 1);
    const tern__macro macros[] = {
        {"role_name", job->launch.role}, {"rank", rank}, {"local_rank", local_rank}, {"hostname", host}};
    const char *text = job->logs.prefix;
    if (!text)
        text = is_teed ? "[${role_name}${local_rank}]:" : job->launch.first + local ? "[${rank}] " : "";
    tern__macro_expand(text, macros, TERN__COUNT(macros), output->prefix, sizeof(output->prefix));
}

static int plan_stream(const tern__logs *logs, int local, int bit, tern__cli_output *output, tern_error *err)
{
    const tern__job *job = logs->job;
    const tern__log_opts *opts = &job->logs;
    bool is_teed = tern__streams_of(opts->tee, local) & bit;
    bool is_saved = is_teed || (tern__streams_of(opts->redirects, local) & bit);
    bool is_shown = tern__list_holds(opts->shown, local);
    bool is_rank_0 = job->launch.first + local == 0;
    *output = (tern__cli_output){
        .fd = -1, .file_fd = -1, .shows = is_shown, .is_live = is_rank_0, .keeps_tail = bit == ERR};
    set_prefix(job, local, is_teed, output);
    output->is_piped = is_teed || (!is_saved && (!is_rank_0 || !is_shown || *output->prefix));
    if (!is_saved) return TERN_OK;
    return open_log(logs, local, bit == OUT ? "stdout.log" : "stderr.log", &output->file_fd, err);
}

/* Without options, rank 0 inherits the launcher's streams. But its stderr is piped through the launcher, so
 * that the report can show its last lines, unless it is a terminal. If stdout and stderr are the same file,
 * stdout goes through the same pipe, which keeps their order. */
static void watch_rank_0(tern__cli_output outputs[2])
{
    bool is_open =
        fcntl(STDERR_FILENO, F_GETFD) == 0; /* with close-on-exec it is our placeholder for a closed one */
    if (outputs[1].is_piped || outputs[1].file_fd >= 0 || !is_open || isatty(STDERR_FILENO)) return;
    outputs[1].is_piped = true;
    if (outputs[0].is_piped || outputs[0].file_fd >= 0 || !tern__relay_joins()) return;
    outputs[1].joins_out = outputs[0].is_piped = outputs[0].keeps_tail = true;
}

int tern__logs_plan(const tern__logs *logs, int local, tern__cli_output outputs[2], tern_error *err)
{
    char path[PATH_MAX];
    int status = TERN_OK;
    outputs[0] = outputs[1] = (tern__cli_output){.fd = -1, .file_fd = -1};
    if (tern__logs_path(logs, local, "", path, sizeof(path))) {
        path[strlen(path) - 1] = '\0';
        status = tern__folder_make(path, 0777, "tern run", err);
    }
    if (!status) status = plan_stream(logs, local, OUT, &outputs[0], err);
    if (!status) status = plan_stream(logs, local, ERR, &outputs[1], err);
    if (!status && logs->job->launch.first + local == 0) watch_rank_0(outputs);
    for (int i = 0; i < 2; i++) outputs[i].is_own = !outputs[i].is_piped && outputs[i].file_fd < 0;
    return status;
}
