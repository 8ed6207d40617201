"""Views, copies and casts compared with torch: permute, transpose, slice, select, split, reshape, flatten, detach;
cat, stack, pad, clone, cast. Every comparison runs twice: on parameters before their seal and after it."""
import ctypes
import itertools
import unittest

import numpy
import torch

import skips
import tern
from ops import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, Run, blocked, compare, gradient_check

F = torch.nn.functional
RNG = numpy.random.default_rng(0)
DEVICES = [("cpu", "f", 2e-6), ("cpu:reference", "d", 1e-13)]
KINDS = {F32: torch.float32, F64: torch.float64, I64: torch.int64, I32: torch.int32, U8: torch.uint8, BF16: torch.bfloat16, F16: torch.float16, BOOL: torch.bool,
         I8: torch.int8, I16: torch.int16}
LONG = 1 << 62


def draw(shape, dtype="f"):
    return numpy.asarray(RNG.standard_normal(shape), dtype)


def ints(*values):
    return (ctypes.c_int * max(1, len(values)))(*values)


def longs(*values):
    return (ctypes.c_int64 * max(1, len(values)))(*values)


# One function for each op, on (run, tensor, ..).
def permute(run, x, *dims):
    return run.op("tern_permute", x, len(dims), ints(*dims))


def transpose(run, x, a, b):
    return run.op("tern_transpose", x, a, b)


def part(run, x, dim, start, stop, step=1):
    return run.op("tern_slice", x, dim, *map(ctypes.c_int64, (start, stop, step)))


def select(run, x, dim, index):
    return run.op("tern_select", x, dim, ctypes.c_int64(index))


def split(run, x, size, dim, room=16):
    parts = (ctypes.c_void_p * room)()
    count = run.lib.tern_split(run.scope, x, ctypes.c_int64(size), dim, parts, room)
    run.raise_error()
    return [ctypes.c_void_p(p) for p in parts[:count]]


def cat(run, tensors, dim, name="tern_cat"):
    return run.op(name, len(tensors), (ctypes.c_void_p * max(1, len(tensors)))(*tensors), dim)


def stack(run, tensors, dim):
    return cat(run, tensors, dim, "tern_stack")


def pad(run, x, padding, value=0.0):
    return run.op("tern_pad", x, len(padding), longs(*padding), ctypes.c_double(value))


def reshape(run, x, *shape):
    return run.op("tern_reshape", x, len(shape), longs(*shape))


def expand(run, x, *shape):
    return run.op("tern_expand", x, len(shape), longs(*shape))


