"""dropout: its mask compared with Philox in numpy, its rate and scale, its gradient, its layer; on both devices and
any number of threads. torch draws another stream, so it is compared only where the numbers do not matter."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, F16, F64, Run, blocked

DEVICES = ("cpu", "cpu:reference")
U32 = (1 << 32) - 1


def philox(key, counters):
    """Philox 4x32-10: counters uint64 [4, n] below 2^32 -> the words."""
    c = [numpy.array(word, numpy.uint64) for word in counters]
    k0, k1 = key & U32, key >> 32
    for _ in range(10):
        even, odd = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        low, high = numpy.uint64(U32), numpy.uint64(32)
        c = [(odd >> high) ^ c[1] ^ numpy.uint64(k0), odd & low, (even >> high) ^ c[3] ^ numpy.uint64(k1), even & low]
        k0, k1 = (k0 + 0x9E3779B9) & U32, (k1 + 0xBB67AE85) & U32
    return c


def kept(count, p, seed=0, step=0, number=0):
    """The elements that the draw keeps on rank 0."""
    blocks = numpy.arange((count + 3) // 4, dtype=numpy.uint64)
    whole = numpy.full_like(blocks, 1)
    words = philox(seed, (blocks, whole * numpy.uint64(number << 8), whole * numpy.uint64(step & U32), whole * numpy.uint64(step >> 32)))
    return (numpy.stack(words, 1).ravel() >= round(p * 2**32))[:count]


def seeded(device="cpu", seed=0, step=0, threads=None):
    run = Run(device, threads)
    run.lib.tern_scope_seed(run.scope, ctypes.c_uint64(seed), ctypes.c_uint64(step))
    return run


def dropout(run, x, p):
    return run.op("tern_dropout", x, ctypes.c_double(p))


class DropoutTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype="f"):
        return self.rng.standard_normal(shape).astype(dtype)

    def test_mask_and_values(self):
        """Bit for bit, wherever the stream begins and whatever the dtype."""
        for device in DEVICES:
            for seed, step in ((0, 0), (1, 5), ((1 << 64) - 1, (1 << 40) + 3)):
                for shape in ((), (1,), (5,), (63,), (64,), (7, 37), (2, 3, 5, 7)):
                    for p in (0.1, 0.5, 0.75, 1 / 3):
                        for dtype in "fd":
                            run = seeded(device, seed, step)
                            x = self.draw(shape, dtype)
                            for number in (0, 1):
                                got = run.value(dropout(run, run.constant(x), p))
                                mask = kept(x.size, p, seed, step, number).reshape(shape)
                                want = numpy.where(mask, x * x.dtype.type(1 / (1 - p)), 0)
                                numpy.testing.assert_array_equal(got, want.astype(dtype))
                            run.close()

    def test_devices_and_threads_agree(self):
        x, dy = self.draw((300, 401)), self.draw((300, 401))
        for other in (None, F64, BF16, F16):
            seen = set()
            for device, threads in (("cpu", 1), ("cpu", 2), ("cpu", 5), ("cpu:reference", 1)):
                run = seeded(device, 3, threads=threads)
                p = run.parameter(x)
                y = dropout(run, run.op("tern_cast", p, other) if other else p, 0.4)
                self.assertEqual(run.lib.tern_tensor_dtype(y), other or 0)
                y = run.op("tern_cast", y, 0)
                value = run.value(y)
                run.backward(y, dy)
                seen.add(value.tobytes() + run.grad(p).tobytes())
                run.close()
            self.assertEqual(len(seen), 1)

    def test_rate_and_scale(self):
        """The number of kept elements fits a binomial distribution; their mean is torch's."""
        n = 1 << 20
        run = Run("cpu")
        ones = run.constant(numpy.ones(n, "f"))
        for p in (0.01, 0.3, 0.5, 0.9):
            got = run.value(dropout(run, ones, p))
            self.assertEqual(set(numpy.unique(got)), {0, numpy.float32(1 / (1 - p))})
            self.assertEqual(set(numpy.unique(got)), set(numpy.unique(torch.nn.functional.dropout(torch.ones(1000), p).numpy())))
            self.assertLess(abs((got > 0).mean() - (1 - p)), 5 * (p * (1 - p) / n) ** 0.5)
        run.close()

    def test_gradient_is_the_mask(self):
        """In place of dy, into a separate gradient, and added to an existing one."""
        for device in DEVICES:
            for dtype in "fd":
                x, dy, p = self.draw((9, 33), dtype), self.draw((9, 33), dtype), 0.3
                scale = x.dtype.type(1 / (1 - p))
                factor = lambda number: numpy.where(kept(x.size, p, 0, 0, number).reshape(x.shape), scale, 0).astype(dtype)
                run = seeded(device)
                w = run.parameter(x)
                run.backward(dropout(run, w, p), dy)
                numpy.testing.assert_array_equal(run.grad(w), factor(0) * dy)
                before = run.grad(w)
                run.backward(dropout(run, w, p), dy)
                numpy.testing.assert_allclose(run.grad(w), before + factor(1) * dy, rtol=1e-6, atol=1e-6)
                run.lib.tern_zero_grad(ctypes.byref(run.module))
                y = run.op("tern_mul", w, w)
                both = run.op("tern_add", dropout(run, y, p), dropout(run, dropout(run, y, p), p))
                run.backward(both, dy)
                want = 2 * x * (factor(2) * dy + factor(3) * factor(4) * dy)
                numpy.testing.assert_allclose(run.grad(w), want, rtol=1e-5, atol=1e-5)
                run.close()

    def test_strided_and_blocked(self):
        """An element's number is its row-major position, whatever its layout in memory."""
        for device in DEVICES:
            x, p = self.draw((2, 16, 5, 3)), 0.5
            for prepare, turn in (
                (lambda run, x: run.op("tern_transpose", x, 1, 3), lambda x: x.transpose(0, 3, 2, 1)),
                (lambda run, x: run.op("tern_slice", x, 1, *map(ctypes.c_int64, (1, 16, 3))), lambda x: x[:, 1::3]),
                (blocked, lambda x: x),
            ):
                run = seeded(device)
                w = run.parameter(x)
                y = dropout(run, prepare(run, w), p)
                want = turn(x) * kept(turn(x).size, p).reshape(turn(x).shape) * 2
                numpy.testing.assert_array_equal(run.value(y), want)
                dy = self.draw(want.shape)
                run.backward(y, dy)
                full = numpy.zeros_like(x)
                turn(full)[...] = dy * (want != 0) * 2
                numpy.testing.assert_array_equal(run.grad(w), full)
                run.close()

    def test_none_and_all(self):
        """p = 0 returns x, but still draws. p = 1 gives 0, but not for NaN and infinity, as in torch."""
        for device in DEVICES:
            run = seeded(device)
            x = self.draw((40,))
            w = run.parameter(x)
            self.assertEqual(dropout(run, w, 0).value, w.value)
            numpy.testing.assert_array_equal(run.value(dropout(run, w, 0.5)) != 0, kept(40, 0.5, number=1))
            y = dropout(run, w, 1)
            numpy.testing.assert_array_equal(run.value(y), 0 * x)
            run.backward(y, x)
            numpy.testing.assert_array_equal(run.grad(w), 0 * x)
            odd = numpy.array([numpy.nan, numpy.inf, 1], "f")
            for p in (0.5, 1):
                got = run.value(dropout(run, run.constant(odd), p))
                want = torch.nn.functional.dropout(torch.tensor(odd), p).numpy()
                self.assertTrue(numpy.isnan(got[0]) and numpy.isnan(want[0]))
                self.assertFalse(numpy.isfinite(got[1]) or numpy.isfinite(want[1]))
            run.close()

    def test_nothing(self):
        for device in DEVICES:
            run = Run(device)
            w = run.parameter(numpy.zeros((0, 3), "f"))
            y = dropout(run, w, 0.5)
            self.assertEqual(run.value(y).shape, (0, 3))
            run.backward(run.op("tern_sum", y))
            self.assertEqual(run.grad(w).shape, (0, 3))
            run.close()

    def test_errors(self):
        run = Run("cpu")
        for x, p, code, text in (
            (numpy.ones(3, "i8"), 0.5, -3, "dropout: expected floating point, got i64"),
            (numpy.ones(3, "f"), -0.1, -7, "dropout: expected a probability in [0, 1], got -0.1"),
            (numpy.ones(3, "f"), 1.5, -7, "dropout: expected a probability in [0, 1], got 1.5"),
            (numpy.ones(3, "f"), float("nan"), -7, "dropout: expected a probability in [0, 1], got nan"),
        ):
            with self.assertRaises(tern.TernError) as caught:
                dropout(run, run.constant(x), p)
            self.assertEqual((caught.exception.code, str(caught.exception)), (code, "tern_dropout: " + text))
            run.end_failed()
        for p in (-0.1, 1.5, float("nan")):
            with self.assertRaises(tern.TernError) as caught:
                run.layer("tern_dropout_new", ctypes.c_double(p))
            self.assertEqual((caught.exception.code, str(caught.exception)), (-7, f"tern_dropout_new: dropout: expected a probability in [0, 1], got {p:g}"))
        run.close()


