"""train_language_model on small texts: its output, files, samples and resumed runs, alone and on 2 ranks."""
import glob
import json
import os
import random
import re
import signal
import subprocess
import unittest

import numpy as np
import torch

import events
import skips
from training import BUILD, TERN, Folder, call, command, complaints, same, train

NAME = "train_language_model"


def sentences(count, seed):
    """Lines that a small model learns: each word says which words may follow it."""
    pick = random.Random(seed).choice
    return "".join(f"the {pick(['old', 'red', 'tall'])} {pick(['fox', 'hen', 'oak'])} {pick(['sees', 'hears'])} "
                   f"a {pick(['river', 'storm', 'bell'])} at {pick(['dawn', 'noon'])}.\n" for _ in range(count))


def read_tensors(path):
    """Reads a safetensors file of f32, as a dict of tensors."""
    with open(path, "rb") as file:
        data = file.read()
    end = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, about in json.loads(data[8:end]).items():
        if name != "__metadata__":
            begin, stop = about["data_offsets"]
            found[name] = torch.from_numpy(np.frombuffer(data[end + begin:end + stop], np.float32).reshape(about["shape"]).copy())
    return found


class CommandLine(Folder):
    def refused(self, *flags):
        code, out, err = call(1, NAME, *flags, cwd=self.folder)
        self.assertEqual(out, "")
        return code, err.removeprefix(f"{NAME}: ").rstrip("\n")

    def test_wrong_input_is_one_line_and_exit_code_2(self):
        for flags, text in {
            (): "--data: expected a text, or a file of tokens from `tern tokenize`, got nothing",
            ("--data", "a.bin"): "--data: a.bin has tokens; --tokenizer PATH names what made them",
            ("--data", "a.txt", "--width", "30", "--heads", "4"): "--width: expected a multiple of --heads 4, got 30",
            ("--data", "a.txt", "--lora-rank", "4"): "--lora-rank: adapters need a model to adapt, --pretrained FOLDER",
            ("--data", "a.txt", "--pretrained", "p", "--layers", "4"): "--layers: the model of --pretrained has its own",
            ("--data", "a.txt", "--pretrained", "p", "--arch", "gpt2"): "--arch: the model of --pretrained has its own",
            ("--data", "a.txt", "--pretrained", "p", "--dropout", "0.1"): "--dropout: the model of --pretrained has its own",
            ("--data", "a.txt", "--tokenizer", "p", "--vocabulary", "300"): "--vocabulary: none is made, since there is a tokenizer",
            ("--data", "a.txt", "--lora-alpha", "3"): "--lora-alpha: there are no adapters without --lora-rank",
            ("--data", "a.txt", "--start-epoch", "5"): "--start-epoch: expected less than --epochs 4, got 5",
            ("--data", "a.txt", "--schedule", "linear"): '--schedule: expected milestones|cosine, got "linear"',
            ("--data", "a.txt", "--accumulate", "2", "--microbatches", "4"): "--accumulate: --microbatches says how many batches a step has, got 2",
            ("--data", "a.txt", "--accumulate", "0"): '--accumulate: expected a whole number from 1 to 1048576, got "0"',
        }.items():
            with self.subTest(flags=flags):
                code, said = self.refused(*flags)
                self.assertEqual((code, said[:len(text)]), (2, text))

    def test_data_that_cannot_be_used_is_named(self):
        with open(self.path("empty.txt"), "w"):
            pass
        with open(self.path("short.txt"), "w") as file:
            file.write("too short\n")
        os.mkdir(self.path("folder"))
        for data, text in {
            "missing.txt": "cannot read missing.txt: No such file or directory",
            "folder": "cannot read folder: Is a directory",
            "empty.txt": "empty.txt is empty",
            "short.txt": "the text has ",
        }.items():
            code, said = self.refused("--data", data)
            self.assertEqual(code, 1)
            self.assertIn(text, said)
        self.assertTrue(said.endswith(", expected at least 256: a window and a stride (95 % of short.txt)"), said)
        self.assertEqual(sorted(os.listdir(self.folder)), ["empty.txt", "folder", "short.txt"])  # no run's folder


