"""Claims on a real kernel: what it accepts on the way, what it refuses, and that all comes back."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koord.util.clock import SystemClock
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claims.claim import RELEASE, ClaimState, DesiredValue, Key, Target
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.writer import Writer
from koordlet.host import resources as r
from koordlet.host.host import Host
from koordlet.host.resource import Level

from .conftest import MIB, VERSION, Tree

GROUPS = ("be", "be/pod1", "be/pod1/c1", "be/pod2")
ROWS = (r.CPU_QUOTA, r.CPU_BURST, r.CPU_SHARES, r.CPUSET_CPUS_WANTED, r.MEMORY_LIMIT, r.CPU_IDLE)
IN_FORCE, FAILED, GONE = ClaimState.IN_FORCE, ClaimState.FAILED, ClaimState.GONE
CPUS = sorted(os.sched_getaffinity(0))[:2]


@pytest.fixture
def host(tree: Tree, make_host: Callable[[], Host]) -> Host:
    for place in GROUPS:
        tree.make(place)
    return make_host()


@pytest.fixture
def writer(host: Host, tmp_path: Path) -> Iterator[Callable[[], Writer]]:
    """A writer as a process has it that starts now."""
    journals: list[Journal] = []

    def start() -> Writer:
        journals.append(Journal(OwnedDirectory.open(tmp_path), "this-boot"))
        return Writer(host, journals[-1], SystemClock())

    yield start
    for journal in journals:
        journal.close()


def desired(row: Any, place: str, value: Any) -> DesiredValue:
    return DesiredValue(Key(Target(Level.POD, place), row), value, None, ("Test",))


def texts(host: Host) -> dict[tuple[str, str], bytes]:
    """All files that are claimed here."""
    return {
        (place, row.name): Path(host.path(row, place)).read_bytes()
        for place in GROUPS
        for row in ROWS
        if host.supports(row, place)
    }


def has(host: Host, row: Any) -> bool:
    return os.path.exists(host.path(row, "be"))


def test_a_tree_is_squeezed_shifted_and_restored(host, writer):
    """Every step is accepted by the kernel, and the files are to the byte as before."""
    before, squeeze = texts(host), writer()
    for cpus, quota, burst in (
        (CPUS[:1], 50_000, 20_000),
        (CPUS[-1:], 20_000, 10_000),
        (CPUS, 90_000, 60_000),
    ):
        desired_values = [desired(r.CPUSET_CPUS_WANTED, place, frozenset(cpus)) for place in GROUPS]
        desired_values += [desired(r.CPU_QUOTA, place, quota) for place in GROUPS]
        desired_values += [desired(r.MEMORY_LIMIT, place, 64 * MIB + quota) for place in GROUPS]
        if has(host, r.CPU_BURST):
            desired_values += [desired(r.CPU_BURST, place, burst) for place in GROUPS]
        applied = squeeze.apply(desired_values[::-1])
        assert {one.state for one in applied} == {IN_FORCE}, applied
        assert all(one.wrote for one in applied)
        assert not any(one.wrote for one in squeeze.apply(desired_values))
        assert not squeeze.sweep()
    again = writer()  # as after kill -9

    assert {one.state for one in again.restore(again.unclaimed())} == {GONE}
    assert texts(host) == before


@pytest.fixture
def limits(host):
    """The files of v1 with a container's limits of memory, and of memory and swap."""
    memory = Path(host.path(r.MEMORY_LIMIT, "be/pod1/c1"))
    both = memory.with_name("memory.memsw.limit_in_bytes")
    if not both.exists():
        pytest.skip("this kernel accounts no swap in cgroups")
    return memory, both


@pytest.mark.parametrize(
    ("runtime", "claims"),
    [
        ("asked 64", [128, 32, 96]),  # MiB, of both files
        ("adjusted 64", [64, 128]),  # from no limit at all, as its response from NRI said
    ],
)
def test_a_limit_that_the_runtime_has_set_of_memory_and_swap(limits, writer, runtime, claims):
    """The kernel refuses memory above both. They stay equal, and come back."""
    unlimited = [file.read_bytes() for file in limits]
    squeeze, asked = writer(), runtime.startswith("asked")
    if not asked:
        wanted = desired(r.MEMORY_LIMIT, "be/pod1/c1", 64 * MIB)
        squeeze.apply([wanted])  # and the runtime does the same
    for file in limits:
        file.write_text(str(64 * MIB))

    for megabytes in claims:
        wanted = desired(r.MEMORY_LIMIT, "be/pod1/c1", megabytes * MIB)
        [applied] = squeeze.apply([wanted])
        assert applied.state is IN_FORCE, applied
        assert {int(file.read_text()) for file in limits} == {megabytes * MIB}
    [released] = squeeze.apply([wanted._replace(value=RELEASE)])

    assert released.wrote
    after = [file.read_bytes() for file in limits]
    assert after == ([f"{64 * MIB}\n".encode()] * 2 if asked else unlimited)