class ChannelsTest(unittest.TestCase):
    """dropout2d and dropout3d: one decision per channel of a sample."""

    def setUp(self):
        self.rng = numpy.random.default_rng(1)

    def cases(self):
        for device in DEVICES:
            for shape in ((3, 5, 4, 7), (2, 16, 3, 5), (40, 32, 1, 1), (2, 3, 4, 5, 6), (3, 16, 2, 3, 3), (9, 37, 1, 1, 1)):
                for prepare in (lambda run, x: x,) + ((blocked,) if shape[1] % 16 == 0 else ()):
                    yield device, f"tern_dropout{len(shape) - 2}d", shape, prepare

    def test_channels_and_gradient(self):
        """Values and gradients, stored and added, in both layouts and on any number of threads."""
        for device, name, shape, prepare in self.cases():
            for dtype in "fd":
                for threads, p in ((1, 0.5), (3, 0.2)):
                    x, dy = (self.rng.standard_normal(shape).astype(dtype) for _ in range(2))
                    factor = [kept(shape[0] * shape[1], p, 7, 0, n).reshape(*shape[:2], *[1] * (len(shape) - 2)) * x.dtype.type(1 / (1 - p)) for n in (0, 1)]
                    run = seeded(device, 7, threads=threads)
                    w = run.parameter(x)
                    y = run.op(name, prepare(run, w), ctypes.c_double(p))
                    numpy.testing.assert_array_equal(run.value(y), x * factor[0])
                    run.backward(y, dy)
                    numpy.testing.assert_array_equal(run.grad(w), dy * factor[0])
                    run.backward(run.op(name, prepare(run, w), ctypes.c_double(p)), dy)
                    numpy.testing.assert_allclose(run.grad(w), dy * factor[0] + dy * factor[1], rtol=1e-6, atol=1e-6)
                    run.close()

    def test_16_bits(self):
        """Powers of two times a scale of 2 are exact; several threads share the work."""
        x = 2.0 ** self.rng.integers(-3, 4, (3, 16, 41, 43)).astype("f")
        for device in DEVICES:
            for half in (5, 6):
                for prepare in (lambda run, x: x, lambda run, x: run.op("tern_cast", blocked(run, run.op("tern_cast", x, 0)), half)):
                    run = seeded(device, threads=2)
                    w = run.parameter(x)
                    y = run.op("tern_dropout2d", prepare(run, run.op("tern_cast", w, half)), ctypes.c_double(0.5))
                    self.assertEqual(run.lib.tern_tensor_dtype(y), half)
                    want = 2 * kept(48, 0.5).reshape(3, 16, 1, 1)
                    y = run.op("tern_cast", y, 0)
                    numpy.testing.assert_array_equal(run.value(y), x * want)
                    run.backward(y, x)
                    numpy.testing.assert_array_equal(run.grad(w), x * want)
                    run.close()

    def test_what_torch_says(self):
        """With the same channels as a mask: torch drops whole channels, scales the others alike, and keeps NaN."""
        x = torch.ones(64, 32, 3, 2)
        x[0, :, 1, 1] = numpy.nan
        theirs = torch.nn.functional.dropout2d(x, 0.25).numpy()
        run = seeded()
        mine = run.value(run.op("tern_dropout2d", run.constant(x.numpy()), ctypes.c_double(0.25)))
        for y in (mine, theirs):
            self.assertTrue(numpy.isnan(y[0, :, 1, 1]).all())
            self.assertTrue((y[1:] == y[1:, :, :1, :1]).all())
            self.assertEqual(set(numpy.unique(y[1:])), {0, numpy.float32(1 / 0.75)})
            self.assertLess(abs((y[1:, :, 0, 0] > 0).mean() - 0.75), 5 * (0.25 * 0.75 / 2016) ** 0.5)
        run.close()

    def test_nothing_and_none(self):
        for device in DEVICES:
            run = seeded(device)
            for shape in ((0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2)):
                self.assertEqual(run.value(run.op("tern_dropout2d", run.constant(numpy.zeros(shape, "f")), ctypes.c_double(0.5))).shape, shape)
            x = run.constant(numpy.ones((1, 2, 3, 4, 5), "f"))
            self.assertEqual(run.op("tern_dropout3d", x, ctypes.c_double(0)).value, x.value)
            run.close()

    def test_errors(self):
        one = numpy.ones((1, 2, 3, 4), "f")
        for name, x, p, code, text in (
            ("tern_dropout2d", one[0], 0.5, -2, "dropout of channels: expected (N, C, H, W), got (2, 3, 4)"),
            ("tern_dropout3d", one, 0.5, -2, "dropout of channels: expected (N, C, D, H, W), got (1, 2, 3, 4)"),
            ("tern_dropout2d", one.astype("i8"), 0.5, -3, "dropout: expected floating point, got i64"),
            ("tern_dropout2d", one, 1.5, -7, "dropout: expected a probability in [0, 1], got 1.5"),
        ):
            run = Run("cpu")
            with self.assertRaises(tern.TernError) as caught:
                run.op(name, run.constant(x), ctypes.c_double(p))
            self.assertEqual((caught.exception.code, str(caught.exception)), (code, f"{name}: {text}"))
            run.end_failed()
            run.close()
        with self.assertRaises(tern.TernError) as caught:
            Run("cpu").layer("tern_dropout3d_new", ctypes.c_double(2))
        self.assertEqual(str(caught.exception), "tern_dropout3d_new: dropout: expected a probability in [0, 1], got 2")


