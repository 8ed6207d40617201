"""tern generate: prompts as a word, from a pipe and on a terminal, options and defaults of the folder, chats, Ctrl-C, and what it refuses."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import numpy

import job
import skips

TEXT = "The tern flies over the seas, and the tern sees the seas below. The seas see the tern.\n"
FIGURES = r"(\d+) tokens, \d+\.\d tokens/s; prompt: (\d+) tokens(?:, \d+ of them known)?, \d+\.\d tokens/s\n$"
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=290, n_positions=6000, n_embd=16, n_layer=1, n_head=2)
HAS_JINJA = not subprocess.run(["/usr/bin/python3", "-I", "-c", "import jinja2"], capture_output=True).returncode


def write_model(folder, seed=1, **fields):
    """A GPT-2 with random weights, as transformers writes it."""
    config = {**GPT2, **fields}
    rng, width = numpy.random.default_rng(seed), config["n_embd"]
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width), "ln_f.weight": width, "ln_f.bias": width,
              "h.0.ln_1.weight": width, "h.0.ln_1.bias": width, "h.0.attn.c_attn.weight": (width, 3 * width), "h.0.attn.c_attn.bias": 3 * width,
              "h.0.attn.c_proj.weight": (width, width), "h.0.attn.c_proj.bias": width, "h.0.ln_2.weight": width, "h.0.ln_2.bias": width,
              "h.0.mlp.c_fc.weight": (width, 4 * width), "h.0.mlp.c_fc.bias": 4 * width, "h.0.mlp.c_proj.weight": (4 * width, width), "h.0.mlp.c_proj.bias": width}
    header, data = {}, b""
    for name, shape in shapes.items():
        value = rng.standard_normal(shape).astype("f") * (1 if name.startswith(("wte", "wpe")) else 0.5)
        header[f"transformer.{name}"] = dict(dtype="F32", shape=list(value.shape), data_offsets=[len(data), len(data) + value.nbytes])
        data += value.tobytes()
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)


@unittest.skipUnless(skips.has_part("regex"), "this build has no regex")
class Generate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("text.txt", TEXT * 20)
        code, _, err = job.tern("tokenize", "--train", "290", "--tokenizer", self.path("tokenizer.json"), self.path("text.txt"))
        self.assertEqual(code, 0, err)
        with open(self.path("tokenizer.json")) as file:
            self.size = len(json.load(file)["model"]["vocab"])
        write_model(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))

    def generate(self, *words, **options):
        return job.tern("generate", self.folder, *words, **options)

    def fine(self, *words, **options):
        code, out, err = self.generate(*words, **options)
        self.assertEqual(code, 0, err)
        self.assertRegex(err, FIGURES)
        return out, err

    def tokens(self, err):
        return tuple(map(int, re.search(FIGURES, err).groups()))

    def refused(self, code, text, *words, **options):
        got, out, err = self.generate(*words, **options)
        self.assertEqual((got, out), (code, ""), err)
        self.assertIn(text, err)

    def test_prompts(self):
        """The same text follows a prompt as a word and one from a pipe; a pipe may have several lines."""
        out, err = self.fine("The tern")
        new, prompt = self.tokens(err)
        self.assertTrue(new <= 20 and prompt <= 8)
        self.assertEqual(out[-1], "\n")
        self.assertEqual(self.fine("The tern")[0], out)
        self.assertEqual(self.fine(stdin=None, input="The tern\n")[0], out)
        self.assertEqual(self.fine(stdin=None, input="The\ntern\n")[0], self.fine("The\ntern")[0])
        self.assertNotEqual(self.fine("The seas")[0], out)
        _, err = self.fine("The tern", "--show-prompt")
        self.assertTrue(err.startswith("The tern\n"))

    def test_options(self):
        count = lambda *words: self.tokens(self.fine("The tern", *words)[1])[0]
        self.assertEqual(count("--max-new-tokens", "7"), 7)
        one, other = (self.fine("The", "--temperature", "2", "--top-k", "0", "--seed", seed)[0] for seed in ("0", "1"))
        self.assertNotEqual(one, other)
        self.assertEqual(self.fine("The", "--temperature=2", "--top-k=0", "--seed=0")[0], one)
        greedy = self.fine("The", "--greedy")[0]
        for words in (["--top-k", "1"], ["--top-p", "1e-9"], ["--temperature", "1e-6"], ["--repetition-penalty", "1"]):
            self.assertEqual(self.fine("The", *words)[0], greedy, words)
        self.assertNotEqual(self.fine("The", "--repetition-penalty", "5")[0], greedy)
        for dtype in ("bf16", "f16"):
            self.fine("The", "--dtype", dtype)

    def test_the_folder_says(self):
        """Draws, lengths and ends are those of generation_config.json, where no option says otherwise."""
        greedy = self.fine("The")[0]
        self.write("generation_config.json", dict(do_sample=True, temperature=3.0, top_k=0, max_new_tokens=11))
        out, err = self.fine("The", "--seed", "3")
        self.assertEqual(self.tokens(err)[0], 11)
        self.assertNotEqual(out.rstrip("\n"), greedy[:len(out) - 1])
        self.assertEqual(self.fine("The", "--greedy", "--max-new-tokens", "20")[0], greedy)
        self.write("generation_config.json", dict(max_length=9))
        _, err = self.fine("The tern")
        self.assertEqual(sum(self.tokens(err)), 9)
        self.write("generation_config.json", dict(eos_token_id=list(range(290))))
        self.assertEqual(self.tokens(self.fine("The tern")[1])[0], 1)
        self.write("generation_config.json", dict(num_beams=4))
        self.refused(1, '"num_beams" is 4, which tern does not have', "The")

    def test_few_weights_have_one_thread(self):
        """OpenMP tells of each thread of a team."""
        write_model(self.folder, n_embd=256, n_positions=64)
        for options, threads in ((), 0), (("--threads", "2"), 2):
            err = self.generate("The tern", "--max-new-tokens", "2", *options, env={**os.environ, "OMP_DISPLAY_AFFINITY": "true"})[2]
            self.assertEqual(err.count("level 1 thread"), threads, err)

    def test_ctrl_c(self):
        """Ends the text, which would go on for minutes, and prints the figures."""
        write_model(self.folder, n_positions=100000)
        self.write("generation_config.json", dict(eos_token_id=GPT2["vocab_size"]))  # no token's
        with subprocess.Popen([job.TERN, "generate", self.folder, "The", "--max-new-tokens", "1000000", "--temperature", "5", "--top-k", "0"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            self.assertTrue(child.stdout.read(1))
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=job.GIVE_UP)
        self.assertEqual(child.returncode, 130, err)
        self.assertEqual(out[-1:], b"\n")
        self.assertLess(self.tokens(err.decode())[0], 99999)

    def test_a_terminal(self):
        """It is asked for prompts until its end; empty lines are none."""
        master, slave = os.openpty()
        with subprocess.Popen([job.TERN, "generate", self.folder], stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            os.close(slave)
            os.write(master, b"The tern\n\nThe seas\n\x04")
            out, err = child.communicate(timeout=job.GIVE_UP)
        os.close(master)
        self.assertEqual(child.returncode, 0, err)
        self.assertEqual(out, self.fine("The tern")[0] + self.fine("The seas")[0])
        self.assertEqual(len(re.findall(r"^(> )+\d+ tokens", err, re.M)), 2, err)
        self.assertTrue(err.endswith("> \n"))

    def test_chat(self):
        """Each line is a message; the template sees the answers, too. A file of its own comes before tokenizer_config.json's."""
        self.write("tokenizer_config.json", dict(bos_token={"content": "<|endoftext|>"}, chat_template=[dict(name="tool_use", template="no"), dict(name="default", template=TEMPLATE)]))
        head = "<|endoftext|>[user] The tern\n[assistant] "
        if not HAS_JINJA:
            self.refused(1, "apt-get install python3-jinja2", "x", "--chat")
            return
        out, err = self.fine("The tern", "--chat", "--show-prompt")
        self.assertTrue(err.startswith(head + "\n"), err)
        answer = out[:-1]
        out, err = self.fine("--chat", "--show-prompt", stdin=None, input="The tern\nThe \"seas\"\n")
        self.assertTrue(out.startswith(answer + "\n"))
        self.assertIn(f"{head}{answer}\n[user] The \"seas\"\n[assistant] \n", err)
        self.write("chat_template.jinja", "{{ messages[-1]['content'] }} over")
        _, err = self.fine("The seas", "--chat", "--show-prompt")
        self.assertTrue(err.startswith("The seas over\n"), err)
        for template, text in (("{% if %}", "the chat template: line 1: "), ("{{ raise_exception('no users here') }}", "the chat template: no users here"),
                               ("{{ messages.append(1) }}", "the chat template: "), ("{{ 1 / 0 }}", "the chat template: division by zero")):
            self.write("chat_template.jinja", template)
            self.refused(1, text, "x", "--chat")

    @unittest.skipUnless(HAS_JINJA, "/usr/bin/python3 has no jinja2")
    def test_turns(self):
        """Each answer is the one to the whole conversation computed anew; the model sees only what is new in it."""
        self.write("chat_template.jinja", "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ")
        lines, prompts, counts = ["The tern", "The seas", "below"], [], []
        out, err = self.fine("--chat", "--show-prompt", stdin=None, input="\n".join(lines) + "\n")
        for part in re.split(r"\d+ tokens, .*tokens/s\n", err)[:-1]:
            prompts.append(part[:-1])
        for new, prompt, known in re.findall(r"^(\d+) tokens, .*prompt: (\d+) tokens(?:, (\d+) of them known)?,", err, re.M):
            counts.append((int(new), int(prompt), int(known or 0)))
        self.assertEqual((len(prompts), len(counts)), (3, 3), err)
        for prompt, (_, tokens, _) in zip(prompts, counts):
            self.assertEqual(self.tokens(self.fine(prompt)[1])[1], tokens)
        self.assertEqual(out, "".join(self.fine(prompt)[0] for prompt in prompts))
        self.assertEqual(counts[0][2], 0)
        for (new, before, _), (_, prompt, known) in zip(counts, counts[1:]):
            self.assertGreaterEqual(known, before, "the prompt before")
            self.assertLess(prompt - known, prompt / 2, err)
        self.write("chat_template.jinja", "{{ messages[-1].content }} ")
        out, err = self.fine("--chat", stdin=None, input="The tern\nThe seas\nThe tern\nX\n")
        self.assertEqual(out, "".join(self.fine(line + " ")[0] for line in ("The tern", "The seas", "The tern", "X")))

    def test_refused(self):
        for words, text in ((["x", "y"], "one PROMPT: quote it"), (["x", "--temperature", "0"], "--temperature: expected more than 0, got 0; --greedy takes"),
                            (["x", "--temperature", "-1"], "expected more than 0, got -1\n"), (["x", "--temperature", "hot"], 'expected a number, got "hot"'),
                            (["x", "--top-p", "2"], "--top-p: expected more than 0 and at most 1, got 2"), (["x", "--top-k", "-1"], "expected a number of at least 0"),
                            (["x", "--repetition-penalty", "0"], "expected more than 0, got 0"), (["x", "--greedy", "--top-k", "3"], "--greedy draws nothing"),
                            (["x", "--dtype", "f8"], "expected f32 or bf16 or f16"), (["x", "--seed", "x"], "expected a number of at least 0")):
            self.refused(2, text, *words)
        self.assertEqual(job.tern("generate")[::2], (2, "tern generate: expected FOLDER\n"))
        for text in ("", "\n"):
            self.refused(1, "the prompt is empty", stdin=None, input=text)
        self.refused(1, "the prompt is empty", "")
        self.refused(1, "has no chat template: neither", "x", "--chat")
        run = os.path.join(self.folder, "run")
        for name, text in (("last", f"{run} is the folder of a run; its models are in {run}/last\n"), ("best", f"in {run}/best and {run}/last\n")):
            shutil.copytree(self.folder, os.path.join(run, name), ignore=shutil.ignore_patterns("run"))
            code, out, err = job.tern("generate", run, "x")
            self.assertEqual((code, out), (1, ""))
            self.assertTrue(err.endswith(text), err)
        write_model(self.folder, n_positions=5)
        self.refused(1, "and the model's longest context is 5", TEXT)
        write_model(self.folder, vocab_size=self.size - 3)
        self.refused(1, f"the tokenizer has {self.size} tokens, and the model's vocabulary {self.size - 3}", "x")
        os.remove(self.path("model.safetensors"))
        self.refused(1, "model.safetensors", "x")
        os.remove(self.path("tokenizer.json"))
        self.refused(1, self.folder, "x")
        self.assertEqual(job.tern("generate", self.path("none"), "x")[0], 1)

    def test_a_full_disk_is_told(self):
        with open("/dev/full", "w") as full:
            code, _, err = self.generate("The tern", stdout=full)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"^1 tokens, .*\n" + "tern: tern generate: cannot write: No space left on device\n$")


if __name__ == "__main__":
    skips.main()
