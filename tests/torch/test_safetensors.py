"""safetensors compared with the newest Python package: each reads the other's files exactly, and a file that libtern
rewrites does not change. libtern accepts no randomly damaged file that the package refuses."""
import ctypes
import hashlib
import json
import os
import random
import re
import struct
import subprocess

import torch

from files import Files
import safetensors_file
import skips
from folder import InFolder
import tern

PYTHON = os.path.join(os.environ.get("TERN_PEERS", os.path.expanduser("~/.cache/tern-peers")), "bin", "python")
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "safetensors_peer.py")
E_FORMAT, E_UNSUPPORTED = -6, -9
# The package has more dtypes and dimensions, and sizes beyond 2^63 beside a dimension of 0, of which no strides can be made.
STRICTER = "which tern does not support|tern supports at most 6|has dtype BOOL, but|has too many elements|expected an integer from 0 to .*, got \"9223372036854775"


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def has_twins(path):
    """True if a name occurs twice in the header. The package uses the last one; libtern refuses the file."""
    twins = []
    content = bytes_of(path)
    json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]],
               object_pairs_hook=lambda pairs: twins.append(len(pairs) != len(dict(pairs))) or dict(pairs))
    return any(twins)


class Safetensors(InFolder):
    @classmethod
    def setUpClass(cls):
        cls.files = Files()

    def path(self, name):
        return os.path.join(self.folder, name)

    def peer(self, *args):
        done = subprocess.run([PYTHON, PEER, *args], cwd=self.folder, stdout=subprocess.PIPE, check=True, timeout=300)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def load(self, path):
        """Returns (tensors, metadata), or the error."""
        opts = self.files.lib.tern_load_defaults()
        opts.metadata = True
        try:
            state = self.files.take(self.files.lib.check("tern_load", path.encode(), ctypes.byref(opts)))
        except tern.TernError as err:
            self.assertIn(err.code, (E_FORMAT, E_UNSUPPORTED))
            return err
        return state, state.pop("__metadata__", None)

    def assertTold(self, loaded, told, name):
        tensors, metadata = loaded
        kinds = {dtype: kind for kind, dtype in safetensors_file.KINDS.items()}
        rows = sorted([key, kinds[t.dtype], list(t.shape), hashlib.sha256(safetensors_file.raw(t)).hexdigest()] for key, t in tensors.items())
        self.assertEqual(rows, sorted(told["tensors"]), name)
        self.assertEqual(metadata or None, told["metadata"] or None, name)

    def test_what_the_package_writes(self):
        self.peer("write")
        names = [f"{seed}.safetensors" for seed in range(3)]
        for name, told in zip(names, self.peer("read", *names)):
            loaded = self.load(self.path(name))
            self.assertTold(loaded, told, name)
            tensors, metadata = loaded
            state = dict(tensors) if metadata is None else {**tensors, "__metadata__": metadata}
            self.files.save(self.path("again.safetensors"), state)
            self.assertEqual(bytes_of(self.path("again.safetensors")), bytes_of(self.path(name)), "the same file")

    def test_what_libtern_writes(self):
        torch.manual_seed(1)
        state = {f"{dtype}.{shape}": (torch.randn(shape) * 3).to(dtype)
                 for dtype in safetensors_file.KINDS.values() for shape in ((), (0,), (3,), (5, 1, 2))}
        state.update({"é \"\\\n\x1b": torch.ones(2), "": torch.zeros(1)})
        self.files.save(self.path("a.safetensors"), {**state, "__metadata__": {"format": "pt", "x": "é\t\u2028"}})
        (told,) = self.peer("read", "a.safetensors")
        self.assertTold((state, {"format": "pt", "x": "é\t\u2028"}), told, "a")

    def test_dtypes_that_libtern_has_not(self):
        self.peer("write_others")
        subprocess.run([os.path.join(os.environ["TERN_BUILD"], "tern"), "convert", self.path("others.safetensors"), self.path("again.safetensors")], check=True)
        self.assertEqual(bytes_of(self.path("again.safetensors")), bytes_of(self.path("others.safetensors")), "the same file")

    def damaged(self):
        """Files with a byte or a number of the header changed, a piece of it repeated or missing, or another length."""
        random.seed(3)
        numbers = ("0", "1", "-1", "7", "00", "1.0", "1e2", "4294967296", "9223372036854775807", "9223372036854775808", "null", "\"0\"")
        base = bytes_of(self.path("0.safetensors"))
        (length,) = struct.unpack("<Q", base[:8])
        header, data = base[8:8 + length], base[8 + length:]
        for _ in range(600):
            text = bytearray(header)
            at = random.randrange(len(text))
            way = random.randrange(5)
            if way == 0:
                text[at] = random.choice((random.randrange(256), *b'{}[]":,0 \\'))
            elif way == 1:
                digits = [i for i in range(len(text)) if text[i:i + 1].isdigit() and not text[i - 1:i].isdigit()]
                at = random.choice(digits)
                end = next(i for i in range(at, len(text)) if not text[i:i + 1].isdigit())
                text[at:end] = random.choice(numbers).encode()
            elif way == 2:
                del text[at:at + random.randrange(1, 40)]
            elif way == 3:
                text[at:at] = text[at:at + random.randrange(1, 200)]
            more = random.choice((0, 0, 1, -1, -100)) if way == 4 else 0
            body = data + bytes(more) if more >= 0 else data[:more]
            yield struct.pack("<Q", len(text)) + bytes(text) + body

    def test_damaged_files(self):
        self.peer("write")
        names = []
        for i, content in enumerate(self.damaged()):
            names.append(f"damaged{i}.safetensors")
            with open(self.path(names[-1]), "wb") as file:
                file.write(content)
        taken = refused = 0
        for name, told in zip(names, self.peer("read", *names)):
            loaded = self.load(self.path(name))
            if told is None:
                self.assertIsInstance(loaded, tern.TernError, name)
                refused += 1
            elif isinstance(loaded, tern.TernError):
                strict = re.search(STRICTER, str(loaded))
                self.assertTrue(strict or has_twins(self.path(name)), f"{name}: {loaded}")
            else:
                self.assertTold(loaded, told, name)
                taken += 1
        self.assertGreater(taken, 20)
        self.assertGreater(refused, 200)


if __name__ == "__main__":
    if not os.path.exists(PYTHON):
        skips.end(f"no {PYTHON}: run scripts/peers.sh")
    skips.main()
