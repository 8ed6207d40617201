"""train_unet3d on small volumes: its scores, its files for viewers and PyTorch, and grains with the same bits everywhere."""
import hashlib
import os
import re
import unittest

import nibabel
import numpy as np
import torch

import skips
from training import Folder, call, complaints, train

NAME = "train_unet3d"
SMALL = ("--patch", "8x16x16", "--stack", "16x32x40", "--width", 2, "--patches", 8, "--volumes", 1)


def dice_iou(guess, truth, label):
    both = ((guess == label) & (truth == label)).sum()
    either = ((guess == label) | (truth == label)).sum()
    return 2 * both / (both + either), both / either


class Grains(Folder):
    def train(self, ranks, log_dir, *flags):
        return train(ranks, NAME, *SMALL, "--log-dir", self.path(log_dir), *flags)

    def voxels(self, *parts):
        return nibabel.load(self.path(*parts)).get_fdata().T

    def test_an_epoch_and_what_it_leaves(self):
        out = self.train(2, "run", "--epochs", 2)
        self.assertIn("grains, 8 + 12 samples", out)
        self.assertIn("O1, bf16, synchronised batch norm", out)
        epochs = re.findall(r"^epoch \d/2  loss \S+, test \S+  dice \S+  iou \S+  .*$", out, re.M)
        self.assertEqual(len(epochs), 2)
        self.assertLessEqual(max(map(len, epochs)), 100)
        image, label, found = (self.voxels("run", f"{name}.nii.gz") for name in ("image", "label", "prediction"))
        self.assertEqual({image.shape, label.shape, found.shape}, {(16, 32, 40)})
        self.assertEqual(set(np.unique(label)), {0, 1})
        (dice, iou), = re.findall(r"the whole volume:  foreground Dice (\S+) IoU (\S+)", out)
        wanted = dice_iou(found, label, 1)
        self.assertAlmostEqual(float(dice), wanted[0], 3)
        self.assertAlmostEqual(float(iou), wanted[1], 3)
        state = torch.load(self.path("run", "last.pth"))
        self.assertEqual(state["encoder.0.0.weight"].shape, (2, 1, 3, 3, 3))
        self.assertEqual(int(state["encoder.0.1.num_batches_tracked"]), 2)  # those before the last evaluation (--update-bn)
        self.assertTrue(os.path.exists(self.path("run", f"{NAME}.png")))

    def test_the_most_steps_end_with_the_whole_volume(self):
        out = self.train(1, "run", "--epochs", 3, "--max-steps", 2)
        self.assertRegex(out, r"(?m)^epoch 1/3 until step 2  loss \S+, test \S+  dice \S+  iou \S+  ")
        self.assertEqual(out.count("the whole volume:"), 1)
        self.assertEqual(self.voxels("run", "prediction.nii.gz").shape, (16, 32, 40))
        out = self.train(1, "run", "--epochs", 2, "--resume", "latest")
        self.assertEqual(out.count("the whole volume:"), 1)  # after the last epoch only
        self.assertEqual(torch.load(self.path("run", "latest"))["step"], 8)

    def test_grains_have_the_same_bits_everywhere(self):
        self.train(1, "run", "--epochs", 1, "--patches", 2)
        sums = [hashlib.sha256(self.voxels("run", f"{name}.nii.gz").astype(np.uint8).tobytes()).hexdigest()[:16]
                for name in ("image", "label")]
        self.assertEqual(sums, ["85c87f8bd0b08c87", "2eba63e0abc24130"])

    def test_scores_are_exact_on_any_number_of_ranks(self):
        """With a rate of 0 only batch-norm statistics change, by the batch of all ranks; 12 patches on 3 ranks in batches of 5 and 1."""
        numbers = []
        for ranks, batch in ((1, 6), (3, 2)):
            self.train(ranks, f"run{ranks}", "--epochs", 1, "--lr", 0, "-b", batch, "--patches", 6, "--opt-level", "O0")
            state = torch.load(self.path(f"run{ranks}", "latest"))["history"]["numbers"]
            numbers.append([state[name][0] for name in ("loss/train", "loss/test", "dice", "iou")])
        for one, three in zip(*numbers):
            self.assertAlmostEqual(one, three, 5)

    def test_wrong_sizes(self):
        for flag in ("--patch", "--stack"):
            for size in ("8x8", "8x8x0", "8x8x8x8", "big"):
                code, _, err = call(1, NAME, flag, size)
                self.assertEqual((code, err), (2, f'{NAME}: {flag}: expected DxHxW, as in 32x64x64, got "{size}"\n'))
        code, _, err = call(2, NAME, *SMALL, "--patch", "8x8x9", "--log-dir", self.path("run"))
        self.assertEqual(code, 1)
        self.assertIn("divisible by 8", "".join(complaints(err)))

    def test_classes_are_of_a_folder(self):
        code, _, err = call(1, NAME, "--classes", 4)
        said = "--classes: expected only if --data is a folder, got 4 with grains"
        self.assertEqual((code, err), (2, f"{NAME}: {said}\n"))

    def test_a_checkpoints_rate_counts(self):
        self.train(1, "run", "--epochs", 1, "--lr", 0.01, "--milestones", 1)
        out = self.train(1, "run", "--epochs", 1, "--lr", 0.5, "--milestones", 1, "--resume", "latest")
        self.assertIn("  rate       0.01 (--lr 0.5 ignored: the checkpoint has 0.01), lowered after epoch 1\n", out)

    def test_preset(self):
        out = train(1, NAME, "--help", "--preset", "article")
        for text in ("epochs N", "default 100", "default 8)", "default 0.0002", "25,50,75", "default 0.2"):
            self.assertIn(text, out)


