/* report.c - collects failures and prints the report on a failed job. */
#include "run/report.h"

#include "base/text.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define WIDTH 72

/* ---- failures ---- */

static bool is_known(const tern__report *report, const tern__failure *failure)
{
    int kept = TERN__MIN(report->count, TERN__REPORT_FAILURES);
    for (int i = 0; i < kept; i++)
        if (report->failures[i].rank == failure->rank && report->failures[i].node == failure->node)
            return true;
    return false;
}

/* A rank that stopped because of another one may end sooner than that one, but it comes after it. */
static bool is_earlier(const tern__failure *a, const tern__failure *b)
{
    return !a->by_peer == !b->by_peer ? a->at_ns < b->at_ns : !a->by_peer;
}

void tern__report_add(tern__report *report, const tern__failure *failure)
{
    if (is_known(report, failure)) return;
    int kept = TERN__MIN(report->count, TERN__REPORT_FAILURES - 1), at = kept;
    report->count++;
    while (at && is_earlier(failure, &report->failures[at - 1])) at--;
    memmove(report->failures + at + 1, report->failures + at, (size_t)(kept - at) * sizeof(*failure));
    report->failures[at] = *failure;
    tern__failure_clean(&report->failures[at]);
}

tern__failure *tern__report_root(tern__report *report)
{
    return report->count ? report->failures : NULL;
}

/* Moves the failure to the front, or inserts it; the others keep their order. */
void tern__report_set_root(tern__report *report, const tern__failure *root)
{
    tern__failure first = *root;
    int kept = TERN__MIN(report->count, TERN__REPORT_FAILURES), at = 0;
    while (at < kept && (report->failures[at].rank != root->rank || report->failures[at].node != root->node))
        at++;
    if (at < kept) first = report->failures[at];
    if (at == kept) report->count++;
    at = TERN__MIN(at, TERN__REPORT_FAILURES - 1);
    memmove(report->failures + 1, report->failures, (size_t)at * sizeof(first));
    report->failures[0] = first;
    tern__failure_clean(report->failures);
}

void tern__report_restart(tern__report *report)
{
    tern__failure *root = tern__report_root(report);
    if (report->attempts < (int)TERN__COUNT(report->earlier) && root)
        tern__failure_describe(root, report->node, report->earlier[report->attempts],
                               sizeof(report->earlier[0]));
    report->attempts++;
    report->count = 0;
}

/* ---- printing ---- */

static void say_line(tern__relay *relay, char c)
{
    char line[WIDTH + 1];
    memset(line, c, WIDTH);
    line[WIDTH] = '\0';
    tern__relay_say(relay, "%s", line);
}

/* Prints "2026-11-21_22:41:07.123456789" in this host's time zone. */
static void say_time(const tern__failure *failure, tern__relay *relay)
{
    char text[32];
    struct tm parts;
    time_t seconds = (time_t)(failure->wall_ns / 1000000000);
    localtime_r(&seconds, &parts);
    strftime(text, sizeof(text), "%F_%T", &parts);
    tern__relay_say(relay, "  time      : %s.%09lld", text, (long long)(failure->wall_ns % 1000000000));
}

static void say_tail(const char *text, tern__relay *relay)
{
    if (*text) tern__relay_say(relay, "  last lines:");
    while (*text) {
        int length = (int)strcspn(text, "\n");
        tern__relay_say(relay, "  | %.*s", length, text);
        text += length + (text[length] == '\n');
    }
}

static void say_rank(const tern__failure *root, tern__relay *relay)
{
    char name[TERN__SIGNAL_TEXT] = "";
    if (root->rank < 0) return;
    if (WIFSIGNALED(root->status)) tern__signal_text(WTERMSIG(root->status), name);
    tern__relay_say(relay, "  rank      : %d (local rank %d)", root->rank, root->local);
    tern__relay_say(relay, "  exitcode  : %d%s%s (pid %d)", root->status ? tern__failure_code(root) : 0,
                    *name ? " " : "", name, root->pid);
}

static void say_root(const tern__failure *root, const tern__launch *launch, tern__relay *relay)
{
    tern__relay_say(relay, "Root cause (first failure):");
    say_time(root, relay);
    if (launch->nodes > 1) tern__relay_say(relay, "  host      : %s (node %d)", root->host, root->node);
    if (launch->nodes == 1) tern__relay_say(relay, "  host      : %s", root->host);
    say_rank(root, relay);
    char error[TERN__MESSAGE_MOST];
    tern__message_format(error, sizeof(error), "%.*s", (int)strcspn(root->error, "\n"), root->error);
    if (*error) tern__relay_say(relay, "  error     : %s", error);
    say_tail(root->tail, relay);
}

static void say_others(const tern__report *report, tern__relay *relay)
{
    char text[256];
    int kept = TERN__MIN(report->count, TERN__REPORT_FAILURES);
    if (report->count < 2) return;
    say_line(relay, '-');
    tern__relay_say(relay, "What followed:");
    for (int i = 1; i < kept; i++) {
        double later = (double)(report->failures[i].at_ns - report->failures[0].at_ns) * 1e-6;
        tern__failure_describe(&report->failures[i], report->node, text, sizeof(text));
        tern__relay_say(relay, "  %s, %.3g ms %s", text, fabs(later), later < 0 ? "earlier" : "later");
    }
    if (kept < report->count) tern__relay_say(relay, "  and %d more", report->count - kept);
}

static void say_earlier(const tern__report *report, tern__relay *relay)
{
    int kept = TERN__MIN(report->attempts, (int)TERN__COUNT(report->earlier));
    if (!report->attempts) return;
    say_line(relay, '-');
    tern__relay_say(relay, "Attempts before this one:");
    for (int i = 0; i < kept; i++) tern__relay_say(relay, "  %d: %s", i, report->earlier[i]);
    if (kept < report->attempts) tern__relay_say(relay, "  and %d more", report->attempts - kept);
}

void tern__report_print(tern__report *report, const tern__launch *launch, tern__relay *relay)
{
    char path[256];
    if (!report->count) return;
    tern__message_format(path, sizeof(path), "%s", report->program);
    say_line(relay, '=');
    tern__relay_say(relay, "%s FAILED", basename(path));
    say_line(relay, '-');
    say_root(&report->failures[0], launch, relay);
    say_others(report, relay);
    say_earlier(report, relay);
    say_line(relay, '=');
}
