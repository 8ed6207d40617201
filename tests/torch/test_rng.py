"""The generator, its distributions and the samplers compared with PyTorch, bit for bit."""
import ctypes
import random
import unittest

import numpy as np
import torch
from torch.utils.data import DistributedSampler

import skips
import tern

lib = tern.Library()

SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 5, 2**64 - 1]


class DistributedOpts(ctypes.Structure):
    """tern_distributed_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("shuffle", ctypes.c_bool),
        ("seed", ctypes.c_uint64),
        ("drop_last", ctypes.c_bool),
        ("pad", ctypes.c_bool),
        ("block", ctypes.c_int64),
    ]


lib.returns(DistributedOpts, "tern_distributed_defaults")


class Rng:
    """A tern_rng with torch.Generator's methods."""

    def __init__(self, seed):
        self.handle = ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(seed)))

    def __del__(self):
        lib.tern_rng_free(self.handle)

    def draw(self, verb, n, low, high):
        out = np.empty(n, np.float32)
        function = getattr(lib, f"tern_rng_{verb}")
        function(self.handle, tern.pointer(out), ctypes.c_size_t(n), ctypes.c_double(low), ctypes.c_double(high))
        return out

    def permutation(self, n):
        out = np.empty(n, np.int64)
        lib.tern_rng_permutation(self.handle, tern.pointer(out), ctypes.c_int64(n))
        return out


def pair(seed):
    return Rng(seed), torch.Generator().manual_seed(seed if seed < 2**63 else seed - 2**64)


class Draws(unittest.TestCase):
    def same(self, got, want, what):
        np.testing.assert_array_equal(got.view(np.uint32), want.numpy().view(np.uint32), err_msg=str(what))

    def test_uniform(self):
        for seed in SEEDS:
            ours, theirs = pair(seed)
            for n in (1, 5, 623, 624, 1000):
                for low, high in ((0, 1), (-0.3, 0.7), (1e-3, 2.5e3), (-1 / 3, 1 / 3)):
                    want = torch.empty(n).uniform_(low, high, generator=theirs)
                    self.same(ours.draw("uniform", n, low, high), want, (seed, n, low, high))

    def test_normal(self):
        """Below 16 elements, whole blocks, and a tail; one generator through all of them, so that the cached half of a
        pair is carried over too."""
        for seed in SEEDS:
            ours, theirs = pair(seed)
            for n in (1, 2, 3, 15, 16, 17, 31, 32, 33, 5, 1000, 4097, 7):
                for mean, std in ((0, 1), (0.5, 0.02), (-3, 7.7)):
                    want = torch.empty(n).normal_(mean, std, generator=theirs)
                    self.same(ours.draw("normal", n, mean, std), want, (seed, n, mean, std))

    def test_normal_over_many_values(self):
        ours, theirs = pair(7)
        self.same(ours.draw("normal", 1 << 22, 0, 1), torch.empty(1 << 22).normal_(generator=theirs), "2^22")

    def test_permutation(self):
        for seed in SEEDS:
            ours, theirs = pair(seed)
            for n in (0, 1, 2, 3, 10, 100, 623, 624, 625, 60000):
                self.assertEqual(ours.permutation(n).tolist(), torch.randperm(n, generator=theirs).tolist(), (seed, n))

    def test_integers(self):
        ours, theirs = pair(9)
        mask = 2**63 - 1
        want = [int(torch.empty((), dtype=torch.int64).random_(generator=theirs)) for _ in range(100)]
        self.assertEqual([lib.tern_rng_u64(ours.handle) & mask for _ in range(100)], want)

    def test_seed_restarts_the_stream(self):
        ours, theirs = pair(3)
        ours.draw("normal", 3, 0, 1)  # leaves half a pair behind
        lib.tern_rng_seed(ours.handle, ctypes.c_uint64(3))
        self.same(ours.draw("normal", 3, 0, 1), torch.empty(3).normal_(generator=theirs), "seed 3")


def indices(n, ranks, rank, epoch, **options):
    opts = lib.tern_distributed_defaults()
    for name, value in options.items():
        setattr(opts, name, value)
    sampler = ctypes.c_void_p(
        lib.check("tern_distributed_sampler_new", ctypes.c_int64(n), ranks, rank, ctypes.byref(opts))
    )
    lib.tern_sampler_epoch_set(sampler, ctypes.c_int64(epoch))
    out = np.empty(lib.tern_sampler_length(sampler), np.int64)
    lib.check("tern_sampler_indices", sampler, tern.pointer(out))
    lib.tern_sampler_free(sampler)
    return out.tolist()


class Samplers(unittest.TestCase):
    def test_distributed_equals_torch(self):
        draw = random.Random(1)
        for _ in range(1000):
            n, ranks = draw.choice((draw.randint(1, 9), draw.randint(1, 300))), draw.randint(1, 17)
            epoch, seed = draw.randint(0, 1000), draw.randint(0, 2**33)
            shuffle, drop_last = draw.random() < 0.7, draw.random() < 0.4
            rank = draw.randrange(ranks)
            theirs = DistributedSampler(range(n), ranks, rank, shuffle, seed, drop_last)
            theirs.set_epoch(epoch)
            ours = indices(n, ranks, rank, epoch, shuffle=shuffle, seed=seed, drop_last=drop_last)
            self.assertEqual(ours, list(theirs), (n, ranks, rank, epoch, seed, shuffle, drop_last))

    def test_without_padding_every_sample_comes_once(self):
        for n in (0, 1, 2, 7, 10, 100):
            for ranks in (1, 2, 3, 8, 13):
                for shuffle in (False, True):
                    union = sum((indices(n, ranks, r, 4, shuffle=shuffle, pad=False) for r in range(ranks)), [])
                    self.assertEqual(sorted(union), list(range(n)), (n, ranks, shuffle))

    def test_random_equals_randperm_of_seed_plus_epoch(self):
        sampler = ctypes.c_void_p(lib.check("tern_random_sampler_new", ctypes.c_int64(100), ctypes.c_uint64(11)))
        out = np.empty(100, np.int64)
        for epoch in range(3):
            lib.tern_sampler_epoch_set(sampler, ctypes.c_int64(epoch))
            lib.check("tern_sampler_indices", sampler, tern.pointer(out))
            theirs = torch.randperm(100, generator=torch.Generator().manual_seed(11 + epoch))
            self.assertEqual(out.tolist(), theirs.tolist())
        lib.tern_sampler_free(sampler)


if __name__ == "__main__":
    skips.main()
