"""tern_image_folder_open compared with torchvision's ImageFolder: the same classes, files and labels; and bit for bit
the same pixels after Resize and CenterCrop, and after RandomResizedCrop with our random numbers in torchvision's
formulas."""
import ctypes
import math
import os

import numpy as np
import PIL.Image
import torchvision
from torchvision.transforms import functional

import datasets
import images
import skips
import tern
from folder import InFolder
from test_augment import GOLDEN, WORD, mix

DRAW = np.random.default_rng(32)


class FolderOpts(ctypes.Structure):
    """tern_image_folder_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("channels", ctypes.c_int),
        ("crop", ctypes.c_int64 * 2),
        ("resize", ctypes.c_int64),
        ("random", ctypes.c_bool),
        ("scale", ctypes.c_double * 2),
        ("ratio", ctypes.c_double * 2),
        ("seed", ctypes.c_uint64),
        ("draft", ctypes.c_bool),
    ]


lib = images.lib
lib.returns(FolderOpts, "tern_image_folder_defaults")
lib.returns(ctypes.POINTER(datasets.Dataset), "tern_image_folder_open")


class Folder:
    """A tern_image_folder as a sequence of (image, label)."""

    def __init__(self, root, **options):
        opts = lib.tern_image_folder_defaults()
        for name, value in options.items():
            setattr(opts, name, value)
        self.dataset = lib.check("tern_image_folder_open", root.encode(), ctypes.byref(opts))
        self.shape = tuple(self.dataset.contents.shape[:3])
        self.classes = []
        while name := lib.tern_image_folder_class(self.dataset, len(self.classes)):
            self.classes.append(name.decode())

    def __del__(self):
        if hasattr(self, "dataset"):
            lib.tern_dataset_free(self.dataset)

    def __len__(self):
        return self.dataset.contents.length

    def path(self, index):
        return lib.tern_image_folder_path(self.dataset, ctypes.c_int64(index)).decode()

    def sample(self, index, epoch=0):
        x, y, err = np.empty(self.shape, np.float32), ctypes.c_int64(), tern.Error()
        self.dataset.contents.get(self.dataset, epoch, index, x.ctypes.data, ctypes.addressof(y), ctypes.byref(err))
        if err.code:
            raise tern.TernError(err)
        return x, y.value


def uniform(key, i, low, high):
    return low + (mix(key + i * GOLDEN & WORD) >> 11) / 2**53 * (high - low)


def random_part(key, height, width, scale, ratio):
    """RandomResizedCrop.get_params with the random numbers of image_data.h: (top, left, height, width)."""
    for i in range(64, 104, 4):
        area = height * width * uniform(key, i, *scale)
        aspect = math.exp(uniform(key, i + 1, math.log(ratio[0]), math.log(ratio[1])))
        w, h = int(round(math.sqrt(area * aspect))), int(round(math.sqrt(area / aspect)))
        if 0 < w <= width and 0 < h <= height:
            top, left = (mix(key + (i + 2 + k) * GOLDEN & WORD) * n >> 64 for k, n in ((0, height - h + 1), (1, width - w + 1)))
            return top, left, h, w
    own = width / height
    w, h = width, height
    if own < min(ratio):
        h = int(round(w / min(ratio)))
    elif own > max(ratio):
        w = int(round(h * max(ratio)))
    return (height - h) // 2, (width - w) // 2, h, w


class ImageFolderTest(InFolder):
    def put(self, name, height=9, width=7, mode="RGB", **options):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        channels = len(mode)
        data = DRAW.integers(0, 256, (height, width, channels)).astype(np.uint8)
        PIL.Image.fromarray(data.squeeze(-1) if channels == 1 else data, mode).save(path, **options)

    def test_files_and_labels(self):
        """Sub-folders, unusual names, links, upper-case extensions, and files that are not samples."""
        for name in ("b/2.png", "b/10.jpg", "b/sub/a.JPEG", "b/sub/z/a.png", "b/sub.x/q.png", "B/x.Tiff", "ä/é.jpg", "b/.h.png"):
            self.put(name)
        os.symlink(os.path.join(self.folder, "b"), os.path.join(self.folder, "c"))
        for name in ("notes.txt", "b/readme.md", "b/png"):
            with open(os.path.join(self.folder, name), "w", encoding="utf8") as file:
                file.write("no picture")
        theirs = torchvision.datasets.ImageFolder(self.folder)
        ours = Folder(self.folder, crop=(4, 4), resize=4)
        self.assertEqual(ours.classes, theirs.classes)
        self.assertEqual(ours.dataset.contents.classes, len(theirs.classes))
        self.assertEqual([ours.path(i) for i in range(len(ours))], [path for path, _ in theirs.samples])
        self.assertEqual([ours.sample(i)[1] for i in range(len(ours))], theirs.targets)

    def various(self):
        for i, (height, width) in enumerate([(40, 40), (41, 90), (87, 30), (12, 200), (33, 32), (200, 9), (64, 64), (5, 5), (1, 3)]):
            self.put(f"a/{i:02}.png", height, width)
            self.put(f"a/{i:02}.jpg", height, width, quality=90)
            self.put(f"a/{i:02}.jpeg", height, width, progressive=True, subsampling=i % 3)
            self.put(f"b/{i:02}.jpeg", height, width, subsampling=i % 2)
            self.put(f"b/{i:02}.png", height, width, "L")
            self.put(f"b/{i:02}.jpg", height, width, "L")
            self.put(f"c/{i:02}.png", height, width, "RGBA")
            self.put(f"c/{i:02}.jpg", height, width, "CMYK")
        return torchvision.datasets.ImageFolder(self.folder)

    def expect(self, got, want):
        np.testing.assert_array_equal(got.view(np.uint32), functional.to_tensor(want).numpy().view(np.uint32))

    def test_resize_and_center_crop(self):
        theirs = self.various()
        for resize, crop in ((32, (32, 32)), (40, (32, 28)), (33, (17, 33)), (5, (1, 1))):
            ours = Folder(self.folder, resize=resize, crop=crop)
            self.assertEqual(ours.shape, (3, *crop))
            for i in range(len(ours)):
                picture, label = theirs[i]
                self.assertEqual(ours.sample(i)[1], label)
                self.expect(ours.sample(i)[0], functional.center_crop(functional.resize(picture, resize), crop))

    def test_random_resized_crop(self):
        theirs = self.various()
        for trial in range(6):
            crop = tuple(int(n) for n in DRAW.integers(1, 50, 2))
            scale = tuple(sorted(DRAW.uniform(0.05, 1, 2)))
            ratio = tuple(sorted(DRAW.uniform(0.3, 3, 2)))
            seed, epoch = int(DRAW.integers(0, 2**63)), int(DRAW.integers(0, 1000))
            ours = Folder(self.folder, crop=crop, random=True, scale=scale, ratio=ratio, seed=seed)
            for i in range(len(ours)):
                picture = theirs[i][0]
                key = mix(mix(mix(seed) + epoch & WORD) + i & WORD)
                part = random_part(key, picture.height, picture.width, scale, ratio)
                self.expect(ours.sample(i, epoch)[0], functional.resized_crop(picture, *part, crop))

    def test_draft(self):
        """Pillow's own draft mode, resized and cropped. The crop of the whole image limits how small the draft may
        be."""
        sizes = [(100, 150), (333, 250), (801, 640), (64, 1000)]
        for i, size in enumerate(sizes):
            self.put(f"a/{i}.jpg", *size)
        self.put("b/0.png", 333, 250)  # there is no draft of a PNG
        parts = set()
        for trial in range(12):
            random = bool(trial % 2)
            ours = Folder(self.folder, crop=(16, 12), resize=20, random=random, seed=trial, draft=True)
            for i in range(5):
                picture, key = PIL.Image.open(ours.path(i)), mix(mix(mix(trial) + 0 & WORD) + i & WORD)
                small = lambda p: random_part(key, p.height, p.width, (0.08, 1), (3 / 4, 4 / 3))[2:] if random else p.size[::-1]
                whole = functional.resize(PIL.Image.open(ours.path(i)), 20).size[::-1]  # which decodes it
                reach = min(n / m for n, m in zip(small(picture), (16, 12) if random else whole))
                part = max(p for p in (1, 2, 4, 8) if p == 1 or reach >= 2 * p) if i < 4 else 1
                parts.add(part)
                picture.draft("RGB", (picture.width // part, picture.height // part))
                if random:
                    want = functional.resized_crop(picture, *random_part(key, picture.height, picture.width, (0.08, 1), (3 / 4, 4 / 3)), (16, 12))
                else:
                    want = functional.center_crop(functional.resize(picture, 20), (16, 12))
                self.expect(ours.sample(i)[0], want)
        self.assertEqual(parts, {1, 2, 4, 8})

    def test_random_parts_are_as_torchvisions(self):
        """Areas, ratios and positions of many draws, compared with as many of torchvision's: means within 5 standard
        errors."""
        self.put("a/a.png", 60, 80)
        picture = PIL.Image.new("RGB", (80, 60))
        theirs = [torchvision.transforms.RandomResizedCrop.get_params(picture, [0.08, 1], [3 / 4, 4 / 3]) for _ in range(4000)]
        ours = [random_part(mix(mix(mix(9) + e & WORD)), 60, 80, (0.08, 1), (3 / 4, 4 / 3)) for e in range(4000)]
        for figure in (lambda p: p[0], lambda p: p[1], lambda p: p[2] * p[3], lambda p: p[3] / p[2]):
            a, b = (np.array([figure(p) for p in parts], float) for parts in (ours, theirs))
            self.assertLess(abs(a.mean() - b.mean()), 5 * math.sqrt((a.var() + b.var()) / 4000))

    def test_grey(self):
        self.put("a/a.png", 50, 60)
        self.put("a/b.png", 50, 60, "L")
        ours = Folder(self.folder, channels=1, resize=20, crop=(20, 20))
        for i, name in enumerate(("a/a.png", "a/b.png")):
            picture = PIL.Image.open(os.path.join(self.folder, name)).convert("L")
            self.expect(ours.sample(i)[0], functional.center_crop(functional.resize(picture, 20), 20))

    # ---- what is wrong ----

    def refused(self, code, text, **options):
        with self.assertRaisesRegex(tern.TernError, text) as caught:
            Folder(self.folder, **options)
        self.assertEqual(caught.exception.code, code)

    def test_no_samples(self):
        self.refused(-5, "has no subfolders, expected one per class")
        os.mkdir(os.path.join(self.folder, "empty"))
        self.put("full/a.png")
        self.refused(-5, "there is no image in .*/empty")
        self.folder = os.path.join(self.folder, "nowhere")
        self.refused(-5, "cannot read the folder .*/nowhere: No such file or directory")

    def test_options(self):
        self.put("a/a.png")
        self.refused(-7, "channels is 2, expected 1 or 3", channels=2)
        self.refused(-7, r"crop\[1\] is 0, expected \[1, 32768\]", crop=(4, 0))
        self.refused(-7, r"resize is 255, expected \[256, 32768\]", crop=(4, 256), resize=255)
        self.refused(-7, r"scale is \[0.5, 1.5\], expected 0 < low <= high <= 1", scale=(0.5, 1.5))
        self.refused(-7, r"ratio is \[2, 1\], expected 0 < low <= high <= 64", ratio=(2, 1))

    def test_bad_pictures_are_named(self):
        self.put("a/a.jpg", 100, 100)
        path = os.path.join(self.folder, "a/a.jpg")
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
        with open(os.path.join(self.folder, "a/b.bmp"), "wb") as file:
            file.write(b"BM")
        os.symlink("/nowhere", os.path.join(self.folder, "a/c.png"))
        images.save(os.path.join(self.folder, "a/d.png"), np.zeros((4, 4), np.uint16))
        ours = Folder(self.folder, crop=(4, 4), resize=4)
        for index, (code, text) in enumerate(
            [(-6, "a/a.jpg: Premature end of JPEG file"), (-6, "a/b.bmp is not an image"), (-5, "cannot open .*/a/c.png"), (-9, "a/d.png: expected 8 bits")]
        ):
            with self.assertRaisesRegex(tern.TernError, text) as caught:
                ours.sample(index)
            self.assertEqual(caught.exception.code, code)
        self.put("a/a.jpg")
        ours.sample(0)


if __name__ == "__main__":
    skips.main()
