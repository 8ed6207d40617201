"""What a group of tern says when something goes wrong: who and what, in time, on all ranks."""
import os
import signal
import tempfile
import time
import unittest
from datetime import timedelta

import extension

extension.enter()
import ranks
import skips
import torch
import torch.distributed as dist

SOON_S = 5  # on a busy machine


def failure(call):
    """The text of the failure that a call ends in, and the seconds that it took."""
    took, why = ranks.elapsed(call)
    assert isinstance(why, ranks.Failure), f"{type(why)}: {why}"
    return str(why), took


def killed(rank, is_async):
    """The last rank is killed while the others wait for it."""
    world = dist.get_world_size()
    pids = [None] * world
    dist.all_gather_object(pids, os.getpid())
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait = lambda: dist.all_reduce(torch.ones(5), async_op=True).wait() if is_async else dist.all_reduce(torch.ones(5))
    text, took = failure(wait)
    assert f"rank {world - 1} (" in text and f"pid {pids[-1]}" in text, text
    assert took < SOON_S, took
    text, took = failure(lambda: dist.barrier())  # and every later call, at once
    assert f"pid {pids[-1]}" in text and took < 1, (text, took)
    return True


def mismatched(rank):
    text, took = failure(lambda: dist.all_reduce(torch.ones(3 + rank)))
    assert took < SOON_S and "3 f32" in text and "4 f32" in text, text
    text, took = failure(lambda: dist.all_reduce(torch.ones(3)))
    assert took < 1, took
    return True


def mismatched_kinds(rank):
    text, took = failure(lambda: dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), 0))
    assert took < SOON_S and "all_reduce" in text and "broadcast" in text, text
    return True


def late(rank, is_of_work):
    """Rank 1 comes too late: for the group's time-out, or for one of the call."""
    if rank == 1:
        time.sleep(3)
        failure(lambda: dist.barrier())
        return True
    if is_of_work:
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=1)
        call = lambda: dist.group.WORLD.allreduce([torch.ones(5)], options).wait()
    else:
        call = lambda: dist.all_reduce(torch.ones(5))
    text, took = failure(call)
    assert 0.8 < took < 3 and "imed out" in text and "rank 1 (" in text, (text, took)
    return True


def late_for_barrier(rank):
    if rank == 1:
        time.sleep(2)
        ranks.elapsed(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))
        return True
    text, took = failure(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in text or rank, text
    return took < 2 or rank


def all_late_for_barrier(rank):
    """Rank 0 says in gloo's words who is late, on a group of one late rank and on one of two."""
    groups = [dist.new_group(members, backend=backend) for members in ([0, 1], [0, 1, 2]) for backend in ("gloo", "tern")]
    if rank:
        time.sleep(2.5)
        return True
    texts = [str(ranks.elapsed(lambda: dist.monitored_barrier(group, timedelta(seconds=0.5), wait_all_ranks=True))[1]) for group in groups]
    for gloo, tern in (texts[:2], texts[2:]):
        assert gloo.splitlines()[0] in tern, (gloo, tern)
    return True


def different_calls(rank):
    """A message and a barrier wait for each other. Another thread may still make the missing call: so the time passes first."""
    text, took = failure(lambda: dist.barrier() if rank else dist.recv(torch.zeros(3), 1))
    assert "Timed out" in text and "barrier (work 1)" in text and "recv of 3 f32 from rank 1" in text and took > 0.9, (text, took)
    return True


def skewed(rank):
    """Long waits for each other in different calls that are no deadlock: other threads go on."""
    got = torch.zeros(5)
    if rank == 1:
        work = dist.irecv(got, 0)
        time.sleep(1.5)
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        dist.send(torch.ones(5), 1)
    else:
        work.wait()
    return rank == 0 or bool(got.eq(1).all())


def on_store(rank, kind, folder, port):
    path = os.path.join(folder, "store")
    store = dist.FileStore(path, 2) if kind == "file" else ranks.tcp_store(rank, port)
    if kind == "prefix":
        store = dist.PrefixStore("somewhere", store)
    dist.init_process_group("tern", store=store, rank=rank, world_size=2)
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=dist.new_group([0, 1]))
    dist.barrier()
    dist.destroy_process_group()
    return bool(tensor.eq(2).all())


def over_hosts(rank):
    """Two hosts of two ranks: shared memory and gloo's plug-in."""
    world = dist.get_world_size()
    for shape in ((0,), (3,), (70001,)):
        for dtype in (torch.float32, torch.int64):
            tensor = torch.full(shape, rank + 1, dtype=dtype)
            dist.all_reduce(tensor)
            assert tensor.eq(world * (world + 1) // 2).all()
            outs = [torch.empty(shape, dtype=dtype) for _ in range(world)]
            dist.all_gather(outs, torch.full(shape, rank, dtype=dtype), async_op=True).wait()
            assert all(out.eq(other).all() for other, out in enumerate(outs))
            got = torch.empty(shape, dtype=dtype)
            work = dist.isend(torch.full(shape, rank, dtype=dtype), (rank + 1) % world)
            dist.recv(got, (rank - 1) % world)
            work.wait()
            assert got.eq((rank - 1) % world).all()
    return True


class Faults(unittest.TestCase):
    def test_killed(self):
        for is_async in (False, True):
            for world in (2, 3):
                with self.subTest(is_async=is_async, world=world):
                    self.assertEqual(ranks.run(world, killed, is_async, killed={world - 1}), [True] * (world - 1) + [None])

    def test_mismatched(self):
        for function in (mismatched, mismatched_kinds):
            for world in (2, 3) if function is mismatched_kinds else (2,):
                with self.subTest(function=function.__name__, world=world):
                    self.assertEqual(ranks.run(world, function), [True] * world)

    def test_late_for_the_group(self):
        self.assertEqual(ranks.run(2, late, False, timeout=1), [True, True])

    def test_late_for_a_work(self):
        self.assertEqual(ranks.run(2, late, True), [True, True])

    @unittest.skipUnless(ranks.HAS_MONITORED_BARRIER, "this PyTorch has no barrier that names ranks but gloo's")
    def test_late_for_a_monitored_barrier(self):
        self.assertTrue(all(ranks.run(2, late_for_barrier)))

    @unittest.skipUnless(ranks.HAS_MONITORED_BARRIER, "this PyTorch has no barrier that names ranks but gloo's")
    def test_all_late_for_a_monitored_barrier(self):
        self.assertEqual(ranks.run(3, all_late_for_barrier), [True] * 3)

    def test_different_calls(self):
        self.assertEqual(ranks.run(2, different_calls, timeout=1), [True, True])

    def test_skewed(self):
        self.assertEqual(ranks.run(2, skewed), [True, True])

    def test_stores(self):
        for kind in ("file", "tcp", "prefix"):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                self.assertEqual(ranks.run(2, on_store, kind, folder, ranks.free_port(), meets=False), [True, True])

    @unittest.skipUnless(os.path.exists(os.path.join(extension.BUILD, "tern_gloo.so")), "tern's plug-in for gloo was not built")
    def test_over_hosts(self):
        environments = [{"TERN_HOST_ID": f"host{rank // 2}", "TERN_SECRET": "5e" * 32} for rank in range(4)]
        self.assertEqual(ranks.run(4, over_hosts, environments=environments), [True] * 4)


if __name__ == "__main__":
    skips.main()
