"""Simulates two hosts on this machine: network namespaces named after this process, with a link between them. Needs root."""
import os
import subprocess

from peers import output

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(name, *words):
    """Runs ip in the namespace. `ip -n` and `ip netns exec` would mount a /sys, too, which fails in a chroot that is no mount point."""
    output(["nsenter", f"--net=/run/netns/{name}", "ip", *words])


class Hosts:
    """`rate` is the bits per second in each direction, as for tc; "any": no limit."""

    def __init__(self, rate="any"):
        self.rate = rate
        self.names, self.links = ([f"{word}{os.getpid()}{side}" for side in "ab"] for word in ("tern", "t"))

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def make(self):
        for name in self.names:
            output(["ip", "netns", "add", name])
        (here, there), (one, other) = self.names, self.links
        output(["ip", "link", "add", one, "netns", here, "type", "veth", "peer", "name", other, "netns", there])
        for side, (name, link) in enumerate(zip(self.names, self.links)):
            ip(name, "addr", "add", ADDRESSES[side] + "/24", "dev", link)
            ip(name, "link", "set", link, "up")
            ip(name, "link", "set", "lo", "up")
            if self.rate != "any":
                output(self.command(side, "tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", self.rate, "burst", "256kb", "latency", "50ms"))

    def command(self, side, *words):
        return ["nsenter", f"--net=/run/netns/{self.names[side]}", *words]

    def cut(self):
        ip(self.names[1], "link", "set", self.links[1], "down")
