"""train_classifier on small data: its output, files and resumed runs, alone and on 2 ranks."""
import calendar
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest
from unittest import mock

import torch
import torchvision

import events
import peers
import skips
from training import BUILD, TERN, Folder, call, command, complaints, on_terminals, program, same, stripes, train, write_cifar, write_fashion, write_photographs

NAME = "train_classifier"


class CommandLine(unittest.TestCase):
    def test_help_lists_every_flag_once(self):
        for ranks in (1, 2):
            out = train(ranks, NAME, "--help")
            flags = re.findall(r"^  (?:-\w, |    )--([\w-]+)", out, re.M)
            self.assertEqual(len(flags), len(set(flags)))
            wanted = ("workers batch-size epochs start-epoch lr momentum weight-decay opt-level half sync-bn backend device threads "
                      "data resume log-dir save-every max-steps seed warm-up milestones arch label-smoothing gamma dataset image-size skip-bad help")
            self.assertLessEqual(set(wanted.split()), set(flags))
            self.assertIn("loader threads per rank (default 1)", out)

    def test_wrong_input_is_one_line_and_exit_code_2(self):
        said = {
            ("--batch-size", "0"): '--batch-size: expected a whole number from 1 to 1048576, got "0"',
            ("-b", "3.5"): '--batch-size: expected a whole number from 1 to 1048576, got "3.5"',
            ("-j", "-1"): '--workers: expected a whole number from 0 to 256, got "-1"',
            ("--lr", "fast"): '--lr: expected a number of at least 0, got "fast"',
            ("--lr", "nan"): '--lr: expected a number of at least 0, got "nan"',
            ("--lr", "inf"): '--lr: expected a number of at least 0, got "inf"',
            ("--momentum", "1.5"): '--momentum: expected a number from 0 to 1, got "1.5"',
            ("--epochs",): "--epochs: expected a whole number from 0 to 100000, got nothing",
            ("--opt-level", "O4"): '--opt-level: expected O0|O1|O2|O3, got "O4"',
            ("--opt-level", "O"): '--opt-level: expected O0|O1|O2|O3, got "O"',
            ("--half", "f32"): '--half: expected bf16|f16, got "f32"',
            ("--milestones", "5,5"): '--milestones: expected increasing whole numbers of at least 1, as in 25,50,75, got "5,5"',
            ("--milestones", "5,"): '--milestones: expected increasing whole numbers of at least 1, as in 25,50,75, got "5,"',
            ("--sync-bn=maybe",): '--sync-bn: expected on or off, got "maybe"',
            ("--fast",): 'unknown flag "--fast"; --help lists them',
            ("--l", "1"): '"--l" may be --lr or --log-dir',
            ("--resume", ""): '--resume: expected FILE|latest, got ""',
            ("--log-dir", 512 * "x"): "--log-dir: expected a path of less than 512 bytes, got 512",
            ("fast",): 'expected flags only, got "fast"; --help lists them',
            ("--resume", "latest", "--start-epoch", "3"):
                "--start-epoch: cannot be combined with --resume, which restores the epoch, got 3",
        }
        for flags, text in said.items():
            with self.subTest(flags=flags):
                code, out, err = call(1, NAME, *flags)
                self.assertEqual((code, out, err), (2, "", f"{NAME}: {text}\n"))

    def test_of_several_ranks_the_first_speaks(self):
        for _ in range(3):
            code, out, err = call(2, NAME, "--arch", "vgg")
            self.assertEqual((code, out), (2, ""))
            said = '--arch: expected small|resnet18|resnet34|resnet50|resnet101|vit_tiny|vit_b_16|vit_l_16, got "vgg"'
            self.assertEqual(complaints(err), [f"{NAME}: {said}"])
            self.assertIn(f"\n  error     : {said}\n", err)  # whichever rank ended first


