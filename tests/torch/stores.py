"""tern's stores with PyTorch's method names, and the tests that run with both PyTorch 1.13 and the newest: either
library's client must get the same answers from either's server, from a file, and from parts of these."""
import ctypes
import datetime
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import skips

os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # failures are expected, and their traces useless

import torch.distributed as dist  # noqa: E402

import libuv  # noqa: E402
import tern  # noqa: E402

libuv.do_without()
HERE = os.path.dirname(os.path.abspath(__file__))
NEW = hasattr(dist.TCPStore, "queue_push")
SECRET = b"a secret of thirty-two bytes, .."


class TcpOpts(ctypes.Structure):
    """tern_store_tcp_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("is_server", ctypes.c_bool), ("listen_fd", ctypes.c_int), ("world", ctypes.c_int),
                ("wait_for_workers", ctypes.c_bool), ("timeout_s", ctypes.c_double), ("secret", ctypes.c_char_p)]


class Value(ctypes.Structure):
    """tern_store_value."""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


LIB = tern.Library()
LIB.returns(TcpOpts, "tern_store_tcp_defaults")
LIB.returns(ctypes.POINTER(Value), "tern_store_list_keys")


def text_of(value):
    return value if isinstance(value, bytes) else value.encode()


def value_of(value):
    value = text_of(value)
    return Value(ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p), len(value))


def keys_of(keys):
    return (ctypes.c_char_p * len(keys))(*map(text_of, keys)), ctypes.c_size_t(len(keys))


class Store:
    """A tern_store with PyTorch's method names."""

    def __init__(self, pointer):
        self.store = ctypes.c_void_p(pointer)

    @classmethod
    def tcp(cls, port=0, timeout=20, **fields):
        opts = LIB.tern_store_tcp_defaults()
        opts.timeout_s = timeout
        for name, value in fields.items():
            setattr(opts, name, value)
        return cls(LIB.check("tern_store_tcp_open", b"127.0.0.1", port, ctypes.byref(opts)))

    @classmethod
    def file(cls, path, world):
        return cls(LIB.check("tern_store_file_open", text_of(path), world))

    @classmethod
    def prefix(cls, prefix, base):
        return cls(LIB.check("tern_store_prefix_new", text_of(prefix), base.store))

    def close(self):
        LIB.tern_store_close(self.store)
        self.store = None

    @property
    def port(self):
        return LIB.tern_store_port(self.store)

    def set_timeout(self, timeout):
        LIB.check("tern_store_timeout_set", self.store, ctypes.c_double(timeout.total_seconds()))

    def set(self, key, value):
        LIB.check("tern_store_set", self.store, text_of(key), text_of(value), ctypes.c_size_t(len(text_of(value))))

    def get(self, key):
        size = ctypes.c_size_t()
        return ctypes.string_at(LIB.check("tern_store_get", self.store, text_of(key), ctypes.byref(size)), size.value)

    def add(self, key, delta):
        total = ctypes.c_int64()
        LIB.check("tern_store_add", self.store, text_of(key), ctypes.c_int64(delta), ctypes.byref(total))
        return total.value

    def compare_set(self, key, expected, desired):
        now = Value()
        LIB.check("tern_store_compare_set", self.store, text_of(key), value_of(expected), value_of(desired), ctypes.byref(now))
        return ctypes.string_at(now.data, now.bytes)

    def append(self, key, value):
        LIB.check("tern_store_append", self.store, text_of(key), text_of(value), ctypes.c_size_t(len(text_of(value))))

    def delete_key(self, key):
        return bool(LIB.check("tern_store_delete", self.store, text_of(key)))

    def check(self, keys):
        return bool(LIB.check("tern_store_check", self.store, *keys_of(keys)))

    def wait(self, keys, timeout=None):
        LIB.check("tern_store_wait", self.store, *keys_of(keys), ctypes.c_double(timeout.total_seconds() if timeout else -1))

    def multi_get(self, keys):
        values = (Value * len(keys))()
        LIB.check("tern_store_multi_get", self.store, *keys_of(keys), values)
        return [ctypes.string_at(value.data, value.bytes) for value in values]

    def multi_set(self, keys, values):
        pointers, count = keys_of(keys)
        LIB.check("tern_store_multi_set", self.store, pointers, (Value * len(keys))(*map(value_of, values)), count)

    def num_keys(self):
        return LIB.check("tern_store_num_keys", self.store)

    def list_keys(self):
        count = ctypes.c_size_t()
        keys = LIB.check("tern_store_list_keys", self.store, ctypes.byref(count))
        return [ctypes.string_at(keys[i].data, keys[i].bytes).decode() for i in range(count.value)]

    def queue_push(self, key, value):
        LIB.check("tern_store_queue_push", self.store, text_of(key), text_of(value), ctypes.c_size_t(len(text_of(value))))

    def queue_pop(self, key, block=True):
        size = ctypes.c_size_t()
        value = LIB.check("tern_store_queue_pop", self.store, text_of(key), block, ctypes.byref(size))
        if value is None:
            raise IndexError("queue is empty")
        return ctypes.string_at(value, size.value)

    def queue_len(self, key):
        return LIB.check("tern_store_queue_len", self.store, text_of(key))

    def barrier(self, key, world):
        LIB.check("tern_store_barrier", self.store, text_of(key), ctypes.c_int64(world))


