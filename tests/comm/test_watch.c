/* test_watch.c - the control thread's reaction to a peer's packets and end, driven by hand through a socket
 * pair. */
#include "check.h"

#include "comm/meet/control/inner.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Rank 0 of two, without a control thread; `far` is rank 1's end. */
typedef struct pair {
    tern__control control;
    tern__peer peers[2];
    int far;
} pair;

static int setup(void **state)
{
    static pair p;
    int ends[2];
    assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), errno);
    p = (pair){.control = {.world = 2, .pid = getpid(), .peers = p.peers, .listen_fd = -1, .wake_fd = -1}};
    p.peers[0] = (tern__peer){.rank = 0, .fd = -1, .pidfd = -1};
    p.peers[1] = (tern__peer){.rank = 1, .fd = ends[0], .pidfd = -1, .info = {.pid = 77, .host = "attic"}};
    p.far = ends[1];
    pthread_mutex_init(&p.control.lock, NULL);
    pthread_cond_init(&p.control.changed, NULL);
    *state = &p;
    return 0;
}

static int teardown(void **state)
{
    pair *p = *state;
    tern__close(&p->peers[1].fd);
    tern__close(&p->far);
    pthread_cond_destroy(&p->control.changed);
    pthread_mutex_destroy(&p->control.lock);
    return 0;
}

static void tell(const pair *p, const void *packet, size_t bytes)
{
    assert_int_equal(send(p->far, packet, bytes, MSG_NOSIGNAL), bytes);
}

static void tell_kind(const pair *p, uint32_t kind, const char *text)
{
    tern__message message = {.kind = kind, .code = TERN_E_IO, .bytes = (uint32_t)strlen(text) + 1};
    snprintf(message.text, sizeof(message.text), "%s", text);
    tell(p, &message, TERN__MESSAGE_HEAD + strlen(text) + 1);
}

/* Does what the thread does when both socket and pidfd are ready: reads everything before it accepts the
 * end. */
static void look(pair *p)
{
    assert_true(tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, POLLIN));
}

static void assert_event(const pair *p, const char *text)
{
    tern_error err = {0};
    assert_int_equal(tern__control_check(&p->control, "f", &err), TERN_E_PEER);
    assert_string_equal(err.text, text);
}

static void forget_event(pair *p)
{
    p->control.event = (tern_error){0};
    atomic_store(&p->control.failed, 0);
}

static void silence_and_death_is_a_loss(void **state)
{
    pair *p = *state;
    look(p);
    assert_event(p, "rank 1 (attic, pid 77) was lost: killed or exited without tern_group_close");
    assert_true(p->peers[1].gone);
}

/* A connection between hosts that is reset: the other end may live. */
static void a_reset_between_hosts_is_no_proof_of_an_end(void **state)
{
    pair *p = *state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    const struct linger at_once = {.l_onoff = 1};
    tern__stream stream = {0};
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    tern__close(&p->far);
    tern__close(&p->peers[1].fd);
    p->far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_return_code(bind(door, (struct sockaddr *)&at, size), errno);
    assert_return_code(listen(door, 1), errno);
    assert_return_code(getsockname(door, (struct sockaddr *)&at, &size), errno);
    assert_return_code(connect(p->far, (struct sockaddr *)&at, size), errno);
    p->peers[1].fd = accept4(door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    p->peers[1].stream = &stream;
    p->peers[0].info = (tern__rank_info){.pid = 7, .host = "cellar"};
    assert_return_code(setsockopt(p->far, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), errno);
    tern__close(&p->far);
    look(p);
    assert_event(
        p, "rank 1 (attic, pid 77) was lost: killed or exited without tern_group_close, or it gave up its "
           "connection to cellar (Connection reset by peer)");
    tern__close(&door);
}

static void a_goodbye_before_the_end_is_heard(void **state)
{
    pair *p = *state;
    tell_kind(p, TERN__MESSAGE_GOODBYE, "");
    tern__close(&p->far);
    look(p);
    assert_true(tern__control_is_healthy(&p->control));
    assert_true(tern__control_has_left(&p->control, 1));
}

/* If the peer left some of our data unread, the kernel reports a reset before the peer's last message. */
static void a_goodbye_behind_a_reset_is_heard(void **state)
{
    pair *p = *state;
    assert_int_equal(send(p->peers[1].fd, "unread", 6, 0), 6);
    tell_kind(p, TERN__MESSAGE_GOODBYE, "");
    tern__close(&p->far);
    look(p);
    assert_true(tern__control_is_healthy(&p->control));
    assert_true(tern__control_has_left(&p->control, 1));
}

static void an_abort_before_the_end_is_the_reason(void **state)
{
    pair *p = *state;
    tell_kind(p, TERN__MESSAGE_ABORT, "disk full");
    tern__close(&p->far);
    look(p);
    assert_event(p, "rank 1 (attic, pid 77) failed: disk full");
    assert_int_equal(p->control.event.native, TERN_E_IO);
}

static void the_first_event_stays(void **state)
{
    pair *p = *state;
    tell_kind(p, TERN__MESSAGE_RELAY, "rank 5 (cellar, pid 5) was lost");
    tell_kind(p, TERN__MESSAGE_ABORT, "later");
    look(p);
    assert_event(p, "rank 5 (cellar, pid 5) was lost");
}

/* Serves eight connections that end one after the other while their process lives on; returns the seconds. */
static double time_ends(pair *p, bool each_is_first)
{
    int64_t start = tern__now_ns();
    for (int i = 0; i < 8; i++) {
        int ends[2];
        if (each_is_first) forget_event(p);
        assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), errno);
        p->peers[1] = (tern__peer){.rank = 1, .fd = ends[0], .info = {.pid = 77, .host = "attic"}};
        p->peers[1].pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
        tern__close(&ends[1]);
        tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
        assert_true(p->peers[1].gone);
        tern__close(&p->peers[1].pidfd);
        tern__close(&p->peers[1].fd);
    }
    return (double)(tern__now_ns() - start) * 1e-9;
}

