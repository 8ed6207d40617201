"""One rank of test_ddp_stats.py: tern_ddp_stats compared with torch's _get_ddp_logging_data, over gloo.

    tern run -n N /usr/bin/python3 ddp_stats_rank.py MODEL BUCKET_BYTES MEETING_FILE
"""
import ctypes
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddp_rank import make
from nets import library

MIB = 1 << 20
STEPS = 3


class Times(ctypes.Structure):
    """tern_ddp_times."""

    _fields_ = [(name, ctypes.c_int64) for name in ("forward", "backward", "communication", "overlap")]


class Stats(ctypes.Structure):
    """tern_ddp_stats."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_int),
        ("world", ctypes.c_int),
        ("iterations", ctypes.c_uint64),
        ("parameters", ctypes.c_int),
        ("unused", ctypes.c_int),
        ("parameter_bytes", ctypes.c_size_t),
        ("unused_bytes", ctypes.c_size_t),
        ("first_bucket_bytes", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_size_t),
        ("initial_buckets", ctypes.c_int),
        ("buckets", ctypes.c_int),
        ("ready", ctypes.c_int),
        ("has_rebuilt", ctypes.c_bool),
        ("broadcast_buffers", ctypes.c_bool),
        ("slow_rank", ctypes.c_int),
        ("slow_share", ctypes.c_double),
        ("last", Times),
        ("mean", Times),
    ]


def stats_of(lib, ddp):
    stats = Stats(size=ctypes.sizeof(Stats))
    lib.check("tern_ddp_stats_get", ddp, ctypes.byref(stats))
    return stats


def ready_names(lib, ddp, count):
    return [lib.tern_ddp_ready_name(ddp, place).decode() for place in range(count)]


def modules_of(names):
    """The modules in order, each once. The op decides which of a module's parameters comes first."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def cut(parameters, first, cap):
    """The bytes of PyTorch's buckets for parameters in this order."""
    buckets, _ = dist._compute_bucket_assignment_by_size(parameters, [first, cap], [], list(range(len(parameters))))
    return [sum(parameters[i].numel() * parameters[i].element_size() for i in bucket) for bucket in buckets]


def main():
    model, cap, meeting = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    opts = lib.tern_ddp_defaults()
    opts.first_bucket_bytes, opts.bucket_bytes = 3 * cap, cap
    net, ddp, module, _ = make(lib, model, group, opts, bucket_cap_mb=cap / MIB)

    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x, y = torch.randn((8, 1, 28, 28), generator=generator), torch.randint(0, 10, (8,), generator=generator)
        net.step(x.numpy().reshape(8, -1) if model == "mlp" else x.numpy(), y.numpy())
        F.cross_entropy(ddp(x), y).backward()

    ours, theirs = stats_of(lib, net.ddp), ddp._get_ddp_logging_data()
    pairs = dict(rank="rank", world="world_size", parameters="num_parameter_tensors",
                 parameter_bytes="total_parameter_size_bytes", bucket_bytes="bucket_cap_bytes", has_rebuilt="has_rebuilt_buckets",
                 broadcast_buffers="broadcast_buffers", unused_bytes="unused_parameter_size")
    for name, key in pairs.items():
        assert getattr(ours, name) == theirs.get(key, 0), f"{name}: {getattr(ours, name)}, torch {key}: {theirs.get(key)}"
    assert ours.iterations == theirs["iteration"] + 1 == STEPS  # torch's count excludes the reported one
    for name in "forward", "backward":
        assert 0 < getattr(ours.last, name) and 0 < theirs[f"{name}_compute_time"]

    # torch has the state dict's names in registration order; ours have the same positions.
    names = [name for name, _ in module.named_parameters()]
    mine = ready_names(lib, net.ddp, ours.ready)
    assert ours.ready == len(names) and sorted(mine) == sorted(e.name.decode() for e in net.entries() if not e.is_buffer)
    if model == "resnet":
        order = [names[int(i)] for i in theirs["prev_iteration_grad_ready_order_indices"].split(",")]
        assert modules_of(mine) == modules_of(order), f"{modules_of(mine)}\n{modules_of(order)}"
        parameters = [dict(module.named_parameters())[name] for name in mine]
        sizes = [lib.tern_ddp_bucket_bytes(net.ddp, b) for b in range(ours.buckets)]
        assert sizes == cut(parameters, 3 * cap, cap) and len(sizes) > 3, f"{sizes}\n{cut(parameters, 3 * cap, cap)}"
    whole = sum(lib.tern_ddp_initial_bucket_bytes(net.ddp, b) for b in range(ours.initial_buckets))
    assert whole == theirs["total_parameter_size_bytes"]
    if rank == 0:
        print("equal", flush=True)
    net.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
