"""Every skip reaches ctest's summary with its name and reason, whatever the test is written in, and hides no failure. A plug-in that was
built and cannot be loaded is no reason to skip."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import skips

BUILD, SOURCE = os.environ["TERN_BUILD"], os.environ["TERN_SOURCE"]
TESTS = os.path.join(SOURCE, "tests")

IN_C = """
#include "check.h"
static int ready(void **state) { (void)state; return 0; }
static void lacks(void **state) { (void)state; skip_test("no moon"); }
static void lacks_a_part(void **state) { (void)state; need_part("moon"); }
static void is_fine(void **state) { (void)state; need_part("sun"); }
static void is_wrong(void **state) { (void)state; fail(); }
int main(int count, char **names)
{
    (void)names;
    const struct CMUnitTest none[] = {cmocka_unit_test(lacks), cmocka_unit_test_setup(lacks_a_part, ready)};
    const struct CMUnitTest some[] = {cmocka_unit_test_setup(is_fine, ready), none[0], none[1]};
    const struct CMUnitTest wrong[] = {none[0], cmocka_unit_test(is_wrong), none[1]};
    if (count == 1) return skip_program("no sky");
    return count == 2   ? cmocka_run_group_tests(none, NULL, NULL)
           : count == 3 ? cmocka_run_group_tests(some, NULL, NULL)
                        : cmocka_run_group_tests(wrong, NULL, NULL);
}
"""
IN_PYTHON = """
import sys, unittest
import skips
class Sky(unittest.TestCase):
    @unittest.skipUnless(skips.has_part("moon"), "no moon")
    def test_moon(self): pass
    def test_stars(self):
        for star in range(2):
            with self.subTest(star=star):
                if star: self.skipTest("no star")
@unittest.skip("no night")
class Night(unittest.TestCase):
    def test_owl(self): pass
class Sun(unittest.TestCase):
    def test_wrong(self): self.fail()
how = sys.argv.pop()
if how == "end": skips.end("no sky")
sys.argv += {"none": ["Night", "Sky.test_moon"], "some": ["Night", "Sky"], "wrong": ["Night", "Sun"]}[how]
skips.main()
"""


class Skips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, text in (("sky.c", IN_C), ("sky.py", IN_PYTHON)):
            with open(os.path.join(cls.folder, name), "w") as file:
                file.write(text)
        with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
            cmocka = next(line.split("=", 1)[1].strip() for line in cache if line.startswith("CMOCKA:"))
        subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-I", TESTS, "-I", os.path.join(SOURCE, "include"),
                        "sky.c", cmocka, "-o", "sky"], cwd=cls.folder, check=True)

    def setUp(self):
        self.file = os.path.join(self.folder, "skips.txt")
        self.around = {**os.environ, "TERN_TEST_NAME": "sky/all", "TERN_TEST_SKIPS": self.file, "TERN_TEST_PARTS": "sun moons", "PYTHONPATH": TESTS}
        for name in ("CI", "TERN_TEST_ALL_SKIPS"):
            self.around.pop(name, None)

    def recorded(self, *command, **around):
        """Returns the exit status and what was recorded."""
        if os.path.exists(self.file):
            os.unlink(self.file)
        status = subprocess.run(command, cwd=self.folder, env={**self.around, **around}, capture_output=True).returncode
        if not os.path.exists(self.file):
            return status, []
        with open(self.file) as file:
            return status, [line.strip() for line in file]

    def test_in_c(self):
        both = ["sky/all: lacks: no moon", "sky/all: lacks_a_part: this build has no moon"]
        self.assertEqual(self.recorded("./sky"), (skips.SKIPPED, ["sky/all: all: no sky"]))
        self.assertEqual(self.recorded("./sky", "none"), (skips.SKIPPED, both))
        self.assertEqual(self.recorded("./sky", "some", "some"), (0, both))
        self.assertEqual(self.recorded("./sky", "some", "are", "wrong"), (1, both))

    def test_in_python(self):
        both = ["sky/all: Night.test_owl: no night", "sky/all: Sky.test_moon: no moon"]
        self.assertEqual(self.recorded(sys.executable, "sky.py", "end"), (skips.SKIPPED, ["sky/all: all: no sky"]))
        self.assertEqual(self.recorded(sys.executable, "sky.py", "none"), (skips.SKIPPED, both))
        self.assertEqual(self.recorded(sys.executable, "sky.py", "some"), (0, [*both, "sky/all: Sky.test_stars (star=1): no star"]))
        self.assertEqual(self.recorded(sys.executable, "sky.py", "wrong"), (1, both[:1]))

    def test_in_sh(self):
        self.assertEqual(self.recorded(os.path.join(TESTS, "skip.sh"), "no sky"), (skips.SKIPPED, ["sky/all: all: no sky"]))

    def test_a_skip_that_cannot_be_recorded_is_a_failure(self):
        for command in (["./sky", "none"], [sys.executable, "sky.py", "none"], [os.path.join(TESTS, "skip.sh"), "no sky"]):
            self.assertEqual(self.recorded(*command, TERN_TEST_SKIPS="/nowhere/skips.txt"), (1, []))

    def test_ctest_prints_them_after_its_summary(self):
        """With the build's own CTestCustom.cmake. CI accepts only reasons that are named."""
        with open(os.path.join(BUILD, "CTestCustom.cmake")) as file:
            custom = file.read().replace(os.path.join(BUILD, "Testing", "skips.txt"), self.file)
        with open(os.path.join(self.folder, "CTestCustom.cmake"), "w") as file:
            file.write(custom)
        with open(os.path.join(self.folder, "CTestTestfile.cmake"), "w") as file:
            for name, args in (("none", "1"), ("some", "1 2"), ("wrong", "1 2 3")):
                file.write(f"add_test({name} ./sky {args})\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT TERN_TEST_NAME={name})\n")
        for only, words in (("none|some", "100% tests passed"), ("wrong", "0% tests passed")):
            done = subprocess.run(["ctest", "-R", only], cwd=self.folder, env=self.around, capture_output=True, text=True)
            self.assertEqual(done.returncode == 0, only != "wrong", done.stdout)
            summary, _, table = done.stdout.partition(" skipped:\n")
            self.assertIn(words, summary)
            expected = [f"  {name}: {what}" for name in only.split("|") for what in ("lacks: no moon", "lacks_a_part: this build has no moon")]
            self.assertEqual(table.splitlines()[:len(expected)], expected, done.stdout)
        done = subprocess.run(["ctest", "-R", "some"], cwd=self.folder, env={**self.around, "CI": "true"}, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CI must not skip", done.stdout)

    def test_a_plug_in_that_was_built_must_work(self):
        """The program looks for plug-ins beside its folder: this copy finds none."""
        os.makedirs(os.path.join(self.folder, "build", "tests"))
        for name in ("image_image", "report_picture", "comm_debug", "data_image_data", "data_volume"):
            copy = shutil.copy(os.path.join(BUILD, "tests", f"test_{name}"), os.path.join(self.folder, "build", "tests"))
            with self.subTest(name):
                status, reasons = self.recorded(copy, TERN_TEST_PARTS="figure gloo nifti png tiff")
                self.assertEqual((status, reasons), (1, []))
                status, reasons = self.recorded(copy, TERN_TEST_PARTS="")
                self.assertIn(status, (0, skips.SKIPPED))
                self.assertGreater(len(reasons), 0)


if __name__ == "__main__":
    skips.main()