/* After the first failure, only that rank's end is waited for, so that it can be named. */
static void nobodys_end_is_waited_for_after_a_failure(void **state)
{
    pair *p = *state;
    tell_kind(p, TERN__MESSAGE_ABORT, "disk full");
    tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
    tern__close(&p->peers[1].fd);
    assert_true(time_ends(p, false) < 4);
    assert_event(p, "rank 1 (attic, pid 77) failed: disk full");
}

static void nor_by_a_group_that_is_being_closed(void **state)
{
    pair *p = *state;
    tern__close(&p->peers[1].fd);
    atomic_store(&p->control.stop, true);
    assert_true(time_ends(p, true) < 4);
    atomic_store(&p->control.stop, false);
}

static void malformed_packets_are_the_senders_failure(void **state)
{
    pair *p = *state;
    tern__message full = {.kind = TERN__MESSAGE_ABORT, .bytes = sizeof(full.text)};
    memset(full.text, 'x', sizeof(full.text)); /* no terminator */
    char huge[2048] = {TERN__MESSAGE_ABORT};
    const struct {
        const void *packet;
        size_t bytes;
    } rows[] = {{"x", 1}, {&full, TERN__MESSAGE_HEAD - 1}, {&full, sizeof(full)}, {huge, sizeof(huge)}};
    for (size_t i = 0; i < TERN__COUNT(rows); i++) {
        forget_event(p);
        tell(p, rows[i].packet, rows[i].bytes);
        tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
        assert_event(p, "rank 1 (attic, pid 77) broke the protocol: it sent a malformed control message");
    }
    p->control.event = (tern_error){0};
    tell_kind(p, 99, "");
    tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
    assert_event(p,
                 "rank 1 (attic, pid 77) broke the protocol: it sent a control message of an unknown kind");
}

static void tell_with_fds(const pair *p, uint32_t kind, int count)
{
    tern__message message = {.kind = kind, .tag = 3, .bytes = 1};
    int fds[2] = {0, 0};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(fds))];
    } room = {0};
    struct iovec body = {.iov_base = &message, .iov_len = TERN__MESSAGE_HEAD + 1};
    struct msghdr header = {.msg_iov = &body,
                            .msg_iovlen = 1,
                            .msg_control = room.bytes,
                            .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof(int));
    assert_true(sendmsg(p->far, &header, 0) > 0);
}

static int lowest_free_fd(void)
{
    int fd = fcntl(0, F_DUPFD_CLOEXEC, 0);
    close(fd);
    return fd;
}

/* A descriptor with a message that should carry none, or more than one: it is closed. */
static void stray_descriptors_are_closed(void **state)
{
    pair *p = *state;
    int free_fd = lowest_free_fd(), fd = -1;
    tell_with_fds(p, TERN__MESSAGE_GOODBYE, 1);
    tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
    assert_int_equal(lowest_free_fd(), free_fd);
    tell_with_fds(p, TERN__MESSAGE_FD, 2);
    tern__control_serve_peer(&p->control, &p->peers[1], POLLIN, 0);
    tern__control_recv_fd(&p->control, 1, 3, 0, &fd, NULL);
    tern__close(&fd);
    assert_int_equal(lowest_free_fd(), free_fd);
}

#define ON_A_PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_PAIR(silence_and_death_is_a_loss),
        ON_A_PAIR(a_reset_between_hosts_is_no_proof_of_an_end),
        ON_A_PAIR(a_goodbye_before_the_end_is_heard),
        ON_A_PAIR(a_goodbye_behind_a_reset_is_heard),
        ON_A_PAIR(an_abort_before_the_end_is_the_reason),
        ON_A_PAIR(the_first_event_stays),
        ON_A_PAIR(nobodys_end_is_waited_for_after_a_failure),
        ON_A_PAIR(nor_by_a_group_that_is_being_closed),
        ON_A_PAIR(malformed_packets_are_the_senders_failure),
        ON_A_PAIR(stray_descriptors_are_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
