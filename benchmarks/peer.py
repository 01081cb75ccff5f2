"""koordlet in a cluster beside Koordinator's, which is built here: cores and memory, by turns.

Both have the same pods, API server and kubelet, one after the other, several times. Koordinator's
version is that of its Go module; to build it takes Go and libpfm4's headers, and some minutes the
first time. Without Go, and in a smoke run that finds none built, nothing is measured.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.acting_cost import node_slo
from benchmarks.cluster import cluster_flags, control_plane, write_kubeconfig
from benchmarks.process import Daemon, Enter, free_port, own_group, running_daemon, started
from benchmarks.standin import NODE
from benchmarks.table import Row
from benchmarks.tree import pod_tree

MODULE = "github.com/koordinator-sh/koordinator@v1.6.0"
PROGRAM = Path("build/peers/koordlet")
PODS, RUNS, WARM = 150, 3, 30.0  # seconds until the work of the start is done
_HAS_PODS = b'koordlet_kubelet_request_duration_seconds_count{code="200"'
STRETCHES = 4  # of ten seconds each; the median counts
Start = Callable[
    [Path, "Variant", dict[str, Any], Enter], contextlib.AbstractContextManager[Daemon]
]


class Variant(NamedTuple):
    """One way to run both."""

    name: str
    gates: tuple[tuple[str, str], ...]  # the gates of ours and theirs that are on
    node_slo: dict[str, Any]
    cores: float  # ratio that is wanted
    rss: float


VARIANTS = (
    Variant("observing", (), {}, 0.16, 0.62),
    Variant(
        "acting",
        (
            ("CgroupReconcile", "CgroupReconcile"),
            ("PSICollector", "PSICollector"),
            ("MemoryEvict", "BEMemoryEvict"),
        ),
        dict(node_slo()["spec"]),
        0.15,
        0.63,
    ),
)


class _Cost(NamedTuple):
    cores: float
    rss_mib: float


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield cores and RSS, the medians of several runs."""
    if not PROGRAM.exists() and (smoke or not _build()):
        return
    for variant in VARIANTS:
        found: dict[Start, list[_Cost]] = {_theirs: [], _ours: []}
        for _ in range(1 if smoke else RUNS):
            for start, costs in found.items():
                costs.append(_measure(variant, start, smoke=smoke))
        ours, theirs = found[_ours], found[_theirs]
        name, whose = f"koordlet {variant.name}", "Koordinator's"
        for what, unit, ratio in (
            ("cores", "cores", variant.cores),
            ("rss_mib", "MiB", variant.rss),
        ):
            mine, other = ([getattr(one, what) for one in costs] for costs in (ours, theirs))
            spread = f"{whose} ({min(other):.3g} to {max(other):.3g})"
            label = f"{name}: {what}, {min(mine):.3g} to {max(mine):.3g}"
            mid, reference = statistics.median(mine), statistics.median(other)
            yield Row(label, mid, unit, None, reference, spread, ratio)


def _build() -> bool:
    """Build Koordinator's koordlet; return whether it is there then."""
    if shutil.which("go") is None:
        return False
    with tempfile.TemporaryDirectory() as directory:
        command = ["go", "mod", "download", "-json", MODULE]
        listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=directory)
        source = Path(directory) / "koordinator"
        shutil.copytree(json.loads(listed.stdout)["Dir"], source)
        for path in (source, *source.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)  # those of the module cache are read-only
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        build = ["go", "build", "-o", str(PROGRAM.absolute()), "./cmd/koordlet"]
        subprocess.run(build, check=True, cwd=source)
    return True


def _measure(variant: Variant, start: Start, *, smoke: bool) -> _Cost:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/run")))
        stack.enter_context(pod_tree(PODS))
        enter = stack.enter_context(own_group())
        plane = stack.enter_context(control_plane(PODS, directory, variant.node_slo))
        daemon = stack.enter_context(start(directory, variant, plane, enter))
        time.sleep(10 if smoke else WARM)
        costs = [daemon.cost(3.0 if smoke else 10.0) for _ in range(1 if smoke else STRETCHES)]
        return _Cost(statistics.median(one.cores for one in costs), daemon.rss_mib())


@contextlib.contextmanager
def _ours(
    directory: Path, variant: Variant, plane: dict[str, Any], enter: Enter
) -> Iterator[Daemon]:
    gates = ",".join(f"{ours}=true" for ours, _ in variant.gates)
    flags = [*cluster_flags(directory, plane), *([f"--feature-gates={gates}"] if gates else [])]
    with running_daemon(directory / "state", flags, standalone=False, enter=enter) as daemon:
        daemon.wait_until_measuring(PODS)
        yield daemon


@contextlib.contextmanager
def _theirs(
    directory: Path, variant: Variant, plane: dict[str, Any], enter: Enter
) -> Iterator[Daemon]:
    state = directory / "theirs"
    for name in ("hooks", "checkpoints"):
        (state / name).mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    gates = ",".join(f"{theirs}=true" for _, theirs in variant.gates)
    command = [
        str(PROGRAM),
        f"-addr={address}",
        f"-kubeconfig={write_kubeconfig(directory, plane)}",
        "-cgroup-root-dir=/sys/fs/cgroup/",
        "-sys-root-dir=/sys/",
        "-sys-fs-root-dir=/sys/fs/",
        "-var-run-root-dir=/var/run/",
        "-run-root-dir=/run/",
        f"-tsdb-path={state / 'tsdb'}",
        f"-audit-log-dir={state / 'audit'}",
        f"-runtime-hooks-addr={state / 'hooks.sock'}",
        f"-runtime-hooks-config-path={state / 'hooks'}/",
        f"-prediction-checkpoint-filepath={state / 'checkpoints'}",
        "-kubelet-insecure-tls=true",
        f"-kubelet-read-only-port={plane['kubelet_read_only_port']}",
        "-disable-query-kubelet-config=true",
        "-enable-nri-runtime-hook=false",
        *([f"-feature-gates={gates}"] if gates else []),
    ]
    environ = {**os.environ, "agent_mode": "hostMode", "NODE_NAME": NODE}
    with (state / "log").open("wb") as log, started(command, environ, enter, log) as process:
        daemon = Daemon(process, address)
        daemon.wait(lambda: _HAS_PODS in daemon.fetch("/internal-metrics"), "read its pods")
        yield daemon
        if process.poll() is not None:
            text = (state / "log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Koordinator's koordlet ended meanwhile: {text}")
