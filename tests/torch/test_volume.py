"""NIfTI volumes compared with nibabel: dims, values, scale and position in both directions; damaged files give errors
that name them."""
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

import nibabel
import numpy
import tern
import volumes
from PIL import Image

E_SHAPE, E_DTYPE, E_IO, E_FORMAT, E_RANGE, E_UNSUPPORTED = -2, -3, -5, -6, -7, -9
random = numpy.random.default_rng(11)
folder = tempfile.TemporaryDirectory()
plain, packed = (pathlib.Path(folder.name) / name for name in ["v.nii", "v.nii.gz"])


def random_affine():
    affine = numpy.eye(4)
    affine[:3] = random.standard_normal((3, 4)).astype("f4")
    return affine


def random_image(dtype, ndim=3, affine=None):
    shape = random.integers(1, 9, ndim)
    high = 100 if numpy.dtype(dtype).itemsize == 1 else 30000
    data = random.integers(0, high, shape).astype(dtype)
    return nibabel.Nifti1Image(data, random_affine() if affine is None else affine, dtype=data.dtype)


def values_of(image):
    """nibabel's (x, y, z, t) as (C, D, H, W)."""
    data = image.get_fdata(dtype=numpy.float64).T
    return data.reshape((1,) * (4 - data.ndim) + data.shape)


def expect_same(volume, image):
    expected = values_of(image).astype(numpy.float32)
    assert tuple(volume.shape) == expected.shape, (tuple(volume.shape), expected.shape)
    assert (volume.array() == expected).all()
    assert numpy.abs(volume.matrix() - image.affine[:3]).max() == 0
    assert list(volume.spacing) == list(image.header["pixdim"][3:0:-1])


def reads_what_nibabel_writes():
    for dtype in ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]:
        for ndim in [2, 3, 4]:
            for path in [plain, packed]:
                nibabel.save(random_image(dtype, ndim), path)
                volume = volumes.load(path)
                expect_same(volume, nibabel.load(path))
                volumes.free(volume)


def other_byte_orders():
    for dtype in ["i2", "f4", "f8"]:
        image = random_image(dtype)
        swapped = nibabel.Nifti1Image(image.dataobj, image.affine, image.header.as_byteswapped(">"), dtype=dtype)
        nibabel.save(swapped, packed)
        assert gzip.open(packed).read(4) == b"\0\0\1\x5c"
        volume = volumes.load(packed)
        expect_same(volume, nibabel.load(packed))
        volumes.save(plain, volume)
        expect_same(volume, nibabel.load(plain))
        volumes.free(volume)


def scale_is_applied():
    image = random_image("i2")
    image.header.set_slope_inter(0.25, -3)
    nibabel.save(image, plain)
    volume = volumes.load(plain)
    assert (volume.array() == values_of(nibabel.load(plain))).all()
    volumes.free(volume)


def qform_where_there_is_no_sform():
    affine = numpy.diag([2.0, 3, 4, 1])
    affine[:3, 3] = [5, 6, 7]
    image = random_image("u1", affine=affine)
    image.set_qform(affine, 1)
    image.set_sform(None, 0)
    nibabel.save(image, plain)
    volume = volumes.load(plain)
    expect_same(volume, nibabel.load(plain))
    volumes.free(volume)


def crop(volume, start, shape):
    int64s = tern.ctypes.c_int64 * 3
    return volumes.lib.check("tern_volume_crop", tern.ctypes.byref(volume), int64s(*start), int64s(*shape)).contents


def close(a, b):
    return numpy.allclose(a, b, rtol=1e-6, atol=1e-6 * numpy.abs(b).max())


def expect_place(volume, image, unit):
    """Sizes and positions are those of nibabel, which does not apply the unit; so is a crop's position."""
    assert close(volume.spacing, unit * image.header["pixdim"][3:0:-1].astype("f8")), list(volume.spacing)
    assert close(volume.matrix(), unit * image.affine[:3]), (volume.matrix(), unit * image.affine)
    start = [int(random.integers(n)) for n in volume.shape[1:]]
    box = crop(volume, start, [n - s for n, s in zip(volume.shape[1:], start)])
    assert close(box.matrix(), unit * image.slicer[tuple(slice(s, None) for s in start[::-1])].affine[:3])
    volumes.free(box)


