"""Reads TensorBoard's event files without the library or protobuf: records with their CRCs, the wire format;
and PNG, by Pillow."""
import io
import struct
import zlib

from PIL import Image


def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = list(_table())


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def records(path):
    """Yields the events' bytes. A truncated record ends the file; a wrong CRC is a ValueError."""
    with open(path, "rb") as file:
        data = file.read()
    at, found = 0, []
    while at + 12 <= len(data):
        (length,), (crc,) = struct.unpack("<Q", data[at : at + 8]), struct.unpack("<I", data[at + 8 : at + 12])
        if crc != masked_crc(data[at : at + 8]):
            raise ValueError(f"{path}: CRC of the length at {at}")
        if at + 12 + length + 4 > len(data):
            break
        event = data[at + 12 : at + 12 + length]
        at += 12 + length + 4
        if struct.unpack("<I", data[at - 4 : at])[0] != masked_crc(event):
            raise ValueError(f"{path}: CRC of the event that ends at {at}")
        found.append(event)
    return found


def varint(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Returns {number: [values]}: ints, or bytes for all other wire types."""
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(key & 7)
            if length is None:
                assert key & 7 == 2, f"wire type {key & 7}"
                length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        found.setdefault(key >> 3, []).append(value)
    return found


def doubles(data):
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def _histogram(data):
    f = fields(data)
    names = "min max num sum sum_squares".split()
    return {**{name: doubles(f[i + 1][0])[0] if i + 1 in f else 0.0 for i, name in enumerate(names)},
            "limits": doubles(f[6][0]), "counts": doubles(f[7][0])}


def _image(data):
    f = fields(data)
    return {"height": f[1][0], "width": f[2][0], "channels": f[3][0], "png": f[4][0]}


def hparam(data):
    """Returns a value of a session of the plug-in "hparams"."""
    ((kind, (value,)),) = fields(data).items()
    return {2: lambda: doubles(value)[0], 3: lambda: value.decode(), 4: lambda: bool(value)}[kind]()


def _value(data):
    """Returns (tag, kind, contents)."""
    f = fields(data)
    tag = f[1][0].decode()
    if 2 in f:
        return tag, "scalar", struct.unpack("<f", f[2][0])[0]
    if 4 in f:
        return tag, "image", _image(f[4][0])
    if 5 in f:
        return tag, "histogram", _histogram(f[5][0])
    plugin = fields(fields(f[9][0])[1][0])
    return tag, plugin[1][0].decode(), (fields(f[8][0]) if 8 in f else {}, plugin.get(2, [b""])[0])


def events(path):
    """Returns each record's contents: wall_time, step, and version, session or value."""
    found = []
    for data in records(path):
        f = fields(data)
        event = {"wall_time": doubles(f[1][0])[0], "step": signed(f.get(2, [0])[0])}
        if 3 in f:
            event["version"] = f[3][0].decode()
        if 7 in f:
            event["session"] = fields(f[7][0])[1][0]
        if 5 in f:
            (value,) = fields(f[5][0])[1]
            event["value"] = _value(value)
        found.append(event)
    return found


def values(path):
    """Returns [(tag, step, kind, contents)] of all values in the file."""
    return [(e["value"][0], e["step"], *e["value"][1:]) for e in events(path) if "value" in e]


def png_pixels(data):
    """Returns the pixels of an 8-bit PNG as flat (height, width, channels) bytes. Pillow does not check all sums of chunks."""
    at = 8
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        at += 12 + length
    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        assert image.mode in ("L", "RGB", "RGBA") and "interlace" not in image.info, (image.mode, image.info)
        return image.height, image.width, len(image.getbands()), image.tobytes()
