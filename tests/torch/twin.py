"""A model of libtern and one of PyTorch that take each other's files: the same state dict, results, gradients, running statistics.

PyTorch computes in f64. What is off by more than ENOUGH is compared with PyTorch in f32, too: how far that is off is what f32 costs in
this net. Where that does not explain a gradient it may be a ReLU or a maximum that rounding decides: how far such go is what f64
gradients move by under noise of f32's size.
"""
import copy
import ctypes
import functools
import os
import tempfile

import numpy
import torch

from nets import Net, library
from ops import error_of


ENOUGH = 2e-5
NOISE = 4e-7  # relative to the deviation of a convolution's result: the f32 error of sums of hundreds of products
DRAWS = 12  # few channels have two values that are nearly one, but those go far


class Twin:
    def __init__(self, test, make, module, seed=7, lib=None):
        """`make(lib, rng)` returns tern's module; the torch module gives its weights and its batch norms' statistics."""
        self.test = test
        self.lib = lib or library()
        self.net = Net(self.lib, lambda rng: make(self.lib, rng), seed=seed, threads=2)
        self.module = module
        test.addCleanup(self.net.close)

    # ---- files ----

    def exchange(self):
        """torch's file loads into tern; what tern then saves loads into torch with strict=True, with the same bits."""
        lib, test = self.lib, self.test
        for name, tensor in self.module.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = (os.path.join(folder, name) for name in ("torch.pth", "tern.pth"))
            torch.save(self.module.state_dict(), theirs)
            state = ctypes.c_void_p(lib.check("tern_load", theirs.encode(), None))
            lib.check("tern_module_state_dict_load", self.net.module, state, None, None)
            lib.tern_object_free(state)
            state = ctypes.c_void_p(lib.check("tern_module_state_dict", self.net.module))
            lib.check("tern_save", ours.encode(), state)
            lib.tern_object_free(state)
            back = torch.load(ours)
        wanted = self.module.state_dict()
        test.assertEqual(list(back), list(wanted))
        for name, tensor in wanted.items():
            test.assertTrue(torch.equal(back[name], tensor), name)
        self.module.load_state_dict(back, strict=True)
        test.assertEqual(lib.tern_module_element_count(self.net.module), sum(p.numel() for p in self.module.parameters()))

    # ---- steps ----

    def result(self, x, dys=None):
        """tern's results on x and, for dys, the gradients of sum(y * dy) over all results."""
        net, lib = self.net, self.lib
        ys = [ctypes.c_void_p(y) for y in self.results(net.tensor(x))]
        net.raise_error()
        values = [net.read(y.value) for y in ys]
        grads = None
        if dys:
            loss = None
            for y, dy in zip(ys, dys):
                part = ctypes.c_void_p(lib.tern_sum(net.scope, ctypes.c_void_p(lib.tern_mul(net.scope, y, net.tensor(dy)))))
                loss = part if loss is None else ctypes.c_void_p(lib.tern_add(net.scope, loss, part))
            lib.tern_backward(net.scope, loss)
            net.raise_error()
            grads = net.grads()
        lib.check("tern_scope_end", net.scope)
        return values, grads

    def results(self, x):
        """tern's results of one forward; a model with several results overrides this."""
        return [self.lib.tern_forward(self.net.module, self.net.scope, x)]

    def wanted(self, module, x):
        """torch's results."""
        return [module(x)]

    def torch_step(self, dtype, x, dys):
        module = copy.deepcopy(self.module).to(dtype)
        with torch.set_grad_enabled(dys is not None):
            ys = self.wanted(module, torch.tensor(x).to(dtype))
        if dys:
            sum((y * torch.tensor(dy).to(dtype)).sum() for y, dy in zip(ys, dys)).backward()
        state = {name: t.numpy() for name, t in module.state_dict().items() if "running" in name or "tracked" in name}
        grads = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
        return [y.detach().numpy() for y in ys], grads, state

    def moved(self, x, dys, grads, enough):
        """By how much the gradients move, at most over some draws, where noise goes onto every layer's products. `enough`: by name, of which
        gradients, and by how much; no more is drawn once all of them have moved so far."""
        most, draw = dict.fromkeys(enough, 0.0), 0
        while draw < DRAWS and any(most[name] < least for name, least in enough.items()):
            generator = torch.Generator().manual_seed(draw)
            noise = lambda layer, _, y: y + NOISE * y.std() * torch.randn(y.shape, dtype=y.dtype, generator=generator)
            layers = [layer for layer in self.module.modules() if getattr(layer, "weight", None) is not None and layer.weight.ndim > 1]
            hooks = [layer.register_forward_hook(noise) for layer in layers]
            _, noisy, _ = self.torch_step(torch.float64, x, dys)
            for hook in hooks:
                hook.remove()
            most = {name: max(most[name], error_of(noisy[name], grads[name])) for name in most}
            draw += 1
        return most

    def compare_gradients(self, x, dys, ours, grads, f32, slack):
        """Like `close`; a gradient that is further off may be off by twice the effect of noise."""
        off = {name: error_of(ours[name], grad) for name, grad in grads.items()}
        odd = [name for name in grads if not (off[name] <= ENOUGH or off[name] <= slack * error_of(f32()[name], grads[name]))]
        most = self.moved(x, dys, grads, {name: off[name] / 2 for name in odd})
        for name in odd:
            theirs = error_of(f32()[name], grads[name])
            self.test.assertLessEqual(off[name], 2 * most[name], f"gradient of {name}: torch in f32 is off by {theirs:.2e}")

    def close(self, what, got, want, f32, slack):
        """tern may be off by ENOUGH, or by `slack` times the error of `f32()`, torch's result in f32."""
        error = error_of(got, want)
        if not error <= ENOUGH:  # nor is NaN
            theirs = error_of(f32(), want)
            self.test.assertLessEqual(error, slack * theirs, f"{what}: off by {error:.2e}, torch in f32 by {theirs:.2e}")

    def compare(self, shape, slack=8, seed=3):
        """Evaluation, then training: results, gradients of all parameters, statistics."""
        rng = numpy.random.default_rng(seed)
        x = rng.standard_normal(shape).astype("float32")
        self.lib.tern_eval(self.net.module)
        self.module.eval()
        want, _, _ = self.torch_step(torch.float64, x, None)
        evaluated = functools.cache(lambda: self.torch_step(torch.float32, x, None))
        got, _ = self.result(x)
        self.test.assertEqual([y.shape for y in got], [y.shape for y in want])
        for i, y in enumerate(got):
            self.close(f"result {i} in evaluation", y, want[i], lambda i=i: evaluated()[0][i], slack)
        self.lib.tern_train(self.net.module)
        self.lib.tern_zero_grad(self.net.module)
        self.module.train()
        dys = [rng.standard_normal(y.shape).astype("float32") for y in want]
        want, grads, state = self.torch_step(torch.float64, x, dys)
        trained = functools.cache(lambda: self.torch_step(torch.float32, x, dys))
        got, ours = self.result(x, dys)
        for i, y in enumerate(got):
            self.close(f"result {i} in training", y, want[i], lambda i=i: trained()[0][i], slack)
        self.test.assertEqual({n for n, g in ours.items() if g is not None}, set(grads))
        self.compare_gradients(x, dys, ours, grads, lambda: trained()[1], slack)
        after = {e.name.decode(): self.net.read(e.tensor) for e in self.net.entries() if e.is_buffer}
        for name, value in state.items():
            self.close(name, after[name], value, lambda name=name: trained()[2][name], slack)
