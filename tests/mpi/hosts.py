"""Two hosts, simulated by network namespaces with a virtual cable: mpirun starts ranks on both. Needs
root."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import mpirun

ADDRESSES = "10.98.1.1", "10.98.1.2"
NAMES = "one", "two"

# Replaces ssh for mpirun: runs the command on the host whose address or name comes first in it.
AGENT = """#!/bin/sh
while :; do
    case "$1" in
    {0} | {2}) host={4}; break ;;
    {1} | {3}) host={5}; break ;;
    esac
    shift
done
shift
exec nsenter -t $host -n -u sh -c "$*"
"""


class Host:
    """A process that keeps a host's namespaces alive; `run` runs a command in them."""

    def __init__(self, name):
        self.holder = subprocess.Popen(["unshare", "-n", "-u", "sh", "-c", f"hostname {name} && ip link set lo up && echo && exec sleep 600"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.is_up = self.holder.stdout.readline() == b"\n"

    def command(self, *what):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u", *what]

    def run(self, *what):
        return subprocess.run(self.command(*what), capture_output=True).returncode == 0

    def close(self):
        """Ends all processes in its namespace: an MPI's daemon stays if it cannot reach the launcher."""
        space = f"/proc/{self.holder.pid}/ns/net"
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.path.samefile(f"/proc/{pid}/ns/net", space) and int(pid) != self.holder.pid:
                    os.kill(int(pid), signal.SIGKILL)
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def can_be():
    """Returns true if this user may create namespaces and virtual cables."""
    host = Host("trial")
    works = host.is_up and host.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    host.close()
    return works


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.hosts = [Host(name) for name in NAMES]
        for host in self.hosts:
            self.addCleanup(host.close)
        one, two = self.hosts
        self.assertTrue(one.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(two.holder.pid)))
        for host, address in zip(self.hosts, ADDRESSES):
            self.assertTrue(host.run("ip", "addr", "add", address + "/24", "dev", "eth0") and host.run("ip", "link", "set", "eth0", "up"))
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.agent = os.path.join(self.folder.name, "agent")
        with open(self.agent, "w") as file:
            file.write(AGENT.format(*ADDRESSES, *NAMES, *(host.holder.pid for host in self.hosts)))
        os.chmod(self.agent, 0o755)

    def start(self, *what, options=(), **more):
        """Starts two ranks on each host. Open MPI 5 takes two addresses for one host, and if ranks may exceed the slots it puts
        all of them on the first."""
        if mpirun.NAME == "mpich":
            launcher = [*mpirun.LAUNCHER, "-launcher", "ssh", "-launcher-exec", self.agent, "-hosts", ",".join(a + ":2" for a in ADDRESSES)]
        else:
            launcher = [*mpirun.LAUNCHER[:2], "--mca", "plm_rsh_agent", self.agent, "--host", ",".join(n + ":2" for n in NAMES)]
        return subprocess.Popen(self.hosts[0].command(*launcher, *options, "-n", "4", *what), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=mpirun.environment(**more))

    def run_ranks(self, *what):
        job = self.start(*what)
        out, err = job.communicate(timeout=60)
        return subprocess.CompletedProcess(job.args, job.returncode, out, err)

    def test_transport(self):
        """The ranks meet at an address that both hosts can reach, and the messages go over the cable."""
        seen = os.path.join(self.folder.name, "seen")
        os.mkdir(seen)
        env = f"TERN_PLUGIN_PATH={mpirun.BUILD}"
        done = self.run_ranks("env", env, mpirun.program("mpi_storm"), "hosts", seen)
        self.assertEqual(sorted(os.listdir(seen)), ["0", "1", "2", "3"], done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_group(self):
        """One group over both hosts uses windows within each host and MPI between them."""
        done = self.run_ranks(mpirun.program("mpi_rank"), "bits")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = re.findall(r"rank (\d) of 4, local (\d), pid \d+, (\S+)", done.stdout)
        self.assertEqual(sorted(lines), [(str(rank), str(rank % 2), "native+mpi") for rank in range(4)])
        self.assertEqual(len(set(re.findall(r"hash (\w+)", done.stdout))), 1)

    @unittest.skipIf(mpirun.NAME == "mpich", "MPICH's UCX sees that the hosts are one machine, and uses its memory")
    def test_a_network_that_drops_large_packets(self):
        """MPI's own connections notice nothing for a quarter of an hour. The group's time-out ends the wait, and names the ranks
        on both hosts."""
        self.assertTrue(self.hosts[0].run("ip", "link", "set", "eth0", "gso_max_segs", "1"))  # the cable would pass larger ones whole
        job = self.start(mpirun.program("mpi_rank"), "pour")
        self.addCleanup(job.kill)
        for _ in range(4):
            self.assertRegex(job.stdout.readline(), r"rank \d of 4, local \d, pid \d+, native\+mpi")
        self.assertTrue(self.hosts[1].run("ip", "link", "set", "eth0", "mtu", "600"))
        begin = time.monotonic()
        self.assertNotEqual(job.wait(timeout=60), 0)
        self.assertLess(time.monotonic() - begin, 30)
        self.hosts[1].close()  # Open MPI 5 has a daemon there that its launcher can no longer reach; it keeps the pipes open
        err = job.communicate(timeout=60)[1]
        self.assertRegex(err, r"rank \d waited 4 s in all_reduce of \d+ \w+, sum \(work \d+\); rank \d \((one|two), pid \d+\)")
        for name in NAMES:
            self.assertRegex(err, rf"rank \d \({name}, pid \d+\)")

    def test_a_killed_rank(self):
        """The rank is killed on the host without mpirun. The others report it, or are killed before they
        can."""
        job = self.start(mpirun.program("mpi_rank"), "work")
        pids = dict(re.match(r"rank (\d) of 4, local \d, pid (\d+)", job.stdout.readline()).groups() for _ in range(4))
        os.kill(int(pids["3"]), signal.SIGKILL)
        begin = time.monotonic()
        job.communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertNotEqual(job.returncode, 0)

    def test_a_cut_cable(self):
        """The ranks of both hosts end, and so does the launcher. Open MPI's has to probe its connections for that, and to notice
        before its ranks do (docs/launchers.md)."""
        options, seconds = [], "3"
        if mpirun.NAME == "openmpi":
            if mpirun.version() >= (5, 0):
                self.skipTest("its daemons do not look for hosts that are cut off")
            seconds = "10"
            for name, value in (("time", 1), ("intvl", 1), ("probes", 2)):
                options += ["--mca", f"oob_tcp_keepalive_{name}", str(value)]
        job = self.start(mpirun.program("mpi_rank"), "hurry", seconds, options=options)
        pids = dict(re.match(r"rank (\d) of 4, local \d, pid (\d+)", job.stdout.readline()).groups() for _ in range(4))
        self.assertTrue(self.hosts[0].run("ip", "link", "set", "eth0", "down"))
        self.assertNotEqual(job.wait(timeout=60), 0)
        ends = time.monotonic() + 60
        while any(os.path.exists(f"/proc/{pid}") for pid in pids.values()) and time.monotonic() < ends:
            time.sleep(0.05)
        self.assertEqual([pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")], [])
        job.stdout.close()
        job.stderr.close()


if __name__ == "__main__":
    if not shutil.which("ip"):
        mpirun.main("no ip command (the package iproute2)")
    mpirun.main(None if can_be() else "no namespaces with cables here: they need root")
