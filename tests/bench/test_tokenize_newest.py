"""bench/tokenize: a round of each kind on a few texts, whose ids are compared, and the table's rows."""
import os
import sys
import unittest

import peers

peers.enter()

import importlib.util  # noqa: E402

import skips  # noqa: E402

if not importlib.util.find_spec("tokenizers"):
    skips.end("no tokenizers: run scripts/peers.sh")
for part in ("regex", "unicode"):
    if not skips.has_part(part):
        skips.end(f"this build has no {part}")

sys.path[:0] = [os.path.join(os.environ["TERN_SOURCE"], *parts) for parts in (("bench", "tokenize"), ("tests", "torch"))]
import measure  # noqa: E402


class TokenizeTest(unittest.TestCase):
    def test_row(self):
        self.assertEqual(measure.row("a kind", {"tern": [30.25, 20, 10], "a": [4, 5, 6], "b": [1, 2, 3]}), "| a kind | 10 to 30.2 | 4 to 6 | 1 to 3 | 4.0 |")

    def test_a_round(self):
        texts = measure.documents(3, 40)
        for kind in measure.KINDS:
            rates = measure.measure(measure.trained(kind, texts), texts, 1, 2)
            self.assertEqual([len(of) for of in rates.values()], [1, 1, 1], kind)

    def test_training(self):
        self.assertGreater(min(measure.training(measure.documents(3, 40))), 0)


if __name__ == "__main__":
    skips.main()
