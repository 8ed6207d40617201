/* test_control_line.c - messages as frames of a stream, split at any byte; invalid frames; full socket
 * buffers. Also rank infos: when two are of the same machine, and invalid ones. */
#include "comm/control_fixture.h"

#include <fcntl.h>

/* A connection to a peer on another host, and its other end. */
typedef struct line {
    tern__control control;
    tern__peer peer;
    tern__stream stream;
    int end;
} line;

static int open_line(void **state)
{
    static line l;
    int ends[2];
    memset(&l, 0, sizeof(l));
    assert_return_code(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), errno);
    pthread_mutex_init(&l.control.send_lock, NULL);
    l.peer.fd = ends[0];
    l.peer.stream = &l.stream;
    l.end = ends[1];
    *state = &l;
    return 0;
}

static int close_line(void **state)
{
    line *l = *state;
    tern__close(&l->peer.fd);
    tern__close(&l->end);
    return pthread_mutex_destroy(&l->control.send_lock);
}

static tern__message make_message(uint64_t tag, size_t length)
{
    tern__message message = {.kind = TERN__MESSAGE_ABORT, .code = -(int)tag, .tag = tag};
    memset(message.text, 'a' + (int)(tag % 26), length);
    message.bytes = (uint32_t)length + 1;
    return message;
}

static void assert_message(const tern__message *message, uint64_t tag, size_t length)
{
    tern__message expected = make_message(tag, length);
    assert_memory_equal(message, &expected, TERN__MESSAGE_HEAD + expected.bytes);
}

static size_t length_of(int number)
{
    return (size_t)(number * 97 % TERN_ERROR_TEXT);
}

/* ---- receiving ---- */

static void frames_come_in_pieces_of_any_size(void **state)
{
    line *l = *state;
    enum { COUNT = 40 };
    static char bytes[COUNT * sizeof(tern__message)];
    for (int piece = 1; piece < 1200; piece = piece * 2 + 1) {
        size_t total = 0, sent = 0;
        int received = 0, fd;
        tern__message message;
        for (int i = 0; i < COUNT; i++) {
            message = make_message((uint64_t)i, length_of(i));
            memcpy(bytes + total, &message, TERN__MESSAGE_HEAD + message.bytes);
            total += TERN__MESSAGE_HEAD + message.bytes;
        }
        while (sent < total) {
            ssize_t count = send(l->end, bytes + sent, TERN__MIN((size_t)piece, total - sent), MSG_NOSIGNAL);
            assert_true(count > 0);
            sent += (size_t)count;
            while (tern__line_recv(&l->peer, &message, &fd) == 1) {
                assert_int_equal(fd, -1);
                assert_message(&message, (uint64_t)received, length_of(received));
                received++;
            }
        }
        assert_int_equal(received, COUNT);
        assert_int_equal(tern__line_recv(&l->peer, &message, &fd), 0);
    }
}

static void what_is_no_frame_is_refused(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, TERN_ERROR_TEXT + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < TERN__COUNT(lengths) + 2; i++) {
        void *fresh;
        open_line(&fresh);
        line *l = fresh;
        int fd;
        tern__message message = make_message(1, 10), got;
        if (i < TERN__COUNT(lengths)) message.bytes = lengths[i];
        if (i == TERN__COUNT(lengths)) message.text[10] = 'x'; /* has no terminator */
        if (i > TERN__COUNT(lengths)) message.kind = TERN__MESSAGE_FD;
        size_t bytes = TERN__MESSAGE_HEAD + (i < TERN__COUNT(lengths) ? 0 : message.bytes);
        assert_int_equal(send(l->end, &message, bytes, MSG_NOSIGNAL), bytes);
        assert_int_equal(tern__line_recv(&l->peer, &got, &fd), -EBADMSG);
        close_line(&fresh);
    }
}

/* A packet may bring one descriptor; of two none is taken, and none stays open. */
static void of_two_descriptors_none_is_kept(void **state)
{
    (void)state;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } room = {0};
    int ends[2], tube[2], fd;
    char byte;
    assert_return_code(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), errno);
    assert_return_code(pipe2(tube, O_CLOEXEC | O_NONBLOCK), errno);
    tern__peer peer = {.fd = ends[0]};
    tern__message message = make_message(1, 10), got;
    struct iovec body = {&message, TERN__MESSAGE_HEAD + message.bytes};
    struct msghdr header = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof(room.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    *c = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(2 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), (int[]){tube[1], tube[1]}, 2 * sizeof(int));
    assert_true(sendmsg(ends[1], &header, 0) > 0);
    tern__close(&tube[1]);
    assert_int_equal(tern__line_recv(&peer, &got, &fd), 1);
    assert_int_equal(fd, -1);
    assert_int_equal(read(tube[0], &byte, 1), 0); /* nobody can write any more */
    for (int i = 0; i < 2; i++) tern__close(&ends[i]);
    tern__close(&tube[0]);
}

