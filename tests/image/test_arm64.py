"""The images for arm64: what they need is there, and the agent starts."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image.bases import distroless
from tests.support.programs import REPOSITORY

PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
TIMEOUT = 180.0


@pytest.mark.parametrize("locked", ["run", "descheduler", "manager", "devices"])
def test_each_package_has_a_wheel_for_arm64(locked: str, tmp_path: Path) -> None:
    """pip finds them all without a compiler, for Debian 12's Python."""
    command = ("download", "--dest", str(tmp_path), "--quiet")
    pip(*command, *options(), "-r", str(REPOSITORY / "requirements" / f"{locked}.txt"))
    assert list(tmp_path.glob("*aarch64.whl"))


@pytest.fixture
def arm64(tmp_path: Path) -> Path:
    """A root directory as the image for arm64 has it, put together without running its programs."""
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-xf", distroless("arm64"), "-C", root], check=True, timeout=120)
    target = root / "opt/koordlet/lib/python3.11/site-packages"
    lock = str(REPOSITORY / "requirements" / "run.txt")
    pip("install", "--quiet", "--target", str(target), *options(), "-r", lock)
    source = tmp_path / "source"  # a build leaves files beside what it builds
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("koord", "koord_descheduler", "koord_scheduler", "koordlet", "plugins"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=unwanted)
    own = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    pip("install", *own, "--target", str(target), str(source))
    return root


@pytest.fixture
def agent(arm64: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The agent of arm64, by itself on this host, on a port that it chooses."""
    python = f"{arm64}/usr/bin/python3.11"
    command = ["qemu-aarch64-static", "-L", str(arm64), python, "-m", "koordlet.cli.koordlet"]
    environ = {
        "PYTHONHOME": f"{arm64}/usr",
        "PYTHONPATH": f"{arm64}/opt/koordlet/lib/python3.11/site-packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.environ["PATH"],
    }
    arguments = ["--standalone", "--addr=127.0.0.1:0", f"--run-dir={tmp_path}/run"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, *arguments], env=environ, stderr=log)
    yield process
    process.kill()
    process.wait()


def test_the_agent_starts_on_arm64(agent: "subprocess.Popen[bytes]", tmp_path: Path) -> None:
    """Emulated: it measures this host, answers the probes, and ends on SIGTERM."""
    end = time.monotonic() + TIMEOUT
    log = tmp_path / "log"
    while not (started := _event(log, "daemon.started")):
        assert agent.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)
    port = int(str(started["address"]).rpartition(":")[2])
    for path in ("/livez", "/readyz"):
        while _status(port, path) != 200:
            assert agent.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
    agent.terminate()
    assert agent.wait(TIMEOUT) == 0
    assert _event(log, "daemon.stopped")


def _event(log: Path, name: str) -> dict[str, object]:
    for line in log.read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            event: dict[str, object] = json.loads(line)
            if event["event"] == name:
                return event
    return {}


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def options() -> list[str]:
    """Of pip, for Debian 12's Python on arm64: wheels alone, as locked."""
    found = ["--require-hashes", "--only-binary=:all:", "--python-version=3.11"]
    return [*found, "--implementation=cp", *(f"--platform={name}" for name in PLATFORMS)]


def pip(*arguments: str) -> None:
    """Run pip."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, timeout=600)
