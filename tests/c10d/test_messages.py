"""Messages, groups, futures, threads and signals on a group of tern."""
import os
import random
import signal
import threading
import time
import unittest
from datetime import timedelta

import extension

extension.enter()
import ranks
import skips
import torch
import torch.distributed as dist
import torch.multiprocessing

SHAPES = [(0,), (1,), (3, 5), (1025,), (70001,)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]


def tensor_of(seed, shape, dtype):
    """The same on every rank."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 50
    return (values > 0) if dtype == torch.bool else values.to(dtype)


def messages(rank):
    world, shared = dist.get_world_size(), random.Random(7)
    for seed, (dtype, shape) in enumerate((dtype, shape) for dtype in DTYPES for shape in SHAPES):
        what, message = f"{dtype} {shape}", tensor_of(seed, shape, dtype)
        source = shared.randrange(world)
        to = (source + shared.randrange(1, world)) % world
        tag, is_any = shared.randrange(5), shared.random() < 0.4
        if rank == source:
            dist.send(message, to, tag=tag)
        elif rank == to:
            got = torch.empty(shape, dtype=dtype)
            assert dist.recv(got, None if is_any else source, tag=tag) == source, what
            assert torch.equal(got, message), what
        got = torch.empty(shape, dtype=dtype)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, message + rank if dtype != torch.bool else message, (rank + 1) % world), dist.P2POp(dist.irecv, got, (rank - 1) % world)])
        for work in works:
            work.wait()
        assert torch.equal(got, message + (rank - 1) % world if dtype != torch.bool else message), what
    return True


def tags(rank):
    """Messages of other tags are received first than were sent first; many are under way."""
    if rank == 0:
        works = [dist.isend(torch.full((1000,), tag), 1, tag=tag) for tag in range(20)]
    else:
        outs = [torch.empty(1000, dtype=torch.int64) for _ in range(20)]
        works = [dist.irecv(outs[tag], 0, tag=tag) for tag in reversed(range(20))]
    for work in works:
        work.wait()
        assert work.is_completed()
    return rank == 0 or [int(out[999]) for out in outs] == list(range(20))


def any_source(rank):
    world = dist.get_world_size()
    if rank:
        dist.send(torch.tensor([rank]), 0)
        return True
    seen = set()
    for _ in range(1, world):
        got = torch.zeros(1, dtype=torch.int64)
        assert dist.recv(got) == int(got)
        seen.add(int(got))
    return seen == set(range(1, world))


def groups(rank):
    """Ranks make their groups in one order, and use them in another; several works are under way in each."""
    world = dist.get_world_size()
    every = [dist.new_group(list(range(world))) for _ in range(3)]
    pairs = [dist.new_group([one, other]) for one in range(world) for other in range(one + 1, world)]
    own = [group for group in pairs if dist.get_rank(group) >= 0]
    alone = [dist.new_group([other]) for other in range(world)][rank]
    tensors = [torch.full((1000 * (i + 1),), float(rank + i)) for i in range(len(every))]
    order = list(range(len(every)))
    random.Random(rank).shuffle(order)
    works = [(every[i], dist.all_reduce(tensors[i], group=every[i], async_op=True)) for i in order]
    random.Random(rank + 9).shuffle(works)
    for _, work in works:
        work.wait()
    assert all(tensor.eq(sum(range(world)) + world * i).all() for i, tensor in enumerate(tensors))
    for group in own:
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, group=group)
        assert int(tensor) == sum(other + 1 for other in dist.get_process_group_ranks(group)) if hasattr(dist, "get_process_group_ranks") else int(tensor) > rank + 1
    tensor = torch.tensor([5.0])
    dist.all_reduce(tensor, group=alone)
    for group in reversed(every):
        dist.destroy_process_group(group)
    dist.barrier()
    return int(tensor) == 5


def futures(rank):
    """A callback may start a collective of its own and wait for it."""
    world = dist.get_world_size()
    done = []
    tensor = torch.full((100,), rank + 1.0)

    def again(future):
        inner = future.value()[0].clone()
        dist.all_reduce(inner)
        done.append(inner)
        return inner * 2

    future = dist.all_reduce(tensor, async_op=True).get_future().then(again)
    result = future.wait()
    total = world * (world + 1) / 2
    assert tensor.eq(total).all() and done[0].eq(total * world).all() and result.eq(total * world * 2).all()
    chained = dist.broadcast(torch.ones(3), 0, async_op=True).get_future().then(lambda f: f.value()[0] + 1).then(lambda f: f.value() * 3)
    assert chained.wait().eq(6).all()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    late = work.get_future()  # asked for when the work is done
    assert late.done() and late.value()[0].eq(total * world).all()
    assert work.is_completed() and work.is_success()
    return True


def inference(rank):
    """Results are copied into tensors of inference mode, whichever thread ends the work."""
    world = dist.get_world_size()
    with torch.inference_mode():
        for _ in range(10):
            outs = [torch.empty(3) for _ in range(world)] if rank == 0 else None
            strided = torch.full((4, 6), rank + 1.0)[:, ::2]
            sparse = torch.sparse_coo_tensor([[rank]], [1.0], (world,))
            works = [dist.gather(torch.full((3,), float(rank)), outs, 0, async_op=True)]
            works += [dist.all_reduce(tensor, async_op=True) for tensor in (strided, sparse)]
            time.sleep(0.01)  # a thread of the group ends them
            for work in works:
                work.wait()
            assert strided.eq(world * (world + 1) / 2).all() and sparse.to_dense().eq(1).all()
            assert outs is None or all(out.eq(other).all() for other, out in enumerate(outs))
    return True


def told(rank):
    """What a work tells about itself is what one of gloo tells."""
    facts = []
    for group in (dist.new_group(backend="gloo", timeout=timedelta(seconds=60)), dist.group.WORLD):
        group._enable_collectives_timing()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=7)
        works = [dist.all_reduce(torch.ones(3), group=group, async_op=True), group.allreduce([torch.ones(3)], options)]
        works += [dist.barrier(group=group, async_op=True), dist.isend(torch.ones(2), 1 - rank, group)]
        works.append(dist.irecv(torch.ones(2), 1 - rank, group))
        for work in works:
            work.wait()
        first = works[0]._get_sequence_number()
        facts.append([(work._get_sequence_number() - first, work.timeout) for work in works[:3]])
        facts[-1] += [str(ranks.elapsed(work.source_rank)[1]).splitlines()[0] for work in works[:3]]
        facts[-1].append(works[4].source_rank())
    assert facts[0] == facts[1], facts
    return True


def split_beside_store(rank, port):
    """While a rank waits for the others in a split, its other threads use the store."""
    store = ranks.tcp_store(rank, port)
    dist.init_process_group("tern", store=store, rank=rank, world_size=2)
    splits = lambda: dist.all_reduce(torch.ones(3), group=dist.split_group(split_ranks=[[0, 1]]))
    if rank == 1:
        time.sleep(1.5)
        splits()
        return True
    thread = threading.Thread(target=splits)
    thread.start()
    time.sleep(0.5)
    took, why = ranks.elapsed(lambda: store.set("key", "value"))
    thread.join()
    assert why is None and took < 0.5, (why, took)
    return True


def merged(rank):
    """Two groups of one rank each become one of two."""
    results = []
    for backend in ("gloo", "tern"):
        own = dist.new_group([rank], backend=backend, use_local_synchronization=True)
        store = dist.PrefixStore(backend, dist.distributed_c10d._get_default_store())
        group = own.merge_remote_group(store, 2, timedelta(seconds=20), "merged" + backend)
        tensor = torch.full((3,), rank + 1.0)
        group.allreduce([tensor]).wait()
        results.append((group.size(), tensor.tolist()))
    assert results[0] == results[1] and results[1][1] == [3, 3, 3], results
    return True


def nested_futures(rank):
    """A callback waits for the future of a collective, whose callback waits for another one's, as PowerSGD's do."""
    world = dist.get_world_size()

    def deeper(future, depth):
        tensor = future.value()[0]
        if depth:
            inner = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda f: deeper(f, depth - 1))
            tensor = tensor + inner.wait()
        return tensor

    for depth in range(5):
        future = dist.all_reduce(torch.ones(10), async_op=True).get_future().then(lambda f: deeper(f, depth))
        assert future.wait().eq(world * (depth + 1)).all()
    dist.barrier()
    return True


def in_threads(*functions):
    """Runs the functions side by side, and raises what one of them raised."""
    raised = []

    def guarded(function):
        try:
            function()
        except BaseException as why:
            raised.append(why)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def threads(rank):
    """Two threads use two groups, and two one group: while one waits in a recv, the other reduces."""
    other = dist.new_group([0, 1])
    got, box = torch.zeros(10), threading.Event()

    def sums(group, count):
        tensor = torch.ones(1000)
        for _ in range(count):
            dist.all_reduce(tensor.fill_(1), group=group)
            assert tensor.eq(2).all()

    def reduces():
        sums(None, 50)
        box.set()

    def message():
        if rank == 1:
            dist.recv(got, 0)
        else:
            box.wait()
            dist.send(torch.arange(10.0), 1)

    in_threads(reduces, message)
    assert rank == 0 or got[9] == 9
    in_threads(lambda: sums(None, 50), lambda: sums(other, 50))
    work = dist.irecv(got, 0) if rank == 1 else None
    if rank == 0:
        time.sleep(0.2)
        dist.send(torch.full((10,), 3.0), 1)
    else:
        in_threads(work.wait, work.wait, work.wait)
        assert got.eq(3).all()
    dist.barrier()
    return True


def timed_waits(rank):
    """A wait that ends too early leaves the work as it was."""
    if rank == 0:
        time.sleep(0.8)
        dist.send(torch.ones(5), 1)
        return True
    got = torch.zeros(5)
    work = dist.irecv(got, 0)
    took, why = ranks.elapsed(lambda: work.wait(timedelta(milliseconds=200)))
    assert isinstance(why, ranks.Failure) and "imed out" in str(why), repr(why)
    assert 0.15 < took < 0.7 and not work.is_completed(), took
    assert work.wait(timedelta(seconds=30)) and got.eq(1).all()
    return True


def interrupted(rank, is_reduced, delay):
    """Ctrl-C ends a wait of the main thread. The end of the group, which rank_main asks for, then does not wait either."""
    if rank == 0:
        return isinstance(ranks.elapsed(lambda: dist.recv(torch.zeros(5), 1))[1], ranks.Failure)
    sent = []

    def interrupt():
        time.sleep(delay)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    try:
        threading.Thread(target=interrupt).start()
        dist.all_reduce(torch.zeros(5)) if is_reduced else dist.recv(torch.zeros(5), 0)
    except KeyboardInterrupt:
        return time.monotonic() - sent[0] < 1
    return False


def ended_beside_handler(rank):
    """A thread destroys the group while the main thread, which waits for a work, handles a signal: the work is finished."""
    if rank == 0:
        time.sleep(1)
        dist.send(torch.ones(5), 1)
        return True
    got, is_handled = torch.zeros(5), threading.Event()

    def handler(*_):
        is_handled.set()
        time.sleep(0.5)

    def destroy():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)
        is_handled.wait()
        dist.destroy_process_group()

    signal.signal(signal.SIGUSR1, handler)
    work = dist.irecv(got, 0)
    thread = threading.Thread(target=destroy)
    thread.start()
    work.wait()
    thread.join()
    return bool(got.eq(1).all())


def idle(rank):
    """A group that has nothing to do costs nothing, and a wait nearly so."""
    dist.all_reduce(torch.ones(1000), async_op=True).wait()
    pending = dist.irecv(torch.zeros(1), 0) if rank == 1 else None
    before = sum(os.times()[:2])
    time.sleep(2)
    used = sum(os.times()[:2]) - before
    if rank == 0:
        dist.send(torch.ones(1), 1)
    else:
        pending.wait()
    return used


def again(rank, folder):
    """A world is destroyed and opened again."""
    for i in range(4):
        ranks.meet(rank, 2, os.path.join(folder, str(i)))
        tensor = torch.ones(3)
        work = dist.all_reduce(tensor, async_op=True)
        if i % 2:
            work.wait()
        dist.destroy_process_group()
        work.wait()
        assert tensor.eq(2).all()
    return True


def left_receives(rank):
    """Receives that nobody sends to do not hold up the end of their group; a later wait for one tells why."""
    left = [dist.irecv(torch.zeros(4), src=1 - rank, tag=tag) for tag in (1, 2)]
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    time.sleep(0.5 * rank)
    dist.destroy_process_group()
    work.wait()
    text = ""
    try:
        left[0].wait()
    except RuntimeError as error:
        text = str(error)
    assert ("destroyed before a message had come" in text) or rank == 1 and "rank 0" in text and "has closed its group" in text, text
    return bool(tensor.eq(2).all())


def forked_child(rank):
    """A child that a rank forks, as a loader's worker, may leave without harm to the group."""
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    child = ranks.FORK.Process(target=time.sleep, args=(0,))
    child.start()
    child.join()
    assert child.exitcode == 0
    tensor = torch.ones(3)
    dist.all_reduce(tensor, async_op=True).wait()
    return bool(tensor.eq(2).all())


