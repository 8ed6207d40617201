"""tern_cityscapes_open compared with Pillow and torchvision: images, maps by the label table, order, sizes; and
errors that name what is wrong with a dataset."""
import ctypes
import os

import numpy as np
import PIL.Image
import torchvision
from torchvision.transforms import InterpolationMode, functional

import datasets
import images
import skips
import tern
from folder import InFolder

DRAW = np.random.default_rng(33)


class CityscapesOpts(ctypes.Structure):
    """tern_cityscapes_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("train_ids", ctypes.c_void_p),
        ("ids", ctypes.c_int),
        ("classes", ctypes.c_int),
        ("resize", ctypes.c_int64 * 2),
    ]


lib = images.lib
lib.returns(CityscapesOpts, "tern_cityscapes_defaults")
lib.returns(ctypes.POINTER(datasets.Dataset), "tern_cityscapes_open")


class Cityscapes:
    """Images and maps as arrays."""

    def __init__(self, root, split, train_ids=None, **options):
        opts = lib.tern_cityscapes_defaults()
        if train_ids is not None:
            table = np.asarray(train_ids, np.uint8)
            opts.train_ids, opts.ids = table.ctypes.data, len(table)
        for name, value in options.items():
            setattr(opts, name, value)
        self.dataset = lib.check("tern_cityscapes_open", root.encode(), split.encode(), ctypes.byref(opts))

    def __del__(self):
        if hasattr(self, "dataset"):
            lib.tern_dataset_free(self.dataset)

    def __getitem__(self, index):
        d, err = self.dataset.contents, tern.Error()
        x, y = np.empty(d.shape[:3], np.float32), np.empty(d.target_shape[:2], np.uint8)
        d.get(self.dataset, 0, index, x.ctypes.data, y.ctypes.data, ctypes.byref(err))
        if err.code:
            raise tern.TernError(err)
        return x, y

    def path(self, index):
        return lib.tern_cityscapes_path(self.dataset, ctypes.c_int64(index)).decode()


class CityscapesTest(InFolder):
    def put(self, name, height=12, width=20, ids=34, split="train", map_size=None):
        picture = DRAW.integers(0, 256, (height, width, 3)).astype(np.uint8)
        labels = DRAW.integers(0, ids, map_size or (height, width)).astype(np.uint8)
        for array, kind, end in ((picture, "leftImg8bit", "leftImg8bit"), (labels, "gtFine", "gtFine_labelIds")):
            path = os.path.join(self.folder, kind, split, f"{name}_{end}.png")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            PIL.Image.fromarray(array).save(path)
        return picture, labels

    def test_beside_torchvision(self):
        """Its list of classes gives the table. Its file order is the file system's, ours is sorted."""
        want = {}
        for name in ("ulm/ulm_2", "ulm/ulm_10", "aachen/a_1", "zürich/z_3"):
            for kind in ("color.png", "polygons.json"):  # also there in the original
                path = os.path.join(self.folder, "gtFine/train", f"{name}_gtFine_{kind}")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "w").close()
            want[name] = self.put(name)
        self.put("other/o", split="val")
        table = np.array([c.train_id % 256 for c in torchvision.datasets.Cityscapes.classes if c.id >= 0], np.uint8)
        self.assertEqual(len(table), 34)
        ours = Cityscapes(self.folder, "train")
        d = ours.dataset.contents
        self.assertEqual((d.length, d.classes, d.ndim, d.target_ndim, d.target_dtype), (4, 19, 3, 2, 4))
        for i, name in enumerate(sorted(want)):
            self.assertEqual(ours.path(i), os.path.join(self.folder, "leftImg8bit/train", name + "_leftImg8bit.png"))
            picture, labels = want[name]
            x, y = ours[i]
            np.testing.assert_array_equal(x, functional.to_tensor(picture).numpy())
            np.testing.assert_array_equal(y, table[labels])
        theirs = torchvision.datasets.Cityscapes(self.folder, "train", target_type="semantic")
        self.assertEqual(sorted(theirs.images), [ours.path(i) for i in range(4)])

    def test_a_table_of_ones_own_and_resizing(self):
        sizes = [(12, 20), (30, 11), (7, 40)]
        want = [self.put(f"c/{i}", *size, ids=4) for i, size in enumerate(sizes)]
        table = np.array([2, 255, 0, 1])
        ours = Cityscapes(self.folder, "train", table, classes=3, resize=(14, 17))
        for i, (picture, labels) in enumerate(want):
            x, y = ours[i]
            image = functional.resize(PIL.Image.fromarray(picture), (14, 17))
            np.testing.assert_array_equal(x, functional.to_tensor(image).numpy())
            nearest = functional.resize(PIL.Image.fromarray(table[labels].astype(np.uint8)), (14, 17), InterpolationMode.NEAREST)
            np.testing.assert_array_equal(y, np.asarray(nearest))

    def test_maps_with_a_palette(self):
        """Ids are indices, whatever colours they have."""
        _, labels = self.put("c/0", ids=4)
        shown = PIL.Image.fromarray(labels, "P")
        shown.putpalette(DRAW.integers(0, 256, 12).astype(np.uint8).tobytes())
        shown.save(os.path.join(self.folder, "gtFine/train/c/0_gtFine_labelIds.png"), bits=2)
        np.testing.assert_array_equal(Cityscapes(self.folder, "train", range(4))[0][1], labels)

    # ---- what is wrong ----

    def refused(self, code, text, do):
        with self.assertRaisesRegex(tern.TernError, text) as caught:
            do()
        self.assertEqual(caught.exception.code, code)

    def test_nothing_there(self):
        open_it = lambda: Cityscapes(self.folder, "train")
        self.refused(-5, "cannot read the folder .*/leftImg8bit/train: No such file", open_it)
        os.makedirs(os.path.join(self.folder, "leftImg8bit/train/city"))
        self.refused(-5, "there is no CITY/NAME_leftImg8bit.png in .*/leftImg8bit/train", open_it)
        self.put("c/1")
        os.remove(os.path.join(self.folder, "gtFine/train/c/1_gtFine_labelIds.png"))
        self.refused(-5, "c/1_leftImg8bit.png has no map: cannot open .*/c/1_gtFine_labelIds.png: No such file", open_it)

    def test_sizes_and_ids(self):
        self.put("c/0")
        self.put("c/1", map_size=(12, 21))
        self.put("c/2", height=13)
        _, labels = self.put("c/3")
        labels[5, 7] = 34
        PIL.Image.fromarray(labels).save(os.path.join(self.folder, "gtFine/train/c/3_gtFine_labelIds.png"))
        ours = Cityscapes(self.folder, "train")
        ours[0]
        self.refused(-2, r"c/1_leftImg8bit.png is 12 x 20, but its map .*c/1_gtFine_labelIds.png is 12 x 21", lambda: ours[1])
        self.refused(-2, r"c/2_leftImg8bit.png is 13 x 20, expected 12 x 20 like .*c/0_leftImg8bit.png", lambda: ours[2])
        self.refused(-7, r"c/3_gtFine_labelIds.png: id 34 at row 5, column 7, expected \[0, 33\]", lambda: ours[3])

    def test_kinds_of_files(self):
        self.put("c/0")
        self.put("c/1")
        self.put("c/2")
        maps = [os.path.join(self.folder, f"gtFine/train/c/{i}_gtFine_labelIds.png") for i in range(3)]
        images.save(maps[0], np.zeros((12, 20), np.uint16))
        images.save(maps[1], np.zeros((12, 20, 3), np.uint8))
        os.truncate(maps[2], 60)
        ours = Cityscapes(self.folder, "train")
        self.refused(-9, "c/0_gtFine_labelIds.png: expected 8 bits", lambda: ours[0])
        self.refused(-6, "c/1_gtFine_labelIds.png is a colour image", lambda: ours[1])
        self.refused(-6, "c/2_gtFine_labelIds.png: the file is truncated", lambda: ours[2])

    def test_options(self):
        self.put("c/0")
        for text, options in (
            (r"ids is 35, expected \[1, 34\]", {"ids": 35}),
            (r"ids is 257, expected \[1, 256\]", {"train_ids": [0] * 257}),
            (r"train_ids\[1\] is 2, expected \[0, 1\] or 255", {"train_ids": [0, 2], "classes": 2}),
            (r"resize is 4, 0, expected \[1, 32768\], or 0, 0", {"resize": (4, 0)}),
        ):
            self.refused(-7, text, lambda: Cityscapes(self.folder, "train", **options))


if __name__ == "__main__":
    skips.main()
