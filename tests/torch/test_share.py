"""tern_parameter_share beside PyTorch's `decoder.weight = encoder.weight`: state dict, counts, and training steps."""
import ctypes
import unittest

import numpy
import torch
import torch.nn.functional as F

from nets import Net, library
from optims import KINDS

WORDS, SIZE, STEPS = 23, 8, 15


def language_model(lib):
    """encoder -> inner -> tanh -> decoder, with one weight for encoder and decoder."""
    lib.returns(ctypes.c_void_p, *"tern_embedding_new tern_linear_new tern_tanh_new tern_state_find tern_parameter_share".split())

    def make(rng):
        size, words = ctypes.c_int64(SIZE), ctypes.c_int64(WORDS)
        model = ctypes.c_void_p(lib.check("tern_sequential_new"))
        for part in (
            lib.check("tern_embedding_new", words, size, None, rng),
            lib.check("tern_linear_new", size, size, None, rng),
            lib.check("tern_tanh_new"),
            lib.check("tern_linear_new", size, words, None, rng),
        ):
            last = ctypes.c_void_p(lib.check("tern_sequential_add", model, ctypes.c_void_p(part)))
        encoder = ctypes.c_void_p(lib.tern_state_find(model, b"0.weight"))
        lib.check("tern_parameter_share", last, b"weight", encoder)
        return model.value

    return make


def torch_language_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, SIZE), torch.nn.Linear(SIZE, SIZE), torch.nn.Tanh(), torch.nn.Linear(SIZE, WORDS)
    )
    model[3].weight = model[0].weight
    return model


class Share(unittest.TestCase):
    def train_beside(self, kind, sentence, **options):
        lib = library()
        lib.returns(ctypes.c_int64, "tern_module_element_count")
        lib.returns(ctypes.c_void_p, f"tern_{kind}_new")
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


if __name__ == "__main__":
    unittest.main()
