"""One rank of test_collectives.py: every collective that gloo has, compared with tern's, with random sizes.

    tern run -n N /usr/bin/python3 collectives_rank.py MEETING_FILE
"""
import ctypes
import os
import pickle
import sys

import numpy
import torch
import torch.distributed as dist

from nets import library
from tern import pointer

DTYPES = {numpy.float32: 0, numpy.float64: 1, numpy.int64: 2, numpy.int32: 3, numpy.uint8: 4, numpy.float16: 6, numpy.int8: 8}
OPS = {"SUM": 0, "PRODUCT": 2, "MIN": 3, "MAX": 4, "BAND": 5, "BOR": 6, "BXOR": 7}
SIZES = (1, 7, 1000, 70001)


class Span(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_size_t)]


def spans(arrays):
    return (Span * len(arrays))(*[Span(array.ctypes.data, array.size) for array in arrays])


def sizes(counts):
    return (ctypes.c_size_t * len(counts))(*counts)


class Pair:
    """tern and gloo, and numbers that differ between ranks or are the same on all."""

    def __init__(self, meeting):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=self.rank, world_size=self.world)
        self.lib = library()
        self.group = ctypes.c_void_p(self.lib.check("tern_group_open", None))
        self.own, self.common = numpy.random.default_rng(self.rank), numpy.random.default_rng(1000)

    def numbers(self, dtype, count):
        """Small numbers, so that products and the sums of halves are exact in any order; int8 has all of its values, and wraps around."""
        if dtype is numpy.int8:
            return self.own.integers(-128, 128, count, dtype)
        return self.own.integers(0 if dtype is numpy.uint8 else -3, 4, count).astype(dtype)

    def call(self, name, *args):
        self.lib.check(name, self.group, *args)

    def equal(self, what, ours, theirs):
        assert ours.dtype == theirs.numpy().dtype and (ours == theirs.numpy()).all(), f"rank {self.rank}: {what}"


def reductions(pair, dtype, count):
    for name, op in OPS.items():
        if op >= 5 and numpy.issubdtype(dtype, numpy.floating):
            continue
        root = int(pair.common.integers(pair.world))
        x = pair.numbers(dtype, count)
        ours, theirs = x.copy(), torch.from_numpy(x.copy())
        pair.call("tern_all_reduce", pointer(ours), ctypes.c_size_t(count), DTYPES[dtype], op)
        dist.all_reduce(theirs, getattr(dist.ReduceOp, name))
        pair.equal(f"all_reduce of {count} {dtype}, {name}", ours, theirs)
        ours, theirs = x.copy(), torch.from_numpy(x.copy())
        pair.call("tern_reduce", pointer(ours), ctypes.c_size_t(count), DTYPES[dtype], op, root)
        dist.reduce(theirs, root, getattr(dist.ReduceOp, name))
        if pair.rank == root:
            pair.equal(f"reduce of {count} {dtype}, {name}", ours, theirs)
        else:
            assert (ours == x).all()


def moves(pair, dtype, count):
    code, n, world = DTYPES[dtype], ctypes.c_size_t(count), pair.world
    root = int(pair.common.integers(world))
    is_root = pair.rank == root
    x = pair.numbers(dtype, count)
    many = pair.numbers(dtype, count * world)
    ours, theirs = x.copy(), torch.from_numpy(x.copy())
    pair.call("tern_broadcast", pointer(ours), n, code, root)
    dist.broadcast(theirs, root)
    pair.equal("broadcast", ours, theirs)

    out, lists = numpy.zeros(count * world, dtype), [torch.empty(count, dtype=theirs.dtype) for _ in range(world)]
    pair.call("tern_all_gather", pointer(x), pointer(out), n, code)
    dist.all_gather(lists, torch.from_numpy(x))
    pair.equal("all_gather", out, torch.cat(lists))

    out[:] = 0
    pair.call("tern_gather", pointer(x), pointer(out) if is_root else None, n, code, root)
    dist.gather(torch.from_numpy(x), lists if is_root else None, root)
    pair.equal("gather", out, torch.cat(lists) if is_root else torch.zeros_like(torch.cat(lists)))

    out = numpy.zeros(count, dtype)
    pair.call("tern_scatter", pointer(many) if is_root else None, pointer(out), n, code, root)
    dist.scatter(theirs, list(torch.from_numpy(many).split(count)) if is_root else None, root)
    pair.equal("scatter", out, theirs)

    out, theirs = numpy.zeros(count * world, dtype), torch.empty(count * world, dtype=theirs.dtype)
    pair.call("tern_all_to_all", pointer(many), pointer(out), n, code)
    dist.all_to_all_single(theirs, torch.from_numpy(many))
    pair.equal("all_to_all", out, theirs)

    splits = pair.common.integers(0, count + 1, (world, world))
    gives, takes = splits[pair.rank].tolist(), splits[:, pair.rank].tolist()
    x, out, theirs = pair.numbers(dtype, sum(gives)), numpy.zeros(sum(takes), dtype), torch.empty(sum(takes), dtype=theirs.dtype)
    pair.call("tern_all_to_all_v", pointer(x), sizes(gives), pointer(out), sizes(takes), code)
    dist.all_to_all_single(theirs, torch.from_numpy(x), takes, gives)
    pair.equal("all_to_all_v", out, theirs)


