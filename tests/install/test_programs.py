"""make install, and programs outside the tree that use the installed library: C99 with pkg-config, C++17 with
find_package."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import skips
from docs import document
from headers import BUILD, SOURCE, cached, call, sanitizer
from mpi import mpirun

HERE = os.path.dirname(os.path.abspath(__file__))


def installed(folder):
    """Returns the files below a prefix."""
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder) for name in names)


def setUpModule():
    """Installs tern and moves it: no file below the prefix may contain the old path."""
    folder = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, folder)
    call("cmake", "--install", BUILD, "--prefix", os.path.join(folder, "first"))
    Prefix.prefix = os.path.join(folder, "moved")
    os.rename(os.path.join(folder, "first"), Prefix.prefix)


class Prefix(unittest.TestCase):
    """Tests of what is installed, each class with a folder for its own files."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.lib = os.path.join(cls.prefix, cached("CMAKE_INSTALL_LIBDIR"))
        cls.env = {**os.environ, "PKG_CONFIG_PATH": os.path.join(cls.lib, "pkgconfig"), "OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "TERN_PLUGIN_PATH"):
            cls.env.pop(name, None)

    def check_training(self, output):
        lines = output.splitlines()
        self.assertEqual(lines[0], f"tern {cached('CMAKE_PROJECT_VERSION')}")
        losses = [float(loss) for loss in re.findall(r"^loss (\d+\.\d{6})$", output, re.M)]
        self.assertEqual(len(losses), 8)
        self.assertEqual(losses, sorted(set(losses), reverse=True))


class PkgConfig(Prefix):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = os.path.join(cls.folder, "train")
        flags = call("pkg-config", "--cflags", "--libs", "tern", env=cls.env).split()
        call("gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", *sanitizer(), os.path.join(HERE, "train.c"), "-o", cls.program,
             *flags)
        cls.running = {**cls.env, "LD_LIBRARY_PATH": cls.lib}

    def test_version(self):
        self.assertEqual(call("pkg-config", "--modversion", "tern", env=self.env).strip(), cached("CMAKE_PROJECT_VERSION"))

    def test_static(self):
        """Linked with libtern.a, a program needs no file of tern; it finds the plug-ins where TERN_PLUGIN_PATH says."""
        if not os.path.exists(os.path.join(self.lib, "libtern.a")):
            self.skipTest("this build has no libtern.a (TERN_STATIC)")
        program = os.path.join(self.folder, "static")
        flags = call("pkg-config", "--static", "--cflags", "--libs", "tern", env=self.env).replace("-ltern", "-l:libtern.a").split()
        call("gcc", "-std=c99", *sanitizer(), os.path.join(HERE, "train.c"), "-o", program, *flags)
        alone = {name: value for name, value in self.env.items() if name != "LD_LIBRARY_PATH"}
        self.assertNotIn("libtern", call("ldd", program, env=alone))
        self.check_training(call(program, env=alone))

    def test_examples(self):
        """They are built where they were installed."""
        doc = os.path.join(self.prefix, cached("CMAKE_INSTALL_DATADIR") or "share", "doc", "tern", "examples")
        build = os.path.join(self.folder, "examples")
        call("cmake", "-S", doc, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_FLAGS={' '.join(sanitizer())}", env=self.env)
        call("cmake", "--build", build, "--target", "05_basic", "train_classifier")
        call(os.path.join(self.prefix, "bin", "tern"), "run", "-n", "2", os.path.join(build, "examples", "05_basic"), env=self.running)

    def test_alone(self):
        self.check_training(call(self.program, env=self.running))

    def test_two_ranks_and_a_plug_in(self):
        """The installed command starts the ranks, and the installed library finds its plug-in."""
        picture = os.path.join(self.folder, "grid.png")
        command = [os.path.join(self.prefix, "bin", "tern"), "run", "-n", "2", self.program]
        has_figures = os.path.exists(os.path.join(BUILD, "tern_figure.so"))
        self.check_training(call(*command, *([picture] if has_figures else []), env=self.running))
        if has_figures:
            with open(picture, "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")

    def test_mpirun(self):
        """The mpirun of either MPI starts ranks without further settings, since the plug-ins are installed,
        too."""
        for mpi, launcher in mpirun.LAUNCHERS.items():
            if shutil.which(launcher[0]) and os.path.exists(os.path.join(BUILD, f"tern_{mpi}.so")):
                with self.subTest(mpi):
                    if mpirun.is_deaf(mpi):
                        self.skipTest(mpirun.DEAF.format(mpirun.TEXTS[mpi]))
                    self.check_training(call(*launcher, "-n", "2", self.program, env=self.running))

    def test_a_library_that_is_loaded_again(self):
        """A program may unload and reload a shared library that trains: the meeting point belongs to the
        process."""
        library, program = (os.path.join(self.folder, name) for name in ("libtrain.so", "again"))
        flags = call("pkg-config", "--cflags", "--libs", "tern", env=self.env).split()
        call("gcc", "-shared", "-fPIC", "-Dmain=train", *sanitizer(), os.path.join(HERE, "train.c"), "-o", library, *flags)
        call("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", *sanitizer(), os.path.join(HERE, "again.c"), "-o", program)
        output = call(os.path.join(self.prefix, "bin", "tern"), "run", "-n", "2", program, library, env=self.running)
        self.assertEqual(output.count(f"tern {cached('CMAKE_PROJECT_VERSION')}\n"), 3)

    def test_without_the_plug_in(self):
        os.rename(os.path.join(self.lib, "tern"), os.path.join(self.lib, "hidden"))
        self.addCleanup(os.rename, os.path.join(self.lib, "hidden"), os.path.join(self.lib, "tern"))
        done = subprocess.run([self.program, os.path.join(self.folder, "no.png")], env=self.running, text=True, capture_output=True,
                              timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the plug-in tern_figure.so cannot be loaded", done.stderr)


class Documents(Prefix):
    def test_links_lead_to_what_is_installed(self):
        doc = os.path.join(self.prefix, cached("CMAKE_INSTALL_DATADIR") or "share", "doc", "tern")
        pages = [os.path.join(doc, name) for name in installed(doc) if name.endswith(".md") and not name.startswith("examples")]
        self.assertIn(os.path.join(doc, "docs", "tutorial.md"), pages)
        headers = set()
        for page in pages:
            with open(page) as file:
                links = document.links(file.read())
            for target in (os.path.normpath(os.path.join(os.path.dirname(page), target)) for target, _ in links if target):
                self.assertTrue(os.path.exists(target), f"{page}: {target}")
                headers.add(os.path.relpath(target, self.prefix))
        self.assertIn("include/tern/schedule.h", headers)


class Fortran(Prefix):
    def test_the_module_is_installed(self):
        if not shutil.which("gfortran"):
            self.skipTest("no gfortran")
        call("gfortran", "-std=f2018", "-fsyntax-only", "-J", self.folder, os.path.join(self.prefix, "include", "tern.f90"))


class FindPackage(Prefix):
    def configure(self, wanted):
        build = os.path.join(self.folder, f"build-{wanted}")
        command = ["cmake", "-S", os.path.join(HERE, "cmake"), "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DWANTED={wanted}",
                   f"-DCMAKE_CXX_FLAGS={' '.join(sanitizer())}"]
        return build, subprocess.run(command, text=True, capture_output=True, timeout=120)

    def test_builds_and_trains(self):
        build, done = self.configure("0.1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        call("cmake", "--build", build)
        output = call(os.path.join(build, "train"), env=self.env)
        self.check_training(output)
        self.assertIn('caught linear "0": weight is (16, 4) but input is (32, 1)', output)

    def test_another_version_is_refused(self):
        for wanted in ("0.2", "1.0"):
            done = self.configure(wanted)[1]
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"version: {cached('CMAKE_PROJECT_VERSION')}", done.stderr)


class Subdirectory(unittest.TestCase):
    def test_the_same_target(self):
        """add_subdirectory, which FetchContent uses, provides tern::tern, too, and builds neither tests nor
        examples."""
        with tempfile.TemporaryDirectory() as folder:
            call("cmake", "-S", os.path.join(HERE, "cmake"), "-B", folder, f"-DTERN_SOURCE={SOURCE}")
            targets = call("cmake", "--build", folder, "--target", "help")
        self.assertIn("tern_cli", targets)
        self.assertNotIn("test_base", targets)
        self.assertNotIn("04_mlp", targets)


class Make(unittest.TestCase):
    def test_a_user_builds_no_tests(self):
        """A warning of a newer compiler does not fail the build either."""
        with tempfile.TemporaryDirectory() as folder:
            call("make", "-C", SOURCE, f"BUILD={folder}", "configure")
            with open(os.path.join(folder, "CMakeCache.txt")) as cache:
                lines = cache.read().splitlines()
            self.assertFalse(os.path.exists(os.path.join(folder, "tests")))
            # A build folder that has another generator keeps it.
            call("make", "-C", SOURCE, f"BUILD={folder}", "configure", env={**os.environ, "CMAKE_GENERATOR": "Unix Makefiles"})
        generators = [line.split("=")[1] for line in lines if line.startswith("CMAKE_GENERATOR:")]
        self.assertEqual(generators, ["Ninja" if shutil.which("ninja") else "Unix Makefiles"])
        self.assertIn("BUILD_TESTING:BOOL=OFF", lines)
        self.assertIn("TERN_WERROR:BOOL=OFF", lines)

    def jobs(self, *options, ninja=False, **more):
        """Returns the -j that cmake --build gets, the -j that the make inside it sees, and whether make
        warns."""
        with tempfile.TemporaryDirectory() as folder:
            if ninja:
                open(os.path.join(folder, "build.ninja"), "w").close()
            with open(os.path.join(folder, "CMakeCache.txt"), "w"), open(os.path.join(folder, "cmake"), "w") as fake:
                fake.write('#!/bin/sh\n[ "$1" = --build ] || exit 0\necho "given $*"\nprintf \'all:\\n\\t@echo "seen $(MAKEFLAGS)"\' | make -f -\n')
            os.chmod(os.path.join(folder, "cmake"), 0o755)
            env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
            said = call("make", "-C", SOURCE, f"BUILD={folder}", *options, env={**env, "PATH": f"{folder}:{os.environ['PATH']}", **more})
        given, seen = (" ".join(re.findall(r"(?<!\S)-j ?\d*", line)) for line in re.findall(r"^(?:given|seen) .*$", said, re.M))
        return given, seen, "warning" in said

    def test_jobs(self):
        """The build uses all cores, unless the user gives a number: then make's job server limits it."""
        self.assertEqual(self.jobs()[0], f"-j {call('nproc').strip()}")
        for asked in self.jobs("-j3"), self.jobs("-k", "--jobs=3"), self.jobs(MAKEFLAGS="-j3"):
            self.assertEqual(asked, ("", "-j3", False))
        for ninja in self.jobs("-j3", ninja=True), self.jobs("-k", "--jobs=3", ninja=True):
            self.assertEqual(ninja, ("-j3", "-j3", False), "Ninja has no part in make's job server")
        self.assertEqual(self.jobs(ninja=True)[0], self.jobs()[0])

    def test_install(self):
        """make install accepts PREFIX and DESTDIR, also with blanks, and installs the same files as cmake
        --install."""
        with tempfile.TemporaryDirectory() as folder:
            call("cmake", "--install", BUILD, "--prefix", os.path.join(folder, "cmake"))
            call("make", "-C", SOURCE, f"BUILD={BUILD}", f"PREFIX={folder}/a b", "install")
            call("make", "-C", SOURCE, f"BUILD={BUILD}", "PREFIX=/opt/tern", f"DESTDIR={folder}/the stage", "install")
            files = installed(os.path.join(folder, "cmake"))
            self.assertEqual(installed(os.path.join(folder, "a b")), files)
            self.assertEqual(installed(os.path.join(folder, "the stage", "opt", "tern")), files)
        for wanted in (r"bin/tern", r"include/tern\.h", r"include/tern/base\.h", r"include/tern\.f90", r"lib.*/libtern\.so\.0", r"lib.*/pkgconfig/tern\.pc",
                       r"lib.*/cmake/tern/ternConfig\.cmake", r"share/man/man1/tern\.1", r"share/man/man1/tern-run\.1",
                       r"share/bash-completion/completions/tern", r"share/zsh/site-functions/_tern", r"share/fish/vendor_completions\.d/tern\.fish"):
            self.assertTrue(any(re.fullmatch(wanted, name) for name in files), wanted)


if __name__ == "__main__":
    skips.main()
