"""Generation beside transformers: greedy ids, tokens that top-k, top-p, temperature and the repetition penalty leave, generation_config.json,
texts and chat templates of the command."""
import ctypes
import json
import os
import re
import subprocess
import tempfile
import unittest

import peers

peers.enter()

import skips  # noqa: E402

try:
    import transformers
except ImportError:
    skips.end("no transformers: run scripts/peers.sh")

import numpy  # noqa: E402
import torch  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402
from transformers.generation import logits_process  # noqa: E402

from language_models import LanguageNet, language_library  # noqa: E402
from test_pretrained_newest import CONFIGS, new_model  # noqa: E402

TERN = os.path.join(os.environ["TERN_BUILD"], "tern")
HAS_JINJA = not subprocess.run(["/usr/bin/python3", "-I", "-c", "import jinja2"], capture_output=True).returncode


class Ids(ctypes.Structure):
    """tern_token_ids."""

    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_int64), ("room", ctypes.c_int64)]


class Opts(ctypes.Structure):
    """tern_generate_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("max_new_tokens", ctypes.c_int64), ("max_length", ctypes.c_int64), ("do_sample", ctypes.c_bool),
                ("temperature", ctypes.c_double), ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double), ("repetition_penalty", ctypes.c_double),
                ("eos_ids", ctypes.POINTER(ctypes.c_int32)), ("eos_count", ctypes.c_int64), ("rng", ctypes.c_void_p), ("on_token", ctypes.c_void_p),
                ("context", ctypes.c_void_p), ("cache", ctypes.c_void_p)]


class Config(ctypes.Structure):
    """tern_generation_config."""

    _fields_ = [("opts", Opts), ("eos_ids", ctypes.POINTER(ctypes.c_int32))]


LIB = language_library()
LIB.returns(Opts, "tern_generate_defaults")


def generate(net, prompt, **fields):
    opts, ids = LIB.tern_generate_defaults(), Ids()
    for name, value in fields.items():
        setattr(opts, name, value)
    room = opts.max_new_tokens + len(prompt)
    memory = (ctypes.c_int32 * room)(*prompt)  # so that tern need not let it grow
    ids.ids, ids.count, ids.room = ctypes.cast(memory, ctypes.POINTER(ctypes.c_int32)), len(prompt), room
    LIB.check("tern_generate", net.module, net.scope, ctypes.byref(ids), ctypes.byref(opts))
    return ids.ids[:ids.count]


class Generation(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_greedy(self):
        """120 tokens after several prompts, with and without a repetition penalty."""
        rng = numpy.random.default_rng(3)
        torch.set_num_threads(1)
        for number, (kind, fields) in enumerate((CONFIGS[0], CONFIGS[1], CONFIGS[2], CONFIGS[3], CONFIGS[4])):
            longer = dict(fields, n_positions=200) if kind == "GPT2" else dict(fields, max_position_embeddings=200)
            folder = os.path.join(self.folder, str(number))
            model = new_model(kind, longer).eval()
            model.save_pretrained(folder)
            net = LanguageNet.open(LIB, folder, threads=1)
            self.addCleanup(net.close)
            for length, penalty in ((1, 1.0), (60, 1.0), (17, 1.4)):
                prompt = rng.integers(3, 60, length)
                want = model.generate(torch.tensor(prompt)[None], max_new_tokens=120, do_sample=False, repetition_penalty=penalty, eos_token_id=None, pad_token_id=0)[0].tolist()
                self.assertEqual(generate(net, prompt.tolist(), max_new_tokens=120, repetition_penalty=penalty), want, (kind, length, penalty))
            eos = want[70]
            want = model.generate(torch.tensor(prompt)[None], max_new_tokens=120, do_sample=False, repetition_penalty=penalty, eos_token_id=eos, pad_token_id=0)[0].tolist()
            ends = (ctypes.c_int32 * 1)(eos)
            self.assertEqual(generate(net, prompt.tolist(), max_new_tokens=120, repetition_penalty=penalty, eos_ids=ends, eos_count=1), want)

    def test_kept_tokens(self):
        """Every token that transformers leaves is drawn at some time, and no other is. Of equal logits top-p may leave others, as torch.sort does not
        say in which order they are, but as many."""
        rng = numpy.random.default_rng(4)
        generator = ctypes.c_void_p(LIB.check("tern_rng_new", ctypes.c_uint64(1)))
        self.addCleanup(LIB.tern_rng_free, generator)
        for _ in range(40):
            n = int(rng.integers(2, 40))
            logits = (rng.integers(0, 5, n) / 5).astype("f") if rng.random() < 0.5 else rng.random(n).astype("f")
            history = rng.integers(0, n, int(rng.integers(1, 20)))
            opts = LIB.tern_generate_defaults()
            opts.do_sample, opts.rng = True, generator
            opts.temperature, opts.top_k = float(rng.choice([0.8, 1.0, 3.0])), int(rng.choice([0, 1, 5, 50]))
            opts.top_p, opts.repetition_penalty = float(rng.choice([1.0, 0.77, 0.31])), float(rng.choice([1.0, 1.3, 0.7]))
            scores = logits_process.RepetitionPenaltyLogitsProcessor(opts.repetition_penalty)(torch.tensor(history)[None], torch.tensor(logits)[None].clone())
            scores = logits_process.TemperatureLogitsWarper(opts.temperature)(None, scores)
            before = scores[0].numpy()
            if opts.top_k:
                scores = logits_process.TopKLogitsWarper(opts.top_k)(None, scores)
            if opts.top_p < 1:
                scores = logits_process.TopPLogitsWarper(opts.top_p)(None, scores)
            p, drawn = scores.softmax(1)[0].numpy(), numpy.zeros(n, int)
            ids, one = (ctypes.c_int32 * len(history))(*history), ctypes.c_int32()
            for _ in range(1500):
                copy = logits.copy()
                LIB.check("tern_generate_choose", copy.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(n), ids, ctypes.c_int64(len(history)), ctypes.byref(opts), ctypes.byref(one))
                drawn[one.value] += 1
            self.assertEqual(numpy.sort(before[drawn > 0]).tolist(), numpy.sort(before[p > 0]).tolist())
            for value in set(before):
                self.assertLess(abs(drawn[before == value].sum() / 1500 - p[before == value].sum()), 6 * (0.25 / 1500) ** 0.5)

    def test_generation_config(self):
        """What transformers writes is read, and means the same there."""
        for fields in ({}, dict(do_sample=True, temperature=0.6, top_p=0.9, top_k=20, eos_token_id=[5, 7], max_new_tokens=9), dict(max_length=33, eos_token_id=3, repetition_penalty=1.2)):
            transformers.GenerationConfig(**fields).save_pretrained(self.folder)
            config = Config()
            LIB.check("tern_generation_config_open", self.folder.encode(), ctypes.byref(config))
            back, opts = transformers.GenerationConfig.from_pretrained(self.folder), config.opts
            unset = transformers.GenerationConfig._get_default_generation_params()
            for name in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty"):
                want = getattr(back, name)
                self.assertEqual(getattr(opts, name), unset[name] if want is None else want, name)
            self.assertEqual(opts.max_new_tokens, back.max_new_tokens or 20)
            self.assertEqual(opts.max_length, fields.get("max_length", 0))
            eos = back.eos_token_id
            self.assertEqual(opts.eos_ids[:opts.eos_count], [] if eos is None else eos if isinstance(eos, list) else [eos])
            LIB.tern_generation_config_free(ctypes.byref(config))


LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set system = false %}{% endif %}
{%- for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
CHATML = """{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' + message.content + '<|im_end|>\\n' }}
        {%- endgeneration %}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""
OTHER = """{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }} {{ m | tojson }} {{ m.content[:3] | upper }}
{% endfor %}{{ tools is none }} {{ sep_token is defined }} {{ strftime_now("%Y")[:2] }} {{ {"a": "<ü>", "b": [1, none]} | tojson(indent=2) }}"""
FIGURES = r"(\d+) tokens, \d+\.\d tokens/s; prompt: (\d+) tokens(?:, \d+ of them known)?, \d+\.\d tokens/s\n"
LINES = ["What is a tern?", "  \"Seas\" & <ünïcode> \\n 'quotes' 鳥 "]


@unittest.skipUnless(skips.has_part("regex"), "this build has no regex")
class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
        tokenizer.train_from_iterator(["The tern flies over the seas. What is a tern?"] * 3, trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tokenizer.add_tokens([AddedToken("<|user|>", special=True), AddedToken("<|assistant|>", special=True)])
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        self.fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
        self.fast.save_pretrained(self.folder)
        config = transformers.GPT2Config(vocab_size=320, n_positions=2000, n_embd=36, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=None)
        torch.manual_seed(1)
        self.model = transformers.GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.3)
        self.model.save_pretrained(self.folder)

    def run_tern(self, *words, lines=None):
        done = subprocess.run([TERN, "generate", self.folder, *words, "--max-new-tokens", "12"], input=lines, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, done.stderr

    def test_text(self):
        """The text is what transformers generates and decodes, without special tokens."""
        end = torch.tensor([self.fast.eos_token_id])
        for prompt in ("The tern", "What", "<|user|>is a</s> bird", "鳥"):
            ids = self.fast(prompt, return_tensors="pt").input_ids
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=int(end), pad_token_id=0)[0]
            text, figures = self.run_tern(prompt)
            self.assertEqual(text, self.fast.decode(out[ids.shape[1]:], skip_special_tokens=True) + "\n")
            self.assertEqual(tuple(map(int, re.fullmatch(FIGURES, figures).groups())), (len(out) - ids.shape[1], ids.shape[1]))

    def test_chat_templates(self):
        if not HAS_JINJA:
            self.skipTest("/usr/bin/python3 has no jinja2")
        for as_file in (False, True):
            for name, template in dict(llama2=LLAMA2, llama3=LLAMA3, mistral=MISTRAL, chatml=CHATML, zephyr=ZEPHYR, other=OTHER).items():
                self.set_template(template, as_file)
                peer = transformers.AutoTokenizer.from_pretrained(self.folder)
                render = lambda messages: peer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
                messages, answer, _ = [dict(role="user", content=LINES[0])], *self.run_tern("--chat", LINES[0])
                first = render(messages)
                messages += [dict(role="assistant", content=answer[:-1]), dict(role="user", content=LINES[1])]
                out, err = self.run_tern("--chat", "--show-prompt", lines="\n".join(LINES) + "\n")
                self.assertTrue(out.startswith(answer), name)
                pieces = re.split(FIGURES, err)
                self.assertEqual(pieces[0], first + "\n", name)
                self.assertEqual(pieces[3], render(messages) + "\n", name)
                for prompt, count in ((first, pieces[2]), (render(messages), pieces[5])):
                    self.assertEqual(len(peer(prompt, add_special_tokens=False).input_ids), int(count), name)

    def set_template(self, template, as_file):
        path = os.path.join(self.folder, "tokenizer_config.json")
        with open(path) as file:
            config = json.load(file)
        config.pop("chat_template", None)
        if as_file:
            with open(os.path.join(self.folder, "chat_template.jinja"), "w") as file:
                file.write(template)
        else:
            config["chat_template"] = template
        with open(path, "w") as file:
            json.dump(config, file)


if __name__ == "__main__":
    skips.main()
