"""Packages that are installed after the first build: `make` configures again and finds them; `make extras` installs them."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import skips

SOURCE = os.environ["TERN_SOURCE"]


class Extras(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_make_configures_every_time(self):
        """With programs that write down how they were called in the place of cmake and the shell script."""
        tree, build = os.path.join(self.folder, "tern"), os.path.join(self.folder, "build")
        os.makedirs(os.path.join(tree, "scripts"))
        os.mkdir(build)
        shutil.copy(os.path.join(SOURCE, "Makefile"), tree)
        for path in ("cmake", os.path.join("tern", "scripts", "setup.sh")):
            with open(os.path.join(self.folder, path), "w") as file:
                file.write(f'#!/bin/sh\necho "$(basename "$0") $*" >>{self.folder}/calls\n')
            os.chmod(os.path.join(self.folder, path), 0o755)

        def calls(*goals):
            subprocess.run(["make", "-s", "-j2", f"BUILD={build}", *goals], cwd=tree, check=True, timeout=60, stdout=subprocess.DEVNULL,
                           env={**os.environ, "MAKEFLAGS": "", "PATH": self.folder + ":" + os.environ["PATH"]})
            with open(os.path.join(self.folder, "calls")) as file:
                lines = file.read().splitlines()
            os.remove(os.path.join(self.folder, "calls"))
            return lines

        configure, compile = f"cmake -S . -B {build}", f"cmake --build {build}"
        self.assertEqual(calls(), [configure + " -DBUILD_TESTING=OFF", compile])
        with open(os.path.join(build, "CMakeCache.txt"), "w"):
            pass
        self.assertEqual(calls(), [configure, compile])
        self.assertEqual(calls("extras"), ["setup.sh extras", configure, compile])

    @unittest.skipUnless(shutil.which("gfortran") and shutil.which("pkg-config"), "no gfortran")
    def test_what_was_missing_is_found(self):
        """The first time there is no Fortran compiler and no MPI. A compiler that was not found is in CMake's cache."""
        paths = subprocess.run(["pkg-config", "--variable", "pc_path", "pkg-config"], check=True, text=True, capture_output=True).stdout
        hidden = os.path.join(self.folder, "pkgconfig")
        os.mkdir(hidden)
        for path in filter(os.path.isdir, paths.strip().split(":")):
            for name in os.listdir(path):
                if not re.match(r"(ompi|mpich|mpi)", name) and not os.path.lexists(os.path.join(hidden, name)):
                    os.symlink(os.path.join(path, name), os.path.join(hidden, name))

        def rows(*options, **env):
            done = subprocess.run(["cmake", "-S", SOURCE, "-B", os.path.join(self.folder, "build"), *options], text=True, check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, env={**os.environ, **env})
            return dict(re.findall(r"^--   (Open MPI|MPICH|Fortran) +(.*)$", done.stdout, re.M))

        before = rows("-DBUILD_TESTING=OFF", "-DCMAKE_Fortran_COMPILER=NOTFOUND", PKG_CONFIG_LIBDIR=hidden)
        self.assertEqual((before["Open MPI"], before["MPICH"]), ("no", "no"))
        after = rows()
        self.assertNotEqual(after["Fortran"], "no")
        for name, module in (("Open MPI", "ompi-c"), ("MPICH", "mpich")):
            if not subprocess.run(["pkg-config", "--exists", module]).returncode:
                self.assertNotEqual(after[name], "no")


if __name__ == "__main__":
    skips.main()
