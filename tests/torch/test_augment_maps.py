"""Samples and their maps augmented together: geometry compared with numpy and torch, bit for bit; resizing with
torchvision's antialias, and maps with Pillow's; colours with torchvision's functions on tensors with the same
factors; all with the random numbers of augment.h. An image of its own coordinates shows that sample and map stay
aligned."""
import ctypes
import unittest

import numpy as np
import PIL.Image
import torch
from torchvision.transforms import ColorJitter, InterpolationMode, functional

import datasets
import skips
import tern
from test_augment import DRAW, GOLDEN, WORD, lib, mix


class Augmented:
    """Samples and maps of arrays, augmented."""

    def __init__(self, samples, maps=None, **options):
        self.source, self.dtype = datasets.over(samples, maps), None if maps is None else maps.dtype
        opts = lib.tern_augment_defaults()
        for name, value in options.items():
            if name in ("mean", "std"):
                getattr(opts, name)[: len(value)] = value
                opts.channels = len(value)
            else:
                setattr(opts, name, tuple(value) if isinstance(value, list) else value)
        self.dataset = lib.check("tern_augment_new", ctypes.byref(self.source), ctypes.byref(opts))

    def __del__(self):
        if hasattr(self, "dataset"):
            lib.tern_dataset_free(self.dataset)

    def get(self, index, epoch=0):
        d, err = self.dataset.contents, tern.Error()
        x = np.empty(d.shape[: d.ndim], np.float32)
        y = np.empty(d.target_shape[: d.target_ndim], self.dtype or np.int64)
        d.get(self.dataset, epoch, index, x.ctypes.data, y.ctypes.data, ctypes.byref(err))
        if err.code:
            raise tern.TernError(err)
        return x, y


class Numbers:
    """The random numbers of a sample, as augment.h describes them."""

    def __init__(self, seed, epoch, index):
        self.key = mix(mix(mix(seed) + epoch & WORD) + index & WORD)

    def number(self, i):
        return mix(self.key + i * GOLDEN & WORD)

    def place(self, i, n):
        return self.number(i) * n >> 64

    def share(self, i):
        return (self.number(i) >> 11) / 2**53

    def between(self, i, a, b):
        return a + self.share(i) * (b - a)


def geometry(x, n, options, fill):
    """Padding, cropping, mirroring and rotation of (.., H, W) or (.., D, H, W) by numpy and torch."""
    volume = "crop_depth" in options
    dims = 3 if volume else 2
    crop = ([options["crop_depth"]] if volume else []) + list(options["crop"])
    padding = ([options["padding_depth"]] if volume else []) + list(options["padding"])
    numbers = ([16] if volume else []) + [0, 1]
    lead = x.ndim - dims
    room = [max(x.shape[lead + d] + 2 * padding[d] - crop[d], 0) for d in range(dims)]
    more = [max(crop[d] - x.shape[lead + d] - 2 * padding[d], 0) for d in range(dims)]
    x = np.pad(x, [(0, 0)] * lead + [(p, p + m) for p, m in zip(padding, more)], constant_values=fill)
    random = options.get("random_crop", True)
    start = [n.place(i, r + 1) if random else int(round(r / 2)) for i, r in zip(numbers, room)]
    x = x[(...,) + tuple(slice(s, s + c) for s, c in zip(start, crop))]
    for axis, number, name in ((-1, 2, "flip"), (-2, 17, "flip_vertical"), (-3, 18, "flip_depth")):
        if n.share(number) < options.get(name, 0):
            x = np.flip(x, axis)
    turns = n.place(19, 4) if options.get("rotate") else 0
    return torch.rot90(torch.from_numpy(x.copy()), turns, (-2, -1)).numpy()


MAPS = [np.uint8, np.int32, np.int64, np.float32]


