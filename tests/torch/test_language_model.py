"""Language models on several ranks, and groups of parameters without weight decay."""
import ctypes
import os
import subprocess
import unittest

import numpy
import torch

import forked
import skips
import tern
from language_models import TWINS, LanguageNet, language_library, next_token_loss
from language_model_rank import FIELDS

HERE = os.path.dirname(os.path.abspath(__file__))


class LanguageModels(unittest.TestCase):
    def test_ddp(self):
        """The ranks have the same bits, and the losses of one process with all batches."""
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", "2", *forked.interpreter()]
        done = subprocess.run([*command, os.path.join(HERE, "language_model_rank.py")], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), 2)

    def test_no_decay(self):
        """Biases, norms and embeddings have a group without decay, as in torch's list of two groups."""
        lib = language_library()
        for kind, fields in FIELDS.items():
            net = LanguageNet.new(lib, kind, fields, adam=dict(lr=1e-2, weight_decay=0.5))
            self.addCleanup(net.close)
            self.assertEqual(lib.check("tern_optim_no_decay_group_add", net.optim), 1)
            module = TWINS[kind](**fields)
            module.load_state_dict({name: torch.tensor(value) for name, value in net.state().items()})
            apart = {id(p): not (p.ndim < 2 or any(part in name for part in ("wte", "wpe", "embed_tokens"))) for name, p in module.named_parameters()}
            groups = [dict(params=[p for p in module.parameters() if apart[id(p)] == decays], weight_decay=0.5 * decays) for decays in (True, False)]
            optim = torch.optim.AdamW(groups, 1e-2)
            rng = numpy.random.default_rng(1)
            for _ in range(5):
                tokens = rng.integers(0, 41, (3, 12))
                net.step(tokens)
                optim.zero_grad()
                next_token_loss(module(torch.tensor(tokens)), torch.tensor(tokens)).backward()
                optim.step()
            for name, value in module.state_dict().items():
                numpy.testing.assert_allclose(net.state()[name], value.numpy(), rtol=0, atol=1e-3, err_msg=name)
            with self.assertRaises(tern.TernError) as caught:
                lib.check("tern_optim_no_decay_group_add", net.optim)
            self.assertIn("add all groups before the first", str(caught.exception))
        plain = LanguageNet.new(lib, "llama", FIELDS["llama"])
        self.addCleanup(plain.close)
        lib.tern_optim_free(plain.optim)
        lib.returns(ctypes.c_void_p, "tern_adagrad_new")
        plain.optim = ctypes.c_void_p(lib.check("tern_adagrad_new", plain.module, None))
        self.assertEqual(lib.check("tern_optim_no_decay_group_add", plain.optim), 1)
        with self.assertRaises(tern.TernError) as caught:
            lib.check("tern_optim_no_decay_group_add", None)
        self.assertIn("the optimizer is NULL", str(caught.exception))


if __name__ == "__main__":
    skips.main()
