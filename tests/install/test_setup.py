"""scripts/setup.sh and scripts/peers.sh, on systems that are told by a made-up os-release and made-up programs in a PATH of their own."""
import os
import shutil
import subprocess
import tempfile
import time
import unittest

import skips

SCRIPTS = os.path.join(os.environ["TERN_SOURCE"], "scripts")
TOOLS = ("sh", "awk", "cat", "cut", "date", "dirname", "env", "grep", "head", "mktemp", "paste", "rm", "sed", "sleep", "sort", "tail", "tr", "wc")
SYSTEMS = {"debian 12": "ID=debian\nVERSION_ID=\"12\"\n", "debian 13": "ID=debian\nVERSION_ID=\"13\"\n",
           "ubuntu 24.04": "ID=ubuntu\nVERSION_ID=\"24.04\"\nID_LIKE=debian\n"}
OTHERS = {"ubuntu 22.04": "ID=ubuntu\nVERSION_ID=\"22.04\"\nID_LIKE=debian\n", "debian 11": "ID=debian\nVERSION_ID=\"11\"\n",
          "fedora 41": "ID=fedora\nVERSION_ID=41\n", "arch": "ID=arch\n"}
FLOORS = ("Debian 12, Debian 13 and Ubuntu 24.04", "CMake 3.25", "gcc 12", "oneDNN 2.6", "libtiff 4.5")


