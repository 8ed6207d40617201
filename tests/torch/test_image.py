"""Image files compared with Pillow: every kind that it writes decodes to the same pixels, and it reads saved files.
Any damage gives an error with the file's name, or leaves the pixels unchanged."""
import io
import os
import resource
import struct
import zlib

import numpy as np
import PIL.Image

import images
import skips
from folder import InFolder
import tern

DRAW = np.random.default_rng(31)
E_IO, E_FORMAT, E_RANGE, E_UNSUPPORTED = -5, -6, -7, -9


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def smooth(height, width, channels=3):
    """An image like a camera's. JPEG would keep little of noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (3 + c) + c) * np.cos(y / (5 + c)) * 100 + 128 for c in range(channels)]
    return (np.stack(waves, -1) + DRAW.normal(0, 8, (height, width, channels))).clip(0, 255).astype(np.uint8)


def tiff_of(array, order="<", planar=False, tile=None, orientation=1):
    """An uncompressed TIFF of (height, width, samples) in either byte order, its samples together or in planes, in strips of
    3 rows or in tiles of (height, width)."""
    height, width, samples = array.shape
    array = array.astype(array.dtype.newbyteorder(order))
    blocks = []
    for plane in array.transpose(2, 0, 1)[..., None] if planar else [array]:
        rows, columns = tile or (3, width)
        for y in range(0, height, rows):
            for x in range(0, width, columns):
                block = plane[y : y + rows, x : x + columns]
                if tile:
                    block = np.pad(block, [(0, rows - block.shape[0]), (0, columns - block.shape[1]), (0, 0)])
                blocks.append(block.tobytes())
    kind = {"u": 1, "i": 2, "f": 3}[array.dtype.kind]
    fields = {256: [width], 257: [height], 258: [8 * array.itemsize] * samples, 259: [1], 262: [2 if samples > 2 else 1]}
    fields |= {274: [orientation], 277: [samples], 284: [2 if planar else 1], 339: [kind] * samples}
    fields |= {322: [tile[1]], 323: [tile[0]]} if tile else {278: [3]}
    starts, counts = (324, 325) if tile else (273, 279)
    fields[counts] = [len(block) for block in blocks]
    fields[starts] = [8 + sum(fields[counts][:i]) for i in range(len(blocks))]
    at = 8 + sum(fields[counts])
    directory, more = b"", b""
    for tag, values in sorted(fields.items()):
        data = struct.pack(f"{order}{len(values)}I", *values)
        if len(data) > 4:
            more, data = more + data, struct.pack(order + "I", at + 2 + 12 * len(fields) + 4 + len(more))
        directory += struct.pack(order + "HHI", tag, 4, len(values)) + data
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", at)
    return head + b"".join(blocks) + struct.pack(order + "H", len(fields)) + directory + bytes(4) + more


def turned(stored, orientation):
    """(height, width, ..) turned as TIFF's orientation tag says; values other than 1 to 8 have no meaning."""
    is_turned = 5 <= orientation <= 8
    if orientation in (2, 3, 6, 7):
        stored = np.flip(stored, 0 if is_turned else 1)
    if orientation in (3, 4, 7, 8):
        stored = np.flip(stored, 1 if is_turned else 0)
    return stored.swapaxes(0, 1) if is_turned else stored


def png_of(height, width, bits, colours, data, interlaced=0):
    """A PNG whose rows are `data`, and with a palette where there has to be one."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, interlaced)
    palette = chunk(b"PLTE", bytes(3)) if colours == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def interlaced_png(array):
    """Adam7, of (height, width, 3) bytes."""
    rows = b""
    for y, x, down, right in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = array[y::down, x::right]
        rows += b"".join(b"\0" + row.tobytes() for row in part) if part.size else b""
    return png_of(*array.shape[:2], 8, 2, rows, 1)


def jpeg_parts(data):
    """A JPEG's bytes before the frame's header, that, those up to the scan's data, and the data, with EOI."""
    frame = next(data.index(bytes([255, kind])) for kind in (0xC0, 0xC2) if bytes([255, kind]) in data)
    after = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    scan = data.index(b"\xff\xda", after)
    begin = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    return data[:frame], data[frame:after], data[after:begin], data[begin:]


