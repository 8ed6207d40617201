"""Clipping compared with torch.nn.utils: norms of several orders, unused parameters, and gradients that are not
finite."""
import ctypes
import math
import unittest

import numpy
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import skips
from optims import EVERY, Pair, two_of_three

ORDERS = (1, 2, 3, 0.5, math.inf)


class Clip(unittest.TestCase):
    def setUp(self):
        self.pairs = [Pair("sgd", seed=8, device=device) for device in ("cpu", "cpu:reference")]

    def tearDown(self):
        for pair in self.pairs:
            pair.close()

    def norm(self, pair, max_norm, order):
        module = ctypes.byref(pair.run.module)
        return float(pair.run.value(pair.run.op("tern_clip_grad_norm", module, ctypes.c_double(max_norm), ctypes.c_double(order))))

    def expect_gradients(self, pair, rtol=1e-6):
        for ours, theirs in zip(pair.ours, pair.theirs):
            got = pair.run.grad(ours)
            if theirs.grad is None:
                self.assertIsNone(got)
            else:
                numpy.testing.assert_allclose(got, theirs.grad.numpy(), rtol=rtol)

    def test_norm(self):
        for pair in self.pairs:
            for step, order in enumerate(ORDERS):
                for max_norm in (0, 0.1, 3, 1e6):
                    pair.backward(two_of_three(step), scale=2)
                    want = clip_grad_norm_(pair.theirs, max_norm, order)
                    self.assertAlmostEqual(self.norm(pair, max_norm, order) / float(want), 1, delta=1e-6)
                    self.expect_gradients(pair)
                    pair.step()

    def test_small_norms(self):
        """Norms so small that the 1e-6 added to them matters."""
        for pair in self.pairs:
            for scale in (1e-8, 1e-6, 1e-4):
                pair.backward(EVERY, scale=scale)
                want = clip_grad_norm_(pair.theirs, scale, 2)
                self.assertAlmostEqual(self.norm(pair, scale, 2) / float(want), 1, delta=1e-6)
                self.expect_gradients(pair)
                pair.step()

    def test_a_norm_that_is_small_enough_changes_no_bit(self):
        for pair in self.pairs:
            pair.backward(EVERY)
            before = [pair.run.grad(p) for p in pair.ours]
            self.norm(pair, 1e6, 2)
            for ours, was in zip(pair.ours, before):
                self.assertTrue(numpy.array_equal(pair.run.grad(ours), was))

    def test_no_gradients(self):
        for pair in self.pairs:
            self.assertEqual(self.norm(pair, 1, 2), 0)

    def test_not_finite(self):
        for pair in self.pairs:
            for order in ORDERS:
                for bad in (math.nan, math.inf):
                    pair.backward([0, 3])
                    run = pair.run
                    c = numpy.array([1, bad, -2], "float32")
                    run.backward(run.op("tern_sum", run.op("tern_mul", pair.ours[1], run.constant(c))))
                    pair.theirs[1].grad = torch.tensor(c)
                    want = float(clip_grad_norm_(pair.theirs, 1.0, order))
                    numpy.testing.assert_equal(self.norm(pair, 1.0, order), want)
                    self.expect_gradients(pair)
                    pair.lib.tern_zero_grad(ctypes.byref(run.module))
                    run.end()
                    pair.backward([0, 1, 3])  # without lasting effect
                    want = float(clip_grad_norm_(pair.theirs, 1.0, order))
                    self.assertAlmostEqual(self.norm(pair, 1.0, order) / want, 1, delta=1e-6)
                    self.expect_gradients(pair)
                    pair.lib.tern_zero_grad(ctypes.byref(run.module))
                    run.end()

    def test_value(self):
        for pair in self.pairs:
            for step, limit in enumerate((0, 0.5, 3)):
                pair.backward(two_of_three(step), scale=2)
                clip_grad_value_([p for p in pair.theirs if p.grad is not None], limit)
                pair.lib.tern_clip_grad_value(pair.run.scope, ctypes.byref(pair.run.module), ctypes.c_double(limit))
                pair.run.raise_error()
                self.expect_gradients(pair, rtol=0)
                pair.step()

    def test_value_of_what_is_not_finite(self):
        for pair in self.pairs:
            c = numpy.array([-math.inf, math.nan, math.inf], "float32")
            pair.run.backward(pair.run.op("tern_sum", pair.run.op("tern_mul", pair.ours[1], pair.run.constant(c))))
            pair.theirs[1].grad = torch.tensor(c)
            clip_grad_value_(pair.theirs, 2)
            pair.lib.tern_clip_grad_value(pair.run.scope, ctypes.byref(pair.run.module), ctypes.c_double(2))
            self.expect_gradients(pair, rtol=0)

    def test_clipped_steps(self):
        for pair in self.pairs:
            for step in range(20):
                pair.backward(two_of_three(step), scale=5)
                clip_grad_norm_(pair.theirs, 1.0)
                self.norm(pair, 1.0, 2)
                pair.step()
                for ours, theirs in zip(pair.ours, pair.theirs):
                    numpy.testing.assert_allclose(pair.run.value(ours), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    skips.main()
