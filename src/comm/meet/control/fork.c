/* fork.c - closes the control sockets in a forked child. A child inherits copies of its rank's sockets, and
 * the other hosts see the rank's end only when the last copy is closed. (Within the host the pidfd shows it.)
 * So the child closes its copies as soon as it starts. */
#include "comm/meet/control/inner.h"

#include <errno.h>

static struct {
    pthread_mutex_t lock;
    tern__control *first;
    bool is_watching;
} open_controls = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void before_fork(void)
{
    pthread_mutex_lock(&open_controls.lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&open_controls.lock);
}

static void in_child(void)
{
    for (tern__control *control = open_controls.first; control; control = control->next_open)
        for (int rank = 0; rank < control->world; rank++) tern__close(&control->peers[rank].fd);
    after_fork();
}

int tern__control_fork_begin(tern__control *control, tern_error *err)
{
    pthread_mutex_lock(&open_controls.lock);
    int native = open_controls.is_watching ? 0 : pthread_atfork(before_fork, after_fork, in_child);
    open_controls.is_watching |= !native;
    control->next_open = open_controls.first;
    open_controls.first = control;
    pthread_mutex_unlock(&open_controls.lock);
    if (!native) return TERN_OK;
    errno = native;
    return tern__error_errno(err, "tern_group_open", TERN_E_SYSTEM, "cannot watch for forks");
}

void tern__control_fork_end(tern__control *control)
{
    pthread_mutex_lock(&open_controls.lock);
    tern__control **link = &open_controls.first;
    while (*link && *link != control) link = &(*link)->next_open;
    if (*link) *link = control->next_open;
    pthread_mutex_unlock(&open_controls.lock);
}
