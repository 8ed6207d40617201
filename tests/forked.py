"""Runs a test in a fork of forkserver.py, which has imported numpy and torch: their import takes a second of processor time.

    python3 -I -S forked.py SCRIPT      # as `python3 SCRIPT`, for a test that starts no process and measures no time

Passes its standard streams, working folder and environment, waits, and ends as the test does; the test is killed when this is. The
first one starts the server. Variables that are read when a process starts (OMP_NUM_THREADS, LD_PRELOAD, PYTHONPATH ..) are those of
the server, so each environment has a server of its own: only TERN_* may differ.
"""
import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import zlib

LENGTH = struct.Struct("=Q")  # of a request: the script, the working folder and the environment
STATUS = struct.Struct("=i")  # as of os.waitstatus_to_exitcode


def server_name():
    start = sorted(item for item in os.environb.items() if not item[0].startswith(b"TERN_"))
    return f"forkserver-{zlib.crc32(repr(start).encode()):08x}"


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


def request_send(script):
    """Returns the connection on which the status will come. A socket's path has at most 107 bytes; a build folder's may have more."""
    folder = os.open(os.environ["TERN_BUILD"], os.O_RDONLY)
    path = f"/proc/self/fd/{folder}/{server_name()}"
    variables = [name + b"=" + value for name, value in os.environb.items()]
    body = b"\0".join([os.fsencode(os.path.abspath(script)), os.getcwdb(), *variables])
    fcntl.flock(folder, fcntl.LOCK_EX)  # no server starts or ends meanwhile
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        server_start(path)
        connection.connect(path)
    socket.send_fds(connection, [LENGTH.pack(len(body))], [0, 1, 2])
    connection.sendall(body)
    os.close(folder)
    return connection


def run_forked(script):
    """Returns the test's exit status, or ends by the signal that has ended it."""
    answer = request_send(script).recv(STATUS.size)
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
    sys.exit(run_forked(sys.argv[1]))
