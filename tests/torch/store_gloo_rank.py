"""A gloo rank (PORT RANK) whose process group meets at another process's store. It sums, gathers, makes a subgroup,
and trains a step under DistributedDataParallel."""
import datetime
import sys

import torch
import torch.distributed as dist

import libuv

WORLD = 2


def main():
    port, rank = int(sys.argv[1]), int(sys.argv[2])
    libuv.do_without()
    store = dist.TCPStore("127.0.0.1", port, WORLD, False, datetime.timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    group = dist.new_group([0, 1])
    dist.barrier(group)
    torch.manual_seed(rank)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    net(torch.ones(1, 3) * rank).sum().backward()
    weights = [torch.zeros(2, 3) for _ in range(WORLD)]
    dist.all_gather(weights, net.module.weight.data)
    fine = total.item() == 3 and objects == [{"rank": 0}, {"rank": 1}] and torch.equal(weights[0], weights[1])
    fine = fine and torch.equal(net.module.weight.grad, torch.full((2, 3), 0.5))
    dist.destroy_process_group()
    print("equal" if fine else "different", flush=True)


main()
