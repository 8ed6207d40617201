/* test_lossy.c - a job on two hosts whose line loses up to a tenth of the packets, takes 50 ms, more or
 * less, so that packets overtake each other, and passes little a second. Everything takes longer, and
 * nothing fails. */
#include "board.h"
#include "lossy.h"
#include "round.h"

static network net;
static int ends[2];

static int job_body(int rank, const tern__bootstrap *boot, void *arg)
{
    fixture f;
    (void)arg;
    RANK_CHECK(rank, network_enter(&net, rank % 2));
    if (fixture_open(&f, rank, boot, ROUND_MOST * sizeof(int32_t)) || round_run(&f, 200)) return 1;
    return fixture_close(&f);
}

static double seconds_of_job(const lossy_line *line)
{
    pid_t pid = lossy_start(line, ends);
    int64_t began = tern__now_ns();
    ranks r = network_start(&net, 2, job_body, NULL);
    ranks_wait(&r);
    lossy_stop(pid);
    assert_ranks_ok(r);
    return (double)(tern__now_ns() - began) * 1e-9;
}

static void a_bad_line_only_takes_longer(void **state)
{
    (void)state;
    static const lossy_line lines[] = {{.rate = 1e9},
                                       {.loss = 0.01, .delay_s = 0.05, .jitter = 0.4, .rate = 1e6},
                                       {.loss = 0.1, .delay_s = 0.05, .jitter = 0.4, .rate = 1e5}};
    double took[TERN__COUNT(lines)];
    for (size_t i = 0; i < TERN__COUNT(lines); i++) {
        took[i] = seconds_of_job(&lines[i]);
        print_message("%.0f %% lost, %.0f ms: %.1f s\n", lines[i].loss * 100, lines[i].delay_s * 1e3,
                      took[i]);
    }
    assert_true(took[1] > took[0] + 10 * lines[1].delay_s); /* the packets did go over the line */
}

/* ---- launchers ---- */

/* Starts the launcher of a host with one rank that meets the other. */
static pid_t launch(int host, const char *folder)
{
    char tern[600], meet[600], id[16], number[16];
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(tern, sizeof(tern), "%s/../tern", folder);
    snprintf(meet, sizeof(meet), "%s/meet", folder);
    snprintf(id, sizeof(id), "host%d", host);
    snprintf(number, sizeof(number), "%d", host);
    setenv("TERN_HOST_ID", id, 1);
    setenv("TERN_SECRET", "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e", 1);
    if (network_enter(&net, host))
        execl(tern, tern, "run", "-n", "1", "--nnodes", "2", "--node-rank", number, "--master-addr",
              network_addresses[0], "--rdzv-conf", "timeout=60", meet, (char *)NULL);
    _exit(126);
}

static void launchers_meet_over_it(void **state)
{
    (void)state;
    const lossy_line line = {.loss = 0.1, .delay_s = 0.05, .jitter = 0.4, .rate = 1e5};
    char folder[512];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    assert_true(length > 0);
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0';
    pid_t pid = lossy_start(&line, ends), launchers[2];
    for (int host = 0; host < 2; host++) launchers[host] = launch(host, folder);
    for (int host = 0; host < 2; host++) {
        int status;
        assert_int_equal(waitpid(launchers[host], &status, 0), launchers[host]);
        assert_int_equal(status, 0);
    }
    lossy_stop(pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_bad_line_only_takes_longer),
                                       cmocka_unit_test(launchers_meet_over_it)};
#ifdef __SANITIZE_THREAD__
    return skip_program("ThreadSanitizer sees nothing of what libgloo locks");
#endif
    if (!has_part("gloo")) return skip_program("this build has no gloo");
    if (choose_plugins()) return 1;
    if (!lossy_open(&net, ends)) return skip_program("no network namespaces with /dev/net/tun, or no root");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
