"""tern run: how the ranks' output is passed on, under real load and on a real terminal."""
import fcntl
import os
import pty
import re
import resource
import select
import struct
import tempfile
import termios
import time
import unittest

import job
import skips


class Lines(unittest.TestCase):
    def test_rank0_passes_as_it_is(self):
        code, out, err = job.tern("run", "-n", "1", "printf", r"a\t50%%\n\001no end")
        self.assertEqual((code, out, err), (0, "a\t50%\n\001no end", ""))

    def test_prefix_stream_and_unfinished_last_line(self):
        code, out, err = job.tern("run", "-n", "2", "sh", "-c", 'test $RANK = 0 || { printf "a\\n\\nb"; printf "e\\nf" >&2; }')
        self.assertEqual((code, out, err), (0, "[1] a\n[1] \n[1] b\n", "[1] e\n[1] f\n"))

    def test_lines_written_in_pieces_stay_whole(self):
        code = """
for i in range(1000 if rank else 0):
    for piece in (b'<%d ' % rank, b'x' * 40, b' %d>' % i, b'\\n'): os.write(1, piece)
"""
        with tempfile.TemporaryFile("w+") as both:
            self.assertEqual(job.tern("run", "-n", "4", *job.python(code), stdout=both, stderr=both)[0], 0)
            both.seek(0)
            text = both.read()
        for rank in (1, 2, 3):
            self.assertEqual(job.lines_of(rank, text), [f"<{rank} {'x' * 40} {i}>" for i in range(1000)])

    def test_lines_do_not_mix_with_rank0_on_a_pipe(self):
        code = "for i in range(3000): os.write(1, b'%d' % rank * 90 + b'\\n')"
        out = job.tern("run", "-n", "3", *job.python(code))[1]
        self.assertEqual({line for line in out.splitlines()}, {"0" * 90, "[1] " + "1" * 90, "[2] " + "2" * 90})
        self.assertEqual(len(out.splitlines()), 9000)

    def test_a_long_line_is_whole(self):
        for length in (8191, 8192, 8193, 16384, 100000, (1 << 20) - 1):
            code = f"if rank: os.write(1, b'x\\n' + b'y' * {length} + b'\\nz')"
            code, out, err = job.tern("run", "-n", "2", *job.python(code))
            self.assertEqual((code, job.lines_of(1, out), err), (0, ["x", "y" * length, "z"], ""), length)

    def test_a_very_long_line_comes_in_pieces_of_whole_characters(self):
        text = "a" + "\u00e4\u6f22\U0001f600" * 300000
        code = "if rank: sys.stdout.reconfigure(encoding='utf-8'); print('a' + '\\u00e4\\u6f22\\U0001f600' * 300000)"
        code, out, err = job.tern("run", "-n", "2", *job.python(code), encoding="utf-8")
        pieces = job.lines_of(1, out)
        self.assertEqual((code, "".join(pieces), len(pieces)), (0, text, 3))
        self.assertGreater(min(len(piece.encode()) for piece in pieces[:-1]), (1 << 20) - 4)
        self.assertEqual(err, "tern run: a line of more than 1048576 bytes on stdout of local rank 1 is shown in pieces\n")
        code = "if rank: os.write(1, b'\\xff\\x80' * 600000)"  # no UTF-8
        code, out, _ = job.tern("run", "-n", "2", *job.python(code), encoding="latin-1")
        self.assertEqual((code, "".join(job.lines_of(1, out))), (0, "\xff\x80" * 600000))

    def test_progress_bar_of_rank_0_is_seen_as_it_moves(self):
        """Each state comes before the next is written; another rank's line begins on a line of its own."""
        code = """
def step(name, text, fd=2):
    os.write(fd, text)
    end = time.monotonic() + 25
    while not os.path.exists(name) and time.monotonic() < end: time.sleep(0.005)
if rank == 0: step('one', b'\\r 10%|#'); step('two', b'\\r 20%|##'); step('three', b'\\r 30%|###'); os.write(2, b'\\r100%|####\\ndone\\n')
if rank == 1:
    while not os.path.exists('two'): time.sleep(0.005)
    os.write(2, b'other\\n')
"""
        for options, prefix, other in (["--tee", "3"], "[default0]:", "[default1]:"), ([], "", "[1] "):
            with tempfile.TemporaryDirectory() as folder, job.Job(folder, 2, job.python(code), options) as run:
                if options:
                    self.assertIn("logs in", run.launcher.stderr.readline())
                seen = ""

                def read_until(*texts):
                    nonlocal seen
                    while not all(text in seen for text in texts):
                        self.assertTrue(select.select([run.launcher.stderr], [], [], job.GIVE_UP)[0], seen)
                        seen += os.read(run.launcher.stderr.fileno(), 4096).decode()
                for name, texts in (("one", (f"\r{prefix} 10%|#",)), ("two", (f"\r{prefix} 20%|##",)), ("three", (f"\r{prefix} 30%|###", f"\n{other}other\n"))):
                    read_until(*texts)
                    open(os.path.join(folder, name), "w").close()
                read_until("done\n")
                self.assertEqual(run.launcher.wait(job.GIVE_UP), 0)
                self.assertTrue(seen.endswith(f"\r{prefix}100%|####\n{prefix}done\n"), seen)

    def test_a_line_begins_behind_no_unfinished_one(self):
        """In a pipe: behind a bar, or an unfinished line, of a rank 0 that has ended. Where nothing follows, nothing is added."""
        for text in (r"\r 50%%|#####", "no end", r"whole\nno end", r"a\rb"):
            script = f'test $RANK = 1 && exec sleep 60; printf "{text}" >&2; exit 3'
            code, _, err = job.tern("run", "-n", "2", "sh", "-c", script)
            written = text.replace("%%", "%").replace(r"\n", "\n").replace(r"\r", "\n")  # text mode
            self.assertEqual(code, 3)
            self.assertRegex(err, "^" + re.escape(written) + r"\ntern run: rank 0 \(pid \d+\) exited with code 3\n")
            self.assertEqual(job.tern("run", "-n", "2", "sh", "-c", f'test $RANK = 1 || printf "{text}" >&2')[2], written)

    def test_lines_of_others_begin_behind_no_unfinished_one(self):
        script = 'if test $RANK = 0; then printf "\\r 50%%|#####" >&2; else sleep 0.5; echo other >&2; fi'
        self.assertEqual(job.tern("run", "-n", "2", "sh", "-c", script), (0, "", "\n 50%|#####\n[1] other\n"))

    def test_stdin_is_rank0s(self):
        with tempfile.TemporaryFile() as file:
            file.write(b"typed\n")
            file.seek(0)
            self.assertEqual(job.tern("run", "-n", "2", "cat", stdin=file), (0, "typed\n", ""))