class Data(Folder):
    def said_once(self, ranks, *flags):
        code, out, err = call(ranks, NAME, *flags, cwd=self.folder)
        self.assertEqual((code, out), (1, ""))
        (line,) = complaints(err)
        self.reasons = re.findall(r"^  error     : (.*)$", err, re.M)
        self.assertEqual(sorted(os.listdir(self.folder)), self.before)  # no run folder was made
        return line

    def test_what_is_not_there_is_said_once(self):
        self.before = []
        for ranks in (1, 2):
            line = self.said_once(ranks, "--data", "nowhere")
            self.assertIn("nowhere/train-images-idx3-ubyte.gz: No such file or directory", line)
        self.assertEqual(len(self.reasons), 1)
        self.assertIn(self.reasons[0], line)

    def test_what_one_rank_lacks_is_its_error(self):
        """Whichever ends first. The others do not say it again."""
        write_fashion(self.folder, 4, 2)
        script = f'test $RANK = 1 && set -- --data nowhere; exec {program(NAME)} -b 1 "$@"'
        for _ in range(5):
            done = subprocess.run([TERN, "run", "-n", "3", "sh", "-c", script, "sh", "--data", self.folder], text=True, capture_output=True, timeout=120)
            self.assertEqual((done.returncode, len(complaints(done.stderr))), (1, 1))
            self.assertRegex(done.stderr, r"  rank      : 1 .*\n.*\n  error     : .*nowhere/train-images-idx3-ubyte.gz: No such file or directory\n")
            self.assertEqual(re.findall(r"^tern run: rank (\d) \(pid \d+\) (.*)$", done.stderr, re.M), [("1", "exited with code 1")])

    def test_what_wants_a_folder(self):
        for name in ("cifar10", "cifar100", "folder"):
            code, out, err = call(1, NAME, "--dataset", name)
            self.assertEqual((code, out, err), (2, "", f"{NAME}: --data: expected the folder of the dataset, got nothing\n"))
        self.before = []
        self.assertIn("nowhere/data_batch_1.bin", self.said_once(2, "--dataset", "cifar10", "--data", "nowhere"))
        self.assertIn("nowhere/train", self.said_once(2, "--dataset", "folder", "--data", "nowhere"))

    def test_folders_of_other_classes(self):
        write_photographs(self.folder, "train", ("cat", "dog"), 2)
        write_photographs(self.folder, "val", ("cat", "fox"), 1)
        self.before = sorted(os.listdir(self.folder))
        line = self.said_once(2, "--dataset", "folder", "--data", self.folder, "-b", 1)
        self.assertTrue(line.endswith(f'{self.folder}: class 1 is "dog" in train and "fox" in val'), line)
        shutil.rmtree(self.path("val", "fox"))
        line = self.said_once(1, "--dataset", "folder", "--data", self.folder, "-b", 1)
        self.assertTrue(line.endswith(f'{self.folder}: class "dog" is missing in val'), line)

    def test_fewer_samples_than_ranks(self):
        os.mkdir(self.path("data"))
        write_fashion(self.path("data"), 2, 2)
        self.before = ["data"]
        line = self.said_once(3, "--data", "data", "-b", 1)
        self.assertTrue(line.endswith("Fashion-MNIST: 2 training samples are fewer than 3 ranks"), line)
        line = self.said_once(2, "--data", "data", "-b", 2)
        self.assertTrue(line.endswith("Fashion-MNIST: 2 training samples are too few for a batch of 2 on each of 2 ranks"), line)


READ_RUN = """
import json, sys
from google.protobuf.json_format import MessageToDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
run = EventAccumulator(sys.argv[1]).Reload()
session = run.PluginTagToContent("hparams")["_hparams_/session_start_info"]
print(json.dumps([run.Tags(), MessageToDict(HParamsPluginData.FromString(session))["sessionStartInfo"]["hparams"]]))
"""


