"""The scripts in docs/examples that show what koordlet does, on a real kernel."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from koordlet.host.cgroups.cgroupfs import CgroupFs

from .conftest import REAL

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
PODS = ("kubepods", "kubepods.slice")

pytestmark = pytest.mark.skipif(
    not (EXAMPLES.parents[1] / ".venv/bin/koordlet").exists(), reason="needs koordlet in .venv"
)


def groups() -> set[Path]:
    """The groups of this machine that a script makes, or might have to do with."""
    return {
        path
        for top in CgroupFs(REAL.cgroup).hierarchies()
        for path in (*top.glob("koordlet-s*.*"), *(top / name for name in PODS))
        if path.exists()
    }


def show(script: str, until: str, **environ: str) -> tuple[str, str, set[str]]:
    """What a script prints until that, and after ^C, and the names of the groups that it makes.

    Afterwards there are no more groups than before.
    """
    before = groups()
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
        added = groups() - before
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert groups() == before
    return said, rest, {path.name.partition(".")[0] for path in added}


def test_the_best_effort_pod_is_squeezed_and_everything_restored() -> None:
    """There is a quota and a reason for it; after ^C there is none."""
    said, rest, made = show("squeeze.sh", "It is gone")

    quotas = [int(quota) for quota in re.findall(r"cpu\.(?:cfs_quota_us|max): (\d+)", said)]
    assert quotas
    assert "cpu_quota" in said
    assert re.search(r"cpu\.(cfs_quota_us: -1|max: max)", rest)
    assert made == {"koordlet-squeeze"}


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
