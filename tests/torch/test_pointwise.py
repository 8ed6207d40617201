"""Every elementwise op compared with torch: values and gradients in all dtypes, broadcasting, views, layouts, and the
points where a formula is not smooth or not finite."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from layers import refused
from ops import BF16, DTYPES, F16, U8, Run, blocked, compare, gradient_check, in_16_bits, rounded, shape_of, thread_counts

F = torch.nn.functional
RNG = numpy.random.default_rng(0)
D = ctypes.c_double
DEVICES = [("cpu", "f", 2e-6), ("cpu", "d", 1e-13), ("cpu:reference", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
INF, NAN = numpy.inf, numpy.nan
INTEGERS = {dtype: number for dtype, number in DTYPES.items() if dtype.kind in "iu"}


class Op:
    """A function of `count` tensors; `low`: where its inputs begin, if not anywhere; `constant`: inputs without gradient,
    which are conditions, targets and weights; `rng`: a generator of its own leaves the others' numbers as they are."""

    def __init__(self, name, oracle, count=1, args=(), low=None, constant=(), rng=RNG):
        self.name, self.oracle, self.count, self.args, self.low, self.constant = name, oracle, count, args, low, constant
        self.rng = rng

    def __call__(self, run, *tensors):
        return run.op(f"tern_{self.name}", *tensors, *self.args)

    def draw(self, shape, dtype="f", rng=None):
        x = (rng or self.rng).uniform(-2.5, 2.5, shape)
        return numpy.asarray(x if self.low is None else numpy.abs(x) + self.low, dtype)

    def arrays(self, shapes, dtype="f", rng=None):
        share = lambda shape: numpy.asarray(numpy.rint(3 * (rng or self.rng).random(shape)) / 3, dtype)
        return [share(s) if i in self.constant else self.draw(s, dtype, rng) for i, s in enumerate(shapes)]

    def __repr__(self):
        return f"{self.name}{[a.value if hasattr(a, 'value') else a for a in self.args] or ''}"


def clamp(x, low, high):
    """With the gradient 1 at the bounds themselves, as PyTorch has it; 2.15 has 0 there."""
    return torch.where((x >= low) & (x <= high), x, torch.clamp(x, low, high).detach())


UNARY = [
    Op("neg", torch.neg),
    Op("abs", torch.abs),
    Op("exp", torch.exp),
    Op("log", torch.log, low=0.01),
    Op("sqrt", torch.sqrt, low=0.01),
    Op("tanh", torch.tanh),
    Op("sigmoid", torch.sigmoid),
    Op("relu", torch.relu),
    Op("silu", F.silu),
    Op("gelu", F.gelu, args=(False,)),
    Op("gelu", lambda x: F.gelu(x, approximate="tanh"), args=(True,)),
    Op("leaky_relu", lambda x: F.leaky_relu(x, 0.25), args=(D(0.25),)),
    Op("clamp", lambda x: clamp(x, -0.5, 1.25), args=(D(-0.5), D(1.25))),
    Op("clamp", lambda x: clamp(x, 0.25, INF), args=(D(0.25), D(INF))),
    Op("clamp", lambda x: clamp(x, -INF, 0.25), args=(D(-INF), D(0.25))),
    Op("clamp", lambda x: clamp(x, 1, -1), args=(D(1), D(-1))),
    Op("affine", lambda x: 1 - x, args=(D(-1), D(1)), rng=numpy.random.default_rng(5)),
    Op("affine", lambda x: 0.5 * x, args=(D(0.5), D(0)), rng=numpy.random.default_rng(6)),
    Op("affine", lambda x: 0.25 * x - 0.75, args=(D(0.25), D(-0.75)), rng=numpy.random.default_rng(7)),
]
BINARY = [
    Op("add", torch.add, 2),
    Op("sub", torch.sub, 2),
    Op("mul", torch.mul, 2),
    Op("div", torch.div, 2, low=0.1),
    Op("pow", torch.pow, 2, low=0.1),
    Op("maximum", torch.maximum, 2),
    Op("minimum", torch.minimum, 2),
]
GATES = [
    Op("swiglu", lambda gate, x: F.silu(gate) * x, 2, rng=numpy.random.default_rng(8)),
    Op("geglu", lambda gate, x: F.gelu(gate) * x, 2, args=(False,), rng=numpy.random.default_rng(9)),
    Op("geglu", lambda gate, x: F.gelu(gate, approximate="tanh") * x, 2, args=(True,), rng=numpy.random.default_rng(10)),
]
COMPARISONS = [Op(name, getattr(torch, name), 2) for name in ("eq", "ne", "lt", "le", "gt", "ge")]
REDUCTIONS = [(0, "mean"), (1, "sum"), (2, "none")]
LOSSES = [
    loss
    for number, reduction in REDUCTIONS
    for loss in (
        Op("l1_loss", lambda x, t, r=reduction: F.l1_loss(x, t, reduction=r), 2, args=(number,)),
        Op("mse_loss", lambda x, t, r=reduction: F.mse_loss(x, t, reduction=r), 2, args=(number,)),
        Op("smooth_l1_loss", lambda x, t, r=reduction: F.smooth_l1_loss(x, t, beta=0.5, reduction=r), 2, args=(D(0.5), number)),
        # Of equal elements torch's smooth_l1_loss with beta 0 has the gradient -1, and its l1_loss 0.
        Op("smooth_l1_loss", lambda x, t, r=reduction: F.l1_loss(x, t, reduction=r), 2, args=(D(0), number)),
        Op("bce_with_logits_loss", lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(x, t, reduction=r), 2, args=(None, number), constant=(1,)),
        Op("bce_with_logits_loss", lambda x, t, w, r=reduction: F.binary_cross_entropy_with_logits(x, t, pos_weight=w, reduction=r), 3, args=(number,), constant=(1, 2)),
    )
]
WHERE = Op("where", lambda c, a, b: torch.where(c != 0, a, b), 3, constant=(0,))
SMOOTH = UNARY + BINARY + GATES + LOSSES + [WHERE]


