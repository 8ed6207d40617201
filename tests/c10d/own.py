"""PyTorch's own distributed tests (torch/testing/_internal/distributed/distributed_test.py), with tern in gloo's place. test_own.py runs
it, with the number of ranks in WORLD_SIZE. TERN_TEST_PLAIN=1: with gloo itself, to see what fails there.

Tests that cannot pass are expected to fail, by name and reason: they must be taken from the list when they pass."""
import importlib.util
import os
import sys
import types
import unittest

import extension

extension.enter()
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

GLOO_IS_PLUGIN = hasattr(c10d, "_create_gloo_process_group")  # later than torch 2.6
IS_PLAIN = bool(os.environ.get("TERN_TEST_PLAIN"))
FAILS = {} if IS_PLAIN else {"test_ddp_logging_data_cpu": "DDP's log names the back end, and it is not gloo"}
if sys.version_info >= (3, 13) and not GLOO_IS_PLUGIN:
    FAILS.update(dict.fromkeys(("test_gather_object", "test_gather_object_subgroup"), "they expect the words of an older Python"))
if not importlib.util.find_spec("expecttest"):  # PyTorch does not bring it, and the tests of back ends do not use it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False
if not hasattr(dist, "DistBackendError"):
    # With replicated tensors, DDP of torch 1.13 imports dataclasses that Python 3.11 refuses. The tests' setUp turns them on.
    import torch.nn.parallel._replicated_tensor_ddp_utils as replicated_tensors

    replicated_tensors._set_ddp_with_replicated_tensor(False)
    replicated_tensors._set_ddp_with_replicated_tensor = lambda value: None


def replace_gloo():
    import torch_tern

    create = c10d.Backend._plugins["TERN"].creator_fn
    if GLOO_IS_PLUGIN:
        c10d.Backend._plugins["GLOO"] = c10d.Backend._BackendPlugin(create, False)
        c10d.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM
        return
    gloo, wrap = c10d.ProcessGroupGloo, c10d._create_process_group_wrapper

    class Replacement(type):
        """Of gloo's class: it is called for a group, and asked whether a group is of it."""

        def __call__(cls, store, rank, size, timeout):
            return create(store, rank, size, timeout)

        def __instancecheck__(cls, group):
            return type(group).__name__ == "Backend"  # of any back end but those of PyTorch

    def wrapped(*args, **more):
        """TORCH_DISTRIBUTED_DEBUG=DETAIL checks calls with a helper, which must be gloo itself."""
        replacement, c10d.ProcessGroupGloo = c10d.ProcessGroupGloo, gloo
        try:
            return wrap(*args, **more)
        finally:
            c10d.ProcessGroupGloo = replacement

    c10d.ProcessGroupGloo, c10d._create_process_group_wrapper = Replacement("ProcessGroupGloo", (), {}), wrapped


if not IS_PLAIN:
    replace_gloo()
import torch.testing._internal.common_distributed as common


def skip_without_ranks():
    """PyTorch's tests start their ranks, which find that they are skipped: two of three tests, without GPUs."""
    world = int(os.environ["WORLD_SIZE"])
    if not torch.cuda.is_available():
        common.skip_if_no_gpu = unittest.skip("no GPU")
        common.skip_if_lt_x_gpu = lambda count, allow_cpu=False: unittest.skipIf(not allow_cpu, "no GPU")
    if world <= 2:  # with more it depends on PyTorch's version
        common.skip_if_small_worldsize = unittest.skip("too few ranks")
    if world % 2:
        common.skip_if_odd_worldsize = unittest.skip("an odd number of ranks")


skip_without_ranks()
import torch.testing._internal.distributed.distributed_test as own_tests
from torch.testing._internal.common_utils import run_tests


class Renamed:
    """A profiler's event under gloo's name."""

    def __init__(self, event):
        self.event, self.name = event, event.name.replace("tern:", "gloo:")

    def __getattr__(self, name):
        return getattr(self.event, name)


if not IS_PLAIN:
    profiling_events = own_tests.get_profiling_event
    own_tests.get_profiling_event = lambda name, *args, **more: [Renamed(event) for event in profiling_events(name.replace("gloo:", "tern:"), *args, **more)]


class Own(own_tests.TestDistBackend, own_tests.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


for name in FAILS:
    setattr(Own, name, unittest.expectedFailure(getattr(Own, name)))

if __name__ == "__main__":
    run_tests()