def random_place(image, form):
    """Gives the image a position: an sform, or a qform, with which voxels are boxes."""
    image.header["pixdim"][1:4] = random.uniform(0.5, 4, 3)
    turn = nibabel.quaternions.quat2mat(random.standard_normal(4))
    affine = nibabel.affines.from_matvec(turn @ numpy.diag(image.header["pixdim"][1:4] * [random.choice([-1, 1]), 1, 1]), random.standard_normal(3))
    image.set_qform(affine if form == "q" else None, int(form == "q"))
    image.set_sform(random_affine() if form == "s" else None, int(form == "s"))


def units_become_mm():
    for name, unit in [("meter", 1e3), ("mm", 1), ("micron", 1e-3), ("unknown", 1)]:
        for form in "sq" * 5:
            image = random_image("u1")
            random_place(image, form)
            image.header.set_xyzt_units(name, "sec")
            nibabel.save(image, plain)
            source = nibabel.load(plain)
            volume = volumes.load(plain)
            expect_place(volume, source, unit)
            volumes.save(packed, volume)  # in the source's unit
            got = nibabel.load(packed)
            assert (got.affine == source.affine).all() and got.header.get_xyzt_units() == (name, "sec")
            assert (got.header["pixdim"] == source.header["pixdim"]).all()
            box = crop(volume, [0, 0, 0], volume.shape[1:])
            box.affine[3] += unit * 0.5  # it has moved
            volumes.save(packed, box)
            moved = volumes.load(packed)
            expect_place(moved, nibabel.load(packed), unit)
            assert close(moved.matrix(), box.matrix()) and close(moved.spacing, volume.spacing)
            for each in (volume, box, moved):
                volumes.free(each)


def negative_sizes_are_positive():
    for form in "sq" * 10:
        image = random_image("u1")
        random_place(image, form)
        nibabel.save(image, plain)
        data = bytearray(plain.read_bytes())
        sizes = numpy.frombuffer(data, "f4", 3, 80)
        sizes[:] *= random.choice([-1, 1], 3)
        plain.write_bytes(data)
        volume = volumes.load(plain)
        expect_place(volume, nibabel.load(plain), 1)
        assert (numpy.array(volume.spacing) == abs(sizes[::-1])).all()
        volumes.free(volume)
    for sizes in [(-2, 3, 4), (0, -3, 4), (2, numpy.nan, numpy.inf)]:  # no position: from the sizes
        random_place(image, "")
        nibabel.save(image, plain)
        data = bytearray(plain.read_bytes())
        numpy.frombuffer(data, "f4", 3, 80)[:] = sizes
        plain.write_bytes(data)
        volume = volumes.load(plain)
        wanted = [abs(s) if abs(s) > 0 and numpy.isfinite(s) else 1 for s in sizes]
        assert list(volume.spacing) == wanted[::-1] and (volume.matrix() == numpy.diag([*wanted, 1.0])[:3]).all()
        volumes.free(volume)


def nibabel_reads_what_is_written():
    for dtype in ["uint8", "int32", "float32"]:
        for ndim in [3, 4]:
            image = random_image("u1", ndim)
            image.header["descrip"] = b"a source"
            image.header.set_xyzt_units("mm", "sec")
            nibabel.save(image, plain)
            source = nibabel.load(plain)
            volume = volumes.load(plain)
            for path in [packed, plain]:
                volumes.save(path, volume, dtype)
                got = nibabel.load(path)
                assert got.get_data_dtype() == dtype
                expect_same(volume, got)
                assert got.header["descrip"] == b"a source" and got.header.get_xyzt_units() == ("mm", "sec")
                assert (got.get_qform() == source.get_qform()).all()
            volumes.free(volume)


def without_a_source():
    array = random.standard_normal((1, 3, 4, 5)).astype("f4")
    volume = volumes.new(array)
    volumes.save(packed, volume)
    got = nibabel.load(packed)
    assert (values_of(got) == array).all() and (got.affine == numpy.eye(4)).all()
    volumes.free(volume)


def a_crop_stays_where_it_is():
    image = random_image("u1", affine=random_affine())
    data = numpy.pad(image.get_fdata(), 3)
    nibabel.save(nibabel.Nifti1Image(data.astype("u1"), image.affine), plain)
    volume = volumes.load(plain)
    start, shape = [1, 2, 0], [volume.shape[1] - 2, volume.shape[2] - 3, volume.shape[3] - 1]
    box = crop(volume, start, shape)
    slices = tuple(slice(s, s + n) for s, n in zip(start, shape))
    assert (box.array()[0] == volume.array()[0][slices]).all()
    volumes.save(packed, box)
    got = nibabel.load(packed)
    expected = nibabel.load(plain).slicer[tuple(slice(s, s + n) for s, n in zip(start[::-1], shape[::-1]))]
    assert numpy.allclose(got.affine, expected.affine, rtol=1e-6, atol=1e-6)
    for bad_start, bad_shape in [([-1, 0, 0], [1, 1, 1]), ([0, 0, 0], [1, 1, 99]), ([0, 0, 0], [1, 0, 1]), ([2**62, 0, 0], [1, 1, 1])]:
        expect(E_RANGE, "does not fit the volume's", lambda: crop(volume, bad_start, bad_shape))
    volumes.free(box)
    volumes.free(volume)


