"""Every op in an autocast region compared with torch.autocast("cpu"): the dtype of its result, the values, the
gradients of f32 parameters. PyTorch 1.13 lacks f16 and a few rows of the list; these follow PyTorch 2, with which
this test passes too. On a GPU the reference is torch.autocast("cuda"), whose lists are below; test_autocast_newest.py
compares them with PyTorch's."""
import ctypes
import math
import os
import re
import subprocess
import sys
import unittest

import numpy
import torch
import torch.nn.functional as F
import torchvision

import skips
import tern
from ops import BF16, F16, F32, Run, error_of

NEW = int(torch.__version__.split(".")[0]) >= 2
KINDS = {BF16: torch.bfloat16, F16: torch.float16, F32: torch.float32, 1: torch.float64, 2: torch.int64, 7: torch.bool}
HEADERS = "ops.h", "attention.h", "pad.h", "conv.h", "loss.h"
CREATE = "full rand randn".split()
MODES = "constant", "reflect", "replicate", "circular"

reals = lambda *shape: numpy.random.default_rng(sum(shape) + len(shape)).standard_normal(shape).astype("f")
positive = lambda *shape: numpy.abs(reals(*shape)) + numpy.float32(0.5)
share = lambda *shape: positive(*shape) % 1
LABELS = numpy.array([1, 0, 3, 2, 1, 3], "int64")
INDEX = numpy.array([1, 0, 2], "int64")
X, IMAGE, LINE, VOLUME = reals(6, 4), reals(3, 16, 9, 8), reals(3, 4, 11), reals(2, 16, 5, 4, 6)
numbers = lambda *values: (ctypes.c_int64 * len(values))(*values)
dims = lambda *values: (ctypes.c_int * len(values))(*values)
double = ctypes.c_double


def tensors_of(run, name, x, *rest):
    return run.op(name, len(x), (ctypes.c_void_p * len(x))(*[t.value for t in x]), *rest)


def first_of_split(run, x):
    parts = (ctypes.c_void_p * 4)()
    assert run.lib.tern_split(run.scope, x, ctypes.c_int64(2), 0, parts, 4) == 3
    return ctypes.c_void_p(parts[0])


def one(name, theirs, x=X, *rest):
    """An op of one tensor and further arguments."""
    return lambda r, a: r.op("tern_" + name, a, *rest), theirs, [x]


def two(name, theirs, a=X, b=positive(6, 4)):
    return lambda r, *t: r.op("tern_" + name, *t), theirs, [a, b]


def padded(mode, ndim, x):
    return one("pad_mode", lambda x: F.pad(x, (1, 2) * ndim, mode), x, 2 * ndim, numbers(*(1, 2) * ndim), MODES.index(mode))


def batch_norm(x, weight, bias):
    return F.batch_norm(x, None, None, weight, bias, True)


def rms_norm(x, weight):
    """PyTorch 1.13 has none: its formula, in f32, with the epsilon of x's dtype."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, True) + torch.finfo(x.dtype).eps) * weight.float()).to(x.dtype)


def turned(x):
    """Rotary embedding of halves, computed in f32."""
    c, s = (torch.tensor(table(6, 2)).repeat(1, 2) for table in (share, reals))
    wide = x.float()
    return (wide * c + torch.cat([-wide[:, 2:], wide[:, :2]], 1) * s).to(x.dtype)


def promoted(gate, x):
    """A gate of 16 bits beside an x of f32 is computed in f32."""
    return gate.to(torch.promote_types(gate.dtype, x.dtype))


def unrounded_scores(*tensors):
    """Cross entropy of a linear of the region's dtype, but with scores in f32."""
    x, w, b = (t.to(torch.get_autocast_cpu_dtype()).float() for t in tensors)
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(F.linear(x, w, b), torch.tensor(LABELS))


def attention(q, k, v, mask):
    """PyTorch 1.13 has no public one."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, mask)
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask).softmax(-1) @ v


def dice_of(x, target):
    """Soft Dice of each row and column; PyTorch has none, so f32 is what tern's row of the list says."""
    p, t = x.float().sigmoid(), torch.tensor(target)
    return (1 - (2 * p * t + 1e-5) / (p + t + 1e-5)).mean()


