"""A module of libtern and one of PyTorch with the same initial weights, called with several inputs: values, and gradients of
parameters and inputs.

    pair = Pair(test, make, lambda: torch.nn.Linear(3, 4), device, dtype)    # both made from seed 7
    pair.compare(what, lambda run, layer, x: run.forward(layer, x), lambda module, x: module(x), [array], tolerance)
"""
import contextlib
import ctypes

import numpy
import torch

import tern
from nets import StateEntry
from ops import F64, Run, error_of

SEED = 7


class Pair:
    def __init__(self, test, make, module, device="cpu", dtype="f", seed=SEED):
        """make(run, rng) returns tern's module, module() torch's. Asserts that both have the same state dict, bit for bit."""
        self.test = test
        self.dtype = dtype
        self.run = Run(device)
        self.lib = self.run.lib
        self.lib.returns(StateEntry, "tern_state_get")
        rng = ctypes.c_void_p(self.lib.check("tern_rng_new", ctypes.c_uint64(seed)))
        self.layer = make(self.run, rng)
        torch.manual_seed(seed)
        self.module = module()
        self.same_state()
        # what is drawn next is the same, too
        test.assertEqual(self.lib.tern_rng_u64(rng) % 2**63, int(torch.empty((), dtype=torch.int64).random_()))
        self.lib.tern_rng_free(rng)
        if dtype == "d":
            self.lib.check("tern_module_cast", self.layer, F64)
        self.module = self.module.double()

    def entries(self):
        return {e.name.decode(): ctypes.c_void_p(e.tensor) for e in (self.lib.tern_state_get(self.layer, i) for i in range(self.lib.tern_state_count(self.layer)))}

    def same_state(self):
        ours = {name: self.run.value(t) for name, t in self.entries().items()}
        theirs = self.module.state_dict()
        self.test.assertEqual(list(ours), list(theirs))
        for name, tensor in theirs.items():
            self.test.assertTrue(numpy.array_equal(ours[name], tensor.numpy()), name)

    def randomise(self, seed=5):
        """New values for all parameters, since many begin with 0 or 1."""
        rng = numpy.random.default_rng(seed)
        parameters = dict(self.module.named_parameters())
        for name, tensor in self.entries().items():
            value = (rng.standard_normal(tuple(parameters[name].shape)) * 0.3 + (name.endswith("norm.weight"))).astype(self.dtype)
            self.run.write(tensor, value)
            parameters[name].data = torch.tensor(value.astype("d"))

    def train(self, on):
        (self.lib.tern_train if on else self.lib.tern_eval)(self.layer)
        self.module.train(on)

    def compare(self, what, ours, theirs, arrays, tolerance, gradient_tolerance=None):
        """ours(run, layer, *tensors) and theirs(module, *tensors); arrays that are not floating point have no gradient."""
        run, test = self.run, self.test
        arrays = [a.astype(self.dtype) if a.dtype.kind == "f" else a for a in arrays]
        tensors = [run.constant(a) for a in arrays]
        for t, a in zip(tensors, arrays):
            if a.dtype.kind == "f":
                self.lib.check("tern_requires_grad_set", t, True)
        inputs = [torch.tensor(a.astype("d") if a.dtype.kind == "f" else a, requires_grad=a.dtype.kind == "f") for a in arrays]
        y, want = ours(run, self.layer, *tensors), theirs(self.module, *inputs)
        error = error_of(run.value(y), want.detach().numpy())
        test.assertLessEqual(error, tolerance, f"{what}: value")
        dy = numpy.random.default_rng(1).standard_normal(tuple(want.shape)).astype(self.dtype)
        self.lib.tern_zero_grad(self.layer)
        self.module.zero_grad(set_to_none=True)
        run.backward(y, dy)
        want.backward(torch.tensor(dy.astype("d")))
        limit = gradient_tolerance or 5 * tolerance
        scale = max(float(p.grad.abs().max()) for p in self.module.parameters() if p.grad is not None)
        parameters = dict(self.module.named_parameters())
        for name, tensor in self.entries().items():
            grad, ours_grad = parameters[name].grad, run.grad(tensor)
            test.assertEqual(grad is None, ours_grad is None, name)
            if grad is not None:  # those of biases of keys are nothing but rounding
                off = float(numpy.abs(ours_grad - grad.numpy()).max(initial=0)) / max(float(grad.abs().max()), 1e-2 * scale)
                test.assertLessEqual(off, limit, f"{what}: gradient of {name}")
        for i, (tensor, x) in enumerate(zip(tensors, inputs)):
            if x.grad is not None:
                test.assertLessEqual(error_of(run.grad(tensor), x.grad.numpy()), limit, f"{what}: gradient of input {i}")
        run.end()

    def close(self):
        self.run.close()


@contextlib.contextmanager
def refused(test, run, text, code=None):
    """The block fails with an error that has this text."""
    with test.assertRaises(tern.TernError) as caught:
        yield
    test.assertIn(text, str(caught.exception))
    if code is not None:
        test.assertEqual(caught.exception.code, code)
    run.end_failed()
