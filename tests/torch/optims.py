"""The same parameters in a module of tern and as torch tensors, each side with its optimizer.

    pair = Pair("adam", lr=0.1, amsgrad=True)            # one of KINDS; options by torch's names
    pair = Pair("sgd", groups={(1, 3): dict(lr=1)})      # parameters 1 and 3 in a group of their own
    pair.backward([0, 2])                                # these get a random gradient, the same on both sides
    pair.step()
    pair.error()
"""
import ctypes

import numpy
import torch

from nets import SgdOpts
from ops import Run

SHAPES = [((5, 7), "float32"), ((3,), "float32"), ((4, 2), "float64"), ((33, 17), "float32"), ((), "float64"), ((6,), "float64")]
EVERY = range(len(SHAPES))
STEPS = 20


class AdamOpts(ctypes.Structure):
    """tern_adam_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("amsgrad", ctypes.c_bool),
        ("maximize", ctypes.c_bool),
    ]


class RmspropOpts(ctypes.Structure):
    """tern_rmsprop_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lr", ctypes.c_double),
        ("alpha", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("centered", ctypes.c_bool),
        ("maximize", ctypes.c_bool),
    ]


class AdagradOpts(ctypes.Structure):
    """tern_adagrad_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lr", ctypes.c_double),
        ("lr_decay", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("initial_accumulator_value", ctypes.c_double),
        ("maximize", ctypes.c_bool),
    ]


KINDS = {
    "sgd": (SgdOpts, torch.optim.SGD),
    "adam": (AdamOpts, torch.optim.Adam),
    "adamw": (AdamOpts, torch.optim.AdamW),
    "rmsprop": (RmspropOpts, torch.optim.RMSprop),
    "adagrad": (AdagradOpts, torch.optim.Adagrad),
}
ParameterFn = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)


class Pair:
    def __init__(self, kind, seed=5, device="cpu", groups={}, **options):
        self.kind = kind
        self.rng = numpy.random.default_rng(seed)
        self.run = Run(device, 1)
        self.lib = self.run.lib
        self.lib.returns(ctypes.c_void_p, f"tern_{kind}_new")
        self.lib.returns(KINDS[kind][0], f"tern_{kind}_defaults")
        self.lib.returns(ctypes.c_double, "tern_optim_lr_get")
        arrays = [numpy.asarray(self.rng.standard_normal(shape), dtype) for shape, dtype in SHAPES]
        self.ours = [self.run.parameter(a) for a in arrays]
        self.theirs = [torch.nn.Parameter(torch.tensor(a)) for a in arrays]
        make = ctypes.byref(self.run.module), ctypes.byref(self.opts(options))
        self.optim = ctypes.c_void_p(self.lib.check(f"tern_{kind}_new", *make))
        for members, changed in groups.items():
            self.add_group(members, {**options, **changed})
        self.torch_optim = self.torch_optimizer(groups, options)

    def opts(self, options):
        opts = getattr(self.lib, f"tern_{self.kind}_defaults")()
        for name, value in options.items():
            if name == "betas":
                opts.beta1, opts.beta2 = value
            else:
                setattr(opts, name, value)
        return opts

    def add_group(self, members, options):
        names = [f"p{i}".encode() for i in members]
        belongs = ParameterFn(lambda name, parameter, ctx: name in names)
        add = f"tern_{'adam' if self.kind == 'adamw' else self.kind}_group_add"
        return self.lib.check(add, self.optim, belongs, None, ctypes.byref(self.opts(options)))

    def torch_optimizer(self, groups, options):
        """torch's groups in tern's order: first what no other group took."""
        taken = [i for members in groups for i in members]
        split = [dict(params=[self.theirs[i] for i in EVERY if i not in taken])]
        split += [dict(params=[self.theirs[i] for i in members], **changed) for members, changed in groups.items()]
        return KINDS[self.kind][1](split, **{"lr": self.opts({}).lr, **options})

    def backward(self, used, scale=1.0):
        """The gradient of sum(p * c) is c."""
        self.torch_optim.zero_grad(set_to_none=True)
        run = self.run
        for i in used:
            c = numpy.asarray(scale * self.rng.standard_normal(SHAPES[i][0]), SHAPES[i][1])
            run.backward(run.op("tern_sum", run.op("tern_mul", self.ours[i], run.constant(c))))
            self.theirs[i].grad = torch.tensor(c)

    def step(self):
        self.lib.tern_optim_step(self.optim, self.run.scope)
        self.run.end()
        self.torch_optim.step()

    def lr(self, group=0):
        return self.lib.tern_optim_lr_get(self.optim, group)

    def error(self):
        """The largest difference in units of the last place of 1, or of the value where that is larger."""
        worst = 0.0
        for ours, theirs in zip(self.ours, self.theirs):
            got, want = self.run.value(ours), theirs.detach().numpy()
            unit = numpy.finfo(want.dtype).eps * numpy.maximum(1, numpy.abs(want))
            worst = max(worst, float((numpy.abs(got - want) / unit).max()))
        return worst

    def close(self):
        self.lib.tern_optim_free(self.optim)
        self.run.close()


def train_beside(test, kind, used=lambda step: EVERY, **options):
    """STEPS steps in which the parameters used(step) have a gradient."""
    pair = Pair(kind, **options)
    try:
        for step in range(STEPS):
            pair.backward(used(step))
            pair.step()
            test.assertLessEqual(pair.error(), 4 * (step + 1), f"{options} step {step}")
    finally:
        pair.close()


def two_of_three(step):
    """Every parameter is without gradient in every third step, not all in the same."""
    return [i for i in EVERY if (step + i) % 3]