static void the_end_is_told_from_a_pause(void **state)
{
    line *l = *state;
    tern__message message = make_message(1, 10), got;
    int fd;
    assert_int_equal(send(l->end, &message, 30, MSG_NOSIGNAL), 30);
    assert_int_equal(tern__line_recv(&l->peer, &got, &fd), 0);
    tern__close(&l->end);
    assert_int_equal(tern__line_recv(&l->peer, &got, &fd), -ENODATA);
}

/* ---- sending ---- */

/* Sends until nothing more is accepted. Then all that was accepted arrives, complete and in order. */
static void what_the_kernel_does_not_take_is_kept(void **state)
{
    line *l = *state;
    int small = 1, accepted = 0, received = 0, fd;
    tern__message message;
    tern__stream far = {0};
    tern__peer reader = {.fd = l->end, .stream = &far};
    assert_return_code(setsockopt(l->peer.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), errno);
    for (;; accepted++) {
        message = make_message((uint64_t)accepted, length_of(accepted));
        int native = tern__line_send(&l->control, &l->peer, &message);
        if (native) {
            assert_int_equal(native, EAGAIN);
            break;
        }
        assert_true(accepted < 10000);
    }
    assert_true(tern__line_is_waiting(&l->control, &l->peer) && accepted > 3);
    for (int quiet = 0; quiet < 2;) {
        int status = tern__line_recv(&reader, &message, &fd);
        assert_true(status >= 0);
        if (status == 1) assert_message(&message, (uint64_t)received, length_of(received));
        received += status;
        quiet = status ? 0 : quiet + 1;
        if (!status) tern__line_flush(&l->control, &l->peer);
    }
    assert_int_equal(received, accepted);
    assert_false(tern__line_is_waiting(&l->control, &l->peer));
}

static void a_broken_line_is_an_errno(void **state)
{
    line *l = *state;
    tern__message message = make_message(1, 10);
    tern__close(&l->end);
    assert_int_equal(tern__line_send(&l->control, &l->peer, &message), EPIPE);
}

/* ---- rank infos ---- */

static tern__rank_info info_of(const char *host_id)
{
    tern__rank_info info;
    tern_error err = {0};
    const tern__bootstrap boot = {.world = 2, .host_id = host_id};
    assert_int_equal(tern__rank_info_make(&info, &boot, &err), TERN_OK);
    return info;
}

static void hosts_are_told_apart_by_their_ids(void **state)
{
    (void)state;
    tern__rank_info plain = info_of(NULL), a = info_of("a"), again = info_of("a"), slashes = info_of("a/b/c");
    char text[128];
    assert_string_equal(a.host_key, again.host_key);
    assert_string_not_equal(a.host_key, plain.host_key);
    assert_string_not_equal(a.host_key, slashes.host_key);
    assert_true(tern__rank_info_is_same_machine(&a, &plain) && tern__rank_info_is_same_machine(&slashes, &a));
    assert_memory_not_equal(a.epoch, again.epoch, sizeof(a.epoch));
    a.host_key[0]++;
    assert_false(tern__rank_info_is_same_machine(&a, &plain));
    tern__rank_info_describe(&slashes, 3, text, sizeof(text));
    assert_non_null(strstr(text, "/a/b/c, pid "));
}

static void a_name_of_any_length_fits(void **state)
{
    (void)state;
    char id[200];
    tern_error err = {0};
    tern__rank_info info;
    const tern__bootstrap boot = {.world = 2, .host_id = id};
    for (size_t length = 0; length < sizeof(id); length++) {
        memset(id, 'i', sizeof(id));
        id[length] = '\0';
        err = (tern_error){0};
        int status = tern__rank_info_make(&info, &boot, &err);
        assert_true(status == TERN_OK || status == TERN_E_ENV);
        assert_non_null(memchr(info.host, 0, sizeof(info.host)));
        assert_non_null(memchr(info.host_key, 0, sizeof(info.host_key)));
    }
    assert_int_equal(err.code, TERN_E_ENV);
    assert_non_null(strstr(err.text, "at most"));
}

