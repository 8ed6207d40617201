"""train_segmentation on a small task: its scores equal PyTorch's with its checkpoint, alone and on 2 ranks."""
import glob
import json
import os
import re

import numpy as np
import torch
from PIL import Image
from torchvision.models.segmentation.fcn import FCNHead

import events
import skips
from light_deeplab import light_deeplab
from training import Folder, call, complaints, train

NAME = "train_segmentation"
COLOURS = np.array([[20, 30, 90], [60, 110, 40], [150, 20, 20], [220, 220, 230]])  # ocean, land, lake, ice
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
SIDE = 40


def write_maps(folder, split, count, side=SIDE, ids=(0, 1, 2, 3)):
    """Writes images with noisy blocks of four colours, and label maps with these ids, in Cityscapes' layout."""
    random = np.random.default_rng(len(split))
    for i in range(count):
        city = f"city{i % 2}"
        labels = random.integers(0, 4, (side // 8 + 1, side // 8 + 1)).repeat(8, 0).repeat(8, 1)[:side, :side]
        picture = COLOURS[labels] + random.integers(-20, 20, (side, side, 3))
        for kind, ending, array in (("leftImg8bit", "leftImg8bit", picture.clip(0, 255)), ("gtFine", "gtFine_labelIds", np.array(ids)[labels])):
            place = os.path.join(folder, kind, split, city)
            os.makedirs(place, exist_ok=True)
            Image.fromarray(array.astype(np.uint8)).save(os.path.join(place, f"{city}_{i:06}_000000_{ending}.png"))


def load(folder, split):
    """Returns the images and maps in the program's order."""
    found = []
    for city in sorted(os.listdir(os.path.join(folder, "gtFine", split))):
        for name in sorted(os.listdir(os.path.join(folder, "gtFine", split, city))):
            picture = name.replace("gtFine_labelIds", "leftImg8bit")
            found.append((np.array(Image.open(os.path.join(folder, "leftImg8bit", split, city, picture))),
                          np.array(Image.open(os.path.join(folder, "gtFine", split, city, name)))))
    return found


def ious(path, samples, second=False):
    """Returns the IoU of every class by PyTorch with the weights in the file; optionally by the auxiliary classifier on the last but one stage."""
    net = light_deeplab([16, 32, 64, 64], [1, 2, 1, 1], [(1, 1), (1, 1), (1, 2), (2, 4)], [6, 12, 18], 64, 4)
    weights = torch.load(path)
    if any(name.startswith("aux_classifier.") for name in weights):
        net.aux_classifier = FCNHead(64, 4)
    net.load_state_dict(weights, strict=True)
    net.eval()
    if second:
        net.backbone.layer4, net.classifier = torch.nn.Identity(), net.aux_classifier
    net.aux_classifier = None
    pairs = torch.zeros(4, 4, dtype=torch.int64)
    for picture, labels in samples:
        x = (torch.tensor(picture).float() / 255 - MEAN) / DEVIATION
        with torch.no_grad():
            best = net(x.permute(2, 0, 1)[None])["out"].argmax(1)[0]
        pairs += torch.bincount(torch.tensor(labels).long().flatten() * 4 + best.flatten(), minlength=16).view(4, 4)
    both = pairs.diag()
    return both / (pairs.sum(0) + pairs.sum(1) - both)


class Segmentation(Folder):
    FLAGS = ("--data", "task", "--crop", 33, "--repeat", 6, "--scale-max", 1.2, "--lr", 0.05, "--warm-up", 0, "--threads", 1, "--log-dir", "run",
             "--schedule", "milestones")

    def setUp(self):
        super().setUp()
        for split, count in (("train", 4), ("val", 5)):
            write_maps(self.path("task"), split, count)

    def told(self, out, epoch):
        (line,) = re.findall(rf"^epoch {epoch}/.*$", out, re.M)
        return {name: float(value) for name, value in re.findall(r"(\w+) (\d\.\d+)", line)}

    def agree(self, out, epoch):
        """PyTorch's rounding may change the class of one pixel in 8000."""
        want = ious(self.path("run", "last.pth"), load(self.path("task"), "val"))
        told = self.told(out, epoch)
        for name, value in zip(("ocean", "land", "lake", "ice"), want):
            self.assertAlmostEqual(told[name], float(value), delta=2e-3)
        self.assertAlmostEqual(told["mIoU"], float(want.mean()), delta=2e-3)
        return told["mIoU"]

    def evaluations(self):
        """Returns the names of the curves and images in TensorBoard's group "Evaluation"."""
        (path,) = glob.glob(self.path("run", "events*"))
        return {tag.split("/", 1)[1] for tag, *_ in events.values(path) if tag.startswith("Evaluation/")}

    def test_two_ranks_and_resume(self):
        flags = self.FLAGS + ("-b", 2, "--opt-level", "O0", "--balance", 0.3)
        out = train(2, NAME, *flags, "--epochs", 6, cwd=self.folder)
        self.assertGreater(self.agree(out, 6), 0.6)
        self.assertEqual(self.evaluations(), {"mIoU", "examples", *(f"iou/{name}" for name in ("ocean", "land", "lake", "ice"))})
        with Image.open(self.path("run", f"{NAME}.png")) as figure:
            self.assertGreater(figure.size[0], 300)
        out = train(2, NAME, *flags, "--epochs", 7, "--resume", "latest", cwd=self.folder)
        self.agree(out, 7)
        self.assertNotIn("epoch 6/", out)

    def test_auxiliary_loss(self):
        """The auxiliary classifier, which only its own loss trains, has learned too; the evaluation uses the main one."""
        flags = self.FLAGS + ("-b", 2, "--opt-level", "O0", "--uniform=off", "--aux", 0.5)
        out = train(2, NAME, *flags, "--epochs", 6, cwd=self.folder)
        path, samples = self.path("run", "last.pth"), load(self.path("task"), "val")
        self.assertGreater(self.agree(out, 6), 0.6)
        self.assertGreater(float(ious(path, samples, second=True).mean()), 0.5)
        out = train(2, NAME, *flags, "--epochs", 7, "--resume", "latest", cwd=self.folder)
        self.agree(out, 7)

    def test_statistics_of_an_evaluation(self):
        """Those of --update-bn batches, whatever number of steps; without it, of all steps."""
        flags = self.FLAGS + ("-b", 2, "--opt-level", "O0", "--epochs", 1)
        for given, batches in ((("--update-bn", 3), 3), (("--update-bn", 100), 6), (("--update-bn", 0), 6)):
            train(2, NAME, *flags, *given, cwd=self.folder)
            self.assertEqual(int(torch.load(self.path("run", "last.pth"))["backbone.bn1.num_batches_tracked"]), batches)

    def test_milestones_choose_their_schedule(self):
        for given, schedule in ((("--milestones", "1"), "milestones"), (("--milestones", "1", "--schedule", "cosine"), "cosine"), ((), "cosine")):
            train(1, NAME, *self.FLAGS[:-2], "-b", 4, "--max-steps", 1, *given, cwd=self.folder)
            with open(self.path("run", "run.json")) as file:
                self.assertEqual(json.load(file)["flags"]["schedule"], schedule)

    def test_alone_in_bf16(self):
        out = train(1, NAME, *self.FLAGS, "-b", 4, "--uniform=off", "--epochs", 6, cwd=self.folder)
        self.assertGreater(self.told(out, 6)["mIoU"], 0.6)

    def test_streets(self):
        """Road, sidewalk, sky and ignored pixels, with Cityscapes' 34 ids."""
        for split in ("train", "val"):
            write_maps(self.path("streets"), split, 4, ids=(7, 8, 23, 0))
        out = train(2, NAME, "--dataset", "cityscapes", "--data", "streets", "--arch", "resnet18", "--crop", 33, "--repeat", 1, "--uniform=off",
                    "--balance", 0, "-b", 2, "--epochs", 1, "--threads", 1, "--log-dir", "run", cwd=self.folder)
        self.assertIn("DeepLabV3, ResNet-18", out)
        self.assertEqual(set(self.told(out, 1)) & {"mIoU", "road"}, {"mIoU"})
        self.assertLessEqual({"mIoU", "iou/road", "iou/traffic light"}, self.evaluations())
        self.assertEqual(torch.load(self.path("run", "last.pth"))["classifier.4.weight"].shape, (19, 256, 1, 1))

    def said(self, *flags):
        code, out, err = call(1, NAME, *flags, cwd=self.folder)
        self.assertEqual((code, out), (1, ""))
        (line,) = complaints(err)
        return line

    def test_what_cannot_be(self):
        self.assertIn("nowhere/leftImg8bit/train", self.said("--data", "nowhere"))
        self.assertIn("build/examples/blue_marble blue_marble makes it", self.said())
        self.assertIn("no pixel of a class in gtFine/train of task: expected the labels of --dataset cityscapes",
                      self.said("--data", "task", "--dataset", "cityscapes", "--crop", 33))
        self.assertIn("output_stride is 3", self.said("--data", "task", "--crop", 33, "--output-stride", 3))
        Image.fromarray(np.full((SIDE, SIDE), 4, np.uint8)).save(
            self.path("task", "gtFine", "train", "city0", "city0_000000_000000_gtFine_labelIds.png"))
        self.assertIn("city0_000000_000000_gtFine_labelIds.png", self.said("--data", "task", "--crop", 33, "--balance", 0.3))


if __name__ == "__main__":
    skips.main()