# For each op: tern's call, torch's call, and the floating-point arrays. Integer arrays are inside the calls.
CASES = {
    "linear": (lambda r, *t: r.op("tern_linear", *t), F.linear, [X, reals(5, 4), reals(5)]),
    "linear_act": (lambda r, *t: r.op("tern_linear_act", *t, True), lambda *t: F.linear(*t).relu(), [X, reals(5, 4), reals(5)]),
    "matmul": two("matmul", torch.matmul, X, reals(4, 7)),
    "conv1d": (lambda r, *t: r.op("tern_conv1d", *t, None), F.conv1d, [LINE, reals(5, 4, 3), reals(5)]),
    "conv2d": (lambda r, *t: r.op("tern_conv2d", *t, None), F.conv2d, [IMAGE, reals(16, 16, 3, 3), reals(16)]),
    "conv_transpose1d": (lambda r, *t: r.op("tern_conv_transpose1d", *t, None), F.conv_transpose1d, [LINE, reals(4, 5, 3), reals(5)]),
    "conv3d": (lambda r, *t: r.op("tern_conv3d", *t, None), F.conv3d, [VOLUME, reals(16, 16, 2, 3, 1), reals(16)]),
    "conv_transpose3d": (lambda r, *t: r.op("tern_conv_transpose3d", *t, None), F.conv_transpose3d, [VOLUME, reals(16, 5, 2, 3, 2), reals(5)]),
    "conv_transpose2d": (lambda r, *t: r.op("tern_conv_transpose2d", *t, None), F.conv_transpose2d, [IMAGE, reals(16, 5, 3, 3), reals(5)]),
    "scaled_dot_product_attention": (lambda r, *t: r.op("tern_scaled_dot_product_attention", *t, None), attention, [reals(2, 3, 9, 8), reals(2, 3, 7, 8), reals(2, 3, 7, 5), reals(9, 7)]),
    "embedding": (lambda r, w: r.op("tern_embedding", r.constant(INDEX), w, None), lambda w: F.embedding(torch.tensor(INDEX), w), [X]),
    "dropout": one("dropout", lambda x: F.dropout(x, 0.0), X, double(0)),
    "dropout2d": one("dropout2d", lambda x: F.dropout2d(x, 0.0), IMAGE, double(0)),
    "dropout3d": one("dropout3d", lambda x: F.dropout3d(x, 0.0), VOLUME, double(0)),
    "batch_norm_act": (lambda r, x, w, b: r.op("tern_batch_norm_act", x, None, None, w, b, None, None), batch_norm, [IMAGE, reals(16), reals(16)]),
    "layer_norm": (lambda r, *t: r.op("tern_layer_norm", *t, None), lambda x, w, b: F.layer_norm(x, (4,), w, b), [X, reals(4), reals(4)]),
    "rms_norm": (lambda r, *t: r.op("tern_rms_norm", *t, None), rms_norm, [X, reals(4)]),
    "rotary_embedding": (lambda r, x: r.op("tern_rotary_embedding", x, r.constant(share(6, 2)), r.constant(reals(6, 2)), False), turned, [X]),
    "group_norm": (lambda r, x, w, b: r.op("tern_group_norm", x, ctypes.c_int64(2), w, b, double(1e-5)),
                   lambda x, w, b: F.group_norm(x, 2, w, b), [LINE, reals(4), reals(4)]),
    "max_pool2d": one("max_pool2d", lambda x: F.max_pool2d(x, 2), IMAGE, ctypes.c_int64(2), ctypes.c_int64(2), None),
    "avg_pool2d": one("avg_pool2d", lambda x: F.avg_pool2d(x, 2), IMAGE, ctypes.c_int64(2), ctypes.c_int64(2), None),
    "max_pool3d": one("max_pool3d", lambda x: F.max_pool3d(x, 2), VOLUME, *[ctypes.c_int64(2)] * 3, None),
    "avg_pool3d": one("avg_pool3d", lambda x: F.avg_pool3d(x, 2), VOLUME, *[ctypes.c_int64(2)] * 3, None),
    "adaptive_avg_pool2d": one("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (5, 3)), IMAGE, *map(ctypes.c_int64, (5, 3))),
    "adaptive_avg_pool3d": one("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), VOLUME, *map(ctypes.c_int64, (2, 3, 4))),
    "global_avg_pool": one("global_avg_pool", lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), IMAGE),
    "interpolate": one("interpolate", lambda x: F.interpolate(x, scale_factor=2), IMAGE, None),
    "add": two("add", torch.add),
    "sub": two("sub", torch.sub),
    "mul": two("mul", torch.mul),
    "div": two("div", torch.div),
    "pow": two("pow", torch.pow, positive(6, 4)),
    "maximum": two("maximum", torch.maximum),
    "minimum": two("minimum", torch.minimum),
    **{name: two(name, getattr(torch, name)) for name in "eq ne lt le gt ge".split()},
    "where": (lambda r, *t: r.op("tern_where", r.constant(X), *t), lambda *t: torch.where(torch.tensor(X) != 0, *t), [X, reals(6, 4)]),
    **{name: one(name, getattr(torch, name)) for name in "neg abs exp tanh sigmoid relu".split()},
    "log": one("log", torch.log, positive(6, 4)),
    "sqrt": one("sqrt", torch.sqrt, positive(6, 4)),
    "silu": one("silu", F.silu),
    "gelu": one("gelu", F.gelu, X, False),
    "leaky_relu": one("leaky_relu", lambda x: F.leaky_relu(x, 0.1), X, double(0.1)),
    "swiglu": two("swiglu", lambda gate, x: F.silu(promoted(gate, x)) * x),
    "geglu": (lambda r, *t: r.op("tern_geglu", *t, False), lambda gate, x: F.gelu(promoted(gate, x)) * x, [X, positive(6, 4)]),
    "clamp": one("clamp", lambda x: x.clamp(-1, 0.5), X, double(-1), double(0.5)),
    "affine": one("affine", lambda x: 1 - x, X, double(-1), double(1)),
    "softmax": one("softmax", lambda x: x.softmax(1), X, 1),
    "log_softmax": one("log_softmax", lambda x: x.log_softmax(1), X, 1),
    "sum": one("sum", torch.sum),
    "mean": one("mean", torch.mean),
    "sum_dims": one("sum_dims", lambda x: x.sum(1), X, 1, dims(1), False),
    "mean_dims": one("mean_dims", lambda x: x.mean(1), X, 1, dims(1), False),
    "amax": one("amax", lambda x: x.amax(1), X, 1, dims(1), False),
    "amin": one("amin", lambda x: x.amin(1), X, 1, dims(1), False),
    "argmax": one("argmax", lambda x: x.argmax(1), X, 1, False),
    "argmin": one("argmin", lambda x: x.argmin(1), X, 1, False),
    "max_dim": one("max_dim", lambda x: x.max(1)[0], X, 1, False, None),
    "min_dim": one("min_dim", lambda x: x.min(1)[0], X, 1, False, None),
    "topk": one("topk", lambda x: x.topk(2)[0], X, ctypes.c_int64(2), -1, True, None),
    "cumsum": one("cumsum", lambda x: x.cumsum(1), X, 1),
    "tril": one("tril", lambda x: x.tril(1), X, ctypes.c_int64(1)),
    "triu": one("triu", lambda x: x.triu(-1), X, ctypes.c_int64(-1)),
    "multinomial": one("multinomial", lambda x: torch.multinomial(x, 1), numpy.eye(4, dtype="f"), ctypes.c_int64(1), False),
    "reshape": one("reshape", lambda x: x.reshape(3, 8), X, 2, numbers(3, 8)),
    "expand": one("expand", lambda x: x.expand(3, 6, 4), X, 3, numbers(3, -1, 4)),
    "flatten": one("flatten", lambda x: x.flatten(1), IMAGE, 1),
    "permute": one("permute", lambda x: x.permute(1, 0), X, 2, dims(1, 0)),
    "transpose": one("transpose", lambda x: x.transpose(0, 1), X, 0, 1),
    "slice": one("slice", lambda x: x[1:3], X, 0, ctypes.c_int64(1), ctypes.c_int64(3), ctypes.c_int64(1)),
    "select": one("select", lambda x: x[2], X, 0, ctypes.c_int64(2)),
    "split": (first_of_split, lambda x: x.split(2)[0], [X]),
    "cat": (lambda r, *t: tensors_of(r, "tern_cat", t, 0), lambda *t: torch.cat(t), [X, reals(6, 4), reals(3, 4)]),
    "stack": (lambda r, *t: tensors_of(r, "tern_stack", t, 0), lambda *t: torch.stack(t), [X, reals(6, 4)]),
    "pad": one("pad", lambda x: F.pad(x, (1, 2)), X, 2, numbers(1, 2), double(0)),
    **{f"pad_mode, {mode} in {ndim} dimensions": padded(mode, ndim, x)
       for mode in MODES for ndim, x in ((1, LINE), (2, IMAGE), (3, VOLUME))},
    "clone": one("clone", torch.clone),
    "contiguous": one("contiguous", torch.Tensor.contiguous),
    "detach": one("detach", torch.detach),
    "cast": one("cast", torch.Tensor.double, X, 1),
    "to": (lambda r, x: r.op("tern_to", x, r.device), lambda x: x.to("cpu"), [X]),
    "cross_entropy": (lambda r, x: r.op("tern_cross_entropy", x, r.constant(LABELS), None),
                      lambda x: F.cross_entropy(x, torch.tensor(LABELS)), [X]),
    "linear_cross_entropy": (lambda r, x, w, b: r.op("tern_linear_cross_entropy", x, w, b, r.constant(LABELS), None),
                             unrounded_scores, [X, reals(5, 4), reals(5)]),
    "nll_loss": (lambda r, x: r.op("tern_nll_loss", x, r.constant(LABELS), None), lambda x: F.nll_loss(x, torch.tensor(LABELS)), [X]),
    "l1_loss": (lambda r, *t: r.op("tern_l1_loss", *t, 0), F.l1_loss, [X, reals(6, 4) + 1]),
    "mse_loss": (lambda r, *t: r.op("tern_mse_loss", *t, 0), F.mse_loss, [X, reals(6, 4) + 1]),
    "smooth_l1_loss": (lambda r, *t: r.op("tern_smooth_l1_loss", *t, double(1), 0), F.smooth_l1_loss, [X, reals(6, 4) + 1]),
    "focal_loss": (lambda r, x: r.op("tern_focal_loss", x, r.constant(positive(6, 4)), None),
                   lambda x: torchvision.ops.sigmoid_focal_loss(x.float(), torch.tensor(positive(6, 4)), reduction="mean"), [X]),
    "dice_loss": (lambda r, x: r.op("tern_dice_loss", x, r.constant(positive(6, 4)), None), lambda x: dice_of(x, positive(6, 4)), [X]),
    "bce_dice_loss": (lambda r, x: r.op("tern_bce_dice_loss", x, r.constant(positive(6, 4)), double(0.5), double(2), None),
                      lambda x: 0.5 * F.binary_cross_entropy_with_logits(x.float(), torch.tensor(positive(6, 4))) + 2 * dice_of(x, positive(6, 4)), [X]),
    "bce_loss": (lambda r, x: r.op("tern_bce_loss", x, r.constant(share(6, 4)), 0),
                 lambda x: F.binary_cross_entropy(x.float(), torch.tensor(share(6, 4))), [reals(6, 4) / 8 + 0.5]),
    "bce_with_logits_loss": (lambda r, x: r.op("tern_bce_with_logits_loss", x, r.constant(positive(6, 4)), None, 0),
                             lambda x: F.binary_cross_entropy_with_logits(x, torch.tensor(positive(6, 4))), [X]),
}
with open("/proc/cpuinfo") as cpus:
    ROUGH = set() if "avx512bw" in cpus.read() else {"conv1d", "conv2d", "conv3d"}  # without oneDNN for bf16 PyTorch rounds the sum after every tap
LATER = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "scaled_dot_product_attention"}  # in 16 bits since PyTorch 2.1
MIXED_LATER = {"layer_norm", "group_norm"}        # 16-bit inputs with f32 parameters
AWAY = tern.device("cpu") != "cpu"
# The ops that torch.autocast("cuda") computes differently from torch.autocast("cpu"): AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE of PyTorch 2.11's
# ATen/autocast_mode.h.
FULL_ON_GPUS = set("cumsum exp group_norm interpolate layer_norm log log_softmax pow rms_norm softmax sum sum_dims".split())
KEPT_ON_GPUS = {"adaptive_avg_pool3d", "avg_pool3d", "max_pool3d", *[name for name in CASES if name.startswith("pad_mode")]}
NORMS = {"batch_norm_act", "rms_norm", *MIXED_LATER}  # whose parameters are f32