def torch_tcp(port=0, world=None, server=False, timeout=20, wait=True, **options):
    return dist.TCPStore("127.0.0.1", port, world, server, datetime.timedelta(seconds=timeout), wait, **options)


def outcome(call, *args):
    """A call's result, or that it fails; the error texts differ between libraries."""
    try:
        return call(*args)
    except Exception:  # noqa: BLE001
        return "fails"


def in_brief(store, name, *args):
    """The outcome of a call that will time out. Other waits get all the time that a busy machine needs."""
    store.set_timeout(datetime.timedelta(seconds=0.2))
    result = outcome(getattr(store, name), *args)
    store.set_timeout(datetime.timedelta(seconds=20))
    return result


def plain(store):
    """The operations of every PyTorch's stores."""
    yield store.set("a", "one"), store.get("a"), store.set("a", "other"), store.get("a")
    yield store.set("empty", ""), store.get("empty"), store.set("", "x"), store.get(""), store.set("größe", "é"), store.get("größe")
    yield store.add("n", 3), store.add("n", -5), store.get("n"), store.add("n", 2**40), store.add("n", 0)
    yield store.set("m", "17"), store.add("m", 1)
    yield store.compare_set("a", "wrong", "c"), store.compare_set("a", "other", "c"), store.get("a")
    yield store.compare_set("new", "x", "y"), store.compare_set("new", "", "y"), store.compare_set("new", "y", "")
    yield store.delete_key("a"), store.num_keys()
    yield in_brief(store, "get", "a"), outcome(store.wait, ["n", "a"], datetime.timedelta(seconds=0.2))
    yield store.wait(["n", "m"]), store.num_keys(), store.get("n")
    yield store.set("large", "x" * 300000), store.get("large") == b"x" * 300000


def recent(store):
    """The further operations of PyTorch 2."""
    yield store.check(["n"]), store.check(["n", "nobody's"]), store.check([])
    yield store.append("p", "po"), store.append("p", "tato"), store.get("p")
    yield store.multi_set(["x", "y"], ["1", ""]), store.multi_get(["y", "x", "y"])
    yield sorted(store.list_keys()), store.num_keys()
    yield store.barrier("one", 1), store.num_keys(), sorted(store.list_keys())


def in_vain(store):
    """Operations that PyTorch's prefix stores do not end within their timeout."""
    yield in_brief(store, "multi_get", ["x", "nobody's"]), in_brief(store, "barrier", "two", 2), store.num_keys()


def queues(store):
    yield store.queue_len("q"), store.queue_push("q", "1"), store.queue_push("q", "2"), store.queue_len("q"), store.num_keys()
    yield store.check(["q"]), store.wait(["q"]), store.queue_pop("q"), store.queue_pop("q", False), store.queue_len("q")
    yield store.check(["q"]), outcome(store.queue_pop, "q", False), in_brief(store, "queue_pop", "q")
    yield store.queue_push("q", ""), store.delete_key("q"), store.queue_pop("q"), sorted(store.list_keys())


