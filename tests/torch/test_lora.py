"""Low-rank adapters beside the same formulas in PyTorch: logits, gradients, AdamW steps, merged weights, 16 bits, recomputation, a cache of
keys and values, several ranks; folders of adapters, and damaged ones. test_lora_newest.py compares with PEFT itself."""
import ctypes
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import numpy
import torch

import forked
import skips
import tern
from language_models import TWINS, LanguageNet, make_language_model, next_token_loss, scatter
from loras import LoraNet, adapt, add_lora, lora_library, read_json
from ops import BF16, F64, error_of
from safetensors_file import read
from test_pretrained import FIELDS

HERE = os.path.dirname(os.path.abspath(__file__))
INVALID, SHAPE, DTYPE, IO, FORMAT, RANGE, STATE, UNSUPPORTED = -1, -2, -3, -5, -6, -7, -8, -9
NONE = 2  # tern_reduction
# A kind, other fields, targets, PEFT's options.
CASES = [
    ("gpt2", {}, None, dict(r=5)),
    ("gpt2", dict(tie_word_embeddings=False), ["all-linear"], dict(r=3, lora_alpha=7.5, use_rslora=True)),
    ("gpt2", {}, ["mlp.c_proj", "transformer.h.1.attn.c_attn", "lm_head"], dict(r=1, lora_alpha=2)),
    ("llama", {}, None, {}),
    ("llama", dict(attention_bias=True, num_key_value_heads=4), ["all-linear"], dict(r=40)),
    ("bert", {}, None, dict(r=4)),
]
USUAL = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}


def ends(kind, targets, module):
    """The targets as ends of names of PyTorch's module."""
    if targets == ["all-linear"]:
        return [name for name, child in module.named_modules() if hasattr(child, "weight") and child.weight.ndim == 2
                and not isinstance(child, torch.nn.Embedding) and name != "lm_head"]
    return targets or USUAL[kind]


