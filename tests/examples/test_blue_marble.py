"""blue_marble on a small earth with polygons that the test writes: checks every label, the split, and the baseline from colours."""
import glob
import os
import re
import struct
import unittest

import numpy as np
from PIL import Image

import skips
from training import Folder, call, train

NAME = "blue_marble"
WIDTH, HEIGHT = 400, 200
UNITS = 120 * 360 / WIDTH  # per pixel


def ring(kind, points):
    """Returns a .pn2 polygon of nodes (longitude, latitude); every second node is an offset to the node before."""
    nodes, count = b"", 0
    for i in range(0, len(points), 2):
        part = points[i:i + 2]
        near = [(x - part[0][0], y - part[0][1]) for x, y in part[1:] if max(abs(x - part[0][0]), abs(y - part[0][1])) < 128]
        nodes += struct.pack(">hhh", part[0][1], part[0][0], len(near)) + b"".join(struct.pack(">bb", y, x) for x, y in near)
        count += 1
        if len(part) > 1 and not near:
            nodes += struct.pack(">hhh", part[1][1], part[1][0], 0)
            count += 1
    return struct.pack(">BII", kind, 7, count) + nodes


def file_of(polygons):
    """Returns a .pn2 file from lists of rings: the first ring is the outer one; if there are holes, all form one multi polygon."""
    data = b""
    for rings in polygons:
        if len(rings) > 1:
            data += struct.pack(">BIB", 4, 7, len(rings))
        data += b"".join(ring(3 if i else 2, points) for i, points in enumerate(rings))
    return struct.pack(">BIB", 2, sum(len(p) for p in polygons), 0) + data


def inside(polygons):
    """Returns the pixels with an odd number of edges left of their middle, computed one by one."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH] + 0.5
    odd = np.zeros((HEIGHT, WIDTH), bool)
    for points in [points for rings in polygons for points in rings]:
        places = [((px + 180 * 120) / UNITS, (90 * 120 - py) / UNITS) for px, py in points]
        for (x0, y0), (x1, y1) in zip(places, places[1:] + places[:1]):
            with np.errstate(divide="ignore", invalid="ignore"):
                odd ^= ((y0 < y) != (y1 < y)) & (x0 + (y - y0) / (y1 - y0) * (x1 - x0) <= x)
    return odd


class BlueMarble(Folder):
    def setUp(self):
        super().setUp()
        random = np.random.default_rng(4)

        def blob(x, y, size, nodes=9):
            angles = np.sort(random.uniform(0, 2 * np.pi, nodes))
            reach = random.uniform(0.4, 1, nodes) * size
            return [(int(x + r * np.cos(a)), int(y + r * np.sin(a))) for r, a in zip(reach, angles)]

        self.layers = {
            "land": [[blob(x, y, 4000, 12)] for x, y in ((-15000, 3000), (-2000, 1000), (12000, -2000))],
            "lakes": [[blob(-15000, 3000, 900), blob(-15000, 3000, 200)], [blob(-2000, 1000, 90)], [blob(12000, -2000, 1500, 30)]],
            "glaciated_areas": [[blob(0, 8000, 2500)]],
            "antarctic_ice_shelves_polys": [[[(-21600, -10800), (-21600, -9000), (0, -9700), (21600, -9000), (21600, -10800)]]],
        }
        self.labels = np.zeros((HEIGHT, WIDTH), np.uint8)
        for (name, polygons), label in zip(self.layers.items(), (1, 2, 3, 3)):
            self.labels[inside(polygons)] = label
            self.write(name, file_of(polygons))
        os.makedirs(self.path("marble", "maps", "earth", "bluemarble"))
        colours = np.array([[10, 20, 90], [90, 120, 40], [10, 20, 90], [240, 240, 240]], np.uint8)[self.labels]
        self.picture = self.path("marble", "maps", "earth", "bluemarble", "bluemarble.jpg")
        Image.fromarray(colours).save(self.picture, quality=95, subsampling=0)

    def write(self, name, data):
        path = self.path("marble", "naturalearth", f"ne_50m_{name}.pn2")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def test_labels_and_split(self):
        out = train(1, NAME, self.path("out"), self.path("marble"))
        bands = {}
        for path in glob.glob(self.path("out", "gtFine", "*", "*", "*_gtFine_labelIds.png")):
            split, city, name = path.split("/")[-3:]
            picture = path.replace("gtFine", "leftImg8bit", 1).replace("gtFine_labelIds", "leftImg8bit")
            with Image.open(path) as labels, Image.open(picture) as pixels:
                bands.setdefault((split, city), {})[name] = (np.array(labels), np.array(pixels))
        with Image.open(self.picture) as picture:
            pixels = np.array(picture)
        self.assertEqual(sorted(bands), [("train", c) for c in ("e036", "e072", "e108", "e144", "w036", "w072", "w108", "w144")] + [("val", "e000"), ("val", "w180")])
        for (split, city), tiles in bands.items():
            self.assertEqual(len(tiles), 5)
            left = ((int(city[1:]) if city[0] == "e" else -int(city[1:])) + 180) * WIDTH // 360
            rows = [HEIGHT * i // len(tiles) for i in range(len(tiles))]
            for top, (_, (label, pixel)) in zip(rows, sorted(tiles.items())):
                height, width = label.shape
                self.assertTrue(np.array_equal(label, self.labels[top:top + height, left:left + width]), (city, top))
                self.assertTrue(np.array_equal(pixel, pixels[top:top + height, left:left + width]))
        shares = dict(re.findall(r"(\w+) ([\d.]+) %", out))
        for label, name in enumerate(("ocean", "land", "lake", "ice")):
            self.assertAlmostEqual(float(shares[name]), 100 * (self.labels == label).mean(), delta=0.006)

    def test_colours_alone(self):
        """On this earth lakes have the colours of the ocean."""
        out = train(1, NAME, self.path("out"), self.path("marble"))
        found = dict(re.findall(r"(\w+) (\d\.\d+)", out[out.index("IoU"):]))
        self.assertEqual(float(found["lake"]), 0)
        self.assertGreater(float(found["land"]), 0.9)

    def test_what_is_not_there(self):
        cases = (("ne_50m_lakes.pn2: not a file of polygons", lambda: self.write("lakes", file_of(self.layers["lakes"])[:-3])),
                 ("ne_50m_lakes.pn2: No such file", lambda: os.remove(self.path("marble", "naturalearth", "ne_50m_lakes.pn2"))),
                 ("bluemarble.jpg: not an image of the whole earth", lambda: Image.new("RGB", (40, 40)).save(self.picture)),
                 ("bluemarble.jpg", lambda: os.remove(self.picture)))
        for text, spoil in cases:
            spoil()
            code, _, err = call(1, NAME, self.path("out"), self.path("marble"))
            self.assertEqual(code, 1)
            self.assertIn(text, err)
            self.assertFalse(os.path.exists(self.path("out")))

    @unittest.skipIf(os.path.exists("/usr/share/marble/data"), "marble-qt-data is installed")
    def test_a_missing_package_is_named(self):
        code, _, err = call(1, NAME, self.path("out"))
        self.assertEqual(code, 1)
        self.assertRegex(err, r"bluemarble.jpg: .*; apt install marble-qt-data brings it")


if __name__ == "__main__":
    skips.main()