def npy_both_ways():
    path = plain.with_suffix(".npy")
    for shape in [(3, 4, 5), (2, 3, 4, 5)]:
        array = random.integers(0, 250, shape).astype("u1")
        numpy.save(path, numpy.asfortranarray(array))
        volume = volumes.load(path)
        assert (volume.array() == array).all() and volume.array().ndim == 4
        for dtype in ["uint8", "int32", "float32"]:
            volumes.save(path, volume, dtype)
            got = numpy.load(path)
            assert got.dtype == dtype and got.shape == shape and (got == array).all()
        volumes.free(volume)
    numpy.save(path, numpy.zeros(3))
    expect(E_SHAPE, "1 dimensions", lambda: volumes.load(path))
    path.unlink()


def expect(code, text, call):
    try:
        call()
    except tern.TernError as error:
        assert error.code == code and text in str(error), (code, text, str(error))
        return str(error)
    raise AssertionError(f"no error, expected {text}")


def expect_bad(code, text, path):
    assert str(path) in expect(code, text, lambda: volumes.load(path))


def damaged_files_are_named():
    nibabel.save(nibabel.Nifti1Image(random.integers(0, 99, (20, 30, 40)).astype("u1"), numpy.eye(4)), packed)
    whole, unpacked = packed.read_bytes(), gzip.open(packed).read()
    for length in [0, 9, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        packed.write_bytes(whole[:length])
        expect_bad(E_IO, "truncated", packed)
    packed.write_bytes(whole[:-6] + b"\0" + whole[-5:])
    expect_bad(E_FORMAT, "cannot unpack", packed)
    packed.write_bytes(whole[:2000] + b"\0\0\0\0" + whole[2004:])
    expect_bad(E_FORMAT, "cannot unpack", packed)
    for length in [0, 200, 348, 400, len(unpacked) - 1]:
        plain.write_bytes(unpacked[:length])
        expect_bad(E_IO, "truncated", plain)
    expect_bad(E_IO, "No such file", plain.with_name("missing.nii"))


def bad_headers_are_refused():
    image = nibabel.Nifti1Image(numpy.zeros((2, 3, 4), "u1"), numpy.eye(4))
    nibabel.save(image, plain)
    whole = plain.read_bytes()

    def patched(offset, data):
        plain.write_bytes(whole[:offset] + data + whole[offset + len(data):])

    for offset, data, code, text in [
            (0, b"\0\0\0\0", E_FORMAT, "not a NIfTI-1 header"), (344, b"ni1\0", E_FORMAT, "not a NIfTI-1 header"),
            (40, b"\xff\x7f", E_FORMAT, "not a NIfTI-1 header"), (40, b"\0\0", E_FORMAT, "not a NIfTI-1 header"),
            (42, b"\0\0", E_FORMAT, "a dimension is below 1"), (44, b"\xff\xff", E_FORMAT, "a dimension is below 1"),
            (108, b"\0\0\x80\x7f", E_FORMAT, "vox_offset"), (108, b"\0\0\0\0", E_FORMAT, "vox_offset"),
            (42, b"\xff\x7f\xff\x7f\xff\x7f", E_IO, "truncated"),
            (40, b"\x05\0\x01\0\x01\0\x01\0\x01\0\x02\0", E_UNSUPPORTED, "5 dimensions"),
            (70, b"\x20\0", E_UNSUPPORTED, "COMPLEX64"), (70, b"\x80\0", E_UNSUPPORTED, "RGB24"),
            (70, b"\x99\x09", E_UNSUPPORTED, "2457")]:
        patched(offset, data)
        expect_bad(code, text, plain)
    packed.write_bytes(gzip.compress(whole[:40] + b"\x03\0\xff\x7f\xff\x7f\xff\x7f" + whole[48:]))
    expect_bad(E_IO, "truncated", packed)


def what_cannot_be_saved():
    volume = volumes.new(numpy.full((1, 1, 2, 3), 0.5, "f4"))
    expect(E_RANGE, "voxel 0 is 0.5, which u8 does not hold", lambda: volumes.save(plain, volume, "uint8"))
    volume.array()[0, 0, 1, 2] = 256
    volume.array()[0, 0, :2, :2] = 1
    volume.array()[0, 0, 0, 2] = 1
    expect(E_RANGE, "voxel 5 is 256", lambda: volumes.save(plain, volume, "uint8"))
    expect(E_RANGE, "voxel 5 is 256", lambda: volumes.save(plain.with_suffix(".npy"), volume, "uint8"))
    volume.array()[0, 0, 1, 2] = 2.0**31
    expect(E_RANGE, "i32", lambda: volumes.save(plain, volume, "int32"))
    expect(E_DTYPE, "got f64", lambda: volumes.save(plain, volume, "float64"))
    expect(E_UNSUPPORTED, "expected .nii", lambda: volumes.save(plain.with_suffix(".mgz"), volume))
    expect(E_UNSUPPORTED, "expected .nii", lambda: volumes.load(plain.with_suffix(".mgz")))
    expect(E_IO, "cannot create", lambda: volumes.save(plain.with_name("missing") / "v.nii", volume))
    volumes.free(volume)
    wide = volumes.new(numpy.zeros((1, 1, 1, 40000), "f4"))
    expect(E_UNSUPPORTED, "at most 32767", lambda: volumes.save(plain, wide))
    volumes.free(wide)
    int64s = tern.ctypes.c_int64 * 4
    expect(E_SHAPE, "a volume cannot have shape", lambda: volumes.lib.check("tern_volume_new", int64s(1, 0, 1, 1)))
    expect(E_SHAPE, "a volume cannot have shape", lambda: volumes.lib.check("tern_volume_new", int64s(2**40, 2**40, 1, 1)))
    assert all(".tmp" not in file.name for file in plain.parent.iterdir())


def without_the_plug_in():
    """Runs in a process of its own, since a plug-in stays loaded."""
    nibabel.save(random_image("u1"), plain)
    lines = ["import volumes", f"volumes.load({str(plain)!r})"]
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], text=True, capture_output=True,
                          env={**os.environ, "TERN_PLUGIN_PATH": folder.name, "PYTHONPATH": path})
    assert done.returncode and f"{plain}: the plug-in tern_nifti.so cannot be loaded" in done.stderr, done.stderr
    assert "libnifti-dev" in done.stderr