class Loras(unittest.TestCase):
    def setUp(self):
        self.lib = lora_library()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.rng = numpy.random.default_rng(1)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def tokens(self, *shape):
        return self.rng.integers(0, 50, shape or (3, 11))

    def new(self, kind, more=None, targets=None, lora=None, **rest):
        net = LoraNet.new(self.lib, kind, {**FIELDS[kind], **(more or {})}, targets, lora, threads=2, **rest)
        self.addCleanup(net.close)
        return net

    def pair(self, kind, more, targets, lora, **rest):
        """The same model, of values far from the initial ones, in tern and PyTorch."""
        net = self.new(kind, more, targets, lora, **rest)
        module = TWINS[kind](**{**FIELDS[kind], **more})
        adapt(module, ends(kind, targets, module), **lora)
        scatter(module, 3)
        self.assertEqual([e.name.decode() for e in net.entries()], list(module.state_dict()))
        net.load(module.state_dict())
        return net, module

    def test_step(self):
        """Logits, loss and gradients, of the adapters alone."""
        for case in CASES:
            net, module = self.pair(*case)
            tokens = self.tokens()
            wanted = {}
            for dtype in (torch.float32, torch.float64):
                module.to(dtype).zero_grad()
                y = module(torch.tensor(tokens))
                loss = next_token_loss(y, torch.tensor(tokens)) if case[0] != "bert" else (y * y).mean()
                loss.backward()
                wanted[dtype] = y.detach().numpy(), loss.item(), {n: p.grad.numpy().copy() for n, p in module.named_parameters() if p.requires_grad}
            (y32, _, grads32), (y, loss, grads) = wanted[torch.float32], wanted[torch.float64]
            self.assertEqual(len(grads), sum(".lora_" in name for name in net.state()))
            self.assertLessEqual(error_of(net.logits(tokens), y), max(2e-5, 8 * error_of(y32, y)))
            if case[0] == "bert":
                continue
            self.assertLessEqual(abs(net.backward(tokens) - loss), 1e-5)
            for name, grad in net.grads().items():
                self.assertEqual(grad is None, name not in grads, name)
                if grad is not None:
                    self.assertLessEqual(error_of(grad, grads[name]), max(2e-5, 8 * error_of(grads32[name], grads[name])), name)

    def test_adamw_steps(self):
        """Frozen parameters have no state, and keep their bits."""
        for kind, more, targets, lora in CASES[:5]:
            net, module = self.pair(kind, more, targets, lora, adam=dict(lr=3e-3))
            optim = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 3e-3)
            before = net.state()
            for _ in range(20):
                tokens = self.tokens()
                loss = next_token_loss(module(torch.tensor(tokens)), torch.tensor(tokens))
                optim.zero_grad()
                loss.backward()
                optim.step()
                self.assertLess(abs(net.step(tokens) - loss.item()), 1e-4)
            state = net.state()
            elements = 0
            for name, value in module.state_dict().items():
                if ".lora_" in name:
                    self.assertLess(numpy.abs(state[name] - value.numpy()).max(), 1e-4, name)
                    elements += -(-value.numel() // 16) * 16  # a parameter begins on a cache line
                else:
                    self.assertTrue(numpy.array_equal(state[name], before[name]), name)
            self.assertLessEqual(self.lib.tern_optim_state_bytes(net.optim), 2 * 4 * elements)

    def test_reduction_none(self):
        """The loss of a head with an adapter is made of its logits."""
        net, module = self.pair(*CASES[2])
        tokens = self.tokens(2, 7)
        labels = tokens.copy()
        labels[1, 3:] = -100
        logits = module(torch.tensor(tokens))
        want = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), torch.tensor(labels)[:, 1:].flatten(), label_smoothing=0.1)
        self.assertLess(abs(net.backward(tokens, labels, label_smoothing=0.1) - want.item()), 1e-5)
        opts = self.lib.tern_language_model_loss_defaults()
        opts.reduction = NONE
        losses = self.lib.tern_language_model_loss(net.module, net.scope, net.tensor(tokens), net.tensor(labels), ctypes.byref(opts))
        net.raise_error()
        each = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), torch.tensor(labels)[:, 1:], reduction="none")
        numpy.testing.assert_allclose(net.read(losses)[:, :-1], each.detach().numpy(), rtol=0, atol=2e-5)

    def test_16_bits(self):
        """Under autocast; beside weights of bf16, where the adapters stay f32; and all of bf16 or f64."""
        for kind, more, targets, lora in (CASES[0], CASES[4]):
            net, module = self.pair(kind, more, targets, lora)
            tokens = self.tokens()
            loss = next_token_loss(module(torch.tensor(tokens)), torch.tensor(tokens))
            loss.backward()
            grads = {name: p.grad.numpy() for name, p in module.named_parameters() if p.requires_grad}
            state = module.state_dict()
            fields = {**FIELDS[kind], **more}

            def beside(rng):
                model = ctypes.c_void_p(make_language_model(self.lib, kind, None, **fields))
                self.lib.check("tern_module_cast", model, BF16)
                add_lora(self.lib, model, rng, targets, **lora)
                return model.value

            def check(net, far):
                self.assertLess(abs(net.backward(tokens) - loss.item()), far)
                for entry in net.entries():
                    name = entry.name.decode()
                    if name in grads:
                        grad = self.lib.tern_grad_get(ctypes.c_void_p(entry.tensor))
                        self.assertLess(error_of(self.wide(net, grad), grads[name]), 4 * far, name)

            net.region = BF16
            check(net, 3e-2)
            for make, dtype, far in ((beside, None, 3e-2), (None, BF16, 6e-2), (None, F64, 1e-5)):
                other = LoraNet(self.lib, make, threads=2) if make else self.new(kind, more, targets, lora, dtype=dtype)
                if make:
                    self.addCleanup(other.close)
                for entry in other.entries():
                    self.write(entry, state[entry.name.decode()])
                check(other, far)

    def wide(self, net, tensor):
        """A tensor's values in f32 or f64; those of bf16 by their bits."""
        tensor = ctypes.c_void_p(tensor)
        if self.lib.tern_tensor_dtype(tensor) != BF16:
            return net.read(tensor.value)
        bits = numpy.empty(self.lib.tern_tensor_count(tensor), "uint16")
        self.lib.check("tern_tensor_read", tensor, tern.pointer(bits), ctypes.c_size_t(bits.nbytes))
        shape = self.lib.tern_tensor_shape(tensor)[: self.lib.tern_tensor_ndim(tensor)]
        return (bits.astype("uint32") << 16).view("float32").reshape(shape)

    def write(self, entry, value):
        tensor = ctypes.c_void_p(entry.tensor)
        dtype = {BF16: torch.bfloat16, F64: torch.float64}.get(self.lib.tern_tensor_dtype(tensor), torch.float32)
        value = value.to(dtype)
        value = value.view(torch.int16) if dtype == torch.bfloat16 else value
        array = numpy.ascontiguousarray(value.numpy())
        self.lib.check("tern_tensor_write", tensor, tern.pointer(array), ctypes.c_size_t(array.nbytes))

    def test_recomputed_blocks(self):
        """The first block's input wants no gradient; its adapters do."""
        for case in (CASES[0], CASES[4]):
            tokens = self.tokens()
            results = []
            for recomputes in (False, True):
                net, _ = self.pair(*case)
                if recomputes:
                    kind = b"gpt2_block" if case[0] == "gpt2" else b"llama_layer"
                    self.assertGreater(self.lib.tern_module_checkpoint_set(net.module, kind, True), 0)
                loss = net.backward(tokens)
                results.append((loss, {name: grad for name, grad in net.grads().items() if grad is not None}))
            self.assertEqual(results[0][0], results[1][0])
            self.assertEqual(list(results[0][1]), list(results[1][1]))
            for name, grad in results[0][1].items():
                self.assertTrue(numpy.array_equal(grad, results[1][1][name]), name)

    def test_a_cache(self):
        for case in (CASES[1], CASES[2], CASES[3]):
            net, module = self.pair(*case)
            tokens = self.tokens(2, 12)
            cache = ctypes.c_void_p(self.lib.check("tern_kv_cache_new", net.module, ctypes.c_int64(2), ctypes.c_int64(12)))
            self.addCleanup(self.lib.tern_kv_cache_free, cache)
            got = numpy.concatenate([net.call(tokens[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 12))], 1)
            self.assertLess(error_of(got, module(torch.tensor(tokens)).detach().numpy()), 2e-5)

    def test_merged(self):
        for case in (CASES[0], CASES[1], CASES[4], CASES[5]):
            net, module = self.pair(*case)
            tokens = self.tokens()
            want = net.logits(tokens)
            with self.assertRaises(tern.TernError) as caught:
                self.lib.check("tern_pretrained_save", net.module, self.path("early").encode(), None)
            self.assertEqual(caught.exception.code, STATE)
            self.assertIn("tern_lora_merge makes them a part of its weights, and tern_lora_save writes them alone", str(caught.exception))
            self.assertFalse(os.path.exists(self.path("early")))
            self.lib.check("tern_lora_merge", net.module)
            self.assertTrue(self.lib.tern_lora_has(net.module))
            state = net.state()
            for name, child in module.named_modules():
                if hasattr(child, "lora_A"):
                    product = child.scale * child.lora_B.weight.double() @ child.lora_A.weight.double()
                    sum_ = child.weight.double() + (product if isinstance(child.base[0], torch.nn.Linear) else product.T)
                    self.assertLess(error_of(state[f"{name}.weight"], sum_.detach().numpy()), 1e-6, name)
            self.assertLess(error_of(net.logits(tokens), want), 2e-5)
            self.lib.check("tern_pretrained_save", net.module, self.path("merged").encode(), None)
            plain = LanguageNet.open(self.lib, self.path("merged"), threads=2)
            self.addCleanup(plain.close)
            self.assertFalse(any(".lora_" in name for name in plain.state()))
            self.assertTrue(numpy.array_equal(plain.logits(tokens), net.logits(tokens)))
            for call in (lambda: self.lib.check("tern_lora_merge", net.module),
                         lambda: self.lib.check("tern_lora_save", net.module, self.path("late").encode(), None)):
                self.refused(call, INVALID, "merged")

    def test_folders(self):
        """An adapter that is saved and opened has the same bits, and trains on if it is to."""
        for number, case in enumerate(CASES):
            net, _ = self.pair(*case)
            base, adapter = self.path(str(number), "base"), self.path(str(number), "deep", "adapter")
            plain = LanguageNet.new(self.lib, case[0], {**FIELDS[case[0]], **case[1]})
            self.addCleanup(plain.close)
            plain.load({name: torch.tensor(value) for name, value in net.state().items()})
            self.lib.check("tern_pretrained_save", plain.module, base.encode(), None)
            self.lib.check("tern_lora_save", net.module, adapter.encode(), b"a base")
            self.assertEqual(sorted(os.listdir(adapter)), ["adapter_config.json", "adapter_model.safetensors"])
            names, metadata = read(os.path.join(adapter, "adapter_model.safetensors"))[:2]
            self.assertEqual(sorted(names), sorted(f"base_model.model.{name}" for name in net.adapters()))
            config = read_json(os.path.join(adapter, "adapter_config.json"))
            self.assertEqual(config["base_model_name_or_path"], "a base")
            tokens = self.tokens()
            for trains in (False, True):
                again = LoraNet.open(self.lib, base, adapter, trains, threads=2)
                self.addCleanup(again.close)
                for name, value in net.state().items():
                    self.assertTrue(numpy.array_equal(again.state()[name], value), name)
                self.assertTrue(numpy.array_equal(again.logits(tokens), net.logits(tokens)))
                wants = [e.name.decode() for e in again.entries() if self.lib.tern_requires_grad_get(ctypes.c_void_p(e.tensor))]
                self.assertEqual(wants, list(net.adapters()) if trains else [])

    def refused(self, call, code, *texts):
        with self.assertRaises(tern.TernError) as caught:
            call()
        for text in texts:
            self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.code, code, str(caught.exception))

    def test_refused_options(self):
        model = ctypes.c_void_p(make_language_model(self.lib, "gpt2", None, **FIELDS["gpt2"]))
        self.addCleanup(self.lib.tern_module_free, model)
        add = lambda targets=None, **fields: lambda: add_lora(self.lib, model, None, targets, **fields)
        self.refused(add(["c_attn", "q_proj"]), INVALID, 'gpt2 has no linear "q_proj" in target_modules; it has c_attn, c_proj, c_fc, lm_head')
        self.refused(add(["attn"]), INVALID, 'no linear "attn"')
        self.refused(add(["_attn"]), INVALID, 'no linear "_attn"')
        self.refused(add([""]), INVALID, 'no linear ""')
        for fields, text in ((dict(r=0), "r is 0, expected at least 1"), (dict(lora_alpha=float("inf")), "lora_alpha is inf"),
                             (dict(lora_dropout=1), "lora_dropout is 1, expected a number in [0, 1)"), (dict(lora_dropout=-0.1), "lora_dropout is -0.1")):
            self.refused(add(**fields), RANGE, text)
        self.refused(add(target_count=-1), INVALID, "target_modules has -1 names and is NULL")
        self.refused(add(target_count=2), INVALID, "target_modules has 2 names and is NULL")
        self.refused(lambda: add_lora(self.lib, None, None), INVALID, "the module is NULL")
        self.refused(lambda: self.lib.check("tern_lora_merge", model), INVALID, "gpt2 has no adapters")
        self.refused(lambda: self.lib.check("tern_lora_save", model, b"x", None), INVALID, "there are no adapters in gpt2")
        self.assertFalse(self.lib.tern_lora_has(model))
        state = [self.lib.tern_state_get(model, i) for i in range(self.lib.tern_state_count(model))]
        self.assertTrue(all(self.lib.tern_requires_grad_get(ctypes.c_void_p(e.tensor)) for e in state))
        add()()
        self.refused(add(), INVALID, "gpt2 has adapters already")
        tied = ctypes.c_void_p(make_language_model(self.lib, "gpt2", None, **FIELDS["gpt2"]))
        self.addCleanup(self.lib.tern_module_free, tied)
        add_lora(self.lib, tied, None, ["lm_head", "c_attn"])
        self.refused(lambda: self.lib.check("tern_lora_merge", tied), INVALID, "the weight of lm_head is shared with another layer, which merging would change")
        mlp = LanguageNet.mlp(self.lib, [4, 3, 2])
        self.addCleanup(mlp.close)
        self.refused(lambda: add_lora(self.lib, mlp.module, None), INVALID, "sequential has no usual targets: name its linears in target_modules")
        self.refused(lambda: add_lora(self.lib, mlp.module, None, ["all-linear"]), STATE, "build the whole model first")

    def damaged(self, kind="gpt2", config=None, drop=(), add=None, text=None, weights=None):
        """Opens a folder whose files were changed."""
        net = self.new(kind, None, None, dict(r=3))
        folder = self.path("damaged")
        self.lib.check("tern_lora_save", net.module, folder.encode(), None)
        path = os.path.join(folder, "adapter_config.json")
        fields = {**read_json(path), **(config or {})}
        with open(path, "w", encoding="utf-8") as file:
            file.write(text if text is not None else json.dumps({name: value for name, value in fields.items() if name not in drop}))
        if weights:
            names = [f"base_model.model.{name}" for name in net.adapters()]
            self.rewrite(os.path.join(folder, "adapter_model.safetensors"), names, list(net.adapters().values()), weights)
        model = ctypes.c_void_p(make_language_model(self.lib, kind, None, **FIELDS[kind]))
        self.addCleanup(self.lib.tern_module_free, model)

        def opens():
            try:
                self.lib.check("tern_lora_open", model, folder.encode(), True)
            finally:
                self.opened = self.lib.tern_lora_has(model)
            return model
        return opens

    def rewrite(self, path, names, values, change):
        """Writes the tensors that `change` makes of a dict of them."""
        tensors = change(dict(zip(names, values)))
        header, data = {}, b""
        for name, value in tensors.items():
            kind = {"float32": "F32", "int64": "I64"}[str(value.dtype)]
            header[name] = dict(dtype=kind, shape=list(value.shape), data_offsets=[len(data), len(data) + value.nbytes])
            data += value.tobytes()
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)

    def test_damaged_configs(self):
        for config, name in ((dict(use_dora=True), "use_dora"), (dict(rank_pattern={"c_attn": 4}), "rank_pattern"),
                             (dict(alpha_pattern={"c_attn": 4}), "alpha_pattern"), (dict(layers_to_transform=[0]), "layers_to_transform"),
                             (dict(modules_to_save=["lm_head"]), "modules_to_save"), (dict(bias="all"), "bias"), (dict(peft_type="IA3"), "peft_type"),
                             (dict(init_lora_weights="pissa"), "init_lora_weights"), (dict(layer_replication=[[0, 1]]), "layer_replication"),
                             (dict(lora_bias=True), "lora_bias"), (dict(exclude_modules="x"), "exclude_modules"), (dict(of_next_year=7), "of_next_year")):
            self.refused(self.damaged(config=config), UNSUPPORTED, f'"{name}" is ', "which tern does not have")
        for options, text in ((dict(text="{"), "is not JSON"), (dict(text="[]"), "is not a JSON object"), (dict(drop=["r"]), '"r" is missing'),
                              (dict(drop=["peft_type"]), '"peft_type" is missing'), (dict(config=dict(r="8")), '"r" is not an integer'),
                              (dict(config=dict(lora_alpha="8")), '"lora_alpha" is not a number'), (dict(config=dict(use_rslora=1)), '"use_rslora" is not true or false'),
                              (dict(drop=["target_modules"]), '"target_modules" is not a list of names or a string'),
                              (dict(config=dict(target_modules=[1])), '"target_modules" is not a list'),
                              (dict(config=dict(target_modules=[])), '"target_modules" is not a list')):
            self.refused(self.damaged(**options), FORMAT, text)
        for config, text in ((dict(r=0), "r is 0"), (dict(lora_dropout=1.0), "lora_dropout is 1")):
            self.refused(self.damaged(config=config), RANGE, text)
        self.assertFalse(self.opened)
        for config in (dict(target_modules=["c_attn", "a_name_of_other_models"]), dict(target_modules=r".*c_att\w"), dict(init_lora_weights="gaussian"),
                       dict(peft_version="9.9", megatron_core="megatron.core", qalora_group_size=16, exclude_modules=None, trainable_token_indices=None,
                            loftq_config={}, lora_bias=False, revision="main", task_type=None, auto_mapping=None)):
            self.damaged(config=config)()
            self.assertTrue(self.opened)

    def test_damaged_weights(self):
        b = "base_model.model.transformer.h.1.attn.c_attn.lora_B.weight"
        without = lambda tensors: {name: value for name, value in tensors.items() if name != b}
        more = lambda name: lambda tensors: {**tensors, name: numpy.zeros((3, 24), "float32")}
        change = lambda value: lambda tensors: {**tensors, b: value}
        self.refused(self.damaged(weights=without), INVALID, f'"{b}" is missing')
        self.refused(self.damaged(config=dict(target_modules=["c_attn", "c_fc"])), INVALID, '"base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight" is missing')
        self.refused(self.damaged(config=dict(target_modules="all-linear")), INVALID, "attn.c_proj.lora_A.weight\" is missing")
        self.refused(self.damaged(weights=lambda tensors: {}, config=dict(target_modules="x")), INVALID, "has no adapter for a linear of gpt2")
        for name in ("base_model.model.transformer.h.2.attn.c_attn.lora_A.weight", "transformer.h.0.attn.c_attn.lora_A.weight", "base_model.model.x", "x"):
            self.refused(self.damaged(weights=more(name)), INVALID, f'gpt2 has no linear for "{name}"')
        self.refused(self.damaged(weights=change(numpy.zeros((72, 4), "float32"))), SHAPE, f'"{b}" is (72, 4), expected (72, 3)')
        self.refused(self.damaged(weights=change(numpy.zeros((72, 3), "int64"))), DTYPE, f'"{b}" is of i64, expected floating point')
        self.refused(self.damaged(config=dict(r=4)), SHAPE, "is (3, 24), expected (4, 24)")
        self.refused(self.damaged(weights=more("base_model.model.transformer.wpe.weight")), SHAPE, "is (3, 24), expected (16, 24)")
        self.assertFalse(self.opened)
        opens = self.damaged()
        os.remove(self.path("damaged", "adapter_model.safetensors"))
        self.refused(opens, IO, "adapter_model.safetensors")
        os.remove(self.path("damaged", "adapter_config.json"))
        self.refused(opens, IO, "adapter_config.json")
        self.damaged()
        llama = ctypes.c_void_p(make_language_model(self.lib, "llama", None, **FIELDS["llama"]))
        self.addCleanup(self.lib.tern_module_free, llama)
        self.refused(lambda: self.lib.check("tern_lora_open", llama, self.path("damaged").encode(), True), INVALID, "llama has no linear for")

    def test_own_weight_of_a_head(self):
        """Beside the adapter of a head, PEFT saves the head's weight and the embedding's."""
        for name in ("lm_head.base_layer.weight", "transformer.wte.weight"):
            value = {f"base_model.model.{name}": self.rng.normal(size=(61, 24)).astype("float32")}
            model = self.damaged(weights=lambda tensors: {**tensors, **value})()
            entry = self.lib.tern_state_get(model, 0)
            self.assertEqual(entry.name, b"transformer.wte.weight")
            got = numpy.empty((61, 24), "float32")
            self.lib.check("tern_tensor_read", ctypes.c_void_p(entry.tensor), tern.pointer(got), ctypes.c_size_t(got.nbytes))
            self.assertTrue(numpy.array_equal(got, *value.values()))

    def test_ranks(self):
        """Two ranks with tern_ddp, also with sharded optimizers: the same bits, and the losses of one process with all batches."""
        command = [os.path.join(os.environ["TERN_BUILD"], "tern"), "run", "-n", "2", *forked.interpreter()]
        done = subprocess.run([*command, os.path.join(HERE, "lora_rank.py")], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("equal"), 2)


if __name__ == "__main__":
    skips.main()