class GeometryTest(unittest.TestCase):
    def expect(self, samples, maps, options, epochs=(0, 3)):
        ours = Augmented(samples, maps, **options)
        for epoch in epochs:
            for index in range(len(samples)):
                n = Numbers(options.get("seed", 0), epoch, index)
                x, y = ours.get(index, epoch)
                np.testing.assert_array_equal(x, geometry(samples[index], n, options, 0))
                np.testing.assert_array_equal(y, geometry(maps[index], n, options, options.get("ignore", 255)))

    def test_images(self):
        for trial in range(120):
            height, width = (int(n) for n in DRAW.integers(1, 14, 2))
            padding = [int(n) for n in DRAW.integers(0, 5, 2)]
            crop = [int(DRAW.integers(1, n + 2 * p + 1)) for n, p in ((height, padding[0]), (width, padding[1]))]
            rotate = bool(DRAW.integers(2))
            if rotate:
                crop = [min(crop)] * 2
            dtype = MAPS[trial % 4]
            samples = DRAW.standard_normal((3, int(DRAW.integers(1, 5)), height, width)).astype("f")
            maps = DRAW.integers(0, 200, (3, height, width)).astype(dtype)
            options = {"crop": crop, "padding": padding, "rotate": rotate, "random_crop": bool(DRAW.integers(2))}
            options |= {"flip": float(DRAW.choice([0, 0.5, 1])), "flip_vertical": float(DRAW.choice([0, 0.5, 1]))}
            options |= {"seed": int(DRAW.integers(0, 2**63)), "ignore": int(DRAW.integers(0, 256))}
            self.expect(samples, maps, options)

    def test_volumes(self):
        for trial in range(60):
            size = [int(n) for n in DRAW.integers(1, 8, 3)]
            padding = [int(n) for n in DRAW.integers(0, 3, 3)]
            crop = [int(DRAW.integers(1, n + 2 * p + 1)) for n, p in zip(size, padding)]
            rotate = bool(DRAW.integers(2))
            if rotate:
                crop[1:] = [min(crop[1:])] * 2
            samples = DRAW.standard_normal((2, int(DRAW.integers(1, 3)), *size)).astype("f")
            maps = DRAW.integers(0, 200, (2, *size)).astype(MAPS[trial % 4])
            options = {"crop": crop[1:], "crop_depth": crop[0], "padding": padding[1:], "padding_depth": padding[0]}
            options |= {"rotate": rotate, "flip": 0.5, "flip_vertical": 0.5, "flip_depth": 0.5, "seed": trial}
            self.expect(samples, maps, options, epochs=range(4))

    def test_every_symmetry_comes_up(self):
        """The eight symmetries of a square, and their mirror images in depth, are about equally frequent."""
        cube = np.arange(8, dtype="f").reshape(1, 1, 2, 2, 2)
        samples = np.broadcast_to(cube, (1, 1, 2, 2, 2))
        ours = Augmented(samples, flip=0.5, flip_vertical=0.5, flip_depth=0.5, rotate=True)
        seen = {}
        for epoch in range(1600):
            key = ours.get(0, epoch)[0].tobytes()
            seen[key] = seen.get(key, 0) + 1
        self.assertEqual(len(seen), 16)
        self.assertGreater(min(seen.values()), 60)  # 100 each, standard deviation 9.7
        self.assertLess(max(seen.values()), 140)


