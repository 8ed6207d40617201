"""Augmentation compared with torchvision's formulas in torch, bit for bit: padding, cropping, mirroring,
normalisation. Also the random numbers: the recipe of augment.h, and their uniformity."""
import ctypes
import unittest

import numpy as np
import torch

import datasets
import skips
import tern


class AugmentOpts(ctypes.Structure):
    """tern_augment_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("crop", ctypes.c_int64 * 2),
        ("padding", ctypes.c_int64 * 2),
        ("random_crop", ctypes.c_bool),
        ("flip", ctypes.c_double),
        ("channels", ctypes.c_int),
        ("mean", ctypes.c_float * 4),
        ("std", ctypes.c_float * 4),
        ("seed", ctypes.c_uint64),
        ("flip_vertical", ctypes.c_double),
        ("rotate", ctypes.c_bool),
        ("ignore", ctypes.c_int),
        ("resize", ctypes.c_int64 * 2),
        ("scale", ctypes.c_double * 2),
        ("brightness", ctypes.c_double),
        ("contrast", ctypes.c_double),
        ("saturation", ctypes.c_double),
        ("hue", ctypes.c_double),
        ("crop_depth", ctypes.c_int64),
        ("padding_depth", ctypes.c_int64),
        ("flip_depth", ctypes.c_double),
        ("intensity_scale", ctypes.c_double),
        ("intensity_shift", ctypes.c_double),
    ]


lib = tern.Library()
lib.returns(AugmentOpts, "tern_augment_defaults")
lib.returns(ctypes.POINTER(datasets.Dataset), "tern_augment_new")
DRAW = np.random.default_rng(11)


class Augmented:
    """The samples of an array, augmented."""

    def __init__(self, samples, **options):
        self.source = datasets.over(samples)
        opts = lib.tern_augment_defaults()
        for name, value in options.items():
            if name in ("mean", "std"):
                getattr(opts, name)[: len(value)] = value
                opts.channels = len(value)
            else:
                setattr(opts, name, value)
        self.dataset = lib.check("tern_augment_new", ctypes.byref(self.source), ctypes.byref(opts))
        self.shape = tuple(self.dataset.contents.shape[:3])
        self.get = self.dataset.contents.get

    def __del__(self):
        lib.tern_dataset_free(self.dataset)

    def sample(self, epoch, index):
        x, y = np.empty(self.shape, np.float32), ctypes.c_int64()
        if self.get(self.dataset, epoch, index, x.ctypes.data, ctypes.addressof(y), None):
            raise RuntimeError(f"sample {index}")
        assert y.value == index
        return x


# ---- the recipe of augment.h ----

GOLDEN, WORD = 0x9E3779B97F4A7C15, 2**64 - 1


def mix(z):
    z = z + GOLDEN & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def change(seed, epoch, index, places, flip):
    """Returns (top, left) in the padded sample, and whether it is mirrored."""
    key = mix(mix(mix(seed) + epoch & WORD) + index & WORD)
    number = [mix(key + i * GOLDEN & WORD) for i in range(3)]
    return number[0] * places[0] >> 64, number[1] * places[1] >> 64, (number[2] >> 11) / 2**53 < flip


def torchvision(image, crop, padding, top_left, flip, mean, std):
    """RandomCrop or CenterCrop (top_left None), RandomHorizontalFlip, Normalize, with the random numbers given."""
    image = torch.nn.functional.pad(torch.from_numpy(image), (padding[1], padding[1], padding[0], padding[0]))
    height, width = image.shape[1:]
    center = int(round((height - crop[0]) / 2.0)), int(round((width - crop[1]) / 2.0))
    top, left = top_left or center
    image = image[:, top : top + crop[0], left : left + crop[1]]
    if flip:
        image = image.flip(-1)
    image = image.clone()
    if mean is not None:
        image.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
    return image.numpy()


class AugmentTest(unittest.TestCase):
    def test_splitmix64_as_published(self):
        """The first outputs of the generator's reference implementation for state 1234567."""
        published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
        self.assertEqual([mix(1234567 + i * GOLDEN & WORD) for i in range(3)], published)

    def test_geometry(self):
        for trial in range(300):
            channels, height, width = (int(n) for n in DRAW.integers((1, 1, 1), (5, 12, 12)))
            padding = [int(n) for n in DRAW.integers(0, 5, 2)]
            crop = [int(DRAW.integers(1, n + 2 * p + 1)) for n, p in ((height, padding[0]), (width, padding[1]))]
            flip = float(DRAW.choice([0, 0.5, 1]))
            seed, random_crop = int(DRAW.integers(0, 2**64, dtype=np.uint64)), bool(DRAW.integers(2))
            mean = std = None
            if DRAW.integers(2):
                mean, std = DRAW.normal(size=channels).tolist(), DRAW.uniform(0.1, 2, channels).tolist()
            samples = DRAW.standard_normal((3, channels, height, width)).astype("f")
            options = {"mean": mean, "std": std} if mean else {}
            ours = Augmented(
                samples,
                crop=tuple(crop),
                padding=tuple(padding),
                random_crop=random_crop,
                flip=flip,
                seed=seed,
                **options,
            )
            self.assertEqual(ours.shape, (channels, *crop))
            places = height + 2 * padding[0] - crop[0] + 1, width + 2 * padding[1] - crop[1] + 1
            for epoch, index in ((0, 0), (0, 2), (1, 0), (2**40, 1), (-1, 1)):
                top, left, flipped = change(seed, epoch, index, places, flip)
                place = (top, left) if random_crop else None
                want = torchvision(samples[index], crop, padding, place, flipped, mean, std)
                got = ours.sample(epoch, index)
                what = f"trial {trial}, epoch {epoch}, sample {index}"
                np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=what)

    def test_defaults_change_nothing(self):
        samples = DRAW.standard_normal((4, 3, 5, 7)).astype("f")
        ours = Augmented(samples)
        self.assertEqual(ours.shape, (3, 5, 7))
        for index in range(4):
            np.testing.assert_array_equal(ours.sample(9, index), samples[index])

    def test_one_side_of_the_crop_may_be_left_to_the_sample(self):
        samples = DRAW.standard_normal((1, 2, 6, 5)).astype("f")
        self.assertEqual(Augmented(samples, crop=(4, 0)).shape, (2, 4, 5))
        self.assertEqual(Augmented(samples, crop=(0, 3), padding=(2, 0)).shape, (2, 6, 3))

    # ---- the numbers ----

    def uniform(self, counts, probabilities, low, high):
        """Pearson's statistic is between the 0.1 % and the 99.9 % quantile of chi-square."""
        expected = np.asarray(probabilities) * sum(counts)
        statistic = float(((np.asarray(counts) - expected) ** 2 / expected).sum())
        self.assertGreater(statistic, low)
        self.assertLess(statistic, high)

    def test_places_are_uniform(self):
        """Over epochs, and over the samples of one epoch: a crop of one pixel shows its position, 5 x 7 of them."""
        samples = np.broadcast_to(np.arange(35, dtype="f").reshape(1, 1, 5, 7), (7000, 1, 5, 7))
        ours = Augmented(samples, crop=(1, 1), seed=3)
        for draws in (((epoch, 5) for epoch in range(7000)), ((5, index) for index in range(7000))):
            counts = np.bincount([int(ours.sample(*d)[0, 0, 0]) for d in draws], minlength=35)
            self.uniform(counts, np.full(35, 1 / 35), 14.06, 65.25)  # 34 degrees of freedom

    def test_row_column_and_mirror_are_independent(self):
        """The first two pixels of a cut show its place and direction: 2 x 2 places, mirrored with probability 0.3."""
        samples = np.broadcast_to(np.arange(12, dtype="f").reshape(1, 1, 3, 4), (100, 1, 3, 4))
        ours = Augmented(samples, crop=(2, 3), flip=0.3, seed=8)
        counts = np.zeros((2, 2, 2), int)
        for epoch in range(80):
            for index in range(100):
                first, second = ours.sample(epoch, index)[0, 0, :2]
                flipped = int(second < first)
                top, left = divmod(int(first) - 2 * flipped, 4)
                counts[top, left, flipped] += 1
        self.uniform(counts.ravel(), [0.175, 0.075] * 4, 0.60, 24.32)  # 7 degrees of freedom

    def test_neighbouring_epochs_samples_and_seeds_are_independent(self):
        """Places of a sample in the next epoch, of the next sample, and with the next seed: all 49 pairs."""
        samples = np.broadcast_to(np.arange(7, dtype="f").reshape(1, 1, 1, 7), (101, 1, 1, 7))
        here, other = (Augmented(samples, crop=(1, 1), seed=seed) for seed in (0, 1))
        place = lambda dataset, epoch, index: int(dataset.sample(epoch, index)[0, 0, 0])
        for further in (lambda e, i: place(here, e + 1, i), lambda e, i: place(here, e, i + 1), lambda e, i: place(other, e, i)):
            counts = np.zeros(49, int)
            for epoch in range(50):
                for index in range(100):
                    counts[7 * place(here, epoch, index) + further(epoch, index)] += 1
            self.uniform(counts, np.full(49, 1 / 49), 23.29, 84.04)  # 48 degrees of freedom


if __name__ == "__main__":
    skips.main()
