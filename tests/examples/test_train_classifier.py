"""train_classifier on small data: its output, files and resumed runs, alone and on 2 ranks."""
import glob
import os
import re
import shutil
import signal
import subprocess
import time
import unittest
from unittest import mock

import torch
import torchvision

import events
import skips
from training import Folder, call, command, complaints, on_terminals, same, stripes, train, write_cifar, write_fashion, write_photographs

NAME = "train_classifier"


class CommandLine(unittest.TestCase):
    def test_help_lists_every_flag_once(self):
        for ranks in (1, 2):
            out = train(ranks, NAME, "--help")
            flags = re.findall(r"^  (?:-\w, |    )--([\w-]+)", out, re.M)
            self.assertEqual(len(flags), len(set(flags)))
            wanted = ("workers batch-size epochs start-epoch lr momentum weight-decay opt-level half sync-bn backend device threads "
                      "data resume log-dir seed warm-up milestones arch label-smoothing gamma dataset image-size skip-bad help")
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
            said = '--arch: expected small|resnet18|resnet34|resnet50|resnet101, got "vgg"'
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
        epochs = re.findall(r"^epoch (\d)/2  loss (\S+), test (\S+)  top1 (\S+)  top5 (\S+)  \S+ samples/s  \S+ s, data \d+ %$",
                            out, re.M)
        self.assertEqual([epoch[0] for epoch in epochs], ["1", "2"])
        # Curves.
        (path,) = glob.glob(self.path("run", "events*"))
        curves = {}
        for tag, step, kind, value in events.values(path):
            curves.setdefault((tag, kind), []).append((step, value))
        for i, tag in enumerate(("loss/train", "loss/test", "top1", "top5"), 1):
            points = curves[tag, "scalar"]
            self.assertEqual([step for step, _ in points], [6, 12])
            for (_, value), epoch in zip(points, epochs):
                self.assertEqual(f"{value:.4f}", epoch[i])
        self.assertEqual([step for step, _ in curves["examples", "image"]], [6, 12])
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

    def stopped_after_3_epochs(self, *flags):
        """Stops 2 ranks that save to "parts". Returns the step of the checkpoint."""
        first = subprocess.Popen(command(2, NAME, *self.shared, *flags, "--log-dir", self.path("parts")), text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in first.stdout:
            if line.startswith("epoch 3/"):
                first.send_signal(signal.SIGTERM)
                break
        rest = first.stdout.read()
        first.stdout.close()
        first.wait()
        self.assertNotIn("epoch 12/", rest)
        return int(re.search(r"stop requested: saved at step (\d+)", rest).group(1))

    def test_asked_to_stop_it_saves_and_goes_on_with_the_same_bits(self):
        self.train(2, "whole", "--epochs", 12)
        step = self.stopped_after_3_epochs("--epochs", 12)
        out = self.train(2, "parts", "--epochs", 12, "--resume", "latest")
        self.assertRegex(out, rf"resuming at epoch \d+, step {step} of ")
        self.assertIsNone(same(self.load("whole", "latest"), self.load("parts", "latest")))

    def test_stopped_while_it_evaluates_it_keeps_the_epoch(self):
        """By SIGTERM, which ends the evaluation within a few batches, and by SIGKILL. The ranks have unequal numbers of batches."""
        os.mkdir(self.path("data"))
        write_fashion(self.path("data"), 64, 48001)
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

    def test_resumed_its_bar_begins_where_the_loader_stands(self):
        """The progress bar is only on rank 0's terminal; resumes with the same number of ranks, and with more and a smaller batch."""
        step = self.stopped_after_3_epochs("--epochs", 12)
        epoch, steps = divmod(step - 1, 6)
        done = (steps + 1) * 2 * 16
        for ranks, batch in ((2, 16), (4, 8)):
            shown = on_terminals(ranks, NAME, *self.shared, "-b", batch, "--log-dir", self.path(f"by{ranks}"), "--epochs", epoch + 1,
                                 "--resume", self.path("parts", f"step-{step}.pt"))
            places = re.findall(rf"\repoch {epoch + 1}/{epoch + 1}: *\d+%\|.*?\| (\d+)/192 \[", shown[0])
            self.assertEqual(int(places[0]), done, shown[0])
            self.assertEqual(shown[1:], [""] * (ranks - 1))

    def test_a_dated_folder_and_the_newest_of_them(self):
        out = train(1, NAME, *self.shared, "--epochs", 1, cwd=self.folder)
        (run,) = os.listdir(self.path("runs"))
        self.assertRegex(run, rf"^\w{{3}}\d\d_\d\d-\d\d-\d\d_.*_{NAME}$")
        self.assertIn(f"runs/{run} (tensorboard --logdir runs/{run})", out)
        out = train(2, NAME, *self.shared, "--epochs", 2, "--resume", "latest", cwd=self.folder)
        self.assertIn(f"of runs/{run}", out)
        self.assertEqual(os.listdir(self.path("runs")), [run])

    def test_jobs_begun_together_have_folders_of_their_own(self):
        """The newest folder may have a number at the end of its name."""
        flags = (*self.shared, "--epochs", 1)
        jobs = [subprocess.Popen(command(1, NAME, *flags), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
        said = sorted(re.search(r"  run        runs/(\S+) ", job.communicate()[0]).group(1) for job in jobs)
        self.assertEqual(said, sorted(os.listdir(self.path("runs"))))
        for run in said:
            self.assertTrue(os.path.exists(self.path("runs", run, "latest")), run)
        for run in said[1:]:
            shutil.rmtree(self.path("runs", run))
        os.rename(self.path("runs", said[0]), self.path("runs", f"{said[0]}_2"))
        out = train(2, NAME, *self.shared, "--epochs", 2, "--resume", "latest", cwd=self.folder)
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

    def photographs(self):
        """12 + 6 images of three classes."""
        write_photographs(self.folder, "val", ("ant", "bee", "cat"), 2)
        self.flags = ("--dataset", "folder", "--data", self.folder, "--image-size", 32, "-b", 2, "--epochs", 2)
        return write_photographs(self.folder, "train", ("ant", "bee", "cat"), 4)

    def test_photographs_are_the_same_on_any_number_of_workers(self):
        self.photographs()
        for workers in (0, 2):
            out = train(2, NAME, *self.flags, "-j", workers, "--arch", "resnet18", "--log-dir", self.path(f"run{workers}"))
            self.assertIn("ResNet-18", out)
            self.assertIn("photographs, 12 + 6 samples", out)
        self.assertIsNone(same(*(torch.load(self.path(f"run{workers}", "last.pth")) for workers in (0, 2))))
        net = torchvision.models.resnet18(num_classes=3)
        net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)  # the stem for small images
        net.load_state_dict(torch.load(self.path("run0", "best.pth")))

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
