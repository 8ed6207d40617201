"""Initialisers compared with torch.nn.init, bit for bit: values, and the generator's state afterwards."""
import ctypes
import math
import random
import unittest
import warnings

import numpy as np
import torch

import skips
import tern
from ops import Run

SEEDS = [0, 1, 2024, 2**32 - 1]
# Below 16 elements, whole blocks of 16, tails, and up to 6 dimensions.
MATRICES = [(1, 1), (3, 5), (4, 4), (2, 8), (16, 1), (1, 33), (7, 5), (5, 7), (40, 40), (64, 100), (100, 64), (300, 129)]
KERNELS = [(2, 3, 2), (8, 4, 3), (6, 4, 3, 3), (1, 1, 1, 1), (5, 2, 3, 4, 2), (4, 6, 1, 1, 5), (3, 2, 2, 1, 2, 3)]
SHAPES = [(), (1,), (15,), (16,), (50,)] + MATRICES + KERNELS

E_DTYPE, E_SHAPE, E_RANGE = -3, -2, -7
LINEAR, TANH, RELU, LEAKY_RELU, SELU = range(5)
NAMES = ["linear", "tanh", "relu", "leaky_relu", "selu"]
FAN_IN, FAN_OUT = range(2)

run = Run()
lib = run.lib
real, integer = ctypes.c_double, ctypes.c_int64


def parameter(shape, dtype=np.float32):
    return run.parameter(np.full(shape, 7, dtype))


