"""linear_cross_entropy compared with torch's linear and cross_entropy: values and gradients over reductions, ignored
labels, smoothing and class weights; several chunks; 16-bit types; strided and empty inputs; errors."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from half import TYPES
from layers import refused
from ops import Run, compare, error_of, thread_counts

F = torch.nn.functional
DEVICES = [("cpu", "f", 4e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 4e-6), ("cpu:reference", "d", 1e-13)]
REDUCTIONS = ["mean", "sum", "none"]
# x's shape, classes
SHAPES = [((5, 3), 4), ((1, 1), 2), ((7,), 9), ((2, 3, 8), 33), ((40, 65), 120)]


class Opts(ctypes.Structure):
    """tern_cross_entropy_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("weight", ctypes.c_void_p), ("ignore_index", ctypes.c_int64), ("label_smoothing", ctypes.c_double),
                ("reduction", ctypes.c_int)]


def fused(run, x, w, b, label, reduction="mean", ignore=-100, smoothing=0.0, weight=None):
    opts = Opts(ctypes.sizeof(Opts), weight, ignore, smoothing, REDUCTIONS.index(reduction))
    return run.op("tern_linear_cross_entropy", x, w, b, label, ctypes.byref(opts))


def exact(x, w, b, label, reduction="mean", ignore=-100, smoothing=0.0, weight=None):
    y = F.linear(x, w, b)
    return F.cross_entropy(y.reshape(-1, y.shape[-1]), label.long().reshape(-1), weight, ignore_index=ignore, label_smoothing=smoothing,
                           reduction=reduction).reshape(label.shape if reduction == "none" else ())