class Folders(Folder):
    """Three classes that thresholds separate, in the user's own files."""

    def write(self, part, name, seed):
        random = np.random.default_rng(seed)
        label = np.repeat(np.repeat(np.repeat(random.integers(0, 3, (4, 4, 4)), 4, 0), 4, 1), 4, 2).astype(np.uint8)
        image = (label * 100 + random.normal(0, 5, label.shape)).astype(np.float32)
        affine = np.diag([2.0, 3, 4, 1])
        for kind, data in (("images", image), ("labels", label)):
            os.makedirs(self.path("data", part, kind), exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(data, affine), self.path("data", part, kind, name))

    def test_volumes_of_ones_own(self):
        for i in range(3):
            self.write("train", f"{i}.nii.gz", i)
        self.write("val", "0.nii", 9)
        out = train(2, NAME, "--data", self.path("data"), "--classes", 3, "--patch", "8x8x8", "--width", 8, "--lr", 0.01, "--epochs", 5,
                    "--milestones", 3, "--log-dir", self.path("run"))
        self.assertGreater(float(re.findall(r" dice (\S+)", out)[-1]), 0.9)
        self.assertIn("dice/1", "".join(torch.load(self.path("run", "latest"))["history"]["numbers"]))
        found = nibabel.load(self.path("run", "prediction.nii.gz"))
        self.assertEqual(np.diag(found.affine).tolist(), [2, 3, 4, 1])
        truth = nibabel.load(self.path("data", "val", "labels", "0.nii"))
        self.assertGreater(dice_iou(found.get_fdata(), truth.get_fdata(), 2)[0], 0.9)

    def test_bad_files_are_named_once(self):
        def complaint(*flags):
            code, _, err = call(2, NAME, "--data", self.path("data"), "--patch", "8x8x8", "--log-dir", self.path("run"), *flags)
            self.assertEqual(code, 1)
            (line,) = complaints(err)
            return line

        self.assertIn("train/images/*: no volumes", complaint())
        self.write("train", "0.nii.gz", 0)
        self.assertIn("val/images/*: no volumes", complaint())
        self.write("val", "0.nii.gz", 0)
        self.assertRegex(complaint(), r"volume 0: the label of voxel \d+ is 2, expected an integer in \[0, 1\] or 255")
        self.assertIn("patch", complaint("--patch", "32x8x8", "--classes", 3))
        os.truncate(self.path("data", "val", "labels", "0.nii.gz"), 100)
        self.assertIn("val/labels/0.nii.gz is truncated", complaint("--classes", 3))
        os.remove(self.path("data", "train", "labels", "0.nii.gz"))
        self.assertIn("train/labels/0.nii.gz: No such file", complaint("--classes", 3))


class Packages(unittest.TestCase):
    @unittest.skipIf(os.path.exists("/usr/share/mricron/templates"), "mricron-data is installed")
    def test_a_missing_package_is_named(self):
        for data, file in (("brain", "ch2.nii.gz"), ("macaque", "inia19-t1-brain.nii.gz")):
            with self.subTest(data=data):
                code, _, err = call(1, NAME, "--data", data)
                self.assertEqual(code, 1)
                self.assertRegex(err, rf"{file}: No such file or directory; apt install mricron-data brings it")


if __name__ == "__main__":
    skips.main()