static void what_is_no_info_is_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    const tern__bootstrap boot = ranks_boot(2);
    tern_store *store = tern__store_open(&boot, 5, &err);
    assert_int_equal(err.code, TERN_OK);
    for (int i = 0; i < 4; i++) {
        tern__rank_info info = info_of("a"), got;
        if (i == 1) memset(info.host, 'x', sizeof(info.host));
        if (i == 2) memset(info.host_key, 'x', sizeof(info.host_key));
        if (i == 3) info.name_bytes = sizeof(info.name) + 1;
        tern_store_set(store, "control/1", &info, sizeof(info) - (i == 0), &err);
        assert_int_equal(err.code, TERN_OK);
        assert_int_equal(tern__rank_info_get(&got, "control/", 1, store, 5, &err), TERN_E_PEER);
        assert_non_null(strstr(err.text, "rank 1 published a malformed info"));
        err = (tern_error){0};
    }
    tern_store_set(store, "control/1/tcp", "nowhere", 7, &err);
    struct sockaddr_storage at;
    assert_int_equal(tern__tcp_get(&at, 1, store, 5, &err), TERN_E_PEER);
    assert_non_null(strstr(err.text, "rank 1 published a malformed address"));
    tern_store_close(store);
}

/* ---- ports ---- */

static void a_port_of_either_family_can_be_called(void **state)
{
    (void)state;
    static const char *const addresses[] = {"127.0.0.1", "::1"};
    for (size_t i = 0; i < TERN__COUNT(addresses); i++) {
        tern_error err = {0};
        tern__bootstrap boot = {.world = 2};
        struct sockaddr_storage at;
        char host[64], text[128], expected[80];
        snprintf(boot.addr, sizeof(boot.addr), "%s", addresses[i]);
        int door = tern__tcp_listen(&boot, true, &at, &err);
        if (door < 0 && i == 1) {
            print_message("no IPv6 here: %s\n", err.text);
            continue;
        }
        assert_int_equal(err.code, TERN_OK);
        tern__tcp_host(&at, host, sizeof(host));
        tern__tcp_text(&at, text, sizeof(text));
        assert_string_equal(host, addresses[i]);
        snprintf(expected, sizeof(expected), "%s port ", addresses[i]);
        assert_int_equal(strncmp(text, expected, strlen(expected)), 0);
        int fd = tern__tcp_connect(&at, tern__deadline(5));
        assert_true(fd >= 0);
        assert_int_equal(tern__tcp_tune(fd, 2), 0);
        tern__tcp_close(&fd);
        assert_int_equal(fd, -1);
        tern__close(&door);
        assert_int_equal(tern__tcp_connect(&at, tern__deadline(5)), -ECONNREFUSED);
    }
}

/* Another machine cannot be reached over the loopback, whatever address rank 0 has there. */
static void the_loopback_leads_to_no_other_machine(void **state)
{
    (void)state;
    tern_error err = {0};
    const tern__bootstrap boot = {.world = 2, .addr = "127.0.1.1"};
    struct sockaddr_storage at;
    char host[64] = "none";
    int door = tern__tcp_listen(&boot, false, &at, &err);
    if (door >= 0) tern__tcp_host(&at, host, sizeof(host));
    assert_true(door >= 0 || (err.code == TERN_E_SYSTEM && strstr(err.text, "TERN_SOCKET_IFNAME")));
    assert_int_not_equal(strncmp(host, "127.", 4), 0);
    tern__close(&door);
}

#define ON_A_LINE(test) cmocka_unit_test_setup_teardown(test, open_line, close_line)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_LINE(frames_come_in_pieces_of_any_size),
        cmocka_unit_test(of_two_descriptors_none_is_kept),
        cmocka_unit_test(what_is_no_frame_is_refused),
        ON_A_LINE(the_end_is_told_from_a_pause),
        ON_A_LINE(what_the_kernel_does_not_take_is_kept),
        ON_A_LINE(a_broken_line_is_an_errno),
        cmocka_unit_test(a_port_of_either_family_can_be_called),
        cmocka_unit_test(the_loopback_leads_to_no_other_machine),
        cmocka_unit_test(hosts_are_told_apart_by_their_ids),
        cmocka_unit_test(a_name_of_any_length_fits),
        cmocka_unit_test(what_is_no_info_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