class LinearCrossEntropyTest(unittest.TestCase):
    def setUp(self):
        self.rng = numpy.random.default_rng(0)

    def arrays(self, shape, classes, dtype="f", label="i8"):
        draw = lambda *s: self.rng.standard_normal(s).astype(dtype)
        return [draw(*shape), draw(classes, shape[-1]), draw(classes), self.rng.integers(0, classes, shape[:-1]).astype(label)]

    def test_values_and_gradients(self):
        for (device, dtype, tolerance), (shape, classes), reduction in itertools.product(DEVICES, SHAPES, REDUCTIONS):
            for bias, smoothing, weighted in itertools.product((True, False), (0.0, 0.3), (False, True)):
                x, w, b, label = self.arrays(shape, classes, dtype, "i4" if bias else "i8")
                ignored = self.rng.random(label.shape) < 0.3
                label = numpy.where(ignored, -100, label).astype(label.dtype) if label.ndim else label
                if (label == -100).all():
                    continue
                weight = self.rng.uniform(0.5, 2, classes).astype(dtype) if weighted else None
                op = lambda run, x, w, *b: fused(run, x, w, b[0] if bias else None, run.constant(label), reduction, -100, smoothing,
                                                 run.constant(weight) if weighted else None)
                oracle = lambda x, w, *b: exact(x, w, b[0] if bias else None, torch.tensor(label), reduction, -100, smoothing,
                                                torch.tensor(weight.astype("d")) if weighted else None)
                compare(f"{device} {dtype} {shape} {classes} {reduction} {bias} {smoothing} {weighted}", op, oracle, [x, w, b][: 2 + bias], tolerance, device,
                        passes=2 if weighted == (smoothing > 0) else 1)  # neither changes how gradients add up

    def test_several_chunks(self):
        """So many classes that the rows are taken in more than one go, the last of which is smaller."""
        if tern.device("cpu") != "cpu":
            return  # minutes on the emulation
        x, w, b, label = self.arrays((259, 2), 70000)
        for reduction in ("mean", "none"):
            op = lambda run, x, w, b: fused(run, x, w, b, run.constant(label), reduction, smoothing=0.1)
            oracle = lambda x, w, b: exact(x, w, b, torch.tensor(label), reduction, smoothing=0.1)
            compare(reduction, op, oracle, [x, w, b], 2e-5)

    def test_as_the_two_ops(self):
        """Also where the loss is scaled, and its inputs are used elsewhere."""
        for rows, reduction in itertools.product((6, 11), REDUCTIONS):  # fewer rows than features, and more
            arrays, results = self.arrays((rows, 8), 8), []
            for whole in (True, False):
                run = Run()
                x, w, b = map(run.parameter, arrays[:3])
                h = run.op("tern_tanh", run.op("tern_add", x, run.op("tern_linear", x, w, b)))
                label = run.constant(arrays[3])
                opts = Opts(ctypes.sizeof(Opts), None, 2, 0.1, REDUCTIONS.index(reduction))
                loss = fused(run, h, w, b, label, reduction, 2, 0.1) if whole else run.op("tern_cross_entropy", run.op("tern_linear", h, w, b), label, ctypes.byref(opts))
                normaliser = run.lib.tern_loss_normaliser(loss)
                total = run.op("tern_affine", run.op("tern_sum", loss), ctypes.c_double(3), ctypes.c_double(0))
                run.backward(run.op("tern_add", total, run.op("tern_sum", run.op("tern_mul", h, h))))
                results.append([run.value(total), *map(run.grad, (x, w, b))])
                if reduction == "mean":
                    self.assertEqual(normaliser, (arrays[3] != 2).sum())
                run.close()
            for one, two in zip(*results):
                self.assertLessEqual(error_of(one, two), 3e-6)

    def test_only_some_want_gradients(self):
        for rows, constant, reduction in itertools.product((9, 4), ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2)), REDUCTIONS):
            arrays = self.arrays((rows, 5), 6)
            compare(f"{rows} rows, constant {constant}", lambda run, *t: fused(run, *t, run.constant(arrays[3]), reduction),
                    lambda *t: exact(*t, torch.tensor(arrays[3]), reduction), arrays[:3], 4e-6, constant=constant)

    def test_strided(self):
        for device, dtype, tolerance in DEVICES:
            x, w, b, label = self.arrays((4, 9, 6), 12, dtype)
            turn = lambda run, t: run.op("tern_transpose", t, 0, 1)
            every = lambda run, t: run.op("tern_slice", t, 0, *map(ctypes.c_int64, (0, 24, 2)))
            op = lambda run, x, w, b: fused(run, turn(run, x), turn(run, w), every(run, b), turn(run, run.constant(label)))
            oracle = lambda x, w, b: exact(x.transpose(0, 1), w.T, b[::2], torch.tensor(label).T)
            compare(f"strided {device}", op, oracle, [x, numpy.ascontiguousarray(w.T), numpy.repeat(b, 2)], tolerance, device)

    def test_16_bits(self):
        """Scores are not rounded, the loss is f32, and gradients are rounded once."""
        for rows, (dtype, kind), device, reduction in itertools.product((30, 13), TYPES, ("cpu", "cpu:reference"), REDUCTIONS):
            x, w, b, label = self.arrays((rows, 16), 50)
            run = Run(device)
            p = [run.parameter(a) for a in (x, w, b)]
            y = fused(run, *(run.op("tern_cast", t, dtype) for t in p), run.constant(label), reduction)
            theirs = [torch.tensor(a).to(kind).double().requires_grad_() for a in (x, w, b)]
            want = exact(*theirs, torch.tensor(label), reduction)
            self.assertEqual(run.dtype(y), numpy.float32)
            self.assertLessEqual(error_of(run.value(y), want.detach().numpy()), 4e-6)
            dy = self.rng.standard_normal(want.shape).astype("f")
            run.backward(y, dy)
            want.backward(torch.tensor(dy.astype("d")))
            for ours, t in zip(p, theirs):  # a row's softmax, and what is made of it, are rounded
                self.assertLessEqual(error_of(run.grad(ours), t.grad.numpy()), 1.5 * torch.finfo(kind).eps, f"{rows} {kind} {device} {reduction}")
            run.close()

    def test_16_bits_with_a_loss_scale(self):
        """The mean of so many losses has gradients that f16 holds only once the scale has multiplied them."""
        x, w, b, label = self.arrays((1 << 17, 2) if tern.device("cpu") == "cpu" else (1 << 10, 2), 4)
        for (dtype, kind), reduction in itertools.product(TYPES, ("mean", "none")):
            run, scale = Run(), 65536.0
            p = [run.parameter(a) for a in (x, w, b)]
            y = fused(run, *(run.op("tern_cast", t, dtype) for t in p), run.constant(label), reduction)
            y = run.op("tern_mean", y) if reduction == "none" else y
            run.backward(run.op("tern_affine", y, ctypes.c_double(scale), ctypes.c_double(0)))
            theirs = [torch.tensor(a).to(kind).double().requires_grad_() for a in (x, w, b)]
            (scale * exact(*theirs, torch.tensor(label))).backward()
            for ours, t in zip(p, theirs):
                self.assertLessEqual(error_of(run.grad(ours), t.grad.numpy()), 1.5 * torch.finfo(kind).eps, f"{kind} {reduction}")
            run.close()

    def test_same_bits_for_any_number_of_threads(self):
        for rows, reduction in itertools.product((300, 30), REDUCTIONS):
            arrays, seen = self.arrays((rows, 40), 500), set()
            for threads in thread_counts(1, 2, 3):
                run = Run("cpu", threads)
                p = [run.parameter(a) for a in arrays[:3]]
                y = fused(run, *p, run.constant(arrays[3]), reduction)
                value = run.value(y)
                run.backward(y, numpy.ones_like(value))
                seen.add(value.tobytes() + b"".join(run.grad(t).tobytes() for t in p))
                run.close()
            self.assertEqual(len(seen), 1)

    def test_everything_is_ignored(self):
        """The mean of nothing is NaN and its gradient 0, as in torch; of labels that all have weight 0 both are NaN."""
        for device, reduction in itertools.product(("cpu", "cpu:reference"), REDUCTIONS):
            for zero_weights, smoothing in ((False, 0.0), (True, 0.0), (True, 0.2)):
                x, w, b, label = self.arrays((4, 3), 5)
                label = label % 2 if zero_weights else numpy.full_like(label, -100)
                weight = numpy.array([0, 0, 1, 2, 3], "f") if zero_weights else None
                results = []
                for whole in (True, False):
                    run = Run(device)
                    p, classes = [run.parameter(a) for a in (x, w, b)], run.constant(weight) if zero_weights else None
                    opts = Opts(ctypes.sizeof(Opts), classes, -100, smoothing, REDUCTIONS.index(reduction))
                    if whole:
                        y = run.op("tern_linear_cross_entropy", *p, run.constant(label), ctypes.byref(opts))
                    else:
                        y = run.op("tern_cross_entropy", run.op("tern_linear", *p), run.constant(label), ctypes.byref(opts))
                    value = run.value(y)
                    run.backward(run.op("tern_sum", y))
                    results.append([value, *map(run.grad, p)])
                    run.close()
                for one, two in zip(*results):
                    numpy.testing.assert_allclose(one, two, 1e-5, 1e-6, err_msg=f"{device} {reduction} {zero_weights} {smoothing}")

    def test_nothing(self):
        for device, reduction in itertools.product(("cpu", "cpu:reference"), REDUCTIONS):
            run = Run(device)
            p = [run.parameter(numpy.ones(s, "f")) for s in ((0, 3), (4, 3), (4,))]
            y = fused(run, *p, run.constant(numpy.zeros(0, "i8")), reduction)
            numpy.testing.assert_array_equal(run.value(y), numpy.array({"mean": numpy.nan, "sum": 0, "none": []}[reduction], "f"))
            run.backward(run.op("tern_sum", y))
            if reduction != "mean":
                for t in p:
                    numpy.testing.assert_array_equal(run.grad(t), numpy.zeros(run.shape(t), "f"))
            run.close()

    def test_errors(self):
        run = Run()
        f = lambda *shape: run.constant(numpy.ones(shape, "f"))
        label = lambda *values: run.constant(numpy.array(values, "i8"))
        shape, dtype, value_range, name = -2, -3, -7, "linear_cross_entropy"
        cases = [
            (lambda: fused(run, f(2, 3), f(4, 2), None, label(0, 1)), shape, name + ": expected input (.., I), a weight (O, I) and label (..), got (2, 3), (4, 2) and (2)"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, label(0)), shape, "got (2, 3), (4, 3) and (1)"),
            (lambda: fused(run, f(2, 3), f(0, 3), None, label(0, 0)), shape, "got (2, 3), (0, 3) and (2)"),
            (lambda: fused(run, f(2, 3), f(4, 3), f(3), label(0, 1)), shape, name + ": weight is (4, 3) but bias is (3)"),
            (lambda: fused(run, f(2, 3), run.constant(numpy.ones((4, 3))), None, label(0, 1)), dtype, name + ": weight is f64 but input is f32"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, f(2)), dtype, name + ": expected labels of i64, i32 or u8, got f32"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, label(0, 4)), value_range, name + ": label 4 of sample 1 is not in [0, 4)"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, label(-1, 0)), value_range, name + ": label -1 of sample 0 is not in [0, 4)"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, label(0, 1), smoothing=2.0), value_range, name + ": expected a label_smoothing in [0, 1], got 2"),
            (lambda: fused(run, f(2, 3), f(4, 3), None, label(0, 1), weight=f(3)), shape, name + ": expected a weight for each of 4 classes, got (3)"),
        ]
        for call, code, text in cases:
            with refused(self, run, text, code):
                call()
        run.close()


if __name__ == "__main__":
    skips.main()
