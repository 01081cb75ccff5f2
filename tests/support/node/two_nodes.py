"""Two network namespaces, joined by a cable, and programs in them; with what root may do."""

import contextlib
import shlex
import subprocess
import sys
from typing import Any

SERVER = (
    "import socket;s=socket.create_server(('10.9.0.2',6443));print('up',flush=True)\n"
    "while True: s.accept()[0].close()"
)
FLOOD = (
    "import socket,time;s=socket.socket(2,2);go=lambda:[s.sendto(b'x'*1400,('10.9.0.2',9))"
    " for _ in range(20)];go();print('up',flush=True)\n"
    "while True: go();time.sleep(.05)"
)
LIMITS = (  # a link of 50 Mbit/s, of which best effort (10.9.0.3) gets 5 to 10
    "default 2; class 1 below 0 rate 6250000 ceil 6250000 prio 0; "
    "class 2 below 1 rate 1250000 ceil 6250000 prio 1; "
    "class 4 below 1 rate 625000 ceil 1250000 prio 3; from 10.9.0.3 class 4"
)
_BIND = "s=socket.socket(2,2);s.bind(('10.9.0.3',0));"
BE_FLOOD = FLOOD.replace("s=socket.socket(2,2);", _BIND).replace("range(20)", "range(80)")


class NoNamespaces(Exception):
    """None can be made here."""


class TwoNodes:
    """A node with va, and a peer with vb and a server at 10.9.0.2, each in its namespace.

    node and peer are the pids of processes in them; all ends with the stack.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """Raises NoNamespaces."""
        self._stack = stack
        self.node, self.peer = self._namespace(), self._namespace()
        self.on(self.node, "ip link add va type veth peer name vb")
        self.on(self.node, f"ip link set vb netns {self.peer}")
        for namespace, name, address in ((self.node, "va", 1), (self.peer, "vb", 2)):
            self.on(namespace, f"ip addr add 10.9.0.{address}/24 dev {name}")
            self.on(namespace, f"ip link set {name} up")
        self.on(self.node, "ip addr add 10.9.0.3/24 dev va")
        if self._inside(self.peer, "tc qdisc add dev lo root htb").returncode:
            raise NoNamespaces("this kernel has no HTB (CONFIG_NET_SCH_HTB)")
        self.run(self.peer, SERVER)

    def _namespace(self) -> int:
        holder = self.begin(["unshare", "-n", "sh", "-c", "echo here; exec sleep 100"])
        if holder.stdout.readline() != b"here\n":
            raise NoNamespaces("no network namespace can be made here")
        return int(holder.pid)

    def begin(self, command: list[str]) -> Any:
        """Start a process, which ends with the stack."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        self._stack.callback(process.stdout.close)
        return process

    def _inside(self, namespace: int, command: str) -> "subprocess.CompletedProcess[str]":
        full = ["nsenter", "-t", str(namespace), "-n", *shlex.split(command)]
        return subprocess.run(full, capture_output=True, text=True, timeout=20)

    def on(self, namespace: int, command: str) -> str:
        """Run a command to its end; return what it prints."""
        done = self._inside(namespace, command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, namespace: int, program: str) -> Any:
        """Start a program of Python that says when it works."""
        command = ["nsenter", "-t", str(namespace), "-n", sys.executable, "-c", program]
        process = self.begin(command)
        assert process.stdout.readline() == b"up\n"
        return process

    @property
    def shown(self) -> str:
        """The queues of the node's interface."""
        return self.on(self.node, "tc qdisc show dev va")

    def helper(self, state: str) -> dict[str, Any]:
        """The configuration of a helper for the node, whose API server is the peer's server."""
        return {
            "network": f"/proc/{self.node}/ns/net",
            "cgroup": "",
            "state": state,
            "api": ["10.9.0.2", 6443],
            "cgroups": [],
        }
