"""tern run on two hosts with a network: two network namespaces and a pair of virtual interfaces, which can be taken down. Needs
root."""
import contextlib
import os
import re
import signal
import subprocess
import sys

import job
import skips

sys.path.insert(0, os.path.join(os.environ["TERN_SOURCE"], "bench", "peers"))
from network import ADDRESSES, Hosts, ip  # noqa: E402

READY = job.Job.READY
SLEEP = job.SLEEP


class BridgedHosts(Hosts):
    """Two hosts at a bridge. One that forwards packets can drop them without a word to their sender."""

    def __init__(self):
        super().__init__()
        self.names, self.links = [f"bridged{os.getpid()}{side}" for side in "abc"], ("port0", "port1")

    def make(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            ip(name, "link", "set", "lo", "up")
        middle = self.names[2]
        ip(middle, "link", "add", "bridge", "up", "type", "bridge")
        for name, link, address in zip(self.names, self.links, ADDRESSES):
            ip(middle, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip(middle, "link", "set", link, "up", "master", "bridge")
            ip(name, "addr", "add", address + "/24", "dev", "eth0")
            ip(name, "link", "set", "eth0", "up", "gso_max_segs", "1")

    def limit(self, mtu):
        """Lets packets of at most `mtu` bytes through to host 0, which promises its peers to take larger ones."""
        for words in (["link", "set", "eth0", "mtu", str(mtu)], ["route", "change", "10.77.0.0/24", "dev", "eth0", "src", ADDRESSES[0], "advmss", "1460"]):
            ip(self.names[0], *words)


class Network(job.Launchers):
    def setUp(self):
        super().setUp()
        network = contextlib.ExitStack()
        self.addCleanup(network.close)
        self.network = network
        self.hosts = network.enter_context(Hosts())

    def launch(self, node, ranks, code, *options):
        return self.start(node, self.line(node, ranks, ADDRESSES[0], options) + job.python(code))

    def line(self, node, ranks, address, options=()):
        return [job.TERN, "run", "-n", str(ranks), "--nnodes", "2", "--node-rank", str(node), "--master-addr", address,
                "--rdzv-conf", "timeout=30,keep_alive_interval=1,keep_alive_max_attempt=2", *options]

    def start(self, node, line):
        env = {**os.environ, "TERN_HOST_ID": f"host{node}", "TERN_SECRET": "77" * 32}
        launcher = subprocess.Popen(self.hosts.command(node, *line), text=True, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.end, launcher)
        return launcher

    def until_dead(self, pids):
        job.until(lambda: not any(map(job.is_alive, pids)), f"all of {pids} dead")

    KNOCK = """
import socket
where = (os.environ['MASTER_ADDR'], int(os.environ['TERN_PORT']))
if rank == 0:
    listener = socket.socket(fileno=int(os.environ['TERN_LISTEN_FD']))
    listener.setblocking(True)
    print(sorted(listener.accept()[0].recv(1).decode() for _ in range(2)))
else: socket.create_connection(where, 5).sendall(b'%d' % rank)
"""

    def assert_knocked(self, launchers):
        """Checks the output of node 1 and node 0: ranks 1 and 2 have reached rank 0."""
        results = [launcher.communicate(timeout=job.GIVE_UP) + (launcher.returncode,) for launcher in launchers]
        self.assertEqual(results, [("", "", 0), ("['1', '2']\n", "", 0)])

    def test_ranks_meet_over_the_network(self):
        self.assert_knocked([self.launch(1, 2, self.KNOCK), self.launch(0, 1, self.KNOCK)])

    def test_nobody_listens_anywhere_else(self):
        """The launcher does not listen on the host's other addresses, and no longer on MASTER_PORT once all hosts have joined."""
        launchers = [self.launch(node, 1, READY + "while not os.path.exists('go'): time.sleep(0.01)\n") for node in (0, 1)]
        self.pids(2)
        sockets = subprocess.run(self.hosts.command(0, "cat", "/proc/net/tcp", "/proc/net/tcp6"), capture_output=True, text=True)
        listening = [line.split()[1] for line in sockets.stdout.splitlines() if " 0A " in line]
        self.assertEqual([where.partition(":")[0] for where in listening], ["01004D0A"], "the ranks' meeting point, at 10.77.0.1")
        self.assertNotEqual(int(listening[0].partition(":")[2], 16), 29500)
        open(os.path.join(self.folder, "go"), "w").close()
        self.assertEqual([launcher.wait(job.GIVE_UP) for launcher in launchers], [0, 0])

    HOSTS = ("127.0.0.1 localhost\n127.0.1.1 node0\n", "127.0.0.1 localhost\n127.0.1.1 node1\n%s node0\n" % ADDRESSES[0])

    def start_named(self, node, line):
        """On a host that resolves its own name to its loopback address, as Debian's installer configures it."""
        path = os.path.join(self.folder, f"hosts{node}")
        with open(path, "w") as file:
            file.write(self.HOSTS[node])
        return self.start(node, ["unshare", "--mount", "sh", "-c", f'mount --bind {path} /etc/hosts && exec "$@"', "sh", *line])

    def test_a_name_that_is_the_hosts_own_loopback(self):
        """The other hosts resolve the name to an address of the network."""
        for options in ((), ("--local-addr", ADDRESSES[0])):
            with self.subTest(options=options):
                sizes = (2, 1)
                self.assert_knocked([self.start_named(node, self.line(node, sizes[node], "node0", ("--rdzv-conf", "timeout=5", *(options if not node else ())))
                                                      + job.python(self.KNOCK)) for node in (1, 0)])

    def test_a_job_of_one_host_stays_inside_with_such_a_name(self):
        self.start_named(0, [job.TERN, "run", "-n", "2", "--master-addr", "node0", *job.python(READY + SLEEP)])
        self.pids(2)
        sockets = subprocess.run(self.hosts.command(0, "cat", "/proc/net/tcp", "/proc/net/tcp6"), capture_output=True, text=True)
        listening = [line.split()[1] for line in sockets.stdout.splitlines() if " 0A " in line]
        self.assertEqual([where.partition(":")[0] for where in listening], ["0101007F"], "127.0.1.1")

    def test_a_failure_crosses_the_network(self):
        launchers = [self.launch(node, 1, READY + SLEEP) for node in (0, 1)]
        pids = self.pids(2)
        os.kill(pids[1], signal.SIGKILL)
        self.until_dead(pids)
        for launcher in launchers:
            err = launcher.communicate(timeout=job.GIVE_UP)[1]
            self.assertEqual(launcher.returncode, 137)
            self.assertIn("rank 1 (pid %d) was killed by signal 9 (SIGKILL)" % pids[1], err)

    def test_a_lost_network_is_noticed_on_both_sides(self):
        """2 s of silence are the limit here; the kernel's default is a quarter of an hour."""
        launchers = [self.launch(node, 1, READY + SLEEP) for node in (0, 1)]
        pids = self.pids(2)
        self.hosts.cut()
        self.until_dead(pids)
        for node, launcher in enumerate(launchers):
            err = launcher.communicate(timeout=job.GIVE_UP)[1]
            self.assertEqual(launcher.returncode, 1)
            self.assertRegex(err, rf"tern run: node {1 - node} \(.*\): its tern run is gone: (Connection timed out|No route to host)")

    def test_a_network_that_drops_large_packets(self):
        """Node 1 tries as long as node 0 waits; both say what may be wrong, and node 0 what it lacks. A mended network is enough to start
        the job."""
        self.hosts = self.network.enter_context(BridgedHosts())
        self.hosts.limit(600)
        launchers = [self.launch(node, 1, "pass", "--rdzv-conf", "timeout=7") for node in (0, 1)]
        (_, err), (_, other) = [launcher.communicate(timeout=job.GIVE_UP) for launcher in launchers]
        self.assertIn("1 of 2 hosts joined within 7 s; missing: node 1", err)
        lost = re.findall(r"tern run: 10.77.0.2 port \d+ has connected, but of its message of \d+ bytes (none|only \d+) came (?:within 5 s|before it hung up); "
                          r"still waiting \(does the network drop large packets\?\)\n", err)
        self.assertEqual(len(lost), 1, err)
        self.assertRegex(other, r"tern run: node 0 closed the connection before it had this node's message of \d+ bytes; still trying \(does the network drop large packets\?\)")
        self.assertNotIn("is gone", other[:other.index("large packets")])
        self.assertEqual([launcher.returncode for launcher in launchers], [1, 1])
        launchers = [self.launch(node, 1, "pass", "--rdzv-conf", "timeout=60") for node in (0, 1)]
        said = launchers[1].stderr.readline()
        self.assertIn("does the network drop large packets?", said)
        self.hosts.limit(1500)
        self.assertEqual([launcher.wait(job.GIVE_UP) for launcher in launchers], [0, 0])

    def test_node_0_unreachable(self):
        self.hosts.cut()
        launcher = self.launch(1, 1, "pass", "--rdzv-conf", "timeout=1")
        err = launcher.communicate(timeout=job.GIVE_UP)[1]
        self.assertEqual(launcher.returncode, 1)
        self.assertRegex(err, r"cannot reach node 0's tern run at 10.77.0.1 port 29500: \d+ attempts in .*(unreachable|timed out|No route)")

    def test_loopback_down(self):
        """Ranks do not wait for the machine's own loopback interface to come up."""
        done = subprocess.run(["unshare", "-n", job.TERN, "run", "-n", "2", job.TERN, "bench", "barrier"], capture_output=True, text=True, timeout=job.GIVE_UP)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"cannot reach rank 0's store at 127.0.0.1 port \d+: 1 attempt in 0.\d s, the last: Network is unreachable")

    def test_master_port_is_free_on_every_address(self):
        """The port is reserved at 127.0.0.2, and the program listens elsewhere, where most ports are taken."""
        holder = """
import socket, subprocess, sys
held = [socket.socket() for _ in range(16)]
for i, taken in enumerate(held): taken.bind(('127.0.0.1', 40000 + i * 3 // 2))
for _ in range(4): subprocess.run(sys.argv[1:], check=True)
"""
        program = """
import socket
port = int(os.environ['MASTER_PORT'])
for address in ('127.0.0.1', '', '127.0.0.2') if rank == 0 else (): socket.create_server((address, port)).close()
"""
        prepare = "ip link set lo up && echo 40000 40023 > /proc/sys/net/ipv4/ip_local_port_range && exec \"$@\""
        launch = [job.TERN, "run", "-n", "2", "--master-addr", "127.0.0.2", *job.python(program)]
        self.assertEqual(job.run("unshare", "-n", "sh", "-c", prepare, "sh", sys.executable, "-c", holder, *launch), (0, "", ""))


def why_not():
    """Returns what is missing on this machine, or None."""
    try:
        with Hosts():
            return None
    except FileNotFoundError:
        return "no ip command (the package iproute2)"
    except SystemExit as failure:
        return f"no network namespaces here: {failure}"


if __name__ == "__main__":
    missing = why_not()
    if missing:
        skips.end(missing)
    skips.main()
