"""The pod of docs/examples/busy-pod.sh, on a real kernel."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from koordlet.host.cgroupfs import CgroupFs

SCRIPT = Path(__file__).parents[2] / "docs/examples/busy-pod.sh"
ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "memory")
POD = "kubepods/besteffort/pod11111111-2222-3333-4444-555555555555"


def pod_in(controller: str) -> Path:
    """The pod's cgroup where a controller, of whichever version, has it."""
    cgroups = CgroupFs(ROOT)
    return cgroups.hierarchy(controller, cgroups.version(controller)) / POD


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not set(CONTROLLERS) <= CgroupFs(ROOT).controllers().keys(),
    reason="needs root and cgroups with cpu and memory",
)
def test_the_busy_pod_comes_and_goes(kubepods: None) -> None:
    """Its process is in the container's cgroup at once; an interrupt leaves nothing behind."""
    with subprocess.Popen([SCRIPT], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        said = script.stdout.readline().split()
        try:
            members = [(pod_in(name) / "busy/cgroup.procs").read_text() for name in CONTROLLERS]
        finally:
            script.send_signal(signal.SIGINT)
            script.wait(60)

    assert said[0] == "process"
    assert all(said[1] in text.split() for text in members)
    assert not any(pod_in(name).exists() for name in CONTROLLERS)
