"""tern_parameter_share compared with PyTorch's `decoder.weight = encoder.weight`: state dict, counts, and training
steps; under a ddp also with torch's DistributedDataParallel."""
import ctypes
import os
import subprocess
import tempfile
import unittest

import numpy
import torch
import torch.nn.functional as F

import forked
import skips
import tern
from nets import Net, library
from objects import Objects
from optims import KINDS
from test_summary import printed
from tied import SIZE, WORDS, language_model, torch_language_model

STEPS = 15
HERE = os.path.dirname(os.path.abspath(__file__))


class Share(unittest.TestCase):
    def train_beside(self, kind, sentence, **options):
        lib = library()
        lib.returns(KINDS[kind][0], f"tern_{kind}_defaults")
        net, module = Net(lib, language_model(lib), seed=4), torch_language_model(4)
        opts = getattr(lib, f"tern_{kind}_defaults")()
        for name, value in options.items():
            setattr(opts, name, value)
        lib.tern_optim_free(net.optim)
        net.optim = ctypes.c_void_p(lib.check(f"tern_{kind}_new", net.module, ctypes.byref(opts)))
        theirs = KINDS[kind][1](module.parameters(), **options)
        self.assertEqual(list(net.state()), list(module.state_dict()))
        self.assertEqual(lib.tern_module_parameter_count(net.module), len(list(module.parameters())))
        self.assertEqual(lib.tern_module_element_count(net.module), sum(p.numel() for p in module.parameters()))
        generator = torch.Generator().manual_seed(2)
        for step in range(STEPS):
            words = torch.randint(0, WORDS, (sentence + 1,), generator=generator)
            ours = net.step(words[:-1].numpy(), words[1:].numpy())
            loss = F.cross_entropy(module(words[:-1]), words[1:])
            theirs.zero_grad()
            loss.backward()
            theirs.step()
            self.assertLessEqual(abs(ours - loss.item()), 1e-4 * loss.item(), f"step {step}")
        for name, want in module.state_dict().items():
            worst = numpy.abs(net.state()[name] - want.numpy()).max()
            self.assertLessEqual(worst, 1e-4 * max(1, float(want.abs().max())), name)
        net.close()

    def test_sgd(self):
        for sentence in (1, 5, 32):
            self.train_beside("sgd", sentence, lr=0.1, momentum=0.9)

    def test_adam(self):
        for sentence in (3, 17):
            self.train_beside("adam", sentence, lr=0.01)

    def test_one_name_is_enough_to_load(self):
        """As in Hugging Face's files: whichever name there is, and with both the last one's values."""
        lib = library()
        net, objects = Net(lib, language_model(lib)), Objects(lib)
        state = objects.take(lib.check("tern_module_state_dict", net.module))
        for left_out in ("0.weight", "3.weight"):
            given = {name: torch.randn_like(value) for name, value in state.items() if name != left_out}
            made = objects.make(given)
            lib.check("tern_module_state_dict_load", net.module, made, None, None)
            objects.free(made)
            got = net.state()
            for name, value in given.items():
                self.assertTrue(numpy.array_equal(got[name], value.numpy()), name)
            self.assertTrue(numpy.array_equal(got["0.weight"], got["3.weight"]))
        made = objects.make({name: value for name, value in state.items() if not name.endswith("weight")})
        with self.assertRaises(tern.TernError) as caught:
            lib.check("tern_module_state_dict_load", net.module, made, None, None)
        self.assertIn('Missing key(s) in state_dict: "0.weight", "1.weight", "3.weight"', str(caught.exception))
        objects.free(made)
        net.close()

    def test_summary_counts_it_once(self):
        lib = library()
        net = Net(lib, language_model(lib))
        out = printed(lambda: lib.check("tern_summary", net.module, net.device, 1, (ctypes.c_int64 * 1)(5)))
        rows = [(line.split()[0], int(line.split()[-2])) for line in out.splitlines()[1:]]
        weight, inner, bias = WORDS * SIZE, SIZE * SIZE + SIZE, WORDS
        self.assertEqual(rows, [("0", weight), ("1", inner), ("2", 0), ("3", bias), ("total", weight + inner + bias)])
        net.close()

    def test_ddp(self):
        for ranks in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", str(ranks), *forked.interpreter()]
                command += [os.path.join(HERE, "share_rank.py"), os.path.join(folder, "meeting")]
                done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("equal"), ranks)


if __name__ == "__main__":
    skips.main()
