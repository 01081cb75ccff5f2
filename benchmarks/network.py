"""Traffic classes: what it takes to set them, and what a flood of best effort costs the others.

In network namespaces, on a link of 50 Mbit/s, by the helper process as in the agent.
"""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.table import Row
from benchmarks.tree import NotHereError
from koord.util.clock import SystemClock
from koordlet.host.net.guard.client import HelperTraffic, start
from tests.support.node.two_nodes import BE_FLOOD, LIMITS, NoNamespaces, TwoNodes

PODS = 150
_ECHO = (
    "import socket;s=socket.socket(2,2);s.bind(('10.9.0.2',7));print('up',flush=True)\n"
    "while True: s.sendto(*s.recvfrom(2000))"
)
_PING = """
import socket, time
s = socket.socket(2, 2); s.settimeout(1); s.connect(("10.9.0.2", 7)); print("up", flush=True)
for _ in range(COUNT):
    began = time.perf_counter(); s.send(b"x" * 100)
    try: s.recv(2000)
    except TimeoutError: pass
    print(time.perf_counter() - began, flush=True); time.sleep(.002)
"""


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield times to set classes, and the ratio of LS's latency beside a flood to that alone."""
    if os.geteuid():
        raise NotHereError("needs root")
    with contextlib.ExitStack() as stack:
        try:
            nodes = TwoNodes(stack)
        except NoNamespaces as err:
            raise NotHereError(str(err)) from err
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="network"))
        traffic = HelperTraffic(lambda: start(nodes.helper(f"{state}/state")), SystemClock())
        stack.callback(traffic.close)
        yield from _applied(traffic)
        nodes.run(nodes.peer, _ECHO)
        count = 100 if smoke else 1000
        alone = _p99(nodes, count)
        nodes.run(nodes.node, BE_FLOOD)
        flooded = _p99(nodes, count)
    name = "traffic classes: LS round trip beside BE, p99"
    yield Row(name, flooded, "ms", reference=alone, reference_name="LS alone")


def _applied(traffic: HelperTraffic) -> Iterator[Row]:
    traffic.read("va")  # the helper starts
    pods = "".join(f"; from 10.9.1.{pod} class 4" for pod in range(1, PODS))
    yield Row(f"traffic classes of {PODS} pods, set", _time(traffic, f"{LIMITS}{pods}"), "ms")
    more = f"{LIMITS}{pods}; from 10.9.1.{PODS} class 4"
    yield Row("traffic classes: one pod more", _time(traffic, more), "ms")


def _time(traffic: HelperTraffic, text: str) -> float:
    began = time.perf_counter()
    traffic.write("va", traffic.identity("va"), f"{text}\n".encode())
    return (time.perf_counter() - began) * 1000


def _p99(nodes: TwoNodes, count: int) -> float:
    """Milliseconds of the 99th percentile of so many round trips."""
    ping: Any = nodes.run(nodes.node, _PING.replace("COUNT", str(count)))
    times = [float(line) * 1000 for line in ping.stdout]
    return statistics.quantiles(times, n=100)[98]
