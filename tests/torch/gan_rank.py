"""One rank of test_gan.py: a generator and a discriminator, each with its own tern_ddp and optimizer, trained in
turns, and an average that follows the generator. Compared with one torch process that has all ranks' samples.

    tern run -n N /usr/bin/python3 gan_rank.py
"""
import copy
import ctypes
import os

import numpy
import torch
import torch.nn.functional as F

from nets import Net, library

STEPS, BATCH, DECAY = 12, 8, 0.9
SGD = dict(lr=0.05, momentum=0.5)


def torch_mlp(sizes, seed):
    torch.manual_seed(seed)
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Ours:
    """One step of G and one of D, all in G's scope."""

    def __init__(self, lib, group):
        self.lib, self.group = lib, group
        self.g = Net.mlp(lib, [5, 16, 3], seed=1, group=group, **SGD)
        self.d = Net.mlp(lib, [3, 16, 1], seed=2, group=group, **SGD)
        self.average = Net.mlp(lib, [5, 16, 3], seed=1)

    def op(self, name, *args):
        result = ctypes.c_void_p(getattr(self.lib, name)(self.g.scope, *args))
        self.g.raise_error()
        return result

    def forward(self, net, x):
        result = ctypes.c_void_p(self.lib.tern_forward(net.module, self.g.scope, x))
        self.g.raise_error()
        return result

    def loss(self, logits, real):
        target = self.op("tern_full", 0, 2, (ctypes.c_int64 * 2)(BATCH, 1), ctypes.c_double(real))
        return self.op("tern_bce_with_logits_loss", logits, target, None, 0)

    def descend(self, net, loss):
        self.lib.tern_backward(self.g.scope, loss)
        self.lib.tern_optim_step(net.optim, self.g.scope)
        self.g.raise_error()

    def step(self, real, noise):
        fake = self.forward(self.g, self.g.tensor(noise))
        judged_real = self.loss(self.forward(self.d, self.g.tensor(real)), 1)
        judged_fake = self.loss(self.forward(self.d, self.op("tern_detach", fake)), 0)
        self.descend(self.d, self.op("tern_add", judged_real, judged_fake))
        self.lib.tern_module_requires_grad_set(self.d.module, False)
        self.descend(self.g, self.loss(self.forward(self.d, fake), 1))
        assert all(grad is None for grad in self.d.grads().values()), "a frozen discriminator got gradients"
        self.lib.tern_module_requires_grad_set(self.d.module, True)
        self.lib.tern_ema_update(self.g.scope, self.average.module, self.g.module, ctypes.c_double(DECAY))
        self.g.raise_error()
        self.lib.check("tern_scope_end", self.g.scope)

    def close(self):
        self.average.close()
        self.d.close()
        self.g.close()


class Theirs:
    def __init__(self):
        self.g, self.d = torch_mlp([5, 16, 3], 1), torch_mlp([3, 16, 1], 2)
        self.average = copy.deepcopy(self.g)
        self.optims = [torch.optim.SGD(net.parameters(), **SGD) for net in (self.g, self.d)]

    def step(self, real, noise):
        ones = torch.ones(len(real), 1)
        judge = lambda x, target: F.binary_cross_entropy_with_logits(self.d(x), target)
        fake = self.g(noise)
        self.optims[1].zero_grad()
        (judge(real, ones) + judge(fake.detach(), 0 * ones)).backward()
        self.optims[1].step()
        self.optims[0].zero_grad()
        judge(fake, ones).backward()
        self.optims[0].step()
        with torch.no_grad():
            for a, p in zip(self.average.parameters(), self.g.parameters()):
                a.lerp_(p, 1 - DECAY)


def main():
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    lib = library()
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    ours, theirs = Ours(lib, group), Theirs()
    generator = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        real = torch.randn((world * BATCH, 3), generator=generator) + 1
        noise = torch.randn((world * BATCH, 5), generator=generator)
        mine = slice(rank * BATCH, (rank + 1) * BATCH)
        ours.step(real[mine].numpy(), noise[mine].numpy())
        theirs.step(real, noise)
    for name, net, want in (("G", ours.g, theirs.g), ("D", ours.d, theirs.d), ("average", ours.average, theirs.average)):
        for got, tensor in zip(net.state().values(), want.state_dict().values()):
            error = float(numpy.abs(got - tensor.numpy()).max())
            assert error <= 2e-6, f"{name} is off by {error}"
    print("equal", flush=True)
    ours.close()
    lib.tern_group_close(group)


if __name__ == "__main__":
    main()
