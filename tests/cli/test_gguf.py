"""tern convert FOLDER OUT.gguf: keys, vocabulary and tensors beside those of the folder, and what is refused."""
import glob
import json
import os
import resource
import signal
import unittest

import numpy

import gguf_file
import job
import skips
from folder import InFolder

LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NAMES = {
    "gpt2": {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "lm_head": "output", "ln_1": "attn_norm",
             "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    "llama": {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
}
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
LLAMAS = [dict(), dict(num_key_value_heads=4, tie_word_embeddings=True, hidden_size=40, intermediate_size=50),
          dict(head_dim=10, attention_bias=True, mlp_bias=True, rope_scaling=LLAMA3), dict(num_key_value_heads=1, head_dim=32, vocab_size=337)]


def expected(kind, name, values, config):
    """The name and the values of a weight in the file, before they are rounded."""
    parts, block = name.split("."), ""
    if name.startswith(("transformer.h.", "model.layers.")):
        parts, block = parts[3:], f"blk.{parts[2]}."
    if name.endswith(("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")):
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        heads = values.reshape(-1, 2, dim // 2, *values.shape[1:])
        values = heads.swapaxes(1, 2).reshape(values.shape)
    if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        values = values.T
    return f"{block}{NAMES[kind]['.'.join(parts[:-1])]}.{parts[-1]}", values


def rope_divisors(base, dim, scaling):
    """The formula of transformers' llama3, as what frequencies are divided by."""
    frequencies = base ** -(numpy.arange(0, dim, 2) / dim)
    low, high, length = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    waves = 2 * numpy.pi / frequencies
    smooth = (length / waves - low) / (high - low)
    middle = (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies
    scaled = numpy.where(waves > length / low, frequencies / scaling["factor"], numpy.where(waves < length / high, frequencies, middle))
    return frequencies / scaled


@unittest.skipUnless(skips.has_part("regex"), "this build has no regex")
class Gguf(InFolder):
    def setUp(self):
        super().setUp()
        self.rng = numpy.random.default_rng(1)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def convert(self, *options, folder="in", out="out.gguf", **more):
        return job.tern("convert", *options, self.path(folder), self.path(out), **more)

    def fine(self, *options, folder="in"):
        code, out, err = self.convert(*options, folder=folder)
        self.assertEqual((code, out, err), (0, "", ""))
        return gguf_file.read(self.path("out.gguf"))

    def refused(self, text, *options, code=1, **more):
        before = sorted(glob.glob(self.path("**"), recursive=True))
        got, out, err = self.convert(*options, **more)
        self.assertEqual((got, out), (code, ""))
        self.assertIn(text, err)
        self.assertEqual(sorted(glob.glob(self.path("**"), recursive=True)), before)

    def folder_write(self, kind, **more):
        weights = gguf_file.folder_write(self.path("in"), kind, self.rng, **more)
        return weights, dict(gguf_file.FIELDS[kind], **more)

    def change(self, name, change):
        """Changes a JSON file of the folder."""
        with open(self.path("in", name)) as file:
            value = json.load(file)
        change(value)
        gguf_file.json_write(value, self.path("in", name))

    def same_tensors(self, kind, weights, config, dtype, tensors):
        want = dict(expected(kind, name, values, config) for name, values in weights.items())
        if "rope_scaling" in config:
            divisors = rope_divisors(config["rope_theta"], config["head_dim"], config["rope_scaling"])
            numpy.testing.assert_allclose(tensors.pop("rope_freqs.weight")[1], divisors, rtol=1e-6)
        self.assertEqual(sorted(tensors), sorted(want))
        for name, values in want.items():
            kind = "f32" if values.ndim == 1 or name == "position_embd.weight" else dtype
            if kind == "q8_0" and values.shape[-1] % 32:
                kind = "f16"
            rounded = dict(f32=lambda x: x, f16=lambda x: x.astype("f2").astype("f4"), q8_0=gguf_file.q8_0)[kind](values)
            self.assertEqual((tensors[name][0], tensors[name][1].shape), (kind, values.shape), name)
            self.assertTrue(numpy.array_equal(tensors[name][1], rounded), name)

    def same_keys(self, keys, **want):
        for name, value in want.items():
            got = keys[name.replace("__", ".")]
            self.assertEqual(type(got), type(value), name)
            self.assertTrue(abs(got - value) < 1e-6 * value if isinstance(value, float) else got == value, (name, got, value))

    def test_gpt2(self):
        for more in (dict(), dict(n_embd=36, n_head=3, n_inner=50, tie_word_embeddings=False), dict(vocab_size=303)):
            weights, config = self.folder_write("gpt2", **more)
            for dtype, number in (("f32", 0), ("f16", 1), ("q8_0", 7)):
                keys, tensors = self.fine("--dtype", dtype)
                self.same_tensors("gpt2", weights, config, dtype, tensors)
                self.same_keys(keys, general__architecture="gpt2", general__type="model", general__name="in", general__file_type=number, general__quantization_version=2,
                               gpt2__block_count=2, gpt2__context_length=16, gpt2__embedding_length=config["n_embd"], gpt2__attention__head_count=config["n_head"],
                               gpt2__feed_forward_length=config.get("n_inner") or 4 * config["n_embd"], gpt2__attention__layer_norm_epsilon=1e-4)
            self.assertEqual(self.fine()[1]["token_embd.weight"][0], "f16")

    def test_llama(self):
        for more in LLAMAS:
            weights, config = self.folder_write("llama", **more)
            for dtype, number in (("f32", 0), ("f16", 1), ("q8_0", 7)):
                keys, tensors = self.fine("--dtype", dtype)
                self.same_tensors("llama", weights, config, dtype, tensors)
                dim = config.get("head_dim") or config["hidden_size"] // 4
                self.same_keys(keys, general__architecture="llama", general__file_type=number, llama__block_count=2, llama__context_length=32, llama__vocab_size=config["vocab_size"],
                               llama__embedding_length=config["hidden_size"], llama__feed_forward_length=config["intermediate_size"], llama__attention__head_count=4,
                               llama__attention__head_count_kv=config["num_key_value_heads"], llama__attention__key_length=dim, llama__attention__value_length=dim,
                               llama__rope__dimension_count=dim, llama__rope__freq_base=500.0, llama__attention__layer_norm_rms_epsilon=1e-5)
                self.assertNotIn("llama.rope.scaling.type", keys)

    def test_rope_scaling(self):
        self.folder_write("llama", rope_scaling=dict(rope_type="linear", factor=3.0))
        self.same_keys(self.fine()[0], llama__rope__scaling__type="linear", llama__rope__scaling__factor=3.0)
        self.folder_write("llama", rope_scaling=dict(type="yarn", factor=4.0, beta_slow=0.5, original_max_position_embeddings=8))
        self.same_keys(self.fine()[0], llama__rope__scaling__type="yarn", llama__rope__scaling__factor=4.0, llama__rope__scaling__original_context_length=8,
                       llama__rope__scaling__yarn_beta_fast=32.0, llama__rope__scaling__yarn_beta_slow=0.5)
        for more, text in ((dict(rope_type="dynamic", factor=2.0), '"rope_type" is dynamic'),
                           (dict(rope_type="longrope", factor=2.0, original_max_position_embeddings=16, short_factor=[1.0] * 8, long_factor=[2.0] * 8), '"rope_type" is longrope'),
                           (dict(rope_type="yarn", factor=2.0, truncate=False), '"truncate" is false'), (dict(rope_type="yarn", factor=2.0, attention_factor=1.5), '"attention_factor" is given')):
            self.folder_write("llama", rope_scaling=more)
            self.refused(f"{text}", out="other.gguf")

    def test_special_numbers(self):
        """What rounds: ties, subnormal numbers and scales, zeros; and what f16 and q8_0 do not have."""
        values = self.rng.standard_normal((310, 64)).astype("f4")
        values[0] = 0
        values[1] *= 1e-42
        values[2] *= 1e-6
        values[3, :32] = numpy.arange(32) - 15.5
        values[3, 0] = 127
        values[4] *= 1e4
        values[5, :3] = 65504, -65519, 2.0**-25
        for dtype in ("f32", "f16", "q8_0"):
            weights, config = self.folder_write("gpt2", weights={"transformer.wte.weight": values})
            self.same_tensors("gpt2", weights, gguf_file.FIELDS["gpt2"], dtype, self.fine("--dtype", dtype)[1])
        for number, dtypes in ((65520, ["f16"]), (9e6, ["f16", "q8_0"]), (numpy.inf, ["f16", "q8_0"]), (-numpy.nan, ["f16", "q8_0"])):
            values[7, 7] = number
            weights, config = self.folder_write("gpt2", weights={"transformer.wte.weight": values})
            self.assertEqual(self.fine("--dtype", "f32")[1]["token_embd.weight"][1].tobytes(), values.tobytes())
            for dtype in dtypes:
                self.refused(f"token_embd.weight of {self.path('out.gguf')} has a number that is not finite or too large for {dtype}", "--dtype", dtype)

    def test_byte_level(self):
        for split, ignore, pre in ((None, False, "gpt-2"), (LLAMA3_WORDS, True, "llama-bpe"), (LLAMA3_WORDS, False, "smaug-bpe"), (LLAMA3_WORDS.replace("{1,3}", ""), False, "qwen2")):
            self.folder_write("gpt2")
            tokenizer = gguf_file.byte_level(self.rng, 40, split)
            tokenizer["model"]["ignore_merges"] = ignore
            gguf_file.json_write(tokenizer, self.path("in", "tokenizer.json"))
            keys = self.fine()[0]
            tokens = [*tokenizer["model"]["vocab"], "<|endoftext|>", "word"]
            self.assertEqual(keys["tokenizer.ggml.tokens"], tokens + [f"[PAD{i}]" for i in range(len(tokens), 310)])
            self.assertEqual(keys["tokenizer.ggml.token_type"], [1] * 296 + [3, 4] + [5] * 12)
            self.assertEqual(keys["tokenizer.ggml.merges"], [" ".join(pair) for pair in tokenizer["model"]["merges"]])
            self.same_keys(keys, tokenizer__ggml__model="gpt2", tokenizer__ggml__pre=pre, tokenizer__ggml__bos_token_id=296, tokenizer__ggml__eos_token_id=296,
                           tokenizer__ggml__add_bos_token=False, tokenizer__ggml__add_eos_token=False)
            self.assertNotIn("tokenizer.ggml.scores", keys)
            self.assertNotIn("tokenizer.ggml.unknown_token_id", keys)

    def test_gpt2s_files(self):
        """vocab.json and merges.txt are the same vocabulary."""
        self.folder_write("gpt2")
        self.change("tokenizer.json", lambda file: file.update(added_tokens=file["added_tokens"][:1]))
        want = self.fine()[0]
        with open(self.path("in", "tokenizer.json")) as file:
            model = json.load(file)["model"]
        os.remove(self.path("in", "tokenizer.json"))
        gguf_file.json_write({**model["vocab"], "<|endoftext|>": 296}, self.path("in", "vocab.json"))
        with open(self.path("in", "merges.txt"), "w", encoding="utf-8") as file:
            file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
        self.assertEqual(self.fine()[0], want)

    def test_sentence_piece(self):
        self.folder_write("llama")
        with open(self.path("in", "tokenizer.json")) as file:
            tokenizer = json.load(file)
        keys = self.fine()[0]
        vocabulary = list(tokenizer["model"]["vocab"])
        chars = len(vocabulary) - 259 - 60
        self.assertEqual(keys["tokenizer.ggml.tokens"], vocabulary + [" new word"] + [f"[PAD{i}]" for i in range(len(vocabulary) + 1, 420)])
        self.assertEqual(keys["tokenizer.ggml.token_type"], [2, 3, 3] + [6] * 256 + [1] * (60 + chars) + [4] + [5] * (420 - len(vocabulary) - 1))
        scores = [0.0, -1000.0, -1000.0] + [0.0] * 256 + [float(-i) for i in range(60 + chars)] + [-1000.0] + [-10000.0] * (420 - len(vocabulary) - 1)
        self.assertEqual(keys["tokenizer.ggml.scores"], scores)
        self.same_keys(keys, tokenizer__ggml__model="llama", tokenizer__ggml__pre="default", tokenizer__ggml__add_space_prefix=True, tokenizer__ggml__unknown_token_id=0,
                       tokenizer__ggml__bos_token_id=1, tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=False)
        self.assertNotIn("tokenizer.ggml.merges", keys)
        for scheme, prefix in (("always", True), ("first", True), ("never", False)):
            self.change("tokenizer.json", lambda file: file.update(normalizer=None, pre_tokenizer=dict(type="Metaspace", replacement="▁", prepend_scheme=scheme, split=False)))
            self.same_keys(self.fine()[0], tokenizer__ggml__add_space_prefix=prefix)
        self.change("tokenizer.json", lambda file: file.update(normalizer=dict(type="Replace", pattern=dict(String=" "), content="▁"), pre_tokenizer=None))
        self.same_keys(self.fine()[0], tokenizer__ggml__add_space_prefix=False)

    def test_special_tokens(self):
        """Of tokenizer_config.json, else of config.json; templates for chats."""
        self.folder_write("llama", bos_token_id=1, eos_token_id=7, pad_token_id=5)
        self.same_keys(self.fine()[0], tokenizer__ggml__bos_token_id=1, tokenizer__ggml__eos_token_id=7, tokenizer__ggml__padding_token_id=5)
        config = dict(bos_token="<s>", eos_token=dict(content="</s>"), chat_template="{{ 'é' }}")
        gguf_file.json_write(config, self.path("in", "tokenizer_config.json"))
        self.same_keys(self.fine()[0], tokenizer__ggml__eos_token_id=2, tokenizer__ggml__padding_token_id=5, tokenizer__chat_template="{{ 'é' }}")
        config["chat_template"] = [dict(name="tool_use", template="a"), dict(name="default", template="b")]
        gguf_file.json_write(config, self.path("in", "tokenizer_config.json"))
        self.same_keys(self.fine()[0], tokenizer__chat_template="b")
        del config["chat_template"]
        gguf_file.json_write(config, self.path("in", "tokenizer_config.json"))
        self.assertNotIn("tokenizer.chat_template", self.fine()[0])
        with open(self.path("in", "chat_template.jinja"), "w") as file:
            file.write("{% c %}")
        self.same_keys(self.fine()[0], tokenizer__chat_template="{% c %}")
        around = [dict(SpecialToken=dict(id="<s>")), dict(Sequence=dict(id="A")), dict(SpecialToken=dict(id="</s>"))]
        processor = dict(type="TemplateProcessing", single=around, special_tokens={"<s>": dict(ids=[1]), "</s>": dict(ids=[2])})
        self.change("tokenizer.json", lambda file: file.update(post_processor=processor))
        self.same_keys(self.fine()[0], tokenizer__ggml__add_bos_token=True, tokenizer__ggml__add_eos_token=True)
        processor["special_tokens"]["</s>"]["ids"] = [0]
        self.change("tokenizer.json", lambda file: file.update(post_processor=processor))
        self.refused("a post_processor with other tokens than bos_token and eos_token")

    def test_tokenizers_that_llama_cpp_lacks(self):
        def split(pattern):
            return dict(type="Sequence", pretokenizers=[dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated"), dict(type="ByteLevel", add_prefix_space=False, use_regex=False)])

        def without_merge(file):
            file["model"]["merges"].pop()

        def out_of_order(file):
            merges = file["model"]["merges"]
            results = [merge.replace(" ", "") for merge in merges]
            twice = next(i for i in range(len(merges) - 1) if results[i] == results[i + 1])
            merges.append(merges.pop(twice))

        texts = [
            ("gpt2", lambda file: file.update(pre_tokenizer=split("x+")), 'the pre_tokenizer "Split x+, ByteLevel"'),
            ("gpt2", lambda file: file["pre_tokenizer"].update(add_prefix_space=True), 'the pre_tokenizer "prefixed ByteLevel with its expression"'),
            ("gpt2", lambda file: file["model"].update(ignore_merges=True), 'the pre_tokenizer "ByteLevel with its expression" with ignore_merges'),
            ("gpt2", lambda file: file.update(normalizer=dict(type="Replace", pattern=dict(String="a"), content="b")), "a normalizer before ByteLevel"),
            ("gpt2", lambda file: file["added_tokens"][0].update(lstrip=True), 'an added token "<|endoftext|>" with lstrip'),
            ("gpt2", lambda file: file["added_tokens"][1].update(single_word=True), 'an added token "word" with single_word'),
            ("llama", lambda file: file.update(normalizer=None), "a normalizer or pre_tokenizer that is not SentencePiece's"),
            ("llama", lambda file: file.update(normalizer=None, pre_tokenizer=dict(type="Metaspace", replacement="▁", prepend_scheme="first", split=True)), "a normalizer or pre_tokenizer that is not"),
            ("llama", lambda file: file["normalizer"]["normalizers"][0].update(prepend="x"), "a normalizer or pre_tokenizer that is not SentencePiece's"),
            ("llama", lambda file: file["model"].update(byte_fallback=False), "characters without a byte_fallback"),
            ("llama", lambda file: file["model"].update(ignore_merges=True), "ignore_merges without ByteLevel"),
            ("llama", lambda file: file["model"].update(end_of_word_suffix="</w>"), "tokens that say whether they begin or end a word"),
            ("llama", without_merge, "no merge for one of the pairs that make "),
            ("llama", out_of_order, "merges that no SentencePiece model has"),
        ]
        for kind, change, text in texts:
            with self.subTest(text):
                self.folder_write(kind)
                self.change("tokenizer.json", change)
                self.refused(f"{self.path('in')}: the tokenizer has {text}")
        self.folder_write("llama")
        self.change("tokenizer.json", lambda file: file["model"].update(type="WordPiece"))
        self.refused("the tokenizer is no BPE, which alone tern writes into GGUF")
        self.folder_write("gpt2", vocab_size=297)
        self.refused("the tokenizer has 298 tokens, but the model's vocab_size is 297")
        os.remove(self.path("in", "tokenizer.json"))
        self.refused("has no tokenizer.json, and not both of vocab.json and merges.txt")

    def test_models_that_llama_cpp_lacks(self):
        self.folder_write("gpt2", activation_function="relu")
        self.refused('"activation_function" is relu, which llama.cpp does not have')
        for name in ("bert", "vit"):
            gguf_file.json_write(dict(model_type=name), self.path("in", "config.json"))
            self.refused(f'config.json: "model_type" is {name}, but a GGUF file is made of gpt2 or llama')
        gguf_file.json_write(dict(model_type="t5"), self.path("in", "config.json"))
        self.refused('"model_type" is t5, which tern does not have')
        os.remove(self.path("in", "config.json"))
        self.refused("config.json: No such file")
        self.folder_write("llama")
        os.remove(self.path("in", "model.safetensors"))
        self.refused("has neither model.safetensors")

    def test_options(self):
        self.folder_write("llama")
        self.refused("expected OUT to end in .pt, .pth, .safetensors or .gguf", folder="none", out="out.ggml", code=2)
        self.refused("--adapter is for a .gguf or a folder", "--adapter", "x", out="out.pt", code=2)
        self.refused("IN and OUT are the same folder", out="in", code=2)
        for dtype in ("f64", "q8_0"):
            self.refused(f'--dtype: expected f32, bf16 or f16 for a folder, got "{dtype}"', "--dtype", dtype, out="out", code=2)
        self.refused("--flatten is not for a folder", "--flatten", out="out", code=2)
        for out in ("out.gguf", "out"):
            self.refused("adapter_config.json: No such file", "--adapter", self.path("in"), out=out)
        for dtype in ("f64", "bf16"):
            self.refused(f'--dtype: expected f32, f16 or q8_0 for a .gguf, got "{dtype}"', "--dtype", dtype, code=2)
        self.refused("--dtype q8_0: only a .gguf has it", "--dtype", "q8_0", out="out.pt", code=2)
        for options in (("--key", "a"), ("--flatten",), ("--strip", "a"), ("--prefix", "a"), ("--records",), ("--memory", "20")):
            self.refused(f"{options[0]} is not for a .gguf, which is made of a whole folder", *options, code=2)
        self.refused("expected IN to be a folder for a .gguf, got the file", folder="in/config.json", code=2)

    def test_a_disk_that_is_full(self):
        """The old file stays, and nothing else."""
        self.folder_write("llama")
        self.fine()
        before = gguf_file.read(self.path("out.gguf"))[0]["general.file_type"]

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

        self.refused("File too large", "--dtype", "f32", preexec_fn=limit)
        self.assertEqual(gguf_file.read(self.path("out.gguf"))[0]["general.file_type"], before)


if __name__ == "__main__":
    skips.main()
