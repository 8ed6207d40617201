"""A snapshot is a torch.save file: PyTorch resumes model and optimizer from it with the same results, and libtern
resumes from a file that PyTorch saved in that form."""
import collections
import ctypes
import os

import numpy
import torch

import skips
from folder import InFolder
import tern
from ops import Run

STEPS = 5


class Trainee:
    """BatchNorm1d(6), Linear(6, 4), Linear(4, 3) with Adam under an exponential schedule, here and in torch, and a snapshot."""

    def __init__(self, folder):
        self.run = Run("cpu", 1)
        lib = self.lib = self.run.lib
        i64, check = ctypes.c_int64, lib.check
        self.rng = ctypes.c_void_p(check("tern_rng_new", ctypes.c_uint64(3)))
        self.net = self.run.layer("tern_sequential_new")
        for made in (
            check("tern_batch_norm1d_new", i64(6), None),
            check("tern_linear_new", i64(6), i64(4), None, self.rng),
            check("tern_linear_new", i64(4), i64(3), None, self.rng),
        ):
            check("tern_sequential_add", self.net, ctypes.c_void_p(made))
        self.optim = ctypes.c_void_p(check("tern_adam_new", self.net, None))
        self.schedule = ctypes.c_void_p(check("tern_exponential_schedule_new", self.optim, 0, ctypes.c_double(0.9)))
        self.epoch = ctypes.c_int64(2)
        self.snapshot = ctypes.c_void_p(check("tern_snapshot_new", folder.encode(), None, None))
        for noun, name, value in (
            ("module", "model", self.net),
            ("optim", "optimizer", self.optim),
            ("schedule", "scheduler", self.schedule),
            ("int", "epoch", ctypes.byref(self.epoch)),
            ("rng", "rng", self.rng),
            ("scope", "scope", self.run.scope),
        ):
            check(f"tern_snapshot_add_{noun}", self.snapshot, name.encode(), value)

    def step(self, x, y):
        run = self.run
        scores = run.forward(self.net, run.constant(x))
        run.backward(run.op("tern_cross_entropy", scores, run.constant(y), None))
        self.lib.tern_optim_step(self.optim, run.scope)
        run.end()
        self.lib.tern_schedule_step(self.schedule)

    def close(self):
        for name, value in (("snapshot", self.snapshot), ("schedule", self.schedule), ("optim", self.optim), ("rng", self.rng)):
            getattr(self.lib, f"tern_{name}_free")(value)
        self.run.close()


class Torch:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4), torch.nn.Linear(4, 3))
        self.optim = torch.optim.Adam(self.net.parameters())
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optim, 0.9)

    def step(self, x, y):
        self.optim.zero_grad()
        torch.nn.functional.cross_entropy(self.net(torch.tensor(x)), torch.tensor(y)).backward()
        self.optim.step()
        self.schedule.step()


def batch(step):
    rng = numpy.random.default_rng(step)
    return rng.standard_normal((8, 6)).astype("float32"), rng.integers(0, 3, 8)


class SnapshotTest(InFolder):
    def setUp(self):
        super().setUp()
        self.ours, self.theirs = Trainee(self.folder), Torch()
        self.addCleanup(self.ours.close)

    def close_to(self, ours, theirs):
        self.assertEqual(list(ours), list(theirs))
        for name in ours:
            self.assertTrue(torch.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5), name)

    def saved(self, step):
        self.ours.lib.check("tern_snapshot_save", self.ours.snapshot, ctypes.c_int64(step))
        # Without weights_only, which in 1.13 refuses every file with a float, torch's own too; later ones take it.
        return torch.load(os.path.join(self.folder, "latest"), weights_only=torch.__version__ >= "2")

    def test_torch_goes_on_with_ours(self):
        for step in range(STEPS):
            self.ours.step(*batch(step))
        state = self.saved(STEPS)
        self.assertEqual(list(state), "model optimizer scheduler epoch rng scope step world_size".split())
        self.assertEqual((state["epoch"], state["step"], state["world_size"]), (2, STEPS, 1))
        self.assertEqual(state["scope"], [{"seed": 0, "step": STEPS}])
        torch.set_rng_state(state["rng"][0])
        self.theirs.net.load_state_dict(state["model"], strict=True)
        self.theirs.optim.load_state_dict(state["optimizer"])
        self.theirs.schedule.load_state_dict(state["scheduler"])
        for step in range(STEPS, 2 * STEPS):
            self.ours.step(*batch(step))
            self.theirs.step(*batch(step))
        self.close_to(self.saved(2 * STEPS)["model"], self.theirs.net.state_dict())

    def test_ours_goes_on_with_torch_s(self):
        for step in range(STEPS):
            self.theirs.step(*batch(step))
        torch.manual_seed(5)
        path = os.path.join(self.folder, "theirs.pth")
        torch.save(
            {
                # With "module.", as of a DataParallel, which would move the net to a GPU.
                "model": torch.nn.Sequential(collections.OrderedDict(module=self.theirs.net)).state_dict(),
                "optimizer": self.theirs.optim.state_dict(),
                "scheduler": self.theirs.schedule.state_dict(),
                "epoch": 7,
                "rng": [torch.get_rng_state()],
                "scope": [{"seed": 3, "step": 4}],
                "step": 11,
                "best_accuracy": 0.5,
                "numpy": numpy.random.default_rng(1).bit_generator.state,  # an int of 128 bits; nobody asks for it
                "extra": [torch.zeros(2, dtype=torch.complex64), numpy.arange(3), 1j, {(1, 2): 3}],
            },
            path,
        )
        self.assertEqual(self.ours.lib.check("tern_snapshot_load", self.ours.snapshot, path.encode()), 1)
        self.assertEqual((self.ours.epoch.value, self.ours.lib.tern_snapshot_step(self.ours.snapshot)), (7, 11))
        drawn = torch.empty(3)
        self.ours.lib.tern_rng_normal(self.ours.rng, tern.pointer(drawn), ctypes.c_size_t(3), ctypes.c_double(0), ctypes.c_double(1))
        self.assertTrue(torch.equal(drawn, torch.empty(3).normal_()))
        for step in range(STEPS, 2 * STEPS):
            self.ours.step(*batch(step))
            self.theirs.step(*batch(step))
        self.close_to(self.saved(12)["model"], self.theirs.net.state_dict())


if __name__ == "__main__":
    skips.main()