class InitTest(unittest.TestCase):
    def same_bits(self, got, want, what):
        got, want = got.view(np.uint32), want.numpy().view(np.uint32)
        if got.shape != want.shape or (got != want).any():  # assert_array_equal takes long
            np.testing.assert_array_equal(got, want, err_msg=str(what))

    def same_state(self, rng, what):
        """Compares the stored half of a pair of normals, then the engine."""
        normals = np.empty(1, np.float32)
        lib.tern_rng_normal(rng, tern.pointer(normals), ctypes.c_size_t(1), real(0), real(1))
        self.same_bits(normals, torch.empty(1).normal_(), ("normal after", what))
        want = int(torch.empty((), dtype=torch.int64).random_())
        self.assertEqual(lib.tern_rng_u64(rng) & (2**63 - 1), want, ("draw after", what))

    def check(self, verb, shape, args, theirs, seeds=SEEDS):
        """tern_init_<verb>(tensor, *args, rng) and theirs(tensor) draw the same; args are ctypes."""
        for seed in seeds:
            tensor, want = parameter(shape), torch.full(shape, 7.0)
            rng = ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(seed)))
            torch.default_generator.manual_seed(seed)  # torch.manual_seed keeps a traceback, for CUDA
            # An odd number of normals first, so that the generator holds half a pair.
            lib.tern_rng_normal(rng, tern.pointer(np.empty(3, np.float32)), ctypes.c_size_t(3), real(0), real(1))
            torch.empty(3).normal_()
            lib.check(f"tern_init_{verb}", tensor, *args, rng)
            theirs(want)
            what = (verb, shape, [a.value if hasattr(a, "value") else a for a in args], seed)
            self.same_bits(run.value(tensor), want, what)
            self.same_state(rng, what)
            lib.tern_rng_free(rng)

    # ---- constants ----

    def test_constant(self):
        for shape in SHAPES:
            for value in (0.0, 1.0, 0.1, -2.5e-40, math.inf):
                tensor, want = parameter(shape), torch.empty(shape)
                lib.check("tern_init_constant", tensor, real(value))
                self.same_bits(run.value(tensor), torch.nn.init.constant_(want, value), (shape, value))

    def test_eye(self):
        for shape in MATRICES + [(0, 3), (3, 0)]:
            tensor = parameter(shape)
            lib.check("tern_init_eye", tensor)
            self.same_bits(run.value(tensor), torch.nn.init.eye_(torch.empty(shape)), shape)

    def test_dirac(self):
        for shape in [s for s in KERNELS if len(s) < 6] + [(12, 3, 5), (12, 8, 2, 5), (0, 3, 0), (3, 0, 2, 2)]:
            for groups in [g for g in range(1, 13) if shape[0] % g == 0]:
                tensor = parameter(shape)
                lib.check("tern_init_dirac", tensor, integer(groups))
                self.same_bits(run.value(tensor), torch.nn.init.dirac_(torch.empty(shape), groups), (shape, groups))

    # ---- draws ----

    def test_uniform(self):
        for shape in SHAPES:
            for low, high in ((0, 1), (-0.1, 0.3), (2, 2), (-1.6e38, 1.6e38)):
                self.check("uniform", shape, [real(low), real(high)], lambda t: torch.nn.init.uniform_(t, low, high))

    def test_normal(self):
        for shape in SHAPES:
            for mean, std in ((0, 1), (0.5, 0.02), (-1, 0)):
                self.check("normal", shape, [real(mean), real(std)], lambda t: torch.nn.init.normal_(t, mean, std))

    def test_trunc_normal(self):
        ends = [(0, 1, -2, 2), (0, 0.02, -2, 2), (0.3, 2, -1, 0.5), (1, 0.5, -math.inf, 1), (0, 1, 1, 1), (-1, 3, -9, 30)]
        for shape in SHAPES:
            for end in ends:
                self.check("trunc_normal", shape, [real(e) for e in end], lambda t: torch.nn.init.trunc_normal_(t, *end))

    def test_trunc_normal_over_many_values(self):
        for low, high in ((-9, 9), (-1, 1), (0.5, 5)):
            end = [real(0), real(1), real(low), real(high)]
            self.check("trunc_normal", (1 << 20,), end, lambda t: torch.nn.init.trunc_normal_(t, a=low, b=high), [5])

    def test_sparse(self):
        for shape in MATRICES + [(3, 0)]:
            for sparsity in (0, 0.1, 0.3, 0.5, 0.999, 1):
                for std in (0.01, 2):
                    theirs = lambda t: torch.nn.init.sparse_(t, sparsity, std)
                    self.check("sparse", shape, [real(sparsity), real(std)], theirs)

    # ---- draws by fan ----

    def test_gain(self):
        draw = random.Random(3)
        for nonlinearity, name in enumerate(NAMES):
            for slope in [0.0, 0.01, 5**0.5] + [draw.uniform(-3, 3) for _ in range(20000 if name == "leaky_relu" else 100)]:
                got, want = lib.tern_init_gain(nonlinearity, real(slope)), torch.nn.init.calculate_gain(name, slope)
                self.assertEqual(got, want, (name, slope))

    def test_xavier(self):
        for shape in MATRICES + KERNELS + [(0, 3)]:
            for gain in (1.0, 5 / 3, 0.0):
                for law in ("uniform", "normal"):
                    theirs = getattr(torch.nn.init, f"xavier_{law}_")
                    self.check(f"xavier_{law}", shape, [real(gain)], lambda t: theirs(t, gain))

    def test_kaiming(self):
        warnings.simplefilter("ignore")  # torch's warning about empty tensors
        for shape in MATRICES + KERNELS + [(0, 3), (2, 0, 3), (0,)]:
            for nonlinearity, name in enumerate(NAMES):
                for fan, mode in enumerate(("fan_in", "fan_out")):
                    for slope in (0.0, 0.2, math.sqrt(5)):
                        for law in ("uniform", "normal"):
                            theirs = getattr(torch.nn.init, f"kaiming_{law}_")
                            args = [real(slope), fan, nonlinearity]
                            self.check(f"kaiming_{law}", shape, args, lambda t: theirs(t, slope, mode, name), SEEDS[:2])

    # ---- orthogonal ----

    def test_orthogonal(self):
        """Both call the same LAPACK in this process."""
        for shape in MATRICES + KERNELS + [(0, 3), (3, 0), (256, 64, 3, 3), (513, 511)]:
            for gain in (1.0, math.sqrt(2), 0.0, -0.3):
                self.check("orthogonal", shape, [real(gain)], lambda t: torch.nn.init.orthogonal_(t, gain), SEEDS[:2])

    def test_orthogonal_is_orthogonal(self):
        for shape in ((5, 30), (30, 5), (24, 3, 3, 3)):
            tensor, rng = parameter(shape), ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(4)))
            lib.check("tern_init_orthogonal", tensor, real(3), rng)
            q = run.value(tensor).astype(np.float64).reshape(shape[0], -1)
            product = q @ q.T if q.shape[0] < q.shape[1] else q.T @ q
            self.assertLess(np.abs(product - 9 * np.eye(len(product))).max(), 2e-5)
            lib.tern_rng_free(rng)

    # ---- what torch refuses ----

    def refused(self, code, verb, shape, args, theirs, dtype=np.float32):
        tensor, rng = parameter(shape, dtype), ctypes.c_void_p(lib.check("tern_rng_new", ctypes.c_uint64(4)))
        rngs = [] if verb in ("constant", "eye", "dirac") else [rng]
        with self.assertRaises(tern.TernError, msg=(verb, shape, args)) as caught:
            lib.check(f"tern_init_{verb}", tensor, *args, *rngs)
        self.assertEqual(caught.exception.code, code, (verb, shape, str(caught.exception)))
        self.assertIn(f"tern_init_{verb}: ", str(caught.exception))
        self.assertTrue((run.value(tensor) == 7).all(), (verb, shape, "was written"))
        with self.assertRaises(Exception, msg=("torch takes", verb, shape, args)):
            theirs(torch.full(shape, 7.0))
        lib.tern_rng_free(rng)

    def test_too_few_or_too_many_dimensions(self):
        init, one = torch.nn.init, [real(1)]
        kaiming = [real(0), FAN_IN, RELU]
        for shape in ((), (4,)):
            self.refused(E_SHAPE, "xavier_uniform", shape, one, init.xavier_uniform_)
            self.refused(E_SHAPE, "xavier_normal", shape, one, init.xavier_normal_)
            self.refused(E_SHAPE, "kaiming_uniform", shape, kaiming, init.kaiming_uniform_)
            self.refused(E_SHAPE, "kaiming_normal", shape, kaiming, init.kaiming_normal_)
            self.refused(E_SHAPE, "orthogonal", shape, one, init.orthogonal_)
        for shape in ((), (4,), (2, 3, 4)):
            self.refused(E_SHAPE, "eye", shape, [], init.eye_)
            self.refused(E_SHAPE, "sparse", shape, [real(0.1), real(1)], lambda t: init.sparse_(t, 0.1))
        for shape in ((4,), (4, 4), (1, 1, 1, 1, 1, 1)):
            self.refused(E_SHAPE, "dirac", shape, [integer(1)], init.dirac_)

    def test_groups_and_kernels_that_do_not_fit(self):
        init = torch.nn.init
        self.refused(E_SHAPE, "dirac", (4, 2, 3), [integer(3)], lambda t: init.dirac_(t, 3))
        self.refused(E_SHAPE, "dirac", (4, 2, 0), [integer(1)], init.dirac_)
        self.refused(E_RANGE, "dirac", (4, 2, 3), [integer(0)], lambda t: init.dirac_(t, 0))

    def test_values_out_of_range(self):
        init, nan, inf = torch.nn.init, math.nan, math.inf
        for low, high in ((1, 0), (nan, 1), (0, nan), (-inf, 0), (0, 1e39), (-3e38, 3e38)):
            self.refused(E_RANGE, "uniform", (4,), [real(low), real(high)], lambda t: init.uniform_(t, low, high))
        for std in (-1, nan):
            self.refused(E_RANGE, "normal", (4,), [real(0), real(std)], lambda t: init.normal_(t, 0, std))
            self.refused(E_RANGE, "sparse", (4, 4), [real(0.1), real(std)], lambda t: init.sparse_(t, 0.1, std))
        for end in ((0, 0, -2, 2), (0, 1, 2, -2), (nan, 1, -2, 2), (0, 1, nan, 2)):
            theirs = lambda t: init.trunc_normal_(t, *end)
            self.refused(E_RANGE, "trunc_normal", (4,), [real(e) for e in end], theirs)
        for gain in (-1, nan, inf):
            theirs = lambda t: init.xavier_uniform_(t, gain)
            self.refused(E_RANGE, "xavier_uniform", (4, 4), [real(gain)], theirs)
        for gain in (-1, nan):
            self.refused(E_RANGE, "xavier_normal", (4, 4), [real(gain)], lambda t: init.xavier_normal_(t, gain))
        self.refused(E_RANGE, "xavier_uniform", (0, 0), [real(1)], init.xavier_uniform_)

    def test_enumerations(self):
        self.assertTrue(math.isnan(lib.tern_init_gain(5, real(0))))
        for law in ("uniform", "normal"):
            theirs = getattr(torch.nn.init, f"kaiming_{law}_")
            none = lambda t: theirs(t, 0, "fan_in", "none")
            self.refused(E_RANGE, f"kaiming_{law}", (4, 4), [real(0), FAN_IN, 5], none)
            self.refused(E_RANGE, f"kaiming_{law}", (4, 4), [real(0), 2, RELU], lambda t: theirs(t, 0, "fan"))
            nan = lambda t: theirs(t, math.nan)
            self.refused(E_RANGE, f"kaiming_{law}", (4, 4), [real(math.nan), FAN_IN, LEAKY_RELU], nan)

    def test_sparsity_beyond_one(self):
        """Torch accepts any value; tern does not."""
        for sparsity in (-0.1, 1.1, math.nan):
            with self.assertRaisesRegex(tern.TernError, "sparsity is .*, expected .0, 1."):
                lib.check("tern_init_sparse", parameter((4, 4)), real(sparsity), real(1), None)


if __name__ == "__main__":
    skips.main()
