"""The cgroup driver that the kubelet was told to use."""

import json

import pytest

from koordlet.host.kubeletdriver import driver_of_kubelet
from koordlet.host.layout import Driver

CONFIG = "/var/lib/kubelet/config.yaml"


def run_kubelet(proc, *arguments, config=None, comm="kubelet"):
    """Make the /proc files of a process, with a config file in its mount namespace."""
    process = proc / "4711"
    (process / "root/var/lib/kubelet").mkdir(parents=True)
    (process / "cwd").mkdir()
    (process / "comm").write_text(f"{comm}\n")
    (process / "cmdline").write_bytes("\0".join(["/usr/bin/kubelet", *arguments, ""]).encode())
    if config is not None:
        (process / "root" / CONFIG[1:]).write_text(config)
        (process / "cwd/relative.yaml").write_text(config)


@pytest.mark.parametrize(
    ("arguments", "driver"),
    [
        (["--cgroup-driver", "systemd"], Driver.SYSTEMD),
        (["--cgroup-driver=systemd", "--v=2"], Driver.SYSTEMD),
        (["--cgroup-driver=systemd", "--cgroup-driver=cgroupfs"], Driver.CGROUPFS),
        (["--v=2"], Driver.CGROUPFS),
        (["--cgroup-driver"], Driver.CGROUPFS),
        (["--cgroup-driver=other"], None),
    ],
)
def test_the_flag_decides(tmp_path, arguments, driver):
    """Without flag and config file the kubelet's default holds; an unknown driver is none."""
    run_kubelet(tmp_path, *arguments)

    assert driver_of_kubelet(tmp_path) is driver


@pytest.mark.parametrize(
    ("config", "driver"),
    [
        ("kind: KubeletConfiguration\ncgroupDriver: systemd\n", Driver.SYSTEMD),
        ('cgroupDriver: "systemd"\n', Driver.SYSTEMD),
        (json.dumps({"cgroupDriver": "systemd"}), Driver.SYSTEMD),
        ("   \ncgroupDriver: cgroupfs\n", Driver.CGROUPFS),
        ("kind: KubeletConfiguration\n", Driver.CGROUPFS),
        ("", Driver.CGROUPFS),
        ("- a\n- b\n", Driver.CGROUPFS),
        ("cgroupDriver: [", None),
        ("cgroupDriver: 3\n", None),
    ],
)
@pytest.mark.parametrize("path", [CONFIG, "relative.yaml"])
def test_else_the_config_file_decides(tmp_path, config, driver, path):
    """It is YAML or JSON, quoted or not, and read as the kubelet sees it."""
    run_kubelet(tmp_path, f"--config={path}", config=config)

    assert driver_of_kubelet(tmp_path) is driver


def test_a_missing_config_file_tells_nothing(tmp_path):
    """The kubelet would not run with it, so no default is assumed."""
    run_kubelet(tmp_path, "--config", "/nowhere")

    assert driver_of_kubelet(tmp_path) is None


@pytest.mark.parametrize("proc", [".", "missing"])
def test_no_kubelet(tmp_path, proc):
    """Processes of other names, and no processes at all."""
    run_kubelet(tmp_path, "--cgroup-driver=systemd", comm="kubelet-helper")
    (tmp_path / "4712").mkdir()

    assert driver_of_kubelet(tmp_path / proc) is None
