"""bench/peers: the peers do the same work as tern, and the table shows the results."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import forked
import skips

PEERS = os.path.join(os.environ["TERN_SOURCE"], "bench", "peers")
sys.path.insert(0, PEERS)
import llmc  # noqa: E402
import peers  # noqa: E402
import run  # noqa: E402
from run import Row  # noqa: E402


class Scripted:
    """A peer that returns given measurements and records its calls."""

    def __init__(self, name, log, steps, reduces):
        self.name, self.log, self.steps, self.reduces = name, log, list(steps), reduces

    def step(self, model):
        self.log.append((self.name, model))
        return {"median_ms": self.steps.pop(0), "loss_first": 2.5}

    def all_reduce(self, ranks, memory):
        return self.reduces.get(memory)


ROWS = [Row("a step", "ms", ("step", "mlp"), "median_ms", 0.6), Row("a sum", "us", ("all_reduce", 2, "window"), 4),
        Row("the same", "us", ("all_reduce", 2, "plain"), 4)]


class Table(unittest.TestCase):
    def measured(self):
        self.log = []
        peers = [Scripted("ours", self.log, [5, 3, 4], {"window": {4: 1, ("bound", 4): 1.25}, "plain": {4: 2}}),
                 Scripted("theirs", self.log, [6, 60, 10], {"plain": {4: 8}}), Scripted("others", self.log, [1, 2, 3], {})]
        clock = iter([(100 + 10 * i, 50 + 6 * i, 20 + 5 * i) for i in range(6)])
        with mock.patch.object(run, "cpu_seconds", lambda: next(clock)):
            values, others, complaints = run.measure(ROWS, peers, 3, self.log.append)
        self.assertEqual((others, complaints), ([10.0] * 3, []))
        names = [peer.name for peer in peers]
        return run.summary(ROWS, names, values), names

    def test_peers_take_turns(self):
        self.measured()
        turn = [("ours", "mlp"), ("theirs", "mlp"), ("others", "mlp")]
        said = [f"round {number} of 3: others used 10 % of the cores meanwhile" for number in (1, 2, 3)]
        self.assertEqual(self.log, [*turn, said[0], *turn, said[1], *turn, said[2]])

    def test_others_are_what_is_busy_and_not_ours(self):
        before = run.cpu_seconds()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        passed, busy, own = (late - early for early, late in zip(before, run.cpu_seconds()))
        self.assertTrue(0 < own < busy + 0.1 and busy < passed + 0.1, (passed, busy, own))
        self.assertEqual(run.others_percent((0, 0, 0), (2, 1, 1.1)), 0)

    def test_ratios_are_of_medians(self):
        lines, _ = self.measured()
        self.assertEqual(lines[0]["samples"], {"ours": [5, 3, 4], "theirs": [6, 60, 10], "others": [1, 2, 3]})
        self.assertEqual(lines[0]["ratio"], {"ours": 1, "theirs": 2.5, "others": 0.5})

    def test_who_has_no_windows_is_compared_by_ordinary_memory(self):
        lines, _ = self.measured()
        self.assertEqual(lines[1]["ratio"], {"ours": 1, "theirs": 8})
        self.assertEqual(lines[2]["ratio"], {"ours": 1, "theirs": 4})
        self.assertEqual([line["bound_ratio"] for line in lines], [None, 1.25, None])

    def test_the_best_peer_comes_first_and_decides(self):
        lines, _ = self.measured()
        self.assertEqual([line["best"] for line in lines], ["others", "theirs", "theirs"])
        text = run.table(lines).splitlines()
        self.assertEqual([" ".join(line.split()) for line in text], [
            "a step [ms] ours 4 (3..5) goal 0.60: not met", "others 2 (1..3) 0.50", "theirs 10 (6..60) 2.50",
            "a sum [us] ours 1 (1..1) 1.25 of the bound", "theirs 8 (8..8) 8.00", "the same [us] ours 2 (2..2)", "theirs 8 (8..8) 4.00"])
        self.assertEqual({text[line].index(word) for line, word in enumerate(("ours", "others", "theirs", "ours"))}, {text[0].index("ours")})
        lines[0]["goal"] = 0.5
        self.assertTrue(run.table(lines).splitlines()[0].endswith("  goal 0.50: met"))

    def test_nobody_to_compare_with(self):
        rows = [Row("a step", "ms", ("step", "mlp"), "median_ms", 2)]
        lines = run.summary(rows, ["ours", "theirs"], {rows[0].job: {"ours": {"median_ms": [4]}}})
        self.assertEqual((lines[0]["best"], run.table(lines).split()), (None, ["a", "step", "[ms]", "ours", "4", "(4..4)"]))

    def test_tern_is_missing(self):
        rows = [Row("a step", "ms", ("step", "mlp"), "median_ms", 2)]
        lines = run.summary(rows, ["ours", "theirs"], {rows[0].job: {"theirs": {"median_ms": [4]}}})
        self.assertEqual((lines[0]["best"], run.table(lines).split()), (None, ["a", "step", "[ms]", "ours", "-", "theirs", "4", "(4..4)"]))

    def test_other_work_is_told(self):
        self.assertIn("loss_first is {'ours': 2.31, 'theirs': 2.32}",
                      run.other_work({"ours": {"loss_first": 2.31}, "theirs": {"loss_first": 2.32}, "sums": {4: 1.0}}))
        self.assertIsNone(run.other_work({"ours": {"loss_first": 2.31}, "theirs": {"loss_first": 2.31001}}))
        for nothing in (None, float("nan")):
            self.assertIn("is not a number", run.other_work({"ours": {"loss_first": nothing}, "theirs": {"loss_first": 2.3}}))
        trained, stuck = {"loss_first": 2.3, "loss_last": 0.5}, {"loss_first": 2.3, "loss_last": 2.3}
        self.assertIsNone(run.other_work({"ours": trained, "theirs": stuck}))
        self.assertIn("loss_last is", run.other_work({"ours": trained, "theirs": stuck}, "loss_last"))

    def test_what_was_measured_of_other_work_is_kept(self):
        log, kept = [], []
        peers = [Scripted("ours", log, [5, 3], {}), Scripted("theirs", log, [6, 4], {})]
        with mock.patch.object(run, "other_work", lambda found, field: f"{field} of {len(found)}"):
            values, _, complaints = run.measure(ROWS[:1], peers, 2, log.append, ("loss_first",), lambda *found: kept.append(json.dumps(found[0][ROWS[0].job])))
        self.assertEqual(complaints, ["loss_first of 2"] * 2)
        self.assertEqual(log.count("NOT THE SAME WORK: loss_first of 2"), 2)
        self.assertEqual([values[ROWS[0].job][name]["median_ms"] for name in ("ours", "theirs")], [[5, 3], [6, 4]])
        self.assertEqual([json.loads(text)["ours"]["median_ms"] for text in kept], [[5], [5, 3]])


class Peers(unittest.TestCase):
    """The real peers on little work. PyTorch is the one of the tests; Open MPI and MPICH take part if they are installed."""

    STEPS = {"mlp": (8, 4), "resnet18": (2, 1)}
    SIZES = {4: "4 B", 65536: "64 KB"}
    GROUPS = {"mlp": run.step_rows("mlp", "mlp"), "start": run.GROUPS["start"], "resnet18": run.step_rows("resnet18", "resnet18"),
              "sums": [Row("sum", "us", ("all_reduce", 2, "window"), 65536), Row("plain sum", "us", ("all_reduce", 2, "plain"), 4)],
              "resnet18-bf16": run.step_rows("half", "resnet18", "bf16")}

    COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no processes of its own, each of which would import PyTorch

    @staticmethod
    def light_step(torch, model, *more, step=peers.Torch.step):
        """PyTorch compiles the MLP only: with ResNet-18 each rank's compiler takes more than a minute."""
        return None if torch.way == "compile" and model != "mlp" else step(torch, model, *more)

    @staticmethod
    def start_forked(ranks, python, *argv, **environment):
        """As peers.launched, but the ranks of a PyTorch are forks of one process, which has imported it."""
        return peers.launched(ranks, python, *forked.interpreter()[1:], *argv, **environment)

    def test_a_round(self):
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.multiple(peers, STEPS=self.STEPS, SIZES=self.SIZES), \
                mock.patch.object(peers.Torch, "step", lambda *args: self.light_step(*args)), \
                mock.patch.object(peers.Torch, "start", staticmethod(self.start_forked)), mock.patch.dict(os.environ, self.COMPILER), \
                mock.patch.multiple(run, GROUPS=self.GROUPS), mock.patch.object(run, "other_work", wraps=run.other_work) as check, \
                mock.patch.object(sys, "argv", ["run.sh", "--only", "mlp,start,resnet18,sums", "--profile", "--json", file.name, "1"]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            run.main()
            found = json.load(file)
        self.assertGreater(found["machine"]["cores"], 0)
        self.assertEqual(len(re.findall("(?m)^kernel ", out.getvalue())), 2)
        self.assertEqual([line["model"] for line in found["profiles"] if line["profile"]["rows"]], ["mlp", "resnet18"])
        self.assertEqual(len(found["rows"]), 4 + 1 + 4 + 2)
        for line in found["rows"]:
            self.check_line(line)
        steps = [call.args[0] for call in check.call_args_list if "loss_last" in call.args[0]["tern"]]
        self.assertEqual(len(steps), 2)
        for said in steps:
            for theirs in list(said.values())[1:]:
                self.check_losses(said["tern"], theirs)

    def test_names(self):
        for argv, want in (([], ["mlp", "start", "resnet18", "unet3d", "all_reduce"]), (["--only", "demo,resnet50,demo"], ["demo", "resnet50"]),
                           (["--only", "unet3d-bf16,all_reduce"], ["unet3d-bf16", "all_reduce"]),
                           (["--only", "mlp,demo", "--bf16", "--large"], ["mlp", "demo", "mlp-bf16"]),
                           (["--demo", "--large"], [*run.USUAL, *run.LARGE, "demo"])):
            with mock.patch.object(sys, "argv", ["run.sh", *argv]):
                self.assertEqual(run.chosen_groups(run.parse()), want)

    def test_who_takes_part(self):
        with tempfile.TemporaryDirectory() as folder:
            names = [peer.name for peer in peers.find_peers(folder)[0]]
            some = [peer.name for peer in peers.find_peers(folder, ["channels", "no such"])[0]]
        self.assertEqual(names[0], "tern")
        self.assertRegex(names[1], r"^PyTorch \d[\w.]+$")
        self.assertEqual(names[2], f"{names[1]} channels_last")
        self.assertEqual(some, ["tern", *(name for name in names if name.endswith("channels_last"))])

    def test_the_newest_pytorch_takes_part_where_it_is_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            newest = os.path.join(folder, "python")
            with mock.patch.object(peers, "NEWEST_PYTHON", newest), mock.patch.dict(os.environ):
                os.environ.pop("TORCH_PYTHON", None)
                self.assertEqual(peers.find_pythons(), [peers.DEBIAN_PYTHON])
                os.symlink(sys.executable, newest)
                self.assertEqual(peers.find_pythons(), [peers.DEBIAN_PYTHON, newest])
                os.environ["TORCH_PYTHON"] = "/another/python3"
                self.assertEqual(peers.find_pythons(), [peers.DEBIAN_PYTHON, "/another/python3"])

    def test_a_net_that_cannot_be_compiled_is_left_out(self):
        def fail(*argv, **options):
            sys.exit("step.py: exit code 1\nwhy it cannot")

        with mock.patch.object(peers.Torch, "start", staticmethod(fail)), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertIsNone(peers.Torch("python3", "2.9", "/nowhere", "compile", {}).step("resnet50"))
            self.assertRegex(out.getvalue(), r"^PyTorch 2\.9 compile step\.py --model resnet50 .*: why it cannot\n$")
            with self.assertRaisesRegex(SystemExit, "why it cannot"):
                peers.Torch("python3", "2.9", "/nowhere", "channels_last", {}).step("resnet50")

    def test_the_demo_is_timed_without_its_tests(self):
        text = "epoch 1  loss 0.5  train 80 %  test 77 %  2492 images/s  24.0 s\nepoch 2  loss 0.3  test 89 %  2455 images/s  1.5 s\nimages/s 3 s\n"
        self.assertEqual(peers.training(text), {"training_s": 25.5})

    def check_line(self, line):
        names = list(line["samples"])
        self.assertEqual(names[0], "tern")
        self.assertRegex(names[1], r"^PyTorch \d[\w.]+$")
        self.assertTrue(line["best"] in names[1:])
        for name in names:
            sums, plain = "sum" in line["row"], line["row"] == "mlp" or "MLP" in line["row"] or "mlp," in line["row"]
            takes_part = sums if name.startswith(("Open MPI", "MPICH")) else not (name.endswith("channels_last") and (sums or plain))
            if name.endswith("compile"):  # PyTorch 2, which cannot compile every network
                self.assertLessEqual(len(line["samples"][name]), not sums, (line["row"], name))
            else:
                self.assertEqual(len(line["samples"][name]), takes_part, (line["row"], name))
            self.assertTrue(all(sample > 0 for sample in line["samples"][name]))

    def check_losses(self, ours, theirs):
        for name in ("model", "ranks", "batch", "dtype", "steps"):
            self.assertEqual(ours[name], theirs[name])
        # By the last step, rounding has switched some ReLUs of a deep network.
        for name, delta in (("loss_first", 1e-4), ("loss_last", 1e-3)):
            self.assertAlmostEqual(ours[name], theirs[name], delta=delta)

    def test_nets_are_those_of_tern_bench_step(self):
        """Returns the first loss of each peer, at another than the default size."""
        sizes = {"fashion": "9x14", "resnet18": "16x8", "resnet50": "33x65", "deeplabv3": "17x33", "unet3d": "16x8x24", "vit": "48", "gpt2": "19", "llama": "33"}
        code = f"import nets\nfor model, size in {sizes}.items():\n    net, x, y, loss = nets.make(model, 2, size, 0)\n    print(loss(net(x), y).item())"
        losses = peers.output([sys.executable, "-c", code], cwd=PEERS, env={**os.environ, "OMP_NUM_THREADS": "1"}).split()
        for (model, size), theirs in zip(sizes.items(), map(float, losses), strict=True):
            with self.subTest(model=model):
                argv = [peers.TERN, "bench", "step", "--model", model, "--batch", "2", "--size", size, "--steps", "1", "--json"]
                ours = json.loads(peers.output(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}))
                self.assertAlmostEqual(ours["loss_first"], theirs, delta=1e-4)

    def test_checkpoints_for_llmc(self):
        """Its numbers, and the weights of nets.py: all of one name together, linears turned, a vocabulary that is a multiple of 128."""
        layers, width, heads, positions, vocabulary = 2, 12, 3, 5, 130
        code = f"""if True:
            import sys, llmc, nets, torch
            net = nets.make("gpt2", 2, "{positions}", 0, layers={layers}, width={width}, heads={heads}, vocabulary={vocabulary})[0]
            words = torch.frombuffer(bytearray(llmc.checkpoint(net, {vocabulary}, {positions}, {width}, {layers}, {heads})), dtype=torch.float32)
            assert words[:256].view(torch.int32)[:8].tolist() == [20240326, 3, {positions}, {vocabulary}, {layers}, {heads}, {width}, 256]
            sizes = [256 * {width}, {positions} * {width}]
            for outs, ins in ((1, 0), (3, 1), (1, 1), (1, 0), (4, 1), (1, 4)):
                sizes += [{layers} * outs * {width} * (ins * {width} or 1), {layers} * outs * {width}]
            parts = words[256:].split(sizes + [{width}, {width}])
            assert torch.equal(parts[0][: {vocabulary} * {width}].view({vocabulary}, {width}), net.wte.weight) and not parts[0][{vocabulary} * {width} :].any()
            assert torch.equal(parts[1].view({positions}, {width}), net.wpe.weight)
            for i, block in enumerate(net.h):
                for k, layer in enumerate((block.ln_1, block.c_attn, block.attn_c_proj, block.ln_2, block.c_fc, block.mlp_c_proj)):
                    weight = parts[2 + 2 * k].view({layers}, -1)[i]
                    turned = layer.weight if layer.weight.ndim == 1 else layer.weight.T
                    assert torch.equal(weight, turned.flatten()) and torch.equal(parts[3 + 2 * k].view({layers}, -1)[i], layer.bias)
            assert torch.equal(parts[-2], net.ln_f.weight) and torch.equal(parts[-1], net.ln_f.bias)
        """
        peers.output([sys.executable, "-c", code], cwd=PEERS)

    def test_steps_of_llmc(self):
        """llm.c's functions are called as its own main does; the last position of a sequence is no part of the loss."""
        stub = """
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            #include <time.h>
            typedef struct { float *losses; } ActivationTensors;
            typedef struct { size_t num_parameters; float *params_memory, *grads_memory; ActivationTensors acts; int stage; } GPT2;
            static void *mallocCheck(size_t bytes) { return malloc(bytes); }
            static FILE *fopenCheck(const char *path, const char *mode) { return fopen(path, mode); }
            static void freadCheck(void *to, size_t size, size_t count, FILE *file) { if (fread(to, size, count, file) != count) exit(3); }
            static void fcloseCheck(FILE *file) { fclose(file); }
            static void gpt2_build_from_checkpoint(GPT2 *m, const char *path)
            {
                memset(m, 0, sizeof(*m));
                m->num_parameters = 2;
                m->params_memory = calloc(2, sizeof(float));
                printf("said of %s\\n", path);
            }
            static void gpt2_forward(GPT2 *m, int *in, int *labels, size_t B, size_t T)
            {
                if (m->stage++ % 3) exit(4);
                free(m->acts.losses);
                m->acts.losses = malloc(B * T * sizeof(float));
                for (size_t i = 0; i < B * T; i++) m->acts.losses[i] = (i + 1) % T ? in[i] + 100 * labels[i] : 1e9f;
            }
            static void gpt2_zero_grad(GPT2 *m) { if (m->stage++ % 3 != 1) exit(5); }
            static void gpt2_backward(GPT2 *m)
            {
                if (m->stage++ % 3 != 2) exit(6);
                if (!m->grads_memory) m->grads_memory = calloc(2, sizeof(float));
            }
        """
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train_gpt2.c"), "w") as file:
                file.write(stub)
            peer = llmc.Llmc(folder, folder)
            said = peer.language(1, 8, 2, 3, 2, 20, 2)
            tokens = [i * 2654435761 % 2**32 // 256 % 20 for i in range(6)]
            want = sum(tokens[i] + 100 * tokens[i + 1] for i in (0, 1, 3, 4)) / 4
            self.assertAlmostEqual(said["loss_first"], want, places=3)
            self.assertTrue(0 < said["min_ms"] <= said["median_ms"] and said["pss_mb"] > 0)

    WITHOUT_NEWEST = {**os.environ, "TERN_PEERS": "/nowhere", "TORCH_PYTHON": ""}  # whose import takes seconds, once for each rank

    def run_hosts(self, *args, env=None):
        """Runs hosts.sh. Returns its exit code and output; checks that its network is gone."""
        bench = subprocess.Popen([os.path.join(PEERS, "hosts.sh"), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = bench.communicate(timeout=300)
        left = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertNotRegex(left, rf"\btern{bench.pid}[ab]\b")
        return bench.returncode, out, err

    def test_two_hosts(self):
        """tern and Debian's PyTorch on little work."""
        code, out, err = self.run_hosts("--model", "mlp", "--rates", "10gbit", "1", env=self.WITHOUT_NEWEST)
        self.assertEqual(code, 0, err)
        row = r"(?m)^mlp, between two hosts at 10gbit, a step \[ms\] +tern +[\d.]+ \([\d.]+\.\.[\d.]+\)\n +PyTorch \d[\w.]+( compile)? +[\d.]+ "
        self.assertRegex(out, row)

    def test_mistakes_about_hosts(self):
        nowhere = {**os.environ, "TERN_BUILD": "/nowhere"}
        for args, env, expected, text in ((["--rates", "fast", "1"], self.WITHOUT_NEWEST, 1, r"nsenter --net=/run/netns/tern\d+a tc .* rate fast .*: exit code"),
                                          (["0"], None, 2, "rounds: expected 1"), ([], nowhere, 1, "hosts.sh: /nowhere/tern does not exist")):
            with self.subTest(args=args):
                code, _, err = self.run_hosts(*args, env=env)
                self.assertEqual(code, expected)
                self.assertRegex(err, text)

    def test_mistakes(self):
        nowhere = {**os.environ, "TERN_BUILD": "/nowhere"}
        for args, env, code, text in ((["0"], None, 2, "rounds: expected 1 or more"), (["--fast"], None, 2, "--fast"), (["--only", "mlp,vgg"], None, 1, "got 'vgg'"),
                                      ([], nowhere, 1, "run.sh: /nowhere/tern does not exist"),
                                      (["--only", "llmc"], {**os.environ, "LLMC": "/nowhere"}, 1, "run.sh: llmc: expected LLMC to be the folder of llm.c's train_gpt2.c, got '/nowhere'")):
            done = subprocess.run([os.path.join(PEERS, "run.sh"), *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stdout), (code, ""))
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    skips.main()
