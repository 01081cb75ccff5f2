"""A run directory that is full or read-only, under the real process; needs root to mount."""

import json
import subprocess

import pytest

from koordlet.plugin.testing import FakeHost

pytestmark = pytest.mark.root


@pytest.fixture
def mount(tmp_path):
    """Mounts a tmpfs of its own as run directory."""
    mounted = []

    def mount_tmpfs(name, options):
        place = tmp_path / name
        place.mkdir()
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"mode=0750,{options}",
            "koordlet-test",
            str(place),
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("needs root and the right to mount")
        mounted.append(place)
        return place

    yield mount_tmpfs
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def start(koordlet, tmp_path):
    host = FakeHost(tmp_path / "host")
    for number in range(3):
        host.add_pod(f"p{number}")
    flags = [
        "--standalone",
        "--report-interval=1s",
        f"--cgroup-root-dir={host.paths.cgroup}",
        f"--proc-root-dir={host.paths.proc}",
        f"--sys-root-dir={host.paths.sys}",
    ]
    return lambda run_dir: koordlet(*flags, run_dir=run_dir)


def degraded(daemon):
    """Status and reason of the parts that are not well."""
    _, text = daemon.get("/healthz?format=json")
    parts = json.loads(text)["parts"]
    return {name: part["reason"] for name, part in parts.items() if part["status"] != "ok"}


def works(daemon):
    """It measures, and serves the figures over HTTP."""
    rows = daemon.ctl("top")["pods"]
    return len(rows) == 3 and all(row["memory_bytes"] is not None for row in rows)


def test_a_full_run_dir_costs_the_history_and_nothing_else(mount, start):
    """From no room at all to almost enough: it says so, and works in memory."""
    places = [mount(size, f"size={size}") for size in ("4k", "64k")]
    daemons = [start(place) for place in places]

    for daemon in daemons:
        daemon.wait_ready()
        daemon.until(lambda daemon=daemon: works(daemon))
        daemon.until(lambda daemon=daemon: daemon.get("/metrics")[0] == 200)
        assert daemon.get("/livez")[0] == 200
        daemon.until(lambda daemon=daemon: "No space left" in json.dumps(degraded(daemon)))
    assert "Traceback" not in "".join(daemon.stderr for daemon in daemons)
    assert [daemon.stop() for daemon in daemons] == [0, 0]


def test_a_run_dir_that_fills_up_later_costs_no_more(mount, start):
    """Files that are there keep working; what needs to grow goes on in memory."""
    place = mount("small", "size=2m")
    daemon = start(place)
    daemon.wait_ready()
    daemon.until(lambda: works(daemon))
    daemon.until(lambda: daemon.get("/nodemetric")[0] == 200)
    with pytest.raises(OSError, match="No space left"):
        (place / "ballast").write_bytes(bytes(2 * 2**20))

    def full():
        """The reporter's reason. Until it writes, a busy machine may have no sample for it."""
        reason = degraded(daemon).get("reporter", "")
        return "No space left" in reason and reason

    assert str(place) in daemon.until(full)
    assert works(daemon)

    (place / "ballast").unlink()
    daemon.until(lambda: not degraded(daemon))
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.stderr


def test_a_read_only_run_dir_is_refused(mount, start):
    """It cannot even be locked: status 1, and the message says what to do."""
    daemon = start(mount("read-only", "ro"))

    assert daemon.wait() == 1
    assert "found Read-only file system; mount or create it writable" in daemon.stderr
    assert "Traceback" not in daemon.stderr
