"""The script of the README that shows suppression, on a real kernel."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from koordlet.host.cgroups.cgroupfs import CgroupFs

from .conftest import REAL

SCRIPT = Path(__file__).parents[2] / "docs/examples/squeeze.sh"
PODS = ("kubepods", "kubepods.slice")


def groups() -> set[Path]:
    """The groups of this machine that the script makes, or might have to do with."""
    return {
        path
        for top in CgroupFs(REAL.cgroup).hierarchies()
        for path in (*top.glob("koordlet-squeeze.*"), *(top / name for name in PODS))
        if path.exists()
    }


@pytest.mark.skipif(
    not (SCRIPT.parents[2] / ".venv/bin/koordlet").exists(), reason="needs koordlet in .venv"
)
def test_the_best_effort_pod_is_squeezed_and_everything_restored() -> None:
    """There is a quota and a reason for it; after ^C there is none, and no cgroup either."""
    before = groups()
    with subprocess.Popen(
        [SCRIPT], stdout=subprocess.PIPE, text=True, env={**os.environ, "PAUSE": "0.1"}
    ) as script:
        assert script.stdout is not None
        said = ""
        while "It is gone" not in said:
            line = script.stdout.readline()
            assert line, said
            said += line
        added = groups() - before
        script.send_signal(signal.SIGINT)
        rest, _ = script.communicate(timeout=60)

    quotas = [int(quota) for quota in re.findall(r"cpu\.(?:cfs_quota_us|max): (\d+)", said)]
    assert quotas
    assert "cpu_quota" in said
    assert re.search(r"cpu\.(cfs_quota_us: -1|max: max)", rest)
    assert {path.name.partition(".")[0] for path in added} == {"koordlet-squeeze"}
    assert groups() == before
