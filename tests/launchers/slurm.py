"""A Slurm cluster of two nodes on this machine: munged, slurmctld and a slurmd per node, with their own
folder, key and ports.

    with slurm.Cluster() as cluster:
        cluster.run("srun", "-n", "2", "program")
"""
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

DAEMONS = ("munged", "slurmctld", "slurmd")
NODES = ("n001", "n002")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
PR_SET_PDEATHSIG = 1

# Tasks run side by side on any cores, without accounting. The port of a job follows from its number, so two
# clusters on one machine must start with different job numbers.
CONF = """
ClusterName=tern
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
KillWait=1
FirstJobId={first_job}
PartitionName=all Nodes={nodes} Default=YES OverSubscribe=FORCE
"""
# Without it the slurmd of Slurm 24.11 (Debian 13) ends where /sys/fs/cgroup is not mounted, as in a chroot.
# That of 22.05 (Debian 12) needs no cgroups, and does not know the word.
CGROUP_CONF = "CgroupPlugin=disabled\n"
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"


def missing():
    """Returns the programs that a cluster needs and this machine lacks, or ""."""
    lacking = [name for name in (*DAEMONS, "srun", "sbatch") if not shutil.which(name, path=PATH)]
    return ", ".join(lacking)


def major_version():
    """Returns 24 for "slurm 24.11.5"."""
    text = subprocess.run(["slurmd", "-V"], env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=True).stdout
    return int(text.split()[1].split(".")[0])


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def die_with_parent():
    """Makes the kernel kill the process when the test ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_those_in(folder):
    """Kills the processes that run in the folder: a slurmstepd is an orphan and retries long to reach its
    slurmd."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd").startswith(folder):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass


def until(condition, what, seconds=15):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds} s: not {what}")
        time.sleep(0.02)


class Cluster:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tern-slurm-")
        self.daemons = []
        self.env = {name: value for name, value in os.environ.items()
                    if name != "LD_PRELOAD" and not name.startswith(("SLURM_", "TERN_SECRET", "MASTER_"))}
        self.env.update(PATH=PATH, SLURM_CONF=self.path("slurm.conf"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write_conf(self):
        host, ports = socket.gethostname(), free_ports(1 + len(NODES))
        user = pwd.getpwuid(os.geteuid()).pw_name
        text = CONF.format(host=host, port=ports[0], user=user, folder=self.folder, nodes=",".join(NODES),
                           first_job=random.randrange(1, 10 ** 6))
        for name, port in zip(NODES, ports[1:]):
            text += NODE.format(name=name, host=host, port=port)
        with open(self.path("slurm.conf"), "w") as file:
            file.write(text)
        if major_version() >= 24:
            with open(self.path("cgroup.conf"), "w") as file:
                file.write(CGROUP_CONF)
        with open(self.path("munge.key"), "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as file:
            file.write(os.urandom(128))
        for name in ("state", *NODES):
            os.mkdir(self.path(name))

    def start(self, *command):
        log = open(self.path(f"{len(self.daemons)}-{command[0]}.log"), "w")
        with log:
            self.daemons.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                 cwd=self.folder, preexec_fn=die_with_parent))

    def is_idle(self):
        states = self.run("sinfo", "-h", "-N", "-o", "%T")[1].split()
        return states == ["idle"] * len(NODES)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(self.path(name), errors="replace") as file:
                    text += f"--- {name}\n{file.read()[-2000:]}"
        return text

    def __enter__(self):
        try:
            self.write_conf()
            munge = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.out",
                     "seed-file": "munge.seed"}
            self.start("munged", "-F", "--force", *(f"--{name}={self.path(file)}" for name, file in munge.items()))
            until(lambda: os.path.exists(self.path("munge.socket")), "munged is there")
            self.start("slurmctld", "-D", "-i")
            for name in NODES:
                self.start("slurmd", "-D", "-N", name)
            until(self.is_idle, "all nodes idle")
        except BaseException:
            print(self.logs(), file=sys.stderr)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=3)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        end_those_in(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command, timeout=60, env=(), **options):
        """Returns (exit code, stdout, stderr)."""
        done = subprocess.run(command, env={**self.env, **dict(env)}, text=True, capture_output=True, timeout=timeout,
                              stdin=subprocess.DEVNULL, **options)
        return done.returncode, done.stdout, done.stderr