class Setup(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        for tool in TOOLS:
            os.symlink(shutil.which(tool), os.path.join(self.bin, tool))
        self.fake("id", "echo 0")
        self.fake("dpkg-query", "exit 1")  # nothing is installed
        self.fake("apt-get", "")
        self.fake("apt-cache", "printf 'cmake:\\n  Candidate: 3.22.1-1ubuntu1\\nlibtiff-dev:\\n  Candidate: 4.3.0-6\\n'")
        self.system("debian 12")

    def fake(self, name, body):
        """A program that writes down how it was called, with the proxy."""
        path = os.path.join(self.bin, name)
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\necho "{name} $* proxy=${{http_proxy:-}}" >>{self.folder}/calls\n{body}\n')
        os.chmod(path, 0o755)

    def system(self, name):
        self.release = os.path.join(self.folder, "os-release")
        with open(self.release, "w") as file:
            file.write({**SYSTEMS, **OTHERS}[name])

    def call(self, *args, script="setup.sh", **more):
        env = {"PATH": self.bin, "TERN_OS_RELEASE": self.release, "TMPDIR": self.folder, **more}
        return subprocess.run([os.path.join(SCRIPTS, script), *args], env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)

    def calls(self, name):
        if not os.path.exists(os.path.join(self.folder, "calls")):
            return []
        with open(os.path.join(self.folder, "calls")) as file:
            return [line for line in file.read().splitlines() if line.startswith(name + " ")]

    def test_other_systems_are_refused_at_once(self):
        for name in OTHERS:
            for script in ("setup.sh", "demo.sh", "test.sh"):
                with self.subTest(name=name, script=script):
                    self.system(name)
                    began = time.monotonic()
                    done = self.call(script=script)
                    self.assertLess(time.monotonic() - began, 5)
                    self.assertEqual(done.returncode, 1, done.stdout)
                    for text in (name, *FLOORS, "this system offers: cmake 3.22.1-1ubuntu1, libtiff-dev 4.3.0-6.", "libdnnl-dev"):
                        self.assertIn(text, done.stdout)
                    self.assertEqual(self.calls("apt-get"), [])

    def test_no_apt_and_no_release(self):
        os.remove(os.path.join(self.bin, "apt-cache"))
        for missing in (os.path.join(self.bin, "apt-get"), self.release):
            os.remove(missing)
            done = self.call()
            self.assertEqual(done.returncode, 1)
            for text in (*FLOORS, "this system offers: unknown"):
                self.assertIn(text, done.stdout)

    def test_old_programs_in_the_path(self):
        self.fake("cmake", "echo cmake version 3.24.4")
        done = self.call()
        self.assertEqual((done.returncode, self.calls("apt-get")), (1, []))
        self.assertIn("cmake is CMake 3.24.4, which is too old", done.stdout)
        self.fake("cmake", "echo cmake version 3.25.0")
        self.fake("cc", "echo 9.4.0")
        done = self.call()
        self.assertEqual((done.returncode, self.calls("apt-get")), (1, []))
        self.assertIn("cc is gcc 9.4.0, which is too old", done.stdout)
        self.fake("cc", "echo 12.2.0")
        self.assertEqual(self.call().returncode, 0)

    def test_dry_run(self):
        for name in SYSTEMS:
            for kind, package in ((None, "cmake"), ("test", "libcmocka-dev"), ("extras", "gfortran"), ("bench", "mpich")):
                with self.subTest(name=name, kind=kind):
                    self.system(name)
                    self.fake("apt-get", "echo 'Need to get 12.3 MB of archives.'\n"
                                         "echo 'After this operation, 45 MB of additional disk space will be used.'\nexit 1")
                    done = self.call(*filter(None, [kind]), "--dry-run")
                    self.assertEqual(done.returncode, 0, done.stdout)
                    line, sizes = done.stdout.splitlines()[-2:]
                    packages = line.split()[3:]
                    self.assertTrue(line.startswith("setup.sh: would install "))
                    self.assertEqual(sizes, "setup.sh: download 12.3 MB, disk 45 MB")
                    self.assertIn(package, packages)
                    self.assertEqual(len(packages), len(set(packages)))
                    self.assertEqual("python3-torch" in packages, kind in ("test", "bench") and name != "ubuntu 24.04")
        self.assertTrue(all("--assume-no" in call for call in self.calls("apt-get")))

    def test_nothing_is_missing(self):
        self.fake("dpkg-query", "echo install ok installed")
        done = self.call("test")
        self.assertEqual((done.returncode, done.stdout, self.calls("apt-get")), (0, "", []))

    def test_wrong_words(self):
        done = self.call("tests")
        self.assertEqual((done.returncode, self.calls("apt-get")), (1, []))
        self.assertIn('usage: setup.sh [extras|test|bench|torch] [--dry-run], got "tests"', done.stdout)

    def test_without_root(self):
        self.fake("id", "echo 1000")
        done = self.call()
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no sudo: run this as root\nsetup.sh: apt-get install --no-install-recommends gcc", done.stdout)
        self.fake("sudo", "exit 1")
        done = self.call()
        self.assertEqual(done.returncode, 1)
        self.assertIn("sudo wants a password but there is no terminal", done.stdout)
        self.fake("sudo", '[ "$1" != -n ] || shift\n[ "$1" = true ] || exec env -u http_proxy "$@"')  # sudo keeps no proxy
        done = self.call(http_proxy="http://someone:secret@cache:3128")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("through the proxy http://cache:3128", done.stdout)
        self.assertNotIn("secret", done.stdout)
        for call in self.calls("apt-get"):
            if "--assume-no" not in call:
                self.assertIn("proxy=http://someone:secret@cache:3128", call)

    def test_no_network(self):
        unreached = "E: Failed to fetch http://deb.debian.org/x  Temporary failure resolving 'deb.debian.org'"
        for body in (f'echo "{unreached}"; exit 100', f'case "$*" in *update*) echo "{unreached}";; *) echo "E: Unable to locate package gcc";; esac; exit 100',
                     f'case "$*" in *update*) exit 0;; esac; echo "{unreached}"; exit 100'):
            with self.subTest(body=body):
                self.fake("apt-get", body)
                done = self.call()
                self.assertEqual(done.returncode, 1)
                self.assertIn("the package servers cannot be reached: is there a network?", done.stdout)
        self.assertIn("cannot be reached through the proxy http://cache:1:", self.call(http_proxy="http://cache:1").stdout)

    def test_another_failure_is_shown(self):
        self.fake("apt-get", 'case "$*" in *update*) exit 0;; esac; echo "E: Unable to locate package gcc"; exit 100')
        done = self.call()
        self.assertEqual(done.returncode, 1)
        self.assertIn("E: Unable to locate package gcc\npackages: failed after", done.stdout)
        self.assertNotIn("network", done.stdout)

    def test_signs_of_life(self):
        """apt-get is silent for a while: no ten seconds without a line."""
        self.fake("apt-get", 'case "$*" in *-y*) echo "Unpacking gcc"; sleep 12;; esac')
        env = {"PATH": self.bin, "TERN_OS_RELEASE": self.release, "TMPDIR": self.folder}
        began, lines = time.monotonic(), []
        with subprocess.Popen([os.path.join(SCRIPTS, "setup.sh")], env=env, text=True, stdout=subprocess.PIPE) as process:
            for line in process.stdout:
                lines.append((time.monotonic() - began, line))
        self.assertEqual(process.returncode, 0)
        times = [0, *(at for at, _ in lines), time.monotonic() - began]
        self.assertLess(max(after - before for before, after in zip(times, times[1:])), 10)
        self.assertTrue(any("Unpacking gcc" in line for _, line in lines))
        self.assertRegex(lines[-1][1], r"^packages: done in \d+ s\n$")

    def test_an_unfinished_environment_is_completed(self):
        """Without python3-venv `python3 -m venv` leaves an environment that has no pip."""
        peers = os.path.join(self.folder, "peers")
        python = os.path.join(peers, "bin", "python")
        os.makedirs(os.path.dirname(python))
        os.symlink("/bin/false", python)
        self.fake("true", "")
        self.fake("python3", f"ln -sf {self.bin}/true {python}")
        os.symlink(shutil.which("ln"), os.path.join(self.bin, "ln"))
        for _ in range(2):  # the second finds it complete
            done = self.call(script="peers.sh", TERN_PEERS=peers)
            self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(len(self.calls("python3")), 1)
        self.assertIn("-m venv " + peers, self.calls("python3")[0])


if __name__ == "__main__":
    skips.main()
