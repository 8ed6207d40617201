"""The same parameters in a tern module and as torch tensors, each side with its optimizer.

    pair = Pair("adam", lr=0.1, amsgrad=True)            # one of KINDS; options by torch's names
    pair = Pair("sgd", larc=dict(clip=False))            # with LARC; zeros=[2]: parameter 2 is 0; large=True: one is
    pair = Pair("sgd", groups={(1, 3): dict(lr=1)})      # parameters 1 and 3 in a group of their own
    pair.backward([0, 2])                                # these get a random gradient, the same on both sides
    pair.step()
    pair.error()
"""
import ctypes
import math

import numpy
import torch

from nets import SgdOpts
from ops import Run, is_repeated

SHAPES = [((5, 7), "float32"), ((3,), "float32"), ((4, 2), "float64"), ((33, 17), "float32"), ((), "float64"), ((6,), "float64")]
EVERY = range(len(SHAPES))
STEPS = 20
FEW = 9  # of every combination of options: two_of_three leaves each parameter out three times


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


class LambOpts(ctypes.Structure):
    """tern_lamb_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("max_grad_norm", ctypes.c_double),
        ("bias_correction", ctypes.c_bool),
        ("grad_averaging", ctypes.c_bool),
        ("adam_w_mode", ctypes.c_bool),
        ("use_nvlamb", ctypes.c_bool),
    ]


class LarcOpts(ctypes.Structure):
    """tern_larc_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("trust_coefficient", ctypes.c_double),
        ("clip", ctypes.c_bool),
        ("eps", ctypes.c_double),
    ]


def norm_of(tensors):
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


