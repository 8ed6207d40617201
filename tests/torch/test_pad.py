"""pad with its modes compared with torch: values, gradients, layouts, types."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
import tern
from half import compare_half
from ops import Run, blocked, compare, gradient_check

DEVICES = [("cpu", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
MODES = ("constant", "reflect", "replicate", "circular")
NUMPY = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def longs(values):
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def pad(run, x, padding, mode):
    return run.op("tern_pad_mode", x, len(padding), longs(padding), MODES.index(mode) if mode in MODES else mode)


def oracle(x, padding, mode):
    """torch's pad, which requires batch and channels before the padded dimensions; adds them if missing."""
    front = 2 + len(padding) // 2 - x.dim()
    return F.pad(x[(None,) * front], padding, mode)[(0,) * front]


class PadTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return self.rng.standard_normal(shape).astype(dtype)

    def beside(self, what, padding, mode, shape, prepare=lambda run, x: x, before=lambda x: x, threads=None):
        op = lambda run, x: pad(run, prepare(run, x), padding, mode)
        for device, dtype, tolerance in DEVICES:
            compare(f"{what} {padding} {mode} {shape} {device}", op, lambda x: oracle(before(x), padding, mode), [self.draw(shape, dtype)], tolerance, device, threads=threads)

    def some(self, sizes, mode):
        """Random padding of these dimensions that the mode allows, the last dimension first."""
        most = lambda size: size - 1 if mode == "reflect" else size
        return [int(self.rng.integers(0, most(size) + 1)) for size in sizes[::-1] for _ in (0, 1)]

    def test_values_and_gradients(self):
        for mode in MODES:
            for turn in range(24):
                axes = turn % 3 + 1
                shape = [(2, 3), (5,), (1, 16), (3, 32)][turn % 4] + tuple(map(int, self.rng.integers(1, 8, axes)))
                padding = self.some(shape[-axes:], mode)
                prepare = blocked if len(shape) == axes + 2 and shape[1] % 16 == 0 else lambda run, x: x
                self.beside("random", padding, mode, shape, prepare, threads=turn % 3 + 1)

    def test_negative_numbers_take_away(self):
        for padding in ([-1, 2], [-2, -3], [3, -5, -1, 0], [-3, 0, 1, -3], [0, 0, 0, 0, -1, -1], [-5, 1]):
            op = lambda run, x: run.op("tern_pad", x, len(padding), longs(padding), ctypes.c_double(0.5))
            for device, dtype, tolerance in DEVICES:
                compare(f"{padding} {device}", op, lambda x: F.pad(x, padding, value=0.5), [self.draw((3, 4, 5), dtype)], tolerance, device)
        for padding in ([-6, 0], [-2, -4], [1, 9, -3, -2], [-(2**63) + 1, 0], [-(2**62), -(2**62)]):
            run = Run()
            with self.assertRaises(tern.TernError) as caught:
                run.op("tern_pad", run.constant(self.draw((3, 4, 5))), len(padding), longs(padding), ctypes.c_double(0.5))
            self.assertRegex(str(caught.exception), "tern_pad: pad: dimension [12] is to lose [0-9]+ and [0-9]+ of [45]")
            self.assertEqual(caught.exception.code, -7)
            run.end_failed()
            run.close()

    def test_as_much_as_there_is(self):
        for mode, padding in (("reflect", [4, 4, 2, 2]), ("reflect", [0, 4, 2, 0]), ("circular", [5, 5, 3, 3]), ("circular", [5, 0, 0, 3]), ("replicate", [30, 7, 0, 20]), ("constant", [9, 0, 0, 30])):
            self.beside("most", padding, mode, (2, 3, 3, 5))
            self.beside("most blocked", padding, mode, (2, 16, 3, 5), blocked)

    def test_nothing_around(self):
        for mode in MODES:
            for padding in ([0, 0], [0, 0, 0, 0]):
                self.beside("nothing", padding, mode, (2, 3, 4, 5)[: 2 + len(padding) // 2])

    def test_large_planes(self):
        """Rows longer than a stage, and several threads."""
        for mode in MODES:
            self.beside("large", [3, 1, 1, 2], mode, (2, 3, 40, 700), threads=3)
            self.beside("large blocked", [2, 3, 1, 0], mode, (1, 32, 60, 50), blocked, threads=3)

    def test_views_with_gaps(self):
        turned = lambda run, x: run.op("tern_slice", run.op("tern_transpose", x, 1, 3), 2, *map(ctypes.c_int64, (0, 6, 2)))
        for mode in MODES:
            self.beside("view", [1, 2, 2, 1], mode, (2, 5, 6, 4), turned, lambda x: x.transpose(1, 3)[:, :, 0:6:2])

    def test_any_dimension(self):
        """Compared with numpy, since torch pads only the last dimensions: batch and channels too, also in blocked
        tensors."""
        for mode in NUMPY:
            for shape, prepare in (((3, 4, 5, 2), lambda run, x: x), ((3, 16, 2, 4), blocked)):
                x, run = self.draw(shape), Run()
                around = [(1, 2), (3, 0), (1, 1), (0, 1)]
                got = run.value(pad(run, prepare(run, run.constant(x)), [n for pair in around[::-1] for n in pair], mode))
                numpy.testing.assert_array_equal(got, numpy.pad(x, around, NUMPY[mode]))
                run.close()

    def test_whole_numbers(self):
        for device in ("cpu", "cpu:reference"):
            for dtype in ("i8", "i4", "i2", "i1", "u1", "?"):
                for mode in NUMPY:
                    x, run = self.rng.integers(0, 200, (3, 4)).astype(dtype), Run(device)
                    got = run.value(pad(run, run.constant(x), [2, 1, 1, 2], mode))
                    numpy.testing.assert_array_equal(got, numpy.pad(x, ((1, 2), (2, 1)), NUMPY[mode]))
                    run.close()

    def test_16_bits_are_rounded_once(self):
        """However many elements of dy add up to one of x's: some dozens at corners and edges."""
        for device in ("cpu", "cpu:reference"):
            for mode in MODES:
                for shape, padding in (((2, 3, 4, 5), [4, 4, 3, 3]), ((2, 3, 9), [8, 5])):
                    compare_half(f"{mode} {shape}", lambda run, x: pad(run, x, padding, mode), lambda x: oracle(x, padding, mode), [self.draw(shape)], device)

    def test_two_uses_of_one_gradient(self):
        """Two ops use dy, so nothing may be accumulated in it; and x's gradient is added to."""

        def ours(run, x):
            y = pad(run, x, [2, 1, 1, 2], "reflect")
            return run.op("tern_add", run.op("tern_add", y, pad(run, x, [2, 1, 1, 2], "circular")), y)

        theirs = lambda x: 2 * F.pad(x, [2, 1, 1, 2], "reflect") + F.pad(x, [2, 1, 1, 2], "circular")
        compare("twice", ours, theirs, [self.draw((2, 3, 4, 5))], 2e-6)
        chain = lambda run, x: pad(run, run.op("tern_tanh", pad(run, run.op("tern_relu", x), [1, 2, 3, 0], "replicate")), [3, 0, 1, 1], "reflect")
        compare("chain", chain, lambda x: F.pad(F.pad(x.relu(), [1, 2, 3, 0], "replicate").tanh(), [3, 0, 1, 1], "reflect"), [self.draw((2, 3, 4, 5))], 2e-6)

    def test_gradients_by_finite_differences(self):
        for mode in MODES:
            gradient_check(mode, lambda run, x: pad(run, run.op("tern_tanh", x), [2, 1, 0, 2, 1, 1], mode), [self.draw((2, 3, 2, 3, 4), "d")])

    def test_empty_batches(self):
        for device, dtype, _ in DEVICES:
            for mode in MODES:
                run = Run(device)
                x = run.parameter(numpy.zeros((0, 3, 4), dtype))
                y = pad(run, x, [1, 2], mode)
                self.assertEqual(run.shape(y), (0, 3, 7))
                run.backward(run.op("tern_sum", y))
                self.assertEqual(run.grad(x).shape, (0, 3, 4))
                run.close()

    def test_errors(self):
        f = lambda *shape: numpy.ones(shape, "f")
        reflect, circular = "pad: expected reflection of less than the dimension, got ", "pad: expected circular padding of at most the dimension, got "
        numbers = "pad: expected two numbers of at least 0 for each of up to 2 dimensions, got "
        for x, padding, mode, code, text in (
            (f(1, 2, 3, 4), [4, 0], "reflect", -2, reflect + "4 before and 0 after dimension 3 of (1, 2, 3, 4)"),
            (f(1, 2, 3, 4), [3, 3, 1, 3], "reflect", -2, reflect + "1 before and 3 after dimension 2 of (1, 2, 3, 4)"),
            (f(3, 4), [0, 5], "circular", -2, circular + "0 before and 5 after dimension 1 of (3, 4)"),
            (f(3, 0), [1, 0], "replicate", -2, "pad: expected replication of something, got 1 before and 0 after dimension 1 of (3, 0)"),
            (f(3, 0), [0, 1], "circular", -2, circular + "0 before and 1 after dimension 1 of (3, 0)"),
            (f(3, 4), [1, 1], 4, -1, "pad: expected TERN_PADDING_MODE_ZEROS, _REFLECT, _REPLICATE or _CIRCULAR, got mode 4"),
            (f(3, 4), [1, 1], -1, -1, "got mode -1"),
            (f(3, 4), [1], "reflect", -7, numbers + "1 numbers"),
            (f(3, 4), [1, -1], "reflect", -7, numbers + "2 numbers"),
            (f(3, 4), [0] * 6, "reflect", -7, numbers + "6 numbers"),
            (f(3, 4), [1 << 62, 1 << 62], "replicate", -7, numbers + "2 numbers"),
            (f(3, 4), [1 << 62, 0], "replicate", -2, "has too many elements"),
        ):
            run = Run()
            with self.assertRaises(tern.TernError) as caught:
                pad(run, run.constant(x), padding, mode)
            self.assertIn("tern_pad_mode: ", str(caught.exception))
            self.assertIn(text, str(caught.exception))
            self.assertEqual(caught.exception.code, code)
            run.end_failed()
            run.close()


if __name__ == "__main__":
    skips.main()
