"""The server of forked.py: forks for each test. It has one thread, and so has each fork: OpenBLAS, which starts threads when numpy is
imported, ends them before a fork. It ends when it has had no test for IDLE seconds."""
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import types

import forked
from forked import LENGTH, STATUS, server_name

IMPORTED = "unittest", "numpy", "torch", "torchvision", "transformers.modeling_utils", "peft"
IDLE = 10
LIBC = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def is_over(listener, folder):
    """Whether no client waits, and none can come any more."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    over = not select.select([listener], [], [], 0)[0]
    if over:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(server_name(), dir_fd=folder)
    fcntl.flock(folder, fcntl.LOCK_UN)
    return over


def request_read(connection):
    """Returns the client's descriptors and the fields of its request; none of a client that was killed while it sent them."""
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 253)
    length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 1
    with connection.makefile("rb") as file:
        body = file.read(length)
    return descriptors, body.split(b"\0") if len(body) == length else []


def status_send(pid, connection):
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # of a client that was killed
        connection.sendall(STATUS.pack(status))
    connection.close()


def serve(listener, folder):
    """Returns in every fork, with what the client has sent. The server itself ends here."""
    running = {}  # the process and the connection of each test, by its pidfd
    while True:
        clients = {connection: pid for pid, connection in running.values()}
        ready = select.select([listener, *clients, *running], [], [], IDLE)[0]
        if not ready and not running and is_over(listener, folder):
            sys.exit()
        for source in ready:
            if source is listener:
                connection = listener.accept()[0]
                descriptors, request = request_read(connection)
                pid = os.fork() if request else None
                if pid == 0:
                    os.setpgid(0, 0)
                    for end in (listener, connection, *clients):
                        end.close()
                    for end in (folder, *running):
                        os.close(end)
                    return descriptors, request
                for descriptor in descriptors:
                    os.close(descriptor)
                if pid:
                    running[os.pidfd_open(pid)] = pid, connection
            elif source in running:
                status_send(*running.pop(source))
                os.close(source)
            else:  # a client was killed
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(clients[source], signal.SIGKILL)


def become(descriptors, request):
    """Makes this process what the client is. Returns the script."""
    forked.is_fork = True
    cwd, numbers, count, *rest = request
    numbers = [int(number) for number in numbers.split()]
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(above, numbers):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    sys.argv, variables = [os.fsdecode(argument) for argument in rest[: int(count)]], rest[int(count) :]
    os.environb.clear()
    os.environb.update(variable.split(b"=", 1) for variable in variables)
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    return sys.argv[0]


def run_as_main(script):
    """Returns the exit status, as of `python3 script`, and shows the same traceback."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__file__ = script
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def exit_early(status):
    """Ends as Python does, with the exit handlers of Python and of the libraries that the test has loaded. What the server has imported is
    not freed: that would copy every page of it."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    LIBC.fflush(None)
    LIBC.exit(status)


def start():
    """Detaches the server from its client, so that ctest neither waits for it nor kills it with a test that takes too long."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    for name in IMPORTED:
        with contextlib.suppress(Exception):  # a test that imports it will say it
            importlib.import_module(name)
    LIBC.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # a test keeps what it frees: the kernel would clear its pages again and again
    LIBC.mallopt(M_MMAP_THRESHOLD, 32 << 20)
    LIBC.on_exit(LIBC._exit, None)  # in place of the exit handlers of what has been imported
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    start()
    request = serve(socket.socket(fileno=0), os.open(os.environ["TERN_BUILD"], os.O_RDONLY))
    exit_early(run_as_main(become(*request)))