def test_swap_has_a_limit_of_its_own(limits, writer):
    """One that nobody has tied to that of memory is left alone, and refuses what is above it."""
    memory, both = limits
    memory.write_text(str(64 * MIB))
    both.write_text(str(128 * MIB))
    squeeze = writer()
    for megabytes, state in ((96, IN_FORCE), (256, FAILED), (32, IN_FORCE)):
        [applied] = squeeze.apply([desired(r.MEMORY_LIMIT, "be/pod1/c1", megabytes * MIB)])
        assert applied.state is state, applied
        assert int(both.read_text()) == 128 * MIB


def test_shares_come_back_after_idleness(host, writer):
    """The kernel sets them aside, and resets them."""
    if not has(host, r.CPU_IDLE):
        pytest.skip("this kernel has no cpu.idle")
    idle, shares = (desired(row, "be/pod1", 1) for row in (r.CPU_IDLE, r.CPU_SHARES))
    squeeze = writer()
    squeeze.apply([shares._replace(value=2048)])
    before = Path(host.path(r.CPU_SHARES, "be/pod1")).read_bytes()

    assert [one.state for one in squeeze.apply([idle])] == [IN_FORCE]
    assert Path(host.path(r.CPU_SHARES, "be/pod1")).read_bytes() != before
    [waiting] = squeeze.apply([shares._replace(value=512)])
    assert waiting.state is ClaimState.WAITING
    squeeze.apply([shares._replace(value=2048), idle._replace(value=RELEASE)])

    assert Path(host.path(r.CPU_SHARES, "be/pod1")).read_bytes() == before


def test_what_the_kernel_refuses_is_an_outcome(tree, host, writer):
    """EINVAL, EBUSY and a group that ends: reported in words, and nothing is left behind."""
    before, squeeze = texts(host), writer()

    [short] = squeeze.apply([desired(r.CPU_QUOTA, "be/pod2", 999)])
    assert (short.state, "Invalid argument" in short.message) == (FAILED, True)
    if VERSION == 1:
        Path(host.path(r.CPU_QUOTA, "be/pod1")).write_text("50000")
        [child] = squeeze.apply([desired(r.CPU_QUOTA, "be", 20_000)])
        assert (child.state, "Invalid argument" in child.message) == (FAILED, True)
        Path(host.path(r.CPU_QUOTA, "be/pod1")).write_text("-1")
        [busy] = squeeze.apply([desired(r.CPUSET_CPUS_WANTED, "be", frozenset(CPUS[:1]))])
        assert (busy.state, "busy" in busy.message) == (FAILED, len(CPUS) > 1)
    assert texts(host) == before
    assert not squeeze.unclaimed()

    squeeze.apply([desired(r.CPU_QUOTA, "be/pod2", 50_000)])
    tree.remove("be/pod2")
    [gone] = squeeze.apply([desired(r.CPU_QUOTA, "be/pod2", 60_000)])
    assert gone.state is GONE
    tree.make("be/pod2")
    assert not squeeze.unclaimed()
    assert texts(host) == before


PLUGIN = """\
from koord.api.qos import KubeQoS
from koordlet.plugin import Claim, ExtensionPlugin, FeatureSpec, Level, ClaimScope, Target
from koordlet.plugin import resources
from koord.util.ownedfiles import OwnedDirectory

class Squeeze(ExtensionPlugin):
    spec = FeatureSpec(default=True)
    may_claim = (
        ClaimScope(resources.CPU_SHARES, Level.QOS),
        ClaimScope(resources.MEMORY_LIMIT, Level.QOS),
    )

    def setup(self, client, metric_cache, states_informer):
        pass

    async def run(self, stop):
        group = Target.qos_class(self.kernel.layout, KubeQoS.BEST_EFFORT)
        values = {resources.CPU_SHARES: 512, resources.MEMORY_LIMIT: 256 << 20}
        async for _ in stop.every(1.0):
            await self.claim_all(
                Claim(target=group, resource=row, value=value, reason="it is a test")
                for row, value in values.items()
            )
"""


def test_a_killed_daemon_leaves_no_mark(koordlet, tree, make_host, tmp_path):
    """What it changed in the kernel is as before when the next one is ready; at its end, too."""
    tree.make("kubepods/besteffort")
    host = make_host()
    files = [Path(host.path(row, "kubepods/besteffort")) for row in (r.CPU_SHARES, r.MEMORY_LIMIT)]
    before = [file.read_bytes() for file in files]
    info = tmp_path / "site" / "squeeze-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: squeeze\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[koordlet.qos_plugins]\nSqueeze = squeeze:Squeeze\n")
    (tmp_path / "site" / "squeeze.py").write_text(PLUGIN)

    def start(*more: str) -> Any:
        flags = ("--standalone", "--force", f"--cgroup-root-dir={tree.paths.cgroup}")
        site = str(tmp_path / "site")
        daemon = koordlet(*flags, *more, run_dir=tmp_path / "run", PYTHONPATH=site)
        daemon.wait_ready()
        return daemon

    def squeezed() -> bool:
        return all(file.read_bytes() != old for file, old in zip(files, before, strict=True))

    daemon = start()
    daemon.until(squeezed)
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    assert squeezed()
    daemon = start("--feature-gates=Squeeze=false")
    assert [file.read_bytes() for file in files] == before
    assert daemon.stop() == 0

    daemon = start()
    daemon.until(squeezed)
    assert daemon.stop() == 0
    assert [file.read_bytes() for file in files] == before
