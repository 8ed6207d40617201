"""Helpers for the tests of the training programs: start them, and write small datasets."""
import gzip
import os
import pty
import socket
import struct
import subprocess

import numpy as np

from busy import without_slow_ranks

from folder import InFolder

BUILD = os.environ["TERN_BUILD"]
TERN = os.path.join(BUILD, "tern")


def program(name):
    return os.path.join(BUILD, "examples", name)


def command(ranks, name, *flags):
    alone = [program(name), *map(str, flags)]
    return [TERN, "run", "-n", str(ranks), *alone] if ranks > 1 else alone


def call(ranks, name, *flags, **options):
    """Runs a program. Returns exit code, stdout, stderr."""
    done = subprocess.run(command(ranks, name, *flags), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120, **options)
    return done.returncode, done.stdout, done.stderr


def train(ranks, name, *flags, **options):
    """Returns the stdout of a run that must succeed."""
    code, out, err = call(ranks, name, *flags, **options)
    assert code == 0, (flags, code, out, err)
    return out


def drain(terminal):
    """Reads the terminal until all processes that write to it have ended."""
    parts = []
    with open(terminal, "rb", buffering=0) as file:
        try:
            while part := file.read(65536):
                parts.append(part)
        except OSError:  # how Linux reports the end
            pass
    return b"".join(parts).decode()


def on_terminals(ranks, name, *flags):
    """Starts the ranks by hand, each with a terminal as stderr. Returns what each terminal shows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    jobs, terminals = [], []
    for rank in range(ranks):
        own, theirs = pty.openpty()
        jobs.append(subprocess.Popen([program(name), *map(str, flags)], env={**os.environ, **master, "RANK": str(rank)},
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs))
        terminals.append(own)
        os.close(theirs)
    shown = [drain(terminal) for terminal in terminals]
    assert [job.wait() for job in jobs] == [0] * ranks, shown
    return shown


def complaints(err):
    """Returns the lines of stderr without the launcher's, its report and the progress bar's."""
    said = without_slow_ranks(err).split("\n" + "=" * 20, 1)[0]
    return [line for line in said.splitlines() if line and not line.startswith(("tern run:", "epoch "))]


def stripes(count, classes, side, seed):
    """Returns images (count, side, side) u8 that a network can classify after a few steps, even shifted or mirrored: noise with bright
    stripes whose width depends on the class."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    images = random.integers(0, 80, (count, side, side))
    rows = np.arange(side)
    for image, label in zip(images, labels):
        image[rows // (1 + label) % 2 == 0] += 150
    return images.astype(np.uint8), labels.astype(np.uint8)


def write_fashion(folder, train_count, test_count):
    """Writes the four files of Fashion-MNIST with these numbers of images."""
    for name, count, seed in (("train", train_count, 0), ("t10k", test_count, 1)):
        images, labels = stripes(count, 10, 28, seed)
        with gzip.open(os.path.join(folder, f"{name}-images-idx3-ubyte.gz"), "wb") as file:
            file.write(struct.pack(">4i", 0x803, count, 28, 28) + images.tobytes())
        with gzip.open(os.path.join(folder, f"{name}-labels-idx1-ubyte.gz"), "wb") as file:
            file.write(struct.pack(">2i", 0x801, count) + labels.tobytes())


def write_cifar(folder, counts, classes=10):
    """Writes CIFAR's binary files with this many images each."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"] if classes == 10 else ["train.bin", "test.bin"]
    for seed, (name, count) in enumerate(zip(names, counts)):
        images, labels = stripes(count, classes, 32, seed)
        with open(os.path.join(folder, name), "wb") as file:
            for image, label in zip(images, labels):
                file.write(bytes([label] if classes == 10 else [label // 5, label]) + image.tobytes() * 3)


def write_photographs(folder, split, classes, count, size=(48, 64)):
    """Writes folder/split/CLASS/N.jpg, `count` per class. Returns the paths."""
    from PIL import Image
    paths = []
    for label, name in enumerate(classes):
        os.makedirs(os.path.join(folder, split, name))
        images, _ = stripes(count, 1, max(size), len(split) * 100 + label)
        for i, image in enumerate(images):
            picture = np.repeat(image[:size[0], :size[1], None] // 3, 3, 2)
            picture[..., label % 3] += 120
            paths.append(os.path.join(folder, split, name, f"{i}.jpg"))
            Image.fromarray(picture).save(paths[-1], quality=90)
    return paths


def tensors(value, place=""):
    """Flattens nested containers to {place: tensor or number}."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {place: value}
    found = {}
    for key, item in items:
        found.update(tensors(item, f"{place}[{key!r}]"))
    return found


def same(a, b):
    """Returns the first place at which two checkpoints differ in any bit, or None."""
    a, b = tensors(a), tensors(b)
    if a.keys() != b.keys():
        return f"keys {sorted(a.keys() ^ b.keys())}"
    for place, value in a.items():
        equal = value.equal(b[place]) if hasattr(value, "equal") else value == b[place]
        if not equal:
            return f"{place}: {value} and {b[place]}"
    return None


class Folder(InFolder):
    """Runs each test in its own empty folder, self.folder."""

    def path(self, *parts):
        return os.path.join(self.folder, *parts)
