"""What hosts.sh does: run.py's rounds and table of steps whose two ranks are started on two hosts."""
import argparse
import os
import subprocess
import sys
import tempfile
import time

from peers import TERN, Torch, find_peers, launched
from run import help_openblas, machine, measure, step_rows, summary, table

ADDRESSES = ("10.78.0.1", "10.78.0.2")


def ip(*words):
    done = subprocess.run(["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"hosts.sh: ip {' '.join(words)}: {done.stdout.strip()}")


class Hosts:
    """Two network namespaces named after this process, and a link between them."""

    def __init__(self, rate):
        self.rate = rate
        self.names, self.links = ([f"{word}{os.getpid()}{side}" for side in "ab"] for word in ("tern", "t"))

    def __enter__(self):
        try:
            self.make()
        except SystemExit:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        (here, there), (one, other) = self.names, self.links
        ip("link", "add", one, "netns", here, "type", "veth", "peer", "name", other, "netns", there)
        for name, link, address in zip(self.names, self.links, ADDRESSES):
            ip("-n", name, "addr", "add", address + "/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
            if self.rate != "any":
                ip("netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", self.rate, "burst", "256kb",
                   "latency", "50ms")

    def begin(self, side, argv, environment):
        words = ["ip", "netns", "exec", self.names[side], TERN, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(side),
                 "--master-addr", ADDRESSES[0], *map(str, argv)]
        about = {"GLOO_SOCKET_IFNAME": self.links[side], "TERN_STARTED_NS": str(time.monotonic_ns())}
        return subprocess.Popen(words, env={**os.environ, **about, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def launched(self, ranks, *argv, **environment):
        """As peers.launched, a rank on each host."""
        assert ranks == 2
        both = [self.begin(side, argv, environment) for side in (0, 1)]
        said = [one.communicate(timeout=1800) for one in both]
        if any(one.returncode for one in both):
            sys.exit("".join(text for pair in said for text in pair))
        return said[0][0]


def measured(model, rate, peers, rounds):
    """Text: the table of this rate."""
    where = {"one": "on one host", "any": "between two hosts"}.get(rate, f"between two hosts at {rate}")
    rows = step_rows(f"{model}, {where}", model)[:2]
    values, _ = measure(rows, peers, rounds, lambda text: print(text, file=sys.stderr, flush=True))
    return table(summary(rows, [peer.name for peer in peers], values))


def run(model, rate, peers, rounds):
    if rate == "one":
        return measured(model, rate, peers, rounds)
    with Hosts(rate) as hosts:
        for peer in peers:
            peer.start = hosts.launched
        try:
            return measured(model, rate, peers, rounds)
        finally:
            for peer in peers:
                peer.start = launched


def main():
    parser = argparse.ArgumentParser(prog="hosts.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--model", default="resnet18", choices=["mlp", "resnet18", "unet3d"])
    parser.add_argument("--rates", default="one,any,10gbit,1gbit")
    parser.add_argument("--peers", metavar="WORD,..", help="whose names have a part of these")
    args = parser.parse_args()
    help_openblas()
    with tempfile.TemporaryDirectory() as folder:
        peers, absent = find_peers(folder, args.peers.split(",") if args.peers else ())
        peers = [peer for peer in peers if peer.name == "tern" or isinstance(peer, Torch)]
        print("\n".join([", ".join(f"{name} {value}" for name, value in machine().items()), *absent]), flush=True)
        for rate in args.rates.split(","):
            print(run(args.model, rate, peers, args.rounds), flush=True)


if __name__ == "__main__":
    main()