def public_ops():
    """The ops that the headers declare."""
    found = []
    for name in HEADERS:
        with open(os.path.join(os.environ["TERN_SOURCE"], "include", "tern", name)) as header:
            found += re.findall(r"^TERN_API (?:tern_tensor \*|int )tern_(\w+)\(tern_scope \*scope", header.read(), re.M)
    return [name for name in found if name not in CREATE]


def variants(name):
    """Which of an op's inputs have the region's dtype when it begins: all, none, each alone."""
    count = len(CASES[name][2])
    if name not in NORMS:
        yield [True] * count
    yield [False] * count
    for i in range(1 if name in NORMS else count if count > 1 else 0):
        yield [k == i for k in range(count)]


class Theirs:
    """torch's result and gradients. PyTorch 1.13 has no region of f16: for its dtypes one of bf16 is taken."""

    def __init__(self, name, theirs, arrays, halves, region):
        self.exact = NEW or region == BF16
        kind = KINDS[region] if self.exact else torch.bfloat16
        self.leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
        inputs = [leaf.to(kind) if half else leaf for leaf, half in zip(self.leaves, halves)]
        if not NEW and name in LATER | ROUGH:
            y = theirs(*[t.to(kind).float() for t in inputs]).to(kind)
        elif AWAY and name in FULL_ON_GPUS:
            y = theirs(*[t.float() for t in inputs])
        elif any(halves) and (AWAY and name in KEPT_ON_GPUS or (not NEW and name in MIXED_LATER)):
            y = theirs(*[t.float() for t in inputs])
            y = y.to(kind) if halves[0] else y
        else:
            with torch.autocast("cpu", kind):
                y = theirs(*inputs)
        self.y = y
        self.kind = KINDS[region] if y.dtype == kind else y.dtype

    def gradients(self, dy):
        self.y.float().backward(dy)
        return [None if leaf.grad is None else leaf.grad.numpy() for leaf in self.leaves]


