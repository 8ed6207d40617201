"""tern run: the environment of a rank, and the errors for wrong options."""
import errno
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import job
import skips
from folder import InFolder

DUMP = "import json\nprint(json.dumps(dict(os.environ, PPID=os.getppid())), flush=True)\n"


def environments(ranks, *options, **popen):
    """Returns the environment of every rank, and the launcher's pid."""
    with subprocess.Popen([job.TERN, "run", "-n", str(ranks), *options, *job.python(DUMP)], text=True,
                          stdout=subprocess.PIPE, **popen) as launcher:
        out = launcher.communicate(timeout=job.GIVE_UP)[0]
        assert launcher.returncode == 0
    lines = [line for line in out.splitlines() if not line.startswith("[")]
    lines += [line for rank in range(1, ranks) for line in job.lines_of(rank, out)]
    return [json.loads(line) for line in lines], launcher.pid


def usable_cores():
    out = job.tern("info")[1]
    return int(next(line for line in out.splitlines() if line.startswith("cores")).split()[1])


class Environment(unittest.TestCase):
    def test_every_variable_of_torchrun(self):
        found, launcher = environments(3, env={**os.environ, "MINE": "a b", "RANK": "77", "TERN_LISTEN_FD": "5", "TERN_PORT": "6"})
        self.assertEqual(len(found), 3)
        for rank, env in enumerate(found):
            want = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 3,
                    "LOCAL_WORLD_SIZE": 3, "ROLE_WORLD_SIZE": 3, "GROUP_WORLD_SIZE": 1, "ROLE_NAME": "default",
                    "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
                    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "False", "MINE": "a b"}
            self.assertEqual({name: env.get(name) for name in want}, {name: str(value) for name, value in want.items()})
            self.assertEqual(env["MASTER_PORT"], found[0]["MASTER_PORT"])
            self.assertEqual(env["TERN_PORT"], found[0]["TERN_PORT"])
            self.assertNotIn(env["TERN_PORT"], ("6", env["MASTER_PORT"]))
            self.assertEqual(env["PPID"], launcher, "ranks are the launcher's direct children")
            self.assertEqual("TERN_LISTEN_FD" in env, rank == 0)
        self.assertTrue(0 < int(found[0]["MASTER_PORT"]) < 65536)

    def test_secret_is_fresh_and_shared(self):
        first, again = environments(2)[0], environments(2)[0]
        self.assertRegex(first[0]["TERN_SECRET"], "^[0-9a-f]{64}$")
        self.assertEqual(first[0]["TERN_SECRET"], first[1]["TERN_SECRET"])
        self.assertNotEqual(first[0]["TERN_SECRET"], again[0]["TERN_SECRET"])

    def test_threads_share_the_cores(self):
        bare = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        cores = usable_cores()
        for ranks in (1, 2):
            for env in environments(ranks, env=bare)[0]:
                self.assertEqual(env["OMP_NUM_THREADS"], str(max(1, cores // ranks)))
        self.assertEqual(environments(1, env={**bare, "OMP_NUM_THREADS": "7"})[0][0]["OMP_NUM_THREADS"], "7")

    def test_teams_soon_sleep_where_cores_are_short(self):
        """More threads than cores, of the ranks or of other programs; what the user has set stays."""
        names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        bare = {name: value for name, value in os.environ.items() if name not in names}
        many = str(usable_cores() + 1)
        for own, ranks, expected in (({"OMP_NUM_THREADS": many}, 1, "1000"), ({"OMP_NUM_THREADS": "2"}, usable_cores(), "1000"),
                                     ({"OMP_NUM_THREADS": "1"}, 2, None), ({"OMP_NUM_THREADS": many, "GOMP_SPINCOUNT": "7"}, 1, "7"),
                                     ({"OMP_NUM_THREADS": many, "OMP_WAIT_POLICY": "active"}, 1, None)):
            for env in environments(ranks, env={**bare, **own})[0]:
                self.assertEqual(env.get("GOMP_SPINCOUNT"), expected, own)
        busy = [subprocess.Popen([sys.executable, "-S", "-E", "-c", "while True: pass"]) for _ in range(os.cpu_count())]
        try:
            time.sleep(0.5)  # until they compute
            self.assertEqual(environments(1, env={**bare, "OMP_NUM_THREADS": "2"})[0][0].get("GOMP_SPINCOUNT"), "1000")
        finally:
            for process in busy:
                process.kill()
                process.wait()

    def test_signals_are_as_the_launcher_found_them(self):
        def mask_of(command):
            out = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=job.GIVE_UP).stdout
            return [line.split()[-2:] for line in out.splitlines() if "SigBlk" in line or "SigIgn" in line]
        status = ["cat", "/proc/self/status"]
        alone, ranks = mask_of(status), mask_of([job.TERN, "run", "-n", "2", *status])
        self.assertEqual(ranks[:2], alone)
        self.assertEqual(ranks[2:], alone)


class Options(unittest.TestCase):
    def test_both_spellings_and_auto(self):
        for option in ("-n2", "--nproc-per-node=2", "--nproc_per_node=2"):
            code, out, err = job.tern("run", option, "--no-python", "--no_python", "sh", "-c", "echo $WORLD_SIZE")
            self.assertEqual((code, sorted(out.splitlines()), err), (0, ["2", "[1] 2"], ""))
        self.assertEqual(job.tern("run", "sh", "-c", "echo $WORLD_SIZE")[1], "1\n")
        for count in ("auto", "cpu"):
            out = job.tern("run", "-n", count, "sh", "-c", "echo $WORLD_SIZE")[1]
            self.assertIn(str(usable_cores()), out.splitlines())

    def test_gpus(self):
        """This machine may have no GPU, or as many as the driver shows; CUDA_VISIBLE_DEVICES can only hide some."""
        shown = len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)])
        code, out, err = job.tern("run", "-n", "gpu", "sh", "-c", "echo $WORLD_SIZE")
        if shown:
            self.assertEqual((code, out.splitlines()[-1].split()[-1]), (0, str(shown)))
        for variables in ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}, *([] if shown else [{}, {"CUDA_VISIBLE_DEVICES": "0,1"}])):
            code, out, err = job.tern("run", "--nproc-per-node=gpu", "true", env={**os.environ, **variables})
            self.assertEqual((code, out), (2, ""))
            self.assertIn('--nproc-per-node: "gpu" starts one rank per GPU, but this machine has none', err)

    def test_beginnings_and_both_spellings_in_one(self):
        for options in (["--nproc", "2"], ["--nproc_per-node", "2"], ["--np=2"], ["-np", "2"], ["-n", "2", "--"]):
            self.assertEqual(sorted(job.tern("run", *options, "sh", "-c", "echo $WORLD_SIZE")[1].splitlines()), ["2", "[1] 2"], options)

    def test_environment_says_what_the_command_line_does_not(self):
        show = ["sh", "-c", "echo $WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RUN_ID $TORCHELASTIC_MAX_RESTARTS"]
        env = {**os.environ, "PET_NPROC_PER_NODE": "1", "PET_ROLE": "trainer", "PET_RDZV_ID": "a b", "PET_MAX_RESTARTS": "4", "PET_STANDALONE": "1",
               "PET_NO_PYTHON": "0"}
        self.assertEqual(job.tern("run", *show, env=env), (0, "1 trainer a b 4\n", ""))
        self.assertEqual(job.tern("run", "--role", "x", "--max_restarts=0", *show, env={**env, "PET_MAX_RESTARTS": "nonsense"}), (0, "1 x a b 0\n", ""))
        for name, value, text in (("PET_NNODES", "x", 'PET_NNODES: expected a whole number from 1 to 4096, got "x"'),
                                  ("PET_STANDALONE", "yes", 'PET_STANDALONE: expected 0 or 1, got "yes"'), ("PET_ROLE", "", "PET_ROLE: expected a value"),
                                  ("PET_NUMA_BINDING", "node", "PET_NUMA_BINDING: use --bind core"), ("TERN_SECRET", "xyz", "TERN_SECRET is not 64 hex digits")):
            code, out, err = job.tern("run", *show, env={**os.environ, name: value})
            self.assertEqual((code, out), (2, ""))
            self.assertIn(text, err)
            self.assertNotIn("xyz", err)

    def test_every_option_of_torchrun_is_known(self):
        """The options of the newest torchrun, from its documentation; those that are refused give a reason."""
        accepted = {"nnodes": "1", "nproc-per-node": "1", "rdzv-backend": "c10d", "rdzv-endpoint": "127.0.0.1:0", "rdzv-id": "x", "rdzv-conf": "timeout=3,last_call_timeout=5,is_host=1,read_timeout=9",
                    "standalone": None, "max-restarts": "0", "monitor-interval": "0.1", "start-method": "spawn", "role": "x", "no-python": None,
                    "log-dir": tempfile.gettempdir(), "redirects": "0", "tee": "0", "log-line-prefix-template": "", "local-ranks-filter": "", "node-rank": "0",
                    "master-addr": "[::1]" if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") and job.read("/proc/net/if_inet6") else "localhost",
                    "master-port": "0", "local-addr": "127.0.0.1", "shutdown-timeout": "3", "use-env": None, "event-log-handler": "null", "logs-specs": "default"}
        refused = {"rdzv-backend": "etcd-v2", "module": None, "run-path": None, "event-log-handler": "console", "logs-specs": "x", "start-method": "foo", "duplicate-stdout-filters": "x",
                   "duplicate-stderr-filters": "x", "numa-binding": "node", "signals-to-handle": "SIGTERM", "virtual-local-rank": None}
        for spelling in (lambda name: name, lambda name: name.replace("-", "_")):
            for options, want in ((accepted, 0), (refused, 2)):
                for name, value in options.items():
                    with self.subTest(name=name):
                        words = [f"--{spelling(name)}"] + ([] if value is None else [value])
                        with tempfile.TemporaryDirectory() as folder:
                            words = [folder if word == tempfile.gettempdir() else word for word in words]
                            code, _, err = job.tern("run", *words, "true")
                        self.assertEqual(code, want, err)
                        if want:
                            self.assertRegex(err.splitlines()[0], f"^tern run: --{spelling(name)}: .{{10}}")

    def test_what_torchruns_users_pass_by_default(self):
        defaults = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-conf", "join_timeout=600,last_call_timeout=30,close_timeout=30,is_host=true,"
                    "store_type=tcp,use_libuv=0,heartbeat_timeout=5", "--event-log-handler", "null", "--logs-specs=default"]
        for method in ("spawn", "fork", "forkserver"):
            self.assertEqual(job.tern("run", "-n1", *defaults, "--start-method", method, "sh", "-c", "echo $WORLD_SIZE"), (0, "1\n", ""))
        env = {**os.environ, "PET_RDZV_BACKEND": "c10d", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> "}
        self.assertEqual(job.tern("run", "echo", "x", env=env), (0, "<0> x\n", ""))
        self.assertEqual(job.tern("run", "--log-line-prefix-template", "(${rank})", "echo", "x", env=env), (0, "(0)x\n", ""))

    def test_local_rank_for_programs_that_want_it(self):
        show = ["sh", "-c", 'echo "$0 $*"', "first", "x${local_rank}y${local_rank}", "$local_rank", "$$", "${other}", "${local_rank"]
        out = job.tern("run", "-n", "2", *show)[1]
        self.assertEqual(sorted(out.splitlines()), ["[1] first x1y1 $local_rank $$ ${other} ${local_rank", "first x0y0 $local_rank $$ ${other} ${local_rank"])
        out = job.tern("run", "-n", "2", "--pass-local-rank", "echo", "x")[1]
        self.assertEqual(sorted(out.splitlines()), ["--local-rank=0 x", "[1] --local-rank=1 x"])
        self.assertEqual(job.tern("run", "--use-env", "echo", "x")[1], "x\n")

    def test_one_host_may_be_said(self):
        for options in (["--standalone"], ["--nnodes=1", "--node_rank=0"], ["--nnodes", "1", "--node-rank", "0"]):
            self.assertEqual(job.tern("run", *options, "sh", "-c", "echo $GROUP_WORLD_SIZE"), (0, "1\n", ""))

    def test_arguments_after_the_program_are_its_own(self):
        out = job.tern("run", "-n", "1", "echo", "-n", "2", "--help", "--", "x")[1]
        self.assertEqual(out, "2 --help -- x")

    def test_mistakes_say_what_was_expected(self):
        cases = [(["-n", "0", "true"], 'expected a whole number from 1 to 4096, got "0"'),
                 (["-n", "-1", "true"], 'got "-1"'), (["-n", "2x", "true"], 'got "2x"'), (["-n", "", "true"], 'got ""'),
                 (["-n", "99999999999999999999", "true"], 'got "99999999999999999999"'),
                 (["--master-port", "65536", "true"], 'from 0 to 65535, got "65536"'),
                 (["--grace", "soon", "true"], 'expected seconds above 0, got "soon"'),
                 (["--grace", "nan", "true"], 'got "nan"'),
                 (["-n"], "-n: expected a value"), (["--master-addr"], "--master-addr: expected a value"),
                 (["--nnodes", "1:2", "true"], '--nnodes: "1:2": the number of hosts cannot change during a job'), (["--nnodes", "x", "true"], 'got "x"'),
                 (["--standalone", "--nnodes=2", "true"], "--standalone is for one host, got --nnodes 2"),
                 (["--nnodes=2", "--node-rank=2", "true"], "--node-rank 2: expected 0 to 1 with --nnodes 2"),
                 (["--nnodes=2", "--master-port=0", "true"], "--master-port 0: several hosts need a port that all of them know"),
                 (["--rdzv-conf", "is_hosts=1", "true"], '--rdzv-conf: "is_hosts": not one of'), (["--rdzv-conf", "timeout", "true"], "expected NAME=VALUE"),
                 (["--rdzv-conf", "timeout=0", "true"], "expected seconds above 0"), (["--rdzv-endpoint", ":1", "true"], "expected HOST or HOST:PORT"),
                 (["--rdzv-id", "a/b", "true"], "without a slash"), (["--role", "", "true"], "--role: expected a value"),
                 (["--redirects", "4", "true"], "--redirects: expected 0 (nothing)"), (["-t", "0:3,", "true"], '-t: expected 0 (nothing)'),
                 (["-t", "0:3,1", "true"], 'got "0:3,1"'), (["--local-ranks-filter", "0,,1", "true"], "expected local ranks as 0,2"),
                 (["--bind", "socket", "true"], '--bind: expected none, core or auto, got "socket"'), (["--max-restarts", "-1", "true"], 'got "-1"'),
                 (["--no-python=1", "true"], "--no-python: takes no value"), (["--n", "2", "true"], '"--n" may be --nproc-per-node or --nnodes'),
                 (["--node-rank=1", "true"], "--node-rank 1: expected 0 to 0 with --nnodes 1"), (["--rdzv-backend", "c10d", "--nnodes=2", "true"], "--rdzv-backend c10d: hosts are not numbered by their arrival here: give each its --node-rank, 0 to 1"),
                 (["--start-method", "foo", "true"], '--start-method: "foo": expected spawn, fork or forkserver'), (["--rdzv", "true"], '"--rdzv"'), (["-x", "true"], '"-x"'), ([], "expected a program")]
        for args, text in cases:
            with self.subTest(args=args):
                code, out, err = job.tern("run", *args)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(text, err)
                self.assertTrue(err.startswith("tern run: "))

    def test_help(self):
        code, out, err = job.tern("run", "--help")
        self.assertEqual((code, err), (0, ""))
        for option in ("--nproc-per-node", "--master-addr", "--master-port", "--grace", "--no-python", "--standalone", "--nnodes"):
            self.assertIn(option, out)


class Typed(InFolder):
    """A program that cannot be run because of how it was typed."""

    def setUp(self):
        super().setUp()
        for name, mode in (("x.py", 0o644), ("run.py", 0o755), ("train", 0o755), ("notes", 0o644), ("data.csv", 0o644)):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write("1,2\n" if name == "data.csv" else "#!/bin/sh\necho started\n")
            os.chmod(file.name, mode)
        os.mkdir(os.path.join(self.folder, "sub"))

    def test_what_to_type_is_said(self):
        python, here = "A Python program is started by Python: tern run python3 %s", "For the program in this folder: tern run ./%s"
        script, data = "It may not be executed yet: chmod +x %s", "It is not a program. For a program that reads it: tern run PROGRAM %s"
        folder = "It is a folder. For a program in it: tern run %s/PROGRAM"
        cases = {"x.py": (127, python), "./x.py": (126, python), "run.py": (127, python), "train": (127, here), "notes": (127, script), "./notes": (126, script),
                 "data.csv": (127, data), "./data.csv": (126, data), "sub": (127, folder), "./sub": (126, folder),
                 "missing": (127, None), "missing.py": (127, None), "./train/x": (126, None)}
        for name, (want, text) in cases.items():
            for ranks in ("1", "2"):
                with self.subTest(name=name, ranks=ranks):
                    code, out, err = job.tern("run", "-n", ranks, name, "--epochs", "2", cwd=self.folder)
                    self.assertEqual((code, out), (want, ""))
                    first, *rest = err.splitlines()
                    self.assertTrue(first.startswith(f'tern run: cannot run "{name}": '), err)
                    self.assertEqual(rest, [text % name] if text else [])
        self.assertEqual(job.tern("run", "./train", cwd=self.folder), (0, "started\n", ""))


class Cores(unittest.TestCase):
    """The cores of a rank, with the hwloc plug-in and with the kernel's numbers."""

    def masks(self, ranks, *options, **env):
        """Returns the CPUs of each rank and its OMP_NUM_THREADS."""
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        code = "print(rank, *sorted(os.sched_getaffinity(0)), '/', os.environ['OMP_NUM_THREADS'])"
        code, out, err = job.tern("run", "-n", str(ranks), *options, *job.python(code), env={**bare, **env})
        self.assertEqual((code, err), (0, ""))
        found = [(line.partition("] ")[2] or line).partition(" / ") for line in out.splitlines()]
        found = {int(words.split()[0]): (set(map(int, words.split()[1:])), int(threads)) for words, _, threads in found}
        return [found[rank] for rank in range(ranks)]

    def cores(self):
        """Returns the usable CPUs, grouped by core."""
        cores = {}
        for cpu in sorted(os.sched_getaffinity(0)):
            where = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
            try:
                name = job.read(where + "physical_package_id"), job.read(where + "core_id")
            except FileNotFoundError:
                name = cpu
            cores.setdefault(name, set()).add(cpu)
        return list(cores.values())

    def check(self, found, ranks):
        self.assertEqual(sorted(cpu for cpus, _ in found for cpu in cpus), sorted(os.sched_getaffinity(0)), "each CPU is one rank's")
        for cpus, threads in found:
            self.assertEqual(sum(core <= cpus for core in self.cores()), sum(bool(core & cpus) for core in self.cores()), "whole cores")
            self.assertEqual(threads, max(1, usable_cores() // ranks))

    def test_shares_of_whole_cores(self):
        for ranks in {1, 2, 3, len(self.cores())}:
            if ranks > len(self.cores()):
                continue
            for plugins in ({}, {"TERN_PLUGIN_PATH": "/nowhere"}):
                self.check(self.masks(ranks, "--bind", "core", **plugins), ranks)

    def test_more_ranks_than_cores(self):
        count = len(self.cores())
        code, _, err = job.tern("run", "-n", str(count + 1), "--bind", "core", "true")
        self.assertEqual(code, 1)
        self.assertIn(f"--bind core: {count + 1} ranks, but only {count} usable core", err)
        for cpus, _ in self.masks(count + 1, "--bind", "auto"):
            self.assertEqual(cpus, os.sched_getaffinity(0))

    def test_who_has_chosen_is_left_alone(self):
        all_of_them = os.sched_getaffinity(0)
        for options, env in (((), {}), (("--bind", "none"), {}), ((), {"OMP_PLACES": "cores"}), (("--bind=auto",), {"OMP_PLACES": "cores"}),
                             (("--bind=auto",), {"OMP_PROC_BIND": "true"}), (("--bind=auto",), {"GOMP_CPU_AFFINITY": "0"})):
            self.assertEqual([cpus for cpus, _ in self.masks(2, *options, **env)], [all_of_them] * 2, (options, env))
        self.assertEqual(self.masks(1, "--bind=auto")[0][0], all_of_them)

    def test_auto_binds_on_a_whole_machine(self):
        whole = len(os.sched_getaffinity(0)) == os.sysconf("SC_NPROCESSORS_ONLN") == usable_cores()
        if len(self.cores()) < 2 or not whole:
            self.skipTest("one core, or not all of them are ours")
        self.check(self.masks(2, "--bind=auto"), 2)

    def test_where_no_process_may_choose(self):
        number = 203 if os.uname().machine == "x86_64" else 122  # sched_setaffinity
        forbid = lambda: job.forbid(number, errno.EPERM)
        self.assertEqual(job.tern("run", "-n", "2", "--bind", "auto", "true", preexec_fn=forbid), (0, "", ""))
        code, _, err = job.tern("run", "--bind", "core", "true", preexec_fn=forbid)
        self.assertEqual(code, 1)
        self.assertIn("--bind core: this system does not let a process choose its CPUs: Operation not permitted", err)

    def test_a_part_of_the_machine_is_shared_out_on_request(self):
        one = min(os.sched_getaffinity(0))
        code = "print(*sorted(os.sched_getaffinity(0)))"
        for options in ((), ("--bind", "auto"), ("--bind", "core")):
            out = job.tern("run", *options, *job.python(code), preexec_fn=lambda: os.sched_setaffinity(0, {one}))[1]
            self.assertEqual(out, f"{one}\n")


class Program(unittest.TestCase):
    def test_missing_program_is_named_once(self):
        self.assertEqual(job.tern("run", "-n", "3", "no-such-program", "x"),
                         (127, "", 'tern run: cannot run "no-such-program": No such file or directory\n'))

    def test_not_executable(self):
        self.assertEqual(job.tern("run", "-n", "2", "/dev/null"), (126, "", 'tern run: cannot run "/dev/null": Permission denied\n'))

    def test_closed_standard_descriptors(self):
        """Closed standard streams stay closed for rank 0, and no socket or pipe of the launcher takes their numbers."""
        show = """
import stat
wrong = 0
for fd in (0, 1, 2):
    try: wrong += stat.S_ISSOCK(os.fstat(fd).st_mode) or rank == 0 and str(fd) in sys.argv[1]
    except OSError: wrong += rank > 0
os._exit(wrong)
"""
        for closed, shell in (("0", "<&-"), ("1", ">&-"), ("012", "<&- >&- 2>&-")):
            command = ["sh", "-c", f'exec "$@" {shell}', "sh", job.TERN, "run", "-n", "2", *job.python(show, closed)]
            self.assertEqual(subprocess.run(command, timeout=job.GIVE_UP, stdin=subprocess.DEVNULL).returncode, 0, closed)


class MeetingPoint(unittest.TestCase):
    CODE = """
import socket
sockets = sum(os.readlink(f'/proc/self/fd/{fd}').startswith('socket') for fd in range(3, 20)
              if os.path.lexists(f'/proc/self/fd/{fd}'))
if rank == 0:
    listener = socket.socket(fileno=int(os.environ['TERN_LISTEN_FD']))
    assert sockets == 1 and listener.getsockname() == (os.environ['MASTER_ADDR'], int(os.environ['TERN_PORT']))
    listener.setblocking(True)
    print('got', listener.accept()[0].recv(9).decode())
else:
    assert sockets == 0
    socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['TERN_PORT'])), 5).sendall(b'hello')
"""

    def test_rank0_inherits_a_socket_that_listens(self):
        self.assertEqual(job.tern("run", "-n", "2", *job.python(self.CODE)), (0, "got hello\n", ""))

    def test_the_program_may_listen_on_master_port(self):
        """The port is reserved for the whole job: neither binding to port 0 nor an outgoing connection can get it."""
        code = """
import socket
port = int(os.environ['MASTER_PORT'])
if rank == 0:
    for address in ('127.0.0.1', '', '127.0.0.1'):
        with socket.create_server((address, port)) as server:
            client = socket.create_connection(('127.0.0.1', port), 5)
            server.accept()[0].close()
            client.close()
    try:
        with socket.socket() as other: other.bind(('127.0.0.1', port))
        print('not reserved')
    except OSError: print('reserved')
"""
        for options in ((), ("--master-addr", "127.0.0.2")):
            self.assertEqual(job.tern("run", "-n", "2", *options, *job.python(code)), (0, "reserved\n", ""))

    def test_fixed_port_free_then_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
            code, out, err = job.tern("run", "-n", "2", "--master-port", str(port), "echo", "started")
        self.assertEqual((code, out), (1, ""))
        self.assertIn(f"port {port} of 127.0.0.1 is taken", err)
        self.assertEqual(job.tern("run", "--master_port", str(port), "sh", "-c", "echo $MASTER_PORT"), (0, f"{port}\n", ""))

    def test_address_of_no_interface_and_no_address(self):
        for address in ("192.0.2.1", "no.such.host.invalid"):
            code, out, err = job.tern("run", "--master-addr", address, "echo", "started")
            self.assertEqual((code, out), (1, ""))
            self.assertIn(address, err)

    def test_peers_are_refused_once_rank0_is_dead(self):
        code = """
import socket
if rank == 0: sys.exit(0)
for _ in range(500):
    try: socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['TERN_PORT'])), 5).close()
    except ConnectionRefusedError: sys.exit(0)
    except ConnectionResetError: pass  # the peer was just dying
    time.sleep(0.01)
sys.exit(1)
"""
        self.assertEqual(job.tern("run", "-n", "2", *job.python(code))[0], 0)

    def test_a_program_that_was_started_without_the_socket(self):
        """Rank 0 listens itself, unless another process still holds the socket; then a message tells what to do."""
        for wrapper, expected in (("os.closerange(3, 64)\nos.execv(sys.argv[1], sys.argv[1:])\n", (0, "")),
                                  ("import subprocess\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n", (1, "close_fds=False"))):
            code, _, err = job.tern("run", "-n", "2", *job.python(wrapper, job.TERN, "bench", "barrier"))
            self.assertEqual((code, expected[1] in err), (expected[0], True), err)

    def test_secret_is_on_no_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "with open('secret', 'w') as file: file.write(os.environ['TERN_SECRET'])\nsys.stdin.read()\n"
            with job.Job(folder, 1, job.python(code), stdin=subprocess.PIPE) as run:
                path = os.path.join(folder, "secret")
                job.until(lambda: os.path.exists(path) and os.path.getsize(path) == 64, "the secret written")
                secret, seen = job.read(path), 0
                for pid in filter(str.isdigit, os.listdir("/proc")):
                    try:
                        line = job.read(f"/proc/{pid}/cmdline")
                    except (FileNotFoundError, ProcessLookupError):
                        continue
                    seen += int(pid) == run.launcher.pid
                    self.assertNotIn(secret, line)
                self.assertEqual(seen, 1)


if __name__ == "__main__":
    skips.main()