class Lamb(torch.optim.Optimizer):
    """LAMB by the formulas of apex's FusedLAMB, but with a separate step count per parameter."""

    def __init__(self, params, adam_w_mode=True, use_nvlamb=False, **options):
        defaults = dict(lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
        defaults.update(grad_averaging=True, max_grad_norm=1.0)
        self.adam_w_mode, self.use_nvlamb = adam_w_mode, use_nvlamb
        super().__init__(params, {**defaults, **options})

    @torch.no_grad()
    def step(self):
        norm = norm_of(p.grad for group in self.param_groups for p in group["params"] if p.grad is not None)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(group, p, norm)

    def update(self, group, p, norm):
        state, (beta1, beta2), decay = self.state[p], group["betas"], group["weight_decay"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
        state["step"] += 1
        g = p.grad / max(1.0, norm / group["max_grad_norm"])
        if not self.adam_w_mode:
            g = g + decay * p
        state["exp_avg"].mul_(beta1).add_(g, alpha=1 - beta1 if group["grad_averaging"] else 1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
        unbias1, unbias2 = (1 - beta ** int(state["step"]) if group["bias_correction"] else 1 for beta in (beta1, beta2))
        update = state["exp_avg"] / unbias1 / ((state["exp_avg_sq"] / unbias2).sqrt() + group["eps"])
        if self.adam_w_mode:
            update = update + decay * p
        norms = norm_of([p]), norm_of([update])
        ratio = norms[0] / norms[1] if all(norms) and (self.use_nvlamb or decay != 0) else 1
        p.sub_(group["lr"] * ratio * update)


class Larc:
    """apex's LARC around an optimizer."""

    def __init__(self, optim, trust_coefficient=0.02, clip=True, eps=1e-8):
        self.optim, self.trust_coefficient, self.clip, self.eps = optim, trust_coefficient, clip, eps
        self.param_groups, self.zero_grad = optim.param_groups, optim.zero_grad

    def step(self):
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.adapt(group, p)
            group["weight_decay"] = 0
        self.optim.step()
        for group, decay in zip(self.param_groups, decays):
            group["weight_decay"] = decay

    @torch.no_grad()
    def adapt(self, group, p):
        norms, decay = (norm_of([p]), norm_of([p.grad])), group["weight_decay"]
        if not all(norms):
            return
        rate = self.trust_coefficient * norms[0] / (norms[1] + norms[0] * decay + self.eps)
        if self.clip:
            rate = min(rate / group["lr"], 1)
        p.grad.add_(p, alpha=decay).mul_(rate)


KINDS = {
    "sgd": (SgdOpts, torch.optim.SGD),
    "adam": (AdamOpts, torch.optim.Adam),
    "adamw": (AdamOpts, torch.optim.AdamW),
    "rmsprop": (RmspropOpts, torch.optim.RMSprop),
    "adagrad": (AdagradOpts, torch.optim.Adagrad),
    "lamb": (LambOpts, Lamb),
}
ParameterFn = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)


class Pair:
    def __init__(self, kind, seed=5, device="cpu", groups={}, larc=None, zeros=(), threads=1, large=False, **options):
        self.kind = kind
        self.shapes = [((257, 401), SHAPES[0][1]), *SHAPES[1:]] if large else SHAPES
        self.rng = numpy.random.default_rng(seed)
        self.run = Run(device, threads)
        self.lib = self.run.lib
        self.lib.returns(KINDS[kind][0], f"tern_{kind}_defaults")
        arrays = [numpy.asarray(self.rng.standard_normal(shape), dtype) for shape, dtype in self.shapes]
        for i in zeros:
            arrays[i] *= 0
        self.ours = [self.run.parameter(a) for a in arrays]
        self.theirs = [torch.nn.Parameter(torch.tensor(a)) for a in arrays]
        make = ctypes.byref(self.run.module), ctypes.byref(self.opts(options))
        self.optim = ctypes.c_void_p(self.lib.check(f"tern_{kind}_new", *make))
        for members, changed in groups.items():
            self.add_group(members, {**options, **changed})
        self.torch_optim = self.torch_optimizer(groups, options)
        if larc is not None:
            self.add_larc(larc)

    def add_larc(self, options):
        self.lib.returns(LarcOpts, "tern_larc_defaults")
        opts = self.lib.tern_larc_defaults()
        for name, value in options.items():
            setattr(opts, name, value)
        self.lib.check("tern_optim_larc", self.optim, ctypes.byref(opts))
        self.torch_optim = Larc(self.torch_optim, **options)

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
        """torch's groups in tern's order: first the parameters of no other group."""
        taken = [i for members in groups for i in members]
        split = [dict(params=[self.theirs[i] for i in EVERY if i not in taken])]
        split += [dict(params=[self.theirs[i] for i in members], **changed) for members, changed in groups.items()]
        return KINDS[self.kind][1](split, **{"lr": self.opts({}).lr, **options})

    def backward(self, used, scale=1.0):
        """The gradient of sum(p * c) is c."""
        self.torch_optim.zero_grad(set_to_none=True)
        run = self.run
        for i in used:
            c = numpy.asarray(scale * self.rng.standard_normal(self.shapes[i][0]), self.shapes[i][1])
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


def train_beside(test, kind, used=lambda step: EVERY, steps=STEPS, **options):
    """So many steps, in which the parameters used(step) have a gradient."""
    if is_repeated(options.get("device")):
        return
    pair = Pair(kind, **options)
    try:
        for step in range(steps):
            pair.backward(used(step))
            pair.step()
            test.assertLessEqual(pair.error(), 4 * (step + 1), f"{options} step {step}")
    finally:
        pair.close()


def two_of_three(step):
    """Every parameter lacks a gradient in every third step, not all in the same one."""
    return [i for i in EVERY if (step + i) % 3]


class EveryCombination:
    """The tests of an optimizer of one `kind` with all `combinations` of its options."""

    def test_every_combination(self):
        for options in self.combinations():
            train_beside(self, self.kind, steps=FEW, **options)

    def test_a_parameter_without_gradient_is_passed_by(self):
        for options in self.combinations():
            train_beside(self, self.kind, two_of_three, FEW, **options)

    def test_reference(self):
        for options in self.combinations():
            train_beside(self, self.kind, two_of_three, FEW, device="cpu:reference", **options)
