"""tern run on several hosts: launchers meet, number their ranks, and end together. Each host is simulated by a launcher on this
machine; test_network.py uses network namespaces."""
import hmac
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time

import job
import skips

MEET = os.path.join(os.environ["TERN_BUILD"], "tests", "meet")
READY = job.Job.READY
SLEEP = job.SLEEP
SECRET = "5e" * 32
NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME",
         "MASTER_ADDR", "MASTER_PORT", "TERN_PORT", "TERN_SECRET", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
DUMP = "print(*(os.environ[name] for name in %r), 'TERN_LISTEN_FD' in os.environ)\n" % (NAMES,)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Case(job.Launchers):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def launch(self, node, ranks, code, options=(), nodes=2, secret=SECRET, command=None, **env):
        """Starts the launcher of one host."""
        env = {**os.environ, "TERN_HOST_ID": f"host{node}", **env}
        env.pop("TERN_SECRET", None)
        if secret:
            env["TERN_SECRET"] = secret
        line = [job.TERN, "run", "-n", str(ranks), "--nnodes", str(nodes), "--node-rank", str(node), "--master-port", str(self.port), *options]
        launcher = subprocess.Popen(line + (command or job.python(code)), text=True, errors="replace", cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, launcher)
        return launcher

    def finish(self, *launchers):
        """Returns (exit code, stdout, stderr) of each launcher."""
        results = []
        for launcher in launchers:
            out, err = launcher.communicate(timeout=job.GIVE_UP)
            results.append((launcher.returncode, out, err))
        return results


