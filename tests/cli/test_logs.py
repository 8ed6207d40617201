"""tern run: which output of the ranks is saved and shown, and the report on a failure."""
import json
import os
import pty
import re
import resource
import signal
import subprocess
import tempfile

import job
import skips
from folder import InFolder

BOTH = "print('out', rank, flush=True)\nprint('err', rank, file=sys.stderr, flush=True)\n"


class Case(InFolder):
    def run_in(self, ranks, code, *options, **popen):
        return job.tern("run", "-n", str(ranks), *options, *job.python(code), cwd=self.folder, **popen)

    def saved(self):
        """Returns the files of the only run: {"attempt_0/1/stdout.log": text}."""
        runs = os.listdir(os.path.join(self.folder, "logs"))
        self.assertEqual(len(runs), 1)
        self.run_name = runs[0]
        top = os.path.join(self.folder, "logs", runs[0])
        paths = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
        return {os.path.relpath(path, top): job.read(path) for path in paths}


class Files(Case):
    def test_redirects(self):
        code, out, err = self.run_in(3, BOTH, "--log-dir", "logs", "--rdzv-id", "job7", "--redirects", "0:3,1:1")
        files = self.saved()
        self.assertRegex(self.run_name, r"^job7_\w{6}$")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["[2] out 2"]))
        self.assertEqual(sorted(err.splitlines()), ["[1] err 1", "[2] err 2", f"tern run: logs in logs/{self.run_name}"])
        self.assertEqual(files, {"attempt_0/0/stdout.log": "out 0\n", "attempt_0/0/stderr.log": "err 0\n", "attempt_0/1/stdout.log": "out 1\n"})

    def test_tee_with_torchruns_prefix(self):
        code, out, err = self.run_in(2, BOTH + "os.write(1, b'no end')\n", "--log-dir=logs/", "-t3", "--role", "trainer")
        files = self.saved()
        self.assertEqual(code, 0)
        self.assertEqual(sorted(out.splitlines()), [f"[trainer{rank}]:{text}" for rank in (0, 1) for text in ("no end", f"out {rank}")])
        self.assertEqual(sorted(err.splitlines())[:2], ["[trainer0]:err 0", "[trainer1]:err 1"])
        self.assertEqual(files, {f"attempt_0/{rank}/{name}.log": text % rank for rank in (0, 1)
                                 for name, text in (("stdout", "out %d\nno end"), ("stderr", "err %d\n"))})

    def test_prefix_of_ones_own(self):
        out = self.run_in(2, BOTH, "--log-line-prefix-template", "${hostname}/${role_name}/${rank}/${local_rank}/${other} $rank ")[1]
        host = os.uname().nodename
        self.assertEqual(sorted(out.splitlines()), [f"{host}/default/{rank}/{rank}/${{other}} $rank out {rank}" for rank in (0, 1)])

    def test_filter_is_for_the_console_only(self):
        code, out, err = self.run_in(3, BOTH, "--log-dir", "logs", "--tee", "1", "--local_ranks_filter", "0,2")
        self.assertEqual((code, sorted(out.splitlines())), (0, ["[default0]:out 0", "[default2]:out 2"]))
        self.assertEqual(sorted(err.splitlines())[:2], ["[2] err 2", "err 0"])
        self.assertEqual({name: text for name, text in self.saved().items() if "/1/" in name}, {"attempt_0/1/stdout.log": "out 1\n"})
        out = self.run_in(2, BOTH, "--local-ranks-filter", "1")
        self.assertEqual(out, (0, "[1] out 1\n", "[1] err 1\n"))

    def test_bytes_are_saved_as_they_are(self):
        code = "os.write(1, b'a\\0b\\xff\\r\\n' * 5000 + b'x' * 20000)"
        self.assertEqual(self.run_in(2, code, "--log-dir", "logs", "-t", "1:1", stdout=subprocess.DEVNULL)[0], 0)
        path = os.path.join(self.folder, "logs", os.listdir(os.path.join(self.folder, "logs"))[0], "attempt_0/1/stdout.log")
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"a\0b\xff\r\n" * 5000 + b"x" * 20000)

    def test_each_attempt_has_its_own(self):
        code = "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nprint('attempt', attempt)\nif attempt < 2: sys.exit(3)\n"
        self.assertEqual(self.run_in(1, code, "--log-dir", "logs", "-r", "1", "--max-restarts", "4")[0], 0)
        self.assertEqual(self.saved(), {f"attempt_{attempt}/0/stdout.log": f"attempt {attempt}\n" for attempt in range(3)})

    def test_temporary_folder_is_said_and_only_made_for_something(self):
        before = set(os.listdir(self.folder))
        env = {**os.environ, "TMPDIR": self.folder}
        self.assertEqual(self.run_in(2, BOTH, env=env)[0], 0)
        self.assertEqual(set(os.listdir(self.folder)), before, "nothing is saved")
        err = self.run_in(1, BOTH, "-r", "2", env=env)[2]
        folder = re.search(r"tern run: logs in (.*)\n", err)[1]
        self.assertTrue(folder.startswith(self.folder))
        self.assertEqual(job.read(os.path.join(folder, "attempt_0/0/stderr.log")), "err 0\n")

    def test_folder_that_cannot_be_made(self):
        open(os.path.join(self.folder, "logs"), "w").close()
        code, out, err = self.run_in(1, BOTH, "--log-dir", "logs/x")
        self.assertEqual((code, out), (1, ""))
        self.assertIn('cannot make the folder "logs/x"', err)

    def test_full_disk_ends_a_log_and_not_the_job(self):
        """On a file system of 64 KB in a mount namespace."""
        code = "for i in range(4000 * rank): print('line %060d' % i)\n"
        script = ("mount -t tmpfs -o size=64k none logs && exec \"$@\"")
        os.mkdir(os.path.join(self.folder, "logs"))
        command = ["unshare", "--mount", "sh", "-c", script, "sh", job.TERN, "run", "-n", "2", "--log-dir", "logs", "-t", "1:1", *job.python(code)]
        if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
            self.skipTest("no mount namespaces here")
        done = subprocess.run(command, cwd=self.folder, text=True, capture_output=True, timeout=job.GIVE_UP)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("stdout.log of local rank 1 ends here because it cannot be written: No space left on device"), 1)
        self.assertEqual(len([line for line in done.stdout.splitlines() if line.startswith("[default1]:")]), 4000)

    def test_limit_on_the_size_of_files_ends_a_log_and_not_the_job(self):
        """A file size limit does not kill the launcher; for the ranks it works as for any program."""
        code = "for i in range(4000 * rank): print('line %060d' % i)\nif rank == 0: print(signal.SIGXFSZ in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        returned, out, err = self.run_in(2, code, "--log-dir", "logs", "-t", "1:1", preexec_fn=limit)
        self.assertEqual(returned, 0, err)
        self.assertEqual(err.count("stdout.log of local rank 1 ends here because it cannot be written: File too large"), 1)
        self.assertEqual(len([line for line in out.splitlines() if line.startswith("[default1]:")]), 4000)
        self.assertIn("False", out.splitlines())


