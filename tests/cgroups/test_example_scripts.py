"""The scripts in docs/examples that show what koordlet does, on a real kernel."""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from koordlet.host.cgroups.tree import CgroupFs
from tests.support.programs import NRI_RUNTIME

from .conftest import REAL, VERSION

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
PODS = ("kubepods", "kubepods.slice")

pytestmark = pytest.mark.skipif(
    not (EXAMPLES.parents[1] / ".venv/bin/koordlet").exists(), reason="needs koordlet in .venv"
)

ON_V1 = pytest.mark.skipif(
    VERSION == 2, reason="takes too long in the emulated machine, the only one with cgroup v2 here"
)


def groups(script: str) -> set[Path]:
    """The groups of this machine that a script makes, or might have to do with."""
    own = f"koordlet-{script.removesuffix('.sh')}.*"
    return {
        path
        for top in CgroupFs(REAL.cgroup).hierarchies()
        for path in (*top.glob(own), *(top / name for name in PODS))
        if path.exists()
    }


def show(script: str, until: str, **environ: str) -> tuple[str, str, set[str]]:
    """What a script prints until that, and after ^C, and the names of the groups that it makes.

    Afterwards there are no more groups than before.
    """
    before = groups(script)
    with subprocess.Popen(
        [EXAMPLES / script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PAUSE": "0.1", **environ},
    ) as process:
        assert process.stdout is not None
        said = ""
        while until not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        added = groups(script) - before
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert groups(script) == before
    return said, rest, {path.name.partition(".")[0] for path in added}


def test_the_best_effort_pod_is_squeezed_and_everything_restored() -> None:
    """There is a quota and a reason for it; after ^C there is none."""
    said, rest, made = show("squeeze.sh", "It is gone")

    quotas = [int(quota) for quota in re.findall(r"cpu\.(?:cfs_quota_us|max): (\d+)", said)]
    assert quotas
    assert "cpu_quota" in said
    assert re.search(r"cpu\.(cfs_quota_us: -1|max: max)", rest)
    assert made == {"koordlet-squeeze"}


@ON_V1
@pytest.mark.parametrize("way", ["TERM", "KILL"])
def test_the_best_effort_pod_is_slow_on_a_disk_and_everything_restored(way: str) -> None:
    """Also when koordlet was killed, by `koordletctl restore`; the loop device is gone, too."""
    if not shutil.which("losetup") or subprocess.run(["losetup", "--find"], check=False).returncode:
        pytest.skip("needs a loop device")

    said, rest, made = show("slow-disk.sh", "(^C ends it)", PAUSE="0.5", WAY_TO_END=way)

    free, slow = said.split("koordlet starts")
    speeds = re.compile(r"read (\d+) KiB/s, written (\d+) KiB/s")
    fast = [max(map(int, pair)) for pair in zip(*speeds.findall(free), strict=True)]
    assert min(fast) > 2048, said
    rows = [tuple(map(int, found)) for found in speeds.findall(slow)]
    assert all(sum(row[kind] for row in rows) / len(rows) < 1.3 * 1024 for kind in (0, 1)), said
    assert re.search(r"(io_max|blkio_throttle_\w+) of kubepods/besteffort", slow)
    assert not re.search(r"(io\.max|device): \d", rest), rest
    assert max(map(int, speeds.findall(rest)[-1])) > 2048, rest
    assert made == {"koordlet-slow-disk"}
    disk = re.search(r"writes to (/dev/loop\d+)", said)
    assert disk is not None
    bound = subprocess.run(["losetup", disk[1]], check=False, capture_output=True, text=True)
    assert "koordlet-slow-disk" not in bound.stdout


@ON_V1
def test_what_a_pod_asks_for_and_does_not_use_is_reclaimable() -> None:
    """Memory: of the CPUs others may need all. What was learnt is on disk in the end."""
    said, rest, made = show("idle-requests.sh", "(^C ends it)")

    found = re.search(r"^ *prod reclaimable +\S+ +([\d.]+)([MGT])i", said, re.MULTILINE)
    assert found is not None, said
    assert float(found[1]) > 0
    assert re.search(r"^ *prod peak +[\d.]+", said, re.MULTILINE), said
    models = re.search(r"the next start goes on: (\d+)", rest)
    assert models is not None, rest
    assert int(models[1]) >= 3  # the pod, prod pods together, the system
    assert made == {"koordlet-idle-requests"}


@ON_V1
def test_what_rare_hardware_would_do_is_shown_without_a_change() -> None:
    """Counts of a busy pod, the groups of resctrl, a described device, and what is lacking."""
    said, rest, made = show("rare-hardware.sh", "(^C ends it)")

    for row in ("resctrl: control groups", "node: idle page tracking", "core scheduling"):
        assert row in said
    counted = re.search(r"^(\d+) (cycles|ns of CPU time)", said, re.MULTILINE)
    assert counted is not None, said
    assert int(counted[1]) > 0
    assert "beClass.resctrlQOS: 0 to 30 % of the L3 caches" in said
    assert "would since" in said
    assert not re.search(r"state +in_force", said)
    assert re.search(r"^koordlet_xpu_healthy\{.*\} 1\.0", said, re.MULTILINE), said
    assert made == {"koordlet-rare-hardware"}, rest


@ON_V1
@pytest.mark.skipif(
    not (shutil.which("go") and NRI_RUNTIME.binary.exists()),
    reason="needs go, and the runtime's side of NRI as tests/support/programs.py builds it",
)
def test_a_container_is_made_with_what_koordlet_answers() -> None:
    said, _, made = show("before-start.sh", "(^C ends it)")

    answer = re.search(r"koordlet makes it (.*)", said)
    assert answer is not None, said
    assert json.loads(answer[1]) == {
        "memory": {"limit": {"value": str(2 << 30)}},
        "cpu": {"shares": {"value": "1024"}, "quota": {"value": "200000"}},
    }
    assert "BatchResource" in said
    assert made == {"koordlet-before-start"}


@ON_V1
@pytest.mark.skipif(
    not all(map(shutil.which, ("ip", "tc", "unshare", "nsenter"))), reason="needs iproute2"
)
@pytest.mark.parametrize("way", ["TERM", "KILL"])
def test_the_best_effort_pod_sends_slowly_and_everything_restored(way: str) -> None:
    """A fifth of 20 Mbit/s within 10 %; the kernel's own queue is back, and the pod's speed."""
    if subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("needs network namespaces")

    said, rest, made = show("slow-network.sh", "(^C ends it)", PAUSE="0.5", WAY_TO_END=way)

    free, slow = said.split("koordlet starts")
    speeds = re.compile(r"^sent (\d+) kbit/s", re.MULTILINE)
    assert max(map(int, speeds.findall(free))) > 8000, said
    rates = sorted(map(int, speeds.findall(slow)))
    assert rates[len(rates) // 2] == pytest.approx(4000, rel=0.1), said
    assert "interface node" in slow
    assert "htb" not in rest, rest
    assert max(map(int, speeds.findall(rest))) > 8000, rest
    assert made == {"koordlet-slow-network"}
