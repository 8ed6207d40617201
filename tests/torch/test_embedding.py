"""embedding and its layer compared with torch: values, accumulated gradients, padding, indices of any shape and
dtype."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from ops import Run, compare, gradient_check, in_16_bits, rounded

F = torch.nn.functional
DEVICES = [("cpu", "f", 1e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]


class Opts(ctypes.Structure):
    """tern_embedding_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("padding_idx", ctypes.c_int64)]


def opts_of(padding):
    return ctypes.byref(Opts(ctypes.sizeof(Opts), padding))


def embedding(run, weight, index, padding=None):
    return run.op("tern_embedding", index, weight, None if padding is None else opts_of(padding))


class EmbeddingTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def arrays(self, rows, size, shape, dtype="f", index="i8"):
        return [self.rng.standard_normal((rows, size)).astype(dtype), self.rng.integers(0, rows, shape).astype(index)]

    def test_value_and_gradient(self):
        """Some shapes use every row often, some leave rows out."""
        for device, dtype, tolerance in DEVICES:
            for rows, size, shape in ((1, 1, ()), (7, 5, (3,)), (7, 5, (40,)), (100, 33, (4, 6)), (3, 8, (2, 3, 1, 2, 4)), (500, 17, (64, 3))):
                for index in ("i8", "i4"):
                    arrays = self.arrays(rows, size, shape, dtype, index)
                    oracle = lambda w, i: F.embedding(i.long(), w)
                    compare(f"{device} {dtype} {rows} {size} {shape}", embedding, oracle, arrays, tolerance, device, constant=(1,))

    def test_frequent_row(self):
        """One row has more items than any other, with other rows' items in between."""
        for device, dtype, tolerance in DEVICES:
            weight, index = self.arrays(50, 33, (30, 60), dtype)
            index[self.rng.random(index.shape) < 0.6] = 7
            compare(f"{device} {dtype}", embedding, lambda w, i: F.embedding(i, w), [weight, index], 10 * tolerance, device, constant=(1,))

    def test_padding(self):
        """Its row is read like any other and gets no gradient, also if the gradient is added to an existing one."""
        for device, dtype, tolerance in DEVICES:
            for padding in (0, 3, 6):
                arrays = self.arrays(7, 5, (40,), dtype)
                op = lambda run, w, i: run.op("tern_add", embedding(run, w, i, padding), embedding(run, w, i))
                oracle = lambda w, i: F.embedding(i, w, padding_idx=padding) + F.embedding(i, w)
                compare(f"{device} padding {padding}", op, oracle, arrays, tolerance, device, constant=(1,))

    def test_strided(self):
        for device, dtype, tolerance in DEVICES:
            arrays = self.arrays(12, 9, (6, 8), dtype)

            def op(run, w, i):
                w = run.op("tern_transpose", run.op("tern_slice", w, 0, *map(ctypes.c_int64, (0, 12, 2))), 0, 1)
                return embedding(run, w, run.op("tern_transpose", i, 0, 1))

            arrays[1] %= 9
            compare(f"strided {device}", op, lambda w, i: F.embedding(i.t(), w[::2].t()), arrays, tolerance, device, constant=(1,))

    def test_threads(self):
        """The same bits for any number of threads, which share columns, or rows where those are short."""
        for size, dtype in itertools.product((64, 3, 17, 100), "fde"):
            weight, index = self.arrays(1000, size, (200000 // size,), dtype)
            index[self.rng.random(index.shape) < 0.5] = 7
            dy = self.rng.standard_normal((200000 // size, size)).astype(dtype)
            seen = set()
            for threads in (1, 2, 3, 5):
                run = Run("cpu", threads)
                w = run.parameter(weight)
                y = embedding(run, w, run.constant(index))
                value = run.value(y)
                run.backward(y, dy)
                seen.add(value.tobytes() + run.grad(w).tobytes())
                run.close()
            self.assertEqual(len(seen), 1, f"{size} {dtype}")

    def test_large_vocabulary(self):
        """Rows far apart, in every order, and a width that is no whole number of vectors."""
        for device, dtype, tolerance in DEVICES[:2]:
            weight, index = self.arrays(70000, 19, (500,), dtype)
            index[:4] = 69999, 0, 255, 65536
            compare(f"{device} {dtype}", embedding, lambda w, i: F.embedding(i, w), [weight, index], tolerance, device, constant=(1,))
        weight, index = self.arrays(70000, 19, (500,))
        for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
            arrays = [rounded(weight, kind), index]
            oracle = lambda w, i: F.embedding(i, w)
            compare(f"{kind}", in_16_bits(embedding, dtype), oracle, arrays, 0, "cpu", constant=(1,), gradient_tolerance=torch.finfo(kind).eps)

    def test_16_bits(self):
        """A row's gradients are summed before they are rounded."""
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
                weight, index = self.arrays(5, 6, (300,))
                eps = torch.finfo(kind).eps
                oracle = lambda w, i: F.embedding(i, w)
                compare(f"{kind} {device}", in_16_bits(embedding, dtype), oracle, [rounded(weight, kind), index], 0, device, constant=(1,), gradient_tolerance=eps)

    def test_integer_weights(self):
        """Rows of any dtype."""
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            weight, index = self.rng.integers(0, 200, (9, 4)), self.rng.integers(0, 9, (5, 2))
            for dtype in ("i8", "i4", "u1"):
                got = run.value(embedding(run, run.constant(weight.astype(dtype)), run.constant(index)))
                numpy.testing.assert_array_equal(got, weight.astype(dtype)[index])
            run.close()

    def test_nothing(self):
        for device, dtype, tolerance in DEVICES:
            for rows, size, shape in ((5, 3, (0,)), (5, 3, (2, 0)), (5, 0, (4,))):
                compare(f"{device} {shape}", embedding, lambda w, i: F.embedding(i, w), self.arrays(rows, size, shape, dtype), tolerance, device, constant=(1,))

    def test_finite_differences(self):
        gradient_check("embedding", embedding, self.arrays(5, 3, (4, 2), "d"), constant=(1,))

    def test_errors(self):
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            zeros = lambda shape, dtype="f": run.constant(numpy.zeros(shape, dtype))
            index = numpy.zeros((2, 3, 4), "i8")
            for bad in (-1, 10, 1 << 40):
                index[1, 2, 1] = bad
                self.refused(run, lambda: run.value(embedding(run, zeros((10, 3)), run.constant(index))), -7, f"embedding: index {bad} at (1, 2, 1) is not in [0, 10)")
            if tern.device("cpu") == "cpu":  # a device reports it only when a value is read; none is read here
                self.refused(run, lambda: run.value(embedding(run, zeros((10, 0)), run.constant(index))), -7, f"embedding: index {bad} at (1, 2, 1) is not in [0, 10)")
            shapes = "embedding: expected a weight of 2 dimensions and an index of at most 5, got "
            self.refused(run, lambda: embedding(run, zeros(10), zeros(2, "i8")), -2, shapes + "(10) and (2)")
            self.refused(run, lambda: embedding(run, zeros((4, 2)), zeros((1,) * 6, "i8")), -2, shapes + "(4, 2) and (1, 1, 1, 1, 1, 1)")
            for dtype, name in (("f", "f32"), ("u1", "u8")):
                self.refused(run, lambda: embedding(run, zeros((4, 2)), zeros(2, dtype)), -3, f"embedding: expected an index of i64 or i32, got {name}")
            for padding in (-2, 4):
                text = f"embedding: expected a padding_idx in [0, 4) or -1, got {padding}"
                self.refused(run, lambda: embedding(run, zeros((4, 2)), zeros(2, "i8"), padding), -7, text)
            run.close()

    def refused(self, run, call, code, text):
        with self.assertRaises(tern.TernError) as caught:
            call()
        self.assertEqual((caught.exception.code, str(caught.exception)), (code, "tern_embedding: " + text))
        run.end_failed()


class ModuleTest(unittest.TestCase):
    def test_beside_torch(self):
        """Weight bit for bit, the value, the gradient."""
        for count, size, padding in ((10, 3, None), (10, 3, 0), (7, 40, 6), (2, 1, 1)):
            torch.manual_seed(5)
            theirs = torch.nn.Embedding(count, size, padding_idx=padding)
            run = Run("cpu")
            rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(5)))
            layer = run.layer("tern_embedding_new", ctypes.c_int64(count), ctypes.c_int64(size), None if padding is None else opts_of(padding), rng)
            run.lib.tern_rng_free(rng)
            weight = ctypes.c_void_p(run.lib.tern_state_find(layer, b"weight"))
            numpy.testing.assert_array_equal(run.value(weight).view("u4"), theirs.weight.detach().numpy().view("u4"))
            index = numpy.random.default_rng(0).integers(0, count, (4, 5))
            y, want = run.forward(layer, run.constant(index)), theirs(torch.tensor(index))
            numpy.testing.assert_array_equal(run.value(y), want.detach().numpy())
            run.backward(run.op("tern_sum", y))
            want.sum().backward()
            numpy.testing.assert_array_equal(run.grad(weight), theirs.weight.grad.numpy())
            run.close()

    def test_errors_name_the_layer(self):
        run = Run("cpu")
        rng = ctypes.c_void_p(run.lib.check("tern_rng_new", ctypes.c_uint64(5)))
        for args, text in (
            ((0, 3, None), "expected at least 1 row and 1 feature, got 0 and 3"),
            ((3, 0, None), "expected at least 1 row and 1 feature, got 3 and 0"),
            ((3, 2, opts_of(3)), "expected a padding_idx in [0, 3) or -1, got 3"),
            ((3, 2, opts_of(-2)), "expected a padding_idx in [0, 3) or -1, got -2"),
        ):
            with self.assertRaises(tern.TernError) as caught:
                run.layer("tern_embedding_new", ctypes.c_int64(args[0]), ctypes.c_int64(args[1]), args[2], rng)
            self.assertEqual((caught.exception.code, str(caught.exception)), (-7, "tern_embedding_new: embedding: " + text))
        run.layers.append(ctypes.c_void_p(run.lib.check("tern_sequential_new")))
        inner = ctypes.c_void_p(run.lib.check("tern_embedding_new", ctypes.c_int64(4), ctypes.c_int64(2), None, rng))
        run.lib.check("tern_sequential_add", run.layers[-1], inner)
        with self.assertRaises(tern.TernError) as caught:
            run.forward(run.layers[-1], run.constant(numpy.zeros(3, "f")))
        self.assertEqual(str(caught.exception), 'tern_embedding: embedding "0": expected an index of i64 or i32, got f32')
        run.end_failed()
        run.lib.tern_rng_free(rng)
        run.close()


if __name__ == "__main__":
    skips.main()
