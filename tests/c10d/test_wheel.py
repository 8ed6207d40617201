"""A wheel of torch_tern in another environment: it works without the sources, and says what is missing or of another release."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import extension

extension.enter()
import skips
import torch

for module in ("pip", "setuptools"):
    if not importlib.util.find_spec(module):
        skips.end(f"{sys.executable} has no {module}")
BUILD = os.path.abspath(extension.BUILD)
IMPORT = "" if hasattr(torch, "_import_device_backends") else "import torch_tern"  # `import torch` does it from torch 2.5 on
PROGRAM = f"""
import sys, torch, torch.distributed as dist
{IMPORT}
dist.init_process_group("tern", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
tensor = torch.full((3,), 1.0 + dist.get_rank())
dist.all_reduce(tensor)
print(tensor.tolist(), sys.modules["torch_tern"].__file__)
dist.destroy_process_group()
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Makes the wheel of what c10d/build has built, and installs it into an environment that only sees the same torch."""
        cls.folder = pathlib.Path(tempfile.mkdtemp()).resolve()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD")}
        cls.env["PYTHONDONTWRITEBYTECODE"] = "1"
        checkout, library, venv = cls.folder / "checkout", cls.folder / "library", cls.folder / "venv"
        shutil.copytree(extension.SOURCE, checkout / "python", ignore=shutil.ignore_patterns("build", "*.egg-info"))
        (checkout / "include").symlink_to(os.path.abspath(os.path.join(extension.SOURCE, "../include")))
        shutil.copytree(extension.LIBRARY, library)
        (checkout / "python/setup.cfg").write_text(f"[build]\nbuild_lib = {library}\n[bdist_wheel]\nskip_build = true\n")  # not compiled again
        pip, options = [sys.executable, "-m", "pip", "--disable-pip-version-check"], ["--no-deps", "--no-index"]
        subprocess.run([*pip, "wheel", *options, "--no-build-isolation", "--wheel-dir", cls.folder, checkout / "python"],
                       env={**cls.env, "TERN_BUILD": BUILD}, check=True)
        shutil.rmtree(checkout)
        shutil.rmtree(library)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        cls.python = venv / "bin/python"
        cls.site = venv / f"lib/python3.{sys.version_info.minor}/site-packages"
        (cls.site / "torch.pth").write_text(os.path.dirname(torch.__path__[0]))
        subprocess.run([*pip, "--python", cls.python, "install", "--ignore-installed", "--no-compile", *options, *cls.folder.glob("*.whl")], env=cls.env, check=True)

    def start(self, meeting, rank, env):
        return subprocess.Popen([self.python, "-W", "ignore", "-c", PROGRAM, meeting, str(rank)], cwd=self.folder, env={**self.env, **env},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def check_works(self, **env):
        with tempfile.TemporaryDirectory() as folder:
            for rank in [self.start(os.path.join(folder, "meeting"), rank, env) for rank in range(2)]:
                printed = rank.communicate(timeout=200)[0]
                self.assertEqual(rank.returncode, 0, printed)
                self.assertIn(f"[3.0, 3.0, 3.0] {self.site}/torch_tern/", printed)

    def refusal(self):
        rank = self.start("nobody comes here", 0, {})
        printed = rank.communicate(timeout=200)[0]
        self.assertNotEqual(rank.returncode, 0, printed)
        return printed

    def change(self, name, pattern, replacement):
        """Changes an installed file until the test ends."""
        [path] = self.site.glob(f"torch_tern/{name}")
        before = path.read_bytes()
        after = re.sub(pattern, replacement, before)
        self.assertNotEqual(before, after)
        self.addCleanup(path.write_bytes, before)
        path.write_bytes(after)

    def test_works(self):
        self.check_works()

    def test_tern_is_missing(self):
        """The folder of libtern that the extension names is gone."""
        self.change("_C*.so", re.escape(BUILD.encode()) + rb"(?=[\0:])", b"/" + b"x" * (len(BUILD) - 1))
        printed = self.refusal()
        for words in ("libtern.so.0: cannot open", f"neither in LD_LIBRARY_PATH nor in {BUILD}"):
            self.assertIn(words, printed)
        self.check_works(LD_LIBRARY_PATH=BUILD)

    def test_other_torch(self):
        self.change("built_with.py", rb"= '[^']*'", b"= '9.8.7'")
        self.assertIn(f"torch_tern was built for torch 9.8.7, but here is torch {torch.__version__}", self.refusal())

    def test_other_tern(self):
        self.change("built_with.py", rb"(= '[^']*', )'([^']*)'", rb"\1'9.8.7'")
        self.assertRegex(self.refusal(), r"torch_tern was built for tern 9\.8\.7, but here is tern \d+\.\d+\.\d+")


if __name__ == "__main__":
    skips.main()
