"""GPT-2, Llama and ViT beside transformers itself: folders in both directions, also in shards, logits and gradients; padding and generation."""
import os
import sys
import tempfile
import unittest

import peers

peers.enter()

import skips  # noqa: E402

try:
    import transformers
except ImportError:
    skips.end("no transformers: run scripts/peers.sh")

import ctypes  # noqa: E402

import numpy  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from language_models import LanguageNet, language_library, next_token_loss, scatter  # noqa: E402
from nets import Net  # noqa: E402
from ops import BF16, F16, F32, error_of  # noqa: E402

NO_DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
TOKENS = dict(bos_token_id=1, eos_token_id=2)
SMALL_LLAMA = dict(vocab_size=67, hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
                   max_position_embeddings=64, **TOKENS)
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16)
LONGROPE = dict(rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=16, short_factor=[1.0, 1.25, 1.5, 1.75], long_factor=[2.0, 4.0, 6.0, 8.0])
BERT = ("Bert", dict(vocab_size=71, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50, max_position_embeddings=32,
                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
CONFIGS = [
    ("GPT2", dict(vocab_size=71, n_positions=32, n_embd=36, n_layer=2, n_head=3, **NO_DROPOUT, **TOKENS)),
    ("GPT2", dict(vocab_size=71, n_positions=32, n_embd=36, n_layer=1, n_head=2, n_inner=50, activation_function="gelu",
                  layer_norm_epsilon=1e-4, tie_word_embeddings=False, **NO_DROPOUT, **TOKENS)),
    ("Llama", dict(SMALL_LLAMA, num_key_value_heads=2)),
    ("Llama", dict(SMALL_LLAMA, num_key_value_heads=3, head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=LLAMA3)),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0))),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=3.0))),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=YARN)),
    ("Llama", dict(SMALL_LLAMA, head_dim=20, rope_parameters=dict(YARN, beta_fast=6, beta_slow=0.5, attention_factor=1.3, truncate=False))),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=dict(YARN, mscale=1.2, mscale_all_dim=0.7))),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=LONGROPE)),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=dict(LONGROPE, factor=6.0))),
    ("Llama", dict(SMALL_LLAMA, rope_parameters=dict(LONGROPE, attention_factor=0.8))),
]


def new_model(kind, fields):
    config = getattr(transformers, f"{kind}Config")(**fields)
    torch.manual_seed(1)
    model = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")(config)
    scatter(model, 2)
    return model


