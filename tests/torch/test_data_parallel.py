"""Replicas and checkpoints compared with PyTorch. DataParallel's rules are followed by hand, since
torch.nn.DataParallel does not split a batch on a CPU."""
import ctypes
import unittest

import torch
import torch.nn.functional as F
from torch.nn.utils.stateless import functional_call
from torch.utils.checkpoint import checkpoint

import skips
from half import torch_sums_in_f32
from nets import Net, library
from ops import BF16
from test_train import peer

STEPS = 6
SIZES = [50, 33, 20, 10]
FLIPPED = 5e-4  # in a batch of 24 or more, a few values that bf16 rounds to the other neighbour, half a step (2^-8) away


class Opts(ctypes.Structure):
    """tern_data_parallel_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("devices", ctypes.POINTER(ctypes.c_void_p)),
        ("device_count", ctypes.c_int),
        ("output_device", ctypes.c_void_p),
        ("dim", ctypes.c_int),
    ]


class Replicated(Net):
    """A net called through tern_data_parallel; all replicas share the first core."""

    def replicate(self, count):
        lib = self.lib
        lib.returns(Opts, "tern_data_parallel_defaults")
        self.devices = (ctypes.c_void_p * count)(*[lib.check("tern_device_open", b"cpu:0") for _ in range(count)])
        opts = lib.tern_data_parallel_defaults()
        opts.devices = self.devices
        opts.device_count = count
        self.parallel = ctypes.c_void_p(lib.check("tern_data_parallel_new", self.module, ctypes.byref(opts)))

    def forward(self, x):
        y = ctypes.c_void_p(self.lib.tern_data_parallel_forward(self.parallel, self.scope, self.tensor(x)))
        return self.lib.tern_to(self.scope, y, self.device)

    def close(self):
        self.lib.tern_data_parallel_free(self.parallel)
        super().close()
        for device in self.devices:
            self.lib.tern_device_close(ctypes.c_void_p(device))


class Checkpointed(Net):
    def forward(self, x):
        return self.lib.tern_checkpoint(self.module, self.scope, self.tensor(x))


def by_replicas(module, x, count, half=False):
    """scatter, replicate, parallel_apply, gather: parameters are shared, buffers move on replica 0 only. `half`: in a region
    of autocast, of which each thread has its own, with its own casts."""
    parameters = dict(module.named_parameters())
    outputs = []
    for i, chunk in enumerate(x.chunk(count)):
        buffers = {name: buffer if i == 0 else buffer.clone() for name, buffer in module.named_buffers()}
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs.append(functional_call(module, {**parameters, **buffers}, (chunk,)))
    return torch.cat(outputs)


class DataParallel(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.lib = library()

    def train_beside(self, net, module, forward, shapes, tolerance=1e-5, **sgd):
        optimizer = torch.optim.SGD(module.parameters(), **sgd)
        generator = torch.Generator().manual_seed(1)
        for step in range(STEPS):
            x = torch.randn(shapes[step % len(shapes)], generator=generator)
            y = torch.randint(0, 10, (len(x),), generator=generator)
            ours, theirs = net.step(x.numpy(), y.numpy()), F.cross_entropy(forward(x).float(), y)
            optimizer.zero_grad()
            theirs.backward()
            optimizer.step()
            self.assertLessEqual(abs(ours - theirs.item()), tolerance * abs(theirs.item()), f"step {step}")
        for name, want in module.state_dict().items():
            difference = float(abs(net.state()[name] - want.numpy()).max())
            self.assertLessEqual(difference, 2 * tolerance * max(1.0, float(want.abs().max())), name)
        net.close()

    def mlp(self, kind):
        torch.manual_seed(3)
        sgd = dict(lr=0.05, momentum=0.9)
        layers = torch.nn.Linear(50, 33), torch.nn.ReLU(), torch.nn.Linear(33, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10)
        return kind.mlp(self.lib, SIZES, seed=3, **sgd), torch.nn.Sequential(*layers), sgd

    def test_mlp(self):
        """Even and uneven chunks, fewer rows than replicas."""
        for count in (1, 2, 3, 4):
            with self.subTest(replicas=count):
                net, module, sgd = self.mlp(Replicated)
                net.replicate(count)
                wrapped = torch.nn.DataParallel(module)
                self.train_beside(net, module, wrapped, [(24, 50), (13, 50), (2, 50)], **sgd)

    def test_batch_norm(self):
        """Every replica computes its own statistics; replica 0 updates the running ones."""
        fields = dict(in_channels=1, blocks=[1, 1, 1], channels=[16, 32, 64], small_stem=True, kaiming=False, classes=10)
        for count in (2, 3):
            with self.subTest(replicas=count):
                torch.manual_seed(0)
                sgd = dict(lr=0.0005, momentum=0.9)
                net = Replicated.resnet(self.lib, fields, seed=0, **sgd)
                net.replicate(count)
                module = peer().Net()
                self.train_beside(net, module, lambda x: by_replicas(module, x, count), [(12, 1, 28, 28), (11, 1, 28, 28)], **sgd)

    def test_checkpoint(self):
        net, module, sgd = self.mlp(Checkpointed)
        self.train_beside(net, module, lambda x: checkpoint(module, x.requires_grad_()), [(24, 50)], **sgd)

    @unittest.skipUnless(torch_sums_in_f32(), "PyTorch sums products of bf16 in bf16 on this CPU")
    def test_autocast(self):
        """Both round at the same places, so the numbers are nearly always equal. (PyTorch sums smaller products than
        these in bf16.)"""
        for count in (1, 2, 3):
            with self.subTest(replicas=count):
                net, module, sgd = self.mlp(Replicated)
                net.replicate(count)
                net.region = BF16
                self.train_beside(net, module, lambda x: by_replicas(module, x, count, True), [(96, 50), (77, 50)], FLIPPED, **sgd)

    @unittest.skipUnless(torch_sums_in_f32(), "PyTorch sums products of bf16 in bf16 on this CPU")
    def test_autocast_and_checkpoint(self):
        def forward(x):
            with torch.autocast("cpu", torch.bfloat16):
                return checkpoint(module, x.requires_grad_())

        net, module, sgd = self.mlp(Checkpointed)
        net.region = BF16
        self.train_beside(net, module, forward, [(24, 50)], FLIPPED, **sgd)


if __name__ == "__main__":
    skips.main()
