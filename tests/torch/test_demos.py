"""examples/05_basic compared with PyTorch: one process on the rows of all ranks prints the same losses."""
import os
import re
import subprocess
import unittest

import skips

import torch

BUILD = os.environ["TERN_BUILD"]
STEPS, BATCH = 10, 20


def tern_losses(ranks):
    out = subprocess.run([os.path.join(BUILD, "tern"), "run", "-n", str(ranks), os.path.join(BUILD, "examples", "05_basic")], text=True,
                         stdout=subprocess.PIPE, timeout=60, check=True).stdout
    return list(map(float, re.findall(r"^step \d+  loss (\S+)$", out, re.M)))


def rows_of(rank):
    torch.manual_seed(rank)
    return torch.randn(BATCH, 10), torch.randn(BATCH, 5)


def torch_losses(ranks):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, labels = map(torch.cat, zip(*map(rows_of, range(ranks))))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Basic(unittest.TestCase):
    def test_losses(self):
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                got, want = tern_losses(ranks), torch_losses(ranks)
                self.assertEqual(len(got), STEPS)
                for one, other in zip(got, want):
                    self.assertAlmostEqual(one, other, delta=2e-6)


if __name__ == "__main__":
    skips.main()
