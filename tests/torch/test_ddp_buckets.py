"""The buckets of tern_ddp compared with torch's compute_bucket_assignment_by_size: random models and caps, before and
after the first backward, which rebuilds them."""
import ctypes
import random
import unittest

import numpy
import torch
import torch.distributed as dist

import skips
from nets import Net, library

MODELS = 40


def torch_buckets(counts, opts):
    """The bytes of each bucket for f32 tensors with `counts` elements, in that order."""
    tensors = [torch.empty(count) for count in counts]
    limits = [opts.first_bucket_bytes, opts.bucket_bytes]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    return [sum(4 * counts[i] for i in bucket) for bucket in buckets]


class Buckets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.lib = library()
        cls.group = ctypes.c_void_p(cls.lib.check("tern_group_open", None))

    @classmethod
    def tearDownClass(cls):
        cls.lib.tern_group_close(cls.group)

    def buckets(self, net):
        lib = self.lib
        return [lib.tern_ddp_bucket_bytes(net.ddp, b) for b in range(lib.tern_ddp_bucket_count(net.ddp))]

    def compare(self, sizes, opts):
        net = Net.mlp(self.lib, sizes, group=self.group, ddp_opts=opts)
        state = net.state()
        self.assertEqual(self.buckets(net), torch_buckets([p.size for p in reversed(state.values())], opts))
        net.step(numpy.ones((2, sizes[0]), numpy.float32), numpy.zeros(2, numpy.int64))
        ready = [self.lib.tern_ddp_ready_name(net.ddp, i).decode() for i in range(len(state))]
        self.assertEqual(self.buckets(net), torch_buckets([state[name].size for name in ready], opts))
        net.close()

    def test_random_models(self):
        dice = random.Random(3)
        for _ in range(MODELS):
            sizes = [dice.randint(1, 40) for _ in range(dice.randint(2, 7))]
            opts = self.lib.tern_ddp_defaults()
            opts.first_bucket_bytes = dice.choice((1, 64, 700, 3000, 1 << 20))
            opts.bucket_bytes = dice.choice((1, 100, 2048, 9000, 2 << 20))
            with self.subTest(sizes=sizes, first=opts.first_bucket_bytes, cap=opts.bucket_bytes):
                self.compare(sizes, opts)


if __name__ == "__main__":
    skips.main()