class Transformers(unittest.TestCase):
    def setUp(self):
        self.lib = language_library()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def open(self, folder):
        net = LanguageNet.open(self.lib, folder, threads=2)
        self.addCleanup(net.close)
        return net

    def same_state(self, net, model):
        state = net.state()
        for name, value in model.state_dict().items():
            self.assertTrue(numpy.array_equal(state[name], value.numpy()), name)

    def compare(self, net, model):
        """Logits, loss and gradients; both compute in f32, so the limit is what f32 loses in each."""
        tokens = numpy.random.default_rng(3).integers(3, 60, (2, 23))
        labels = tokens.copy()
        labels[:, 5:9] = -100
        out = model(torch.tensor(tokens), labels=torch.tensor(labels))
        out.loss.backward()
        self.assertLess(error_of(net.logits(tokens), out.logits.detach().numpy()), 2e-5)
        short = tokens[:, :11]
        self.assertLess(error_of(net.logits(short), model(torch.tensor(short)).logits.detach().numpy()), 2e-5)
        self.assertLess(abs(net.backward(tokens, labels) - out.loss.item()), 2e-5)
        grads = net.grads()
        for name, parameter in model.named_parameters():
            self.assertLess(error_of(grads[name], parameter.grad.numpy()), 1e-4, name)

    def test_theirs(self):
        for number, (kind, fields) in enumerate(CONFIGS):
            for size in ("1GB", "12KB"):
                folder = os.path.join(self.folder, f"{number}-{size}")
                model = new_model(kind, fields)
                model.save_pretrained(folder, max_shard_size=size)
                self.assertEqual(os.path.exists(os.path.join(folder, "model.safetensors.index.json")), size == "12KB")
                net = self.open(folder)
                self.same_state(net, model)
                self.compare(net, model)

    def test_ours(self):
        for number, (kind, fields) in enumerate(CONFIGS):
            theirs, ours = (os.path.join(self.folder, f"{number}-{side}") for side in ("theirs", "ours"))
            new_model(kind, fields).save_pretrained(theirs)
            net = self.open(theirs)
            net.step(numpy.random.default_rng(5).integers(3, 60, (2, 8)))
            for most in (5 * 10**9, 12000):
                opts = self.lib.tern_pretrained_save_defaults()
                opts.max_shard_bytes = most
                self.lib.check("tern_pretrained_save", net.module, ours.encode(), ctypes.byref(opts))
                model, report = transformers.AutoModelForCausalLM.from_pretrained(ours, output_loading_info=True)
                self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"], report)
                self.same_state(net, model)
            self.compare(net, model)

    def test_base_model(self):
        """GPT2Model's and LlamaModel's own files have names without a prefix."""
        for kind, fields in (CONFIGS[0], CONFIGS[3]):
            model = new_model(kind, fields)
            folder = os.path.join(self.folder, kind)
            getattr(model, "transformer" if kind == "GPT2" else "model").save_pretrained(folder)
            self.same_state(self.open(folder), model)

    def test_padding_and_a_cache(self):
        """Logits of padded sequences, at once and in pieces, and the tokens that generate() chooses."""
        rng = numpy.random.default_rng(7)
        for number, (kind, fields) in enumerate(CONFIGS):
            folder = os.path.join(self.folder, str(number))
            model = new_model(kind, fields).eval()
            model.save_pretrained(folder)
            net = self.open(folder)
            tokens = torch.tensor(rng.integers(3, 60, (3, 12)))
            for counts in ([12, 5, 9], [12, 12, 12]):
                mask = (torch.arange(12) >= 12 - torch.tensor(counts)[:, None]).long()
                ids, on = (mask.cumsum(1) - 1).clamp(0), mask.bool().numpy()
                with torch.no_grad():
                    want = model(tokens, attention_mask=mask, position_ids=ids).logits.numpy()
                cache = ctypes.c_void_p(self.lib.check("tern_kv_cache_new", net.module, ctypes.c_int64(3), ctypes.c_int64(24)))
                self.addCleanup(self.lib.tern_kv_cache_free, cache)
                part = lambda first, last: net.call(tokens[:, first:last].numpy(), cache, attention_mask=mask[:, :last].numpy())
                for got in (net.call(tokens.numpy(), attention_mask=mask.numpy()), numpy.concatenate([part(0, 6), part(6, 10), part(10, 11), part(11, 12)], 1)):
                    self.assertLess(error_of(got[on], want[on]), 2e-5)
                chosen = model.generate(tokens, attention_mask=mask, max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=None)
                self.lib.tern_kv_cache_reset(cache)
                ours, new, whole = tokens.numpy(), tokens.numpy(), mask.numpy()
                for _ in range(10):
                    new = net.call(new, cache, keep=1, attention_mask=whole).argmax(2)
                    ours, whole = numpy.concatenate([ours, new], 1), numpy.concatenate([whole, numpy.ones_like(new)], 1)
                self.assertEqual(ours.tolist(), chosen.tolist(), kind)


class Vit(unittest.TestCase):
    """ViTForImageClassification, whose parameters have torchvision's names in tern."""

    def setUp(self):
        self.lib = language_library()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def open(self, folder):
        net = Net(self.lib, lambda rng: self.lib.check("tern_pretrained_open", folder.encode(), None), threads=2)
        self.addCleanup(net.close)
        return net

    def compare(self, net, model):
        """Scores, and the gradient of the patches' projection."""
        model.zero_grad()
        x = numpy.random.default_rng(2).standard_normal((3, 3, 24, 24)).astype("f")
        y = numpy.array([0, 3, 1])
        out = model(torch.tensor(x), labels=torch.tensor(y))
        self.lib.tern_eval(net.module)
        scores = net.forward(x)
        net.raise_error()
        self.assertLess(error_of(net.read(scores), out.logits.detach().numpy()), 2e-5)
        self.lib.check("tern_scope_end", net.scope)
        out.loss.backward()
        self.assertLess(abs(net.backward(x, y) - out.loss.item()), 2e-5)
        self.assertLess(error_of(net.grads()["conv_proj.weight"], model.vit.embeddings.patch_embeddings.projection.weight.grad.numpy()), 1e-4)

    def test_both_ways(self):
        fields = dict(hidden_size=36, num_hidden_layers=3, num_attention_heads=3, intermediate_size=50, image_size=24, patch_size=8,
                      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        for number, more in enumerate((dict(num_labels=5), dict(num_labels=7, layer_norm_eps=1e-3))):
            theirs, ours = (os.path.join(self.folder, f"{number}-{side}") for side in ("theirs", "ours"))
            torch.manual_seed(1)
            model = transformers.ViTForImageClassification(transformers.ViTConfig(**fields, **more)).eval()
            scatter(model, 2)
            for size in ("1GB", "12KB"):
                model.save_pretrained(f"{theirs}-{size}", max_shard_size=size)
                net = self.open(f"{theirs}-{size}")
                self.compare(net, model)
            for most in (5 * 10**9, 12000):
                opts = self.lib.tern_pretrained_save_defaults()
                opts.max_shard_bytes = most
                self.lib.check("tern_pretrained_save", net.module, ours.encode(), ctypes.byref(opts))
                back, report = transformers.ViTForImageClassification.from_pretrained(ours, output_loading_info=True)
                self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"], report)
                self.assertEqual(back.config.num_labels, more["num_labels"])
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(back.state_dict()[name], value), name)
                self.compare(self.open(ours), back.eval())


