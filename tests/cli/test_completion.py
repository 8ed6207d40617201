"""tern completion: the scripts are run in the shells themselves; what they offer is what --help says."""
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest
import fcntl

import job
import skips

COMMANDS = ["run", "new", "inspect", "convert", "tokenize", "generate", "info", "completion", "man"] + [f"bench {name}" for name in ("step", "store", "all_reduce", "barrier")]


def options_of(command):
    """Returns {option: its values} from --help."""
    rows = re.findall(r"^  (?:-\w, |    )--([\w-]+)(?: ([^ \n]+)|\[=([^ \n]+)\])?", job.tern(*command.split(), "--help")[1], re.M)
    return {f"--{name}": (one or other).split("|") if re.search(r"\||^[a-z]", one or other) else [] for name, one, other in rows}


class Scripts(unittest.TestCase):
    def test_shells(self):
        for words, text in (([], "expected bash, zsh or fish"), (["csh"], 'expected bash, zsh or fish, got "csh"'), (["bash", "zsh"], "expected bash, zsh or fish")):
            self.assertEqual(job.tern("completion", *words), (2, "", f"tern completion: {text}\n"))
        for shell in ("bash", "zsh", "fish"):
            code, out, err = job.tern("completion", shell)
            self.assertEqual((code, err), (0, ""))
            if shutil.which(shell):
                done = subprocess.run([shell, "-n", "/dev/stdin"], input=out, text=True, capture_output=True)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


class Completions:
    """What is the same in all shells. A shell's class has offers(line), the words that may follow."""

    def setUp(self):
        if not shutil.which(self.shell):
            self.skipTest(f"{self.shell} is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "inner"))
        open(os.path.join(self.folder, "model.pt"), "w").close()
        self.script = os.path.join(self.folder, "script")
        with open(self.script, "w") as file:
            file.write(job.tern("completion", self.shell)[1])

    def test_commands(self):
        self.assertLessEqual({"run", "new", "inspect", "convert", "tokenize", "generate", "info", "bench", "completion", "man"}, set(self.offers("tern ")))
        self.assertEqual(self.offers("tern ins"), ["inspect"])
        self.assertEqual(self.offers("tern bench st"), ["step", "store"])
        self.assertEqual(self.offers("tern completion "), ["bash", "fish", "zsh"])

    def test_every_option_of_the_help(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                self.assertEqual(self.offers(f"tern {command} --"), sorted(options_of(command)))

    def test_values(self):
        for command in COMMANDS:
            for option, values in options_of(command).items():
                if values and option != "--profile":  # its value may be missing
                    with self.subTest(command=command, option=option):
                        self.assertEqual(self.offers(f"tern {command} {option} "), sorted(values))

    def test_files(self):
        self.assertEqual(self.offers("tern inspect mod"), ["model.pt"])
        self.assertEqual(self.offers("tern inspect --all mod"), ["model.pt"])
        self.assertEqual(self.offers("tern run --secret-file mod"), ["model.pt"])
        self.assertEqual([name.rstrip("/") for name in self.offers("tern run --log-dir in")], ["inner"])
        self.assertEqual(self.offers("tern run --log-dir mod"), [])

    def test_options_behind_values(self):
        self.assertEqual(self.offers("tern bench step --steps 3 --dty"), ["--dtype"])
        self.assertEqual(self.offers("tern run -n 2 --standalone --bi"), ["--bind"])


class Bash(Completions, unittest.TestCase):
    shell = "bash"

    def offers(self, line):
        words = shlex.split(line) + ([""] if line.endswith(" ") else [])
        words = [part for word in words for part in re.split("(=)", word) if part or "=" not in word]  # as readline cuts them
        script = f"source ./script\nCOMP_WORDS=({shlex.join(words)})\nCOMP_CWORD={len(words) - 1}\n_tern\n" \
                 "((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\""
        done = subprocess.run(["bash", "--norc", "-c", script], text=True, capture_output=True, cwd=self.folder)
        self.assertEqual(done.stderr, "")
        return sorted(done.stdout.split())

    def test_equals_signs_and_underscores(self):
        self.assertEqual(self.offers("tern bench step --dtype="), ["bf16", "f16", "f32"])
        self.assertEqual(self.offers("tern bench step --dtype=b"), ["bf16"])
        self.assertEqual(self.offers("tern run --rdzv_backend "), ["c10d", "static"])

    def test_the_programs_own_words_are_not_terns(self):
        self.assertEqual(self.offers("tern run -n 2 ./train --bi"), [])
        self.assertEqual(self.offers("tern run --bind=core ./train --bi"), [])
        self.assertEqual(self.offers("tern run -n 2 cat mod"), ["model.pt"])
        self.assertEqual(self.offers("tern run --tee 3 model"), ["model.pt"])


class Fish(Completions, unittest.TestCase):
    shell = "fish"

    def offers(self, line):
        done = subprocess.run(["fish", "--no-config", "-c", 'source ./script; complete -C "$argv"', line], text=True, capture_output=True, cwd=self.folder,
                              env={**os.environ, "HOME": self.folder})
        self.assertEqual(done.stderr, "")
        return sorted({word.partition("\t")[0].rstrip("=") for word in done.stdout.splitlines()})


class Interactive(unittest.TestCase):
    """A key in a shell at a terminal: the word is completed in place."""

    def complete(self, shell, start, line, want):
        if not shutil.which(shell):
            self.skipTest(f"{shell} is not installed")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "script"), "w") as file:
                file.write(job.tern("completion", shell)[1])
            self.text = ""
            pid, fd = pty.fork()
            if pid == 0:
                os.chdir(folder)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
                os.execvpe(start[0], start, {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "ready$ ", "HOME": folder})
            try:
                self.read_until(fd, "ready$ ")
                os.write(fd, b" autoload -Uz compinit && compinit -u -D; source ./script; echo $((6 * 7))\n" if shell == "zsh"
                         else b" source ./script; echo $((6 * 7))\n")
                self.read_until(fd, "42")
                self.read_until(fd, "ready$ ")
                os.write(fd, line.encode() + b"\t")
                self.read_until(fd, want)
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                os.close(fd)

    def read_until(self, fd, want):
        """Keeps what came behind it for the next time."""
        end = time.monotonic() + job.GIVE_UP
        while want not in self.text:
            self.assertTrue(select.select([fd], [], [], max(0, end - time.monotonic()))[0], f"no {want!r} in {self.text!r}")
            self.text += os.read(fd, 4096).decode(errors="replace")
        self.text = self.text.partition(want)[2]

    def test_bash(self):
        self.complete("bash", ["bash", "--norc", "--noprofile", "-i"], "tern run --bind cor", "--bind core")

    def test_zsh(self):
        for line, want in (("tern insp", "inspect"), ("tern run --bin", "--bind"), ("tern bench st", "bench st"), ("tern bench step --dtype b", "bf16"),
                           ("tern convert --dtype=bf", "bf16")):
            with self.subTest(line=line):
                self.complete("zsh", ["zsh", "-f", "-i"], line, want)


if __name__ == "__main__":
    skips.main()