class Same(unittest.TestCase):
    """The same questions get the same answers, for every client and server."""

    def compare(self, expected, got, *questions):
        for ask in questions:
            for i, (right, answer) in enumerate(zip(ask(expected), ask(got))):
                self.assertEqual(right, answer, f"{ask.__name__}, group {i}")

    def questions(self, libuv=True):
        return [plain] + [recent, in_vain] * NEW + [queues] * (NEW and libuv)

    def test_our_server(self):
        ours = Store.tcp(is_server=True, world=2, wait_for_workers=False)
        self.compare(torch_tcp(0, 2, True, wait=False), torch_tcp(ours.port, wait=False), plain)
        ours.close()
        for by_us in (False, True):
            ours = Store.tcp(is_server=True)
            client = Store.tcp(ours.port) if by_us else torch_tcp(ours.port)
            self.compare(torch_tcp(0, None, True), client, *self.questions())
            if by_us:
                client.close()
            ours.close()

    def test_our_client(self):
        for libuv in (True, False) if NEW else (True,):
            options = {"use_libuv": libuv} if NEW else {}
            reference, asked = torch_tcp(0, None, True, **options), torch_tcp(0, None, True, **options)
            client = Store.tcp(asked.port)
            self.compare(reference, client, *self.questions(libuv))
            if not libuv or not NEW:  # an unknown query gives an error, and the client goes on
                for unknown in (lambda: client.queue_push("q", "1"), lambda: client.queue_len("q"), lambda: client.append("n", "0")):
                    if hasattr(dist.TCPStore, "append") and unknown.__code__.co_names[0] == "append":
                        continue
                    with self.assertRaisesRegex(tern.TernError, "PyTorch"):
                        unknown()
                    client.set("still", "here")
                    self.assertEqual(client.get("still"), b"here")
            if not NEW:  # as several queries
                client.multi_set(["x", "y"], ["1", "2"])
                self.assertEqual(client.multi_get(["y", "x"]), [b"2", b"1"])
                client.barrier("one", 1)
            client.close()

    def test_parts(self):
        ours = Store.tcp(is_server=True)
        server = torch_tcp(0, None, True)
        client = Store.tcp(server.port)
        asked = [recent] * NEW  # not every PyTorch version has queues in its prefix stores
        part = Store.prefix("p", client)
        self.compare(dist.PrefixStore("p", torch_tcp(0, None, True)), part, plain, *asked)
        self.compare(dist.PrefixStore("p", torch_tcp(0, None, True)), dist.PrefixStore("p", torch_tcp(ours.port)), plain, *asked)
        deep = dist.PrefixStore("b", dist.PrefixStore("a", torch_tcp(ours.port)))
        deep.set("k", "v")
        self.assertEqual(ours.get("a/b/k"), b"v")
        for store in (part, client, ours):
            store.close()

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in "rs"]
            theirs, ours = dist.FileStore(paths[0], 1), Store.file(paths[1], 1)
            for store in (theirs, ours):  # 1.13's creates its file with the first key, and keeps no counter of its users
                store.set("first", "")
            for right, answer in zip(plain(Counted(theirs, theirs.num_keys())), plain(Counted(ours, ours.num_keys()))):
                self.assertEqual(right, answer)
            del theirs
            ours.close()
            self.assertEqual(os.listdir(folder), [])


class Counted:
    """A file store whose number of keys is counted from its initial value."""

    def __init__(self, store, base):
        self.store, self.base = store, base

    def num_keys(self):
        return self.store.num_keys() - self.base

    def __getattr__(self, name):
        return getattr(self.store, name)


