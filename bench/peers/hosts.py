"""Implements hosts.sh: run.py's rounds and table, with the two ranks of a step on two hosts."""
import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time

from network import ADDRESSES, Hosts
from peers import TERN, Torch, find_peers, launched
from run import check_build, help_openblas, machine, measure, step_rows, summary, table


class Start:
    """Starts a command as peers.launched does, but with a rank on each host."""

    def __init__(self, hosts):
        self.hosts = hosts

    def begin(self, side, argv, environment):
        words = self.hosts.command(side, TERN, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(side), "--master-addr", ADDRESSES[0],
                                   *map(str, argv))
        about = {"GLOO_SOCKET_IFNAME": self.hosts.links[side], "TERN_STARTED_NS": str(time.monotonic_ns())}
        return subprocess.Popen(words, env={**os.environ, **about, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def __call__(self, ranks, *argv, **environment):
        assert ranks == 2
        both = [self.begin(side, argv, environment) for side in (0, 1)]
        try:
            said = [one.communicate(timeout=1800) for one in both]
        finally:
            for one in both:
                one.kill()
        if any(one.returncode for one in both):
            sys.exit("".join(text for pair in said for text in pair))
        return said[0][0]


def measured(model, rate, peers, rounds):
    """Returns the table for this rate as text, and signs that the work was not the same."""
    where = {"one": "on one host", "any": "between two hosts"}.get(rate, f"between two hosts at {rate}")
    rows = [row for row in step_rows(f"{model}, {where}", model) if row.unit == "ms"]
    values, _, complaints = measure(rows, peers, rounds, lambda text: print(text, flush=True))
    return table(summary(rows, [peer.name for peer in peers], values)), complaints


def run(model, rate, peers, rounds):
    with contextlib.nullcontext() if rate == "one" else Hosts(rate) as hosts:
        for peer in peers:
            peer.start = Start(hosts) if hosts else launched
        return measured(model, rate, peers, rounds)


def parse():
    parser = argparse.ArgumentParser(prog="hosts.sh")
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--model", default="resnet18", choices=["mlp", "resnet18", "unet3d"])
    parser.add_argument("--rates", default="one,any,10gbit,1gbit")
    parser.add_argument("--peers", metavar="WORD,..", help="peers whose names contain any of these")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("rounds: expected 1 or more")
    return args


def main():
    args = parse()
    check_build("hosts.sh")
    help_openblas()
    with tempfile.TemporaryDirectory() as folder:
        peers, absent = find_peers(folder, args.peers.split(",") if args.peers else ())
        peers = [peer for peer in peers if peer.name == "tern" or isinstance(peer, Torch)]
        print("\n".join([", ".join(f"{name} {value}" for name, value in machine().items()), *absent]), flush=True)
        is_same = True
        for rate in args.rates.split(","):
            text, complaints = run(args.model, rate, peers, args.rounds)
            print(f"\n{text}\n", flush=True)
            is_same &= not complaints
    if not is_same:
        sys.exit(1)


if __name__ == "__main__":
    main()