class ViewTest(unittest.TestCase):
    def beside(self, what, op, oracle, arrays):
        for device, dtype, tolerance in DEVICES:
            compare(f"{what} {device}", op, oracle, [a.astype(dtype) for a in arrays], tolerance, device)

    def fails(self, code, text, op, *arrays):
        run = Run("cpu")
        with self.assertRaises(tern.TernError) as caught:
            op(run, *map(run.constant, arrays))
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.code, code)
        run.end_failed()
        run.close()

    # ---- views ----

    def test_permute_and_transpose(self):
        x = [draw((2, 3, 4, 5))]
        for dims in [*itertools.permutations(range(4)), (-1, 0, -3, 2)]:
            self.beside(f"permute {dims}", lambda r, a: permute(r, a, *dims), lambda a: a.permute(dims), x)
        for a, b in itertools.product(range(-4, 4), repeat=2):
            self.beside(f"transpose {a} {b}", lambda r, t: transpose(r, t, a, b), lambda t: t.transpose(a, b), x)
        self.beside("permute ()", lambda r, a: permute(r, a), lambda a: a, [draw(())])

    def test_slice(self):
        places = [-LONG, -7, -5, -2, 0, 1, 4, 5, 9, LONG]
        x = [draw((3, 5, 2))]
        for start, stop, step in itertools.product(places, places, (1, 2, 3, 7, LONG)):
            run = Run("cpu")
            got = run.value(part(run, run.constant(x[0]), 1, start, stop, step))
            numpy.testing.assert_array_equal(got, x[0][:, start:stop:step])
            run.close()
        for dim, start, stop, step in ((0, 0, LONG, 2), (1, 1, 4, 1), (1, -2, LONG, 1), (2, 0, 2, 1), (-2, 0, 5, 3), (1, 3, 3, 1), (0, 2, 1, 1)):
            index = [slice(None)] * 3
            index[dim] = slice(start, stop, step)
            self.beside(f"slice {dim} {start} {stop} {step}", lambda r, a: part(r, a, dim, start, stop, step), lambda a: a[tuple(index)], x)

    def test_select(self):
        for dim, size in enumerate((3, 5, 1)):
            for index in range(-size, size):
                op = lambda r, a: select(r, a, dim, index)
                self.beside(f"select {dim} {index}", op, lambda a: a.select(dim, index), [draw((3, 5, 1))])
        self.beside("select of one", lambda r, a: select(r, a, 0, 2), lambda a: a[2], [draw((4,))])

    def test_split(self):
        for dim, size in itertools.product((0, 1, -1), (1, 2, 3, 4, 6, 7, 100)):
            # Weights, so that every part has another gradient; the last part has none.
            def op(r, a):
                parts = split(r, a, size, dim)
                weighted = [r.op("tern_mul", p, r.op("tern_full", r.lib.tern_tensor_dtype(a), 0, None, ctypes.c_double(i + 1))) for i, p in enumerate(parts)]
                return cat(r, weighted[:-1] or weighted, dim)

            def oracle(a):
                weighted = [(i + 1) * p for i, p in enumerate(a.split(size, dim))]
                return torch.cat(weighted[:-1] or weighted, dim)

            self.beside(f"split {size} {dim}", op, oracle, [draw((4, 6, 7))])

    def test_slices_of_one_tensor(self):
        """Some leave gaps, some overlap, some are slices of slices, along one dimension or several; the tensor is also used as a
        whole, before them or after them. Each use has another weight."""
        rng = numpy.random.default_rng(7)
        for case in range(40):
            shape = tuple(map(int, rng.integers(1, 9, 3)))
            dims = rng.integers(0, 3, rng.integers(1, 7)) if case % 2 else [int(rng.integers(0, 3))] * int(rng.integers(1, 20))
            cuts = []
            for dim in map(int, dims):
                start, stop = sorted(map(int, rng.integers(0, shape[dim] + 1, 2)))
                cuts.append((dim, start, stop, int(rng.choice([1, 1, 1, 2])), int(rng.integers(0, 3))))
            whole = int(rng.integers(0, 4))  # before, after, both, neither

            def results(weigh, cut, pick, use, a):
                """All parts that are summed, where x is no leaf."""
                x, parts = weigh(a, 2.0), []
                if whole in (0, 2):
                    parts.append(use(weigh(x, 3.0)))
                for i, (dim, start, stop, step, then) in enumerate(cuts):
                    y = cut(x, dim, start, stop, step)
                    if then == 1:
                        y = cut(y, (dim + 1) % 3, 0, max(1, shape[(dim + 1) % 3] // 2), 1)
                    parts.append(use(weigh(y, i + 1.5)))
                    if then == 2 and start < stop:
                        parts.append(use(weigh(pick(y, dim), 0.25)))
                if whole in (1, 2):
                    parts.append(use(weigh(x, 5.0)))
                return parts

            def op(r, a):
                number = lambda value: r.op("tern_full", r.lib.tern_tensor_dtype(a), 0, None, ctypes.c_double(value))
                square = lambda y: r.op("tern_sum", r.op("tern_mul", y, y))
                total = number(0)
                for one in results(lambda y, w: r.op("tern_mul", y, number(w)), lambda *rest: part(r, *rest), lambda y, dim: select(r, y, dim, 0), square, a):
                    total = r.op("tern_add", total, one)
                return total

            def oracle(a):
                def cut(x, dim, start, stop, step):
                    return x[tuple(slice(start, stop, step) if d == dim else slice(None) for d in range(3))]

                return sum(results(lambda y, w: y * w, cut, lambda y, dim: y.select(dim, 0), lambda y: (y * y).sum(), a), torch.zeros(()).double())

            if whole == 3 and not any(start < stop for _, start, stop, _, _ in cuts):
                continue
            self.beside(f"{shape} {cuts} {whole}", op, oracle, [draw(shape)])

    def test_expand(self):
        """Gradients are summed over what is repeated."""
        for x, shapes in (((3, 1), [(3, 4), (3, 1), (2, 3, 4), (-1, 4), (5, -1, -1), (3, 0), (0, 3, 2)]), ((), [(), (4,), (2, 3)]), ((2, 0), [(2, 0), (3, -1, -1)]),
                          ((1, 5, 1, 3), [(4, 5, 6, 3), (-1, -1, 70, -1)])):
            for shape in shapes:
                self.beside(f"expand {x} to {shape}", lambda r, a: expand(r, a, *shape), lambda a: a.expand(shape), [draw(x)])
        self.beside("expand a turned one", lambda r, a: expand(r, transpose(r, a, 0, 1), 2, 3, 4), lambda a: a.transpose(0, 1).expand(2, 3, 4), [draw((4, 3))])
        self.beside("expand a blocked one", lambda r, a: expand(r, blocked(r, a), 3, 2, 16, 1, 5), lambda a: a.expand(3, 2, 16, 1, 5), [draw((2, 16, 1, 5))])
        for dtype in ("int64", "uint8", "?"):
            run = Run("cpu")
            a = RNG.integers(0, 2, (3, 1)).astype(dtype)
            numpy.testing.assert_array_equal(run.value(expand(run, run.constant(a), 2, 3, 4)), numpy.broadcast_to(a, (2, 3, 4)))
            run.close()

    def test_reshape_and_flatten(self):
        x = [draw((2, 16, 3, 5))]
        turned = lambda r, a: transpose(r, a, 1, 3)
        for shape in ((480,), (2, -1), (-1, 5), (4, 4, 2, 15), (2, 16, 3, 5), (1, 480, 1)):
            for prepare, before in ((lambda r, a: a, lambda a: a), (lambda r, a: r.op("tern_tanh", a), torch.tanh), (blocked, lambda a: a), (turned, lambda a: a.transpose(1, 3))):
                self.beside(f"reshape {shape}", lambda r, a: reshape(r, prepare(r, a), *shape), lambda a: before(a).reshape(shape), x)
        for first in range(-4, 4):
            self.beside(f"flatten {first}", lambda r, a: r.op("tern_flatten", a, first), lambda a: a.flatten(first), x)
            self.beside(f"flatten blocked {first}", lambda r, a: r.op("tern_flatten", blocked(r, a), first), lambda a: a.flatten(first), x)
        self.beside("scalar", lambda r, a: r.op("tern_flatten", a, 0), lambda a: a.flatten(), [draw(())])
        self.beside("to a scalar", lambda r, a: reshape(r, a), lambda a: a.reshape(()), [draw((1, 1))])

    def test_views_share_memory(self):
        views = [
            (lambda r, a: permute(r, a, 2, 0, 1), lambda a: a.transpose(2, 0, 1)),
            (lambda r, a: part(r, a, 1, 1, 4, 2), lambda a: a[:, 1:4:2]),
            (lambda r, a: select(r, a, 0, -1), lambda a: a[-1]),
            (lambda r, a: split(r, a, 3, 2)[1], lambda a: a[:, :, 3:]),
            (lambda r, a: r.op("tern_detach", a), lambda a: a),
            (lambda r, a: reshape(r, a, 5, 12), lambda a: a.reshape(5, 12)),
        ]
        for view, seen in views:
            run = Run("cpu")
            new = draw((3, 4, 5))
            x = run.constant(draw((3, 4, 5)))
            y = view(run, x)
            run.write(x, new)
            numpy.testing.assert_array_equal(run.value(y), seen(new))
            run.close()

    def test_copies_do_not(self):
        for copy in (lambda r, a: r.op("tern_clone", a), lambda r, a: cat(r, [a], 0), lambda r, a: pad(r, a, [0, 0]), lambda r, a: reshape(r, transpose(r, a, 0, 1), 3, 4)):
            run = Run("cpu")
            x = run.constant(numpy.zeros((3, 4), "f"))
            y = copy(run, x)
            run.write(x, numpy.ones((3, 4), "f"))
            self.assertTrue((run.value(y) == 0).all())
            run.close()

    def test_parameters_before_and_after_the_seal(self):
        """A view made before the seal, which moves the parameter, keeps its values and still passes its gradient on."""
        run = Run("cpu")
        x, dy = draw((4, 6)), draw((6, 4))
        p = run.parameter(x)
        early = transpose(run, p, 0, 1)
        run.backward(run.op("tern_tanh", p), x)  # seals
        first = run.grad(p)
        late = transpose(run, p, 0, 1)
        numpy.testing.assert_array_equal(run.value(early), x.T)
        numpy.testing.assert_array_equal(run.value(late), x.T)
        for view in (early, late):
            run.backward(view, dy)
        numpy.testing.assert_allclose(run.grad(p), first + 2 * dy.T, 1e-5)
        run.write(p, 2 * x)
        numpy.testing.assert_array_equal(run.value(late), 2 * x.T)
        run.close()

    def test_detach_stops_the_gradient(self):
        op = lambda r, a: r.op("tern_mul", a, r.op("tern_detach", a))
        self.beside("detach", op, lambda a: a * a.detach(), [draw((3, 4))])
        self.beside("detach blocked", lambda r, a: r.op("tern_mul", blocked(r, a), r.op("tern_detach", blocked(r, a))), lambda a: a * a.detach(), [draw((2, 16, 3, 3))])

    def test_chains(self):
        """Random views of views, where several use one input."""
        rng = numpy.random.default_rng(5)
        for number in range(40):
            steps, shape = [], [4, 6, 5, 3]
            for _ in range(rng.integers(1, 7)):
                dim = int(rng.integers(len(shape))) if shape else 0
                kind = rng.integers(5)
                if kind == 0 and len(shape) > 1:
                    dims = [int(d) for d in rng.permutation(len(shape))]
                    steps.append((lambda r, a, d=dims: permute(r, a, *d), lambda a, d=dims: a.permute(d)))
                    shape = [shape[d] for d in dims]
                elif kind == 1 and shape:
                    start, step = int(rng.integers(shape[dim])), int(rng.integers(1, 3))
                    steps.append((lambda r, a, d=dim, s=start, t=step: part(r, a, d, s, LONG, t), lambda a, d=dim, s=start, t=step: a.narrow(d, s, a.shape[d] - s)[(slice(None),) * d + (slice(None, None, t),)]))
                    shape[dim] = (shape[dim] - start + step - 1) // step
                elif kind == 2 and len(shape) > 1:
                    index = int(rng.integers(shape[dim]))
                    steps.append((lambda r, a, d=dim, i=index: select(r, a, d, i), lambda a, d=dim, i=index: a.select(d, i)))
                    del shape[dim]
                elif kind == 3 and shape:
                    flat = [int(numpy.prod(shape))] if len(shape) > 2 else shape
                    steps.append((lambda r, a, s=flat: reshape(r, a, *s), lambda a, s=flat: a.reshape(s)))
                    shape = list(flat)
                elif kind == 4 and shape:
                    padding = [int(p) for p in rng.integers(0, 3, 2)]
                    steps.append((lambda r, a, p=padding: pad(r, a, p, 0.5), lambda a, p=padding: F.pad(a, p, value=0.5)))
                    shape[-1] += sum(padding)

            def through(x, which, *first):
                total = None
                for step in steps:
                    x = step[which](*first, x)
                return x

            op = lambda r, a: through(a, 0, r)
            self.beside(f"chain {number}", op, lambda a: through(a, 1), [draw((4, 6, 5, 3))])
            both = lambda r, a: r.op("tern_mul", through(r.op("tern_tanh", a), 0, r), through(a, 0, r))
            self.beside(f"chain {number} twice", both, lambda a: through(a.tanh(), 1) * through(a, 1), [draw((4, 6, 5, 3))])

    # ---- joins ----

    def test_cat_and_stack(self):
        for dim in (0, 1, 2, -1):
            for sizes in ((3,), (1, 2), (2, 0, 3), (1, 1, 2, 3, 1, 2, 1), (0, 0)):
                shapes = [[4, 5, 6] for _ in sizes]
                for shape, size in zip(shapes, sizes):
                    shape[dim] = size
                self.beside(f"cat {dim} {sizes}", lambda r, *t: cat(r, t, dim), lambda *t: torch.cat(t, dim), [draw(s) for s in shapes])
        for dim in range(-4, 4):
            for count in (1, 2, 7):
                self.beside(f"stack {dim}", lambda r, *t: stack(r, t, dim), lambda *t: torch.stack(t, dim), [draw((4, 5, 6)) for _ in range(count)])
        self.beside("stack of scalars", lambda r, *t: stack(r, t, 0), lambda *t: torch.stack(t, 0), [draw(()), draw(())])
        self.beside("one twice", lambda r, a, b: cat(r, [a, b, a], 1), lambda a, b: torch.cat([a, b, a], 1), [draw((2, 3)), draw((2, 4))])

    def test_joins_of_views_and_blocked(self):
        a, b = draw((2, 16, 3, 5)), draw((2, 32, 3, 5))
        for dim in range(4):
            c = draw((2, 16, 3, 5))
            self.beside(f"cat blocked {dim}", lambda r, x, y: cat(r, [blocked(r, x), y, blocked(r, y)], dim), lambda x, y: torch.cat([x, y, y], dim), [a, c])
            turned = lambda r, x, y: cat(r, [transpose(r, x, 0, 3), transpose(r, blocked(r, y), 0, 3)], dim)
            self.beside(f"cat turned {dim}", turned, lambda x, y: torch.cat([x.transpose(0, 3), y.transpose(0, 3)], dim), [a, c])
        self.beside("cat blocked", lambda r, x, y: cat(r, [blocked(r, x), blocked(r, y)], 1), lambda x, y: torch.cat([x, y], 1), [a, b])
        self.beside("stack blocked", lambda r, x, y: stack(r, [blocked(r, x), y], 2), lambda x, y: torch.stack([x, y], 2), [a, draw(a.shape)])

    def test_pad(self):
        for padding in ([], [1, 0], [0, 2], [3, 1], [1, 2, 0, 1], [0, 0, 2, 0, 1, 1], [0, 0, 0, 0]):
            for value in (0.0, -1.5):
                self.beside(f"pad {padding}", lambda r, a: pad(r, a, padding, value), lambda a: F.pad(a, padding, value=value), [draw((2, 3, 4))])
        self.beside("pad blocked", lambda r, a: pad(r, blocked(r, a), [1, 1, 2, 2]), lambda a: F.pad(a, [1, 1, 2, 2]), [draw((2, 16, 3, 3))])
        self.beside("pad channels", lambda r, a: pad(r, blocked(r, a), [0, 0, 0, 0, 3, 5]), lambda a: F.pad(a, [0, 0, 0, 0, 3, 5]), [draw((2, 16, 3, 3))])
        self.beside("pad a view", lambda r, a: pad(r, transpose(r, a, 0, 1), [1, 2]), lambda a: F.pad(a.T, [1, 2]), [draw((4, 5))])
        run = Run("cpu")
        self.assertTrue((run.value(pad(run, run.constant(numpy.array([True])), [1, 1], 1.0)) == [True] * 3).all())
        numpy.testing.assert_array_equal(run.value(pad(run, run.constant(numpy.array([2**53 + 1])), [1, 0], -1.0)), [-1, 2**53 + 1])
        numpy.testing.assert_array_equal(run.value(pad(run, run.constant(numpy.ones(1, "f")), [0, 1], numpy.inf)), numpy.array([1, numpy.inf]))
        run.close()

    # ---- copies ----

    def test_clone(self):
        x = [draw((2, 16, 3, 5))]
        self.beside("clone", lambda r, a: r.op("tern_clone", a), torch.clone, x)
        self.beside("clone blocked", lambda r, a: r.op("tern_clone", blocked(r, a)), torch.clone, x)
        self.beside("clone turned", lambda r, a: r.op("tern_clone", transpose(r, a, 1, 3)), lambda a: a.transpose(1, 3), x)

    def test_turned_copies(self):
        """Elements of every size, shapes around a tile, any number of threads: exactly equal."""
        cases = [((33, 65), (1, 0)), ((32, 64), (1, 0)), ((3, 1000), (1, 0)), ((1000, 3), (1, 0)), ((1000, 9), (1, 0)), ((7, 40), (1, 0)), ((5, 40, 70), (2, 0, 1)), ((5, 40, 70), (0, 2, 1)),
                 ((6, 7, 8, 9), (3, 1, 2, 0)), ((2, 33, 2, 40), (1, 3, 0, 2)), ((300, 301), (1, 0)), ((2, 3, 2, 3, 2, 3), (5, 4, 3, 2, 1, 0))]
        for (shape, dims), dtype, threads in itertools.product(cases, ("uint8", "int8", "?", "float16", "int16", "f", "int32", "d", "int64"), (1, 3)):
            x = RNG.integers(0, 200, shape).astype(dtype)
            run = Run("cpu", threads)
            turned = permute(run, run.constant(x), *dims)
            numpy.testing.assert_array_equal(run.value(run.op("tern_clone", turned)), x.transpose(dims), f"{shape} {dims} {dtype}")
            cut = permute(run, part(run, run.constant(x), 0, 1, LONG, 2), *dims)  # no neighbours where they were
            numpy.testing.assert_array_equal(run.value(run.op("tern_clone", cut)), x[1::2].transpose(dims))
            run.close()

    # ---- casts ----

    def cast(self, run, x, kind):
        """A tensor of one torch dtype, cast to another and returned as torch's tensor."""
        number = next(n for n, k in KINDS.items() if k == x.dtype)
        t = run.constant(x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy())
        t = run.op("tern_cast", t, number)
        self.assertEqual(run.lib.tern_tensor_dtype(t), number)
        return torch.tensor(run.value(run.op("tern_cast", t, kind))).to(KINDS[kind])

    def test_cast_of_every_dtype_to_every_other(self):
        whole = [0, 1, 2, 7, 100, 255, 3, 4, 0, 1]
        for device in ("cpu", "cpu:reference"):
            for source, to in itertools.product(KINDS, KINDS):
                values = whole + ([0.5, 1.75, 99.99, 200.7] if KINDS[source].is_floating_point else [])
                values += [-1, -2, -100] if source not in (U8, BOOL) and to != U8 else []
                if KINDS[source].is_floating_point and to == I8:
                    values = [v for v in values if v < 128]  # C does not define the others
                for x in (torch.tensor(values * 30).to(KINDS[source]), torch.tensor(values).to(KINDS[source])):
                    run = Run(device)
                    self.assertTrue(torch.equal(self.cast(run, x, to), x.to(KINDS[to])), f"{device} {KINDS[source]} to {KINDS[to]}")
                    run.close()

    def test_casts_of_integers_wrap_around(self):
        kinds = [I64, I32, I16, I8, U8]
        for device, source, to in itertools.product(("cpu", "cpu:reference"), kinds, kinds + [BOOL]):
            ends = torch.iinfo(KINDS[source])
            for shape in ((), (1,), (7,), (33, 5), (257, 31)):
                x, run = torch.tensor(RNG.integers(ends.min, ends.max, shape, "int64", endpoint=True)).to(KINDS[source]), Run(device)
                x.view(-1)[0] = ends.min
                x.view(-1)[-1] = ends.max
                self.assertTrue(torch.equal(self.cast(run, x, to), x.to(KINDS[to])), f"{device} {KINDS[source]} to {KINDS[to]}")
                if x.ndim == 2:
                    number = run.op("tern_cast", transpose(run, run.constant(x.numpy()), 0, 1), to)
                    self.assertTrue(torch.equal(torch.tensor(run.value(number)), x.T.to(KINDS[to])))
                run.close()

    def test_casts_round_once(self):
        """Values halfway between neighbours, a little more, a little less; large integers; infinities and NaN."""
        near = lambda ulp, *at: [a + b for a in at for b in (ulp / 2, ulp / 2 + ulp / 2**20, ulp / 2 - ulp / 2**20, 3 * ulp / 2)]
        reals = torch.tensor(near(2.0**-7, 1.0, 1.5) + near(2.0**-10, 1.0, 1.5) + near(2.0**-23, 1.0, 1.5) + near(2.0**-24, 2.0**-14) + [65504.0, 65519.9, 65520.0, 1e-8, 1e-40, 1e300, -1e300, numpy.inf, -numpy.inf, numpy.nan, -0.0], dtype=torch.float64)
        integers = torch.tensor([2**53 + 1, 2**62 + 2**38 + 1, 2**62 + 2**38, -(2**62) - 2**38 - 1, 2**24 + 1, 2**63 - 1, -(2**63), 2**40 + 2**15 + 1, 65519, 65520, 257, 2**11 + 1])
        for device in ("cpu", "cpu:reference"):
            for x, kinds in ((reals, (F32, BF16, F16)), (reals.float(), (F64, BF16, F16)), (integers, (F32, F64, BF16, F16)), (torch.randn(5000, dtype=torch.float64), (F32, BF16, F16))):
                for kind in kinds:
                    run = Run(device)
                    got, want = self.cast(run, x, kind), x.to(KINDS[kind])
                    same = (got == want) | (got.isnan() & want.isnan())
                    self.assertTrue(same.all(), f"{device} {x.dtype} to {want.dtype}: {x[~same]} {got[~same]} {want[~same]}")
                    run.close()

    def test_casts_have_a_gradient(self):
        for device in ("cpu", "cpu:reference"):
            for first, second in ((F32, F64), (F64, F32), (F32, BF16), (F32, F16), (F64, F16)):
                op = lambda r, a: r.op("tern_cast", r.op("tern_mul", *[r.op("tern_cast", a, second)] * 2), first)
                compare("cast", op, lambda a: a * a, [draw((7, 33), "fd"[first])], 2e-2 if second == BF16 else 4e-3 if second == F16 else 1e-6, device)
        self.beside("cast blocked", lambda r, a: r.op("tern_cast", r.op("tern_cast", blocked(r, a), F64), r.lib.tern_tensor_dtype(a)), lambda a: a, [draw((2, 16, 3, 3))])

    def test_a_cast_to_the_same_dtype_is_the_tensor(self):
        run = Run("cpu")
        x = run.constant(draw((3,)))
        self.assertEqual(run.op("tern_cast", x, F32).value, x.value)
        run.close()

    # ---- nothing, errors, gradients ----

    def test_nothing(self):
        x = [numpy.empty((2, 0, 3), "f")]
        self.beside("permute", lambda r, a: permute(r, a, 2, 1, 0), lambda a: a.permute(2, 1, 0), x)
        self.beside("slice", lambda r, a: part(r, a, 2, 1, 3), lambda a: a[:, :, 1:3], x)
        self.beside("select", lambda r, a: select(r, a, 0, 1), lambda a: a[1], x)
        self.beside("cat", lambda r, a: cat(r, [a, a], 0), lambda a: torch.cat([a, a], 0), x)
        self.beside("pad", lambda r, a: pad(r, a, [0, 0, 1, 1], 2), lambda a: F.pad(a, [0, 0, 1, 1], value=2), x)
        self.beside("clone", lambda r, a: r.op("tern_clone", a), torch.clone, x)
        self.beside("reshape", lambda r, a: reshape(r, a, 0, 7), lambda a: a.reshape(0, 7), x)
        self.beside("split", lambda r, a: split(r, a, 2, 1)[0], lambda a: a.split(2, 1)[0], x)

    def test_errors(self):
        x = numpy.ones((2, 3), "f")
        each = "permute: expected each dimension of (2, 3) once"
        for dims in ((0,), (0, 0), (0, 2), (0, 1, 2), (-3, 0), (0, -2)):
            self.fails(-7, each, lambda r, a: permute(r, a, *dims), x)
        for op in (lambda r, a: transpose(r, a, 0, 2), lambda r, a: transpose(r, a, 2, 0), lambda r, a: part(r, a, 2, 0, 1), lambda r, a: select(r, a, 2, 0), lambda r, a: split(r, a, 1, 2), lambda r, a: cat(r, [a], 2)):
            self.fails(-7, "dimension 2 of (2, 3) is not in [-2, 2)", op, x)
        self.fails(-7, "dimension 0 of () is not in [-0, 0)", lambda r, a: select(r, a, 0, 0), numpy.ones((), "f"))
        for step in (0, -1):
            self.fails(-7, f"slice: expected a step of at least 1, got {step}", lambda r, a: part(r, a, 0, 0, 2, step), x)
        for index in (2, -3):
            self.fails(-7, f"select: index {index} is not in [-2, 2)", lambda r, a: select(r, a, 0, index), x)
        self.fails(-7, "split: parts of 1 of a dimension of 3 do not fit an array of 2", lambda r, a: split(r, a, 1, 1, 2), x)
        self.fails(-7, "split: parts of 0 of a dimension of 3 do not fit an array of 16", lambda r, a: split(r, a, 0, 1), x)
        self.fails(-1, "expected at least one tensor, got 0", lambda r: cat(r, [], 0))
        self.fails(-2, "input 0 is (2, 3) of f32, but input 1 is (3, 3) of f32", lambda r, a, b: cat(r, [a, b], 1), x, numpy.ones((3, 3), "f"))
        self.fails(-2, "input 0 is (2, 3) of f32, but input 1 is (2) of f32", lambda r, a, b: cat(r, [a, b], 1), x, numpy.ones(2, "f"))
        self.fails(-3, "input 0 is (2, 3) of f32, but input 1 is (2, 3) of f64", lambda r, a, b: cat(r, [a, b], 1), x, numpy.ones((2, 3)))
        self.fails(-2, "input 0 is (2, 3) of f32, but input 1 is (2, 4) of f32", lambda r, a, b: stack(r, [a, b], 1), x, numpy.ones((2, 4), "f"))
        self.fails(-7, "stack: dimension 3 of 3 (at most 6) does not exist", lambda r, a: stack(r, [a], 3), x)
        self.fails(-7, "stack: dimension 0 of 7 (at most 6) does not exist", lambda r, a: stack(r, [a], 0), numpy.ones((1,) * 6, "f"))
        wrong = "pad: expected two numbers for each of up to 2 dimensions, got "
        for padding in ([1], [0] * 6, [(1 << 63) - 1, 1]):
            self.fails(-7, wrong + f"{len(padding)} numbers", lambda r, a: pad(r, a, padding), x)
        self.fails(-2, "(2, 4611686018427387907) has too many elements", lambda r, a: pad(r, a, [LONG, 0]), x)
        self.fails(-2, "reshape: (2, 3) cannot be seen as (4, -1)", lambda r, a: reshape(r, a, 4, -1), x)
        self.fails(-2, "expand: (2, 3) cannot be repeated to (2, 4)", lambda r, a: expand(r, a, 2, 4), x)
        self.fails(-2, "expand: (2, 3) cannot be repeated to (3)", lambda r, a: expand(r, a, 3), x)
        self.fails(-2, "expand: (2, 3) cannot be repeated to (-1, 2, 3)", lambda r, a: expand(r, a, -1, 2, 3), x)
        self.fails(-7, "expand: ndim 7 is not in [0, 6]", lambda r, a: expand(r, a, *[1] * 7), x)
        self.fails(-2, f"reshape: (2, 3) cannot be seen as ({LONG}, 8, 6)", lambda r, a: reshape(r, a, LONG, 8, 6), x)
        self.fails(-7, "flatten: dimension -3 of 2 does not exist", lambda r, a: r.op("tern_flatten", a, -3), x)
        self.fails(-3, f"dtype {len(KINDS)} does not exist", lambda r, a: r.op("tern_cast", a, len(KINDS)), x)
        self.fails(-2, "has too many elements", lambda r, a, b: r.op("tern_add", a, b), numpy.empty((0, 1 << 40, 1), "f"), numpy.empty((0, 1, 1 << 40), "f"))

    def test_gradients_by_finite_differences(self):
        x = [numpy.random.default_rng(3).standard_normal((4, 3, 5))]
        for what, op in (
            ("permute", lambda r, a: permute(r, a, 2, 0, 1)),
            ("slice", lambda r, a: part(r, a, 2, 1, 5, 2)),
            ("select", lambda r, a: select(r, a, 1, -1)),
            ("split", lambda r, a: split(r, a, 2, 2)[1]),
            ("cat", lambda r, a: cat(r, [a, part(r, a, 0, 0, 2)], 0)),
            ("stack", lambda r, a: stack(r, [select(r, a, 0, 1), select(r, a, 0, 3)], 1)),
            ("pad", lambda r, a: pad(r, a, [1, 2, 0, 1])),
            ("reshape", lambda r, a: reshape(r, transpose(r, a, 0, 2), -1)),
        ):
            gradient_check(what, lambda r, a: op(r, r.op("tern_tanh", a)), x)


if __name__ == "__main__":
    skips.main()
