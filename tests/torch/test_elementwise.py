"""add, mul, sum, mean, reshape, flatten, mse_loss, cross_entropy against torch."""
import ctypes
import unittest

import numpy
import torch

import tern
from ops import Run, blocked, compare, gradient_check

RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 2e-6), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
PAIRS = [
    ((3, 4), (3, 4)),
    ((), ()),
    ((7, 33), (33,)),
    ((7, 33), (7, 1)),
    ((2, 1, 5), (3, 1)),
    ((1,), (4, 5, 6)),
    ((4, 5, 6), ()),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((64, 1031), (64, 1031)),
    ((3, 1, 17, 1), (5, 1, 6)),
    ((1, 1, 1), (2,)),
]


def draw(shape, dtype):
    return RNG.standard_normal(shape).astype(dtype)


class ElementwiseTest(unittest.TestCase):
    def test_broadcasting(self):
        for device, dtype, tolerance in DEVICES:
            for shapes in PAIRS:
                for order in (1, -1):
                    arrays = [draw(s, dtype) for s in shapes][::order]
                    for name, oracle in (("tern_add", torch.add), ("tern_mul", torch.mul)):
                        compare(f"{name} {device} {shapes}", lambda r, a, b: r.op(name, a, b), oracle, arrays, tolerance, device)

    def test_blocked_operands(self):
        """Blocked with blocked, with a scalar, and with a plain tensor of any shape, both ways round."""
        for device, dtype, tolerance in DEVICES:
            x = draw((2, 32, 3, 5), dtype)
            for other in ((2, 32, 3, 5), (), (1, 1, 1, 1), (32, 1, 1), (5,)):
                for name, oracle in (("tern_add", torch.add), ("tern_mul", torch.mul)):
                    arrays = [x, draw(other, dtype)]
                    compare(f"{name} blocked {other}", lambda r, a, b: r.op(name, blocked(r, a), b), oracle, arrays, tolerance, device)
                    compare(f"{name} {other} blocked", lambda r, a, b: r.op(name, b, blocked(r, a)), lambda a, b: oracle(b, a), arrays, tolerance, device)
            both = [x, draw(x.shape, dtype)]
            for name, oracle in (("tern_add", torch.add), ("tern_mul", torch.mul)):
                compare(f"{name} both blocked", lambda r, a, b: r.op(name, blocked(r, a), blocked(r, b)), oracle, both, tolerance, device)

    def test_the_same_input_twice(self):
        for device, dtype, tolerance in DEVICES:
            x = [draw((5, 7), dtype)]
            compare("x + x", lambda r, a: r.op("tern_add", a, a), lambda a: a + a, x, tolerance, device)
            compare("x * x", lambda r, a: r.op("tern_mul", a, a), lambda a: a * a, x, tolerance, device)
            relu = lambda r, a: r.op("tern_relu", a)
            compare(
                "y + y * y + y of an inner y",
                lambda r, a: (lambda y: r.op("tern_add", r.op("tern_add", y, r.op("tern_mul", y, y)), y))(relu(r, a)),
                lambda a: a.relu() + a.relu() ** 2 + a.relu(),
                x,
                tolerance,
                device,
            )

    def test_sum_and_mean(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((), (1,), (17,), (3, 5, 7), (100, 1003)):
                compare(f"sum {shape}", lambda r, a: r.op("tern_sum", a), torch.sum, [draw(shape, dtype) + 1], tolerance, device)
                compare(f"mean {shape}", lambda r, a: r.op("tern_mean", a), torch.mean, [draw(shape, dtype) + 1], tolerance, device)
            x = [draw((2, 16, 5, 5), dtype)]
            compare("mean of blocked", lambda r, a: r.op("tern_mean", blocked(r, a)), torch.mean, x, 1e-5 if dtype == "f" else tolerance, device)

    def test_sum_keeps_what_f32_would_lose(self):
        """A million elements that no f32 accumulator could hold; the same bits with any number of threads."""
        x = RNG.random(1_000_003).astype("f") + 1000
        got = set()
        for threads in (1, 2, 3):
            run = Run("cpu", threads)
            got.add(float(run.value(run.op("tern_sum", run.constant(x)))))
            run.close()
        assert got == {float(numpy.float32(x.astype("d").sum()))}, got

    def test_reshape_and_flatten(self):
        ints = lambda *s: (len(s), (ctypes.c_int64 * max(1, len(s)))(*s))
        for device, dtype, tolerance in DEVICES:
            x = [draw((2, 16, 3, 5), dtype)]
            for shape in ((480,), (2, -1), (-1, 5), (4, 4, 2, 15), (2, 16, 3, 5)):
                same = lambda a: a
                for prepare, oracle in ((lambda r, a: a, same), (lambda r, a: r.op("tern_relu", a), torch.relu), (blocked, same)):
                    op = lambda r, a: r.op("tern_reshape", prepare(r, a), *ints(*shape))
                    compare(f"reshape {shape}", op, lambda a: oracle(a).reshape(shape), x, tolerance, device)
            for first in range(4):
                compare(f"flatten {first}", lambda r, a: r.op("tern_flatten", a, first), lambda a: a.flatten(first), x, tolerance, device)
                compare(f"flatten blocked {first}", lambda r, a: r.op("tern_flatten", blocked(r, a), first), lambda a: a.flatten(first), x, tolerance, device)

    def test_reshape_of_an_inner_result_is_a_view(self):
        run = Run("cpu")
        x = run.op("tern_relu", run.constant(draw((4, 6), "f")))
        y = run.op("tern_reshape", x, 1, (ctypes.c_int64 * 1)(24))
        run.write(x, numpy.arange(24, dtype="f").reshape(4, 6))
        assert (run.value(y) == numpy.arange(24)).all()
        run.close()

    def test_mse_loss(self):
        for device, dtype, tolerance in DEVICES:
            for shape in ((1,), (5, 3), (40, 1000)):
                arrays = [draw(shape, dtype), draw(shape, dtype)]
                compare(f"mse {shape}", lambda r, a, b: r.op("tern_mse_loss", a, b, 0), torch.nn.functional.mse_loss, arrays, tolerance, device)
            arrays = [draw((2, 16, 3, 3), dtype), draw((2, 16, 3, 3), dtype)]
            mse = torch.nn.functional.mse_loss
            compare("mse blocked", lambda r, a, b: r.op("tern_mse_loss", blocked(r, a), b, 0), mse, arrays, tolerance, device)
            compare("mse both blocked", lambda r, a, b: r.op("tern_mse_loss", blocked(r, a), blocked(r, b), 0), mse, arrays, tolerance, device)

    def test_cross_entropy(self):
        for device, dtype, tolerance in DEVICES:
            for rows, classes, size in ((1, 1, 1), (3, 10, 1), (64, 10, 30), (33, 1001, 5), (4, 7, 1000)):
                arrays = [draw((rows, classes), dtype) * numpy.dtype(dtype).type(size), RNG.integers(0, classes, rows)]
                compare(
                    f"cross entropy {rows} {classes}",
                    lambda r, a, b: r.op("tern_cross_entropy", a, b, None),
                    torch.nn.functional.cross_entropy,
                    arrays,
                    tolerance,
                    device,
                    constant=(1,),
                    gradient_tolerance=2.5 * tolerance,  # log p is rounded before exp: half a unit of |log p|
                )

    def test_bad_labels_are_named(self):
        for device in ("cpu", "cpu:reference"):
            for label in (-1, 10, 1 << 40):
                run = Run(device)
                try:
                    labels = numpy.array([3, 4, label])
                    run.op("tern_cross_entropy", run.constant(draw((3, 10), "f")), run.constant(labels), None)
                    raise AssertionError("accepted")
                except tern.TernError as error:
                    assert error.code == -7 and f"label {label} of sample 2 is not in [0, 10)" in str(error), error
                run.end_failed()
                run.close()

    def test_gradients_by_finite_differences(self):
        r = numpy.random.default_rng(3)
        arrays = [r.standard_normal((4, 1, 6)), r.standard_normal((5, 1))]
        gradient_check("add", lambda run, a, b: run.op("tern_add", a, b), arrays)
        gradient_check("mul", lambda run, a, b: run.op("tern_mul", a, b), arrays)
        pair = [r.standard_normal((4, 6)), r.standard_normal((4, 6))]
        gradient_check("mse", lambda run, a, b: run.op("tern_mse_loss", a, b, 0), pair)
        gradient_check("mean", lambda run, a: run.op("tern_mean", a), pair[:1])
        gradient_check("cross entropy", lambda run, a, b: run.op("tern_cross_entropy", a, b, None), [pair[0], r.integers(0, 6, 4)], constant=(1,))


if __name__ == "__main__":
    unittest.main()