class Floods(unittest.TestCase):
    def test_100_mb_on_stderr_loses_nothing(self):
        code = """
if rank == 0: sys.exit(0)
block = (b'y' * 99 + b'\\n') * 10000
for i in range(100): sys.stderr.buffer.write(block)
sys.stderr.buffer.write(b'the last line'); sys.stderr.flush(); os._exit(4)
"""
        with tempfile.TemporaryFile("w+") as err:
            self.assertEqual(job.tern("run", "-n", "2", *job.python(code), stderr=err)[0], 4)
            err.seek(0)
            full, tail = 0, []
            for line in err:
                full += line == "[1] " + "y" * 99 + "\n"
                tail = (tail + [line])[-30:]
        self.assertEqual(full, 1000000)
        last = tail.index("[1] the last line\n")
        self.assertRegex(tail[last + 1], r"^tern run: rank 1 \(pid \d+\) exited with code 4\n$")
        self.assertEqual([line for line in tail[last + 2:] if line.startswith("  | ")], 9 * ["  | " + "y" * 99 + "\n"] + ["  | the last line\n"])

    def test_reader_that_does_not_read_holds_nobody_alive(self):
        code = job.Job.READY + """
if rank == 2: time.sleep(0.2); os._exit(3)
while rank == 1: os.write(2, b'z' * 63 + b'\\n')
time.sleep(60)
"""
        with tempfile.TemporaryDirectory() as folder, job.Job(folder, 3, job.python(code)) as run:
            pids = run.pids()
            job.until(lambda: not any(map(job.is_alive, pids)), "all ranks dead while nobody reads")
            code, _, err = run.end()
        self.assertEqual(code, 3)
        self.assertEqual(job.named_failure(err), (2, "exited with code 3"))
        self.assertEqual({line for line in err.splitlines() if line.startswith("[1]")}, {"[1] " + "z" * 63})

    def test_reader_that_went_away_is_sigpipe_for_the_writer(self):
        code = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile rank: os.write(1, b'gone\\n' * 1000)\n"
        with tempfile.TemporaryDirectory() as folder, job.Job(folder, 2, job.python(code)) as run:
            run.launcher.stdout.readline()
            run.launcher.stdout.close()
            err = run.launcher.stderr.read()
            self.assertEqual(run.launcher.wait(job.GIVE_UP), 128 + 13)
        self.assertEqual(job.named_failure(err), (1, "was killed by signal 13 (SIGPIPE)"))

    def test_full_disk_costs_lines_and_not_the_job(self):
        code = "for i in range(1000 * rank): print('line', i, flush=True)\nprint('end', file=sys.stderr)\n"
        with open("/dev/full", "w") as full:
            returned, _, err = job.tern("run", "-n", "2", *job.python(code), stdout=full)
            self.assertEqual(job.tern("run", "-n", "2", *job.python(code), stdout=full, stderr=full)[0], 0)
        self.assertEqual((returned, err.count("end\n")), (0, 2), err)
        self.assertEqual(err.count("output of the ranks is lost because it cannot be written: No space left on device"), 1)

    def test_limit_on_the_size_of_files_costs_lines_and_not_the_job(self):
        code = "for i in range(4000 * rank): print('line %060d' % i, flush=True)\nprint('end', file=sys.stderr)\n"
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        with tempfile.TemporaryFile("w") as file:
            returned, _, err = job.tern("run", "-n", "2", *job.python(code), stdout=file, preexec_fn=limit)
        self.assertEqual((returned, err.count("end\n")), (0, 2), err)
        self.assertEqual(err.count("output of the ranks is lost because it cannot be written: File too large"), 1)

    def test_last_lines_come_before_the_name_of_the_dead(self):
        """This also holds if nobody reads yet, so that the lines are still in the rank's pipe when it dies. The pipe
        and the launcher's buffer hold 200 kB."""
        code = job.Job.READY + """
if rank == 0: sys.exit(0)
os.set_blocking(2, False)
count, stuck = 0, time.monotonic() + 0.3
while count < 3100 or time.monotonic() < stuck:
    try: os.write(2, b'%060d\\n' % count)
    except BlockingIOError: time.sleep(0.01)
    else: count, stuck = count + 1, time.monotonic() + 0.3
os._exit(4)
"""
        with tempfile.TemporaryDirectory() as folder, job.Job(folder, 2, job.python(code)) as run:
            pids = run.pids()
            job.until(lambda: not any(map(job.is_alive, pids)), "both dead")
            code, _, err = run.end()
        lines = err.splitlines()
        named = next(i for i, line in enumerate(lines) if not line.startswith("[1] "))
        self.assertEqual((code, job.named_failure(lines[named])), (4, (1, "exited with code 4")))
        self.assertEqual(lines[:named], [f"[1] {i:060d}" for i in range(named)])
        self.assertEqual([line for line in lines if line.startswith("  | ")], [f"  | {i:060d}" for i in range(named - 10, named)])
        self.assertGreater(len(err), 200000)

    def test_process_left_behind_does_not_hold_the_job(self):
        for left_behind in ("sleep 60 & echo $!", "yes & echo $!; sleep 0.1"):
            out = job.tern("run", "-n", "2", "sh", "-c", "test $RANK = 0 || { %s; }" % left_behind)[1]
            pid = next(line for line in job.lines_of(1, out) if line != "y")
            if left_behind.startswith("yes"):
                job.until(lambda: not job.is_alive(int(pid)), "yes met the closed pipe")
            else:
                os.kill(int(pid), 9)

    def test_silent_job_costs_no_processor_time(self):
        with tempfile.TemporaryDirectory() as folder:
            with job.Job(folder, 2, job.python(job.Job.READY + "time.sleep(60)")) as run:
                run.pids()

                def ticks():
                    return sum(map(int, job.read(f"/proc/{run.launcher.pid}/stat").rpartition(")")[2].split()[11:13]))
                before = ticks()
                time.sleep(0.5)
                self.assertLessEqual(ticks() - before, 1)


