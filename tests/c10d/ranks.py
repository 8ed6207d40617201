"""Ranks as forked processes: torch is imported once.

    results = ranks.run(3, function, 5)     # function(rank, 5) in three processes that have met as a group of tern
"""
import datetime
import inspect
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
import traceback

import extension
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch_tern  # registers the back end

IS_NEWEST = hasattr(dist, "DistBackendError")
Failure = dist.DistBackendError if IS_NEWEST else RuntimeError
HAS_MONITORED_BARRIER = "only implemented for GLOO" not in inspect.getsource(dist.monitored_barrier)  # for others than gloo
FORK = multiprocessing.get_context("fork")
LIMIT_S = 30


def meet(rank, world, meeting, backend="tern", timeout=60):
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=timeout))


def gloo_groups():
    """Groups of gloo must not be destroyed: that waits for gloo's threads and keeps Python's lock, which one of them needs if it has a
    tensor's last reference."""
    groups = c10d._world.pg_map if hasattr(c10d, "_world") else c10d._pg_map
    return [group for group, (backend, _) in groups.items() if "gloo" in backend]


def rank_main(pipe, rank, world, meeting, function, args, environment, how):
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        if meeting:
            meet(rank, world, meeting, **how)
        answer = (True, function(rank, *args))
        if meeting and dist.is_initialized():
            kept = gloo_groups()  # until os._exit
            dist.destroy_process_group()
    except BaseException:  # KeyboardInterrupt, too
        answer = (False, traceback.format_exc())
    pipe.send(answer)
    pipe.close()
    sys.stdout.flush()
    os._exit(0)  # a rank that failed must not wait for its peers in destructors


def run(world, function, *args, meets=True, killed=(), environments=None, limit_s=LIMIT_S, **how):
    """Returns what each rank returned; None for those in `killed`, which must end by a SIGKILL."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world):
            ours, theirs = FORK.Pipe(duplex=False)
            environment = environments[rank] if environments else {}
            process = FORK.Process(target=rank_main, args=(theirs, rank, world, meets and os.path.join(folder, "meeting"), function, args, environment, how))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        results, faults, end = [], [], time.monotonic() + limit_s
        for rank, (process, pipe) in enumerate(ranks):
            try:
                is_done, answer = pipe.recv() if pipe.poll(max(0, end - time.monotonic())) else (False, f"hangs for {limit_s} s")
            except EOFError:
                is_done, answer = rank in killed, None
                process.join()
                if not is_done or process.exitcode != -signal.SIGKILL:
                    is_done, answer = False, f"ended with status {process.exitcode}"
            results.append(answer)
            if not is_done:
                faults.append(f"rank {rank}: {answer}")
        for process, _ in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
    if faults:
        raise AssertionError("\n".join(faults))
    return results


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def tcp_store(rank, port):
    """Debian's PyTorch has no libuv, which these stores use from 2.4 on unless they are told."""
    options = {"use_libuv": False} if extension.TORCH == "debian" and "use_libuv" in dist.TCPStore.__init__.__doc__ else {}
    return dist.TCPStore("127.0.0.1", port, 2, rank == 0, **options)


def elapsed(call):
    """Seconds that a call takes, and what it raises."""
    start = time.monotonic()
    try:
        call()
        raised = None
    except Exception as why:
        raised = why
    return time.monotonic() - start, raised