def freed_in_child(rank):
    """A forked child may drop the group's memory while a thread of its parent waits for a message."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    held = [backend.allocate_tensor(100, dtype=torch.float32, device=torch.device("cpu")).fill_(rank)]
    got = torch.zeros(5)
    work = dist.irecv(got, 1 - rank)
    time.sleep(0.2)
    child = ranks.FORK.Process(target=held.clear)
    child.start()
    child.join(10)
    child.kill()
    assert child.exitcode == 0, "the child hangs"
    dist.send(torch.ones(5), 1 - rank)
    work.wait()
    dist.all_reduce(held[0])
    return bool(got.eq(1).all() and held[0].eq(1).all())


def spawned(rank, folder):
    """Module level, so that torch.multiprocessing.spawn finds it."""
    ranks.meet(rank, 2, os.path.join(folder, "meeting"))
    tensor = torch.full((7,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.eq(3).all()
    dist.destroy_process_group()


class Messages(unittest.TestCase):
    def check(self, function, worlds=(2,), *args, **how):
        for world in worlds:
            with self.subTest(world=world):
                self.assertEqual(ranks.run(world, function, *args, **how), [True] * world)

    def test_messages(self):
        self.check(messages, (2, 3))

    def test_tags(self):
        self.check(tags)

    def test_any_source(self):
        self.check(any_source, (2, 3))

    def test_groups(self):
        self.check(groups, (2, 3))

    def test_futures(self):
        self.check(futures, (2, 3))

    def test_inference(self):
        self.check(inference, (2, 3))

    @unittest.skipUnless(hasattr(torch._C._distributed_c10d.Work, "_get_sequence_number"), "works of this PyTorch tell less")
    def test_told(self):
        self.check(told)

    @unittest.skipUnless(hasattr(dist.Store, "clone"), "stores of this PyTorch cannot be copied")
    def test_split_beside_store(self):
        self.check(split_beside_store, (2,), ranks.free_port(), meets=False)

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "merge_remote_group"), "this PyTorch merges no groups")
    def test_merge(self):
        self.check(merged)

    def test_nested_futures(self):
        self.check(nested_futures, (2, 3))

    def test_threads(self):
        self.check(threads)

    def test_timed_waits(self):
        self.check(timed_waits)

    def test_interrupt(self):
        for is_reduced, delay in ((False, 0.5), (True, 0.5), (True, 0.02)):
            self.check(interrupted, (2,), is_reduced, delay)

    def test_end_beside_handler(self):
        self.check(ended_beside_handler)

    def test_idle(self):
        for used in ranks.run(2, idle):
            self.assertLess(used, 0.02 * 2)

    def test_init_again(self):
        with ranks.tempfile.TemporaryDirectory() as folder:
            self.check(again, (2,), folder, meets=False)

    def test_left_receives(self):
        self.check(left_receives)

    def test_fork(self):
        self.check(forked_child)

    @unittest.skipUnless(hasattr(getattr(torch._C._distributed_c10d, "Backend", None), "allocate_tensor"), "this PyTorch asks back ends for no memory")
    def test_free_in_child(self):
        self.check(freed_in_child)

    def test_spawn(self):
        with ranks.tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(spawned, (folder,), nprocs=2)


if __name__ == "__main__":
    skips.main()
