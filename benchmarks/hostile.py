"""Pods that a tenant may create, and that are meant to hold the control plane up.

On the bed: 1,000 nodes with 10 pods each, and a plain pod of another namespace (or 30 of them)
beside the hostile ones. Pending: each has 1,000 required and 1,000 preferred anti-affinity terms
with selectors of their own. Running: each has 1,000 terms over topology keys that no node has.
"""

import contextlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bed.configs import descheduler_config, pending_pod, scheduler_config
from benchmarks.bed.machine import peak_mib, tree
from benchmarks.bed.rounds import follow
from benchmarks.bed.running import Bed
from benchmarks.table import Row
from benchmarks.tree import NotHereError

Json = dict[str, Any]

NODES, SMOKE_NODES = 1_000, 50
PODS_PER_NODE = 10
TERMS = 1_000
PENDING = 20
RUNNING = (5, 20)
PLAIN = 30
PORT = 29_480  # of the program's plain HTTP
LIMIT = 60.0  # seconds until a measurement is given up
_HOST = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield what hostile pods cost others.

    Raises:
        NotHereError: Go or a command is missing.
    """
    programs = [
        Path(sys.executable).with_name(f"koord-{one}") for one in ("scheduler", "descheduler")
    ]
    for program in programs:
        if not program.exists():
            raise NotHereError(f"wanted {program}, found none; install the extra descheduler")
    scheduler, descheduler = map(str, programs)
    nodes = SMOKE_NODES if smoke else NODES
    yield from _pending(scheduler, nodes)
    yield from _running(scheduler, nodes, RUNNING[:1] if smoke else RUNNING)
    yield from _descheduled(descheduler, nodes)


def hostile_pending(*, all_pods: bool) -> Json:
    """A pending pod with terms whose selectors no other has; {i} is the pod's number.

    all_pods: they mean all pods, which are less important; else none.
    """
    pod = _pod("all" if all_pods else "none")
    pod["spec"]["priority"] = int(all_pods)
    operator = "NotIn" if all_pods else "In"
    required = [_term(_HOST, operator, f"r{number}-{{i}}") for number in range(TERMS)]
    preferred = [
        {"weight": 1, "podAffinityTerm": _term(_HOST, operator, f"p{number}-{{i}}")}
        for number in range(TERMS)
    ]
    rules = {_REQUIRED: required, _PREFERRED: preferred}
    pod["spec"]["affinity"] = {"podAntiAffinity": rules}
    return pod


def hostile_running() -> Json:
    """A pod on a node, with terms about all pods over topology keys that no node has."""
    pod = _pod("hostile")
    everything: Json = {"labelSelector": {}, "namespaceSelector": {}}
    required = [{"topologyKey": f"no-{number}-{{i}}", **everything} for number in range(TERMS)]
    pod["spec"]["affinity"] = {"podAntiAffinity": {_REQUIRED: required}}
    pod["spec"]["nodeName"] = "n00001"
    pod["status"]["phase"] = "Running"
    return pod


def _term(key: str, operator: str, value: str) -> Json:
    selector = {"matchExpressions": [{"key": value[:5], "operator": operator, "values": [value]}]}
    return {"topologyKey": key, "labelSelector": selector, "namespaceSelector": {}}


def _pod(namespace: str) -> Json:
    pod = pending_pod("basic", "default-scheduler")
    pod["metadata"].update(namespace=namespace, name=f"{namespace}-{{i}}")
    return pod


@dataclass
class Probes:
    """Asks /livez all the time, as a kubelet would."""

    longest: float = 0.0  # seconds of a response
    failed: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Probes":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            begun = time.monotonic()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/livez", timeout=LIMIT).close()
            except OSError:
                self.failed += 1
            self.longest = max(self.longest, time.monotonic() - begun)


@contextlib.contextmanager
def _scheduler(program: str, nodes: int, running: int = 0) -> Iterator[Bed]:
    with Bed(port=29_470) as bed:
        bed.seed(nodes, PODS_PER_NODE, refresh=0)
        if running:
            bed.call("/bed/pods", {"count": running, "object": hostile_running()})
        config = scheduler_config("kube", str(bed.kubeconfig), 0)
        config["leaderElection"] = {"leaderElect": True}
        command = [program, "--config={config}", "--secure-port=0", f"--port={PORT}"]
        bed.run(command, config)
        bed.idle(["pods", "nodes"])
        yield bed


def _bound(bed: Bed, count: int) -> float:
    """Create plain pods; return the seconds until so many pods more are bound."""
    begun = time.monotonic()
    bed.call("/bed/pods", {"count": count, "object": _pod("default")})
    while time.monotonic() < begun + LIMIT:
        if _plain_bound(bed) >= count:
            return time.monotonic() - begun
        bed.check()
        time.sleep(0.02)
    return LIMIT


def _plain_bound(bed: Bed) -> int:
    query = "/api/v1/namespaces/default/pods?fieldSelector=status.phase%3DPending"
    found = bed.call(query)["items"]
    return sum(bool(one["spec"].get("nodeName")) for one in found)


def _pending(program: str, nodes: int) -> Iterator[Row]:
    for all_pods in (False, True):
        yield from _pend(program, nodes, all_pods)


def _pend(program: str, nodes: int, all_pods: bool) -> Iterator[Row]:
    with _scheduler(program, nodes) as bed, Probes() as probes:
        bed.call("/bed/pods", {"count": PENDING, "object": hostile_pending(all_pods=all_pods)})
        time.sleep(0.5)
        seconds = _bound(bed, 1)
        time.sleep(20)
        alive = bed.program.poll() is None
        peak = peak_mib(tree(bed.program.pid))
    about = "about all pods" if all_pods else "about none"
    yield Row(f"{PENDING} pods {about} pend: plain pod bound", seconds, "s", 3.0)
    yield Row("  slowest /livez", probes.longest, "s", 1.0)
    yield Row("  ended, or failed probes", probes.failed + (not alive), "", 0.0)
    yield Row("  peak resident memory", peak, "MiB", 300.0)


def _running(program: str, nodes: int, counts: tuple[int, ...]) -> Iterator[Row]:
    peaks = []
    for count in (0, *counts):
        with _scheduler(program, nodes, count) as bed:
            seconds = _bound(bed, PLAIN)
            peaks.append(peak_mib(tree(bed.program.pid)))
        yield Row(f"{count} hostile pods run: {PLAIN} plain pods bound", seconds, "s", 1.0)
        reference = (peaks[0], "without", 1.3) if count else (None, "", None)
        yield Row("  peak resident memory", peaks[-1], "MiB", None, *reference)


def _descheduled(program: str, nodes: int) -> Iterator[Row]:
    (usual, usual_peak), (seconds, peak) = (
        _first_cycle(program, nodes, count) for count in (0, RUNNING[-1])
    )
    name = f"{RUNNING[-1]} hostile pods run: descheduler's first cycle"
    yield Row(name, seconds, "s", usual + 1.0)
    yield Row("  peak resident memory", peak, "MiB", None, usual_peak, "without", 1.3)


def _first_cycle(program: str, nodes: int, running: int) -> tuple[float, int]:
    """Seconds of the first cycle, and the peak of memory in MiB."""
    with Bed(port=29_470) as bed:
        bed.seed(nodes, PODS_PER_NODE, refresh=0)
        if running:
            bed.call("/bed/pods", {"count": running, "object": hostile_running()})
        config = descheduler_config(str(bed.kubeconfig), 5, dry_run=True, node_fit=True)
        bed.run([program, "--config={config}", "--secure-port=0"], config)
        found = follow(bed, 1, begin="cycle.started", patterns=["cycle.ended"], limit=LIMIT)
        lines = [line for one in found for line in one.lines]
        seconds = json.loads(lines[0])["seconds"] if lines else LIMIT
        return seconds, peak_mib(tree(bed.program.pid))
