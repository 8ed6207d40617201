"""One rank of test_amp.py: 14 steps of each opt level compared with PyTorch, with overflows on the last rank only.

    tern run -n N /usr/bin/python3 amp_rank.py MODEL LEVEL..

apex is modelled as its sources have it: what it casts, LossScaler.update_scale, masters made of the rounded parameters, the
mean of the ranks' gradients. Every rank computes it for all ranks. How far bf16 may be from bf16 elsewhere is measured: by how
far PyTorch's own f32 run is from its bf16 run."""
import copy
import ctypes
import importlib
import os
import sys

import torch
import torch.nn.functional as F

from nets import Net, library
from objects import Objects

STEPS, BATCH, OVERFLOWS = 14, 8, (4, 11)
SIDE = {"mlp": 28, "resnet": 14}  # of the images: PyTorch's convolutions in bf16 are slow
SGD = {"mlp": dict(lr=0.05, momentum=0.9), "resnet": dict(lr=0.0005, momentum=0.9)}


class AmpOpts(ctypes.Structure):
    """tern_amp_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("level", ctypes.c_int),
        ("enabled", ctypes.c_bool),
        ("half_type", ctypes.c_int),
        ("cast_model", ctypes.c_bool),
        ("patch_functions", ctypes.c_bool),
        ("keep_batch_norm_f32", ctypes.c_bool),
        ("master_weights", ctypes.c_bool),
        ("gradients_f32", ctypes.c_bool),
        ("cast_model_outputs", ctypes.c_int),
        ("loss_scale", ctypes.c_double),
        ("min_loss_scale", ctypes.c_double),
        ("max_loss_scale", ctypes.c_double),
        ("num_losses", ctypes.c_int),
        ("name_non_finite", ctypes.c_bool),
    ]


class Scaler:
    """apex.amp.scaler.LossScaler, dynamic."""

    def __init__(self):
        self.scale, self.unskipped = 2.0**16, 0

    def update(self, overflow):
        if overflow:
            self.scale, self.unskipped = self.scale / 2, 0
        else:
            self.unskipped += 1
        if self.unskipped == 2000:
            self.scale, self.unskipped = min(2.0**24, self.scale * 2), 0
        return overflow


class Apex:
    """A module under an opt level, and its optimizer, for all ranks."""

    def __init__(self, module, level, world, sgd):
        self.level, self.world, self.scaler = level, world, Scaler()
        self.module = module
        if level >= 2:
            for inner in module.modules():
                is_norm = isinstance(inner, torch.nn.modules.batchnorm._BatchNorm)
                if level == 3 or not is_norm:
                    for tensor in [*inner.parameters(recurse=False), *inner.buffers(recurse=False)]:
                        if tensor.is_floating_point():
                            tensor.data = tensor.data.bfloat16()
        self.masters = [p.detach().clone().float() if level == 2 else p for p in module.parameters()]
        for master in self.masters:
            master.requires_grad_()
        self.optimizer = torch.optim.SGD(self.masters, **sgd)

    def loss(self, x, y):
        if self.level == 1:
            with torch.autocast("cpu", torch.bfloat16):
                return F.cross_entropy(self.module(x), y)
        return F.cross_entropy(self.module(x.bfloat16() if self.level >= 2 else x).float(), y)

    def step(self, batches, boosts):
        """Returns the ranks' losses, and whether the step was made."""
        losses, sums = [None] * self.world, None
        before = copy.deepcopy(dict(self.module.named_buffers()))
        for rank in reversed(range(self.world)):
            for name, buffer in self.module.named_buffers():
                buffer.copy_(before[name])
            self.module.zero_grad()
            loss = self.loss(*batches[rank])
            (loss * boosts[rank] * self.scaler.scale).backward()
            losses[rank] = loss.item()
            grads = [p.grad.float().clone() for p in self.module.parameters()]
            sums = grads if sums is None else [a + b for a, b in zip(sums, grads)]
        for master, total in zip(self.masters, sums):
            mean = (total / self.world).to(torch.bfloat16 if self.level == 3 else torch.float32).float()
            master.grad = (mean / self.scaler.scale).to(master.dtype)
        if self.scaler.update(any(not torch.isfinite(m.grad).all() for m in self.masters)):
            return losses, False
        self.optimizer.step()
        if self.level == 2:
            for parameter, master in zip(self.module.parameters(), self.masters):
                parameter.data.copy_(master.data)
        return losses, True


def make_module(model):
    torch.manual_seed(5)
    if model == "mlp":
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    sys.path.append(os.path.join(os.environ["TERN_SOURCE"], "bench", "peers"))
    return importlib.import_module("fashion").Net()