def stacks_of_pictures():
    stack = plain.with_name("stack")
    stack.mkdir()
    expect_bad(E_IO, "no slice", stack)
    array = random.integers(0, 256, (12, 5, 7)).astype("u1")
    for kind in ["png", "tif"]:
        for z, slice_ in enumerate(array):
            Image.fromarray(slice_).save(stack / f"slice{z}.{kind}")
        (stack / "notes.txt").write_text("no slice")
        volume = volumes.load(stack)
        assert volume.array().shape == (1, 12, 5, 7) and (volume.array()[0] == array).all()
        volumes.free(volume)
        Image.fromarray(array[0, :, :6]).save(stack / f"slice7.{kind}")
        expect(E_SHAPE, f"stack/slice7.{kind} is 6 x 5, expected 7 x 5 like the first slice", lambda: volumes.load(stack))
        (stack / f"slice7.{kind}").write_bytes(b"none")
        expect(E_FORMAT, f"stack/slice7.{kind}", lambda: volumes.load(stack))
        for file in stack.iterdir():
            file.unlink()
    stack.rmdir()


def pages_of_a_tiff():
    path = plain.with_suffix(".tif")
    for dtype, mode in [("u1", "L"), ("u2", "I;16"), ("f4", "F")]:
        array = random.integers(0, 200, (3, 4, 5)).astype(dtype)
        pages = [Image.fromarray(page, mode) for page in array]
        pages[0].save(path, save_all=True, append_images=pages[1:])
        volume = volumes.load(path)
        assert (volume.array()[0] == array).all(), dtype
        volumes.free(volume)
    path.unlink()


for test in [reads_what_nibabel_writes, other_byte_orders, scale_is_applied, qform_where_there_is_no_sform, units_become_mm, negative_sizes_are_positive,
             nibabel_reads_what_is_written, without_a_source, a_crop_stays_where_it_is, npy_both_ways, without_the_plug_in, stacks_of_pictures, pages_of_a_tiff,
             damaged_files_are_named, bad_headers_are_refused, what_cannot_be_saved]:
    test()
    print(test.__name__)
