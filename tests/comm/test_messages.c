/* test_messages.c - messages in flight in a group over several hosts. One that could not be started is
 * neither tested nor cancelled. The transport is a fake that the test controls. */
#include "check.h"

#include "comm/meet/control/inner.h"
#include "comm/move/transport/hosts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORLD = 4 };

typedef struct wire {
    int refuses, breaks; /* peers to which messages cannot be started, or whose messages fail */
    int pending;         /* how often a message's test returns pending first */
    int begun[WORLD], tested[WORLD], closed;
} wire;

static int start(wire *w, int peer, tern_transport_message *message, char *why, size_t why_size)
{
    if (peer == w->refuses) {
        snprintf(why, why_size, "no way to %d", peer);
        return TERN_E_SYSTEM;
    }
    w->begun[peer]++;
    message->slots[0] = &w->tested[peer];
    return TERN_OK;
}

static int wire_send(void *state, int peer, int tag, const void *data, size_t bytes,
                     tern_transport_message *message, char *why, size_t why_size)
{
    (void)tag, (void)data, (void)bytes;
    return start(state, peer, message, why, why_size);
}

static int wire_recv(void *state, int peer, int tag, void *data, size_t bytes,
                     tern_transport_message *message, char *why, size_t why_size)
{
    (void)tag, (void)data, (void)bytes;
    return start(state, peer, message, why, why_size);
}

static int wire_test(void *state, tern_transport_message *message, char *why, size_t why_size)
{
    wire *w = state;
    int *tested = message->slots[0]; /* NULL if it was never started */
    assert_non_null(tested);
    ++*tested;
    if (tested - w->tested == w->breaks) {
        snprintf(why, why_size, "broken");
        return TERN_E_PEER;
    }
    return w->pending-- > 0 ? TERN_PENDING : TERN_OK;
}

static void wire_close(void *state, bool failed)
{
    assert_true(failed);
    ((wire *)state)->closed++;
}

static const tern_transport transport = {
    .name = "wire", .send = wire_send, .recv = wire_recv, .test = wire_test, .close = wire_close};

/* Rank 0 of a group that has failed already, so that nothing waits for the control plane's reason. */
typedef struct fixture {
    wire wire;
    tern__control control;
    tern_group group;
    tern__link link;
    tern__hosts hosts;
    tern__messages messages;
    char data[8];
} fixture;

static int setup(void **state)
{
    fixture *f = aligned_alloc(_Alignof(fixture), sizeof(*f));
    assert_non_null(f);
    memset(f, 0, sizeof(*f));
    f->wire.refuses = f->wire.breaks = -1;
    atomic_store(&f->control.failed, 1);
    tern__error_set(&f->control.event, NULL, TERN_E_PEER, "rank 3 is lost");
    f->group.boot.world = WORLD;
    f->group.root = &f->group;
    f->group.control = &f->control;
    f->group.pid = getpid();
    f->link = (tern__link){.transport = &transport, .state = &f->wire, .root = &f->group};
    f->hosts = (tern__hosts){.group = &f->group, .link = &f->link};
    *state = f;
    return tern__messages_open(&f->messages, &f->hosts, NULL);
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

static int send_to(fixture *f, int rank, tern_error *err)
{
    return tern__messages_send(&f->messages, rank, 0, f->data, sizeof(f->data), err);
}

static int recv_from(fixture *f, int rank, tern_error *err)
{
    return tern__messages_recv(&f->messages, rank, 0, f->data, sizeof(f->data), err);
}

static void over_when_all_are(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    f->wire.pending = 3;
    assert_int_equal(send_to(f, 1, &err), TERN_OK);
    assert_int_equal(recv_from(f, 1, &err), TERN_OK);
    assert_int_equal(recv_from(f, 3, &err), TERN_OK);
    assert_true(tern__messages_awaits(&f->messages, 1) && tern__messages_awaits(&f->messages, 3));
    assert_false(tern__messages_awaits(&f->messages, 2));
    assert_int_equal(tern__messages_test(&f->messages, &err), TERN_PENDING);
    assert_int_equal(tern__messages_test(&f->messages, &err), TERN_OK);
    assert_int_equal(tern__messages_test(&f->messages, &err), TERN_OK);
    assert_int_equal(f->wire.tested[1] + f->wire.tested[3], 6);
    assert_false(tern__messages_awaits(&f->messages, 1) || tern__messages_awaits(&f->messages, 3));
    tern__messages_close(&f->messages);
    assert_int_equal(f->wire.closed, 0);
}

static void awaits_who_has_not_taken_one(void **state)
{
    fixture *f = *state;
    f->wire.pending = 2;
    assert_int_equal(send_to(f, 2, NULL), TERN_OK);
    assert_int_equal(recv_from(f, 3, NULL), TERN_OK);
    assert_true(tern__messages_awaits(&f->messages, 2) && tern__messages_awaits(&f->messages, 3));
    assert_false(tern__messages_awaits(&f->messages, 2) || tern__messages_awaits(&f->messages, 3));
    tern__messages_close(&f->messages);
    assert_int_equal(f->wire.closed, 0);
}

static void of_no_bytes_there_is_none(void **state)
{
    fixture *f = *state;
    assert_int_equal(tern__messages_send(&f->messages, 1, 0, NULL, 0, NULL), TERN_OK);
    assert_int_equal(tern__messages_recv(&f->messages, 1, 0, NULL, 0, NULL), TERN_OK);
    assert_int_equal(tern__messages_test(&f->messages, NULL), TERN_OK);
    assert_int_equal(f->wire.begun[1], 0);
    tern__messages_close(&f->messages);
    assert_int_equal(f->wire.closed, 0);
}

static void refused(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    f->wire.refuses = 2;
    assert_int_equal(send_to(f, 2, &err), TERN_E_PEER);
    assert_non_null(strstr(err.text, "rank 3 is lost"));
    assert_int_equal(recv_from(f, 2, NULL), TERN_E_PEER);
    assert_false(tern__messages_awaits(&f->messages, 2));
    assert_int_equal(tern__messages_test(&f->messages, NULL), TERN_OK);
    tern__messages_close(&f->messages);
    assert_int_equal(f->wire.closed, 0);
}

static void given_up_while_under_way(void **state)
{
    fixture *f = *state;
    tern_error err = {0};
    f->wire.refuses = 2;
    f->wire.breaks = 3;
    assert_int_equal(send_to(f, 3, &err), TERN_OK);
    assert_int_equal(send_to(f, 2, NULL), TERN_E_PEER);
    assert_int_equal(tern__messages_test(&f->messages, &err), TERN_E_PEER);
    tern__messages_close(&f->messages);
    assert_int_equal(f->wire.closed, 1);
    assert_null(f->link.state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(over_when_all_are, setup, teardown),
        cmocka_unit_test_setup_teardown(awaits_who_has_not_taken_one, setup, teardown),
        cmocka_unit_test_setup_teardown(of_no_bytes_there_is_none, setup, teardown),
        cmocka_unit_test_setup_teardown(refused, setup, teardown),
        cmocka_unit_test_setup_teardown(given_up_while_under_way, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
