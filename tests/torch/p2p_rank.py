"""One rank of test_p2p.py: the same messages by tern and by torch over gloo.

    tern run -n N /usr/bin/python3 p2p_rank.py MEETING_FILE
"""
import ctypes
import os
import sys

import numpy
import torch
import torch.distributed as dist

from tern import Library, pointer

# tern's number of each dtype that gloo sends
DTYPES = {torch.float32: 0, torch.float64: 1, torch.int64: 2, torch.int32: 3, torch.uint8: 4, torch.float16: 6, torch.int8: 8, torch.int16: 9}
ANY_SOURCE, ROUNDS, MESSAGES, TAGS = -1, 6, 30, 4


class P2P(ctypes.Structure):
    """tern_p2p."""

    _fields_ = [("direction", ctypes.c_int), ("buf", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("dtype", ctypes.c_int), ("peer", ctypes.c_int), ("tag", ctypes.c_int)]


class Tern:
    """torch.distributed's calls, made by tern."""

    def __init__(self):
        self.lib = Library()
        self.group = ctypes.c_void_p(self.lib.check("tern_group_open", None))

    def start(self, name, tensor, peer, tag):
        args = pointer(tensor), ctypes.c_size_t(tensor.numel()), DTYPES[tensor.dtype], peer, tag
        return ctypes.c_void_p(self.lib.check(name, self.group, *args))

    def isend(self, tensor, peer, tag):
        return self.start("tern_isend", tensor, peer, tag)

    def irecv(self, tensor, peer, tag):
        return self.start("tern_irecv", tensor, ANY_SOURCE if peer is None else peer, tag)

    def wait(self, work):
        self.lib.check("tern_work_wait", work)

    def recv(self, tensor, peer, tag):
        source = ctypes.c_int(-7)
        args = pointer(tensor), ctypes.c_size_t(tensor.numel()), DTYPES[tensor.dtype]
        peer = ANY_SOURCE if peer is None else peer
        self.lib.check("tern_recv", self.group, *args, peer, tag, ctypes.byref(source))
        return source.value

    def batch(self, ops):
        array = (P2P * len(ops))(*[(int(op == "irecv"), pointer(t), t.numel(), DTYPES[t.dtype], peer, tag)
                                   for op, t, peer, tag in ops])
        works = (ctypes.c_void_p * len(ops))()
        self.lib.check("tern_batch_isend_irecv", self.group, array, len(ops), works)
        return [ctypes.c_void_p(work) for work in works]


class Torch:
    """The same calls, made by gloo."""

    def isend(self, tensor, peer, tag):
        return dist.isend(tensor, peer, tag=tag)

    def irecv(self, tensor, peer, tag):
        return dist.irecv(tensor, peer, tag=tag)

    def wait(self, work):
        work.wait()

    def recv(self, tensor, peer, tag):
        return dist.recv(tensor, peer, tag=tag)

    def batch(self, ops):
        return dist.batch_isend_irecv([dist.P2POp(getattr(dist, op), t, peer, tag=tag) for op, t, peer, tag in ops])


def tensor(generator, dtype):
    values = generator.integers(0, 100, int(generator.integers(1, 40000)))
    return torch.tensor(values).to(dtype)


def storm(comm, rank, world, seed):
    """What each rank receives. It sends in one order and receives in another, tag by tag."""
    generator = numpy.random.default_rng(seed)
    dtypes = list(DTYPES)
    sends, receives = [], []
    for _ in range(MESSAGES):
        src, step, tag, kind = (int(generator.integers(n)) for n in (world, world - 1, TAGS, len(dtypes)))
        dst, data = (src + 1 + step) % world, tensor(generator, dtypes[kind])
        if src == rank:
            sends.append((data, dst, tag))
        if dst == rank:
            receives.append((torch.zeros_like(data), src, tag))
    receives.sort(key=lambda message: -message[2])
    works = [comm.isend(*message) for message in sends]
    works += [comm.irecv(*message) for message in receives]
    for work in works:
        comm.wait(work)
    return [data for data, _, _ in receives]


def everybody_to_zero(comm, rank, world):
    """Rank 0 receives from any rank: the senders, and the order of each one's messages."""
    came = {source: [] for source in range(1, world)}
    for i in range(10):
        if rank > 0:
            comm.wait(comm.isend(torch.tensor([float(rank), float(i)]), 0, 3))
    for i in range(10 * (world - 1)):
        if rank == 0:
            data = torch.zeros(2)
            source = comm.recv(data, None, 3)
            assert source == int(data[0])
            came[source].append(float(data[1]))
    return came


def ring(comm, rank, world):
    """One batch: send to the next rank, receive from the one before."""
    data, result = torch.arange(1000.0) + rank, torch.zeros(1000)
    works = comm.batch([("isend", data, (rank + 1) % world, 0), ("irecv", result, (rank - 1) % world, 0)])
    for work in works:
        comm.wait(work)
    return result


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=world)
    ours, theirs = Tern(), Torch()
    for seed in range(ROUNDS):
        for got, want in zip(storm(ours, rank, world, seed), storm(theirs, rank, world, seed)):
            assert got.dtype == want.dtype and torch.equal(got, want), seed
    assert everybody_to_zero(ours, rank, world) == everybody_to_zero(theirs, rank, world)
    assert torch.equal(ring(ours, rank, world), ring(theirs, rank, world))
    ours.lib.tern_group_close(ours.group)
    dist.barrier()
    print("equal", flush=True)


if __name__ == "__main__":
    main()