def lists(pair, dtype):
    """Coalesced calls, compared with one call per buffer where gloo lacks them."""
    counts = [int(n) for n in pair.common.integers(0, 40000, 5)] + [1]
    xs = [pair.numbers(dtype, n) for n in counts]
    ours, theirs = [x.copy() for x in xs], [torch.from_numpy(x.copy()) for x in xs]
    pair.call("tern_all_reduce_coalesced", spans(ours), ctypes.c_size_t(len(ours)), DTYPES[dtype], 0)
    for x in theirs:
        dist.all_reduce(x)
    for x, y in zip(ours, theirs):
        pair.equal("all_reduce_coalesced", x, y)
    outs = [numpy.zeros(n * pair.world, dtype) for n in counts]
    pair.call("tern_all_gather_coalesced", spans(xs), (ctypes.c_void_p * len(outs))(*[out.ctypes.data for out in outs]),
              ctypes.c_size_t(len(outs)), DTYPES[dtype])
    for x, out in zip(xs, outs):
        parts = [torch.empty(x.size, dtype=theirs[0].dtype) for _ in range(pair.world)]
        dist.all_gather(parts, torch.from_numpy(x))
        pair.equal("all_gather_coalesced", out, torch.cat(parts))


def taken(pair, span):
    text = ctypes.string_at(span.data, span.count)
    pair.lib.tern_bytes_free(ctypes.c_void_p(span.data))
    return pickle.loads(text)


def objects(pair):
    """Pickled objects, as torch sends them."""
    thing = {"rank": pair.rank, "list": list(range(pair.rank * 1000))}
    text, root = pickle.dumps(thing), int(pair.common.integers(pair.world))
    outs, theirs = (Span * pair.world)(), [None] * pair.world
    pair.call("tern_all_gather_bytes", text, ctypes.c_size_t(len(text)), outs)
    dist.all_gather_object(theirs, thing)
    assert [taken(pair, out) for out in outs] == theirs
    pair.call("tern_gather_bytes", text, ctypes.c_size_t(len(text)), outs, root)
    dist.gather_object(thing, theirs if pair.rank == root else None, root)
    assert pair.rank != root or [taken(pair, out) for out in outs] == theirs
    one, theirs = Span(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p), len(text)), [thing]
    pair.call("tern_broadcast_bytes", ctypes.byref(one), root)
    dist.broadcast_object_list(theirs, root)
    assert pair.rank == root or taken(pair, one) == theirs[0]
    texts = [pickle.dumps([to] * (to + 5)) for to in range(pair.world)]
    ins = (Span * pair.world)(*[Span(ctypes.cast(ctypes.c_char_p(t), ctypes.c_void_p), len(t)) for t in texts])
    pair.call("tern_scatter_bytes", ins, ctypes.byref(one), root)
    dist.scatter_object_list(theirs, [pickle.loads(t) for t in texts], root)
    assert taken(pair, one) == theirs[0]


def main():
    torch.set_num_threads(1)
    pair = Pair(sys.argv[1])
    for dtype in DTYPES:
        for count in SIZES:
            reductions(pair, dtype, count)
            moves(pair, dtype, count)
        lists(pair, dtype)
    objects(pair)
    pair.call("tern_monitored_barrier", ctypes.c_double(60), True)
    dist.monitored_barrier()
    pair.lib.tern_group_close(pair.group)
    print("equal", flush=True)


if __name__ == "__main__":
    main()
