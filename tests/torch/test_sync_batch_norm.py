"""Synchronised batch norm on 1 to 4 ranks compared with torch's batch norm on the joined batch, in f64: values, every
gradient and the running statistics with equal, unequal and empty batches. (PyTorch's own SyncBatchNorm does not run
on a CPU.)"""
import json
import os
import subprocess
import tempfile
import unittest

import skips

import numpy
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = {1: [[4]], 2: [[3, 3], [1, 2], [5, 2], [0, 4]], 3: [[2, 2, 2], [1, 0, 5], [0, 0, 3]], 4: [[2, 2, 2, 2], [3, 0, 1, 2]]}
KINDS = [("1d", (5,)), ("1d", (3, 7)), ("2d", (16, 5, 4)), ("2d", (32, 1, 1)), ("2d", (3, 9, 6)), ("3d", (2, 3, 4, 5)), ("3d", (16, 2, 3, 4))]
FORMS = [("cpu", "f"), ("cpu", "bf16"), ("cpu", "d"), ("cpu:reference", "f"), ("cpu:reference", "d")]


def facts_of(ranks):
    """Every split with every dtype; forms, ReLU, residual and cumulative averages alternate, blocked layouts with
    plain ones."""
    cases = []
    for cut, rows in enumerate(ROWS[ranks]):
        for number, (kind, rest) in enumerate(KINDS):
            device, dtype = FORMS[(cut + number) % len(FORMS)]
            flags = 5 * cut + 3 * number
            case = dict(rows=rows, kind=kind, rest=rest, relu=bool(flags & 1), residual=bool(flags & 2), cumulative=bool(flags & 4))
            cases.append(dict(case, device=device, dtype=dtype, blocked=False))
            if kind != "1d" and rest[0] % 16 == 0:
                cases.append(dict(case, device="cpu", dtype="f", blocked=True))
            special = dict(values=("equal", "far")[number % 2], device=("cpu", "cpu:reference")[number // 2 % 2])
            special["dtype"] = "d" if cut % 2 and special["values"] == "equal" else "f"
            cases.append(dict(case, relu=False, residual=False, blocked=False, **special))
    return cases


def rounded(t, dtype):
    return t.to(torch.bfloat16).double() if dtype == "bf16" else t.float().double() if dtype == "f" else t


def arrays_of(facts, generator):
    """The inputs, and torch's results in two passes over the whole batch."""
    dtype, shape = facts["dtype"], (sum(facts["rows"]), *facts["rest"])
    draw = lambda *of: torch.randn(*of, generator=generator, dtype=torch.float64)
    x, dy = rounded(draw(*shape) * 2 + 3, dtype), rounded(draw(*shape), dtype)
    if facts.get("values") == "equal":  # in each channel
        x, dy = rounded(1e5 * draw(*shape[1:2]), "f").view(1, -1, *[1] * (len(shape) - 2)).expand(shape).clone(), torch.ones_like(dy)
    elif facts.get("values") == "far":  # the f32 next to the mean is no mean of theirs
        x = rounded(1e5 + 1e-2 * draw(*shape), dtype)
    x.requires_grad_()
    residual = rounded(draw(*shape) - 1, dtype).requires_grad_() if facts["residual"] else None
    affine = dtype != "d"  # a module's parameters are f32
    layer = getattr(torch.nn, f"BatchNorm{facts['kind']}")(shape[1], momentum=None if facts["cumulative"] else 0.1, affine=affine).double()
    if affine:
        for p in layer.parameters():
            p.data = rounded(draw(shape[1]) + 2, "f")
    for _ in range(2):
        y = layer(x)
        y = y if residual is None else y + residual
        y = torch.relu(y) if facts["relu"] else y
    y.backward(dy)
    out = dict(x=x, dy=dy, y=y, dx=x.grad)
    if residual is not None:
        out.update(residual=residual, dresidual=residual.grad)
    if affine:
        out.update(weight=layer.weight, bias=layer.bias, dweight=layer.weight.grad, dbias=layer.bias.grad)
        out.update(running_mean=layer.running_mean, running_var=layer.running_var)
    if facts.get("values") == "equal":  # exactly; torch's mean of equal values is rounded
        bias = layer.bias.view(1, -1, *[1] * (len(shape) - 2)) if affine else 0
        out.update({name: 0 * out[name] for name in ("dx", "dweight") if name in out}, y=0 * x + bias)
    return {name: t.detach().numpy() for name, t in out.items()}


class SyncBatchNormTest(unittest.TestCase):
    def run_ranks(self, ranks):
        generator, cases = torch.Generator().manual_seed(ranks), facts_of(ranks)
        arrays = {f"{i}/{name}": a for i, facts in enumerate(cases) for name, a in arrays_of(facts, generator).items()}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "cases.npz")
            numpy.savez(path, facts=json.dumps(cases), **arrays)
            command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), "/usr/bin/python3"]
            done = subprocess.run(command + [os.path.join(HERE, "sync_batch_norm_rank.py"), path], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), ranks)

    def test_one_rank(self):
        self.run_ranks(1)

    def test_two_ranks(self):
        self.run_ranks(2)

    def test_three_ranks(self):
        self.run_ranks(3)

    def test_four_ranks(self):
        self.run_ranks(4)


if __name__ == "__main__":
    skips.main()
