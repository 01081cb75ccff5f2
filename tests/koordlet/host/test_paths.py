"""The roots of the host's file systems."""

from pathlib import Path

import pytest

from koordlet.host.paths import HostPaths


@pytest.mark.parametrize(
    ("mode", "cgroup", "sys", "sysfs", "var_run", "root"),
    [
        ("hostMode", "/sys/fs/cgroup", "/sys", "/sys/fs", "/var/run", "/"),
        ("dsMode", "/host-cgroup", "/host-sys", "/host-sys-fs", "/host-var-run", "/host-root"),
        ("", "/host-cgroup", "/host-sys", "/host-sys-fs", "/host-var-run", "/host-root"),
        ("hostmode", "/host-cgroup", "/host-sys", "/host-sys-fs", "/host-var-run", "/host-root"),
    ],
)
def test_only_the_exact_word_selects_host_mode(mode, cgroup, sys, sysfs, var_run, root):
    """As in Koordinator, every other agent_mode means the mounts of the DaemonSet."""
    paths = HostPaths.for_mode(mode)

    assert paths == HostPaths(
        cgroup=Path(cgroup),
        proc=Path("/proc"),
        sys=Path(sys),
        sysfs=Path(sysfs),
        var_run=Path(var_run),
        kubelet=Path("/var/lib/kubelet"),
        root=Path(root),
    )
