"""Implements run.sh: times the samples of an image folder in tern and in torchvision with Pillow."""
import ctypes
import os
import statistics
import sys
import tempfile
import time

import numpy as np
import PIL.Image
import torch
import torchvision
from torchvision import transforms

import test_augment as augments
import test_image_folder as folders

COUNT, HEIGHT, WIDTH, QUALITY = 64, 375, 500, 90
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALISE = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


def image(rng):
    """Returns a random image as detailed as a photograph: its amplitudes fall with the frequency."""
    y, x = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    fall = 1 / np.maximum(np.hypot(y, x), 1 / WIDTH)
    grey, colour = (np.fft.irfft2(np.fft.rfft2(rng.standard_normal((HEIGHT, WIDTH))) * fall, (HEIGHT, WIDTH)) for _ in range(2))
    channels = [grey + share * colour for share in (0.4, 0, -0.4)]
    data = np.stack([128 + 50 * (c - c.mean()) / c.std() for c in channels], -1)
    return PIL.Image.fromarray(data.clip(0, 255).astype(np.uint8))


class Tern:
    def __init__(self, root, jitter=False, **options):
        self.folder = folders.Folder(root, **options)
        opts = augments.lib.tern_augment_defaults()
        opts.flip, opts.channels = 0.5 if options.get("random") else 0, 3
        opts.mean[:3], opts.std[:3] = MEAN, STD
        for name, value in (JITTER if jitter else {}).items():
            setattr(opts, name, value)
        self.dataset = augments.lib.check("tern_augment_new", self.folder.dataset, ctypes.byref(opts))
        self.x, self.y = np.empty(self.folder.shape, np.float32), ctypes.c_int64()

    def __del__(self):
        augments.lib.tern_dataset_free(self.dataset)

    def get(self, epoch, index):
        failed = self.dataset.contents.get(self.dataset, epoch, index, self.x.ctypes.data, ctypes.addressof(self.y), None)
        assert not failed


class Torchvision:
    def __init__(self, root, jitter=False, random=False):
        if random:
            steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        else:
            steps = [transforms.Resize(256), transforms.CenterCrop(224)]
        steps += [transforms.ColorJitter(**JITTER)] if jitter else []
        self.dataset = torchvision.datasets.ImageFolder(root, transforms.Compose(steps + NORMALISE))

    def get(self, epoch, index):
        return self.dataset[index]


WAYS = {
    "Resize, CenterCrop": {},
    "RandomResizedCrop, flip": {"random": True},
    "RandomResizedCrop, flip, ColorJitter": {"random": True, "jitter": True},
}


def rate(dataset, epoch):
    start = time.perf_counter()
    for index in range(COUNT):
        dataset.get(epoch, index)
    return COUNT / (time.perf_counter() - start)


def measure(root, rounds):
    """Returns {way: {library: [images per second]}}."""
    rates = {}
    for way, options in WAYS.items():
        sides = {"tern": Tern(root, **options), "torchvision": Torchvision(root, **options)}
        for side in sides.values():
            rate(side, 0)
        rates[way] = {name: [] for name in sides}
        for epoch in range(1, rounds + 1):
            for name, side in sides.items():
                rates[way][name].append(rate(side, epoch))
    return rates


def table(rates):
    lines = ["| 500 x 375 JPEG to 224 x 224 | tern, images/s | torchvision + Pillow | ratio |", "|---|---|---|---|"]
    for way, of in rates.items():
        ours, theirs = (statistics.median(of[name]) for name in ("tern", "torchvision"))
        lines.append(f"| {way} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")
    return "\n".join(lines)


def main(rounds):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(os.path.join(root, "class"))
        for i in range(COUNT):
            image(np.random.default_rng(i)).save(os.path.join(root, "class", f"{i:02}.jpg"), quality=QUALITY)
        print(table(measure(root, rounds)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
