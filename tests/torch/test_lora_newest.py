"""Low-rank adapters beside PEFT itself: initial values, logits, gradients, AdamW steps, files in both directions, merged weights."""
import ctypes
import importlib.util
import os
import subprocess
import tempfile
import unittest
import warnings

import peers

peers.enter()

import skips  # noqa: E402

try:
    import peft
except ImportError:
    skips.end("no peft: run scripts/peers.sh")

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from language_models import next_token_loss, scatter  # noqa: E402
from loras import LoraNet, lora_library, read_json  # noqa: E402
from ops import BF16, error_of  # noqa: E402
from test_pretrained_newest import CONFIGS, NO_DROPOUT, TOKENS  # noqa: E402

BERT = dict(vocab_size=71, hidden_size=36, num_hidden_layers=2, num_attention_heads=3, intermediate_size=50, max_position_embeddings=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
UNTIED = dict(vocab_size=71, n_positions=32, n_embd=24, n_layer=3, n_head=2, tie_word_embeddings=False, **NO_DROPOUT, **TOKENS)
ALL = "all-linear"
# A model, PEFT's options beside r, and the targets that tern writes.
CASES = [
    (*CONFIGS[0], dict(), ["c_attn"]),
    (*CONFIGS[0], dict(target_modules=ALL, lora_alpha=3), ["c_attn", "c_fc", "c_proj"]),
    (*CONFIGS[0], dict(target_modules=["mlp.c_proj", "c_attn"], use_rslora=True), ["c_attn", "mlp.c_proj"]),
    (*CONFIGS[0], dict(target_modules=r".*h\.1\..*c_(attn|fc)"), ["1.attn.c_attn", "1.mlp.c_fc"]),
    ("GPT2", UNTIED, dict(target_modules=["lm_head", "h.2.attn.c_proj"], lora_alpha=20), ["2.attn.c_proj", "lm_head"]),
    (*CONFIGS[2], dict(), ["q_proj", "v_proj"]),
    (*CONFIGS[3], dict(target_modules=ALL, lora_alpha=16.5), ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
    ("Bert", BERT, dict(), ["query", "value"]),
    ("Bert", BERT, dict(target_modules=ALL), ["dense", "key", "query", "value"]),
    ("Bert", BERT, dict(target_modules=["attention.output.dense"]), ["attention.output.dense"]),
]


def base_model(kind, fields):
    suffix = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM", "Bert": "Model"}[kind]
    torch.manual_seed(1)
    model = getattr(transformers, kind + suffix)(getattr(transformers, f"{kind}Config")(**fields))
    scatter(model, 2)
    return model


def output(model, tokens):
    """Logits, or BERT's states."""
    out = model(torch.tensor(tokens))
    return out.logits if "logits" in out else out.last_hidden_state


class Peft(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.lib = lora_library()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.rng = numpy.random.default_rng(3)

    def path(self, *names):
        return os.path.join(self.folder, *map(str, names))

    def tokens(self, *shape):
        return self.rng.integers(3, 60, shape or (2, 23))

    def peft(self, kind, fields, options, seed=5, r=5):
        """Their model with adapters that are not 0, and the folder of the model without."""
        base = base_model(kind, fields)
        folder = self.path("base")
        base.save_pretrained(folder)
        task = dict(task_type="CAUSAL_LM" if kind != "Bert" else "FEATURE_EXTRACTION")
        torch.manual_seed(seed)
        model = peft.get_peft_model(base, peft.LoraConfig(r=r, **task, **options))
        return model, folder

    def stir(self, model):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(0, 0.2)

    def open(self, *args, **rest):
        net = LoraNet.open(self.lib, *args, threads=2, **rest)
        self.addCleanup(net.close)
        return net

    def adapters_of(self, model):
        return {name.removeprefix("base_model.model.").replace(".default", ""): p for name, p in model.named_parameters() if "lora_" in name}

    def ours(self, net, tokens):
        return net.logits(tokens)

    def test_initial_bits(self):
        for kind, fields, options, _ in CASES:
            if isinstance(options.get("target_modules"), str) and options["target_modules"] != ALL:
                continue  # tern's add takes no regular expression
            model, folder = self.peft(kind, fields, options)
            targets = options.get("target_modules")
            lora = dict(r=5, lora_alpha=options.get("lora_alpha", 8), use_rslora=options.get("use_rslora", False))
            net = self.open(folder, targets=[ALL] if targets == ALL else targets, lora=lora, seed=5)
            theirs, ours = self.adapters_of(model), net.adapters()
            self.assertEqual(list(ours), list(theirs))
            for name, value in theirs.items():
                self.assertTrue(numpy.array_equal(ours[name], value.detach().numpy()), name)

    def test_theirs(self):
        """tern opens what PEFT has saved: outputs, gradients, merged weights."""
        for number, (kind, fields, options, _) in enumerate(CASES):
            model, folder = self.peft(kind, fields, options)
            self.stir(model)
            model.save_pretrained(self.path(number))
            net = self.open(folder, self.path(number))
            for name, value in self.adapters_of(model).items():
                self.assertTrue(numpy.array_equal(net.state()[name], value.detach().numpy()), name)
            tokens = self.tokens()
            want = output(model, tokens)
            self.assertLess(error_of(net.logits(tokens), want.detach().numpy()), 2e-5)
            if kind != "Bert":
                loss = next_token_loss(want, torch.tensor(tokens))
                loss.backward()
                self.assertLess(abs(net.backward(tokens) - loss.item()), 2e-5)
                grads = net.grads()
                for name, parameter in self.adapters_of(model).items():
                    self.assertLess(error_of(grads[name], parameter.grad.numpy()), 1e-4, name)
                self.assertEqual(sum(grad is not None for grad in grads.values()), len(self.adapters_of(model)))
            merged = model.merge_and_unload()
            self.lib.check("tern_lora_merge", net.module)
            state = net.state()
            for name, value in merged.state_dict().items():
                self.assertLess(error_of(state[name], value.numpy()), 1e-6, name)
            self.assertLess(error_of(net.logits(tokens), output(merged, tokens).detach().numpy()), 2e-5)

    def test_ours(self):
        """PEFT opens what tern has saved, and so does tern."""
        for number, (kind, fields, options, targets) in enumerate(CASES):
            model, folder = self.peft(kind, fields, options)
            self.stir(model)
            model.save_pretrained(self.path(number, "theirs"))
            net = self.open(folder, self.path(number, "theirs"))
            ours = self.path(number, "ours")
            self.lib.check("tern_lora_save", net.module, ours.encode(), folder.encode())
            want, got = (load_file(self.path(number, side, "adapter_model.safetensors")) for side in ("theirs", "ours"))
            want = {name: value for name, value in want.items() if ".lora_" in name}  # beside a head's adapter PEFT saves its weight
            self.assertEqual(set(got), set(want))
            for name, value in want.items():
                self.assertTrue(torch.equal(got[name], value), name)
            config, theirs = (read_json(self.path(number, side, "adapter_config.json")) for side in ("ours", "theirs"))
            self.assertEqual(sorted(config.pop("target_modules")), targets)
            if "lm_head" in targets:  # a linear after one that is turned: PEFT writes what the last one is
                config.pop("fan_in_fan_out")
            for name, value in config.items():
                self.assertEqual(value, theirs[name] if name != "base_model_name_or_path" else folder, name)
            again = peft.PeftModel.from_pretrained(base_model(kind, fields), ours)
            self.assertEqual(type(again), type(model))
            tokens = self.tokens()
            want = output(model, tokens).detach()
            self.assertTrue(torch.equal(output(again, tokens), want))
            loaded = self.open(folder, ours, trains=False)
            self.assertLess(error_of(loaded.logits(tokens), want.numpy()), 2e-5)
            self.assertFalse(any(self.lib.tern_requires_grad_get(ctypes.c_void_p(entry.tensor)) for entry in loaded.entries()))

    def test_merged_folder(self):
        """transformers opens what tern has merged and saved."""
        for kind, fields, options, _ in (CASES[1], CASES[6], CASES[8]):
            model, folder = self.peft(kind, fields, options)
            self.stir(model)
            model.save_pretrained(self.path("adapter"))
            net = self.open(folder, self.path("adapter"))
            self.lib.check("tern_lora_merge", net.module)
            self.lib.check("tern_pretrained_save", net.module, self.path("merged").encode(), None)
            again, report = type(base_model(kind, fields)).from_pretrained(self.path("merged"), output_loading_info=True)
            self.assertFalse(any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report)
            tokens = self.tokens()
            self.assertLess(error_of(output(again, tokens).detach().numpy(), output(model, tokens).detach().numpy()), 2e-5)

    def convert(self, *words):
        done = subprocess.run([os.path.join(os.environ["TERN_BUILD"], "tern"), "convert", *words], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_convert(self):
        """`tern convert --adapter` writes what PEFT merges, into a folder and into a GGUF, in several dtypes; the files beside the model, too."""
        for number, (kind, fields, options, _) in enumerate((CASES[1], CASES[2], CASES[4], CASES[6])):
            model, folder = self.peft(kind, fields, options)
            self.stir(model)
            model.save_pretrained(self.path("adapter", number))
            merged = model.merge_and_unload()
            for dtype, theirs, bound in (("f32", torch.float32, 1e-6), ("bf16", torch.bfloat16, 2 ** -7), ("f16", torch.float16, 2 ** -10)):
                out = self.path("out", number, dtype)
                os.makedirs(self.path("out", number), exist_ok=True)
                self.convert("--adapter", self.path("adapter", number), "--dtype", dtype, folder, out)
                again, report = type(base_model(kind, fields)).from_pretrained(out, output_loading_info=True, dtype="auto")
                self.assertFalse(any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report)
                self.assertEqual(again.dtype, theirs)
                for name, value in merged.state_dict().items():
                    self.assertLess(error_of(again.state_dict()[name].float().numpy(), value.numpy()), bound, name)
                self.assertTrue(os.path.exists(os.path.join(out, "generation_config.json")))

    @unittest.skipUnless(importlib.util.find_spec("gguf") and skips.has_part("regex"), "no gguf, or this build has no regex")
    def test_convert_gguf(self):
        """Every matrix of the GGUF is PEFT's merged one; names of the package's own table."""
        import gguf

        import gguf_file
        for kind, arch in (("gpt2", gguf.MODEL_ARCH.GPT2), ("llama", gguf.MODEL_ARCH.LLAMA)):
            folder = self.path(kind)
            weights = gguf_file.folder_write(folder, kind, self.rng)
            base = transformers.AutoModelForCausalLM.from_pretrained(folder)
            torch.manual_seed(7)
            model = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=5, target_modules=ALL, task_type="CAUSAL_LM"))
            self.stir(model)
            model.save_pretrained(self.path(kind, "adapter"))
            self.convert("--adapter", self.path(kind, "adapter"), "--dtype", "f32", folder, self.path("out.gguf"))
            self.convert("--dtype", "f32", folder, self.path("plain.gguf"))
            merged, names, changed = model.merge_and_unload().state_dict(), gguf.get_tensor_name_map(arch, 2), 0
            plain, tensors = ({t.name: numpy.array(t.data) for t in gguf.GGUFReader(self.path(name)).tensors} for name in ("plain.gguf", "out.gguf"))
            self.assertEqual(sorted(tensors), sorted(plain))
            heads = gguf_file.FIELDS[kind].get("num_attention_heads")
            for name in weights:
                values, got = merged[name].numpy(), tensors[names.get_name(name, (".weight", ".bias"))]
                if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                    values = values.T
                if "q_proj" in name or "k_proj" in name:
                    dim = gguf_file.FIELDS[kind].get("head_dim") or gguf_file.FIELDS[kind]["hidden_size"] // heads
                    values = values.reshape(-1, 2, dim // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
                self.assertLess(abs(got - values).max(), 1e-5, name)
                changed += not numpy.array_equal(got, plain[names.get_name(name, (".weight", ".bias"))])
            self.assertEqual(changed, sum(".lora_A." in name for name, _ in peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(folder), peft.LoraConfig(
                r=3, target_modules=ALL, task_type="CAUSAL_LM")).named_parameters()))

    def test_adamw_steps(self):
        for kind, fields, options, _ in (CASES[0], CASES[1], CASES[4], CASES[5], CASES[6]):
            model, folder = self.peft(kind, fields, options)
            targets = options.get("target_modules")
            lora = dict(r=5, lora_alpha=options.get("lora_alpha", 8))
            net = self.open(folder, targets=[ALL] if targets == ALL else targets, lora=lora, seed=5, adam=dict(lr=5e-3))
            optim = torch.optim.AdamW(model.parameters(), 5e-3)
            for _ in range(20):
                tokens = self.tokens(3, 20)
                ours = net.step(tokens)
                optim.zero_grad()
                loss = next_token_loss(output(model, tokens), torch.tensor(tokens))
                loss.backward()
                optim.step()
                self.assertLess(abs(ours - loss.item()), 1e-4)
            self.assertLess(loss.item(), 0.999 * float(numpy.log(71) * 2))
            state = net.state()
            for name, parameter in self.adapters_of(model).items():
                self.assertLess(numpy.abs(state[name] - parameter.detach().numpy()).max(), 1e-4, name)
            for name, parameter in model.merge_and_unload().state_dict().items():
                if ".lora_" not in name and name not in state:
                    self.fail(name)

    def test_16_bits(self):
        """Beside weights of bf16 the adapters are f32 in both."""
        kind, fields, options, _ = CASES[0]
        base = base_model(kind, fields).bfloat16()
        base.save_pretrained(self.path("base"))
        torch.manual_seed(5)
        model = peft.get_peft_model(base, peft.LoraConfig(r=5, task_type="CAUSAL_LM"))
        self.stir(model)
        model.save_pretrained(self.path("adapter"))

        def make(rng):
            module = ctypes.c_void_p(self.lib.check("tern_pretrained_open", self.path("base").encode(), None))
            self.lib.check("tern_module_cast", module, BF16)
            self.lib.check("tern_lora_open", module, self.path("adapter").encode(), True)
            return module.value

        net = LoraNet(self.lib, make, threads=2)
        self.addCleanup(net.close)
        theirs = self.adapters_of(model)
        for name, value in theirs.items():
            self.assertEqual(value.dtype, torch.float32)
            self.assertTrue(numpy.array_equal(net.adapters()[name], value.detach().numpy()), name)
        tokens = self.tokens()
        exact = peft.PeftModel.from_pretrained(base_model(kind, fields).bfloat16().float(), self.path("adapter"))
        want, close = output(exact, tokens).detach().numpy(), output(model, tokens).detach().float().numpy()
        self.assertLess(error_of(net.call(tokens), want), max(0.02, 2 * error_of(close, want)))


if __name__ == "__main__":
    skips.main()