def restarting_jpeg(strips, numbers):
    """One JPEG of (8, width) strips: a restart interval for each, with these numbers in the markers between them. A strip's data
    is a whole scan, so it starts as an interval has to."""
    files = []
    for strip in strips:
        file = io.BytesIO()
        PIL.Image.fromarray(strip).save(file, "jpeg", subsampling=0)
        files.append(jpeg_parts(file.getvalue()))
    before, frame, between, _ = files[0]
    frame = frame[:5] + struct.pack(">H", sum(len(strip) for strip in strips)) + frame[7:]
    interval = struct.pack(">HHH", 0xFFDD, 4, -(-strips[0].shape[1] // 8))
    scans = [data[:-2] for *_, data in files]
    for at, number in enumerate(numbers):
        scans[at] += bytes([255, 0xD0 + number % 8])
    return before + frame + interval + between + b"".join(scans) + b"\xff\xd9"


class ImageTest(InFolder):
    def path(self, name):
        return os.path.join(self.folder, name)

    def written(self, picture, name, **options):
        picture.save(self.path(name), **options)
        return self.path(name)

    def sizes(self):
        return [(1, 1), (1, 17), (16, 1), (8, 8), (37, 53), (64, 129)]

    # ---- JPEG ----

    def test_jpeg(self):
        for height, width in self.sizes():
            for mode, channels in (("RGB", 3), ("L", 1)):
                for options in ({}, {"subsampling": 0}, {"subsampling": 1}, {"progressive": True}, {"quality": 20}):
                    data = smooth(height, width, channels).squeeze(-1) if channels == 1 else smooth(height, width)
                    path = self.written(PIL.Image.fromarray(data, mode), "a.jpg", **options)
                    want = PIL.Image.open(path)
                    np.testing.assert_array_equal(images.load(path)[0], np.asarray(want))
                    np.testing.assert_array_equal(images.load(path, channels=3)[0], np.asarray(want.convert("RGB")))

    def test_grey_of_a_jpeg_is_its_own(self):
        path = self.written(PIL.Image.fromarray(smooth(40, 50)), "a.jpg", quality=95)
        want = PIL.Image.open(path)
        want.draft("L", want.size)
        np.testing.assert_array_equal(images.load(path, channels=1)[0], np.asarray(want))

    def test_inks(self):
        """Pillow's own conversion, from a file with Adobe's marker and from one without."""
        path = self.written(PIL.Image.fromarray(smooth(21, 33, 4), "CMYK"), "a.jpg", quality=90)
        np.testing.assert_array_equal(images.load(path)[0], np.asarray(PIL.Image.open(path).convert("RGB")))
        data = bytes_of(path)
        at = data.index(b"\xff\xeeAdobe".replace(b"Adobe", b"\x00\x0eAdobe"))
        with open(path, "wb") as file:
            file.write(data[:at] + data[at + 16 :])
        np.testing.assert_array_equal(images.load(path)[0], np.asarray(PIL.Image.open(path).convert("RGB")))

    def test_smaller_jpeg(self):
        path = self.written(PIL.Image.fromarray(smooth(75, 101)), "a.jpg")
        for least, part in (((75, 101), 1), ((38, 51), 2), ((38, 52), 1), ((10, 26), 4), ((10, 13), 8), ((1, 1), 8)):
            want = PIL.Image.open(path)
            want.draft("RGB", (101 // part, 75 // part))
            got = images.load(path, least=least)[0]
            self.assertEqual(got.shape[:2], (-(-75 // part), -(-101 // part)))
            np.testing.assert_array_equal(got, np.asarray(want))

    def test_restart_markers_of_any_number(self):
        """All data is there, so the pixels are those of the file with the right numbers; Pillow leaves out strips if a number
        differs by one or two."""
        strips = [smooth(8, 37) for _ in range(21)]
        path = self.path("a.jpg")

        def save(numbers, of=strips):
            with open(path, "wb") as file:
                file.write(restarting_jpeg(of, numbers))
            return images.load(path)[0]

        want = save(range(20))
        np.testing.assert_array_equal(want, np.asarray(PIL.Image.open(path)))
        for start in (3, 4, 5):
            np.testing.assert_array_equal(save(range(start, start + 20)), want)
            np.testing.assert_array_equal(np.asarray(PIL.Image.open(path)), want)
        for numbers in (range(1, 21), range(7, 27), range(20, 0, -1), [0] * 20, DRAW.integers(0, 8, 20), DRAW.permutation(20)):
            np.testing.assert_array_equal(save(numbers), want)
        for lost in range(21):  # the height stays: a strip's data is missing
            data = restarting_jpeg(strips[:lost] + strips[lost + 1 :], range(19))
            before, frame, *rest = jpeg_parts(data)
            data = before + frame[:5] + struct.pack(">H", 21 * 8) + frame[7:] + b"".join(rest)
            self.assertEqual(self.refused(path, data).code, E_FORMAT)

    def test_a_probe_refuses_what_a_load_refuses(self):
        """Numbers of components, and samples that do not divide those of another; Pillow cannot read them either."""
        path = self.written(PIL.Image.fromarray(smooth(24, 40)), "a.jpg", subsampling=0)
        before, frame, between, data = jpeg_parts(bytes_of(path))
        parts = [frame[10 + 3 * c : 13 + 3 * c] for c in range(3)]
        scan = between[between.rindex(b"\xff\xda") :]
        for count in (2, 5):
            head = struct.pack(">HHBHHB", 0xFFC0, 8 + 3 * count, 8, 24, 40, count)
            head += b"".join(bytes([c + 1, 0x11, 0]) for c in range(count))
            many = min(count, 4)
            first = struct.pack(">HHB", 0xFFDA, 6 + 2 * many, many) + b"".join(bytes([c + 1, 0]) for c in range(many)) + b"\0\x3f\0"
            for probe in True, False:
                error = self.refused(path, before + head + between[: -len(scan)] + first + data, probe=probe)
                self.assertEqual((error.code, f"it has {count} components" in str(error)), (E_UNSUPPORTED, True), str(error))
            with self.assertRaises(Exception):
                PIL.Image.open(path).load()
        for factors in ((0x31, 0x21, 0x11), (0x11, 0x23, 0x12)):
            head = frame[:10] + b"".join(part[:1] + bytes([f]) + part[2:] for part, f in zip(parts, factors))
            for probe in True, False:
                self.assertEqual(self.refused(path, before + head + between + data, probe=probe).code, E_UNSUPPORTED)
            with self.assertRaises(Exception):
                PIL.Image.open(path).load()

    # ---- PNG ----

    def test_png(self):
        for height, width in self.sizes():
            grey, rgba = smooth(height, width, 1)[..., 0], smooth(height, width, 4)
            for data, mode in ((grey, "L"), (rgba[..., :3], "RGB"), (rgba, "RGBA"), (rgba[..., :2], "LA")):
                path = self.written(PIL.Image.fromarray(np.ascontiguousarray(data), mode), "a.png")
                want = data[..., 0] if mode == "LA" else data if mode == "L" else data[..., :3]
                np.testing.assert_array_equal(images.load(path)[0], want)
                convert = PIL.Image.fromarray(np.ascontiguousarray(want)).convert
                np.testing.assert_array_equal(images.load(path, channels=3)[0], np.asarray(convert("RGB")))
                np.testing.assert_array_equal(images.load(path, channels=1)[0], np.asarray(convert("L")))

    def test_interlaced_png(self):
        for height, width in self.sizes():
            data = smooth(height, width)
            with open(self.path("a.png"), "wb") as file:
                file.write(interlaced_png(data))
            np.testing.assert_array_equal(np.asarray(PIL.Image.open(self.path("a.png"))), data)
            np.testing.assert_array_equal(images.load(self.path("a.png"))[0], data)

    def test_png_of_16_bits(self):
        for height, width in self.sizes():
            data = DRAW.integers(0, 65536, (height, width)).astype(np.uint16)
            path = self.written(PIL.Image.fromarray(data), "a.png")
            np.testing.assert_array_equal(images.load(path)[0], data)
            np.testing.assert_array_equal(images.load(path, channels=3)[0], np.stack([data] * 3, -1))

    def test_palettes(self):
        for colours, bits in ((2, 1), (4, 2), (16, 4), (200, 8)):
            index = DRAW.integers(0, colours, (13, 19)).astype(np.uint8)
            palette = DRAW.integers(0, 256, (colours, 3)).astype(np.uint8)
            picture = PIL.Image.fromarray(index, "P")
            picture.putpalette(palette.tobytes())
            path = self.written(picture, "a.png", bits=bits)
            np.testing.assert_array_equal(images.load(path, indices=True)[0], index)
            np.testing.assert_array_equal(images.load(path)[0], palette[index])
            path = self.written(picture, "b.png", bits=bits, transparency=0)
            np.testing.assert_array_equal(images.load(path)[0], palette[index])

    def test_grey_of_few_bits(self):
        data = DRAW.integers(0, 2, (9, 21)).astype(bool)
        path = self.written(PIL.Image.fromarray(data), "a.png")
        np.testing.assert_array_equal(images.load(path)[0], data * np.uint8(255))
        np.testing.assert_array_equal(images.load(path, indices=True)[0], data)

    def test_colours_are_no_labels(self):
        path = self.written(PIL.Image.fromarray(smooth(4, 4)), "a.png")
        with self.assertRaisesRegex(tern.TernError, "a.png is a colour image, expected a map of labels"):
            images.load(path, indices=True)

    # ---- TIFF ----

    def test_tiff(self):
        for compression in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits"):
            for height, width in self.sizes():
                for data in (
                    smooth(height, width),
                    smooth(height, width, 1)[..., 0],
                    DRAW.integers(0, 65536, (height, width)).astype(np.uint16),
                    DRAW.standard_normal((height, width)).astype(np.float32),
                ):
                    path = self.written(PIL.Image.fromarray(data), "a.tif", compression=compression)
                    np.testing.assert_array_equal(images.load(path)[0], data)

    def test_byte_orders_planes_and_tiles(self):
        for height, width in self.sizes():
            for samples, dtype in ((1, np.uint8), (3, np.uint8), (4, np.uint16), (3, np.float32)):
                data = DRAW.integers(0, 256, (height, width, samples)).astype(dtype)
                for order in "<>":
                    for planar in (False, True):
                        for tile in (None, (16, 32)):
                            with open(self.path("a.tif"), "wb") as file:
                                file.write(tiff_of(data, order, planar, tile))
                            got = images.load(self.path("a.tif"))[0]
                            np.testing.assert_array_equal(got, data.squeeze(-1) if samples == 1 else data[..., :3])

    def test_kinds_of_samples_that_are_refused(self):
        for dtype in (np.int16, np.uint32, np.float64):
            error = self.refused(self.path("a.tif"), tiff_of(np.zeros((4, 4, 1), dtype)))
            self.assertEqual(error.code, E_UNSUPPORTED)
            self.assertRegex(str(error), "a.tif: .*-bit samples of format .*: expected 8 or 16 bits or f32")

    def test_other_kinds_of_tiff(self):
        """Palettes, bilevel, alpha, and JPEG compression."""
        index = DRAW.integers(0, 256, (20, 30)).astype(np.uint8)
        picture = PIL.Image.fromarray(index, "P")
        picture.putpalette(DRAW.integers(0, 256, 768).astype(np.uint8).tobytes())
        path = self.written(picture, "a.tif")
        np.testing.assert_array_equal(images.load(path)[0], np.asarray(picture.convert("RGB")))
        np.testing.assert_array_equal(images.load(path, indices=True)[0], index)
        rgba = smooth(20, 30, 4)
        path = self.written(PIL.Image.fromarray(rgba), "b.tif")
        np.testing.assert_array_equal(images.load(path)[0], rgba[..., :3])
        bits = index > 99
        path = self.written(PIL.Image.fromarray(bits), "c.tif", compression="group4")
        np.testing.assert_array_equal(images.load(path)[0], bits * np.uint8(255))
        path = self.written(PIL.Image.fromarray(smooth(32, 48)), "d.tif", compression="jpeg", quality=95)
        near = images.load(path)[0].astype(int) - np.asarray(PIL.Image.open(path).convert("RGB"))
        self.assertLessEqual(abs(near).max(), 2)

    def pictures(self):
        """Images of every kind that Pillow writes as TIFF, with their tags; each ink is full or absent."""
        rgb = PIL.Image.fromarray(smooth(20, 33))
        for mode in ("RGB", "RGBA", "L", "1", "F"):
            yield rgb.convert(mode), {}
        yield rgb.convert("L"), {262: 0}  # in which 0 is white
        yield rgb.quantize(16), {}
        yield PIL.Image.fromarray(DRAW.integers(0, 65536, (20, 33)).astype(np.uint16)), {}
        yield PIL.Image.fromarray(DRAW.integers(0, 2, (20, 33, 4)).astype(np.uint8) * 255, "CMYK"), {}

    def test_orientations_are_applied_as_pillow_does(self):
        for picture, tags in self.pictures():
            for orientation in range(1, 9):
                for compression in (None, "tiff_lzw"):
                    with self.subTest(mode=picture.mode, tags=tags, orientation=orientation, compression=compression):
                        path = self.written(picture, "a.tif", tiffinfo={274: orientation, **tags}, compression=compression)
                        want = PIL.Image.open(io.BytesIO(bytes_of(path)))  # mapping a file, 11.1 reads it with its turned size
                        want.load()
                        probe = images.load(path, probe=True)[0]
                        self.assertEqual((probe.width, probe.height), want.size)
                        if want.mode == "P":
                            np.testing.assert_array_equal(images.load(path, indices=True)[0], np.asarray(want))
                        if want.mode in ("RGBA", "CMYK", "P", "1"):
                            want = want.convert("L" if want.mode == "1" else "RGB")
                        np.testing.assert_array_equal(images.load(path)[0], np.asarray(want))

    def test_orientations_of_planes_and_tiles(self):
        for samples, dtype in ((1, np.uint8), (3, np.uint8), (4, np.uint16), (3, np.float32)):
            data = DRAW.integers(0, 256, (37, 53, samples)).astype(dtype)
            for layout in range(4):
                for orientation in range(10):
                    with open(self.path("a.tif"), "wb") as file:
                        file.write(tiff_of(data, "<", layout & 1, (16, 32) if layout & 2 else None, orientation))
                    got = images.load(self.path("a.tif"))[0]
                    want = turned(data, orientation)
                    np.testing.assert_array_equal(got, want.squeeze(-1) if samples == 1 else want[..., :3])

    def test_orientation_of_jpeg_inside(self):
        for orientation in range(1, 9):
            path = self.written(PIL.Image.fromarray(smooth(32, 48)), "a.tif", compression="jpeg", tiffinfo={274: orientation})
            data, got = bytes_of(path), images.load(path)[0]
            entry = data.index(struct.pack("<HHI", 274, 3, 1))
            with open(path, "wb") as file:
                file.write(data[: entry + 8] + b"\1" + data[entry + 9 :])
            np.testing.assert_array_equal(got, turned(images.load(path)[0], orientation))

    def test_stack(self):
        pages = DRAW.integers(0, 65536, (7, 11, 13)).astype(np.uint16)
        pictures = [PIL.Image.fromarray(page) for page in pages]
        path = self.written(pictures[0], "stack.tif", save_all=True, append_images=pictures[1:])
        for page in range(7):
            got, count = images.load(path, page=page)
            self.assertEqual(count, 7)
            np.testing.assert_array_equal(got, pages[page])
        for page in (-1, 7):
            with self.assertRaisesRegex(tern.TernError, rf"stack.tif: page is {page}, expected \[0, 7\)") as caught:
                images.load(path, page=page)
            self.assertEqual(caught.exception.code, E_RANGE)

    # ---- probing, saving ----

    def test_probe(self):
        for name, kind in (("a.jpg", "JPEG"), ("a.png", "PNG"), ("a.tif", "TIFF")):
            path = self.written(PIL.Image.fromarray(smooth(12, 34)), name)
            os.rename(path, self.path("nameless"))  # the content determines the format
            probe, pages = images.load(self.path("nameless"), probe=True)
            self.assertEqual((probe.height, probe.width, probe.channels, probe.sample, pages), (12, 34, 3, 0, 1), kind)
            self.assertIsNone(probe.data)

    def test_save(self):
        for height, width in self.sizes():
            rgba = smooth(height, width, 4)
            deep = DRAW.integers(0, 65536, (height, width, 3)).astype(np.uint16)
            for data in (rgba, rgba[..., :3], rgba[..., 0], deep[..., 0]):
                images.save(self.path("s.png"), data)
                np.testing.assert_array_equal(np.asarray(PIL.Image.open(self.path("s.png"))), data)
            images.save(self.path("s.png"), deep)  # Pillow has no such mode
            np.testing.assert_array_equal(images.load(self.path("s.png"))[0], deep)
            palette = DRAW.integers(0, 256, (7, 3))
            index = DRAW.integers(0, 7, (height, width)).astype(np.uint8)
            images.save(self.path("s.png"), index, palette)
            np.testing.assert_array_equal(np.asarray(PIL.Image.open(self.path("s.png"))), index)
            np.testing.assert_array_equal(np.asarray(PIL.Image.open(self.path("s.png")).convert("RGB")), palette[index])

    # ---- damage ----

    def kinds(self):
        pages = [PIL.Image.fromarray(smooth(40, 30)) for _ in range(2)]
        yield self.written(pages[0], "a.jpg")
        yield self.written(pages[0], "progressive.jpg", progressive=True)
        yield self.written(pages[0], "a.png")
        yield self.written(pages[0], "a.tif")
        yield self.written(pages[0], "packed.tif", compression="tiff_lzw", save_all=True, append_images=pages[1:])

    def refused(self, path, data, **options):
        with open(path, "wb") as file:
            file.write(data)
        with self.assertRaises(tern.TernError) as caught:
            images.load(path, **options)
        self.assertIn(os.path.basename(path), str(caught.exception))
        return caught.exception

    def test_truncated_anywhere(self):
        """For TIFF the last page: the first one may be intact. The last 15 bytes may be unused."""
        for path in self.kinds():
            data, pages = bytes_of(path), images.load(path)[1]
            for size in sorted({0, 1, 2, 3, 4, 8, *range(5, len(data) - 16, 101), len(data) - 16}):
                with self.subTest(path=path, size=size, of=len(data)):
                    error = self.refused(path, data[:size], page=pages - 1)
                    self.assertIn(error.code, (E_FORMAT, E_RANGE), str(error))

    def test_bytes_changed_anywhere(self):
        """No crash, and a result has the right size."""
        for path in self.kinds():
            data = bytes_of(path)
            for _ in range(120):
                broken = bytearray(data)
                for at in DRAW.integers(0, len(data), DRAW.integers(1, 4)):
                    broken[at] = DRAW.integers(0, 256)
                with open(path, "wb") as file:
                    file.write(broken)
                try:
                    images.load(path, pixels_most=1 << 20)
                except tern.TernError as error:
                    self.assertIn(os.path.basename(path), str(error))

    def test_sizes_are_not_believed(self):
        """Headers that claim 10^9 pixels and more, without data."""
        jpeg = bytearray(bytes_of(self.written(PIL.Image.fromarray(smooth(8, 8)), "a.jpg")))
        at = jpeg.index(b"\xff\xc0")
        jpeg[at + 5 : at + 9] = (40000).to_bytes(2, "big") * 2
        self.assertEqual(self.refused(self.path("a.jpg"), jpeg).code, E_RANGE)
        images.save(self.path("a.png"), smooth(8, 8))
        png = bytearray(bytes_of(self.path("a.png")))
        png[16:24] = (2**31 - 1).to_bytes(4, "big") * 2
        png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
        error = self.refused(self.path("a.png"), png)
        self.assertEqual(error.code, E_RANGE)
        self.assertRegex(str(error), "a.png has 2147483647 x 2147483647 pixels according to its header, expected at most 268435456")
        path = self.written(PIL.Image.fromarray(smooth(8, 8)), "a.tif")
        tiff = bytearray(bytes_of(path))
        directory = int.from_bytes(tiff[4:8], "little")
        for entry in range(int.from_bytes(tiff[directory : directory + 2], "little")):
            at = directory + 2 + 12 * entry
            if int.from_bytes(tiff[at : at + 2], "little") in (256, 257, 278):  # width, length, rows in a strip
                tiff[at + 2 : at + 12] = b"\x04\0\1\0\0\0" + (40000).to_bytes(4, "little")
        self.assertEqual(self.refused(path, tiff).code, E_RANGE)

    def absurd(self):
        """Files that claim as many pixels as are allowed, and have next to none: (name, bytes)."""
        for bits, colours in ((1, 0), (16, 0), (8, 3), (8, 2), (16, 2), (16, 6)):
            for interlaced in 0, 1:
                for data in (b"", bytes(1000)):
                    yield f"{bits}.{colours}.png", png_of(16383, 16384, bits, colours, data, interlaced)
        for options in ({}, {"subsampling": 0}, {"progressive": True}, {"optimize": True}):
            before, frame, *rest = jpeg_parts(bytes_of(self.written(PIL.Image.fromarray(smooth(8, 8)), "a.jpg", **options)))
            yield "a.jpg", before + frame[:5] + struct.pack(">HH", 16383, 16384) + frame[9:] + b"".join(rest)
        for options in ({}, {"compression": "tiff_lzw"}, {"compression": "tiff_deflate"}):
            tiff = bytearray(bytes_of(self.written(PIL.Image.fromarray(smooth(8, 8)), "a.tif", **options)))
            directory = int.from_bytes(tiff[4:8], "little")
            for entry in range(int.from_bytes(tiff[directory : directory + 2], "little")):
                at = directory + 2 + 12 * entry
                if int.from_bytes(tiff[at : at + 2], "little") in (256, 257):  # width, length
                    tiff[at + 2 : at + 12] = b"\x04\0\1\0\0\0" + (16383).to_bytes(4, "little")
            yield "a.tif", tiff

    def test_memory_follows_the_file(self):
        for name, data in self.absurd():
            with self.subTest(name=name, bytes=len(data)):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                self.assertEqual(self.refused(self.path(name), data).code, E_FORMAT)
                self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 160 << 10, "KiB")

    def test_much_in_few_bytes_is_read(self):
        """As few bytes as zlib and libjpeg can make of an image, and Pillow reads."""
        for bits, colours, channels in ((1, 0, 1), (8, 0, 1), (8, 3, 3), (8, 2, 3), (8, 6, 3)):
            for height, width in ((1, 1), (1, 3000), (3000, 1), (1500, 1501)):
                row = 1 + -(-width * bits * {0: 1, 2: 3, 3: 1, 6: 4}[colours] // 8)
                with open(self.path("a.png"), "wb") as file:
                    file.write(png_of(height, width, bits, colours, bytes(row * height)))
                got = images.load(self.path("a.png"))[0]
                self.assertEqual((got.shape, got.any()), ((height, width, 3)[: 2 + channels // 3], False))
        for size in (1, 2), (1500, 1501):
            with open(self.path("a.png"), "wb") as file:
                file.write(interlaced_png(np.zeros((*size, 3), np.uint8)))
            self.assertFalse(images.load(self.path("a.png"))[0].any())
        for mode in "L", "RGB", "CMYK":
            for options in ({}, {"optimize": True}, {"progressive": True}, {"optimize": True, "progressive": True, "quality": 1}):
                path = self.written(PIL.Image.new(mode, (2100, 1999), None), "a.jpg", **options)
                want = PIL.Image.open(path)
                np.testing.assert_array_equal(images.load(path)[0], np.asarray(want if mode == "L" else want.convert("RGB")))

    def test_names_do_nothing_to_a_terminal(self):
        for name, shown in (("x\x1b]0;title\x07\n.png", r"x\x1b]0;title\a\n.png"), ("ä" * 100 + ".png", "ä" * 100 + ".png")):
            with open(self.path(name), "wb") as file:
                file.write(b"GIF")
            with self.assertRaises(tern.TernError) as caught:
                images.load(self.path(name))
            self.assertIn(f"/{shown} is not an image", str(caught.exception))

    def test_no_picture(self):
        for data, text in ((b"", "no.png is empty"), (b"GIF89a", "no.png is not an image: expected a JPEG, PNG or TIFF")):
            self.assertIn(text, str(self.refused(self.path("no.png"), data)))
        with self.assertRaisesRegex(tern.TernError, "cannot open .*/nowhere.*No such file") as caught:
            images.load(self.path("nowhere"))
        self.assertEqual(caught.exception.code, E_IO)
        with self.assertRaisesRegex(tern.TernError, "is a directory, expected a regular file"):
            images.load(self.folder)


if __name__ == "__main__":
    skips.main()