class ErrorFile(Case):
    RECORD = """
import json
path = os.environ['TORCHELASTIC_ERROR_FILE']
if rank == 1:
    with open(path, 'w') as file: file.write(%s)
    sys.exit(1)
"""

    def failed(self, text, *options):
        code, _, err = self.run_in(2, self.RECORD % text, *options)
        self.assertEqual(code, 1)
        return re.findall(r"^  error     : (.*)$", err, re.M)

    def test_message_is_in_the_report(self):
        record = "json.dumps({'message': {'message': 'ValueError: 7 is odd\\nline 2', 'extraInfo': {'py_callstack': 'x', 'timestamp': '1'}}})"
        for options in ((), ("--log-dir", "logs")):
            self.assertEqual(self.failed(record, *options), ["ValueError: 7 is odd"])
        self.assertEqual(json.loads(self.saved()["attempt_0/1/error.json"])["message"]["extraInfo"]["timestamp"], "1")
        self.assertEqual(self.failed("json.dumps({'message': 'in short'})"), ["in short"])

    def test_torchs_record_writes_it(self):
        # Without PyTorch `import torch` finds the folder tests/torch.
        if subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"], capture_output=True).returncode:
            self.skipTest("/usr/bin/python3 has no PyTorch")
        code = ("from torch.distributed.elastic.multiprocessing.errors import record\n@record\ndef main(): raise KeyError('lost')\nmain()\n")
        done = job.tern("run", "-n", "1", "/usr/bin/python3", "-c", code, timeout=60)
        self.assertEqual(done[0], 1)
        self.assertIn("  error     : KeyError: 'lost'\n", done[2])
        self.assertIn("  | KeyError: 'lost'\n", done[2])

    def test_nonsense_is_no_message(self):
        for text in ("''", "'{'", "'[1]'", "json.dumps({'message': 3})", "json.dumps({'message': {'message': [1]}})", "'x' * 3000000"):
            self.assertEqual(self.failed(text), [], text)

    def test_control_characters_do_not_reach_the_terminal(self):
        self.assertEqual(self.failed("json.dumps({'message': 'a\\x1b[31mb\\x07'})"), ["a?[31mb?"])


