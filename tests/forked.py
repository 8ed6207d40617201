"""Runs a test in a fork of forkserver.py, which has imported numpy and torch: their import takes a second of processor time.

    python3 -I -S forked.py SCRIPT [ARGUMENT ..]    # as `python3 SCRIPT ..`, for a test or rank that starts no process and measures no time

Passes its open descriptors, working folder and environment, waits, and ends as the test does; the test is killed when this is. The
first one starts the server. Variables that are read when a process starts (OMP_NUM_THREADS, LD_PRELOAD, PYTHONPATH ..) are those of
the server, so each environment has a server of its own: only what tern reads, what tells ranks apart and the folder of torch.compile may differ. So has each Python
(peers.py).
"""
import contextlib
import fcntl
import os
import re
import resource
import signal
import socket
import struct
import sys
import zlib

OWN = r"(TERN|TORCHELASTIC|MASTER)_|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE|NAME)$|TORCHINDUCTOR_CACHE_DIR$"
LENGTH = struct.Struct("=Q")  # of a request: the working folder, numbers of descriptors, the number of arguments, they, and the environment
STATUS = struct.Struct("=i")  # as of os.waitstatus_to_exitcode
is_fork = False  # set by forkserver.py


def interpreter():
    """The command before the script of a test's ranks. A sanitizer reports at the normal exit of a process, which a fork does not have."""
    own = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return own[:1] if "asan" in os.environ.get("LD_PRELOAD", "") else own


def server_name():
    start = sorted(item for item in os.environ.items() if not re.match(OWN, item[0]))
    return f"forkserver-{zlib.crc32(repr((sys.executable, start)).encode()):08x}"


def server_start(path):
    """The server gets a listening socket as its standard input, so that clients need not wait until it is ready."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        files = [(os.POSIX_SPAWN_DUP2, listener.fileno(), 0)]
        files += [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forkserver.py")
        pid = os.posix_spawn(sys.executable, [sys.executable, script], os.environ, file_actions=files)
    os.waitpid(pid, 0)  # its child goes on


def inherited():
    """The numbers of the descriptors that a program started by this one would have."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # of that folder's own
            found += [int(name)] * os.get_inheritable(int(name))
    return found


def request_send(arguments):
    """Returns the connection on which the status will come. A socket's path has at most 107 bytes; a build folder's may have more."""
    given = inherited()
    folder = os.open(os.environ["TERN_BUILD"], os.O_RDONLY)
    path = f"/proc/self/fd/{folder}/{server_name()}"
    variables = [name + b"=" + value for name, value in os.environb.items()]
    numbers = " ".join(map(str, given)).encode()
    body = b"\0".join([os.getcwdb(), numbers, b"%d" % len(arguments), *map(os.fsencode, arguments), *variables])
    fcntl.flock(folder, fcntl.LOCK_EX)  # no server starts or ends meanwhile
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        server_start(path)
        connection.connect(path)
    socket.send_fds(connection, [LENGTH.pack(len(body))], given)
    connection.sendall(body)
    os.close(folder)
    return connection


def run_forked(arguments):
    """Returns the test's exit status, or ends by the signal that has ended it."""
    try:
        connection = request_send(arguments)
    except OSError:  # a file system without sockets
        os.execv(sys.executable, [sys.executable, *arguments])
    answer = connection.recv(STATUS.size)
    if not answer:
        sys.exit("forked.py: the server has ended before the test")
    (status,) = STATUS.unpack(answer)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the test has left its own
        with contextlib.suppress(OSError):  # of signals that cannot be handled
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(run_forked(sys.argv[1:]))