class BertNet(LanguageNet):
    """A BERT that predicts its tokens by its own embeddings."""

    def backward(self, tokens, labels=None):
        lib, scope = self.lib, self.scope
        lib.tern_autocast_set(scope, self.region)
        words = next(ctypes.c_void_p(e.tensor) for e in self.entries() if e.name == b"embeddings.word_embeddings.weight")
        states = ctypes.c_void_p(self.forward(tokens))
        loss = ctypes.c_void_p(lib.tern_linear_cross_entropy(scope, states, words, None, self.tensor(tokens), None))
        lib.tern_autocast_set(scope, F32)
        lib.tern_backward(scope, loss)
        self.raise_error()
        value = lib.tern_item(loss)
        lib.check("tern_scope_end", scope)
        return value


class Autocast(unittest.TestCase):
    """Losses of 20 steps of AdamW in 16 bits beside torch.autocast's, and how far both are from those in f32."""

    STEPS = 20

    def theirs(self, folder, kind, batches, dtype):
        model = getattr(transformers, "BertModel" if kind == "Bert" else "AutoModelForCausalLM").from_pretrained(folder, dtype=torch.float32).train()
        optim, losses = torch.optim.AdamW(model.parameters(), 2e-3), []
        for tokens in map(torch.tensor, batches):
            optim.zero_grad()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                logits = F.linear(model(tokens)[0], model.embeddings.word_embeddings.weight) if kind == "Bert" else model(tokens).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()) if kind == "Bert" else next_token_loss(logits.float(), tokens)
            loss.backward()
            optim.step()
            losses.append(loss.item())
        return numpy.array(losses)

    def ours(self, lib, folder, kind, batches, region):
        net = (BertNet if kind == "Bert" else LanguageNet).open(lib, folder, adam=dict(lr=2e-3))
        net.region = region
        losses = numpy.array([net.step(tokens) for tokens in batches])
        net.close()
        return losses

    def test_losses(self):
        torch.set_num_threads(1)
        lib = language_library()
        rng = numpy.random.default_rng(7)
        batches = numpy.tile(rng.integers(3, 60, (4, 4, 20)), (self.STEPS // 4, 1, 1))  # each is seen five times, so that the losses fall
        for kind, fields in (CONFIGS[0], CONFIGS[2], BERT):
            with tempfile.TemporaryDirectory() as folder:
                torch.manual_seed(1)
                name = dict(GPT2="GPT2LMHeadModel", Llama="LlamaForCausalLM", Bert="BertModel")[kind]
                getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**fields)).save_pretrained(folder)
                exact = self.theirs(folder, kind, batches, None)
                full = abs(self.ours(lib, folder, kind, batches, F32) - exact).max()
                self.assertLess(full, 1e-4, kind)
                for region, dtype in ((BF16, torch.bfloat16), (F16, torch.float16)):
                    theirs, ours = self.theirs(folder, kind, batches, dtype), self.ours(lib, folder, kind, batches, region)
                    self.assertLess(abs(ours - exact).max(), 2 * abs(theirs - exact).max(), (kind, dtype))
                    self.assertLess(abs(ours - theirs).max(), 3 * abs(theirs - exact).max(), (kind, dtype))


if __name__ == "__main__":
    skips.main()