class Terminal(unittest.TestCase):
    def read_all(self, fd, seconds=job.GIVE_UP):
        text, end = b"", time.monotonic() + seconds
        while time.monotonic() < end and select.select([fd], [], [], end - time.monotonic())[0]:
            try:
                piece = os.read(fd, 65536)
            except OSError:  # EIO: the last process with the terminal open is gone
                return text.decode()
            text += piece
        self.fail(f"no end after {seconds} s: {text}")

    def start(self, ranks, code, columns=80, kind="xterm", command=()):
        pid, fd = pty.fork()
        if pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
            command = command or [job.TERN, "run", "-n", str(ranks), *job.python(code)]
            os.execve(command[0], command, {**os.environ, "TERM": kind})
        return pid, fd

    def finish(self, pid, fd):
        text = self.read_all(fd)
        os.close(fd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text

    def test_rank0_has_the_terminal(self):
        code = "print(rank, *(os.isatty(fd) for fd in (0, 1, 2)), os.tcgetpgrp(0) == os.getpgrp() if rank == 0 else '')"
        code, text = self.finish(*self.start(2, code))
        self.assertEqual(code, 0)
        self.assertEqual(sorted(job.screen(text)), ["0 True True True True", "[1] 1 False False False"])

    BAR = """
os.write(2, b'epoch 1:  50%%|#####     | 5/10' if rank == 0 else b'')
if rank == 0: open('drawn', 'w').close()
while not os.path.exists('drawn'): time.sleep(0.005)
%s
"""

    def test_lines_beside_the_bar_of_rank_0_begin_on_their_own(self):
        """The launcher's lines and those of other ranks, at terminals of several widths. What rank 0 had written stays."""
        bar = "epoch 1:  50%|#####     | 5/10"
        for columns in (len(bar), len(bar) + 1, 80, 200):
            for what, want in (("if rank: os._exit(3)\ntime.sleep(60)", r"tern run: rank 1 \(pid \d+\) exited with code 3"),
                               ("if rank: os.write(2, b'careful\\n')\ntime.sleep(0.3)", r"\[1\] careful"),
                               ("if rank == 0: os._exit(4)\ntime.sleep(60)", r"tern run: rank 0 \(pid \d+\) exited with code 4")):
                with self.subTest(columns=columns, what=what), tempfile.TemporaryDirectory() as folder:
                    before = f"os.chdir({folder!r})\n"
                    text = self.finish(*self.start(2, before + self.BAR % what, columns))[1]
                    lines = job.screen(text, columns)
                    self.assertEqual(lines[0], bar)
                    self.assertRegex("".join(lines[1:3]), "^" + want)

    def test_inner_bars_are_cleared_below_a_line(self):
        what = "if rank == 0: os.write(2, b'\\n\\rinner 1\\n\\rinner 2\\r\\x1b[2A'); open('inner', 'w').close()\n" \
               "while not os.path.exists('inner'): time.sleep(0.005)\nif rank: os._exit(3)\ntime.sleep(60)"
        with tempfile.TemporaryDirectory() as folder:
            text = self.finish(*self.start(2, f"os.chdir({folder!r})\n" + self.BAR % what))[1]
        self.assertNotIn("inner", " ".join(job.screen(text)))

    def test_terminals_that_know_no_such_commands_get_none(self):
        code = "if rank: os.write(1, b'plain\\n')"
        self.assertEqual(self.finish(*self.start(2, code, kind="dumb"))[1], "[1] plain\r\n")
        self.assertEqual(job.screen(self.finish(*self.start(2, code, columns=0))[1]), ["[1] plain"])

    def test_ctrl_c_reaches_every_rank_once(self):
        code = """
count = 0
def count_one(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, count_one)
print('ready', flush=True)
while not count: time.sleep(0.01)
time.sleep(0.3)
print('counted', count, flush=True)
"""
        pid, fd = self.start(2, code)
        text = ""
        while text.count("ready") < 2:
            self.assertTrue(select.select([fd], [], [], job.GIVE_UP)[0], text)
            text += os.read(fd, 4096).decode()
        os.write(fd, b"\x03")
        code, text = self.finish(pid, fd)
        self.assertEqual(code, 0, text)
        self.assertEqual(sorted(re.findall(r"(?:\[1\] )?counted \d+", text)), ["[1] counted 1", "counted 1"])


if __name__ == "__main__":
    skips.main()
