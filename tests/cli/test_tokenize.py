"""tern tokenize: training, documents of all kinds, both kinds of files, and what it refuses."""
import json
import os
import tempfile
import unittest

import numpy

import job
import skips


@unittest.skipUnless(skips.has_part("regex"), "this build has no regex")
class Tokenize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("a.txt", "The tern flies.\r\n\nOver the seas\nthe tern")
        self.write("b.txt", "<|endoftext|>the<|endoftext|>\n the tern")
        self.write("empty.txt", "")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", newline="") as file:
            file.write(text)

    def tokenize(self, *words):
        return job.tern("tokenize", *[self.path(word) if "." in word and not word.startswith("-") else word for word in words])

    def fine(self, *words):
        code, out, err = self.tokenize(*words)
        self.assertEqual(code, 0, err)
        return out

    def refused(self, code, text, *words):
        got, out, err = self.tokenize(*words)
        self.assertEqual((got, out), (code, ""))
        self.assertIn(text, err)

    def ids(self, name):
        if name.endswith(".npy"):
            return numpy.load(self.path(name)).tolist()
        header = numpy.fromfile(self.path(name), numpy.int32, 256)
        kind, version = (numpy.uint16, 1) if header[0] == 20240520 else (numpy.uint32, 7)
        self.assertEqual((header[0], header[1], header[3:].any()), (20240520 if version == 1 else 20240801, version, False))
        ids = numpy.fromfile(self.path(name), kind, offset=1024)
        self.assertEqual(header[2], len(ids))
        return ids.tolist()

    def words(self, ids):
        """Returns the text of the ids, by the file of the tokenizer; a bar for the end of a document."""
        with open(self.path("t.json")) as file:
            vocabulary = {number: token for token, number in json.load(file)["model"]["vocab"].items()}
        return "".join("|" if i == 0 else vocabulary[i] for i in ids).replace("Ġ", " ").replace("Ċ", "\n").replace("č", "\r")

    def test_documents(self):
        out = self.fine("--train", "270", "--tokenizer", "t.json", "a.txt", "b.txt")
        self.assertRegex(out, r"t\.json: 2\d\d tokens\n$")
        a, b = "The tern flies.\r\n\nOver the seas\nthe tern", "|the|\n the tern"
        for words, want in (((), f"{a}|{b}|"), (("--no-eot",), a + b), (("--lines",), "The tern flies.|Over the seas|the tern||the|| the tern|"),
                            (("--separator=<|endoftext|>",), f"{a}|the|\n the tern|"), (("--threads", "1", "--separator", "the"),
                             "The tern flies.\r\n\nOver | seas\n| tern||||\n | tern|")):
            for name in ("out.bin", "out.npy"):
                out = self.fine("--tokenizer", "t.json", *words, "-o", name, "a.txt", "empty.txt", "b.txt")
                self.assertEqual(self.words(self.ids(name)), want, words)
                documents, tokens = len(want.split("|")) - 1, len(self.ids(name))
                self.assertRegex(out, rf"{name}: \d+ documents, {tokens} tokens, \d+\.\d\d bytes/token, \d+\.\d MB/s\n$")
        self.fine("--tokenizer", "t.json", "--encode-special-tokens", "--output", "out.bin", "b.txt")
        self.assertEqual(self.words(self.ids("out.bin")), "<|endoftext|>the<|endoftext|>\n the tern|")

    def test_wide_ids(self):
        """More than 65536 tokens take 32 bits."""
        with open(self.path("t.json"), "w") as file:
            json.dump({"model": {"type": "BPE", "vocab": {**{chr(0x4e00 + i): i for i in range(20000)}, "end": 70000}, "merges": []}}, file)
        self.write("c.txt", "\u4e00\u4e05\u5e00")
        self.fine("--tokenizer", "t.json", "--eot", "end", "-o", "out.bin", "c.txt")
        self.assertEqual(self.ids("out.bin"), [0, 5, 0x1000, 70000])
        self.fine("--tokenizer", "t.json", "--eot", "end", "-o", "out.npy", "c.txt")
        self.assertEqual(self.ids("out.npy"), [0, 5, 0x1000, 70000])

    def test_refused(self):
        self.fine("--train", "257", "--tokenizer", "t.json", "a.txt")
        for words, text in (([], "expected --tokenizer PATH"), (["--tokenizer", "t.json"], "expected --output FILE"),
                            (["--tokenizer", "t.json", "-o", "out.bin"], "expected text files"), (["-x"], "invalid option"),
                            (["--tokenizer", "t.json", "-o", "out.bin", "--lines", "--separator", "x", "a.txt"], "expected one of them")):
            self.refused(2, text, *words)
        for words, text in ((["nothing.json", "-o", "out.bin", "a.txt"], "nothing.json"), (["t.json", "-o", "out.bin", "nothing.txt"], "nothing.txt"),
                            (["t.json", "-o", "out.bin", "empty.txt"], "there is no text"), (["t.json", "--eot", "x<>", "-o", "out.bin", "a.txt"], 'no token "x<>"'),
                            (["t.json", "-o", "none/out.bin", "a.txt"], "none/out.bin"), (["t.json", "--train", "256", "a.txt"], "vocab_size is 256, expected 257")):
            self.refused(1, text, "--tokenizer", *words)
        self.assertFalse(os.path.exists(self.path("out.bin")))


if __name__ == "__main__":
    skips.main()
