/* preempt.c - a flag that a signal sets, and on which the ranks agree. Each call of tern_preempt_pending
 * posts this rank's flag and reads the result of the previous call. So no rank waits here for a slow one, and
 * all ranks learn of the flag in the same call.
 *
 * The signal handler reaches its preempt through a static table of signals. The entry is cleared before the
 * preempt is freed.
 *
 * From the request on nothing is measured, since the first measurements of a large net last longer than the
 * grace of a launcher. A rank learns of another's request only between two steps. */
#include "base/base.h"
#include "base/opts.h"
#include "device/choices.h"

#include <tern/collectives.h>
#include <tern/preempt.h>

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { SIGNALS = 3 };

#define COPY_SECONDS 1 /* in which a launcher repeats the terminal's Ctrl-C */

struct tern_preempt {
    tern_group *group;
    tern_preempt_opts opts;
    atomic_bool asked;
    bool pending; /* all ranks know that one has been asked to stop */
    int64_t calls;
    tern_work *work; /* the pending all_reduce of the ranks' flags; NULL: none */
    uint8_t told;
    int fd;
    int signals[SIGNALS]; /* the handled signals; 0: none */
    struct sigaction before[SIGNALS];
    _Atomic(int64_t)
        copies_until; /* opts.interrupt came, and a launcher may repeat it until then; 0: never */
};

static _Atomic(tern_preempt *) owners[NSIG];

tern_preempt_opts tern_preempt_defaults(void)
{
    return (tern_preempt_opts){
        .size = sizeof(tern_preempt_opts), .signal = SIGTERM, .warning = SIGUSR1, .every = 1};
}

void tern_preempt_ask(tern_preempt *preempt)
{
    uint64_t one = 1;
    if (!preempt || atomic_exchange(&preempt->asked, true)) return;
    tern__choices_pause();
    int before = errno;
    ssize_t written = write(preempt->fd, &one, sizeof(one));
    (void)written; /* cannot fail: the counter is far from full */
    errno = before;
}

static void on_signal(int number)
{
    tern_preempt_ask(atomic_load(&owners[number]));
}

static int64_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* The second one ends the process as if there were no handler: it is raised while it is blocked here, and
 * acts when this returns. A launcher whose ranks are in the terminal's process group, such as torchrun, gets
 * the same Ctrl-C from the kernel and sends it to them once more: that copy is not a second one. */