class Ops(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def region(self, run, dtype):
        run.lib.tern_autocast_set(run.scope, dtype)
        run.raise_error()

    def assert_near(self, what, got, want, steps, kind):
        """The error, in steps of the dtype of the computation."""
        error = error_of(got, want)
        self.assertLessEqual(error, steps * torch.finfo(kind).eps, what)

    def beside(self, name, halves, region):
        ours, theirs, arrays = CASES[name]
        what = f"{name}, {['bf16', 'f16'][region - BF16]} for inputs {halves}"
        run = Run("cpu", 1)
        leaves = [run.parameter(a) for a in arrays]
        inputs = [run.op("tern_cast", p, region) if half else p for p, half in zip(leaves, halves)]
        self.region(run, region)
        y = ours(run, *inputs)
        self.region(run, F32)
        want = Theirs(name, theirs, arrays, halves, region)
        self.assertEqual(KINDS[run.lib.tern_tensor_dtype(y)], want.kind, what)
        if want.exact:
            self.compare(run, what, region, leaves, y, want)
        run.close()

    def compare(self, run, what, region, leaves, y, want):
        """In 16 bits results may be rounded to neighbours: a step of the largest. Gradients are made of such, and rounded again."""
        value = run.value(y)
        if not want.y.is_floating_point():
            self.assertTrue(numpy.array_equal(value, want.y.numpy()), what)
            return
        half = want.y.dtype in (torch.bfloat16, torch.float16)
        self.assert_near(what, value, want.y.detach().float().numpy(), 1 if half else 100, want.y.dtype)
        if not want.y.requires_grad:
            return
        dy = torch.randn(want.y.shape, generator=torch.Generator().manual_seed(1))
        run.backward(run.op("tern_cast", y, F32), dy.numpy())
        for i, grad in enumerate(want.gradients(dy)):
            got = run.grad(leaves[i])
            if grad is not None:
                self.assertEqual(got.dtype, numpy.float32, what)
                self.assert_near(f"{what}: gradient {i}", got, grad, 2, KINDS[region])

    def test_every_op(self):
        self.assertEqual(sorted({name.split(",")[0] for name in CASES}), sorted(public_ops()))
        for name in CASES:
            for halves in variants(name):
                for region in (BF16, F16):
                    with self.subTest(op=name, halves=halves, region=region):
                        self.beside(name, halves, region)

    def test_every_op_has_a_row(self):
        with open(os.path.join(os.environ["TERN_SOURCE"], "src", "amp", "autocast.def")) as table:
            rows = re.findall(r"^R\((\w+),", table.read(), re.M)
        self.assertEqual(rows, sorted(rows), "the search goes by the alphabet")
        modes = {"pad_reflect", "pad_replicate"}
        self.assertEqual(rows, sorted(set(public_ops()) - {"sum"} | modes), "every op once; sum is sum_dims, and pad_mode has its modes")

    def test_numbers_that_16_bits_do_not_hold(self):
        """What a program of f16 finds on a GPU; on the CPU PyTorch keeps f16, and overflows."""
        run = Run()
        self.region(run, F16)
        values = [run.op("tern_full", F16, 2, numbers(300, 300), double(value)) for value in (1, 12, 300)]
        two = run.op("tern_full", F32, 0, None, double(2))
        got = [run.op("tern_sum", values[0]), run.op("tern_exp", values[1]), run.op("tern_pow", values[2], two)]
        want = [90000, math.exp(12), 90000]
        for y, number in zip(got, want):
            self.assertEqual(run.dtype(y), numpy.float32 if AWAY else numpy.float16)
            self.assertAlmostEqual(float(run.value(y).max()) / number, 1 if AWAY else numpy.inf, 6)
        run.close()


REGIONS = """
import ctypes
from ops import BF16, F32, Run

run = Run()
group = ctypes.c_void_p(run.lib.check("tern_group_open", None))
ranked = Run(group=group)
for dtype in (BF16, F32, BF16):
    ranked.lib.tern_autocast_set(ranked.scope, dtype)
"""
ON_THE_CPU = """
run = Run("cpu:0")
run.lib.tern_autocast_set(run.scope, BF16)
"""


class Note(unittest.TestCase):
    """What a CPU without bf16 makes of it is said once a job, but not to those who compute on a GPU; oneDNN takes itself for one there."""

    def said_on(self, isa, program):
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", "2", sys.executable, "-c", program]
        path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ["PYTHONPATH"]])
        done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": path, "ONEDNN_MAX_CPU_ISA": isa})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.splitlines()

    def test_avx2(self):
        said = self.said_on("AVX2", REGIONS)
        self.assertEqual(len(said), 0 if AWAY else 1, said)
        if not AWAY:
            self.assertIn("autocast: this machine lacks AVX-512 BF16 or AMX; results in bf16 are right, but no faster than in f32", said[0])

    def test_avx2_after_a_gpu(self):
        said = self.said_on("AVX2", REGIONS + ON_THE_CPU)
        self.assertEqual(["lacks AVX-512 BF16 or AMX" in line for line in said], [True, True], said)  # each rank has a scope without a group


if __name__ == "__main__":
    skips.main()
