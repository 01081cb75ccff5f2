"""Cost of the daemon in a cluster: CPU and memory on its node, requests on the API server."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.process import own_group, running_daemon
from benchmarks.standin import NODE
from benchmarks.table import Row
from benchmarks.tree import pod_tree
from koord.kube.client import NODE_METRICS
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.kubelet import TOKEN

KOORDINATOR = {150: (0.10, 105.0), 300: (0.21, 125.0)}  # cores, MiB RSS
BUDGETS = {150: (0.017, 66.0), 300: (0.035, 80.0)}
MOST_GROWTH = 3.0  # CPU at 500 pods by that at 150
STRETCHES = 6  # of ten seconds each; the median counts, as others share the machine
COUNTED, MINUTES = 150, 3  # pods at which requests are counted, and for how long
KOORDINATOR_KB = 24.2  # a minute at 150 pods
REPORT = f"patch {NODE_METRICS.object(NODE, subresource='status')}"


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield cores, RSS, and requests and bytes a minute in steady state."""
    measured: dict[int, float] = {}
    for pods in (150,) if smoke else (150, 300, 500):
        with contextlib.ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run")))
            stack.enter_context(pod_tree(pods))
            enter = stack.enter_context(own_group())
            plane = stack.enter_context(control_plane(pods, directory))
            history = [sys.executable, "-m", "benchmarks.history", str(directory / "state")]
            subprocess.run([*history, "containerd"], check=True, preexec_fn=enter)
            flags = cluster_flags(directory, plane)
            daemon = stack.enter_context(
                running_daemon(directory / "state", flags, standalone=False, enter=enter)
            )
            daemon.wait_until_measuring(pods)
            daemon.wait(lambda plane=plane: _asked(plane)[REPORT] > 0, "report")
            if not smoke:
                time.sleep(20)  # until the work of the start is done
            before, start = _asked(plane), time.monotonic()
            stretches = [3.0] if smoke else [10.0] * STRETCHES
            costs = [daemon.cost(seconds) for seconds in stretches]
            cores = statistics.median(cost.cores for cost in costs)
            measured[pods] = cores
            theirs = "Koordinator's koordlet"
            core_budget, rss_budget = BUDGETS.get(pods, (None, None))
            their_cores, their_rss = KOORDINATOR.get(pods, (None, None))
            yield Row(f"daemon cpu in a cluster, {pods} pods", cores, "cores",
                      core_budget, their_cores, theirs)  # fmt: skip
            yield Row(f"daemon RSS in a cluster, {pods} pods", daemon.rss_mib(), "MiB",
                      rss_budget, their_rss, theirs)  # fmt: skip
            if pods == COUNTED and not smoke:
                time.sleep(60 * MINUTES - (time.monotonic() - start))
                minutes = (time.monotonic() - start) / 60
                yield from _requests(_asked(plane) - before, minutes)
    if not smoke:
        growth = measured[500] / measured[150]
        yield Row("daemon cpu in a cluster, 500 pods by 150", growth, "times", MOST_GROWTH)


def _requests(asked: Counter[str], minutes: float) -> Iterator[Row]:
    """Requests of a minute in steady state. Watches that end are begun again."""
    reads = sum(n for what, n in asked.items() if what.startswith(("get ", "list ")))
    yield Row(f"writes a minute, {COUNTED} pods", _writes(asked) / minutes, "", 1.0)
    yield Row(f"reads a minute, {COUNTED} pods", reads / minutes, "", 0.0)
    yield Row(f"sent a minute, {COUNTED} pods", asked["bytes in"] / minutes / 1e3, "kB",
              24.0, KOORDINATOR_KB, "Koordinator's koordlet")  # fmt: skip
    yield Row(f"received a minute, {COUNTED} pods", asked["bytes out"] / minutes / 1e3, "kB")


def _writes(asked: Counter[str]) -> int:
    return sum(n for what, n in asked.items() if what.startswith(("patch ", "create ", "update ")))


def _asked(plane: dict[str, Any]) -> Counter[str]:
    with urllib.request.urlopen(f"{plane['server']}/benchmark", timeout=10) as response:
        return Counter(json.load(response))


@contextlib.contextmanager
def control_plane(
    pods: int, directory: Path, node_slo: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[dict[str, Any]]:
    """Run the stand-in with so many pods; yield its addresses. node_slo: its NodeSLO's spec."""
    command = [sys.executable, "-m", "benchmarks.standin", str(pods), str(directory)]
    command.append(json.dumps(dict(node_slo)))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.communicate()  # the end of its input ends it


def write_kubeconfig(directory: Path, plane: dict[str, Any]) -> Path:
    """Write how a daemon reaches that control plane, and return where."""
    config = directory / "kubeconfig"
    config.write_text(kubeconfig(plane["server"], TOKEN))
    return config


def cluster_flags(directory: Path, plane: dict[str, Any]) -> list[str]:
    """Flags by which the daemon finds that control plane."""
    return [
        f"--kubeconfig={write_kubeconfig(directory, plane)}",
        f"--node-name={NODE}",
        f"--kubelet-ca-file={plane['kubelet_ca']}",
        "--kubelet-preferred-address-type=InternalIP",
    ]
