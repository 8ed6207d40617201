"""tern run: deaths and signals, with real kills and stops."""
import errno
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import job
import skips
from folder import InFolder

MEET = os.path.join(os.environ["TERN_BUILD"], "tests", "meet")
READY = job.Job.READY
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEP = job.SLEEP


def memory_group(limit):
    """Makes a control group with a memory limit, of either cgroup version. Returns its folder, None if that is impossible."""
    for root, names in (("memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")), ("", ("memory.max", "memory.swap.max"))):
        group = os.path.join("/sys/fs/cgroup", root, f"tern{os.getpid()}")
        try:
            os.mkdir(group)
            with open(os.path.join(group, names[0]), "w") as file:
                file.write(str(limit))
            if os.path.exists(os.path.join(group, names[1])):
                with open(os.path.join(group, names[1]), "w") as file:
                    file.write(str(limit if root else 0))
            return group
        except OSError:
            if os.path.isdir(group):
                os.rmdir(group)
    return None


class Case(InFolder):
    def start(self, ranks, code, options=(), **popen):
        run = job.Job(self.folder, ranks, job.python(code), options, **popen)
        self.addCleanup(run.__exit__)
        return run

    def until_dead(self, pids):
        job.until(lambda: not any(map(job.is_alive, pids)), f"all of {pids} dead")


