"""tern_summary's table compared with the same model in torch: names, shapes, parameters, totals."""
import ctypes
import os
import tempfile
import unittest

import numpy
import torch

import skips
import tern
from ops import Module, Run


def printed(call):
    """The output of `call` on file descriptor 1, from any code."""
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    saved = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            call()
            libc.fflush(None)
        finally:
            os.dup2(saved, 1)
            os.close(saved)
        file.seek(0)
        return file.read().decode()


def torch_lines(net, x):
    """(name, shape, own parameters) of each layer in the order of calls."""
    lines = []
    for name, module in net.named_modules():
        if not list(module.children()):
            count = sum(p.numel() for p in module.parameters())
            module.register_forward_hook(lambda m, i, y, name=name, count=count: lines.append((name, tuple(y.shape), count)))
    net.eval()
    with torch.no_grad():
        net(x)
    return lines


class SummaryTest(unittest.TestCase):
    def setUp(self):
        self.run_ = Run("cpu")
        lib = self.run_.lib
        self.rng = ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(0)))

    def tearDown(self):
        self.run_.lib.tern_rng_free(self.rng)
        self.run_.close()

    def sequential(self, *children):
        lib = self.run_.lib
        net = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for child in children:
            lib.check("tern_sequential_add", net, child)
        return net

    def new(self, name, *args):
        return ctypes.c_void_p(self.run_.lib.check(name, *(ctypes.c_int64(a) if isinstance(a, int) else a for a in args)))

    def test_table(self):
        lib = self.run_.lib
        inner = self.sequential(self.new("tern_conv2d_new", 3, 16, 3, 3, None, self.rng), self.new("tern_batch_norm2d_new", 16, None), self.new("tern_relu_new"))
        net = self.sequential(
            inner,
            self.new("tern_max_pool2d_new", 2, 2, None),
            self.new("tern_avg_pool2d_new", 3, 3, None),
            self.new("tern_flatten_new"),
            self.new("tern_linear_new", 16 * 5 * 4, 7, None, self.rng),
        )
        nn = torch.nn
        theirs = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), nn.MaxPool2d(2), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(320, 7)
        )
        shape = (2, 3, 32, 28)
        want = torch_lines(theirs, torch.zeros(shape))
        text = printed(lambda: lib.check("tern_summary", net, self.run_.device, 4, (ctypes.c_int64 * 4)(*shape)))
        lines = text.splitlines()
        self.assertEqual(len(lines), len(want) + 2, text)
        total_bytes = 0
        for line, (name, size, count) in zip(lines[1:], want):
            self.assertEqual(line.split()[0], name)
            self.assertIn("(" + ", ".join(map(str, size)) + ")", line)
            total_bytes += 4 * int(numpy.prod(size))
            self.assertEqual(line.split()[-2:], [str(count), f"{4 * numpy.prod(size) / 1e6:.3f}"])
        parameters = sum(p.numel() for p in theirs.parameters())
        self.assertEqual(lines[-1].split(), ["total", str(parameters), f"{total_bytes / 1e6:.3f}"])
        lib.tern_module_free(net)

    def test_an_embedding_is_sent_an_index(self):
        net = self.sequential(self.sequential(self.new("tern_embedding_new", 10, 4, None, self.rng)), self.new("tern_linear_new", 4, 3, None, self.rng))
        text = printed(lambda: self.run_.lib.check("tern_summary", net, self.run_.device, 2, (ctypes.c_int64 * 2)(2, 5)))
        self.assertEqual([line.split()[0] for line in text.splitlines()], ["layer", "0.0", "1", "total"])
        self.assertIn("(2, 5, 4)", text)
        self.assertIn("(2, 5, 3)", text)
        self.run_.lib.tern_module_free(net)

    def test_columns_are_as_wide_as_names_and_kinds(self):
        """The lines are of one length, also with a kind of 19 characters."""
        net = self.sequential(self.new("tern_multihead_attention_new", 4, 2, None, self.rng), self.new("tern_relu_new"))
        text = printed(lambda: self.run_.lib.check("tern_summary", net, self.run_.device, 2, (ctypes.c_int64 * 2)(5, 4)))
        self.assertEqual([line.split()[1] for line in text.splitlines()[1:-1]], ["linear", "multihead_attention", "relu"])
        self.assertEqual(len({len(line) for line in text.splitlines()}), 1, text)
        self.run_.lib.tern_module_free(net)

    def test_leaves_mode_and_statistics_alone(self):
        lib = self.run_.lib
        bn = self.new("tern_batch_norm2d_new", 4, None)
        mean = ctypes.c_void_p(lib.tern_state_find(bn, b"running_mean"))
        self.run_.write(mean, numpy.ones(4, "f"))
        for mode, training in (("tern_train", True), ("tern_eval", False)):
            getattr(lib, mode)(bn)
            printed(lambda: lib.check("tern_summary", bn, self.run_.device, 4, (ctypes.c_int64 * 4)(2, 4, 3, 3)))
            self.assertEqual(Module.from_address(bn.value).training, training)
        self.assertTrue((self.run_.value(mean) == 1).all())
        lib.tern_module_free(bn)

    def test_wrong_shape_is_an_error_and_prints_nothing(self):
        lib = self.run_.lib
        bn = self.new("tern_batch_norm2d_new", 4, None)

        def call():
            with self.assertRaises(tern.TernError) as caught:
                lib.check("tern_summary", bn, self.run_.device, 4, (ctypes.c_int64 * 4)(2, 5, 3, 3))
            self.assertIn("weight is (4) but input is (2, 5, 3, 3)", str(caught.exception))

        self.assertEqual(printed(call), "")
        lib.tern_module_free(bn)


if __name__ == "__main__":
    skips.main()
