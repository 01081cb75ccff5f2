"""The script of the README that shows suppression, on a real kernel."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from koordlet.host.cgroupfs import CgroupFs

SCRIPT = Path(__file__).parents[2] / "docs/examples/squeeze.sh"
ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "memory")


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0
    or not set(CONTROLLERS) <= CgroupFs(ROOT).controllers().keys()
    or not (SCRIPT.parents[2] / ".venv/bin/koordlet").exists(),
    reason="needs root, cgroups with cpu and memory, and .venv",
)
def test_the_best_effort_pod_is_squeezed_and_everything_put_back(kubepods: None) -> None:
    """There is a quota and a reason for it; after ^C there is none, and no cgroup either."""
    with subprocess.Popen(
        [SCRIPT], stdout=subprocess.PIPE, text=True, env={**os.environ, "PAUSE": "0.1"}
    ) as script:
        assert script.stdout is not None
        said = ""
        while "It is gone" not in said:
            line = script.stdout.readline()
            assert line, said
            said += line
        script.send_signal(signal.SIGINT)
        rest, _ = script.communicate(timeout=60)

    quotas = [int(quota) for quota in re.findall(r"cpu\.(?:cfs_quota_us|max): (\d+)", said)]
    assert quotas
    assert "cpu_quota" in said
    assert re.search(r"cpu\.(cfs_quota_us: -1|max: max)", rest)
    assert not [path for path in (ROOT / "kubepods", ROOT / "cpu/kubepods") if path.exists()]