class ResizeTest(unittest.TestCase):
    def nearest(self, labels, size):
        return np.asarray(functional.resize(PIL.Image.fromarray(labels.astype(np.uint8)), size, InterpolationMode.NEAREST))

    def test_maps_of_all_widths(self):
        """Centres often lie between two pixels, where rounding decides, in Pillow by its sums. Parts begin in between."""
        for width in range(1, 40):
            labels = np.arange(width, dtype=np.uint8)[None].repeat(2, 0)
            samples = np.zeros((1, 1, 2, width), "f")
            for size in (*range(1, 61), 480):
                want = self.nearest(labels, (3, size))
                ours = Augmented(samples, labels[None], resize=[3, size])
                np.testing.assert_array_equal(ours.get(0)[1], want)
                part = Augmented(samples, labels[None], resize=[3, size], crop=[1, size // 2 + 1], random_crop=False)
                left = round((size - size // 2 - 1) / 2)
                np.testing.assert_array_equal(part.get(0)[1], want[1:2, left : left + size // 2 + 1])

    def test_resize_and_scale(self):
        """Smooth images and noise, to larger and smaller sizes, cropped at random, with padding where they are too
        small."""
        for trial in range(60):
            height, width = (int(n) for n in DRAW.integers(2, 40, 2))
            samples = DRAW.random((2, 3, height, width)).astype("f")
            maps = DRAW.integers(0, 200, (2, height, width)).astype(MAPS[trial % 4])
            options = {"crop": [int(n) for n in DRAW.integers(1, 30, 2)], "padding": [int(n) for n in DRAW.integers(0, 3, 2)]}
            options |= {"scale": tuple(sorted(DRAW.uniform(0.3, 3, 2))), "flip": 0.5, "seed": trial}
            if trial % 3:
                options["resize"] = tuple(int(n) for n in DRAW.integers(1, 40, 2))
            ours = Augmented(samples, maps, **options)
            for index in range(2):
                n = Numbers(trial, 5, index)
                factor, size = n.between(20, *options["scale"]), options.get("resize", (height, width))
                size = [max(int(round(s * factor)), 1) for s in size]
                image = functional.resize(torch.from_numpy(samples[index]), size, antialias=True).numpy()
                labels = self.nearest(maps[index], size)
                x, y = ours.get(index, 5)
                np.testing.assert_allclose(x, geometry(image, n, options, 0), rtol=0, atol=2e-6)
                np.testing.assert_array_equal(y, geometry(labels, n, options, 255))

    def test_sample_and_map_stay_together(self):
        """Channels are the row and the column, the map is the row in one data set and the column in another. Where the
        map is not ignored, the channel is within a pixel of the source of it; where it is, the sample is padding."""
        height, width = 50, 40
        rows, columns = np.mgrid[:height, :width]
        samples = np.stack([rows, columns, np.ones_like(rows)]).astype("f")[None]
        options = {"crop": (32, 32), "padding": (4, 4), "scale": (0.5, 2), "flip": 0.5, "flip_vertical": 0.5, "rotate": True}
        together = [Augmented(samples, which[None].astype(np.uint8), **options) for which in (rows, columns)]
        inside = 0
        for epoch in range(200):
            factor = Numbers(0, epoch, 0).between(20, 0.5, 2)
            for channel, ours in enumerate(together):
                x, y = ours.get(0, epoch)
                known = y != 255
                inside += known.sum()
                self.assertTrue((x[2][~known] == 0).all() and (x[2][known] > 0.999).all())
                reach = 1 + 1 / factor
                self.assertLess(abs(x[channel][known] - y[known]).max(initial=0), reach)
        self.assertGreater(inside, 200 * 32 * 32)


class ColourTest(unittest.TestCase):
    def changed(self, image, n, strength):
        """ColorJitter.forward with the random numbers of augment.h."""
        left, order = [0, 1, 2, 3], []
        for i in range(4):
            order.append(left.pop(n.place(25 + i, 4 - i) if i < 3 else 0))
        amounts = [n.between(21 + i, max(0, 1 - s), 1 + s) for i, s in enumerate(strength[:3])]
        amounts.append(n.between(24, -strength[3], strength[3]))
        names = [functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation, functional.adjust_hue]
        for i in order:
            if strength[i]:
                image = names[i](image, amounts[i])
        return image

    def test_beside_torchvision(self):
        for trial in range(80):
            strength = [float(s) for s in DRAW.uniform(0, 1, 4) * (1, 1, 1, 0.5) * DRAW.integers(0, 2, 4)]
            channels = 1 if trial % 5 == 4 else 3
            samples = DRAW.random((4, channels, 7, 9)).astype("f")
            samples[1] = np.round(samples[1] * 4) / 4  # equal channels and extremes
            samples[2] = samples[2][:1]  # grey
            ours = Augmented(samples, **dict(zip(("brightness", "contrast", "saturation", "hue"), strength)), seed=trial)
            for index in range(4):
                want = torch.from_numpy(samples[index])
                if channels == 3:
                    want = self.changed(want, Numbers(trial, 1, index), strength)
                else:
                    want = self.changed(want, Numbers(trial, 1, index), strength[:2] + [0, 0])
                np.testing.assert_allclose(ours.get(index, 1)[0], want.numpy(), rtol=0, atol=4e-6)

    def test_ranges_are_colorjitters(self):
        jitter = ColorJitter(0.4, 0.3, 1.0, 0.2)
        self.assertEqual(tuple(jitter.brightness), (0.6, 1.4))
        self.assertEqual(tuple(jitter.saturation), (0, 2))
        self.assertEqual(tuple(jitter.hue), (-0.2, 0.2))

    def test_all_orders_come_up(self):
        seen = set()
        for epoch in range(600):
            n, left, order = Numbers(0, epoch, 0), [0, 1, 2, 3], []
            for i in range(4):
                order.append(left.pop(n.place(25 + i, 4 - i) if i < 3 else 0))
            seen.add(tuple(order))
        self.assertEqual(len(seen), 24)

    def test_intensity_and_mean(self):
        samples = DRAW.standard_normal((3, 2, 3, 4, 5)).astype("f")
        ours = Augmented(samples, intensity_scale=0.3, intensity_shift=0.5, mean=[0.5, 1], std=[2, 4], seed=2)
        for index in range(3):
            n = Numbers(2, 7, index)
            s, t = np.float32(n.between(28, 0.7, 1.3)), np.float32(n.between(29, -0.5, 0.5))
            want = (samples[index] * s + t - np.array([0.5, 1], "f").reshape(2, 1, 1, 1)) / np.array([2, 4], "f").reshape(2, 1, 1, 1)
            np.testing.assert_allclose(ours.get(index, 7)[0], want, rtol=0, atol=1e-6)


class RefusedTest(unittest.TestCase):
    def refused(self, code, text, shape=(3, 4, 5), map_shape=None, dtype=np.uint8, **options):
        samples = np.zeros((1, *shape), "f")
        maps = np.zeros((1, *(map_shape or shape[1:])), dtype)
        with self.assertRaises(tern.TernError) as caught:
            Augmented(samples, maps, **options)
        self.assertEqual((caught.exception.code, str(caught.exception)), (code, "tern_augment_new: " + text))

    def test_what_is_refused(self):
        volume = (3, 2, 4, 4)
        self.refused(-2, "expected maps of 2 dimensions, as large as the samples", map_shape=(4, 6))
        self.refused(-2, "expected maps of 3 dimensions, as large as the samples", shape=volume, map_shape=(4, 4))
        self.refused(-3, "the maps are f64, expected f32, u8, i32 or i64", dtype=np.float64)
        self.refused(-7, "ignore is 256, expected [0, 255] for maps of u8", ignore=256)
        self.refused(-2, "resize and scale are for images, not volumes", shape=volume, scale=(1, 2))
        self.refused(-2, "brightness, contrast, saturation and hue are for images of 1 or 3 channels, not volumes of 3", shape=volume, hue=0.1)
        self.refused(-2, "brightness, contrast, saturation and hue are for images of 1 or 3 channels, not images of 2", shape=(2, 4, 4), contrast=0.1)
        self.refused(-2, "images have no depth", flip_depth=0.5)
        self.refused(-2, "rotate: a crop of 4 x 5 is not square", rotate=True)
        self.refused(-2, "the crop's depth is 3, the samples have 2 with padding", shape=volume, crop_depth=3)
        self.refused(-7, "crop_depth is -1, expected at least 0; padding_depth is 0, expected [0, 2147483647]", crop_depth=-1)
        self.refused(-7, "resize is 4, 0, expected [1, 32768], or 0, 0", resize=(4, 0))
        self.refused(-7, "scale is [0, 1], expected 0 < low <= high <= 64", scale=(0, 1))
        self.refused(-7, "hue is 0.6, expected [0, 0.5]", hue=0.6)
        for name in ("flip_vertical", "flip_depth", "brightness", "contrast", "saturation"):
            self.refused(-7, f"{name} is 1.5, expected [0, 1]", **{name: 1.5})
        for name in ("intensity_scale", "intensity_shift"):
            self.refused(-7, f"{name} is -1, expected [0, 1e+06]", **{name: -1})


if __name__ == "__main__":
    skips.main()
