"""tern man: the pages are formatted without a warning, and say what --help says."""
import os
import re
import shutil
import subprocess
import unittest

import job
import skips

COMMANDS = ["run", "inspect", "convert", "info", "bench", "completion", "man"]


def formatted(page, columns=200):
    """Returns the page as text, and groff's warnings."""
    command = ["groff", "-man", "-Tascii", "-ww", "-P-c", f"-rLL={columns}n"]
    done = subprocess.run(command, input=page, text=True, capture_output=True)
    return re.sub(".\x08", "", done.stdout), done.stderr


@unittest.skipUnless(shutil.which("groff"), "groff is not installed")
class Pages(unittest.TestCase):
    def test_no_warnings(self):
        for words in ([], *([name] for name in COMMANDS)):
            for columns in (60, 80, 200):
                with self.subTest(words=words, columns=columns):
                    code, page, err = job.tern("man", *words)
                    self.assertEqual((code, err), (0, ""))
                    text, warnings = formatted(page, columns)
                    self.assertEqual(warnings, "")
                    self.assertIn("-".join(["tern", *words]).upper() + "(1)", text)

    @unittest.skipUnless(shutil.which("man"), "man is not installed")
    def test_man_has_no_warnings(self):
        for name in COMMANDS:
            done = subprocess.run(["man", "--warnings=w", "-l", "-"], input=job.tern("man", name)[1], text=True, capture_output=True,
                                  env={**os.environ, "MANWIDTH": "80", "MANPAGER": "cat"})
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_everything_of_the_help(self):
        """Every word of a command's help, in its order."""
        for name in ("run", "inspect", "convert", "info", "completion", "man", "bench step", "bench store"):
            with self.subTest(name=name):
                text = " ".join(formatted(job.tern("man", name.split()[0])[1], 2000)[0].split())
                help = job.tern(*name.split(), "--help")[1].partition("\n\n")[2].partition("\nRefused")[0]
                for row in re.split(r"\n(?=  (?:-\w, |    )--)|\n\n", help):
                    about = re.sub(r"^ *(-\w, +)?--[\w-]+(\[=\S+| [^ \n]+)?", "", row)
                    self.assertIn(" ".join(about.split()), text)

    def test_menus(self):
        text = formatted(job.tern("man")[1])[0]
        for name in COMMANDS:
            self.assertIn(f"tern-{name}(1)", text)
        self.assertIn("tern bench step [OPTIONS]", formatted(job.tern("man", "bench")[1])[0])

    def test_what_is_refused(self):
        for words in (["fly"], ["run", "x"]):
            code, out, err = job.tern("man", *words)
            self.assertEqual((code, out, err), (2, "", f'tern man: expected one of tern\'s commands, got "{words[-1]}"\n'))


if __name__ == "__main__":
    skips.main()
