"""The commands of docs/tutorial.md, cluster.md and edge.md, as they stand there, beside an installed tern."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from PIL import Image

import document
import skips
from install import headers

TUTORIAL, CLUSTER, EDGE, README = (document.read(name) for name in ("docs/tutorial.md", "docs/cluster.md", "docs/edge.md", "README.md"))


def commands(page, first):
    """Returns the indented block that has the line, without its indentation, prompts and output."""
    block = next(block for block in re.findall(r"(?:^    .*\n)+", page, re.M) if first in block)
    return "".join(line[4:] + "\n" for line in block.splitlines())


class Pages(unittest.TestCase):
    """HOME is an empty folder with tern installed in .local, as the pages say."""

    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.home)
        prefix = os.path.join(cls.home, ".local")
        headers.call("cmake", "--install", headers.BUILD, "--prefix", prefix)
        lib = os.path.join(prefix, headers.cached("CMAKE_INSTALL_LIBDIR"))
        cls.env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "TERN_PLUGIN_PATH")}
        cls.env.update(HOME=cls.home, PATH=f"{prefix}/bin:{os.environ['PATH']}", PKG_CONFIG_PATH=f"{lib}/pkgconfig", LD_LIBRARY_PATH=lib,
                       OMP_NUM_THREADS="1", CFLAGS=" ".join(headers.sanitizer()))

    def run_shell(self, text, folder=None, **more):
        return headers.call("sh", "-e", "-c", text, cwd=folder or self.home, env={**self.env, **more})

    def test_tutorial(self):
        self.run_shell(commands(TUTORIAL, "tern new irises"))
        folder = os.path.join(self.home, "irises")
        session = commands(TUTORIAL, "$ tern run")
        lines = self.run_shell(session.splitlines()[0][2:], folder).splitlines()
        said = session.splitlines()[1:]
        self.assertTrue(document.same(lines[0], said[0]), lines[0])
        self.assertTrue(document.same(lines[-1], said[-1]), lines[-1])
        self.assertIn("tern run -n 2 build/irises 100", TUTORIAL)
        self.assertIn("epoch 100", self.run_shell("tern run -n 2 build/irises 100", folder).splitlines()[-1])
        self.assertIn("tern inspect run/best.pth", TUTORIAL)
        self.assertIn("0.weight", self.run_shell("tern inspect run/best.pth", folder))
        clean = {name: value for name, value in self.env.items() if name != "PYTHONPATH"}
        if subprocess.run([sys.executable, "-c", "import torch.nn"], env=clean, capture_output=True, timeout=120).returncode == 0:
            headers.call(sys.executable, "-c", "import torch\n" + commands(TUTORIAL, "net.load_state_dict"), cwd=folder, env=clean)

    def test_a_tutorial_of_pictures(self):
        """The page's data.c and layers, on shapes: 60 + 30 pictures."""
        self.run_shell("tern new shapes")
        folder = os.path.join(self.home, "shapes")
        reader, layers = (next(text for _, text in document.blocks(TUTORIAL) if mark in text) for mark in ("tern_image_folder_open", "tern_conv2d_new"))
        with open(os.path.join(folder, "data.c"), "w") as file:
            file.write(reader)
        with open(os.path.join(folder, "main.c")) as file:
            text = file.read()
        text, count = re.subn(r"( +tern_sequential_add\(.*\n)+", lambda _: layers, text)
        self.assertEqual((count, text.count('"data.csv"')), (1, 1))
        with open(os.path.join(folder, "main.c"), "w") as file:
            file.write(text.replace('"data.csv"', '"pictures"'))
        random = np.random.default_rng(0)
        for i in range(90):
            picture = random.integers(0, 60, (36, 40, 3), np.uint8)
            for place in random.integers(0, 28, 6):
                picture[place:place + 4] |= np.uint8(128 * (i % 3 == 0))
                picture[:, place:place + 4] |= np.uint8(128 * (i % 3 == 1))
            parent = os.path.join(folder, "pictures", "test" if i >= 60 else "train", ("rows", "columns", "nothing")[i % 3])
            os.makedirs(parent, exist_ok=True)
            Image.fromarray(picture).save(os.path.join(parent, f"{i}.png"))
        self.run_shell("cmake -B build -DCMAKE_PREFIX_PATH=$HOME/.local -DCMAKE_C_FLAGS=\"$CFLAGS -Wall -Wextra -Werror\" && cmake --build build", folder)
        lines = self.run_shell("tern run -n 2 build/shapes 10", folder).splitlines()
        self.assertEqual(lines[0], "60 + 30 pictures of 3 classes")
        self.assertGreater(max(float(line.split()[-2]) for line in lines if line.startswith("epoch")), 90)
        self.assertIn("classes: ['columns', 'nothing', 'rows']", self.run_shell("tern inspect run/best.pth", folder))

    def test_a_list_of_hosts(self):
        """ssh is a script here, which makes each name a host of its own."""
        loop = next(text for language, text in document.blocks(CLUSTER) if "ssh -n" in text)
        with open(os.path.join(self.home, "train.c"), "w") as file:
            file.write(document.programs(README)["train.c"])
        self.run_shell("cc $CFLAGS train.c -o train $(pkg-config --cflags --libs tern)")
        tools = os.path.join(self.home, "tools")
        os.makedirs(tools)
        with open(os.path.join(tools, "ssh"), "w") as file:
            file.write('#!/bin/sh\n[ "$1" = -n ] || exit 2\nexport TERN_HOST_ID=$2\nexec sh -c "$3"\n')
        os.chmod(os.path.join(tools, "ssh"), 0o755)
        with open(os.path.join(self.home, "hosts"), "w") as file:
            file.write("localhost\nlocalhost.\n")
        self.assertEqual(loop.count("-n 8"), 1)
        out = self.run_shell(loop.replace("-n 8", "-n 1"), PATH=f"{tools}:{self.env['PATH']}")
        alone = self.run_shell("tern run -n 2 ./train")
        self.assertEqual(re.findall(r"^step .*", out, re.M), re.findall(r"^step .*", alone, re.M))
        self.assertEqual(len(re.findall(r"^step .*", out, re.M)), 3)

    def test_a_static_program(self):
        line = commands(EDGE, "pkg-config --static").splitlines()[1]
        if not os.path.exists(os.path.join(self.env["LD_LIBRARY_PATH"], "libtern.a")):
            self.skipTest("this build has no libtern.a (TERN_STATIC)")
        folder = os.path.join(self.home, "edge")
        os.makedirs(folder)
        with open(os.path.join(folder, "train.c"), "w") as file:
            file.write(document.programs(README)["train.c"])
        self.run_shell(line.replace("cc ", "cc $CFLAGS "), folder)
        self.assertIn("step 300", self.run_shell("./train", folder, LD_LIBRARY_PATH=""))


if __name__ == "__main__":
    skips.main()