def slack(op, tolerance):
    """Powers of large exponents multiply what their logarithm is off by."""
    return 20 * tolerance if op.name == "pow" else tolerance


class PointwiseTest(unittest.TestCase):
    def beside(self, op, arrays, tolerance, device="cpu", prepare=lambda run, *t: t, before=lambda *t: t):
        compare(
            f"{op} {device} {arrays[0].dtype} {[a.shape for a in arrays]}",
            lambda run, *t: op(run, *prepare(run, *t)),
            lambda *t: op.oracle(*before(*t)),
            arrays,
            slack(op, tolerance),
            device,
            op.constant,
        )

    def test_values_and_gradients(self):
        for device, dtype, tolerance in DEVICES:
            for op in SMOOTH:
                for shape in ((), (1,), (17,), (3, 5, 7), (40, 1000)):
                    if (device, dtype) != ("cpu", "f") and shape == (40, 1000):
                        continue
                    self.beside(op, op.arrays([shape] * op.count, dtype), tolerance, device)

    def test_broadcasting(self):
        """Each input may be the one that is repeated, over dimensions that it has and that it has not."""
        large = [((700, 10), (10,)), ((700, 10), (700, 1)), ((9, 90, 7), (90, 1)), ((20, 300), (20, 1))]
        pairs = [((3, 4), ()), ((7, 33), (33,)), ((7, 33), (7, 1)), ((2, 1, 5), (3, 1)), ((1,), (4, 5, 6)), ((2, 3, 4, 5), (3, 1, 1)), ((3, 1, 17, 1), (5, 1, 6)), ((1, 1, 1), (2,))]
        for device, dtype, tolerance in DEVICES:
            for op in BINARY:
                for shapes in pairs + (large if device == "cpu" else []):
                    self.beside(op, op.arrays(shapes, dtype), tolerance, device)
                    self.beside(op, op.arrays(shapes[::-1], dtype), tolerance, device)
            for shapes in itertools.permutations([(4, 1, 3), (5, 1), ()]):
                self.beside(WHERE, WHERE.arrays(shapes, dtype), tolerance, device)
            for op in GATES:  # a scalar's gradient is one sum, of terms that cancel
                for shapes in [pair for pair in pairs if () not in pair and (1,) not in pair]:
                    self.beside(op, op.arrays(shapes, dtype), tolerance, device)
                    self.beside(op, op.arrays(shapes[::-1], dtype), tolerance, device)
            for loss in LOSSES:
                if loss.count == 3:
                    for weight in ((3,), (4, 1), (1, 1), ()):
                        self.beside(loss, loss.arrays([(4, 3), (4, 3), weight], dtype), tolerance, device)

    def test_views(self):
        """Every input turned, and cut with a step; and against one that is neither."""
        turn = lambda r, t: r.op("tern_transpose", t, 0, 2)
        cut = lambda r, t: r.op("tern_slice", t, 1, *map(ctypes.c_int64, (1, 9, 2)))
        for device, dtype, tolerance in DEVICES[:1] + DEVICES[2:3]:
            for op in SMOOTH:
                for view, seen in ((turn, lambda t: t.transpose(0, 2)), (cut, lambda t: t[:, 1:9:2])):
                    arrays = op.arrays([(5, 9, 33)] * op.count, dtype)
                    self.beside(op, arrays, tolerance, device, lambda r, *t: [view(r, a) for a in t], lambda *t: [seen(a) for a in t])
                if op.count > 1:
                    arrays = op.arrays([(33, 9, 5)] + [(5, 9, 33)] * (op.count - 1), dtype)
                    self.beside(op, arrays, tolerance, device, lambda r, a, *t: [turn(r, a), *t], lambda a, *t: [a.transpose(0, 2), *t])

    def test_blocked(self):
        """Each input blocked, the others plain: of its shape or broadcast."""
        shape = (2, 32, 3, 5)
        for device in ("cpu", "cpu:reference"):
            for op in UNARY:
                self.beside(op, [op.draw(shape)], 2e-6, device, lambda r, a: [blocked(r, a)])
            for op in BINARY + GATES + [WHERE]:
                for at, other in itertools.product(range(op.count), (shape, (), (32, 1, 1), (5,))):
                    arrays = op.arrays([shape if i == at else other for i in range(op.count)])
                    self.beside(op, arrays, 2e-6, device, lambda r, *t: [blocked(r, a) if i == at else a for i, a in enumerate(t)])
                self.beside(op, op.arrays([shape] * op.count), 2e-6, device, lambda r, *t: [blocked(r, a) for a in t])
            for op in LOSSES:
                for at in range(2):
                    self.beside(op, op.arrays([shape] * op.count), 4e-6, device, lambda r, *t: [blocked(r, a) if i == at else a for i, a in enumerate(t)])

    def test_halves(self):
        """Computed in more and rounded once: a value is off by half a unit of the last place, a gradient by the
        roundings on its way."""
        for dtype, kind, unit in ((BF16, torch.bfloat16, 2**-8), (F16, torch.float16, 2**-11)):
            for device in ("cpu", "cpu:reference"):
                for op in SMOOTH:
                    arrays = [rounded(a, kind) for a in op.arrays([(5, 40)] * op.count)]
                    what = f"{op} {kind} {device}"
                    compare(what, in_16_bits(op, dtype), op.oracle, arrays, 6 * unit, device, op.constant)
                for op in UNARY + BINARY + GATES + COMPARISONS:
                    arrays = [rounded(op.draw((5, 40)), kind) for _ in range(op.count)]
                    run = Run(device)
                    halves = [run.op("tern_cast", run.constant(a), dtype) for a in arrays]
                    got = run.value(op(run, *halves)).astype("d")
                    want = op.oracle(*(torch.tensor(a.astype("d")) for a in arrays))
                    want = (want.to(kind) if want.is_floating_point() else want).double().numpy()
                    off = numpy.abs(got - want) / numpy.maximum(numpy.abs(want), 1e-4)
                    self.assertLessEqual(off.max(), 2.01 * unit, what)
                    self.assertLess((off > 0).mean(), 0.02, what)
                    run.close()

    def test_nothing(self):
        for device in ("cpu", "cpu:reference"):
            for op in UNARY + BINARY + GATES + [WHERE]:
                for shapes in ([(0,)] * 3, [(3, 0, 2)] * 3, [(3, 1), (3, 0), (1, 1)], [(3, 0), (), (3, 1)]):
                    run = Run(device)
                    parameters = [run.parameter(numpy.ones(s, "f")) for s in shapes[: op.count]]
                    y = op(run, *parameters)
                    want_in = [torch.ones(s, requires_grad=i not in op.constant) for i, s in enumerate(shapes[: op.count])]
                    want = op.oracle(*want_in)
                    self.assertEqual(run.shape(y), tuple(want.shape))
                    run.lib.tern_backward(run.scope, run.op("tern_sum", y))
                    run.raise_error()
                    want.sum().backward()
                    for i, (p, w) in enumerate(zip(parameters, want_in)):
                        if i not in op.constant:
                            numpy.testing.assert_allclose(run.grad(p), w.grad.numpy(), 1e-6)
                    run.close()

    def test_losses_of_nothing(self):
        for device in ("cpu", "cpu:reference"):
            for op in LOSSES:
                for shape in ((0,), (0, 3), (2, 0, 4)):
                    run = Run(device)
                    parameters = [run.parameter(numpy.ones(shape, "f")) if i not in op.constant else run.constant(numpy.ones(shape, "f")) for i in range(op.count)]
                    y, want = op(run, *parameters), op.oracle(*[torch.ones(shape)] * op.count)
                    numpy.testing.assert_array_equal(run.value(y), want.numpy())
                    run.backward(run.op("tern_sum", y))
                    self.assertEqual(run.grad(parameters[0]).shape, shape)
                    run.close()

    def test_integers(self):
        """i64 where f64 has no room for it, values that wrap around, and bool."""
        big = [-(2**63), 2**63 - 1, 2**53 + 1, 2**53, -(2**53) - 1, 0, 1, -1, 7, 3_000_000_019]
        pairs = numpy.array(list(itertools.product(big, big)), "int64").T
        small = {"int32": numpy.array(list(itertools.product([-(2**31), 2**31 - 1, 0, 1, -1, 70_000], repeat=2)), "int32").T,
                 "uint8": numpy.array(list(itertools.product([0, 1, 2, 128, 200, 255], repeat=2)), "uint8").T,
                 "int16": numpy.array(list(itertools.product([-(2**15), 2**15 - 1, 0, 1, -1, 300], repeat=2)), "int16").T,
                 "int8": numpy.array(list(itertools.product([-128, 127, 0, 1, -1, 20], repeat=2)), "int8").T,
                 "bool": numpy.array(list(itertools.product([0, 1], repeat=2)), "bool").T}
        clamps = [Op("clamp", lambda x, l=low, h=high: torch.clamp(x, l, h), args=(D(-INF if low is None else low), D(INF if high is None else high)))
                  for low, high in ((2, 100), (None, 3), (3, None), (100, 2))]
        for device in ("cpu", "cpu:reference"):
            for a, b in (pairs, *small.values()):
                logic = a.dtype == bool
                ops = [o for o in BINARY if o.name in ("add", "mul", "maximum", "minimum") or (o.name == "sub" and not logic)]
                for op in ops + COMPARISONS + ([] if logic else [UNARY[0], UNARY[1], *clamps]):
                    for turned in (False, True):
                        arrays = [numpy.ascontiguousarray(x.reshape(-1, 2).T) if turned else x for x in (a, b)][: op.count]
                        run = Run(device)
                        tensors = [run.op("tern_transpose", run.constant(x), 0, 1) if turned else run.constant(x) for x in arrays]
                        got, want = run.value(op(run, *tensors)), op.oracle(*(torch.tensor(x) for x in arrays)).numpy()
                        numpy.testing.assert_array_equal(got.T if turned else got, want, f"{op} {device} {a.dtype}")
                        self.assertEqual(got.dtype, want.dtype)
                        run.close()

    def test_full(self):
        values = [0, 1, -1, 2.75, -2.75, 0.25, 1e-30]
        for device in ("cpu", "cpu:reference"):
            run = Run(device)
            for dtype, number in DTYPES.items():
                shape = numpy.empty((3, 5))
                for value in values if dtype.kind != "u" else [v for v in values if v >= 0]:
                    run.op("tern_full", U8, 2, shape_of(shape), D(90))  # no truth, in the memory that comes next
                    run.lib.check("tern_scope_end", run.scope)
                    y = run.op("tern_full", number, 2, shape_of(shape), D(value))
                    theirs = torch.full((3, 5), value, dtype=getattr(torch, dtype.name))
                    with self.subTest(device=device, dtype=dtype, value=value):
                        numpy.testing.assert_array_equal(run.value(y), theirs.numpy(), strict=True)
                    run.lib.check("tern_scope_end", run.scope)
            for dtype, number in INTEGERS.items():
                low, high = (int(getattr(numpy.iinfo(dtype), end)) for end in ("min", "max"))
                above = 2.0**63 if high == 2**63 - 1 else high + 1.0
                ends = [low, low / 2, above / 2, numpy.nextafter(above, 0)]
                for value in ends:
                    numpy.testing.assert_array_equal(run.value(run.op("tern_full", number, 0, None, D(value))), numpy.array(int(value), dtype))
                for value in (numpy.nextafter(low, -INF) if low else -1, above, INF, -INF, NAN):
                    with refused(self, run, f"is outside of the range of {dtype.kind}{8 * dtype.itemsize}", -7):
                        run.op("tern_full", number, 0, None, D(value))
            run.close()

    def test_conditions_of_any_dtype(self):
        chosen = {"f": numpy.array([2**53 + 1, -(2**53) - 1, 5, 6], "int64"), "d": RNG.standard_normal(4), "int64": RNG.standard_normal(4).astype("f")}
        other = numpy.array([1, 2, 3, 4])
        for device in ("cpu", "cpu:reference"):
            for of, a in itertools.product("fd?", (chosen["f"], chosen["d"], chosen["int64"], numpy.array([True, False, True, True]))):
                for condition in ([0, 1, -2, 0], [NAN, 0, INF, -0.0], [1e-300, 0, 1, 2**40]):
                    kinds = ["f", "d", "float16"] + (["?", "uint8", "int8", "int16", "int32", "int64"] if numpy.isfinite(condition).all() else [])
                    for kind in kinds:
                        with numpy.errstate(over="ignore", under="ignore", invalid="ignore"):
                            c = numpy.array(condition).astype(kind)
                        b = other.astype(a.dtype)
                        run = Run(device)
                        got = run.value(run.op("tern_where", run.constant(c), run.constant(a), run.constant(b)))
                        numpy.testing.assert_array_equal(got, numpy.where(c != 0, a, b), f"{device} {c.dtype} {a.dtype}")
                        run.close()

    def test_special_points(self):
        """Zeros, ties, bounds, infinities and NaN in every combination: values and gradients as torch has them."""
        points = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.25, 2.0, 3.0, -2.0, INF, -INF, NAN, 1e-30, 80.0, -80.0, 700.0, -700.0]
        pairs = numpy.array(list(itertools.product(points, points))).T
        triples = numpy.array(list(itertools.product([0.0, -0.0, 1.0, -2.0, NAN], [0.0, 3.0, NAN, INF], [0.0, -1.0, NAN]))).T
        by_count = {1: [numpy.array(points)], 2: list(pairs), 3: list(triples)}
        for device, dtype, _ in DEVICES:
            for op in SMOOTH:
                if op.args and op.args[-1] in (0, 1) and op in LOSSES:
                    continue
                arrays = [a.astype(dtype) for a in by_count[op.count]]
                if op.name == "bce_with_logits_loss":  # torch gives NaN more often for infinities
                    arrays = [numpy.where(numpy.isinf(a), a.dtype.type(5), a) for a in arrays]
                if op.name in ("swiglu", "geglu"):  # a gate that underflows to 0 in f32, but not in f64, times what is infinite or large
                    arrays[1] = numpy.where(numpy.abs(arrays[1]) > 3, arrays[1].dtype.type(5), arrays[1])
                exact = "d" if op.name in ("gelu", "geglu") else dtype  # in f32 PyTorch 2.11's vectors make NaN of an infinity
                want_in = [torch.tensor(a.astype(exact), requires_grad=i not in op.constant) for i, a in enumerate(arrays)]
                run = Run(device)
                tensors = [run.constant(a) if i in op.constant else run.parameter(a) for i, a in enumerate(arrays)]
                want, got = op.oracle(*want_in), op(run, *tensors)
                # 1 + erf(x) cancels, 1 + exp(-80) is 1; 1 - y^2 of a tanh whose last place, 6e-8, is off by one; 1/2 less a sigmoid's on a GPU
                on_gpu = tern.device(device).startswith("cuda") and dtype == "f"
                small = {"gelu": 3e-7 if dtype == "f" else 1e-16, "geglu": 3e-6 if dtype == "f" else 1e-15,
                         "tanh": 1.2e-7 if dtype == "f" else 1e-37, "bce_with_logits_loss": 6e-8 if on_gpu else 1e-30}.get(op.name, 1e-37)
                same = lambda a, b, what: numpy.testing.assert_allclose(a, b, 6e-6, small, err_msg=f"{op} {device} {dtype} {what}")
                same(run.value(got), want.detach().numpy(), "value")
                if op.name in ("abs", "relu", "neg", "affine"):  # a NaN's sign is nobody's: on GPUs -NaN is NaN as it was, or the one that f32 has
                    signs = [numpy.signbit(y[~numpy.isnan(y)]) for y in (run.value(got), want.detach().numpy())]
                    numpy.testing.assert_array_equal(*signs, str(op))
                want.sum().backward()
                run.lib.tern_backward(run.scope, run.op("tern_sum", got))
                run.raise_error()
                for i, (t, w) in enumerate(zip(tensors, want_in)):
                    if i not in op.constant:
                        same(run.grad(t), w.grad.numpy(), f"gradient {i}")
                run.close()
            for op in COMPARISONS:
                run = Run(device)
                arrays = [a.astype(dtype) for a in pairs]
                got = run.value(op(run, *map(run.constant, arrays)))
                numpy.testing.assert_array_equal(got, op.oracle(*map(torch.tensor, arrays)).numpy())
                run.close()

    def test_bounds_that_are_no_numbers_or_no_integers(self):
        for device in ("cpu", "cpu:reference"):
            for low, high in ((NAN, 1), (0, NAN), (-INF, INF)):
                run = Run(device)
                x = numpy.array([-1, 0.5, 2, NAN], "f")
                got = run.value(run.op("tern_clamp", run.constant(x), D(low), D(high)))
                numpy.testing.assert_array_equal(got, torch.clamp(torch.tensor(x), low, high).numpy())
                x = numpy.array([-(2**63), -1, 0, 1, 2, 3, 2**63 - 1])
                got = run.value(run.op("tern_clamp", run.constant(x), D(0.5), D(2.5)))
                numpy.testing.assert_array_equal(got, [1, 1, 1, 1, 2, 2, 2])
                numpy.testing.assert_array_equal(run.value(run.op("tern_clamp", run.constant(x), D(-INF), D(INF))), x)
                run.close()

    def test_bounds_beyond_an_integers_range(self):
        """As PyTorch 2.15: they limit nothing, or no element has a result."""
        for device, (dtype, number) in itertools.product(("cpu", "cpu:reference"), INTEGERS.items()):
            low, high = (float(getattr(numpy.iinfo(dtype), end)) for end in ("min", "max"))
            beyond = 4 * high + 9
            run = Run(device)
            x = numpy.array([low, -5 if low else 0, 0, 7, 100, int(high) if high < 2**60 else 2**60], dtype)
            for bounds in ((-INF, beyond), (-beyond, INF), (-beyond, beyond), (3, beyond), (-beyond, 9)):
                got = run.value(run.op("tern_clamp", run.constant(x), *map(D, bounds)))
                numpy.testing.assert_array_equal(got, [min(max(int(v), bounds[0]), bounds[1]) for v in x], strict=False)
                self.assertEqual(got.dtype, dtype)
            for bounds, side in (((beyond, INF), "lower"), ((-INF, -beyond), "upper"), ((beyond, 2 * beyond), "lower"), ((NAN, 1), "lower"), ((0, NAN), "upper")):
                with refused(self, run, f"clamp: the {side} limit, ", -7):
                    run.op("tern_clamp", run.constant(x), *map(D, bounds))
            run.close()

    def test_losses_of_probabilities(self):
        """At the ends logarithms are at least -100, and what divides the slope is at least 1e-12."""
        rng = numpy.random.default_rng(4)
        ends = numpy.array(list(itertools.product([0, 1, 1e-30, 1e-7, 0.25, 0.5, 1 - 2.0**-24], [0, 1, 0.25]))).T
        for device, dtype, tolerance in DEVICES:
            for number, reduction in REDUCTIONS:
                loss = Op("bce_loss", lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction), 2, args=(number,), constant=(1,))
                for shape in ((), (17,), (3, 5, 7)):
                    x, target = rng.uniform(0.05, 0.95, shape), rng.random(shape)
                    self.beside(loss, [numpy.asarray(a, dtype) for a in (x, target)], tolerance, device)
                mask = rng.integers(0, 2, (3, 5)).astype("uint8")
                x = rng.uniform(0.05, 0.95, (3, 5)).astype(dtype)
                compare("bce_loss of a mask", loss, lambda x, t: F.binary_cross_entropy(x, t.double(), reduction=reduction), [x, mask], tolerance, device, (1,))
                run = Run(device)
                x, target = ends.astype(dtype)
                want_in = torch.tensor(x.astype("d"), requires_grad=True)  # in f32 PyTorch 1.13 rounds 1 - x
                want = F.binary_cross_entropy(want_in, torch.tensor(target.astype("d")), reduction=reduction)
                ours = run.parameter(x)
                got = loss(run, ours, run.constant(target))
                numpy.testing.assert_allclose(run.value(got), want.detach().numpy(), 1e-6, 2e-16)
                run.backward(got, numpy.ones(run.shape(got), dtype))
                want.backward(torch.ones_like(want))
                numpy.testing.assert_allclose(run.grad(ours), want_in.grad.numpy(), 2e-6)
                run.close()

    def test_losses_of_what_is_no_probability(self):
        run = Run("cpu")
        for x in (-0.25, 1.25, NAN):
            for target in (0, 1):
                got = run.op("tern_bce_loss", run.constant(numpy.array([x], "f")), run.constant(numpy.array([target], "f")), 2)
                self.assertTrue(numpy.isnan(run.value(got)).all(), (x, target))
        # The loss of a target is the line through those of 0 and 1, which PyTorch 2 does not follow beyond them.
        x = numpy.array([0.0, 0.25, 0.875, 1.0])
        zero, one, two, minus = (
            run.value(run.op("tern_bce_loss", run.constant(x), run.constant(numpy.full(4, t, "d")), 2)) for t in (0, 1, 2, -1)
        )
        numpy.testing.assert_allclose(two, 2 * one - zero, 1e-13)
        numpy.testing.assert_allclose(minus, 2 * zero - one, 1e-13)
        with self.assertRaises(tern.TernError) as caught:
            run.op("tern_bce_loss", run.parameter(numpy.ones(3, "f")), run.parameter(numpy.ones(3, "f")), 0)
        self.assertIn("bce_loss: the target wants a gradient; tern_detach it", str(caught.exception))
        run.end_failed()
        run.close()

    def test_the_same_input_twice(self):
        for device, dtype, tolerance in DEVICES:
            for op in BINARY + GATES:
                x = op.arrays([(5, 7)], dtype)
                twice = Op(op.name, lambda a: op.oracle(a, a), 2, op.args)
                if op.name != "div":  # whose gradient is 0 up to rounding
                    self.beside(twice, x, tolerance, device, lambda r, a: (a, a))
                inner = lambda r, a: (lambda y: r.op("tern_add", r.op("tern_add", y, op(r, y, y)), y))(r.op("tern_exp", a))
                compare(f"{op} of an inner y", inner, lambda a: a.exp() + op.oracle(a.exp(), a.exp()) + a.exp(), [x[0] / 4], slack(op, tolerance), device)

    def test_threads_give_the_same_bits(self):
        for op in (BINARY[3], UNARY[9]):
            arrays, got = op.arrays([(300, 1001), (1001,)][: op.count]), []
            for threads in thread_counts(1, 2, 3):
                run = Run("cpu", threads)
                parameters = [run.parameter(a) for a in arrays]
                y = op(run, *parameters)
                run.backward(y, numpy.cos(arrays[0]))
                got.append((run.value(y).tobytes(), *(run.grad(p).tobytes() for p in parameters)))
                run.close()
            self.assertEqual(len(set(got)), 1, op)

    def test_what_repeats_is_loaded_where_a_part_begins(self):
        """Short rows of which a thread's part begins near the end of some that repeat."""
        c, a, b = RNG.integers(0, 2, 10).astype("f"), WHERE.draw((182, 1, 10)), WHERE.draw((182, 40, 10))
        run = Run("cpu", 3)
        got = run.value(WHERE(run, *map(run.constant, (c, a, b))))
        numpy.testing.assert_array_equal(got, numpy.where(c != 0, a, b))
        run.close()

    def test_gradients_by_finite_differences(self):
        rng = numpy.random.default_rng(3)
        for op in SMOOTH:
            shapes = [(4, 1, 6), (5, 1), (5, 6)] if op in BINARY + [WHERE] else [(4, 6)] * 3
            gradient_check(str(op), op, op.arrays(shapes[: op.count], "d", rng), op.constant, tolerance=1e-6)

    def test_errors(self):
        f, i, b = numpy.ones((2, 3), "f"), numpy.ones((2, 3), "int64"), numpy.ones((2, 3), "?")
        cases = [(f"tern_{op.name}", [i] * op.count, op.args, -3, f"{op.name}: expected floating point, got i64")
                 for op in UNARY + BINARY + LOSSES if op.name not in ("neg", "abs", "clamp", "add", "sub", "mul", "maximum", "minimum") and None not in op.args]
        cases += [(f"tern_{op.name}", [b] * op.count, op.args, -3, f"{op.name}: expected numbers, got bool") for op in (UNARY[0], UNARY[1], UNARY[12], BINARY[1])]
        cases += [
            ("tern_add", [f, i], (), -3, "add: expected one dtype, got f32 and i64"),
            ("tern_where", [f, f, i], (), -3, "where: expected one dtype, got f32 and i64"),
            ("tern_lt", [f, numpy.ones(2, "f")], (), -2, "lt: (2, 3) and (2) cannot be broadcast together"),
            ("tern_where", [numpy.ones(2), f, f], (), -2, "where: (2) and (2, 3) cannot be broadcast together"),
            ("tern_l1_loss", [f, numpy.ones(3, "f")], (0,), -2, "l1_loss: expected input and target of one shape, got (2, 3) and (3)"),
            ("tern_mse_loss", [f, f], (3,), -1, "mse_loss: reduction 3 does not exist"),
            ("tern_bce_loss", [f, numpy.ones(3, "f")], (0,), -2, "bce_loss: expected input and target of one shape, got (2, 3) and (3)"),
            ("tern_bce_loss", [i, i], (0,), -3, "bce_loss: expected floating point, got i64"),
            ("tern_smooth_l1_loss", [f, f], (D(-1), 0), -7, "smooth_l1_loss: expected beta >= 0, got -1"),
            ("tern_smooth_l1_loss", [f, f], (D(NAN), 0), -7, "smooth_l1_loss: expected beta >= 0, got nan"),
            ("tern_bce_with_logits_loss", [f, f, numpy.ones(2, "f")], (0,), -2, "bce_with_logits_loss: (2, 3) and (2) cannot be broadcast together"),
        ]
        for name, arrays, args, code, text in cases:
            run = Run("cpu")
            with self.assertRaises(tern.TernError, msg=name) as caught:
                run.op(name, *map(run.constant, arrays), *args)
            self.assertEqual(caught.exception.code, code, name)
            self.assertIn(text, str(caught.exception))
            run.end_failed()
            run.close()

    def test_a_target_with_gradient_is_refused(self):
        run = Run("cpu")
        with self.assertRaises(tern.TernError) as caught:
            run.op("tern_bce_with_logits_loss", run.parameter(numpy.ones(3, "f")), run.parameter(numpy.ones(3, "f")), None, 0)
        self.assertEqual(caught.exception.code, -9)
        self.assertIn("bce_with_logits_loss: the target wants a gradient; tern_detach it", str(caught.exception))
        run.end_failed()
        run.close()


if __name__ == "__main__":
    skips.main()