class ModuleTest(unittest.TestCase):
    def test_drops_in_training_only(self):
        run = seeded(seed=9)
        layer = run.layer("tern_dropout_new", ctypes.c_double(0.5))
        x = run.constant(numpy.ones(100, "f"))
        run.lib.tern_eval(layer)
        self.assertEqual(run.forward(layer, x).value, x.value)
        run.lib.tern_train(layer)
        numpy.testing.assert_array_equal(run.value(run.forward(layer, x)), 2 * kept(100, 0.5, 9))
        run.close()

    def test_channels(self):
        for name, shape in (("tern_dropout2d_new", (3, 5, 2, 2)), ("tern_dropout3d_new", (3, 5, 2, 2, 2))):
            run = seeded(seed=9)
            layer = run.layer(name, ctypes.c_double(0.5))
            x = run.constant(numpy.ones(shape, "f"))
            run.lib.tern_eval(layer)
            self.assertEqual(run.forward(layer, x).value, x.value)
            run.lib.tern_train(layer)
            want = 2 * kept(15, 0.5, 9).reshape(3, 5, *[1] * (len(shape) - 2))
            numpy.testing.assert_array_equal(run.value(run.forward(layer, x)), numpy.broadcast_to(want, shape))
            run.close()


if __name__ == "__main__":
    skips.main()
