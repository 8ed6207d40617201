"""matmul compared with torch: vectors, matrices, broadcast batches, strided and blocked inputs, 16-bit types,
integers, empty inputs."""
import ctypes
import unittest

import numpy
import torch

import skips
import tern
from ops import Run, blocked, compare, gradient_check, in_16_bits, rounded, thread_counts

DEVICES = [("cpu", "f", 1e-5), ("cpu:reference", "f", 1e-6), ("cpu:reference", "d", 1e-13)]
PAIRS = [
    ((5,), (5,)),
    ((1,), (1,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((4, 5), (5, 3)),
    ((1, 5), (5, 1)),
    ((5,), (2, 5, 3)),
    ((2, 4, 5), (5,)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((2, 4, 5), (2, 5, 3)),
    ((2, 4, 5), (1, 5, 3)),
    ((3, 1, 4, 5), (2, 5, 3)),
    ((2, 1, 3, 4, 5), (1, 2, 3, 5, 3)),
    ((2, 2, 1, 2, 3, 5), (2, 1, 2, 1, 5, 4)),
    ((5,), (2, 3, 2, 1, 5, 4)),
    ((2, 3, 1, 2, 4, 5), (5,)),
]
LARGE = [((70, 33), (33, 65)), ((3, 37, 64), (64, 10))]
INT64 = ctypes.c_int64


def matmul(run, a, b):
    return run.op("tern_matmul", a, b)


class MatmulTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def draw(self, shape, dtype):
        return self.rng.standard_normal(shape).astype(dtype)

    def pair(self, shapes, dtype):
        return [self.draw(s, dtype) for s in shapes]

    def test_shapes(self):
        for device, dtype, tolerance in DEVICES:
            for shapes in PAIRS + (LARGE if device == "cpu" else []):
                compare(f"{device} {dtype} {shapes}", matmul, torch.matmul, self.pair(shapes, dtype), tolerance, device)

    def test_random_shapes(self):
        for _ in range(25):
            batch = [int(n) for n in self.rng.integers(1, 4, self.rng.integers(0, 5))]
            m, k, n = (int(i) for i in self.rng.integers(1, 20, 3))
            both = []
            for rows, columns in ((m, k), (k, n)):
                own = [s if self.rng.random() < 0.6 else 1 for s in batch][int(self.rng.integers(0, len(batch) + 1)) :]
                both.append((*own, rows, columns))
            for device, dtype, tolerance in DEVICES[::2]:
                compare(f"{device} {both}", matmul, torch.matmul, self.pair(both, dtype), tolerance, device)

    def test_strided(self):
        """Transposes, heads between rows, slices with gaps; and steps in both dimensions, which are copied."""
        turn = lambda run, x: run.op("tern_transpose", x, -1, -2)
        heads = lambda run, x: run.op("tern_transpose", x, 1, 2)
        cut = lambda run, x: run.op("tern_slice", x, -1, INT64(1), INT64(-2), INT64(1))
        step = lambda run, x: turn(run, run.op("tern_slice", x, -1, INT64(0), INT64(99), INT64(2)))
        torch_turn, torch_heads = lambda x: x.transpose(-1, -2), lambda x: x.transpose(1, 2)
        cases = [
            (turn, torch_turn, ((7, 5), (3, 7)), turn, torch_turn),
            (turn, torch_turn, ((2, 7, 5), (2, 3, 7)), turn, torch_turn),
            (heads, torch_heads, ((2, 6, 3, 5), (2, 5, 3, 4)), heads, torch_heads),
            (heads, torch_heads, ((2, 6, 3, 5), (2, 6, 3, 5)), lambda r, x: turn(r, heads(r, x)), lambda x: torch_turn(torch_heads(x))),
            (cut, lambda x: x[..., 1:-2], ((2, 4, 8), (5, 10)), cut, lambda x: x[..., 1:-2]),
            (step, lambda x: torch_turn(x[..., ::2]), ((2, 5, 8), (4, 10)), step, lambda x: torch_turn(x[..., ::2])),
            (cut, lambda x: x[..., 1:-2], ((9,), (6, 4)), turn, torch_turn),
        ]
        for device, dtype, tolerance in DEVICES:
            for one, torch_one, shapes, two, torch_two in cases:
                shapes = list(shapes)
                if one is cut and len(shapes[0]) == 1:
                    shapes[1] = (4, 6)
                op = lambda run, a, b: matmul(run, one(run, a), two(run, b))
                oracle = lambda a, b: torch.matmul(torch_one(a), torch_two(b))
                compare(f"strided {device} {shapes}", op, oracle, self.pair(shapes, dtype), tolerance, device)

    def test_blocked(self):
        for device, dtype, tolerance in DEVICES:
            op = lambda run, a, b: matmul(run, blocked(run, a), blocked(run, b))
            arrays = self.pair(((2, 16, 3, 4), (2, 16, 4, 5)), dtype)
            compare(f"blocked {device}", op, torch.matmul, arrays, tolerance, device)

    def test_each_gradient_alone_and_inputs_used_twice(self):
        arrays = self.pair(((3, 4, 5), (5, 5)), "f")
        for constant in ((0,), (1,)):
            compare(f"constant {constant}", matmul, torch.matmul, arrays, 1e-5, constant=constant)
        op = lambda run, a, b: matmul(run, matmul(run, a, b), run.op("tern_transpose", matmul(run, a, b), -1, -2))
        oracle = lambda a, b: torch.matmul(torch.matmul(a, b), torch.matmul(a, b).transpose(-1, -2))
        compare("used twice", op, oracle, arrays, 1e-5)
        square = self.pair(((6, 6),), "f")
        compare("with itself", lambda run, a: matmul(run, a, a), lambda a: a @ a, square, 1e-5)

    def test_threads(self):
        for shapes in (((300, 130), (130, 97)), ((12, 40, 30), (12, 30, 20)), ((40, 30), (12, 30, 20))):
            for threads in thread_counts(1, 2, 3):
                compare(f"{threads} threads {shapes}", matmul, torch.matmul, self.pair(shapes, "f"), 1e-5, threads=threads)

    def test_16_bits(self):
        for device in ("cpu", "cpu:reference"):
            for dtype, kind in ((5, torch.bfloat16), (6, torch.float16)):
                for shapes in PAIRS[2:15] + (LARGE if device == "cpu" else []):
                    arrays = [rounded(a, kind) for a in self.pair(shapes, "f")]
                    eps = torch.finfo(kind).eps
                    compare(f"{kind} {device} {shapes}", in_16_bits(matmul, dtype), torch.matmul, arrays, eps, device, gradient_tolerance=2 * eps)

    def test_integers(self):
        """Computed as integers, which wrap around."""
        for device in ("cpu", "cpu:reference"):
            for dtype, size in (("i8", 1 << 40), ("i4", 1 << 20), ("u1", 256), ("i1", 256), ("i2", 1 << 16)):
                for shapes in PAIRS[:14]:
                    arrays = [self.rng.integers(0, size, s).astype(dtype) for s in shapes]
                    run = Run(device)
                    got = run.value(matmul(run, *[run.constant(a) for a in arrays]))
                    numpy.testing.assert_array_equal(got, torch.matmul(*[torch.tensor(a) for a in arrays]).numpy())
                    run.close()

    def test_nothing(self):
        for device, dtype, tolerance in DEVICES:
            for shapes in (((3, 0), (0, 2)), ((0, 4), (4, 2)), ((3, 4), (4, 0)), ((0,), (0,)), ((0, 3, 4), (4, 2)), ((3, 4), (0, 4, 2)), ((2, 3, 0), (0, 2))):
                compare(f"{device} {shapes}", matmul, torch.matmul, self.pair(shapes, dtype), tolerance, device)

    def test_finite_differences(self):
        for shapes in (((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((2, 3, 4), (4, 2)), ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (3, 4, 2))):
            gradient_check(f"matmul {shapes}", matmul, self.pair(shapes, "d"))

    def test_errors_name_shapes(self):
        run = Run("cpu")
        zeros = lambda shape, dtype="f": run.constant(numpy.zeros(shape, dtype))
        expected = "matmul: expected (.., m, k) or (k) and (.., k, n) or (k), got "
        cases = [
            ((3, 4), (3, 4), expected + "(3, 4) and (3, 4)"),
            ((4,), (3,), expected + "(4) and (3)"),
            ((), (3,), expected + "() and (3)"),
            ((3,), (), expected + "(3) and ()"),
            ((2, 3, 4), (3, 4, 5), expected + "(2, 3, 4) and (3, 4, 5)"),
        ]
        for a, b, text in cases:
            with self.assertRaises(tern.TernError) as caught:
                matmul(run, zeros(a), zeros(b))
            self.assertEqual((caught.exception.code, str(caught.exception)), (-2, "tern_matmul: " + text))
            run.end_failed()
        for a, b, text in (("f", "d", "f32 and f64"), ("f", "i8", "f32 and i64")):
            with self.assertRaises(tern.TernError) as caught:
                matmul(run, zeros((2, 2), a), zeros((2, 2), b))
            self.assertEqual(caught.exception.code, -3)
            self.assertIn("expected two matrices of one dtype, which is not bool; got " + text, str(caught.exception))
            run.end_failed()
        with self.assertRaises(tern.TernError) as caught:
            yes = run.op("tern_eq", zeros((2, 2)), zeros((2, 2)))
            matmul(run, yes, yes)
        self.assertIn("got bool and bool", str(caught.exception))
        run.end_failed()
        run.close()


if __name__ == "__main__":
    skips.main()
