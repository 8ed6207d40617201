"""Nearest and linear interpolation of 1 to 3 dimensions against torch."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

import tern
from half import compare_half
from ops import Run, compare, gradient_check

DEVICES = [("cpu", "f", 2e-6), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-12)]
NEAREST, LINEAR = 0, 1
NAMES = {1: "linear", 2: "bilinear", 3: "trilinear"}
# Shapes with sizes that they get, or scales.
CASES = [
    ((2, 3, 7), [(14,), (3,), (7,), (1,), (100,)], [(2,), (1.5,), (0.5,), (1.1,), (0.9,), (2.7,)]),
    ((1, 1, 1), [(1,), (5,)], [(3,)]),
    ((3, 5, 9, 11), [(18, 22), (4, 30), (9, 11), (1, 1), (65, 67)], [(2, 2), (0.4, 3.3), (1.05, 2)]),
    ((1, 7, 33, 33), [(65, 65)], [(0.25, 0.75)]),
    ((2, 16, 5, 4), [(10, 8), (3, 9)], [(2, 2), (1.7, 0.8)]),
    ((1, 32, 1, 6), [(4, 6)], [(3, 1.2)]),
    ((2, 3, 4, 5, 6), [(8, 10, 12), (2, 7, 18), (1, 1, 3)], [(2, 2, 2), (1.3, 0.7, 2.2)]),
    ((1, 16, 3, 4, 5), [(6, 8, 10), (5, 2, 7)], [(2, 2, 2), (0.7, 1.9, 1)]),
    ((1, 2, 3, 2, 40), [(5, 4, 81), (3, 2, 39)], [(1, 2, 0.3)]),
]


class Opts(ctypes.Structure):
    """tern_interpolate_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("mode", ctypes.c_int),
        ("align_corners", ctypes.c_bool),
        ("shape", ctypes.c_int64 * 3),
        ("scale", ctypes.c_double * 3),
    ]


def options(mode, align=False, size=(), scale=()):
    return ctypes.byref(Opts(ctypes.sizeof(Opts), mode, align, size, scale))


def interpolate(run, x, *args, **given):
    return run.op("tern_interpolate", x, options(*args, **given))


def oracle(x, mode, align=False, **given):
    given = {name: tuple(values) for name, values in given.items()}
    if mode == NEAREST:
        return F.interpolate(x, **{"size" if name == "size" else "scale_factor": v for name, v in given.items()})
    name = NAMES[x.ndim - 2]
    return F.interpolate(x, size=given.get("size"), scale_factor=given.get("scale"), mode=name, align_corners=align)


def in_blocks(run, x):
    """x with C % 16 == 0 in the layout of blocks of 16 channels, values and gradients exactly: through the identity as a convolution,
    over the last dimensions as one."""
    shape = run.shape(x)
    weight = numpy.eye(shape[1], dtype=run.dtype(x)).reshape(shape[1], shape[1], *[1] * (len(shape) - 2))
    return run.op(f"tern_conv{len(shape) - 2}d", x, run.constant(weight), None, None)


def layouts(shape):
    yield "plain", lambda run, x: x
    if shape[1] % 16 == 0 and len(shape) == 4:
        yield "blocked", in_blocks


class InterpolateTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return self.rng.standard_normal(shape).astype(dtype)

    def targets(self, sizes, scales):
        return [dict(size=s) for s in sizes] + [dict(scale=s) for s in scales]

    def test_linear(self):
        for device, dtype, tolerance in DEVICES:
            for shape, sizes, scales in CASES:
                for layout, prepare in layouts(shape):
                    for target in self.targets(sizes, scales):
                        for align in (False, True):
                            op = lambda run, x: interpolate(run, prepare(run, x), LINEAR, align, **target)
                            want = lambda x: oracle(x, LINEAR, align, **target)
                            compare(f"{shape} {layout} {target} {align} {device}", op, want, [self.draw(shape, dtype)], tolerance, device)

    def test_nearest(self):
        """Beside torch in the same dtype, since which element is the nearest can depend on how it rounds. Where a scale leaves the
        size as it is, torch's forward takes steps and its backward none: the gradient is that of what was computed."""
        for device, dtype, _ in DEVICES:
            for shape, sizes, scales in CASES:
                for layout, prepare in layouts(shape):
                    for target in self.targets(sizes, scales):
                        x = self.draw(shape, dtype)
                        theirs = torch.tensor(x, requires_grad=True)
                        want = oracle(theirs, NEAREST, **target)
                        dy = self.draw(tuple(want.shape), dtype)
                        run = Run(device)
                        mine = run.parameter(x)
                        y = interpolate(run, prepare(run, mine), NEAREST, **target)
                        what = f"{shape} {layout} {target} {device}"
                        numpy.testing.assert_array_equal(run.value(y), want.detach().numpy(), what)
                        run.backward(y, dy)
                        stays = [i for i in range(2, x.ndim) if want.shape[i] == x.shape[i] and target.get("scale", (1,) * 3)[i - 2] != 1]
                        if not stays:
                            want.backward(torch.tensor(dy))
                            numpy.testing.assert_allclose(run.grad(mine), theirs.grad.numpy(), 1e-5, 1e-5, err_msg=what)
                        run.close()

    def test_nearest_rounds_as_torch(self):
        for device, dtype, _ in DEVICES:
            run = Run(device)
            for n in (1, 3, 7, 10, 49, 63):
                x = numpy.arange(n, dtype=dtype).reshape(1, 1, n)
                for size in range(1, 200, 3):
                    got = run.value(interpolate(run, run.constant(x), NEAREST, size=(size,)))
                    numpy.testing.assert_array_equal(got, F.interpolate(torch.tensor(x), size=size).numpy())
                run.end()
            run.close()


if __name__ == "__main__":
    unittest.main()