class Report(Case):
    def test_block(self):
        code = "if rank: print(*('line %d' % i for i in range(20)), sep='\\n', file=sys.stderr); sys.exit(3)\ntime.sleep(60)"
        code, _, err = self.run_in(2, code)
        self.assertEqual(code, 3)
        block = err[err.index("=" * 72):]
        self.assertRegex(block, "".join((
            r"^={72}\npython3\S* FAILED\n-{72}\nRoot cause \(first failure\):\n",
            r"  time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\.\d{9}\n  host      : %s\n" % os.uname().nodename,
            r"  rank      : 1 \(local rank 1\)\n  exitcode  : 3 \(pid \d+\)\n  last lines:\n",
            *(f"  \\| line {i}\n" for i in range(10, 20)), "={72}\n$")))

    def test_last_lines_of_rank_0_and_of_a_log(self):
        for options in ((), ("-r", "2", "--log-dir", "logs"), ("-t", "2", "--log-dir", "logs"), ("--local-ranks-filter", "5")):
            err = self.run_in(1, "os.write(2, b'one\\ntwo\\nthree'); sys.exit(1)", *options)[2]
            self.assertIn("  last lines:\n  | one\n  | two\n  | three\n=", err, options)

    def test_rank_0_keeps_the_order_of_both_in_one_file(self):
        code = "for i in range(500): os.write(1 + i % 2, b'%d\\n' % i)\nos.write(1, b'no end')"
        with tempfile.TemporaryFile("w+") as both:
            self.assertEqual(self.run_in(1, code, stdout=both, stderr=both)[0], 0)
            both.seek(0)
            self.assertEqual(both.read(), "".join(f"{i}\n" for i in range(500)) + "no end")

    def test_rank_0_has_its_terminal(self):
        own, terminal = pty.openpty()
        code = self.run_in(1, "os.write(2, b'tty %d' % os.isatty(2)); sys.exit(5)", stderr=terminal, stdout=subprocess.DEVNULL)[0]
        os.close(terminal)
        text = os.read(own, 65536).decode()
        os.close(own)
        self.assertEqual(code, 5)
        self.assertIn("tty 1", text)
        self.assertNotIn("last lines", text)

    def test_order_is_the_kernels(self):
        """Six ranks die while the launcher is stopped, so it finds all of them dead at once."""
        run = job.Job(self.folder, 6, job.python(job.Job.READY + "time.sleep(60)"))
        self.addCleanup(run.__exit__)
        pids = run.pids()
        os.kill(run.launcher.pid, signal.SIGSTOP)
        order = (4, 1, 5, 0, 3, 2)
        for rank in order:
            os.kill(pids[rank], signal.SIGKILL if rank != 4 else signal.SIGTERM)
            job.until(lambda: not job.is_alive(pids[rank]), "dead")
        os.kill(run.launcher.pid, signal.SIGCONT)
        code, _, err = run.end()
        self.assertEqual(code, 143)
        self.assertEqual([int(rank) for rank in re.findall(r"(?m)^  rank (\d) \(pid", err)], list(order[1:]))
        self.assertIn("rank      : 4 (local rank 4)", err)

    def test_crash_loop_ends_and_names_each_attempts_first(self):
        code = "attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nif rank == attempt % 2: sys.exit(10 + attempt)\ntime.sleep(60)"
        code, _, err = self.run_in(2, code, "--max-restarts", "2", "--grace", "0.2")
        self.assertEqual(code, 12)
        self.assertRegex(err, r"Attempts before this one:\n  0: rank 0 \(pid \d+\) exited with code 10\n  1: rank 1 \(pid \d+\) exited with code 11\n=")
        self.assertRegex(err, r"rank      : 0 \(local rank 0\)\n  exitcode  : 12")