class Meeting(Case):
    def test_ranks_are_numbered_through_the_hosts(self):
        """Hosts with different numbers of ranks, two of them with the same role."""
        roles = ("worker", "server", "worker")
        sizes = (2, 1, 3)
        launchers = [self.launch(node, sizes[node], DUMP, ["--role", roles[node], "--rdzv-id", "job7", "--max-restarts", "3"], 3) for node in (2, 0, 1)]
        results = self.finish(*launchers)
        self.assertEqual([(code, err) for code, _, err in results], 3 * [(0, "")])
        lines = [line.partition("] ")[2] or line for _, out, _ in results for line in out.splitlines()]
        found = sorted((line.split() for line in lines), key=lambda words: int(words[0]))
        self.assertEqual([words[:9] for words in found],
                         [[str(word) for word in row] for row in ((0, 0, 0, 0, 6, 2, 3, 5, "worker"), (1, 1, 0, 1, 6, 2, 3, 5, "worker"),
                                                                  (2, 0, 1, 0, 6, 1, 3, 1, "server"), (3, 0, 2, 2, 6, 3, 3, 5, "worker"),
                                                                  (4, 1, 2, 3, 6, 3, 3, 5, "worker"), (5, 2, 2, 4, 6, 3, 3, 5, "worker"))])
        self.assertEqual({tuple(words[9:16]) for words in found}, {tuple(found[0][9:16])}, "one meeting point and one secret")
        self.assertEqual(found[0][9:11], ["127.0.0.1", str(self.port)])
        self.assertNotIn(found[0][11], ("0", str(self.port)))
        self.assertNotEqual(found[0][12], SECRET, "the user's secret is for launchers; ranks have one of their attempt")
        self.assertEqual(found[0][13:16], ["job7", "0", "3"])
        self.assertEqual([words[16] for words in found], ["True"] + 5 * ["False"])

    def test_the_program_may_listen_on_master_port(self):
        code = """
import socket
where = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))
if rank == 0:
    with socket.create_server(where) as server: print('got', server.accept()[0].recv(9).decode())
else:
    while True:
        try: socket.create_connection(where, 5).sendall(b'hello'); break
        except ConnectionRefusedError: time.sleep(0.01)
"""
        results = self.finish(*(self.launch(node, 1, code) for node in (0, 1)))
        self.assertEqual(results, [(0, "got hello\n", ""), (0, "", "")])

    def test_without_a_secret_it_is_said(self):
        results = self.finish(*(self.launch(node, 1, DUMP, secret=None) for node in (0, 1)))
        self.assertEqual([code for code, _, _ in results], [0, 0])
        self.assertIn(f"not authenticated: anyone who can reach 127.0.0.1 port {self.port} may join", results[0][2])
        secrets = [line.partition("] ")[2] or line for _, out, _ in results for line in out.splitlines()]
        self.assertEqual(secrets[0].split()[12], secrets[1].split()[12])

    def test_wrong_secret(self):
        first = self.launch(0, 1, DUMP)
        code, out, err = self.finish(self.launch(1, 1, DUMP, secret="ab" * 32))[0]
        self.assertEqual((code, out), (1, ""))
        self.assertIn("refused node 1: it does not know this job's secret", err)
        self.assertRegex(first.stderr.readline(), r"127.0.0.1 port \d+ has connected, but of its proof of 32 bytes none came before it hung up; "
                         r"still waiting \(does it have another secret\?\)")
        self.assertIsNone(first.poll(), "who does not know the secret cannot end the job")
        self.assertEqual([code for code, _, _ in self.finish(self.launch(1, 1, DUMP), first)], [0, 0])

    def test_secret_of_a_file(self):
        path = os.path.join(self.folder, "secret")
        with open(path, "w") as file:
            file.write("cd" * 32 + "\n")
        os.chmod(path, 0o600)
        options = ["--secret-file", path]
        results = self.finish(*(self.launch(node, 1, DUMP, options, secret=None) for node in (0, 1)))
        self.assertEqual([(code, err) for code, _, err in results], [(0, ""), (0, "")])
        for change, text in ((lambda: os.chmod(path, 0o644), "(mode 644): a secret must be"), (lambda: os.truncate(path, 60), "other users can access"),
                             (lambda: os.chmod(path, 0o600), "expected 64 hex digits"), (lambda: os.unlink(path), "cannot open")):
            change()
            code, _, err = job.tern("run", *options, "true")
            self.assertEqual(code, 2)
            self.assertIn(text, err)

    def test_node_that_does_not_come(self):
        for seconds in (1, 3, 9):  # on a busy machine node 2 may be late
            results = self.finish(*(self.launch(node, 1, DUMP, ["--rdzv-conf", f"timeout={seconds}"], 4) for node in (2, 0)))
            self.assertEqual([code for code, _, _ in results], [1, 1], results)
            if f"1 of 4 hosts joined within {seconds} s" not in results[1][2]:
                break
        self.assertIn(f"2 of 4 hosts joined within {seconds} s; missing: node 1, 3", results[1][2])

    def test_node_0_that_does_not_come(self):
        code, _, err = self.finish(self.launch(1, 1, DUMP, ["--rdzv-conf", "join_timeout=0.5"]))[0]
        self.assertEqual(code, 1)
        self.assertRegex(err, rf"cannot reach node 0's tern run at 127.0.0.1 port {self.port}: \d+ attempts in .*Connection refused")

    def test_mistakes_are_told_to_who_made_them(self):
        first = self.launch(0, 1, DUMP, nodes=3)
        second = self.launch(1, 1, DUMP, nodes=3)
        self.refused(self.launch(1, 1, DUMP, nodes=2), "node 0: it refused this host: --nnodes 2 on node 1, 3 on node 0")
        self.refused(self.launch(2, 1, DUMP, ["--run-id", "x"], nodes=3), "--rdzv-id x on node 2, none on node 0")
        job.until(lambda: "is used twice" in self.finish(self.launch(1, 1, DUMP, ["--rdzv-conf", "timeout=2"], nodes=3))[0][2], "node 1 used twice")
        results = self.finish(self.launch(2, 1, DUMP, nodes=3), first, second)
        self.assertEqual([code for code, _, _ in results], [0, 0, 0], results)

    def refused(self, launcher, text):
        code, out, err = self.finish(launcher)[0]
        self.assertEqual((code, out), (1, ""))
        self.assertIn(text, err)

    def test_node_that_goes_before_all_are_there_may_come_again(self):
        first = self.launch(0, 1, DUMP, nodes=3)
        gone = self.launch(1, 1, DUMP, nodes=3)
        time.sleep(0.3)  # by now it has probably joined; if not, the test shows less
        gone.kill()
        gone.wait()
        results = self.finish(self.launch(1, 1, DUMP, nodes=3), self.launch(2, 1, DUMP, nodes=3), first)
        self.assertEqual([code for code, _, _ in results], [0, 0, 0], results)

    def meet_among_strangers(self):
        """Returns the seconds that the launchers take to meet after the first stranger has connected."""
        self.port = free_port()
        first = self.launch(0, 1, DUMP)
        strangers = []
        job.until(lambda: self.dial(strangers), "node 0 listens")
        start = time.monotonic()
        for _ in range(40):
            self.dial(strangers)
        for i, stranger in enumerate(strangers):
            stranger.sendall((b"", b"G", b"GET / HTTP/1.1\r\n\r\n" * 8, os.urandom(300), struct.pack("<Q", 2**63))[i % 5])
        results = self.finish(self.launch(1, 1, DUMP), first)
        self.assertEqual([code for code, _, _ in results], [0, 0])
        for stranger in strangers:
            stranger.close()
        return time.monotonic() - start

    def test_strangers_hold_nobody_up(self):
        """A guest has 5 s to prove that it knows the secret."""
        self.assertTrue(job.is_quick(4.9, self.meet_among_strangers))

    def meet_behind_a_crowd(self, descriptors=None):
        """Returns the seconds that node 1 needs to join behind a silent crowd, and the share of a processor
        that node 0 takes until it drops the first of the crowd."""
        self.port = free_port()
        first = self.launch(0, 1, DUMP)
        strangers = []
        job.until(lambda: self.dial(strangers), "node 0 listens")
        if descriptors:
            _, most = resource.prlimit(first.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(first.pid, resource.RLIMIT_NOFILE, (descriptors, most))
        began, start = self.processor_seconds(first.pid), time.monotonic()
        for _ in range(150):
            self.dial(strangers)
        self.assertEqual(strangers[0].recv(1), b"")
        share = (self.processor_seconds(first.pid) - began) / (time.monotonic() - start)
        results = self.finish(self.launch(1, 1, DUMP), first)
        self.assertEqual([code for code, _, _ in results], [0, 0], results)
        for stranger in strangers:
            stranger.close()
        return time.monotonic() - start, share

    @staticmethod
    def processor_seconds(pid):
        return sum(map(int, job.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def test_silent_crowd_keeps_no_node_out(self):
        """The crowd takes all slots, or all descriptors, of node 0, which sleeps while it can accept no
        one."""
        for descriptors in (None, 24):
            took, shares = [], []

            def attempt():
                seconds, share = self.meet_behind_a_crowd(descriptors)
                took.append(seconds)
                shares.append(share)
                return seconds

            self.assertTrue(job.is_quick(4.9, attempt), took)
            self.assertLess(min(shares), 0.5)

    def dial(self, strangers):
        try:
            strangers.append(socket.create_connection(("127.0.0.1", self.port), job.GIVE_UP))
        except ConnectionRefusedError:
            return False
        return True

    def test_port_taken(self):
        with socket.create_server(("127.0.0.1", self.port)):
            code, _, err = self.finish(self.launch(0, 1, DUMP))[0]
        self.assertEqual(code, 1)
        self.assertIn(f"port {self.port} of 127.0.0.1 is taken: choose another --master-port", err)


class Failures(Case):
    def both(self, code, sizes=(2, 2), options=()):
        return [self.launch(node, ranks, code, options, len(sizes)) for node, ranks in enumerate(sizes)]

    def until_dead(self, pids):
        job.until(lambda: not any(map(job.is_alive, pids)), f"all of {pids} dead")

    def test_a_rank_ends_all_hosts_and_each_says_which(self):
        for rank, node in ((3, 1), (1, 0)):
            with self.subTest(rank=rank):
                launchers = self.both(READY + "print('line', rank, file=sys.stderr, flush=True)\n" + SLEEP)
                pids = self.pids(4)
                os.kill(pids[rank], signal.SIGSEGV)
                self.until_dead(pids)
                for own, (code, _, err) in enumerate(self.finish(*launchers)):
                    self.assertEqual(code, 139)
                    where = "" if own == node else rf" on node {node} \(.*\)"
                    self.assertRegex(err, rf"(?m)^tern run: rank {rank} \(pid {pids[rank]}\) was killed by signal 11 \(SIGSEGV\){where}$")
                    self.assertRegex(err, rf"(?m)^  host      : .* \(node {node}\)$")
                    self.assertRegex(err, rf"(?m)^  exitcode  : 139 SIGSEGV \(pid {pids[rank]}\)$")
                    self.assertIn(f"\n  | line {rank}\n", err)
                    self.assertNotIn("What followed", err, "what was killed by us is no failure")
                for name in os.listdir(self.folder):
                    os.unlink(os.path.join(self.folder, name))

    def test_early_success_of_a_host_waits_for_the_others(self):
        start = time.monotonic()
        launchers = self.both("if rank == 1: time.sleep(0.5); sys.exit(6)\n", (1, 1))
        for code, _, err in self.finish(*launchers):
            self.assertEqual(code, 6)
            self.assertIn("rank 1 (pid", err)
        self.assertGreater(time.monotonic() - start, 0.49)

    def test_a_launcher_that_is_killed_is_noticed(self):
        for victim in (1, 0):
            with self.subTest(victim=victim):
                launchers = self.both(READY + SLEEP, (1, 1, 1))
                pids = self.pids(3)
                launchers[victim].kill()
                self.until_dead(pids)
                for node, (code, _, err) in enumerate(self.finish(*launchers)):
                    self.assertEqual(code, -9 if node == victim else 1)
                    if node != victim:
                        self.assertRegex(err, rf"tern run: node {victim} \(.*\): its tern run is gone: it closed the connection")
                for name in os.listdir(self.folder):
                    os.unlink(os.path.join(self.folder, name))

    def test_signal_to_one_launcher_is_for_all(self):
        launchers = self.both("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + READY + SLEEP, (1, 1))
        self.pids(2)
        launchers[1].terminate()
        results = self.finish(*launchers)
        self.assertEqual([code for code, _, _ in results], [0, 0])
        self.assertEqual(results[0][2], "tern run: SIGTERM on node 1: passed on to the ranks\n")
        self.assertEqual(results[1][2], "tern run: SIGTERM: passed on to the ranks; a second one kills them\n")

    def test_second_signal_kills_on_all(self):
        launchers = self.both("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + SLEEP, (1, 1), ["--grace", "60"])
        pids = self.pids(2)
        launchers[0].terminate()
        self.assertIn("passed on", launchers[0].stderr.readline())
        self.assertIn("passed on", launchers[1].stderr.readline())
        launchers[0].terminate()
        self.until_dead(pids)
        self.assertEqual([code for code, _, _ in self.finish(*launchers)], [137, 137])

    def test_missing_program_on_one_host(self):
        launchers = [self.launch(0, 1, READY + SLEEP), self.launch(1, 2, "", command=["no-such-program"])]
        results = self.finish(*launchers)
        self.assertEqual([code for code, _, _ in results], [127, 127])
        self.assertEqual(results[1][2].splitlines()[0], 'tern run: cannot run "no-such-program": No such file or directory')
        self.assertIn('error     : cannot run "no-such-program": No such file or directory', results[0][2])

    def kill_one(self):
        """Kills rank 3; the others notice its death themselves and fail within the same second. Returns whether rank 3 is reported as the cause."""
        code = READY + """
if rank == 3: time.sleep(60)
while not os.path.exists('ready3'): time.sleep(0.01)
peer = int(open('ready3').read())
while os.path.exists('/proc/%d' % peer): time.sleep(0.002)
time.sleep(0.1)
sys.exit(9)
"""
        with tempfile.TemporaryDirectory() as self.folder:
            self.port = free_port()
            launchers = self.both(code)
            os.kill(self.pids(4)[3], signal.SIGKILL)
            results = self.finish(*launchers)
        cause = r"(?s)Root cause \(first failure\):.*rank      : 3 \(local rank 1\).*What followed:"
        effect = r"(?m)^  rank [01] \(pid \d+\) exited with code 9.*, [\d.e+]+ ms later$"
        return all(code == 137 and re.search(cause, err) and re.search(effect, err) for code, _, err in results)

    def test_who_kills_the_others_first_is_the_cause(self):
        """Hosts share no clock: if a launcher learns of a death 0.1 s late, it may report the effect as the cause, so the test tries again."""
        self.assertTrue(any(self.kill_one() for _ in range(10)))


    def test_who_fails_by_itself_is_the_cause(self):
        """Ranks of its host and of the others learn of it through their group and end first."""
        for sizes, rank, way in (((1, 2), 2, "close"), ((2, 1), 0, "close"), ((1, 1, 2), 1, "abort"), ((1, 2, 1), 2, "close")):
            node = next(node for node in range(len(sizes)) if rank < sum(sizes[:node + 1]))
            with self.subTest(sizes=sizes, rank=rank, way=way):
                self.port = free_port()
                results = self.finish(*(self.launch(own, sizes[own], "", nodes=len(sizes), command=[MEET], FAILER=f"{rank} {way} 200")
                                        for own in range(len(sizes))))
                for own, (code, _, err) in enumerate(results):
                    where = "" if own == node else rf" on node {node} \([^)]+\)"
                    self.assertEqual(code, 7)
                    self.assertRegex(err, rf"(?m)^tern run: rank {rank} \(pid \d+\) exited with code 7{where}$")
                    self.assertEqual(len(re.findall(r"(?m)^tern run: rank ", err)), 1)
                    self.assertRegex(err, rf"  host      : \S+ \(node {node}\)\n  rank      : {rank} ")
                    self.assertIn(f"  | rank {rank} fails by itself\n", err)


class Hostile(Case):
    """A peer that knows the secret and follows the protocol at first."""

    HELLO, MESSAGE = struct.Struct("<8s6I32s"), 3176

    def knock(self, source="127.0.0.1"):
        line = socket.create_connection(("127.0.0.1", self.port), job.GIVE_UP, (source, 0))
        self.addCleanup(line.close)
        return line

    def join(self, source="127.0.0.1", **changes):
        """Returns a connection that has joined as node 1."""
        hello = {"magic": b"TernHi\r\n", "version": 1, "purpose": 3, "node": 1, "to": 0, "nodes": 2, "zero": 0, "nonce": os.urandom(32), **changes}
        hello = self.HELLO.pack(*hello.values())
        line = self.knock(source)
        line.sendall(hello)
        challenge = line.recv(72, socket.MSG_WAITALL)
        if len(challenge) < 72:
            return None
        key = bytes.fromhex(SECRET)
        line.sendall(hmac.digest(key, b"caller\0\0" + hello + challenge[8:40], "sha256"))
        self.assertEqual(line.recv(8, socket.MSG_WAITALL), b"TernIn\r\n")
        return line

    def message(self, *numbers, run_id=b"none"):
        text = struct.pack("<4I", *numbers) + bytes(48 + 32) + b"default".ljust(32, b"\0") + run_id.ljust(128, b"\0") + b"\xff\x1b" * 32
        return text.ljust(self.MESSAGE, b"\xff")

    def listening(self, nodes=2):
        launcher = self.launch(0, 1, READY + SLEEP, nodes=nodes)

        def listens():
            try:
                return socket.create_connection(("127.0.0.1", self.port), job.GIVE_UP).close() is None
            except ConnectionRefusedError:
                return False
        job.until(listens, "node 0 listens")
        return launcher

    def test_hellos_for_others_are_sent_away(self):
        launcher = self.listening()
        for change in ({"magic": b"TernHo\r\n"}, {"version": 99}, {"purpose": 1}, {"purpose": 2}, {"to": 1}, {"node": 2}, {"zero": 1}):
            self.assertIsNone(self.join(**change), change)
        self.assertEqual([code for code, _, _ in self.finish(self.launch(1, 1, "sys.exit(7)"), launcher)], [7, 7])

    def test_joins_that_make_no_sense(self):
        launcher = self.listening()
        for numbers in ((2, 2, 1, 1), (1, 2, 1, 0), (1, 2, 1, 5000), (1, 3, 1, 1), (1, 2, 0, 1), (1, 2, 2, 1), (1, 2, 2**32 - 1, 1), (1, 2, 1, 2**31)):
            line = self.join()
            line.sendall(self.message(*numbers))
            self.assertEqual(struct.unpack("<I", line.recv(self.MESSAGE, socket.MSG_WAITALL)[:4])[0], 2, numbers)
            self.assertEqual(line.recv(1), b"")
        self.assertEqual([code for code, _, _ in self.finish(self.launch(1, 1, "sys.exit(7)"), launcher)], [7, 7])

    def test_a_caller_whose_message_never_comes_is_named(self):
        """Node 0 says what is missing: of a caller that stays after the handshake's deadline, of one that hangs up at once. It says so
        once for each host, and says nothing of those who only look whether the port answers."""
        launcher = self.listening()
        known, partial = self.join("127.0.0.3"), self.join("127.0.0.4")
        partial.sendall(b"x" * 1448)
        lines = [self.knock("127.0.0.2"), known, partial, self.knock("127.0.0.5")]
        lines[3].sendall(b"TernHi\r\n")
        for _ in range(2):
            self.join("127.0.0.6").close()
        self.knock("127.0.0.7").close()
        names = [line.getsockname() for line in lines]
        for line in lines:
            self.assertEqual(line.recv(1), b"", "node 0 hangs up")
        self.assertEqual([code for code, _, _ in self.finish(self.launch(1, 1, "sys.exit(7)"))], [7])
        err = self.finish(launcher)[0][2]
        missing = ("hello of 64 bytes none", f"message of {self.MESSAGE} bytes none", f"message of {self.MESSAGE} bytes only 1448", "hello of 64 bytes only 8")
        for (host, port), what in zip(names, missing):
            self.assertIn(f"tern run: {host} port {port} has connected, but of its {what} came within 5 s; still waiting (does the network drop large packets?)\n", err)
        self.assertEqual(len(re.findall(rf"127.0.0.6 port \d+ has connected, but of its message of {self.MESSAGE} bytes none came before it hung up;", err)), 1)
        self.assertNotIn("127.0.0.7", err)

    def test_who_joins_and_goes_leaves_its_place_to_a_successor(self):
        """Node 0 is late, and finds all at once: a node's message and its end, its successor's message, and that of the last node."""
        launcher = self.listening(nodes=3)
        nodes = (1, 1, 2)
        lines = [self.join(node=node, nodes=3) for node in nodes]
        os.kill(launcher.pid, signal.SIGSTOP)
        job.until(lambda: job.state(launcher.pid) == "T", "node 0 is stopped")
        for node, line in zip(nodes, lines):
            line.sendall(self.message(1, 3, node, 1))
        lines[0].close()
        os.kill(launcher.pid, signal.SIGCONT)
        for line in lines[1:]:
            self.assertEqual(struct.unpack("<I", line.recv(self.MESSAGE, socket.MSG_WAITALL)[:4])[0], 3, "the job starts")

    def test_nonsense_from_a_node_ends_the_job(self):
        """Its control characters do not reach the terminal."""
        for nonsense in (os.urandom(self.MESSAGE), self.message(3, 0, 0, 0)):
            launcher = self.listening()
            line = self.join()
            line.sendall(self.message(1, 2, 1, 1))
            start = line.recv(self.MESSAGE, socket.MSG_WAITALL)
            self.assertEqual(struct.unpack("<I", start[:4])[0], 3, "the job starts")
            self.pids(1)
            line.sendall(nonsense)
            code, _, err = self.finish(launcher)[0]
            self.assertEqual(code, 1)
            self.assertRegex(err, r"tern run: node 1 \(.*\): its tern run is gone: it sent an invalid message")
            self.assertNotIn("\x1b", err)
            os.unlink(os.path.join(self.folder, "ready0"))
            self.port = free_port()

    def failure(self, node, rank, local):
        """A failure message of a rank with arbitrary numbers."""
        head = self.message(4, 0, 0, 0)[:512] + struct.pack("<6i2q", node, rank, local, -1, -1, -1, -1, -1)
        return head.ljust(self.MESSAGE, b"\x1b")

    def test_a_failure_with_impossible_numbers(self):
        for numbers in ((-1, -1, -1), (0, 0, 2**30), (99, 2**31 - 1, -2**31)):
            launcher = self.listening()
            line = self.join()
            line.sendall(self.message(1, 2, 1, 1))
            line.recv(self.MESSAGE, socket.MSG_WAITALL)
            self.pids(1)
            line.sendall(self.failure(*numbers))
            line.sendall(self.message(6, 0, 0, 0))
            code, _, err = self.finish(launcher)[0]
            self.assertNotEqual(code, 0)
            self.assertGreater(code, 0, "the launcher did not crash")
            self.assertIn("FAILED", err)
            self.assertNotIn("\x1b", err)
            os.unlink(os.path.join(self.folder, "ready0"))
            self.port = free_port()

    def test_a_launcher_that_does_not_answer_is_left_behind(self):
        launchers = [self.launch(node, 1, READY + SLEEP, ["--grace", "0.1"]) for node in (0, 1)]
        pids = self.pids(2)
        launchers[1].send_signal(signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        code, _, err = self.finish(launchers[0])[0]
        self.assertEqual(code, 137)
        self.assertIn("tern run: node 1 did not end in time and is left behind\n", err)
        launchers[1].send_signal(signal.SIGCONT)
        self.assertEqual(self.finish(launchers[1])[0][0], 137)


class Leaving(Case):
    """A rank exits with 0 before tern_group_open, and ranks of other hosts wait for it there."""

    def job(self, leaver, nodes, sizes, before):
        """Returns what the launchers printed, and how long it took."""
        line = ["sh", "-c", f"test $RANK != {leaver} || {{ {before} exit 0; }}; exec {MEET}"]
        self.port = free_port()
        start = time.monotonic()
        results = self.finish(*(self.launch(node, sizes[node], "", nodes=nodes, command=line) for node in range(nodes)))
        return results, time.monotonic() - start

    def test_ranks_of_other_hosts_do_not_wait(self):
        """On two hosts and on three, whose launchers learn of it through node 0's; a host may be left without ranks."""
        for sizes, leaver, before in (((1, 1), 0, ""), ((1, 1), 1, "sleep 0.7;"), ((2, 2), 1, ""), ((1, 2, 1), 0, "sleep 0.7;"), ((1, 2, 1), 2, ""),
                                      ((1, 2, 1), 3, "")):
            nodes = len(sizes)
            node = next(node for node in range(nodes) if leaver < sum(sizes[:node + 1]))
            with self.subTest(sizes=sizes, leaver=leaver, before=before):
                results, seconds = self.job(leaver, nodes, sizes, before)
                self.assertLess(seconds, 15, "meet waits for 20 s")
                for own, (code, _, err) in enumerate(results):
                    where = "" if own == node else rf" on node {node} \([^)]+\)"
                    what = r"before tern_group_open, (in which rank \d waits for it|which rank \d has called)"
                    self.assertRegex(err, rf"tern run: rank {leaver} \(pid \d+\) exited with code 0{where} {what}\n")
                    self.assertRegex(err, rf"  host      : \S+ \(node {node}\)\n  rank      : {leaver} ")
                    self.assertEqual(code, 1)

    def test_who_leaves_after_the_last_group_is_not_missed(self):
        """Ranks that leave at different times, with groups or without, end a job with success."""
        for line in (f"test $RANK = 0 || sleep 1.5; exec {MEET}", "test $RANK = 0 || sleep 1.5", f"{MEET}; test $RANK = 0 || sleep 1.5"):
            results = self.finish(*(self.launch(node, 2, "", command=["sh", "-c", line]) for node in (0, 1)))
            self.assertEqual([(code, err) for code, _, err in results], 2 * [(0, "")])
            self.port = free_port()

    def test_an_attempt_forgets_who_left_in_the_one_before(self):
        line = f"test $RANK != 1 -o $TORCHELASTIC_RESTART_COUNT -gt 1 || exit 0; exec {MEET}"
        results = self.finish(*(self.launch(node, 1, "", ("--max-restarts", "3") if not node else (), command=["sh", "-c", line]) for node in (0, 1)))
        self.assertEqual([code for code, _, _ in results], [0, 0])
        for _, _, err in results:
            self.assertIn("restarting all ranks, restart 2 of 3\n", err)
            self.assertNotIn("restart 3", err)


class Restarts(Case):
    def test_all_hosts_start_again(self):
        code = """
attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
print('attempt', attempt, rank, os.environ['TERN_SECRET'], os.environ['TERN_PORT'], flush=True)
if attempt < 2 and rank == 1 + attempt: sys.exit(4)
if attempt < 2: time.sleep(60)
"""
        results = self.finish(*(self.launch(node, 2, code, ["--max-restarts", "5"] if not node else ()) for node in (0, 1)))
        self.assertEqual([code for code, _, _ in results], [0, 0])
        lines = [(line.partition("] ")[2] or line).split() for _, out, _ in results for line in out.splitlines()]
        self.assertEqual(sorted((line[1], line[2]) for line in lines), [(str(attempt), str(rank)) for attempt in range(3) for rank in range(4)])
        for column in (3, 4):
            of_attempt = [{line[column] for line in lines if line[1] == str(attempt)} for attempt in range(3)]
            self.assertEqual([len(values) for values in of_attempt], [1, 1, 1], "all of an attempt have the same")
        self.assertEqual(len({line[3] for line in lines}), 3, "no attempt has another's secret")
        for _, _, err in results:
            self.assertIn("tern run: restarting all ranks, restart 2 of 5\n", err)


if __name__ == "__main__":
    skips.main()
