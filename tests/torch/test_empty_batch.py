"""Layers on an empty batch, as on a rank that has run out of samples, compared with torch: shapes, and zero gradients
for the parameters. Batch norm has its own tests."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

import skips
from ops import Run

INT, REAL = ctypes.c_int64, ctypes.c_double
DEVICES = ("cpu", "cpu:reference")
RNG = numpy.random.default_rng(0)


def empty(*rest):
    return numpy.zeros((0, *rest), "f")


def full(*shape):
    return RNG.standard_normal(shape).astype("f")


def op(name, *options):
    return lambda run, *tensors: run.op(name, *tensors, *options)


LAYERS = {
    "conv2d": (op("tern_conv2d", None), F.conv2d, empty(3, 9, 9), full(8, 3, 3, 3), full(8)),
    "conv2d in blocks": (lambda run, x, w: run.op("tern_conv2d", x, w, None, None), F.conv2d, empty(16, 9, 9), full(16, 16, 3, 3)),
    "conv_transpose2d": (op("tern_conv_transpose2d", None, None), F.conv_transpose2d, empty(3, 9, 9), full(3, 8, 3, 3)),
    "max_pool2d": (op("tern_max_pool2d", INT(2), INT(2), None), lambda x: F.max_pool2d(x, 2), empty(3, 8, 8)),
    "avg_pool2d": (op("tern_avg_pool2d", INT(2), INT(2), None), lambda x: F.avg_pool2d(x, 2), empty(3, 8, 8)),
    "max_pool3d": (op("tern_max_pool3d", INT(2), INT(2), INT(2), None), lambda x: F.max_pool3d(x, 2), empty(3, 8, 8, 4)),
    "avg_pool3d": (op("tern_avg_pool3d", INT(2), INT(2), INT(2), None), lambda x: F.avg_pool3d(x, 2), empty(3, 8, 8, 4)),
    "adaptive_avg_pool2d": (op("tern_adaptive_avg_pool2d", INT(2), INT(3)), lambda x: F.adaptive_avg_pool2d(x, (2, 3)), empty(3, 8, 8)),
    "interpolate": (op("tern_interpolate", None), lambda x: F.interpolate(x, scale_factor=2), empty(3, 4, 5)),
    "global_avg_pool": (op("tern_global_avg_pool"), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), empty(3, 8, 8)),
    "linear": (op("tern_linear"), F.linear, empty(5), full(4, 5), full(4)),
    "group_norm": (lambda run, x, w, b: run.op("tern_group_norm", x, INT(2), w, b, REAL(1e-5)), lambda x, w, b: F.group_norm(x, 2, w, b),
                   empty(4, 3), full(4), full(4)),
    "layer_norm": (op("tern_layer_norm", None), lambda x, w, b: F.layer_norm(x, (4,), w, b), empty(4), full(4), full(4)),
    "dropout2d": (op("tern_dropout2d", REAL(0.5)), F.dropout2d, empty(4, 3, 2)),
    "dropout": (op("tern_dropout", REAL(0.5)), F.dropout, empty(4)),
    "softmax": (op("tern_softmax", 1), lambda x: F.softmax(x, 1), empty(4)),
    "flatten": (op("tern_flatten", 1), lambda x: x.flatten(1), empty(3, 8, 8)),
    "relu": (op("tern_relu"), F.relu, empty(3)),
    "add": (op("tern_add"), torch.add, empty(5), full(1, 5)),
}


class EmptyBatch(unittest.TestCase):
    def compare(self, device, ours, theirs, *arrays):
        want_in = [torch.tensor(a, requires_grad=True) for a in arrays]
        want = theirs(*want_in)
        want.sum().backward()
        run = Run(device, 1)
        inputs = [run.parameter(a) for a in arrays]
        y = ours(run, *inputs)
        self.assertEqual(run.shape(y), tuple(want.shape))
        run.backward(run.op("tern_sum", y))
        for p, t in zip(inputs, want_in):
            self.assertEqual(run.grad(p).shape, tuple(t.shape))
            numpy.testing.assert_array_equal(run.grad(p), t.grad.numpy())
        run.close()

    def test_layers(self):
        for device in DEVICES:
            for name, case in LAYERS.items():
                with self.subTest(device=device, layer=name):
                    self.compare(device, *case)

    def test_loss(self):
        """The mean of no loss is NaN, and its gradient is empty like the scores."""
        want = F.cross_entropy(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)).item()
        self.assertTrue(numpy.isnan(want))
        for device in DEVICES:
            run = Run(device, 1)
            scores = run.parameter(empty(4))
            loss = run.op("tern_cross_entropy", scores, run.constant(numpy.zeros(0, "int64")), None)
            self.assertTrue(numpy.isnan(run.value(loss)))
            run.backward(loss)
            self.assertEqual(run.grad(scores).shape, (0, 4))
            run.close()


if __name__ == "__main__":
    skips.main()