class Restarts(Case):
    def test_environment_of_an_attempt(self):
        names = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "MASTER_PORT", "TERN_SECRET")
        code = "print(*(os.environ[name] for name in %r), flush=True)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(1)\n" % (names,)
        code, out, err = self.run_in(1, code, "--max-restarts", "3")
        first, second = (line.split() for line in out.splitlines())
        self.assertEqual((code, first[:2], second[:2], first[2]), (0, ["0", "3"], ["1", "3"], second[2]))
        self.assertNotEqual(first[3], second[3], "a stale rank is a stranger")
        self.assertNotIn("FAILED", err)

    def test_signal_and_missing_program_are_no_reason(self):
        code, _, err = job.tern("run", "--max-restarts", "3", "no-such-program")
        self.assertEqual((code, err), (127, 'tern run: cannot run "no-such-program": No such file or directory\n'))
        run = job.Job(self.folder, 2, job.python(job.Job.READY + "time.sleep(60)"), ["--max-restarts", "3"])
        self.addCleanup(run.__exit__)
        run.pids()
        run.launcher.terminate()
        self.assertEqual(run.end()[0], 143)

    def test_signal_in_a_crash_loop_ends_it(self):
        """A signal may arrive while ranks run, between two attempts, or while output is passed on."""
        for after in range(1, 13):
            run = job.Job(self.folder, 1, ["sh", "-c", "echo x >&2; exit 4"], ["--max-restarts", "100000"])
            self.addCleanup(run.__exit__)
            seen = 0
            while seen < after:
                seen += "exited with code 4" in run.launcher.stderr.readline()
            run.launcher.terminate()
            self.assertIn(run.end()[0], (4, 143))

    def test_signal_while_the_last_attempts_output_is_not_read(self):
        code = "with open('attempts', 'a') as file: file.write('x')\n" + job.Job.READY + "os.write(2, (b'y' * 99 + b'\\n') * 4000)\nsys.exit(4)\n"
        run = job.Job(self.folder, 1, job.python(code), ["--max-restarts", "5"])
        self.addCleanup(run.__exit__)
        pid = run.pids()[0]
        job.until(lambda: not job.is_alive(pid), "the first attempt failed")
        job.until(lambda: not os.path.exists(f"/proc/{pid}"), "and was seen")
        run.launcher.terminate()
        self.assertEqual(run.launcher.wait(job.GIVE_UP), 4)
        self.assertEqual(job.read(os.path.join(self.folder, "attempts")), "x")

    def test_what_a_failed_rank_leaves_behind_is_ended(self):
        """The orphan has a session of its own and ignores all signals that can be ignored; after a successful job it survives."""
        behind = "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'trap \"\" HUP TERM INT; while :; do sleep 1; done'], start_new_session=True)\n" \
                 "print(child.pid, flush=True)\nos._exit(%d)\n"
        for exit_code in (3, 0):
            with tempfile.TemporaryFile("w+") as out:
                self.assertEqual(self.run_in(1, behind % exit_code, stdout=out)[0], exit_code)
                out.seek(0)
                pid = int(out.read())
            if exit_code:
                self.assertFalse(job.is_alive(pid))
            else:
                self.assertTrue(job.is_alive(pid))
                os.killpg(pid, signal.SIGKILL)

    def test_children_from_before_are_not_the_ranks(self):
        script = "sleep 60 & echo $!; exec \"$@\""
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(["sh", "-c", script, "sh", job.TERN, "run", "sh", "-c", "exit 3"], stdout=out, stderr=subprocess.DEVNULL, timeout=job.GIVE_UP)
            out.seek(0)
            pid = int(out.read())
        self.assertEqual(done.returncode, 3)
        self.assertTrue(job.is_alive(pid))
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    skips.main()