class Training(Folder):
    def setUp(self):
        super().setUp()
        write_fashion(self.folder, 192, 51)
        self.shared = ("--data", self.folder, "-b", 16, "--lr", 0.05)

    def train(self, ranks, log_dir, *flags):
        return train(ranks, NAME, *self.shared, "--log-dir", self.path(log_dir), *flags)

    def load(self, *parts):
        return torch.load(self.path(*parts))

    def test_an_epoch_and_what_it_leaves(self):
        out = self.train(2, "run", "--epochs", 2)
        self.assertIn("small ResNet, 77754 parameters", out)
        self.assertIn("192 + 51 samples", out)
        self.assertIn("2 x 1 thread", out)
        self.assertIn("16 x 2 = 32, 6 steps per epoch", out)
        self.assertIn("0.05, rising for 0.5 epochs, lowered after epochs 5, 8", out)
        self.assertIn("O1, bf16\n", out)
        epochs = re.findall(r"^epoch (\d)/2  loss (\S+), test (\S+)  top1 (\S+)  top5 (\S+)  \d+\.\d samples/s  \S+ s, data \d+\.\d %$",
                            out, re.M)
        self.assertEqual([epoch[0] for epoch in epochs], ["1", "2"])
        # Curves.
        (path,) = glob.glob(self.path("run", "events*"))
        curves = {}
        for tag, step, kind, value in events.values(path):
            curves.setdefault((tag, kind), []).append((step, value))
        for i, tag in enumerate(("loss/train", "loss/test", "Evaluation/top1", "Evaluation/top5"), 1):
            points = curves[tag, "scalar"]
            self.assertEqual([step for step, _ in points], [6, 12])
            for (_, value), epoch in zip(points, epochs):
                self.assertEqual(f"{value:.4f}", epoch[i])
        self.check_pictures(curves["Evaluation/examples", "image"])
        parameters = {tag for tag, kind in curves if kind == "histogram"}
        self.assertEqual(parameters, {f"parameters/{name}" for name, _ in small_resnet().named_parameters()})
        self.assertEqual([step for step, _ in curves["parameters/fc.weight", "histogram"]], [6, 12])
        self.assertEqual(len(curves["lr", "scalar"]), 2)
        # The image.
        with open(self.path("run", f"{NAME}.png"), "rb") as file:
            height, width, channels, pixels = events.png_pixels(file.read())
        self.assertEqual((width, channels), (1640, 3))
        self.assertGreater(height, 1000)
        # The accuracy counts each image once over all ranks and equals PyTorch's with the saved weights.
        for name in ("top1", "top5"):
            for value in self.load("run", "latest")["history"]["numbers"][name]:
                self.assertAlmostEqual(value * 51, round(value * 51), 9)
        self.check_accuracy(float(epochs[1][3]), float(epochs[1][4]))

    def check_pictures(self, points):
        """The last is examples.png: 32 images with their captions, in red where the class is wrong."""
        self.assertEqual([step for step, _ in points], [6, 12])
        with open(self.path("run", "examples.png"), "rb") as file:
            height, width, channels, pixels = events.png_pixels(file.read())
        shown = points[-1][1]
        self.assertEqual((shown["height"], shown["width"], shown["channels"]), (height, width, channels))
        self.assertEqual(events.png_pixels(shown["png"])[3], pixels)
        red = sum(r > 150 and g < 80 and b < 80 for r, g, b in zip(*(iter(pixels),) * 3))
        self.assertGreater(red, 20)

    def check_accuracy(self, first, among):
        """PyTorch evaluates in f32; 16 bits may change the class of a close sample."""
        images, labels = stripes(51, 10, 28, 1)
        net = small_resnet()
        net.load_state_dict(self.load("run", "last.pth"))
        net.eval()
        with torch.no_grad():
            x = (torch.from_numpy(images)[:, None].float() / 255 - 0.2860) / 0.3530
            order = net(x).argsort(1, descending=True)
        hits = order == torch.from_numpy(labels).long()[:, None]
        self.assertLessEqual(abs(hits[:, 0].float().mean().item() - first), 0.041)
        self.assertLessEqual(abs(hits[:, :5].any(1).float().mean().item() - among), 0.041)

    def test_the_loss_falls_and_the_best_is_kept(self):
        out = self.train(2, "run", "--epochs", 6, "--opt-level", "O0")
        top1 = [float(value) for value in re.findall(r"top1 (\S+)", out)]
        losses = [float(value) for value in re.findall(r"  loss (\S+), test", out)]
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertGreater(max(top1), 0.5)
        state = self.load("run", "latest")
        self.assertEqual([round(value, 4) for value in state["history"]["numbers"]["top1"]], top1)
        self.assertEqual((state["epoch"], state["step"]), (6, 36))
        if top1.index(max(top1)) == 5:
            self.assertIsNone(same(self.load("run", "best.pth"), self.load("run", "last.pth")))
        self.assertIsNone(same(self.load("run", "last.pth"), state["model"]))

    def test_resumed_is_as_if_it_had_never_stopped(self):
        schedule = ("--warm-up", 1.5, "--milestones", "2", "--opt-level", "O2", "--half", "f16", "--sync-bn=on")
        self.train(2, "whole", "--epochs", 3, *schedule)
        self.train(2, "parts", "--epochs", 1, *schedule)
        out = self.train(2, "parts", "--epochs", 3, "--resume", "latest", *schedule)
        self.assertIn(f"resuming at epoch 1, step 6 of {self.path('parts')}", out)
        self.assertEqual(re.findall(r"^epoch (\d)/3", out, re.M), ["2", "3"])
        whole, parts = (self.load(name, "latest") for name in ("whole", "parts"))
        self.assertIsNone(same(whole, parts))
        self.assertIn("loss_scaler0", whole["amp"])
        self.assertEqual(len(parts["history"]["numbers"]["top1"]), 3)
        self.assertEqual(self.curves("whole"), self.curves("parts"))
        out = self.train(2, "other", "--epochs", 3, "--resume", self.path("parts", "step-12.pt"), *schedule)
        self.assertIn("resuming at epoch 2, step 12", out)
        self.assertIsNone(same(whole, self.load("other", "latest")))
        self.assertIsNotNone(same(whole, self.load("parts", "step-12.pt")))

    def curves(self, run):
        """Returns [(step, tag, value)] without the tags that depend on time."""
        with open(self.path(run, "scalars.csv")) as file:
            rows = [line.strip().split(",")[1:] for line in file]
        return [row for row in rows if row[0] != "step" and not row[1].startswith("speed/")]

    def test_label_smoothing_is_of_the_training_loss_only(self):
        for share in (0, 0.5):
            self.train(1, f"run{share}", "--epochs", 1, "--lr", 0, "--label-smoothing", share)
        plain, smooth = (self.load(f"run{share}", "latest")["history"]["numbers"] for share in (0, 0.5))
        self.assertEqual(plain["loss/test"], smooth["loss/test"])
        self.assertGreater(abs(plain["loss/train"][0] - smooth["loss/train"][0]), 0.01)

    def test_the_plain_kernels_train_alike(self):
        os.mkdir(self.path("few"))
        write_fashion(self.path("few"), 4, 2)
        for device in ("cpu", "cpu:reference"):
            out = self.train(1, device, "--data", self.path("few"), "--device", device, "--epochs", 1, "--opt-level", "O0", "-b", 2)
            self.assertRegex(out, rf"(?m)^  ranks      .*, {device}$")
        fast, plain = (self.load(device, "latest")["history"]["numbers"] for device in ("cpu", "cpu:reference"))
        for name in ("loss/train", "loss/test"):
            self.assertAlmostEqual(fast[name][0], plain[name][0], 3)
        self.assertIsNotNone(same(*(self.load(device, "last.pth") for device in ("cpu", "cpu:reference"))))

    def test_other_devices_and_back_ends_train_alike(self):
        """On the emulation of CUDA."""
        os.mkdir(self.path("few"))
        write_fashion(self.path("few"), 4, 2)
        emulated = os.path.join(os.environ["TERN_BUILD"], "emulated")
        if not skips.has_part("emulation"):
            self.skipTest("this build has no emulation of CUDA")
        runs = {"cpu": ("cpu", "native"), "cuda": ("cuda", "nccl")}
        with mock.patch.dict(os.environ, TERN_PLUGIN_PATH=emulated):
            for name, (device, backend) in runs.items():
                out = self.train(2, name, "--data", self.path("few"), "--device", device, "--backend", backend, "--epochs", 1,
                                 "--opt-level", "O0", "-b", 1)
                self.assertRegex(out, rf"(?m)^  ranks      2 x .*{backend}.*, {device}")
        here, away = (self.load(name, "latest")["history"]["numbers"] for name in runs)
        for name in ("loss/train", "loss/test"):
            self.assertAlmostEqual(here[name][0], away[name][0], 3)

    def test_a_device_or_back_end_that_is_not_there_is_named(self):
        for flags, text in ((("--device", "cpu:99"), "cpu:99"), (("--backend", "carrier"), 'back end "carrier": expected native')):
            code, out, err = call(1, NAME, *self.shared, *flags)
            self.assertEqual((code, out), (1, ""))
            self.assertIn(text, err)

    def stopped_after_an_epoch(self, *flags):
        """Stops 2 ranks that save to "parts". Returns the step of the checkpoint."""
        first = subprocess.Popen(command(2, NAME, *self.shared, *flags, "--log-dir", self.path("parts")), text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in first.stdout:
            if line.startswith("epoch 1/"):
                first.send_signal(signal.SIGTERM)
                break
        rest = first.stdout.read()
        first.stdout.close()
        first.wait()
        self.assertNotIn("epoch 12/", rest)
        return int(re.search(r"stop requested: saved at step (\d+)", rest).group(1))

    def test_asked_to_stop_it_saves_and_goes_on_with_the_same_bits(self):
        """On both sides of a milestone."""
        flags = ("--epochs", 12, "--milestones", 2)
        step = self.stopped_after_an_epoch(*flags)
        ended = (*flags, "--max-steps", max(step + 1, 13))
        self.train(2, "whole", *ended)
        out = self.train(2, "parts", *ended, "--resume", "latest")
        self.assertRegex(out, rf"resuming at epoch \d+, step {step} of ")
        self.assertIsNone(same(self.load("whole", "latest"), self.load("parts", "latest")))

    def test_an_interrupt_saves(self):
        """Alone and under tern run. Stopped in the middle of an epoch, it resumes with the same bits."""
        flags = (*self.shared, "--epochs", 60)
        for ranks in (1, 2):
            name = f"parts{ranks}"
            run = subprocess.Popen(command(ranks, NAME, *flags, "--log-dir", self.path(name)), text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.assertTrue(any(line.startswith("epoch 1/") for line in run.stdout))
            run.send_signal(signal.SIGINT)
            out = run.communicate()[0]
            self.assertEqual(run.returncode, 0)
            step = int(re.search(r"stop requested: saved at step (\d+);", out).group(1))
            ended = (*flags, "--max-steps", step + 3)
            out = train(ranks, NAME, *ended, "--log-dir", self.path(name), "--resume", "latest")
            self.assertIn(f", step {step} of ", out)
            train(ranks, NAME, *ended, "--log-dir", self.path(f"whole{ranks}"))
            self.assertIsNone(same(self.load(f"whole{ranks}", "latest"), self.load(name, "latest")))

    def test_killed_it_resumes_from_the_last_save_within_an_epoch(self):
        flags = ("--epochs", 3, "--save-every", 4)
        self.train(2, "whole", "--epochs", 3)
        run = subprocess.Popen(command(2, NAME, *self.shared, *flags, "--log-dir", self.path("parts")), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        latest = self.path("parts", "latest")
        while not (os.path.lexists(latest) and os.readlink(latest) == "step-8.pt") and run.poll() is None:
            time.sleep(0.001)
        run.kill()
        run.wait()
        out = self.train(2, "parts", *flags, "--resume", "latest")
        self.assertRegex(out, r"resuming at epoch 1, step (8|12) of ")
        self.assertIsNone(same(self.load("whole", "latest"), self.load("parts", "latest")))

    def test_the_most_steps(self):
        """In the middle of an epoch, at its end, and further than --epochs; 6 steps are an epoch."""
        self.train(2, "whole", "--epochs", 3)
        for ends in ((2, 3, 8), (6, 12, 100)):
            name = f"parts{ends[0]}"
            for i, end in enumerate(ends):
                out = self.train(2, name, "--epochs", 3, "--max-steps", end, *(("--resume", "latest") if i else ()))
                line = re.findall(r"^epoch (\d)/3( until step (\d+))?  loss (\S+), test \S+  top1 \S+ ", out, re.M)[-1]
                epochs, rest = divmod(min(end, 18), 6)
                self.assertEqual((int(line[0]), line[2]), (epochs + (rest > 0), str(end) if rest else ""))
                state = self.load(name, "latest")
                self.assertEqual((state["step"], state["epoch"]), (min(end, 18), epochs))
                self.assertIsNone(same(state["model"], self.load(name, "last.pth")))
                self.assertTrue(os.path.exists(self.path(name, f"{NAME}.png")))
            if end > 18:
                self.assertIsNone(same(self.load("whole", "latest"), self.load(name, "latest")))
        out = self.train(2, "parts2", "--epochs", 3, "--max-steps", 8, "--resume", "latest")
        self.assertNotIn("\nepoch ", out)
        self.assertEqual(self.load("parts2", "latest")["step"], 8)
        self.train(2, "parts2", "--epochs", 3, "--resume", "latest")
        self.assertIsNone(same(self.load("whole", "latest"), self.load("parts2", "latest")))

    def test_stopped_while_it_evaluates_it_keeps_the_epoch(self):
        """By SIGTERM, which ends the evaluation within a few batches, and by SIGKILL. The ranks have unequal numbers of batches."""
        os.mkdir(self.path("data"))
        write_fashion(self.path("data"), 64, 4001)
        flags = ("--data", self.path("data"), "-b", 16, "--lr", 0.05, "--epochs", 1, "--deterministic")
        train(2, NAME, *flags, "--log-dir", self.path("whole"))
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                name = f"parts{number}"
                first = subprocess.Popen(command(2, NAME, *flags, "--log-dir", self.path(name)), text=True,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                while not os.path.exists(self.path(name, "latest")) and first.poll() is None:
                    time.sleep(0.001)
                begun = time.monotonic()
                first.send_signal(number)
                out = first.communicate()[0]
                if number == signal.SIGTERM:
                    self.assertLess(time.monotonic() - begun, 3)  # below tern run's --grace
                    self.assertEqual(first.returncode, 0)
                    self.assertIn("stop requested: saved at step 2;", out)
                self.assertNotIn("epoch 1/1", out)
                out = train(2, NAME, *flags, "--log-dir", self.path(name), "--resume", "latest")
                self.assertIn("resuming at epoch 0, step 2 of ", out)
                self.assertRegex(out, r"(?m)^epoch 1/1  loss ")
                self.assertIsNone(same(self.load("whole", "latest"), self.load(name, "latest")))
                with open(self.path(name, "scalars.csv")) as file:
                    points = [line.split(",")[1:3] for line in file]
                self.assertEqual(len(points), len(set(map(tuple, points))), "each point once")

    def test_resumed_its_bar_begins_where_the_loader_stands(self):
        """The progress bar is only on rank 0's terminal; resumes with the same number of ranks, and with more and a smaller batch."""
        step = self.stopped_after_an_epoch("--epochs", 12)
        epoch, steps = divmod(step - 1, 6)
        done = (steps + 1) * 2 * 16
        for ranks, batch in ((2, 16), (4, 8)):
            shown = on_terminals(ranks, NAME, *self.shared, "-b", batch, "--log-dir", self.path(f"by{ranks}"), "--epochs", epoch + 1,
                                 "--resume", self.path("parts", f"step-{step}.pt"))
            places = re.findall(rf"\repoch {epoch + 1}/{epoch + 1}: *\d+%\|.*?\| (\d+)/192 \[", shown[0])
            self.assertEqual(int(places[0]), done, shown[0])
            self.assertEqual(shown[1:], [""] * (ranks - 1))
            total = -(-51 // ranks) * ranks  # every rank counts as much as rank 0
            self.assertRegex(shown[0], rf"\rtest {epoch + 1}/{epoch + 1}: *\d+%\|.*?\| \d+/{total} \[[^]]* samples/s\]")

    def test_banner_says_that_threads_take_turns(self):
        cores = len(os.sched_getaffinity(0))
        for threads, want in ((1, ""), (cores + 1, f"; oversubscribed: they take turns on {cores} core{'s' * (cores > 1)}")):
            out = train(1, NAME, *self.shared, "--max-steps", 1, "--threads", threads, cwd=self.folder)
            self.assertRegex(out, rf"(?m)^  ranks      1 x {threads} threads?, \w+, cpu{want}$")

    def test_a_dated_folder_and_the_newest_of_them(self):
        out = train(1, NAME, *self.shared, "--max-steps", 1, cwd=self.folder)
        (run,) = os.listdir(self.path("runs"))
        self.assertRegex(run, rf"^\w{{3}}\d\d_\d\d-\d\d-\d\d_.*_{NAME}$")
        self.assertIn(f"runs/{run} (tensorboard --logdir runs/{run})", out)
        out = train(2, NAME, *self.shared, "--max-steps", 2, "--resume", "latest", cwd=self.folder)
        self.assertIn(f"of runs/{run}", out)
        self.assertEqual(os.listdir(self.path("runs")), [run])

    def in_runs(self, *flags, ranks=1):
        """Trains in a folder of runs/. Returns stdout and the folder's name."""
        out = train(ranks, NAME, "--data", self.folder, "-b", 16, *flags, cwd=self.folder)
        return out, re.search(r"  run        runs/(\S+) ", out).group(1)

    def record(self, *parts):
        with open(self.path(*parts, "run.json")) as file:
            return json.load(file)

    def hparams(self, *parts):
        """Returns what TensorBoard should have of the record: the flags that have a value, and where it ran."""
        record = self.record(*parts)
        found = {**record["flags"], **{name: record[name] for name in "program version host ranks threads backend device".split()}}
        return {name: value for name, value in found.items() if value is not None}

    def test_latest_finds_the_run_with_the_same_flags(self):
        """Of two runs that differ in one flag; whatever says where and for how long it computes may change."""
        _, first = self.in_runs("--lr", 0.05, "--max-steps", 2)
        for flags, why in ((("--lr", 0.1), "--lr was 0.05, now 0.1"), (("--lr", 0.05, "--seed", 1), "--seed was 0, now 1"),
                           (("--lr", 0.05, "--milestones", 5, "--sync-bn"), "--milestones was 5,8, now 5; --sync-bn was off, now on")):
            with self.subTest(flags=flags):
                out, other = self.in_runs(*flags, "--max-steps", 1, "--resume", "latest")
                self.assertIn(f"no run in runs/ has these flags (runs/{first}: {why})\nno checkpoint in runs/{other} yet: starting from scratch\n", out)
                out, found = self.in_runs(*flags, "--max-steps", 2, "--resume", "latest")
                self.assertIn(f"resuming at epoch 0, step 1 of runs/{other}\n", out)
                self.assertEqual(found, other)
                out, found = self.in_runs("--lr", 0.05, "--max-steps", 2, "--resume", "latest", "-j", 0, "--data", self.path("."), ranks=2)
                self.assertIn(f"step 2 of runs/{first}\n", out)
                self.assertEqual(found, first)
                shutil.rmtree(self.path("runs", other))
        os.remove(self.path("runs", first, "run.json"))
        out, _ = self.in_runs("--lr", 0.05, "--max-steps", 1, "--resume", "latest")
        self.assertIn(f"runs/{first} has no run.json; --log-dir runs/{first} resumes it\n", out)

    def test_a_folder_of_another_run(self):
        self.train(1, "run", "--max-steps", 1)
        out = self.train(1, "run", "--max-steps", 2, "--resume", "latest", "--seed", 3)
        self.assertIn(f"{self.path('run')} was begun with other flags (--seed was 0, now 3)\nresuming at epoch 0, step 1 of ", out)
        out = self.train(1, "run", "--max-steps", 1)
        self.assertIn(f"{self.path('run')} has checkpoints of an earlier run, which this one replaces; --resume latest would go on\n", out)
        record = self.record("run")
        with open(self.path("run", "run.json"), "w") as file:
            json.dump({**record, "program": "train_unet3d"}, file)
        code, out, err = call(2, NAME, *self.shared, "--log-dir", self.path("run"), "--resume", "latest")
        self.assertEqual((code, out), (1, ""))
        (line,) = complaints(err)
        self.assertEqual(line, f"tern: train: --resume latest: {self.path('run')} is a run of train_unet3d")

    def test_the_record_of_a_run(self):
        begun = time.time()
        self.train(2, "run", "--max-steps", 1, "--milestones", "2,3", "--sync-bn")
        first = self.record("run")
        flags = first.pop("flags")
        when = calendar.timegm(time.strptime(first.pop("time"), "%Y-%m-%dT%H:%M:%SZ"))
        self.assertTrue(begun - 1 <= when <= time.time())
        self.assertIn(f"tern {first.pop('version')}, {NAME}\n", self.train(2, "run", "--max-steps", 2, "--resume", "latest", "--seed", 1))
        self.assertEqual(first, {"program": NAME, "host": socket.gethostname(), "ranks": 2, "threads": 1, "backend": "native", "device": "cpu",
                                 "step": 0})
        given = set(re.findall(r"^  (?:-\w, |    )--([\w-]+)", train(1, NAME, "--help"), re.M)) - {"help"}
        self.assertEqual(set(flags), given)
        for name, value in (("data", self.folder), ("lr", 0.05), ("batch-size", 16), ("milestones", "2,3"), ("sync-bn", True), ("seed", 0),
                            ("arch", "small"), ("opt-level", "O1"), ("max-steps", 1), ("backend", None), ("log-dir", self.path("run"))):
            self.assertEqual(flags[name], value)
        second = self.record("run")
        (later,) = second.pop("resumed")
        self.assertEqual((second["flags"], later["step"], later["flags"]["seed"], later["flags"]["resume"]), (flags, 1, 1, "latest"))
        # A file of the folder goes on with its run; in another folder it begins a new one.
        for folder, starts in (("run", 2), ("other", 0)):
            self.train(1, folder, "--max-steps", 3, "--resume", self.path("run", "step-2.pt"))
            self.assertEqual(len(self.record(folder).get("resumed", [])), starts)
        self.assertEqual(self.record("other")["step"], 2)

    def test_the_record_is_in_tensorboards_table_of_runs(self):
        self.train(2, "run", "--max-steps", 1)
        self.train(2, "run", "--max-steps", 2, "--resume", "latest")
        told = [value for path in sorted(glob.glob(self.path("run", "events*"))) for value in events.values(path)]
        (experiment, columns), (session, row) = [(tag, content[1]) for tag, _, kind, content in told if kind == "hparams"]
        self.assertEqual((experiment, session), ("_hparams_/experiment", "_hparams_/session_start_info"))
        metrics = [events.fields(events.fields(m)[1][0])[2][0].decode() for m in events.fields(events.fields(columns)[2][0])[5]]
        self.assertEqual(metrics, ["loss/train", "loss/test", "Evaluation/top1"])
        self.assertLessEqual(set(metrics), {tag for tag, _, kind, _ in told if kind == "scalar"})
        pairs = map(events.fields, events.fields(events.fields(row)[3][0])[1])
        self.assertEqual({f[1][0].decode(): events.hparam(f[2][0]) for f in pairs}, self.hparams("run"))

    def test_tensorboard_reads_it(self):
        """With TensorBoard's own reader, also after the run was resumed."""
        python = os.path.join(peers.PEERS, "bin", "python")
        if not os.access(python, os.X_OK):
            self.skipTest(f"no {python}: run scripts/peers.sh")
        self.train(2, "run", "--epochs", 1, "--sync-bn")
        self.train(2, "run", "--epochs", 2, "--sync-bn", "--resume", "latest")
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        tags, hparams = json.loads(subprocess.check_output([python, "-c", READ_RUN, self.path("run")], text=True, env=env))
        self.assertLessEqual({"loss/train", "loss/test", "Evaluation/top1", "Evaluation/top5"}, set(tags["scalars"]))
        self.assertEqual(tags["images"], ["Evaluation/examples"])
        self.assertIn("parameters/fc.weight", tags["histograms"])
        self.assertEqual(hparams, self.hparams("run"))

    def test_jobs_begun_together_have_folders_of_their_own(self):
        """The newest folder may have a number at the end of its name."""
        flags = (*self.shared, "--max-steps", 1)
        jobs = [subprocess.Popen(command(1, NAME, *flags), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
        said = sorted(re.search(r"  run        runs/(\S+) ", job.communicate()[0]).group(1) for job in jobs)
        self.assertEqual(said, sorted(os.listdir(self.path("runs"))))
        for run in said:
            self.assertTrue(os.path.exists(self.path("runs", run, "latest")), run)
        for run in said[1:]:
            shutil.rmtree(self.path("runs", run))
        os.rename(self.path("runs", said[0]), self.path("runs", f"{said[0]}_2"))
        out = train(2, NAME, *self.shared, "--max-steps", 2, "--resume", "latest", cwd=self.folder)
        self.assertIn(f"of runs/{said[0]}_2", out)

    def test_a_dated_folder_that_cannot_be_made_is_said_once(self):
        with open(self.path("runs"), "w"):
            pass
        code, out, err = call(2, NAME, *self.shared, "--epochs", 1, cwd=self.folder)
        self.assertEqual((code, out), (1, ""))
        (line,) = complaints(err)
        self.assertRegex(line, rf'^tern: tern_board_new: cannot make the folder "runs/.*_{NAME}": Not a directory$')

    def test_what_cannot_be_taken_up(self):
        code, _, err = call(2, NAME, *self.shared, "--log-dir", self.path("run"), "--resume", self.path("nothing.pt"))
        self.assertEqual(code, 1)
        (line,) = complaints(err)
        self.assertIn("nothing.pt", line)
        out = self.train(1, "run", "--epochs", 0, "--resume", "latest")
        self.assertIn(f"no checkpoint in {self.path('run')} yet: starting from scratch", out)

    def test_without_plug_ins_it_trains_all_the_same(self):
        code, out, err = call(2, NAME, *self.shared, "--epochs", 1, "--log-dir", self.path("run"),
                              env={**os.environ, "TERN_PLUGIN_PATH": self.path("run")})
        self.assertEqual(code, 0, err)
        png, figure = complaints(err)
        self.assertIn("the plug-in tern_png.so cannot be loaded", png)
        self.assertIn("the plug-in tern_figure.so cannot be loaded", figure)
        self.assertNotIn("wrote", out)
        self.assertEqual((self.load("run", "latest")["epoch"], len(self.load("run", "last.pth"))), (1, len(small_resnet().state_dict())))

    def test_start_epoch_begins_with_its_rate_and_order(self):
        self.train(1, "run", "--epochs", 3, "--start-epoch", 2, "--milestones", "1,2", "--warm-up", 0)
        state = self.load("run", "latest")
        self.assertEqual((state["epoch"], state["step"]), (3, 36))
        self.assertEqual(state["loader"]["epoch"], 3)
        self.assertAlmostEqual(state["optimizer"]["param_groups"][0]["lr"], 0.05 * 0.01, 12)
        self.assertEqual(len(state["history"]["numbers"]["top1"]), 3)


class OtherData(Folder):
    """CIFAR's files and image folders."""

    def test_cifar(self):
        write_cifar(self.folder, [32] * 5 + [20])
        out = train(2, NAME, "--dataset", "cifar10", "--data", self.folder, "-b", 16, "--epochs", 1, "--log-dir", self.path("run"))
        self.assertIn("CIFAR-10, 160 + 20 samples", out)
        self.assertEqual(torch.load(self.path("run", "last.pth"))["conv1.weight"].shape, (16, 3, 3, 3))
        write_cifar(self.folder, [64, 20], 100)
        out = train(1, NAME, "--dataset", "cifar100", "--data", self.folder, "-b", 16, "--epochs", 1, "--log-dir", self.path("run100"))
        self.assertIn("CIFAR-100, 64 + 20 samples", out)
        self.assertEqual(torch.load(self.path("run100", "last.pth"))["fc.weight"].shape, (100, 64))

    def test_a_vision_transformer(self):
        """Patches of 4x4 where images are small; torchvision's net takes its file."""
        write_cifar(self.folder, [4] * 5 + [4])
        out = train(2, NAME, "--dataset", "cifar10", "--data", self.folder, "--arch", "vit_tiny", "-b", 8, "--epochs", 1, "--log-dir", self.path("run"))
        self.assertIn("ViT-Tiny", out)
        net = torchvision.models.VisionTransformer(32, 4, 12, 3, 192, 768, num_classes=10)
        net.load_state_dict(torch.load(self.path("run", "best.pth")))
        code, _, err = call(1, NAME, "--dataset", "cifar10", "--data", self.folder, "--arch", "vit_small")
        self.assertEqual((code, err), (2, f'{NAME}: --arch: expected small|resnet18|resnet34|resnet50|resnet101|vit_tiny|vit_b_16|vit_l_16, got "vit_small"\n'))

    def photographs(self):
        """12 + 6 images of three classes."""
        write_photographs(self.folder, "val", ("ant", "bee", "cat"), 2)
        self.flags = ("--dataset", "folder", "--data", self.folder, "--image-size", 32, "-b", 2, "--epochs", 2)
        return write_photographs(self.folder, "train", ("ant", "bee", "cat"), 4)

    def test_photographs_are_the_same_on_any_number_of_workers(self):
        self.photographs()
        for workers in (0, 2):
            out = train(2, NAME, *self.flags, "-j", workers, "--arch", "resnet18", "--epochs", 1, "--log-dir", self.path(f"run{workers}"))
            self.assertIn("ResNet-18", out)
            self.assertIn("photographs, 12 + 6 samples", out)
        self.assertIsNone(same(*(torch.load(self.path(f"run{workers}", "last.pth")) for workers in (0, 2))))
        net = torchvision.models.resnet18(num_classes=3)
        net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)  # the stem for small images
        net.load_state_dict(torch.load(self.path("run0", "best.pth")))

    def hanging(self, ranks, rank, after, name, *flags):
        """Starts a run in which opening a photograph hangs on one rank from its `after`-th on, and returns it when that has happened."""
        mark = self.path(name + "-mark")
        env = {**os.environ, "LD_PRELOAD": os.path.join(BUILD, "tests", "hanging_open.so"), "HANGS_RANK": str(rank), "HANGS_AFTER": str(after),
               "HANGS_MARK": mark, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        run = subprocess.Popen(command(ranks, NAME, *self.flags, *flags, "--log-dir", self.path(name)), text=True, env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not os.path.exists(mark) and run.poll() is None:
            time.sleep(0.01)
        time.sleep(1)  # the ranks do what they can without it
        return run

    def test_a_second_interrupt_ends_at_once(self):
        """Without workers a run that hangs in its dataset cannot save."""
        self.photographs()
        for ranks in (1, 2):
            run = self.hanging(ranks, 0, 5, f"run{ranks}", "-j", 0)
            run.send_signal(signal.SIGINT)
            with self.assertRaises(subprocess.TimeoutExpired):
                run.communicate(timeout=0.5)
            run.send_signal(signal.SIGINT)
            out, _ = run.communicate(timeout=60)
            self.assertNotIn("stop requested", out)
            self.assertEqual(run.returncode, -signal.SIGINT if ranks == 1 else 128 + signal.SIGINT)

    def stopped_while_it_hangs(self, ranks, rank, after, name):
        """Returns the step at which SIGTERM makes the run save."""
        run = self.hanging(ranks, rank, after, name)
        begun = time.monotonic()
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=60)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertEqual(run.returncode, 0, err)
        return int(re.search(r"stop requested: saved at step (\d+);", out).group(1))

    def test_stopped_while_a_photograph_hangs_it_saves(self):
        """In an epoch's steps and in its evaluation, on any rank. The resumed run ends with the same bits. A step takes 2 photographs per
        rank."""
        self.photographs()
        for ranks in (1, 2):
            train(ranks, NAME, *self.flags, "--log-dir", self.path(f"whole{ranks}"))
            whole = torch.load(self.path(f"whole{ranks}", "latest"))
            steps = 12 // (2 * ranks)
            for rank, after in {(ranks - 1, 5), (0, 2 * steps + 1)}:
                with self.subTest(ranks=ranks, rank=rank, after=after):
                    name = f"parts{ranks}{rank}{after}"
                    step = self.stopped_while_it_hangs(ranks, rank, after, name)
                    self.assertIn(step, range(1, min(after // 2, steps) + 1))
                    out = train(ranks, NAME, *self.flags, "--log-dir", self.path(name), "--resume", "latest")
                    self.assertIn(f", step {step} of ", out)
                    self.assertIsNone(same(whole, torch.load(self.path(name, "latest"))))

    def test_a_photograph_that_is_cut_off(self):
        paths = self.photographs()
        with open(paths[5], "r+b") as file:
            file.truncate(100)
        code, _, err = call(2, NAME, *self.flags, "--log-dir", self.path("run"))
        self.assertEqual(code, 1)
        self.assertTrue(any(paths[5] in line for line in complaints(err)), err)
        out = train(2, NAME, *self.flags, "--log-dir", self.path("run"), "--skip-bad")
        self.assertIn("skipped 1 of 12 samples that cannot be read", out)
        self.assertIn("photographs, 11 + 6 samples", out)


def small_resnet():
    """The program's network `small` in PyTorch."""
    import sys
    sys.path.insert(0, os.path.join(os.environ["TERN_SOURCE"], "bench", "peers"))
    import fashion
    return fashion.Net()


if __name__ == "__main__":
    skips.main()