class Failures(Case):
    def test_exit_code_of_a_rank(self):
        for ranks, rank in ((1, 0), (2, 0), (3, 2)):
            code, _, err = job.tern("run", "-n", str(ranks), "sh", "-c", f"test $RANK != {rank} || exit 3")
            self.assertEqual((code, job.named_failure(err)), (3, (rank, "exited with code 3")))

    def test_signal_of_a_rank(self):
        for name in ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"):
            number = getattr(signal, name)
            code, _, err = job.tern("run", "-n", "2", "sh", "-c", f"test $RANK = 0 || kill -{name[3:]} $$")
            self.assertEqual((code, job.named_failure(err)), (128 + number, (1, f"was killed by signal {number:d} ({name})")))

    def test_out_of_memory(self):
        """The OOM killer kills a rank in a control group of 32 MB, and the report says so; it does not if somebody else kills the rank."""
        group = memory_group(32 << 20)
        if not group:
            self.skipTest("no control group can be made here")
        self.addCleanup(os.rmdir, group)
        _, _, err = job.tern("run", "sh", "-c", "kill -KILL $$")
        self.assertNotIn("out of memory", err)
        code, _, err = job.tern("run", "-n", "2", *job.python(f"if rank: open('{group}/cgroup.procs', 'w').write('0'); all = b'x' * (256 << 20)"))
        self.assertEqual((code, job.named_failure(err)), (137, (1, "was killed by signal 9 (SIGKILL)")))
        self.assertRegex(err, r"error     : out of memory: the kernel's OOM killer has killed \d+ process(es)? since the ranks started\n")

    def test_real_time_signal(self):
        code, _, err = job.tern("run", "sh", "-c", "kill -40 $$")
        self.assertEqual((code, job.named_failure(err)), (168, (0, "was killed by signal 40 (SIGRTMIN+6)")))

    def test_early_success_of_one_is_fine(self):
        code, out, err = job.tern("run", "-n", "2", "sh", "-c", "test $RANK = 1 || { sleep 1.3; echo done; }")
        self.assertEqual((code, out, err), (0, "done\n", ""))

    def test_rank_that_leaves_with_0_while_others_need_it(self):
        """Without tern_group_close it is the cause of the others' failure; before tern_group_open the others wait for it in vain."""
        for rank in (0, 1, 2):
            code, _, err = job.tern("run", "-n", "3", MEET, env={**os.environ, "LEAVER": str(rank)})
            self.assertEqual((code, job.named_failure(err)), (1, (rank, "exited with code 0 without tern_group_close")))
            self.assertRegex(err, rf"  rank      : {rank} \(local rank {rank}\)\n  exitcode  : 0 ")
        for rank in (0, 1, 2):
            for before in ("", "sleep 0.3; "):
                start = time.monotonic()
                code, _, err = job.tern("run", "-n", "3", "sh", "-c", f"test $RANK != {rank} || {{ {before}exit 0; }}; exec {MEET}")
                found, what = job.named_failure(err)
                self.assertEqual((code, found), (1, rank))
                self.assertRegex(what, r"^exited with code 0 before tern_group_open, (in which rank \d waits for it|which rank \d has called)$")
                self.assertLess(time.monotonic() - start, 15)  # meet itself waits for 20 s

    def test_who_fails_by_itself_is_the_cause(self):
        """The others learn of it through their group and may end first."""
        ways = {"close": (7, "exited with code 7"), "abort": (7, "exited with code 7"), "exit": (7, "exited with code 7"),
                "crash": (134, "was killed by signal 6 (SIGABRT)"), "kill": (137, "was killed by signal 9 (SIGKILL)")}
        for i in range(20):
            way, rank, pause = list(ways)[i % 5], i % 3, (0, 100)[i // 5 % 2]
            with self.subTest(way=way, rank=rank, pause=pause):
                code, _, err = job.tern("run", "-n", "3", MEET, env={**os.environ, "FAILER": f"{rank} {way} {pause}"})
                self.assertEqual((code, job.named_failure(err)), (ways[way][0], (rank, ways[way][1])))
                self.assertRegex(err, rf"Root cause \(first failure\):\n(  .*\n)+  rank      : {rank} \(local")
                self.assertIn(f"  | rank {rank} fails by itself\n", err)
                followed = re.findall(r"^  rank (\d) \(pid \d+\) exited with code 1, [\d.e+-]+ ms (earlier|later)$", err, re.M)
                self.assertEqual(sorted(int(other) for other, _ in followed), sorted({0, 1, 2} - {rank}))
                if pause and way in ("close", "abort"):
                    self.assertEqual({when for _, when in followed}, {"earlier"})

    def test_who_fails_by_itself_is_the_cause_of_an_attempt(self):
        code, _, err = job.tern("run", "-n", "2", "--max-restarts", "1", MEET, env={**os.environ, "FAILER": "1 close 100"})
        self.assertEqual((code, len(re.findall(r"^tern run: rank 1 \(pid \d+\) exited with code 7$", err, re.M))), (7, 2))
        self.assertRegex(err, r"Attempts before this one:\n  0: rank 1 \(pid \d+\) exited with code 7\n=")

    def test_others_that_exit_with_0_are_no_cause(self):
        """They have left their groups open after these have failed."""
        for way in ("close", "abort"):
            code, _, err = job.tern("run", "-n", "3", MEET, env={**os.environ, "FAILER": f"2 {way} 100", "STAYS_OPEN": "1"})
            self.assertEqual((code, job.named_failure(err)), (7, (2, "exited with code 7")))

    def test_cause_that_takes_long_to_end(self):
        """After a second it is told to end. It has told its group of its error, so it is the cause even so."""
        code, _, err = job.tern("run", "-n", "2", MEET, env={**os.environ, "FAILER": "1 abort 20000"})
        self.assertEqual((code, job.named_failure(err)), (143, (0, "exited with code 1")))
        self.assertRegex(err, r"Root cause \(first failure\):\n(  .*\n)+  rank      : 1 \(local rank 1\)\n  exitcode  : 143 SIGTERM")

    def test_only_the_first_failure_is_named(self):
        code = IGNORE + READY + """
if rank == 2: time.sleep(0.1); sys.exit(5)
while not os.path.exists('ready2'): time.sleep(0.01)
first = int(open('ready2').read())
while os.path.exists('/proc/%d' % first): time.sleep(0.01)
print('rank %d saw it' % rank, file=sys.stderr)
sys.exit(9)
"""
        code, _, err = self.start(3, code, ["--grace", "60"]).end()
        self.assertEqual((code, job.named_failure(err)), (5, (2, "exited with code 5")))
        self.assertIn("[1] rank 1 saw it\n", err)
        self.assertIn("\nrank 0 saw it\n", "\n" + err)

    def test_killed_rank_before_those_who_report_it(self):
        """The launcher finds both dead at once; the first to die does not have the smallest rank."""
        run = self.start(2, READY + "sys.stdin.read() if rank == 0 else time.sleep(60)\nsys.exit(1)\n", stdin=subprocess.PIPE)
        pids = run.pids()
        os.kill(run.launcher.pid, signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.until_dead(pids[1:])
        run.launcher.stdin.close()
        self.until_dead(pids)
        os.kill(run.launcher.pid, signal.SIGCONT)
        run.launcher.stdin = None
        code, _, err = run.end()
        self.assertEqual((code, job.named_failure(err)), (137, (1, "was killed by signal 9 (SIGKILL)")))

    def test_survivors_have_a_second_to_report(self):
        code = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n" + READY + """
signal.sigwait([signal.SIGTERM])
print(time.monotonic(), flush=True)
"""
        run = self.start(2, code)
        pids = run.pids()
        killed = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        code, out, err = run.end()
        self.assertEqual(code, 137)
        self.assertGreater(float(out) - killed, 0.99)
        self.assertEqual(job.named_failure(err), (1, "was killed by signal 9 (SIGKILL)"))

    def test_stopped_survivor_ends_too(self):
        run = self.start(2, READY + SLEEP, ["--grace", "60"])
        pids = run.pids()
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(pids[1], signal.SIGKILL)
        self.until_dead(pids)
        self.assertEqual(run.end()[0], 137)

    def test_every_attempt_ends_its_survivors(self):
        code, _, err = job.tern("run", "-n", "2", "--max-restarts", "1", *job.python("if rank == 0: sys.exit(3)\n" + SLEEP))
        self.assertEqual((code, err.count("restarting all ranks, restart 1 of 1")), (3, 1))

    def test_survivor_that_ignores_sigterm_is_killed_after_the_grace(self):
        run = self.start(3, IGNORE + READY + "if rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\n" + SLEEP,
                         ["--grace", "0.4"])
        pids = run.pids()
        start = time.monotonic()
        os.kill(pids[1], signal.SIGSEGV)
        self.until_dead(pids)
        self.assertGreater(time.monotonic() - start, 1.39)
        code, _, err = run.end()
        self.assertEqual(code, 139)
        self.assertIn("rank 1 (pid %d) was killed by signal 11 (SIGSEGV)" % pids[1], err)
        for rank in (0, 2):
            self.assertIn("rank %d (pid %d) did not end in time: SIGKILL" % (rank, pids[rank]), err)

    def kill_all(self):
        """Returns the seconds until the job ends."""
        with tempfile.TemporaryDirectory() as self.folder:
            run = self.start(4, READY + SLEEP)
            pids = run.pids()
            start = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            code, _, err = run.end()
            self.assertEqual((code, job.named_failure(err)[1]), (137, "was killed by signal 9 (SIGKILL)"))
            return time.monotonic() - start

    def test_nobody_is_left_to_report(self):
        self.assertTrue(job.is_quick(0.99, self.kill_all))


class Signals(Case):
    RECORD = """
def record(number, _):
    print('got', signal.Signals(number).name, flush=True)
    sys.exit(0)
for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'): signal.signal(getattr(signal, name), record)
"""

    def test_forwarded_and_the_ranks_answer_counts(self):
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
            with self.subTest(name=name), tempfile.TemporaryDirectory() as self.folder:
                run = self.start(2, self.RECORD + READY + SLEEP)
                run.pids()
                run.launcher.send_signal(getattr(signal, name))
                code, out, err = run.end()
                self.assertEqual((code, sorted(out.splitlines())), (0, [f"[1] got {name}", f"got {name}"]))
                self.assertEqual(err, f"tern run: {name}: passed on to the ranks; a second one kills them\n")

    def test_ranks_that_die_of_it(self):
        run = self.start(2, READY + SLEEP, ["--grace", "60"])
        pids = run.pids()
        run.launcher.terminate()
        self.until_dead(pids)
        code, _, err = run.end()
        self.assertEqual((code, err.count("\n")), (128 + 15, 1))

    def test_second_signal_kills_at_once(self):
        run = self.start(2, IGNORE + READY + SLEEP, ["--grace", "60"])
        pids = run.pids()
        run.launcher.terminate()
        self.assertIn("passed on", run.launcher.stderr.readline())
        self.assertTrue(all(map(job.is_alive, pids)))
        run.launcher.terminate()
        self.until_dead(pids)
        self.assertEqual(run.end()[0], 137)

    def test_the_second_interrupt_is_the_exit_code(self):
        for first in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(first=first), tempfile.TemporaryDirectory() as self.folder:
                run = self.start(2, f"signal.signal({first:d}, signal.SIG_IGN)\n" + READY + SLEEP, ["--grace", "60"])
                pids = run.pids()
                run.launcher.send_signal(first)
                self.assertIn("passed on", run.launcher.stderr.readline())
                run.launcher.send_signal(signal.SIGINT)
                self.until_dead(pids)
                self.assertEqual(run.end()[0], 128 + signal.SIGINT)

    def test_a_signal_after_a_failure_restarts_nothing(self):
        run = self.start(2, IGNORE + READY + SLEEP, ["--grace", "60", "--max-restarts", "1"])
        pids = run.pids()
        os.kill(pids[0], signal.SIGKILL)
        self.assertIn("was killed by signal 9", run.launcher.stderr.readline())
        run.launcher.terminate()
        said = run.launcher.stderr.readline()
        if "passed on" in said:  # otherwise it came so late that it has killed them
            run.launcher.terminate()
        code, _, err = run.end()
        self.assertEqual(code, 137)
        self.assertNotIn("restarting", said + err)

    def test_grace_after_a_signal(self):
        run = self.start(2, IGNORE + READY + SLEEP, ["--grace", "0.5"])
        pids = run.pids()
        start = time.monotonic()
        run.launcher.terminate()
        self.until_dead(pids)
        self.assertGreater(time.monotonic() - start, 0.49)
        self.assertEqual(run.end()[0], 137)

    def test_ignored_hangup_stays_ignored(self):
        run = self.start(2, READY + "while not os.path.exists('go'): time.sleep(0.01)\nprint('done')\n",
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        pids = run.pids()
        run.launcher.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        self.assertTrue(all(map(job.is_alive, pids)))
        open(os.path.join(self.folder, "go"), "w").close()
        code, out, err = run.end()
        self.assertEqual((code, sorted(out.splitlines()), err), (0, ["[1] done", "done"], ""))

    def test_warnings_are_passed_on_and_end_nothing(self):
        """SIGUSR1 and SIGUSR2, which batch systems send before they end a job."""
        for name in ("SIGUSR1", "SIGUSR2"):
            number = getattr(signal, name)
            warned = f"warned = []\nsignal.signal({number:d}, lambda *_: warned.append(1))\n"
            run = self.start(2, warned + READY + "while not warned: signal.sigtimedwait([], 0.01)\nprint('saved')\n")
            run.pids()
            run.launcher.send_signal(number)
            code, out, err = run.end()
            self.assertEqual((code, sorted(out.splitlines()), err), (0, ["[1] saved", "saved"], ""))
            for rank in range(2):
                os.unlink(os.path.join(self.folder, f"ready{rank}"))

    def test_first_process_of_a_container(self):
        """The kernel drops a signal to PID 1 that has no handler. The launcher heeds it while it waits for another host, and later."""
        first = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", job.TERN, "run"]
        if not shutil.which("unshare") or subprocess.run([*first[:5], "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no namespaces here")
        alone = job.python(READY + SLEEP)
        for options, said in (["--nnodes", "2", "--master-port", "0"], None), ([], "passed on"):
            if said is None:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    options[-1] = str(free.getsockname()[1])
            with subprocess.Popen([*first, *options, *alone], cwd=self.folder, stderr=subprocess.PIPE, text=True) as outer:
                self.addCleanup(outer.kill)
                of = f"/proc/{outer.pid}/task/{outer.pid}/children"
                if said is None:
                    self.assertIn("not authenticated", outer.stderr.readline())
                else:
                    job.until(lambda: os.path.exists(os.path.join(self.folder, "ready0")), "the rank ready")
                os.kill(int(job.read(of)), signal.SIGTERM)
                self.assertEqual(outer.wait(job.GIVE_UP), 143)
                self.assertIn(said or "", outer.stderr.read())

    def test_parent_that_ignores_children(self):
        done = subprocess.run([job.TERN, "run", "-n", "2", "sh", "-c", "exit 3"], stderr=subprocess.PIPE, text=True, timeout=job.GIVE_UP,
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.returncode, 3)


class Wrapped(Case):
    """The rank is a shell that waits for the program, which is so not the launcher's child."""
    SAVE = """
def save(number, _):
    time.sleep(0.3)
    open('saved%d' % rank, 'w').write(signal.Signals(number).name)
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, save)
"""

    def start_wrapped(self, ranks, code, options=(), before=""):
        run = job.Job(self.folder, ranks, ["sh", "-c", before + '"$@"; true', "sh", *job.python(code)], options)
        self.addCleanup(run.__exit__)
        return run

    def saved(self):
        return {name: job.read(os.path.join(self.folder, name)) for name in os.listdir(self.folder) if name.startswith("saved")}

    def test_signals_reach_the_program_and_its_end_is_awaited(self):
        for name in ("SIGTERM", "SIGINT"):
            with self.subTest(name=name), tempfile.TemporaryDirectory() as self.folder:
                run = self.start_wrapped(2, self.SAVE + READY + SLEEP)
                run.pids()
                run.launcher.send_signal(getattr(signal, name))
                _, _, err = run.end()
                self.assertEqual(self.saved(), {"saved0": name, "saved1": name})
                self.assertEqual(err, f"tern run: {name}: passed on to the ranks; a second one kills them\n")

    def test_warnings_reach_the_program(self):
        run = self.start_wrapped(2, self.SAVE + READY + SLEEP, before="trap : USR1; ")
        run.pids()
        run.launcher.send_signal(signal.SIGUSR1)
        self.assertEqual(run.end(), (0, "", ""))
        self.assertEqual(self.saved(), {"saved0": "SIGUSR1", "saved1": "SIGUSR1"})

    def test_a_failure_elsewhere_lets_it_save(self):
        run = self.start_wrapped(3, self.SAVE + READY + SLEEP, before='test $RANK != 2 || exit 4; ')
        run.ranks = 2
        run.pids()
        code, _, err = run.end()
        self.assertEqual((code, job.named_failure(err)), (4, (2, "exited with code 4")))
        self.assertEqual(self.saved(), {"saved0": "SIGTERM", "saved1": "SIGTERM"})

    def test_it_is_killed_after_the_grace(self):
        run = self.start_wrapped(2, IGNORE + READY + SLEEP, ["--grace", "0.4"])
        pids = run.pids()
        groups = list(map(os.getpgid, pids))
        start = time.monotonic()
        run.launcher.terminate()
        self.until_dead(pids)
        self.assertGreater(time.monotonic() - start, 0.39)
        code, _, err = run.end()
        self.assertEqual(code, 143)
        for rank in range(2):
            self.assertIn(f"tern run: a process of rank {rank} (process group {groups[rank]}) did not end in time: SIGKILL\n", err)

    def test_the_second_signal_kills_it(self):
        run = self.start_wrapped(2, IGNORE + READY + SLEEP, ["--grace", "60"])
        pids = run.pids()
        run.launcher.terminate()
        self.assertIn("passed on", run.launcher.stderr.readline())
        time.sleep(0.2)
        self.assertTrue(all(map(job.is_alive, pids)))
        run.launcher.terminate()
        self.until_dead(pids)
        run.end()

    def test_nothing_is_left_when_the_launcher_is_killed(self):
        """Also of a program that is stopped, and of what the program has started."""
        more = "if rank: os.fork()\nwith open('all', 'a') as file: print(os.getpid(), file=file, flush=True)\n"
        run = self.start_wrapped(3, IGNORE + READY + more + "if rank == 2: os.kill(os.getpid(), signal.SIGSTOP)\n" + SLEEP)
        run.pids()
        every = lambda: list(map(int, job.read(os.path.join(self.folder, "all")).split()))
        job.until(lambda: len(every()) == 5, "five processes")
        children = list(map(int, job.read(f"/proc/{run.launcher.pid}/task/{run.launcher.pid}/children").split()))
        self.assertTrue(all(map(job.is_alive, every() + children)))
        run.launcher.kill()
        self.until_dead(every() + children)


class Grandchildren(Case):
    """A rank's worker forks twice, and the grandchild leads a session of its own. It becomes the launcher's child."""
    TWICE = """
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    for number in set(signal.valid_signals()) - {9, 17, 19}: signal.signal(number, signal.SIG_IGN)
    with open('grand.tmp%d' % rank, 'w') as file: file.write(str(os.getpid()))
    os.rename('grand.tmp%d' % rank, 'grand%d' % rank)
    time.sleep(60 if LIVES else 0)
    os._exit(0)
os.wait()
"""

    def grandchildren(self, ranks):
        names = [os.path.join(self.folder, f"grand{rank}") for rank in range(ranks)]
        job.until(lambda: all(map(os.path.exists, names)), "all grandchildren there")
        return [int(job.read(name)) for name in names]

    def test_they_end_with_a_job_that_fails_or_is_stopped(self):
        stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        for code, stops in (("\nif rank: sys.exit(3)\n" + SLEEP, False), (SLEEP, True)):
            with self.subTest(stops=stops), tempfile.TemporaryDirectory() as self.folder:
                wait = "while not all(os.path.exists('grand%d' % r) for r in range(2)): time.sleep(0.01)\n"
                run = self.start(2, self.TWICE.replace("LIVES", "True") + wait + READY + code)
                grand = self.grandchildren(2)
                if stops:
                    run.pids()
                    run.launcher.terminate()
                self.assertEqual(run.end()[0], 143 if stops else 3)
                self.assertEqual([job.state(pid) for pid in grand], ["X", "X"])  # reaped, too
                self.assertIsNone(stranger.poll())

    def test_one_that_ends_is_reaped_while_the_job_runs(self):
        run = self.start(2, self.TWICE.replace("LIVES", "False") + READY + SLEEP)
        run.pids()
        grand = self.grandchildren(2)
        job.until(lambda: [job.state(pid) for pid in grand] == ["X", "X"], "the grandchildren reaped")
        run.launcher.terminate()
        run.end()


class Launcher(Case):
    def test_many_ranks_take_more_descriptors_than_a_shell_allows(self):
        """The soft limit is raised only for the launcher; a hard limit that is too low is an error."""
        show = job.python("import resource\nprint(*resource.getrlimit(resource.RLIMIT_NOFILE))")
        limit = lambda hard: (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard)))
        code, out, err = job.tern("run", "-n", "8", *show, preexec_fn=limit(500))
        self.assertEqual((code, err, sorted({line.rpartition("] ")[2] for line in out.splitlines()})), (0, "", ["32 500"]))
        code, out, err = job.tern("run", "-n", "60", *show, preexec_fn=limit(100))
        self.assertEqual((code, out, err), (1, "", "tern run: 60 ranks need about 364 file descriptors here, but at most 100 are allowed (ulimit -Hn)\n"))

    def test_kernel_without_pidfds(self):
        for native in (errno.ENOSYS, errno.EPERM):
            forbid = lambda: job.forbid(434, native)  # pidfd_open
            with self.subTest(native=native):
                self.assertEqual(job.tern("run", "-n", "3", "true", preexec_fn=forbid), (0, "", ""))
                code, _, err = job.tern("run", "-n", "3", "sh", "-c", "test $RANK != 1 || exit 3; exec sleep 60", preexec_fn=forbid)
                self.assertEqual((code, job.named_failure(err)), (3, (1, "exited with code 3")))

    def test_no_orphan_when_it_is_killed(self):
        stubborn = "for number in set(signal.valid_signals()) - {9, 17, 19}: signal.signal(number, signal.SIG_IGN)\n"
        run = self.start(4, stubborn + READY + "if rank == 3: os.kill(os.getpid(), signal.SIGSTOP)\n" + SLEEP)
        pids = run.pids()
        self.assertTrue(all(map(job.is_alive, pids)))
        run.launcher.kill()
        self.until_dead(pids)

    def test_no_orphan_when_a_rank_cannot_be_started(self):
        """The second attempt cannot open rank 1's log: a folder has its name. The launcher gets there once rank 0 has started a process,
        because before that it waits for a reader of the pipe that has the name of rank 1's other log."""
        code = """
import glob, subprocess
top, = glob.glob('logs/*')
blocked = top + '/attempt_1/1/'
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and rank == 0:
    os.makedirs(blocked + 'stderr.log')
    os.mkfifo(blocked + 'stdout.log')
    sys.exit(1)
if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1':
    left = subprocess.Popen(['sleep', '60'], stdout=2, start_new_session=True)
    with open('left.tmp', 'w') as file: file.write(str(left.pid))
    os.rename('left.tmp', 'left')
    open(blocked + 'stdout.log')
""" + SLEEP
        run = self.start(2, code, ["--log-dir", "logs", "--redirects", "3", "--max-restarts", "1"])
        returned, _, err = run.end()
        self.assertEqual(returned, 1)
        self.assertRegex(err, r'cannot open log "logs/none_\w+/attempt_1/1/stderr.log": Is a directory')
        self.assertFalse(job.is_alive(int(job.read(os.path.join(self.folder, "left")))))


if __name__ == "__main__":
    skips.main()
