"""The GPU column of src/amp/autocast.def compared with the lists of torch.autocast("cuda") in the header of the
newest PyTorch."""
import os
import re
import unittest

import peers
import skips

peers.enter()

import torch  # noqa: E402

HEADER = os.path.join(os.path.dirname(torch.__file__), "include", "ATen", "autocast_mode.h")
# Ops that PyTorch has under another name, or as several ops.
THEIRS = {"cross_entropy": "nll_loss", "bce_with_logits_loss": "binary_cross_entropy_with_logits", "interpolate": "upsample_nearest2d",
          "sum_dims": "sum"}
OWN = {"linear_act", "focal_loss", "dice_loss", "bce_dice_loss", "swiglu", "geglu", "rotary_embedding",
       "linear_cross_entropy",                                    # PyTorch has none of these
       "bce_loss"}                                                # and refuses this one in a region


def table():
    with open(os.path.join(os.environ["TERN_SOURCE"], "src", "amp", "autocast.def")) as rows:
        return re.findall(r"^R\((\w+), *(\w+), *(\w+),", rows.read(), re.M)


def list_of(header, name):
    """The ops of AT_FORALL_<name>."""
    body = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*)", header).group(1)
    return set(re.findall(r"_\((\w+)", body))


class Lists(unittest.TestCase):
    def setUp(self):
        with open(HEADER) as header:
            self.header = header.read()
        self.assertRegex(self.header, r"KERNEL_CUDA", HEADER)

    def test_gpus(self):
        lower = list_of(self.header, "LOWER_PRECISION_FP")
        full = list_of(self.header, "FP32") | list_of(self.header, "FP32_SET_OPT_DTYPE")
        self.assertTrue("exp" in full and "sum" in full and "conv2d" in lower)
        for op, _, cuda in table():
            if op in OWN:
                continue
            name = THEIRS.get(op, op)
            self.assertEqual(cuda == "FULL", name in full, op)
            self.assertEqual(cuda == "LOWER", name in lower, op)


if __name__ == "__main__":
    skips.main()