def make_net(lib, model, level, group):
    """Makes the same net in tern: first amp, then ddp, then the optimizer."""
    opts = lib.tern_amp_defaults(level)
    opts.loss_scale = 0
    amps = []

    def under_amp(make):
        def made(rng):
            module = ctypes.c_void_p(make(rng))
            amps.append(ctypes.c_void_p(lib.check("tern_amp_new", module, ctypes.byref(opts))))
            return module.value
        return made

    if model == "mlp":
        sizes = (ctypes.c_int64 * 3)(784, 64, 10)
        make = lambda rng: lib.check("tern_mlp_new", sizes, 3, rng)
    else:
        fields = lib.tern_resnet_defaults()
        fields.in_channels, fields.stages, fields.classes, fields.small_stem, fields.kaiming = 1, 3, 10, True, False
        fields.blocks[:3], fields.channels[:3] = [1, 1, 1], [16, 32, 64]
        make = lambda rng: lib.check("tern_resnet_new", ctypes.byref(fields), rng)
    return Net(lib, under_amp(make), seed=5, group=group, **SGD[model]), amps[0]


def step(net, amp, x, y, boost):
    lib = net.lib
    loss = ctypes.c_void_p(lib.tern_cross_entropy(net.scope, ctypes.c_void_p(net.forward(x)), net.tensor(y), None))
    value = lib.tern_item(loss)
    factor = ctypes.c_void_p(lib.tern_full(net.scope, 0, 0, None, ctypes.c_double(boost)))
    boosted = ctypes.c_void_p(lib.tern_mul(net.scope, loss, factor))
    lib.tern_amp_backward(amp, net.scope, boosted, None)
    net.update()
    lib.check("tern_scope_end", net.scope)
    return value


def compare(lib, group, model, level):
    """Runs all steps of both."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    objects = Objects(lib)
    net, amp = make_net(lib, model, level, group)
    theirs = Apex(make_module(model), level, world, SGD[model])
    plain = Apex(make_module(model), 0, world, SGD[model]) if level else theirs

    generator = torch.Generator().manual_seed(1)
    gap = worst = 0.0
    for number in range(STEPS):
        batches = [(torch.randn((BATCH, 1, SIDE[model], SIDE[model]), generator=generator), torch.randint(0, 10, (BATCH,), generator=generator))
                   for _ in range(world)]
        boosts = [1e38 if number in OVERFLOWS and r == world - 1 else 1.0 for r in range(world)]
        x, y = batches[rank]
        ours = step(net, amp, x.numpy().reshape(BATCH, -1) if model == "mlp" else x.numpy(), y.numpy(), boosts[rank])
        losses, made = theirs.step(batches, boosts)
        exact = plain.step(batches, boosts)[0] if level else losses
        assert made == (number not in OVERFLOWS), f"step {number}"
        assert lib.tern_amp_loss_scale_get(amp, 0) == theirs.scaler.scale, f"rank {rank} step {number}"
        gap = max(gap, max(abs(a - b) for a, b in zip(losses, exact)))
        worst = max(worst, abs(ours - losses[rank]))
    state = objects.take(lib.check("tern_amp_state_dict", amp))
    assert state == {"loss_scaler0": {"loss_scale": theirs.scaler.scale, "unskipped": theirs.scaler.unskipped}}, state

    saved = objects.take(lib.check("tern_module_state_dict", net.module))
    moved = far = 0.0
    for ours, want, other in zip(saved.values(), theirs.module.state_dict().values(), plain.module.state_dict().values()):
        assert ours.dtype == (torch.int64 if ours.dim() == 0 else torch.float32)
        scale = max(1.0, float(want.float().abs().max()))
        moved = max(moved, float((want.float() - other.float()).abs().max()) / scale)
        far = max(far, float((ours.float() - want.float()).abs().max()) / scale)
    print(f"rank {rank}, O{level}: losses {worst:.2e} apart, PyTorch's bf16 and f32 {gap:.2e}; parameters {far:.2e} and {moved:.2e}", flush=True)
    if level == 0:
        assert worst < 1e-4 and far < 1e-4
    else:
        assert worst <= 1.5 * gap and far <= 1.5 * moved
    lib.tern_amp_free(amp)
    net.close()


def main():
    model, levels = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    lib = library()
    lib.returns(AmpOpts, "tern_amp_defaults")
    group = ctypes.c_void_p(lib.check("tern_group_open", None))
    for level in levels:
        compare(lib, group, model, int(level))
    lib.tern_group_close(group)
    print("equal", flush=True)


if __name__ == "__main__":
    main()