class Together(unittest.TestCase):
    """Several clients at once."""

    def test_clients_of_one_server(self):
        ours = Store.tcp(is_server=True)
        errors = []

        def client(i):
            try:
                store = torch_tcp(ours.port)
                for k in range(50):
                    store.set(f"{i}/{k}", f"{k}")
                    store.add("all", 1)
                    assert store.get(f"{i}/{k}") == f"{k}".encode()
                store.wait([f"{j}/49" for j in range(6)])
                while store.add("all", 0) < 300:
                    time.sleep(0.001)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(ours.get("all"), b"300")
        ours.close()

    def test_who_waits_is_woken(self):
        """PyTorch's client waits at our server and ours at PyTorch's; the other one sets the key."""
        ours, theirs = Store.tcp(is_server=True), torch_tcp(0, None, True)
        for waiter, setter in ((torch_tcp(ours.port), ours), (Store.tcp(theirs.port), theirs)):
            got = []
            thread = threading.Thread(target=lambda waiter=waiter, got=got: got.append(waiter.get("late")))
            thread.start()
            setter.set("late", "here")
            thread.join()
            self.assertEqual(got, [b"here"])

    def test_the_opening_waits_for_all(self):
        """Our server waits for PyTorch's clients, PyTorch's for ours."""
        port = []

        def serve():
            probe = socket.socket()
            probe.bind(("127.0.0.1", 0))
            probe.listen()
            port.append(probe.getsockname()[1])
            store = Store.tcp(is_server=True, world=3, listen_fd=probe.detach())
            port.append(store.num_keys())
            store.close()

        server = threading.Thread(target=serve)
        server.start()
        while not port:
            time.sleep(0.001)
        first = torch_tcp(port[0], 3)
        self.assertTrue(server.is_alive())
        second = torch_tcp(port[0], 3)
        server.join()
        self.assertEqual(port[1], 1)
        del first, second

    def test_too_few_come(self):
        with self.assertRaisesRegex(tern.TernError, r"1 of 2 opened the store at 127\.0\.0\.1 port \d+ within 0.2 s"):
            Store.tcp(is_server=True, world=2, timeout=0.2)

    def test_a_secret_keeps_them_out(self):
        ours = Store.tcp(is_server=True, secret=SECRET)
        self.assertEqual(outcome(lambda: torch_tcp(ours.port, 2, timeout=1).get("k")), "fails")
        with self.assertRaisesRegex(tern.TernError, "secret"):
            Store.tcp(ours.port)
        insider = Store.tcp(ours.port, secret=SECRET)
        insider.set("k", "v")
        self.assertEqual(ours.get("k"), b"v")
        insider.close()
        ours.close()

    def test_a_file_is_shared(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "store")
            theirs, ours = dist.FileStore(path, 2), Store.file(path, 2)
            theirs.set("a", "1")
            self.assertEqual(ours.get("a"), b"1")
            ours.set("b", "2")
            self.assertEqual(theirs.get("b"), b"2")
            self.assertEqual([ours.add("n", 1), theirs.add("n", 1), ours.add("n", 1)], [1, 2, 3])
            self.assertEqual(theirs.compare_set("a", "1", "one"), b"one")
            self.assertEqual(ours.get("a"), b"one")
            self.assertTrue(ours.delete_key("a"))
            self.assertEqual(theirs.num_keys(), ours.num_keys())
            got = []
            thread = threading.Thread(target=lambda: got.append(theirs.get("late")))
            thread.start()
            ours.set("late", "here")
            thread.join()
            self.assertEqual(got, [b"here"])
            if hasattr(theirs, "barrier"):
                thread = threading.Thread(target=lambda: theirs.barrier("b", 2))
                thread.start()
                ours.barrier("b", 2)
                thread.join()
            if ours_first := NEW:
                ours.close()
                del theirs
            else:
                del theirs
                ours.close()
            self.assertFalse(os.path.exists(path), f"ours first: {ours_first}")

    @unittest.skipUnless(NEW, "PyTorch 1.13 has no barrier")
    def test_a_barrier_of_both(self):
        ours, theirs = Store.tcp(is_server=True), torch_tcp(0, None, True)
        pairs = [(ours, torch_tcp(ours.port)), (Store.tcp(theirs.port), theirs)]
        pairs += [(Store.prefix("p", a), dist.PrefixStore("p", b)) for a, b in pairs]
        for a, b in pairs:
            thread = threading.Thread(target=lambda b=b: b.barrier("both", 2))
            thread.start()
            a.barrier("both", 2)
            thread.join()


class Gloo(unittest.TestCase):
    """init_process_group of real gloo ranks that meet at our server, as a test of everything together."""

    def test_ranks_meet(self):
        ours = Store.tcp(is_server=True)
        command = [sys.executable, os.path.join(HERE, "store_gloo_rank.py"), str(ours.port)]
        ranks = [subprocess.Popen(command + [str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
        for rank in ranks:
            output = rank.communicate(timeout=120)[0]
            self.assertEqual((rank.returncode, output.strip().splitlines()[-1:]), (0, ["equal"]), output)
        self.assertGreater(ours.num_keys(), 2)
        ours.close()


if __name__ == "__main__":
    skips.main()