class Training(Folder):
    def setUp(self):
        super().setUp()
        with open(self.path("text.txt"), "w") as file:
            file.write(sentences(500, 0))
        self.shared = ("--data", "text.txt", "--layers", 1, "--width", 32, "--heads", 2, "--context", 16, "-b", 8, "--lr", 0.01, "--sample-tokens", 12, "--test-share", 0.1)

    def train(self, ranks, log_dir, *flags):
        vocabulary = () if "--tokenizer" in flags else ("--vocabulary", 280)
        return train(ranks, NAME, *self.shared, *vocabulary, "--log-dir", log_dir, *flags, cwd=self.folder)

    def numbers(self, run):
        return torch.load(self.path(run, "latest"))["history"]["numbers"]

    def weights(self, run, name="last"):
        return read_tensors(self.path(run, name, "model.safetensors"))

    def assert_close(self, a, b, most):
        """Keys' biases do not count: softmax takes no notice of them, so their gradients are noise, of which AdamW makes steps."""
        self.assertEqual(a.keys(), b.keys())
        for name in a:
            if name.endswith("c_attn.bias"):
                a[name][32:64] = b[name][32:64] = 0
            self.assertLess((a[name] - b[name]).abs().max().item(), most, name)

    def test_a_run_and_what_it_leaves(self):
        out = self.train(2, "run", "--epochs", 2, "--evaluate-every", 30)
        steps = int(re.search(r"8 x 2 = 16, (\d+) steps per epoch", out).group(1))
        self.assertIn("0.01, rising for 0.2 epochs, falling to 0.0002\n", out)
        self.assertNotIn("convolutions", out)
        rows = re.findall(r"^epoch (\d)/2(?: at step (\d+))?  loss (\S+), test (\S+)  perplexity (\S+)  \S+ tokens/s  \S+ s, data \S+ %$", out, re.M)
        within = [step for step in range(30, 2 * steps, 30) if step % steps]
        self.assertEqual([int(row[1]) for row in rows if row[1]], within)
        self.assertEqual([row[0] for row in rows if not row[1]], ["1", "2"])
        losses = [float(row[3]) for row in rows]
        self.assertLess(losses[-1], min(losses[0], 0.7))  # of 5.6 at the start
        for row in rows:
            self.assertAlmostEqual(float(row[4]), np.exp(float(row[3])), 2)
        numbers = self.numbers("run")
        self.assertEqual([f"{value:.4f}" for value in numbers["loss/test"]], [row[3] for row in rows])
        epochs = torch.load(self.path("run", "latest"))["history"]["epochs"]
        for epoch, step in zip(epochs, sorted(within + [steps, 2 * steps]), strict=True):
            self.assertAlmostEqual(epoch * steps, step, delta=1.5)  # an epoch's last windows make no batch
        # Curves and samples.
        (path,) = glob.glob(self.path("run", "events*"))
        curves = {}
        for tag, step, kind, value in events.values(path):
            curves.setdefault((tag, kind), []).append((step, value))
        self.assertEqual([step for step, _ in curves["loss/test", "scalar"]], sorted(within + [steps, 2 * steps]))
        self.assertEqual(len(curves["speed/tokens", "scalar"]), len(rows))
        texts = [value for (tag, kind), points in curves.items() if tag.startswith("sample") for _, value in points]
        self.assertEqual(len(texts), len(rows))
        with open(self.path("run", f"{NAME}.png"), "rb") as file:
            self.assertEqual(events.png_pixels(file.read())[1], 1640)
        # The best model is that of the lowest perplexity, the last one of the end.
        self.assertEqual(sorted(os.listdir(self.path("run", "best"))), ["config.json", "model.safetensors", "tokenizer.json"])
        if min(losses) == losses[-1]:
            self.assertIsNone(same(self.weights("run", "best"), self.weights("run", "last")))

    def test_the_perplexity_is_that_of_the_saved_model(self):
        """A plain GPT-2 in PyTorch, on the windows of the test."""
        self.train(2, "run", "--epochs", 1)
        subprocess.run([TERN, "tokenize", "--tokenizer", "run/last", "-o", "test.npy", "--no-eot", self.cut_test()], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)
        ids = torch.from_numpy(np.load(self.path("test.npy")).astype(np.int64))
        windows = ids.unfold(0, 17, 16)
        w = {name.removeprefix("transformer."): value for name, value in self.weights("run").items()}
        x = w["wte.weight"][windows[:, :16]] + w["wpe.weight"]

        def norm(x, name):
            return torch.nn.functional.layer_norm(x, (32,), w[f"{name}.weight"], w[f"{name}.bias"])

        def linear(x, name):
            return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

        q, k, v = (part.reshape(-1, 16, 2, 16).transpose(1, 2) for part in linear(norm(x, "h.0.ln_1"), "h.0.attn.c_attn").split(32, 2))
        scores = (q @ k.transpose(2, 3) / 4).masked_fill(~torch.ones(16, 16, dtype=torch.bool).tril(), -np.inf)
        x = x + linear((scores.softmax(3) @ v).transpose(1, 2).reshape(-1, 16, 32), "h.0.attn.c_proj")
        inner = linear(norm(x, "h.0.ln_2"), "h.0.mlp.c_fc")
        inner = 0.5 * inner * (1 + torch.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner ** 3)))
        x = norm(x + linear(inner, "h.0.mlp.c_proj"), "ln_f")
        loss = torch.nn.functional.cross_entropy((x @ w["wte.weight"].T).flatten(0, 1), windows[:, 1:].flatten())
        self.assertAlmostEqual(loss.item(), self.numbers("run")["loss/test"][0], 5)
        self.assertAlmostEqual(loss.exp().item(), self.numbers("run")["perplexity"][0], 3)

    def cut_test(self):
        """Writes the text's last tenth, from a line's beginning, as the program cuts it."""
        with open(self.path("text.txt")) as file:
            text = file.read()
        with open(self.path("test.txt"), "w") as file:
            file.write(text[text.rindex("\n", 0, int(len(text) * 0.9)) + 1:])
        return "test.txt"

    def test_ranks_parts_and_shards_of_a_step_train_alike(self):
        """A step of 16 windows: on one rank, on two, in two parts, with a sharded optimizer, with layers that are computed again."""
        short = ("--max-steps", 20, "--sample-tokens", 0)
        self.train(1, "one", *short, "-b", 16)
        runs = {"two": (2,), "parts": (2, "-b", 4, "--accumulate", 2), "shard": (2, "--shard"), "again": (2, "--gradient-checkpointing")}
        for name, (ranks, *flags) in runs.items():
            self.train(ranks, name, *short, *flags)
            self.assert_close(self.weights("one"), self.weights(name), 1e-3)
            self.assertAlmostEqual(self.numbers("one")["loss/test"][0] if self.numbers("one") else 0,
                                   self.numbers(name)["loss/test"][0] if self.numbers(name) else 0, 4)
        for name in ("shard", "again"):
            self.assertIsNone(same(self.weights("two"), self.weights(name)))

    def test_resumed_in_an_epoch_is_as_if_it_had_never_stopped(self):
        flags = ("--epochs", 2, "--evaluate-every", 25, "--accumulate", 2, "-b", 4, "--shard", "--dropout", 0.1)
        self.train(2, "whole", *flags)
        run = subprocess.Popen(command(2, NAME, *self.shared, "--vocabulary", 280, *flags, "--log-dir", "stopped"), cwd=self.folder, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in run.stdout:
            if " at step 25" in line:
                run.send_signal(signal.SIGTERM)
                break
        rest = run.communicate()[0]
        self.assertEqual(run.returncode, 0)
        step = int(re.search(r"saved at step (\d+)", rest).group(1))
        out = self.train(2, "stopped", *flags, "--resume", "latest")
        self.assertIn(f", step {step} of ", out)
        whole, stopped = (torch.load(self.path(name, "latest")) for name in ("whole", "stopped"))
        self.assertIsNone(same(whole, stopped))
        self.assertIsNone(same(self.weights("whole"), self.weights("stopped")))

    def test_microbatches_have_the_same_bits_on_any_number_of_ranks(self):
        """A run that goes on in mid-epoch on fewer and on more ranks ends with the model, the optimizer and the losses of one that never stopped."""
        flags = ("--epochs", 2, "--microbatches", 4, "-b", 4, "--dropout", 0.1, "--threads", 1, "--schedule", "milestones")
        self.train(4, "whole", *flags)
        for ranks, more in ((4, ("--max-steps", 7)), (1, ("--max-steps", 15, "--resume", "latest")), (2, ("--max-steps", 30, "--resume", "latest")),
                            (4, ("--resume", "latest"))):
            out = self.train(ranks, "changing", *flags, *more)
            self.assertIn(f"batch      4 x {ranks}{f' x {4 // ranks}' if ranks < 4 else ''} = 16,", out)
        code, _, err = call(3, NAME, *self.shared, "--vocabulary", 280, *flags, "--log-dir", "changing", cwd=self.folder)
        self.assertNotEqual(code, 0)
        self.assertIn("--microbatches: 3 ranks cannot share 4 batches: each has to get 1, 2, 4, 8 .. of them", err)
        whole, changing = (torch.load(self.path(name, "latest")) for name in ("whole", "changing"))
        self.assertIsNone(same(whole, changing))
        self.assertIsNone(same(self.weights("whole"), self.weights("changing")))

    def test_a_file_of_tokens_and_another_number_of_ranks(self):
        subprocess.run([TERN, "tokenize", "--train", "280", "--tokenizer", "words", "-o", "text.bin", "--no-eot", "text.txt"], cwd=self.folder,
                       check=True, stdout=subprocess.DEVNULL)
        tokens = ("--data", "text.bin", "--tokenizer", "words", "--epochs", 1, "--schedule", "milestones")
        whole = self.train(2, "whole", *tokens, "-b", 8)
        self.assertRegex(whole, r"perplexity \d+\.\d{4}")
        self.train(2, "parts", *tokens, "-b", 8, "--max-steps", 20)
        self.train(1, "parts", *tokens, "-b", 16, "--resume", "latest")
        self.assert_close(self.weights("whole"), self.weights("parts"), 1e-3)

    def test_a_resumed_run_keeps_its_tokenizer(self):
        """It is read, by name or as the latest of a folder, not made again; a new run in the same folder replaces the models of the first."""
        self.train(1, "run", "--epochs", 1)
        path = self.path("run", "best", "tokenizer.json")
        with open(path) as file:
            tokenizer = file.read()
        with open(path, "w") as file:
            file.write("broken")
        for checkpoint in ("latest", os.path.join("run", os.readlink(self.path("run", "latest")))):
            code, _, err = call(1, NAME, *self.shared, "--vocabulary", 280, "--log-dir", "run", "--epochs", 2, "--resume", checkpoint, cwd=self.folder)
            self.assertEqual(code, 1)
            self.assertIn("run/best/tokenizer.json is not JSON", err)
        with open(path, "w") as file:
            file.write(tokenizer)
        self.train(1, "run", "--epochs", 2, "--resume", "latest")
        out = self.train(1, "run", "--epochs", 1, "--max-steps", 1)
        self.assertIn("has checkpoints of an earlier run, which this one replaces", out)
        self.assertFalse(os.path.exists(self.path("run", "best")))
        with open(self.path("run", "last", "tokenizer.json")) as file:
            self.assertEqual(file.read(), tokenizer)

    def test_llama_and_a_model_of_a_folder(self):
        self.train(1, "first", "--arch", "llama", "--epochs", 1)
        self.assertIn("model.layers.0.self_attn.q_proj.weight", self.weights("first"))
        more = ("--data", "text.txt", "--context", 16, "-b", 8, "--max-steps", 4, "--sample-tokens", 0)
        train(2, NAME, *more, "--pretrained", "first/last", "--lr", 0, "--log-dir", "second", cwd=self.folder)
        self.assertIsNone(same(self.weights("first"), self.weights("second")))
        out = train(2, NAME, *more, "--pretrained", "first/last", "--lora-rank", 4, "--log-dir", "third", cwd=self.folder)
        self.assertIn("adapters of llama, ", out)
        adapters = read_tensors(self.path("third", "last", "adapter_model.safetensors"))
        self.assertEqual(adapters["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape, (4, 32))
        self.assertGreater(adapters["base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight"].abs().max().item(), 0)
        # An adapter that has learned another text changes what is generated.
        with open(self.path("other.txt"), "w") as file:
            file.write(sentences(500, 0).replace("fox", "dog").replace("hen", "dog").replace("oak", "dog"))
        longer = ("--data", "other.txt", "--max-steps", 60, "--lr", 0.05, "--lora-targets", "all-linear")
        train(2, NAME, *more, *longer, "--pretrained", "first/last", "--lora-rank", 8, "--log-dir", "fourth", cwd=self.folder)
        plain, adapted = (self.generate("first/last", *flags) for flags in ((), ("--adapter", "fourth/last")))
        self.assertNotEqual(plain, adapted)
        done = subprocess.run([TERN, "generate", "first/last", "the", "--adapter", "nowhere"], cwd=self.folder, text=True, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nowhere/adapter_config.json", done.stderr)

    def generate(self, *arguments):
        return subprocess.run([TERN, "generate", *arguments, "--greedy", "the old"], cwd=self.folder, check=True, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout

    def test_parts_that_do_not_belong_together_are_named(self):
        self.train(1, "first", "--max-steps", 1)
        subprocess.run([TERN, "tokenize", "--train", "300", "--tokenizer", "words", "-o", "text.bin", "text.txt"], cwd=self.folder, check=True,
                       stdout=subprocess.DEVNULL)
        pretrained = ("--pretrained", "first/last", "--log-dir", "second", "--epochs", 1)
        for flags, text in {
            ("--data", "text.txt", "--tokenizer", "words", "--context", 16, *pretrained):
                "the tokenizer has 300 tokens, but the model's vocabulary only 280: they do not belong together",
            ("--data", "text.bin", "--context", 16, *pretrained): "text.bin: token ",
            ("--data", "text.txt", "--context", 32, *pretrained): "--context: 32 tokens are more than the model can see (kv_cache: ",
        }.items():
            code, out, err = call(1, NAME, *flags, "-b", 4, cwd=self.folder)
            self.assertEqual(code, 1)
            self.assertIn(text, err)


if __name__ == "__main__":
    skips.main()