static void on_interrupt(int number, siginfo_t *info, void *context)
{
    tern_preempt *preempt = atomic_load(&owners[number]);
    (void)context;
    if (!preempt) return;
    int64_t now = seconds_now(), until = 0;
    int64_t copies = info->si_code == SI_KERNEL ? now + COPY_SECONDS : now - 1;
    if (atomic_compare_exchange_strong(&preempt->copies_until, &until, copies)) {
        tern_preempt_ask(preempt);
    } else if (now > until || info->si_code != SI_USER || info->si_pid != getppid()) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

static int handle_signal(tern_preempt *preempt, int i, int number, const struct sigaction *action,
                         tern_error *err)
{
    const char *func = "tern_preempt_new";
    tern_preempt *nobody = NULL;
    if (!number) return TERN_OK;
    if (number < 0 || number >= NSIG)
        return tern__error_set(err, func, TERN_E_INVALID, "there is no signal %d", number);
    if (!atomic_compare_exchange_strong(&owners[number], &nobody, preempt))
        return tern__error_set(err, func, TERN_E_STATE, "another preempt already handles signal %d", number);
    if (sigaction(number, action, &preempt->before[i])) {
        atomic_store(&owners[number], NULL);
        return tern__error_errno(err, func, TERN_E_INVALID, "signal %d cannot be handled", number);
    }
    preempt->signals[i] = number;
    return TERN_OK;
}

/* A shell without job control starts its background jobs with SIGINT ignored. */
static bool is_ignored(int number)
{
    struct sigaction now;
    return number > 0 && sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static int open_preempt(tern_preempt *preempt, tern_error *err)
{
    preempt->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (preempt->fd < 0)
        return tern__error_errno(err, "tern_preempt_new", TERN_E_SYSTEM, "cannot make an eventfd");
    struct sigaction asks = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction interrupts = {.sa_sigaction = on_interrupt, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigemptyset(&asks.sa_mask);
    sigemptyset(&interrupts.sa_mask);
    int status = handle_signal(preempt, 0, preempt->opts.signal, &asks, err);
    if (!status) status = handle_signal(preempt, 1, preempt->opts.warning, &asks, err);
    if (!status && !is_ignored(preempt->opts.interrupt))
        status = handle_signal(preempt, 2, preempt->opts.interrupt, &interrupts, err);
    return status;
}

tern_preempt *tern_preempt_new(tern_group *group, const tern_preempt_opts *user, tern_error *err)
{
    tern_preempt_opts opts = tern_preempt_defaults();
    if (tern__is_set(err) || tern__opts_read(&opts, sizeof(opts), user, __func__, err)) return NULL;
    if (opts.every < 1) {
        tern__error_set(err, __func__, TERN_E_RANGE, "every is %d, expected at least 1", opts.every);
        return NULL;
    }
    tern_preempt *preempt = tern__alloc(sizeof(*preempt), __func__, err);
    if (!preempt) return NULL;
    preempt->group = group;
    preempt->opts = opts;
    if (!open_preempt(preempt, err)) return preempt;
    tern_preempt_free(preempt);
    return NULL;
}

void tern_preempt_free(tern_preempt *preempt)
{
    if (!preempt) return;
    if (preempt->work) tern_work_wait(preempt->work, NULL);
    for (int i = 0; i < SIGNALS; i++) {
        if (!preempt->signals[i]) continue;
        sigaction(preempt->signals[i], &preempt->before[i], NULL);
        atomic_store(&owners[preempt->signals[i]], NULL);
    }
    if (atomic_load(&preempt->asked)) tern__choices_resume();
    if (preempt->fd >= 0) close(preempt->fd);
    tern__free(preempt);
}

/* Reads the flag posted in an earlier call. It rarely waits: the step's backward has synchronised the ranks
 * since. */
static int hear_signal(tern_preempt *preempt, tern_error *err)
{
    tern_work *work = preempt->work;
    preempt->work = NULL;
    if (!work) return TERN_OK;
    if (tern_work_wait(work, err)) return err->code;
    preempt->pending = preempt->told;
    return TERN_OK;
}

static int tell_signal(tern_preempt *preempt, tern_error *err)
{
    bool alone = !preempt->group || tern_group_size(preempt->group) == 1;
    preempt->told = atomic_load(&preempt->asked);
    if (alone) preempt->pending = preempt->told;
    if (alone || preempt->pending) return TERN_OK;
    preempt->work = tern_all_reduce_post(preempt->group, &preempt->told, 1, TERN_U8, TERN_MAX, err);
    return preempt->work ? TERN_OK : err->code;
}

static int look_for_signal(tern_preempt *preempt, tern_error *err)
{
    int status = hear_signal(preempt, err);
    return status ? status : tell_signal(preempt, err);
}

int tern_preempt_pending(tern_preempt *preempt, tern_error *err)
{
    if (!preempt) return tern__error_set(err, __func__, TERN_E_INVALID, "the preempt is NULL");
    if (preempt->pending) return 1;
    tern_error own = {0};
    if (!err) err = &own;
    bool due = ++preempt->calls % preempt->opts.every == 0;
    if (due || tern__is_set(err))
        look_for_signal(preempt, err); /* with an error set, the all_reduce ends the family */
    return tern__is_set(err) ? err->code : preempt->pending;
}

int tern_preempt_fd(const tern_preempt *preempt)
{
    return preempt ? preempt->fd : -1;
}
